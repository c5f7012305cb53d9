"""Stores: where the files of a run are kept."""
