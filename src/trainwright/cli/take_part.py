"""`take-part`: one of the processes that `train` starts."""

from __future__ import annotations

from pathlib import Path

import click

from trainwright.require import close_process


@click.command(hidden=True)
@click.argument("folder", type=click.Path(path_type=Path))
@click.pass_context
def take_part(ctx: click.Context, folder: Path) -> None:
    """Take part in the attempt whose request is in FOLDER."""
    from trainwright.runs.attempt import run_attempt
    from trainwright.runs.processes.ranks import take_part as take_part_in

    close_process()
    ctx.exit(take_part_in(folder, run_attempt))
