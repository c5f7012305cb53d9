"""`train`, `resume`, `fork`, `reproduce`: the commands that train one run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

import trainwright
from trainwright.api.documents import run_document
from trainwright.cli import options
from trainwright.cli.output import made_by, say, show, table
from trainwright.cli.proof import UNPROVEN, verdict_lines
from trainwright.records.status import EXIT_CODES, TESTED, Status
from trainwright.world import is_follower

if TYPE_CHECKING:
    from trainwright.callbacks.base import Callback
    from trainwright.runs.run import Run


@click.command()
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@click.option(
    "--resume",
    is_flag=True,
    help="Continue the newest unfinished run of the same computation, if there is one.",
)
@click.option(
    "--reuse",
    is_flag=True,
    help="Return the newest completed run with the same inputs, if there is one, instead of training.",
)
@options.runs_dir
@options.quiet
@options.as_json
def train(
    config: str,
    overrides: Sequence[str],
    resume: bool,
    reuse: bool,
    runs_dir: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Train one run, from config to report."""
    with progress_callbacks(quiet, as_json) as callbacks:
        run = made_by(
            trainwright.train,
            config,
            overrides,
            runs_dir=runs_dir,
            resume=resume,
            reuse=reuse,
            callbacks=callbacks,
            quiet=quiet,
        )
    _finish(run, runs_dir, as_json)


