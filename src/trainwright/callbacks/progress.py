r"""Progress as a bar, for people, and as plain lines, for clouds.

A plain line is `trainwright` and pairs that match `(?P<name>[a-z0-9_]+)=(?P<value>\S+)`; values hold no white
space. The format is fixed: later additions are further pairs, or lines with another `event`.

    trainwright event=start step=0/900 run=20260102-101112-0a1b2c experiment=mlp attempt=1 steps_per_epoch=45
    trainwright step=100/900 epoch=2.22 train_loss=0.12 samples_per_second=51234 eta_seconds=12
    trainwright step=100/900 val_loss=0.2345 val_accuracy=0.9611
    trainwright event=best step=100/900 metric=val_loss value=0.2345
    trainwright event=end step=900/900 status=completed test_accuracy=0.9778

So `train_loss=(\S+)` is the training loss, and `step=(\d+)` the step. Numbers are written as Python does,
with `nan`, `inf` and `-inf`.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

from trainwright.callbacks.base import Callback, RunView
from trainwright.numerals import number
from trainwright.redact import printable, redacted

LINE_SECONDS = 1.0  # at most one line of training metrics, and one of an evaluation, in this time
DRAW_SECONDS = 0.2  # at most one redrawing of the bar in this time: it costs about a millisecond
NOTEBOOK_SECONDS = 0.5  # the same in a notebook, which sends each drawing to a browser
_CELLS = 30  # of the bar in a notebook
_FORMATS = {"epoch": ".2f", "samples_per_second": ".0f"}


class Progress(Callback):
    """A callback that shows the progress of the training on a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._shown_on = stream

    def __reduce__(self) -> tuple[Callable[[bool], Progress], tuple[bool]]:
        """Show the progress on the same stream where the main process of several trains."""
        return _on_standard_stream, (_is_stderr(self._shown_on),)

    def close(self) -> None:
        """Restore the terminal; may be called twice."""


def progress(stream: TextIO) -> Progress:
    """Return a bar if `stream` is a terminal or the output of a notebook, else plain lines.

    Only the main thread draws bars: those of several runs at once would overwrite each other.
    """
    if threading.current_thread() is not threading.main_thread():
        return PlainProgress(stream)
    if type(stream).__module__.partition(".")[0] == "ipykernel":
        return NotebookProgress(stream)
    return RichProgress(stream) if _is_terminal(stream) else PlainProgress(stream)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # it is closed
        return False


def _is_stderr(stream: TextIO) -> bool:
    """Return whether a stream is the standard error; those of notebooks and tests may have no descriptor."""
    if stream in (sys.stdout, sys.stderr):
        return stream is sys.stderr
    try:
        return stream.fileno() == 2
    except (AttributeError, OSError, ValueError):  # also of a closed one
        return False


def _on_standard_stream(is_stderr: bool) -> Progress:
    return progress(sys.stderr if is_stderr else sys.stdout)


