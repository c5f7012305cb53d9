"""Compress runs: smaller models as child runs, measured beside their parents."""
