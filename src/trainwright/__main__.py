"""`python -m trainwright` is the command `trainwright`."""

from trainwright.cli.main import command

command()