@click.command()
@options.run_argument
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@click.option(
    "--allow-change",
    is_flag=True,
    help="Continue although config, data or code has changed, or the environment of a `bitwise` run; the "
    "change is recorded.",
)
@options.trust
@options.runs_dir
@options.quiet
@options.as_json
def resume(
    run: str,
    overrides: Sequence[str],
    allow_change: bool,
    trust: bool,
    runs_dir: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Continue a run from its newest valid checkpoint.

    It keeps the device and the number of threads that it had, unless they are given:
    `trainwright resume RUN training.threads=2 training.device=cpu`.

    A run that has ended stays as it is; with another length, a new run goes on after it:
    `trainwright resume RUN training.epochs=60`.

    RUN may be a search: `trainwright resume STUDY tuning.trials=100` goes on with more trials. `last` is the
    newest run or study.
    """
    if _is_study(run) or (run == "last" and _last_is_study(overrides, runs_dir)):
        from trainwright.cli.studies import resume_study

        resume_study(run, overrides, runs_dir, allow_change, trust, quiet, as_json)
    with progress_callbacks(quiet, as_json) as callbacks:
        resumed = made_by(
            trainwright.resume,
            run,
            overrides,
            runs_dir=runs_dir,
            allow_change=allow_change,
            callbacks=callbacks,
            trust=trust,
            quiet=quiet,
        )
    _finish(resumed, runs_dir, as_json)


@click.command()
@options.run_argument
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@click.option(
    "--step",
    type=int,
    metavar="N",
    help="The step from which the new settings hold.  [default: the newest state of the run]",
)
@click.option("--allow-change", is_flag=True, help="Go on although the run's data have changed.")
@options.trust
@options.runs_dir
@options.quiet
@options.as_json
def fork(
    run: str,
    overrides: Sequence[str],
    step: int | None,
    allow_change: bool,
    trust: bool,
    runs_dir: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Train a new run that begins with the state of another one.

    Where no checkpoint of step N is kept, the steps before it are repeated from an earlier one, with the
    settings of the other run. That run stays as it is.
    """
    with progress_callbacks(quiet, as_json) as callbacks:
        child = made_by(
            trainwright.fork,
            run,
            overrides,
            step=step,
            runs_dir=runs_dir,
            allow_change=allow_change,
            callbacks=callbacks,
            trust=trust,
            quiet=quiet,
        )
    _finish(child, runs_dir, as_json)


@click.command()
@options.run_argument
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@options.trust
@options.runs_dir
@options.quiet
@options.as_json
@click.pass_context
def reproduce(
    ctx: click.Context,
    run: str,
    overrides: Sequence[str],
    trust: bool,
    runs_dir: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Train a run again and say whether it is identical.

    Lists the inputs that differ, then says `identical`, or `different` with the first step, evaluation and
    tensor that differ, or what could not be compared, and why; the exit code is 0 for `identical` alone, and
    3 otherwise.

    The processes may form another mesh, which divides the virtual mesh of the run:
    `trainwright reproduce RUN distributed.nproc=1`.

    RUN may be a search: all its trials are made again, and compared one by one.
    """
    if _is_study(run):
        if overrides:
            raise click.UsageError(f"{overrides[0]}: the trials of a search keep their meshes; leave it out")
        from trainwright.cli.studies import reproduce_study

        reproduce_study(run, runs_dir, trust, quiet, as_json)
    with progress_callbacks(quiet, as_json) as callbacks:
        reproduction = made_by(
            trainwright.reproduce,
            run,
            overrides,
            runs_dir=runs_dir,
            callbacks=callbacks,
            trust=trust,
            quiet=quiet,
        )
    show(reproduction.to_json(), verdict_lines(reproduction), as_json)
    ctx.exit(0 if reproduction.verdict == "identical" else UNPROVEN)


def _is_study(name: str) -> bool:
    from trainwright.records.study import is_study

    return is_study(name)


def _last_is_study(overrides: Sequence[str], runs_dir: str | None) -> bool:
    """Return whether `last` means a study to `resume`."""
    from trainwright.records.listing import newest_is_study, runs_folder

    return any(text.startswith("tuning.") for text in overrides) or newest_is_study(runs_folder(runs_dir))


@contextmanager
def progress_callbacks(quiet: bool, as_json: bool) -> Iterator[Sequence[Callback]]:
    """Yield the callbacks that show the progress; on stderr if stdout gets a document."""
    from trainwright.api.progress import shown

    with shown((), quiet=quiet, stream=sys.stderr if as_json else sys.stdout) as callbacks:
        yield callbacks


def _finish(run: Run, runs_dir: str | None, as_json: bool) -> None:
    """Print the result, and exit with the code of the run's status."""
    if is_follower():
        pass
    elif as_json:
        show(run_document(run), (), as_json)
    else:
        say_result(run, runs_dir)
    click.get_current_context().exit(exit_code(run))


def exit_code(run: Run) -> int:
    """Return the exit code for the status of a run."""
    return EXIT_CODES.get(_status(run), 1)


def _status(run: Run) -> Status:
    from trainwright.records.run_dir import RunDir

    return RunDir(run.path).status_on_disk()


def say_result(run: Run, runs_dir: str | None) -> None:
    """Print the result of a run for people, and what can be done with it next."""
    from trainwright.reports.summary import summary_table
    from trainwright.storage.urls import run_url

    status, url, report = _status(run), run_url(run.path), run.path / "report.html"
    places = [("url", url), ("directory", run.path), ("report", report if report.exists() else None)]
    facts = [*summary_table(run.path), *((name, place) for name, place in places if place)]
    say("\n".join(["", *table(facts), ""]))
    arguments = _arguments(run, url, runs_dir)
    if status in TESTED:
        say("next:")
        for command in _next_commands(run):
            say(f"  trainwright {command.format(arguments)}")
    if status != "completed":
        say(f"resume with: trainwright resume {arguments}")


def _next_commands(run: Run) -> Iterator[str]:
    """Yield commands that work for a run, with a place for its name."""
    from trainwright.records.run_dir import RunDir

    manifest = RunDir(run.path).require_manifest()
    yield "runs show {}"
    split = next((name for name in ("test", "val") if name in manifest.data.splits), None)
    if split is not None:
        yield "evaluate {}" if split == "test" else f"evaluate {{}} --split {split}"
    yield "reproduce {}"


def _arguments(run: Run, url: str | None, runs_dir: str | None) -> str:
    """Return the arguments with which another command finds a run, also outside of the folder of runs."""
    from trainwright.records.listing import runs_folder

    if run.path.absolute().parent.parent != runs_folder(runs_dir).absolute():
        return shlex.quote(url or str(run.path))
    return run.id + (f" --runs-dir {shlex.quote(runs_dir)}" if runs_dir else "")
