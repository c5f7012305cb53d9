"""`certificate verify`: compare an exported model with its certificate."""

from __future__ import annotations

from pathlib import Path

import click

import trainwright
from trainwright.cli import options
from trainwright.cli.output import show


@click.group()
def certificate() -> None:
    """Verify exported models against their certificates."""


@certificate.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("rows", type=click.Path(path_type=Path), required=False, metavar="[ROWS.csv]")
@options.trust
@options.runs_dir
@options.as_json
def verify(path: Path, rows: Path | None, trust: bool, runs_dir: str | None, as_json: bool) -> None:
    """Verify an exported model.

    Its files must be those of its certificate, and its predictions for the edge rows in there must be equal;
    with ROWS.csv also those for the rows in this file that it was compared on when it was exported.
    """
    said = trainwright.verify_certificate(path, rows, runs_dir=runs_dir, trust=trust)
    show({"path": str(path), "verified": True, "message": said}, [said], as_json)
