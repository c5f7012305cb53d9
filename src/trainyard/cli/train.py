"""`train`, `resume`, `reproduce`: the commands that make steps."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

import trainyard
from trainyard.cli import options
from trainyard.cli.output import run_document, say, show, table
from trainyard.engine.signals import EXIT_CODES

if TYPE_CHECKING:
    from trainyard.callbacks.base import Callback
    from trainyard.runs.reproduce import Reproduction
    from trainyard.runs.run import Run

_DIFFERENT = 3


@click.command()
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the newest unfinished run of the same computation, if there is one.",
)
@options.runs_dir
@options.quiet
@options.as_json
def train(
    config: str, overrides: Sequence[str], resume: bool, runs_dir: str | None, quiet: bool, as_json: bool
) -> None:
    """Train one run, from config to report."""
    with _watched(quiet, as_json) as callbacks:
        run = trainyard.train(config, overrides, runs_dir=runs_dir, resume=resume, callbacks=callbacks)
    _finish(run, runs_dir, as_json)


@click.command()
@options.run_argument
@click.option(
    "--allow-change", is_flag=True, help="Go on although config, data or code have changed; it is recorded."
)
@options.trust
@options.runs_dir
@options.quiet
@options.as_json
def resume(
    run: str, allow_change: bool, trust: bool, runs_dir: str | None, quiet: bool, as_json: bool
) -> None:
    """Go on with a run from its newest whole checkpoint."""
    with _watched(quiet, as_json) as callbacks:
        resumed = trainyard.resume(
            run, runs_dir=runs_dir, allow_change=allow_change, callbacks=callbacks, trust=trust
        )
    _finish(resumed, runs_dir, as_json)


@click.command()
@options.run_argument
@options.trust
@options.runs_dir
@options.quiet
@options.as_json
@click.pass_context
def reproduce(
    ctx: click.Context, run: str, trust: bool, runs_dir: str | None, quiet: bool, as_json: bool
) -> None:
    """Train a run again and say whether it is identical.

    Names the inputs that differ, then says `identical`, or `different` with the first step and the first tensor that
    differ; the exit code is 3 then.
    """
    with _watched(quiet, as_json) as callbacks:
        found = trainyard.reproduce(run, runs_dir=runs_dir, callbacks=callbacks, trust=trust)
    show(found.to_json(), _verdict(found), as_json)
    ctx.exit(0 if found.verdict == "identical" else _DIFFERENT)


@contextmanager
def _watched(quiet: bool, as_json: bool) -> Iterator[list[Callback]]:
    """The callbacks that show the progress: on stdout, unless a document is to stand there."""
    if quiet:
        yield []
        return
    from trainyard.callbacks.progress import progress

    shown = progress(sys.stderr if as_json else sys.stdout)
    try:
        yield [shown]
    finally:
        shown.close()


def _finish(run: Run, runs_dir: str | None, as_json: bool) -> None:
    """Shows what came out; the status becomes the exit code."""
    status = run.result.get("status", run.status)
    if as_json:
        show(run_document(run), (), as_json)
    else:
        _say_result(run, status, f" --runs-dir {shlex.quote(runs_dir)}" if runs_dir else "")
    click.get_current_context().exit(EXIT_CODES.get(status, 1))


def _say_result(run: Run, status: str, where: str) -> None:
    from trainyard.reports.summary import summary_table

    facts = summary_table(run.path)
    report = run.path / "report.html"
    files = [("directory", run.path), *([("report", report)] if report.exists() else [])]
    say("\n".join(["", *table([*facts, *files]), ""]))
    if status == "completed":
        say("next:")
        for command in ("runs show", "evaluate", "reproduce"):
            say(f"  trainyard {command} {run.id}{where}")
    else:
        say(f"resume with: trainyard resume {run.id}{where}")


def _verdict(found: Reproduction) -> Iterator[str]:
    for difference in found.inputs:
        yield f"input differs: {difference}"
    if found.verdict == "identical":
        yield f"identical: {found.repetition} repeats {found.original}: {found.steps[0]} steps, digest {found.digests[0]}"
        return
    yield f"different: {found.repetition} does not repeat {found.original}"
    if found.steps[0] != found.steps[1]:
        yield f"  steps: {found.steps[0]}, then {found.steps[1]}"
    if found.step is not None and found.step_losses is not None:
        yield f"  first step that differs: {found.step} (loss {found.step_losses[0]!r}, then {found.step_losses[1]!r})"
    else:
        yield "  the loss of every step is the same"
    if found.tensor is not None:
        yield f"  first tensor that differs: {found.tensor.name} ({found.tensor.before}, then {found.tensor.now})"
    if found.metrics:
        yield f"  metrics that differ: {', '.join(found.metrics)}"
    yield f"  digests: {found.digests[0]}, then {found.digests[1]}"