def line(first: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """Return a plain line: the pairs of `first`, then those of `values` with other names."""
    pairs = {**first, **values, **first}
    return " ".join(
        ["trainwright", *(f"{_name(name)}={_value(name, value)}" for name, value in pairs.items())]
    )


def _name(name: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "_", name.lower()) or "_"


def _value(name: str, value: Any) -> str:
    text = format(value, _FORMATS.get(name, ".6g")) if isinstance(value, float) else printable(str(value))
    return re.sub(r"\s+", "_", text.strip()) or "-"


class _Clock:
    """Estimate the remaining time from the steps of this attempt so far."""

    def __init__(self, run: RunView) -> None:
        self._run = run
        self._began = time.monotonic()

    def seconds_left(self, step: int) -> float:
        """Return the estimate in seconds; 0 before the first step."""
        done = step - self._run.start_step
        return (time.monotonic() - self._began) / done * (self._run.total_steps - step) if done > 0 else 0.0


class PlainProgress(Progress):
    """Print a line per event, and at most one of training metrics and one of an evaluation a second.

    Boosted trees evaluate after each round, some hundreds of times a second: the newest evaluation is shown,
    with the newest best model.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._stream = stream
        self._write = getattr(stream, "write_raw", stream.write)  # clouds read these lines
        self._next = 0.0
        self._step = self._total = 0
        self._held: tuple[int, Mapping[str, float]] | None = None  # not printed yet: too soon
        self._next_evaluation = 0.0
        self._evaluation: tuple[int, Mapping[str, float]] | None = None  # not printed yet
        self._best: tuple[int, Mapping[str, Any]] | None = None  # of an evaluation that is not printed yet

    def on_start(self, run: RunView) -> None:
        """Show the start of the attempt."""
        self._clock, self._total, self._step = _Clock(run), run.total_steps, run.start_step
        identity = {"run": run.run_id, "experiment": run.experiment, "attempt": run.attempt}
        self._print(run.start_step, "start", {**identity, "steps_per_epoch": run.steps_per_epoch})

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show training metrics."""
        self._step, self._held = step, (step, metrics)
        if (now := time.monotonic()) >= self._next:
            self._next = now + LINE_SECONDS
            self._release()

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the metrics of an evaluation."""
        self._step, self._evaluation = step, (step, metrics)
        if (now := time.monotonic()) >= self._next_evaluation:
            self._next_evaluation = now + LINE_SECONDS
            self._release_evaluation()

    def on_event(self, step: int, name: str, detail: Mapping[str, Any]) -> None:
        """Show an event."""
        self._step = step
        texts = {key: redacted(value) for key, value in detail.items() if isinstance(value, str)}
        if name == "best" and self._evaluation is not None:
            self._best = (step, {**detail, **texts})
        else:
            self._print(step, name, {**detail, **texts})

    def on_checkpoint(self, step: int) -> None:
        """Note the step of the last save, which is the last one of an attempt that a signal ends."""
        self._step = max(self._step, step)

    def on_end(self, status: str, metrics: Mapping[str, float]) -> None:
        """Show the end of the attempt."""
        if self._held is not None:  # no time is left
            self._print(self._held[0], "", self._held[1])
        self._release_evaluation()
        step = self._step if self.last_step is None else self.last_step
        self._print(step, "end", {"status": status, **metrics})

    def _release(self) -> None:
        """Print the training metrics that were held back."""
        if self._held is not None:
            step, metrics = self._held
            self._print(step, "", {**metrics, "eta_seconds": round(self._clock.seconds_left(step))})
            self._held = None

    def _release_evaluation(self) -> None:
        """Print the best model and the evaluation that were held back."""
        if self._best is not None:
            self._print(self._best[0], "best", self._best[1])
        if self._evaluation is not None:
            self._print(self._evaluation[0], "", self._evaluation[1])
        self._best = self._evaluation = None

    def _print(self, step: int, event: str, values: Mapping[str, Any]) -> None:
        named = {"event": event} if event else {}
        self._write(line({**named, "step": f"{step}/{self._total}"}, values) + "\n")
        self._stream.flush()


class _Bar(Progress):
    """The facts that bars show: the step, the loss, the speed and the time left."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._next = 0.0
        self._step = 0
        self._metrics: Mapping[str, float] = {}

    def on_start(self, run: RunView) -> None:
        """Show the start of the attempt."""
        self._clock, self._step = _Clock(run), run.start_step

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show training metrics."""
        self._step, self._metrics = step, metrics
        if time.monotonic() >= self._next:
            self._draw()

    def on_end(self, status: str, metrics: Mapping[str, float]) -> None:  # noqa: ARG002
        """Show the end of the attempt."""
        self._step = self._step if self.last_step is None else self.last_step
        self._draw()
        self.close()

    def _draw(self) -> None:
        """Draw the bar."""

    def _facts(self) -> Iterator[str]:
        if "train_loss" in self._metrics:
            yield f"loss {number(self._metrics['train_loss'])}"
        if "samples_per_second" in self._metrics:
            yield f"{self._metrics['samples_per_second']:,.0f} samples/s"
        yield f"{hours(self._clock.seconds_left(self._step))} left"


def _title(run: RunView) -> str:
    how = f", attempt {run.attempt}, from step {run.start_step}" if run.attempt > 1 else ""
    return printable(f"{run.experiment}: run {run.run_id}{how}")


def _evaluated(step: int, metrics: Mapping[str, float]) -> str:
    shown = (printable(f"{name} {number(value)}") for name, value in metrics.items())
    return f"step {step}: " + "  ".join(shown)


class RichProgress(_Bar):
    """A bar with loss, speed and time left; events above it, the last evaluation below it."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        from rich.console import Console, Group
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar
        from rich.text import Text

        self._console = Console(file=stream, highlight=False)
        columns = (BarColumn(bar_width=None), MofNCompleteColumn(), TextColumn("{task.fields[facts]}"))
        self._bar = Bar(*columns, console=self._console, expand=True)
        self._last = Text("no evaluation yet", style="dim", no_wrap=True, overflow="ellipsis")
        self._live = Live(
            Group(self._bar, self._last),
            console=self._console,
            auto_refresh=False,  # a thread that redraws would compete with the loop for the interpreter
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )

    def on_start(self, run: RunView) -> None:
        """Show the start of the attempt."""
        super().on_start(run)
        self._console.print(_title(run), style="bold", markup=False)
        self._task = self._bar.add_task("", total=run.total_steps, completed=run.start_step, facts="")
        self._live.start()
        # A second Ctrl-C ends the process at once, with nobody left to restore the cursor.
        self._console.show_cursor(True)
        self._draw()

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the metrics of an evaluation."""
        self._step, self._last.plain = step, _evaluated(step, metrics)
        self._draw()

    def on_event(self, step: int, name: str, detail: Mapping[str, Any]) -> None:
        """Show an event."""
        facts = (number(value) if isinstance(value, float) else str(value) for value in detail.values())
        text = " ".join([f"step {step}: {name.replace('_', ' ')}", *facts])
        self._console.print(printable(text), markup=False)

    def close(self) -> None:
        """Stop drawing and restore the terminal."""
        self._live.stop()

    def _draw(self) -> None:
        self._bar.update(self._task, completed=self._step, facts="  ".join(self._facts()))
        self._live.refresh()
        self._next = time.monotonic() + DRAW_SECONDS


class NotebookProgress(_Bar):
    """A bar that is drawn again in its one line, for the output of a notebook's cell."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._stream = stream
        self._last = ""
        self._width = 0  # of what the line holds

    def on_start(self, run: RunView) -> None:
        """Show the start of the attempt."""
        super().on_start(run)
        self._total = run.total_steps
        self._stream.write(_title(run) + "\n")
        self._draw()

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the metrics of an evaluation; boosted trees have some hundreds a second."""
        self._step, self._last = step, _evaluated(step, metrics)
        if time.monotonic() >= self._next:
            self._draw()

    def close(self) -> None:
        """End the line."""
        if self._width:
            self._stream.write("\n")
            self._width = 0

    def _draw(self) -> None:
        done = _CELLS * self._step // max(1, self._total)
        parts = [
            "█" * done + "·" * (_CELLS - done),
            f"{self._step}/{self._total}",
            *self._facts(),
            self._last,
        ]
        text = "  ".join(filter(None, parts))
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._width, self._next = len(text), time.monotonic() + NOTEBOOK_SECONDS


def hours(seconds: float) -> str:
    """Return a time in hours, minutes and seconds."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
