"""The result of a search, `result.json` in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from trainwright.errors import CheckpointError
from trainwright.records.document import Record
from trainwright.records.run_dir import RunDir
from trainwright.records.study_results import StudyResult
from trainwright.types import Mode

SETTINGS = "settings.json"  # beside it: what is fixed when the study is created


class BestTrial(Record):
    """The best trial of a search.

    Attributes:
        trial: Its number.
        run_id: Its run, or that of the final training; empty for a Python function.
        value: The best value of the first metric.
        step: The step of this value.
        params: The parameters, by dotted key.
        values: With several metrics or constraints: their values, by name.
        digest: The digest of the final training, if there was one.
        metrics: The metrics of its model on the test split, which no other trial was evaluated on.
    """

    trial: int
    run_id: str = ""
    value: float
    step: int | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    values: dict[str, float] | None = None
    digest: str | None = None
    metrics: dict[str, float] = Field(default_factory=dict)


class BracketSizes(Record):
    """The trials of a bracket that trained up to each rung, from trial `first` on, and how far that is."""

    first: int
    sizes: list[int]
    resources: list[int]


class TuningResult(StudyResult):
    """The result of a search; before its end, every field has its default.

    Attributes:
        metric: The first metric.
        mode: Whether its lowest or its highest value is best.
        metrics: With several metrics or constraints: the metrics with their modes.
        constraints: The bounds, such as `parameters <= 1000`.
        front: The trials of the Pareto front; None: one metric, without constraints.
        trials: The number of trials.
        counts: How many of them have which status.
        best: The best trial, if one has a value.
        digest: The digest over all trials.
        train_seconds: The training time of all trials.
        order: `horizon` or `free`.
        horizon: After how many jobs a result was known; None in free order.
        importance: The importance of each parameter.
        unit: What the rungs count: `epochs`, `steps` or `rounds`; empty without rungs.
        brackets: The brackets of a search with rungs.
    """

    metric: str = ""
    mode: Mode | None = None
    metrics: dict[str, Mode] = Field(default_factory=dict)
    constraints: list[str] = Field(default_factory=list)
    front: list[int] | None = None
    trials: int = 0
    counts: dict[str, int] = Field(default_factory=dict)
    best: BestTrial | None = None
    digest: str | None = None
    train_seconds: float = 0.0
    order: str = "horizon"
    horizon: int | None = None
    importance: dict[str, float] = Field(default_factory=dict)
    unit: str = ""
    brackets: list[BracketSizes] = Field(default_factory=list)

    def written(self) -> dict[str, Any]:
        """Return the fields that were set, as `result.json` has them."""
        return self.model_dump(exclude_unset=True)


def metrics_of(folder: Path) -> dict[str, Mode]:
    """Return the metrics of a search with their modes, known from its start on; empty if that is damaged."""
    try:
        found = RunDir(folder).read_json(SETTINGS).get("metrics")
    except CheckpointError:  # it is damaged
        return {}
    return dict(found) if isinstance(found, dict) else {}
