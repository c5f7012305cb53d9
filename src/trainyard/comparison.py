"""Two runs side by side: in what they differ, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainyard.config import load
from trainyard.core.inputs import Difference, differences
from trainyard.core.journal import number
from trainyard.redact import redacted_value
from trainyard.run import Run

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
    final weights, None before the end.
    """

    runs: tuple[str, str]
    config: Sequence[Difference]
    inputs: Sequence[Difference] | None
    numbers: Sequence[NumberPair]
    digests: tuple[str | None, str | None]

    @property
    def same_digest(self) -> bool:
        return self.digests[0] is not None and self.digests[0] == self.digests[1]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"same_digest": self.same_digest}


def compare(first: Run, second: Run) -> Comparison:
    """Compares two runs, finished or not.

    Raises:
        ConfigError: a run's config cannot be read any more.
        CheckpointError: a file of a run is damaged.
    """
    before, now = first.manifest, second.manifest
    inputs = [found for found in differences(before, now) if found.input != "config"] if before and now else None
    return Comparison(
        (first.id, second.id),
        list(_config(first, second)),
        inputs,
        list(_numbers(first, second)),
        (first.digest, second.digest),
    )


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
