"""The result of a run, and the record of an attempt."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from trainwright.records.document import Document, Record
from trainwright.records.manifest import DeterminismRecord, NumericEnvironment
from trainwright.records.status import Ended


class BestModel(Record):
    """The best model of a run: its step, its value of `checkpoint.metric`, and the digest of its weights."""

    step: int
    metric: str | None = None
    value: float | None = None
    digest: str | None = None


class Result(Document):
    """The standing of a run after an orderly end of an attempt.

    `evaluated` says whether `metrics` are those of the `best` or the `final` model (None: not evaluated);
    `digest` is that of the final weights, and `weights` says which these are: `trained`, or `ema`, an average
    of them (None: of another trainer); `computation_hash` is the manifest's, to find the
    run; `train_seconds` and `samples_per_second` leave out start-up and the last evaluation;
    `skipped_samples` is the number of corrupt samples that were left out.
    """

    FILE: ClassVar[str] = "result.json"

    status: Ended
    run_id: str | None = None
    experiment: str | None = None
    computation_hash: str | None = None
    steps: int = 0
    epochs: float = 0.0
    metrics: dict[str, float] = Field(default_factory=dict)
    evaluated: str | None = None
    best: BestModel | None = None
    digest: str | None = None
    weights: str | None = None
    attempts: int = 0
    determinism: DeterminismRecord | None = None
    train_seconds: float = 0.0
    samples_per_second: float | None = None
    skipped_samples: int = 0
    error: str | None = None

    @property
    def test_metrics(self) -> dict[str, float]:
        """The metrics of the test split."""
        return {name: value for name, value in self.metrics.items() if name.startswith("test_")}

    def with_values(self, **values: Any) -> Result:
        """Return a copy in which some fields have other values."""
        return self.model_copy(update=values)


class AttemptRecord(Document):
    """One process life of a run: when, where, how it ended.

    `status` is None until the attempt has ended; `started` and `ended` are seconds since the epoch. `step` is
    the last step, where the attempt has a result. `environment` is None until it is known, which takes the
    start-up, and until the end of an attempt whose environment is that of the manifest. `processes` is their
    number; `pid` and `host` are those of the main one.
    """

    attempt: int = 0
    processes: int = 1
    pid: int = 0
    host: str = ""
    working_directory: str = "."
    started: float = 0.0
    status: Ended | None = None
    ended: float | None = None
    step: int | None = None
    environment: NumericEnvironment | None = None
    error: str | None = None
