"""Runs that begin with the state of another run: forks, and runs that continue after one that has ended."""
