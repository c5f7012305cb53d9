"""`config`: check, show, names, schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

import trainwright
from trainwright.api.documents import config_check, config_values, json_document
from trainwright.cli import options
from trainwright.cli.output import say_data, show, table
from trainwright.errors import InputError
from trainwright.redact import redacted

if TYPE_CHECKING:
    from trainwright.config import Resolved


@click.group()
def config() -> None:
    """Check and show configs without training."""


@config.command()
@click.argument("file")
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@options.runs_dir
@options.as_json
def check(file: str, overrides: Sequence[str], runs_dir: str | None, as_json: bool) -> None:
    """Check a config; every problem is named with file, line and column.

    If the training file is here, the columns that data.split and data.expect name are looked for in it.
    `data check` compares the rows.
    """
    resolved = trainwright.check(file, overrides, runs_dir=runs_dir, columns=True)
    document = config_check(file, resolved)
    show(document, [*(f"note: {note}" for note in document["notes"]), f"{file}: ok"], as_json)


@config.command("show")
@click.argument("file")
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@options.runs_dir
@options.as_json
def show_config(file: str, overrides: Sequence[str], runs_dir: str | None, as_json: bool) -> None:
    """Show the resolved config, with the origin of each value."""
    from trainwright.config.emit import inline

    resolved = trainwright.check(file, overrides, runs_dir=runs_dir)
    document = config_values(resolved)
    rows = [(key, inline(one["value"]), f"# {one['source']}") for key, one in document.items()]
    kinds, problem = _columns(resolved)
    if kinds:
        document["columns"] = kinds
    lines = table(rows)
    lines += [f"# columns: {problem}"] if problem else []
    if kinds:
        lines += ["# columns, as inferred from the first rows (declare them in data.columns to change that):"]
        lines += table((f"#   {inline(name)}", kind["kind"], kind["reason"]) for name, kind in kinds.items())
    show(document, lines, as_json)


def _columns(resolved: Resolved) -> tuple[dict[str, dict[str, str]], str]:
    """Return what the columns of the training file are, or why that is not known."""
    from trainwright.api.configs import columns

    try:
        kinds = columns(resolved)
    except InputError as error:
        return {}, redacted(str(error).splitlines()[0])
    return {name: {"kind": kind.kind, "reason": kind.reason} for name, kind in kinds.items()}, ""


@config.command("names")
@click.argument("kind", required=False)
@options.as_json
def list_names(kind: str | None, as_json: bool) -> None:
    """List the names that a config may use.

    KIND is model, metric, optimizer, loss, dataset, transform, scheduler ...; a section (training, data.split
    ...), for its keys; or one of these names (model.gpt, dataset.csv ...), for its options. Without it, list
    what KIND may be.
    """
    from trainwright.api.configs import names

    listed = names(kind)
    show(listed, table(listed.items()), as_json)


@config.command()
@options.as_json
def schema(as_json: bool) -> None:  # noqa: ARG001 - the schema is always JSON
    """Print the JSON Schema of config files.

    Editors use it to complete and check them.
    """
    say_data(json_document(trainwright.schema()))
