"""`tune`: the search for hyperparameters, and its workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import click

import trainwright
from trainwright.api.documents import study_document
from trainwright.cli import options
from trainwright.cli.output import made_by, show
from trainwright.cli.studies import study_summary, watcher
from trainwright.records.status import EXIT_CODES
from trainwright.require import close_process


@click.command()
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@click.option(
    "--resume",
    is_flag=True,
    help="Continue the newest unfinished study of the same config, space and data; tuning.trials may be "
    "larger.",
)
@click.option(
    "--from",
    "start_from",
    metavar="STUDY",
    help="Start from what another study learned: from those of its trials that lie in the space.",
)
@click.option(
    "--suggest",
    is_flag=True,
    help="Train nothing: print a `tuning` section for the config's model, to add to the file.",
)
@options.runs_dir
@options.quiet
@options.as_json
def tune(
    config: str, overrides: Sequence[str], quiet: bool, as_json: bool, suggest: bool, **options: Any
) -> None:
    """Search for the best hyperparameters; each trial is a run.

    They are the keys in the config's `tuning.space`. A study that is killed goes on with --resume: no trial
    is lost, repeated or changed.
    """
    if suggest:
        section = trainwright.suggest_tuning(config, overrides)
        show({"tuning": section}, [section.rstrip("\n")], as_json)
        return
    study = made_by(
        trainwright.tune, config, overrides, watch=watcher(quiet, as_json), quiet=quiet, **options
    )
    show(study_document(study), study_summary(study), as_json)
    click.get_current_context().exit(EXIT_CODES.get(study.status, 1))


@click.command("do-stints", hidden=True)
@click.argument("answers", type=int)
@click.argument("parent", type=int)
@click.argument("log_level", type=int)
@click.pass_context
def do_stints(ctx: click.Context, answers: int, parent: int, log_level: int) -> None:
    """Train the trials that arrive on stdin, and write to the descriptor ANSWERS how each ended."""
    from trainwright.studies.tuning.workers import do_stints as do

    _as_worker(ctx, do, answers, parent, log_level)


@click.command("serve-stints", hidden=True)
@click.argument("answers", type=int)
@click.argument("parent", type=int)
@click.argument("log_level", type=int)
@click.pass_context
def serve_stints(ctx: click.Context, answers: int, parent: int, log_level: int) -> None:
    """Train the trials that arrive on stdin, and ask on the descriptor ANSWERS after each evaluation."""
    from trainwright.studies.tuning.tuner_worker import serve

    _as_worker(ctx, serve, answers, parent, log_level)


def _as_worker(
    ctx: click.Context, do: Callable[[int], str | None], answers: int, parent: int, log_level: int
) -> None:
    from trainwright.runs.processes.started import end_with

    end_with(parent)
    close_process()
    logging.getLogger("trainwright").setLevel(log_level)
    status = do(answers)
    ctx.exit(EXIT_CODES[status] if status is not None else 0)  # type: ignore[index]
