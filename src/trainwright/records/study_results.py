"""The results of studies, `result.json` in their folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, ValidationError

from trainwright.errors import CheckpointError
from trainwright.records.document import Record


class StudyResult(Record):
    """The result of a study; before its end, every field has its default."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """Return the result in the content of a file, which is empty before the end of a study.

        Raises:
            CheckpointError: It does not have the expected fields.
        """
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise CheckpointError(f"the result of the study is damaged: {key}: {first['msg']}") from error

    @classmethod
    def undamaged(cls, content: Mapping[str, Any]) -> Self:
        """Return the result in the content of a file, without values if it is damaged, for pages."""
        try:
            return cls.of(content)
        except CheckpointError:
            return cls()


class MetricSpread(Record):
    """The mean of a metric over the folds, its standard deviation, and the 95% interval of the mean."""

    mean: float
    std: float
    low: float
    high: float


class FoldResult(Record):
    """The run of a fold: the rows of its splits, its test metrics, and the digest of its weights."""

    fold: int
    run_id: str
    rows: dict[str, int | None] = Field(default_factory=dict)
    metrics: dict[str, float] = Field(default_factory=dict)
    train_seconds: float = 0.0
    digest: str | None = None


class CrossValidationResult(StudyResult):
    """The result of a cross-validation.

    Attributes:
        status: How it has ended.
        study_id: Its id.
        experiment: The name that groups its runs.
        metrics: The test metrics of all folds.
        rows: The number of rows, each of which one fold has tested.
        train_seconds: The training time of all runs.
        folds: The runs.
    """

    status: str = ""
    study_id: str = ""
    experiment: str = ""
    metrics: dict[str, MetricSpread] = Field(default_factory=dict)
    rows: int = 0
    train_seconds: float = 0.0
    folds: list[FoldResult] = Field(default_factory=list)


class ModelRow(Record):
    """A model of a benchmark; of one that failed, only `model`, `preparation` and `error` are known.

    Attributes:
        rank: Its rank, which models with equal means share.
        model: Its name.
        metric: The metric that the models are ranked by.
        mean: Its mean over the folds.
        std: Its standard deviation over the folds.
        p_value: That of the test against the first model.
        p_adjusted: The same with Holm's correction for the tests of all pairs of comparable models.
        train_seconds: The mean training time of a run.
        model_bytes: The mean size of the weights.
        one_row_ms: The time that a prediction of one row takes.
        rows_per_second: The rows that are predicted in a second.
        preparation: How the features were prepared.
        error: Why it could not be trained.
        test: The name of the test.
        effect: The difference from the first model.
        effect_low: The lower end of its interval.
        effect_high: The upper end.
        untested: Why it was not tested against the first model.
        values: The metric on each fold.
        runs: The ids of its runs, by fold.
    """

    rank: int | None = None
    model: str
    metric: str | None = None
    mean: float | None = None
    std: float | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    train_seconds: float | None = None
    model_bytes: int | None = None
    one_row_ms: float | None = None
    rows_per_second: float | None = None
    preparation: str | None = None
    error: str | None = None
    test: str | None = None
    effect: float | None = None
    effect_low: float | None = None
    effect_high: float | None = None
    untested: str | None = None
    values: list[float] = Field(default_factory=list)
    runs: list[str] = Field(default_factory=list)


class BenchmarkResult(StudyResult):
    """The result of a benchmark: the models, the best first, failed ones last.

    `folds` is None where each model was trained once, on the splits of the config.
    """

    status: str = ""
    study_id: str = ""
    experiment: str = ""
    folds: int | None = None
    models: list[ModelRow] = Field(default_factory=list)
