"""The command line, in a network of its own."""

import sys

import loopback
from trainwright.cli import main as entry


def main(*words: str) -> None:
    """Run a command and exit with its code."""
    loopback.enter()
    sys.exit(entry.main(words))
