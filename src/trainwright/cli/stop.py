"""`stop`: end a run that another process trains."""

from __future__ import annotations

import click

import trainwright
from trainwright.api.documents import run_document
from trainwright.cli import options
from trainwright.cli.output import show
from trainwright.records.status import EXIT_CODES


@click.command()
@options.run_argument
@click.option("--no-wait", is_flag=True, help="Return at once, without waiting for the run to end.")
@options.runs_dir
@options.as_json
@click.pass_context
def stop(ctx: click.Context, run: str, no_wait: bool, runs_dir: str | None, as_json: bool) -> None:
    """Stop a running run; `resume` continues it.

    The run finishes its step, evaluates, saves, tests its best model, and ends as `stopped`.
    """
    asked = trainwright.stop(run, runs_dir=runs_dir, wait=not no_wait)
    status = asked.status
    steps = asked.result.get("steps")
    line = f"run {asked.id} is {status}" + (f", at step {steps}" if steps is not None else "")
    show(run_document(asked), [f"run {asked.id} was asked to stop" if status == "running" else line], as_json)
    ctx.exit(0 if status == "running" else EXIT_CODES.get(status, 1))
