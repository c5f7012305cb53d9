"""`config`: check, show, schema."""

from __future__ import annotations

from collections.abc import Sequence

import click

import trainyard
from trainyard.cli import options
from trainyard.cli.output import json_document, say, show, table


@click.group()
def config() -> None:
    """Look at configs, without training."""


@config.command()
@click.argument("file")
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@options.as_json
def check(file: str, overrides: Sequence[str], as_json: bool) -> None:
    """Check a config; every problem is named with file, line and column."""
    found = trainyard.check(file, overrides)
    document = {
        "file": file,
        "ok": True,
        "notes": list(found.notes),
        "computation_hash": found.computation_hash(),
    }
    show(document, [*(f"note: {note}" for note in found.notes), f"{file}: ok"], as_json)


@config.command("show")
@click.argument("file")
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@options.as_json
def show_config(file: str, overrides: Sequence[str], as_json: bool) -> None:
    """Show the resolved config, each value with where it came from."""
    from trainyard.config.emit import inline
    from trainyard.redact import redacted_value

    found = trainyard.check(file, overrides)
    values = {key: redacted_value(key, value) for key, value in found.flat().items()}
    origins = {key: str(found.sources.get(key, "default")) for key in values}
    document = {key: {"value": value, "source": origins[key]} for key, value in values.items()}
    show(document, table((key, inline(value), f"# {origins[key]}") for key, value in values.items()), as_json)


@config.command()
@options.as_json
def schema(as_json: bool) -> None:  # noqa: ARG001 - it is JSON in any case
    """Print the JSON Schema of config files, by which editors complete and check."""
    say(json_document(trainyard.schema()))
