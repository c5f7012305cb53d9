"""Typed records of a run, and reading them."""
