"""Two runs side by side: in what they differ, and what came of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainyard.config import load
from trainyard.evaluation.metrics import bare
from trainyard.evaluation.significance import Significance, same_rows
from trainyard.records.journal import number
from trainyard.records.rundir import RunDir
from trainyard.redact import redacted, redacted_value
from trainyard.runs.inputs import Difference, differences
from trainyard.runs.run import Run

_RESULTS = ("steps", "epochs", "train_seconds", "samples_per_second")


@dataclass(frozen=True)
class NumberPair:
    """A number of both runs; None where a run has no such number, or no difference can be taken."""

    name: str
    first: float | None
    second: float | None
    delta: float | None


@dataclass(frozen=True)
class Comparison:
    """In what the second run differs from the first.

    `config`: all config values, also those that change no bits; `inputs`: data, code, environment and weights (None
    where a run ended before they were recorded); `numbers`: the metrics, steps and speed of both; `digests`: of the
    final weights, None before the end; `tests`: whether the models differ on the test rows, where both were tested on the
    same ones, by each metric that both computed; else `untested` says why there is none.
    """

    runs: tuple[str, str]
    config: Sequence[Difference]
    inputs: Sequence[Difference] | None
    numbers: Sequence[NumberPair]
    digests: tuple[str | None, str | None]
    tests: Sequence[Significance] = ()
    untested: str | None = None

    @property
    def same_digest(self) -> bool:
        return self.digests[0] is not None and self.digests[0] == self.digests[1]

    def to_json(self) -> dict[str, Any]:
        tests = [test.to_json() for test in self.tests]
        return asdict(self) | {"same_digest": self.same_digest, "tests": tests}


def compare(first: Run, second: Run) -> Comparison:
    """Compares two runs, finished or not.

    Where both were tested on the same rows, their models predict these rows again, for a significance test. That nothing of it
    can be done (weights are missing, a framework is not installed ...) is no error.

    Raises:
        ConfigError: a run's config cannot be read any more.
        CheckpointError: a file of a run is damaged.
    """
    before, now = first.manifest, second.manifest
    inputs = (
        [found for found in differences(before, now) if found.input != "config"] if before and now else None
    )
    return Comparison(
        (first.id, second.id),
        list(_config(first, second)),
        inputs,
        list(_numbers(first, second)),
        (first.digest, second.digest),
        *_tested(first, second),
    )


def _tested(first: Run, second: Run) -> tuple[Sequence[Significance], str | None]:
    """The tests, or why there is none."""
    from trainyard.runs.predictions import other_rows

    if first.digest is not None and first.digest == second.digest:
        return (), "the models are the same"
    if (why := other_rows(first.manifest, second.manifest)) is not None:
        return (), why
    for run in (first, second):
        if objects := run.manifest.get("objects"):
            return (), f"run {run.id} was given {' and '.join(objects)} as objects, which no file holds"
    try:
        return _tests(first, second), None
    except (
        Exception
    ) as error:  # foreign code loads models; whatever it says, the rest of the comparison stands
        return (), redacted(f"{type(error).__name__}: {error}")


def _tests(first: Run, second: Run) -> list[Significance]:
    from trainyard.runs.predictions import predicted
    from trainyard.runs.wiring import wanted_metrics

    found = []
    for run in (first, second):
        with contextlib.chdir(_working_directory(run)):
            found.append(predicted(RunDir(run.path)))
    # Of a metric that a model brings, nothing but its value is known.
    ours, theirs = ({bare(name) for name in wanted_metrics(part.config, part.info)} for part in found)
    metrics = [
        name for name in found[0].result.metrics if name != "test_loss" and bare(name) in ours & theirs
    ]
    one, other = (part.scores for part in found)
    return [same_rows(metric, one, other) for metric in metrics]


def _working_directory(run: Run) -> Path:
    """Where the run was started: what its config names by relative paths lies there."""
    recorded = Path(run.manifest.get("working_directory", "."))
    return recorded if recorded.is_dir() else Path.cwd()


def _config(first: Run, second: Run) -> Iterator[Difference]:
    before, now = (load(run.path / "config.yaml").flat() for run in (first, second))
    for key in [*before, *(key for key in now if key not in before)]:
        old, new = before.get(key), now.get(key)
        if old != new:
            yield Difference("config", key, redacted_value(key, old), redacted_value(key, new))


def _numbers(first: Run, second: Run) -> Iterator[NumberPair]:
    before, now = (run.metrics | _results(run) for run in (first, second))
    for name in [*before, *(name for name in now if name not in before)]:
        old, new = before.get(name), now.get(name)
        yield NumberPair(name, old, new, None if old is None or new is None else new - old)


def _results(run: Run) -> dict[str, float]:
    return {name: number(run.result[name]) for name in _RESULTS if name in run.result}
