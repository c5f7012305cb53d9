"""`python -m trainwright` is the command `trainwright`."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the working directory: the command adds it where it is the user's project

from trainwright.cli.main import command

command()
