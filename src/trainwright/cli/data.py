"""`data`: compare data."""

from __future__ import annotations

import click

from trainwright.cli.data_diff import diff


@click.group()
def data() -> None:
    """Keep versions of data, compare and check them."""


data.add_command(diff)
