"""`create`, `work`: make a run here, and train it in another process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

import trainwright
from trainwright.api.documents import run_document, study_document
from trainwright.cli import options
from trainwright.cli.errors import report
from trainwright.cli.output import made_by, show
from trainwright.cli.studies import study_summary, watcher
from trainwright.cli.train import exit_code, progress_callbacks, say_result
from trainwright.records.status import EXIT_CODES
from trainwright.require import close_process

_ENDED_BY_SIGNAL = ("preempted", "interrupted")


@click.command()
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@options.runs_dir
@options.as_json
def create(config: str, overrides: Sequence[str], runs_dir: str | None, as_json: bool) -> None:
    """Create a run, and print its path or URL.

    Nothing is trained: `trainwright work` with this path or URL does that, in any process that has the code
    and the data.
    """
    run = trainwright.create(config, overrides, runs_dir=runs_dir)
    show(run_document(run) | {"url": run.url}, [run.url or str(run.path)], as_json)


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@options.trust
@options.runs_dir
@options.quiet
@options.as_json
@click.pass_context
def work(
    ctx: click.Context, runs: Sequence[str], trust: bool, runs_dir: str | None, quiet: bool, as_json: bool
) -> None:
    """Train runs, or trials of a study, in this process.

    A new RUN is begun; one that was interrupted, or has failed, is resumed. A run that is completed, stopped
    or pruned is left as it is. If a run fails, the next ones are trained all the same; after a signal they
    are not. The exit code is the first one that is not 0, and that of each run is as for `resume`.

    Of a study, any number of processes may do trials, on all machines that share its folder; each ends with
    the study.
    """
    if len(runs) == 1:
        close_process()
    codes, documents = [], []
    for name in runs:
        code, document = _attempt(name, runs_dir, trust, quiet=quiet, as_json=as_json)
        codes.append(code)
        documents.append(document)
        if document.get("status") in _ENDED_BY_SIGNAL:
            break
    show(documents, (), as_json)
    ctx.exit(next((code for code in codes if code), 0))


def _attempt(
    name: str, runs_dir: str | None, trust: bool, *, quiet: bool, as_json: bool
) -> tuple[int, dict[str, Any]]:
    """Make an attempt of a run; return the exit code that it alone would have, and its document."""
    from trainwright.records.study import is_study

    try:
        if is_study(name):
            return _join(name, runs_dir, trust, quiet=quiet, as_json=as_json)
        with progress_callbacks(quiet, as_json) as callbacks:
            run = made_by(
                trainwright.work, name, runs_dir=runs_dir, callbacks=callbacks, trust=trust, quiet=quiet
            )
    except (Exception, SystemExit) as error:  # code of the run may raise anything
        code, document = report(error)
        return code, {"run": name, "error": document}
    if not as_json:
        say_result(run, runs_dir)
    return exit_code(run), run_document(run)


def _join(
    name: str, runs_dir: str | None, trust: bool, *, quiet: bool, as_json: bool
) -> tuple[int, dict[str, Any]]:
    """Do trials of a study; return the exit code that it alone would have, and its document."""
    study = made_by(
        trainwright.work_study,
        name,
        runs_dir=runs_dir,
        trust=trust,
        watch=watcher(quiet, as_json),
        quiet=quiet,
    )
    document = study_document(study)
    if not as_json:
        show(document, study_summary(study), as_json)
    return EXIT_CODES.get(study.status, 1), document
