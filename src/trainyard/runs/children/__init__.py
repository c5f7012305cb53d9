"""Runs that begin with the state of another run."""
