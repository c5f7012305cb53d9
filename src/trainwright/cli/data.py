"""`data`: check."""

from __future__ import annotations

from collections.abc import Sequence

import click

import trainwright
from trainwright.cli import options
from trainwright.cli.output import show
from trainwright.errors import ExpectationError


@click.group()
def data() -> None:
    """Keep versions of data, compare and check them."""


@data.command()
@click.argument("file", metavar="CONFIG")
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@options.as_json
def check(file: str, overrides: Sequence[str], as_json: bool) -> None:
    """Compare the data of a config with its section data.expect.

    The exit code is 3 if they are not as expected, which is said line by line.
    """
    document = trainwright.check_data(file, overrides)
    lines = [
        f"{'ok ' if one['met'] else 'NOT'} {one['key']}{': ' if one['said'] else ''}{one['said']}"
        for one in document["expectations"]
    ]
    unmet = sum(not one["met"] for one in document["expectations"])
    lines.append(
        f"{file}: {unmet} of {len(document['expectations'])} expectations not met" if unmet else f"{file}: ok"
    )
    show({"file": file, **document}, lines, as_json)
    if unmet:
        click.get_current_context().exit(ExpectationError.exit_code)
