"""The progress that verbs show while they train, and the end that Ctrl-C makes of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TextIO, TypeVar

from trainwright.callbacks.progress import Progress, line, progress
from trainwright.engine.signals import Stopped
from trainwright.errors import Interrupted
from trainwright.records.run_dir import RunDir
from trainwright.runs.run import Run

if TYPE_CHECKING:
    from trainwright.callbacks.base import Callback
    from trainwright.studies.study import StudyView, TrialWatcher

View = TypeVar("View", bound="StudyView")
Params = ParamSpec("Params")
Made = TypeVar("Made")


@contextmanager
def shown(
    callbacks: Sequence[Callback], *, quiet: bool, stream: TextIO | None = None
) -> Iterator[Sequence[Callback]]:
    """Yield callbacks with one more that shows the progress, unless one of them does.

    Args:
        callbacks: The user's own.
        quiet: Whether nothing is to be shown.
        stream: Where it is shown; default: the standard output.
    """
    stream = sys.stdout if stream is None else stream
    if quiet or stream is None or any(isinstance(one, Progress) for one in callbacks):
        yield callbacks
        return
    bar = progress(stream)
    try:
        yield [*callbacks, bar]
    finally:
        bar.close()


def trial_lines(stream: TextIO) -> TrialWatcher:
    """Return a watcher that prints a line for each run of a study that has ended."""
    write = getattr(stream, "write_raw", stream.write)

    def watch(run: Mapping[str, Any]) -> None:
        # An error is shown at the end, as text: a line of pairs holds no spaces.
        told = {key: value for key, value in run.items() if key != "error" and value is not None}
        write(line({"event": "run"}, told) + "\n")
        stream.flush()

    return watch


def watched(watch: TrialWatcher | None, *, quiet: bool) -> TrialWatcher | None:
    """Return the user's own watcher of a study, or one that prints lines; None: nothing is shown."""
    return watch if watch is not None or quiet or sys.stdout is None else trial_lines(sys.stdout)


def interruptible(verb: Callable[Params, Made]) -> Callable[Params, Made]:
    """Return a verb that raises `Interrupted` wherever Ctrl-C ends it: also before its first step.

    A SIGTERM stays `Stopped`, as it ends the process.
    """

    @wraps(verb)
    def run(*args: Params.args, **kwargs: Params.kwargs) -> Made:
        try:
            return verb(*args, **kwargs)
        except Interrupted:
            raise
        except Stopped as stopped:
            if stopped.status != "interrupted":
                raise
            made = None if stopped.run is None else Run(stopped.run)
            again = (
                "the same call begins again"
                if made is None
                else f"trainwright.resume({made.id!r}) continues it"
            )
            raise Interrupted(f"interrupted, and nothing is lost: {again}", made) from stopped
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted: the same call begins again", None) from error

    return run


def unless_interrupted(run: Run) -> Run:
    """Return a run, unless Ctrl-C has ended it.

    Raises:
        Interrupted: Ctrl-C has ended it.
    """
    if RunDir(run.path).status_on_disk() == "interrupted":
        raise Interrupted(
            f"run {run.id} was interrupted, and has saved its state: "
            f"trainwright.resume({run.id!r}) continues it",
            run,
        )
    return run


def study_unless_interrupted(study: View, again: str = "the same call with resume=True") -> View:
    """Return a study, unless Ctrl-C has ended it.

    Args:
        study: The study.
        again: The call that continues it.

    Raises:
        Interrupted: Ctrl-C has ended it.
    """
    if study.status == "interrupted":
        raise Interrupted(
            f"study {study.id} was interrupted, and has saved its state: {again} continues it", study
        )
    return study
