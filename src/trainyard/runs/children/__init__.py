"""Runs that begin with the state of another run: forks, and runs that go on after one that has ended."""
