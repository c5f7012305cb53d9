"""The section `data` of a config: where the samples come from, and how they are prepared and split."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, model_validator

from trainwright.config.expectations import ExpectConfig
from trainwright.config.fields import Section, TypedSection, bits, placement, record
from trainwright.config.sampling import SamplingConfig
from trainwright.config.splits import SplitConfig
from trainwright.config.transforms import Transform
from trainwright.config.versions import SYSTEMS, DvcConfig, VersionSection, is_reference

ColumnType = Literal["number", "boolean", "category", "time", "date", "text", "id", "ignore"]
Encode = Literal["auto", "onehot", "ordinal", "category", "target", "frequency"]


class ColumnConfig(Section):
    """The type of a column, and the form of its cells; the type alone may stand for it: `{zip: category}`."""

    type: ColumnType = bits(
        description="number, boolean, category, time (or date), text (free text), id or ignore (left out)"
    )
    format: str | None = bits(
        default=None, description="format of times, such as %d/%m/%Y; default: inferred from all cells"
    )
    unit: Literal["s", "ms", "us"] | None = bits(
        default=None, description="unit of times that are numbers since 1970"
    )
    decimal: Literal[".", ","] | None = bits(
        default=None, description="decimal mark of numbers in text; default: inferred from all cells"
    )
    encode: Encode | None = bits(
        default=None, description="how categories become numbers; default: as data.encode says"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_its_type_alone(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_options(self) -> ColumnConfig:
        for name in ("format", "unit"):
            if getattr(self, name) is not None and self.type not in ("time", "date"):
                raise ValueError(
                    f"{name} is for columns of type time, not {self.type}; leave it out, or change the type"
                )
        if self.encode is not None and self.type != "category":
            raise ValueError(
                f"encode is for columns of type category, not {self.type}; leave it out, or change the type"
            )
        if self.decimal is not None and self.type != "number":
            raise ValueError(
                f"decimal is for columns of type number, not {self.type}; leave it out, or change the type"
            )
        return self


class DataConfig(TypedSection):
    """The source of the rows, and how they are prepared."""

    type: str = bits(
        default="",
        description="digits, wine, ..., csv, parquet, jsonl, excel, npz, or package.module:function; "
        "default: by the path's ending",
    )
    path: str | None = record(
        None,
        description="what is to be split: a file, or of tables a folder or a pattern of files; or its URL "
        "(s3://, gs://, az://); or a version of a data set, NAME@VERSION",
    )
    version: str | None = record(
        None, description="the version of the data set that path names: v3, a tag or latest; as NAME@VERSION"
    )
    dvc: DvcConfig | None = None
    train_path: str | None = record(None, description="where the training rows are, instead of path")
    val_path: str | None = record(None, description="where the validation rows are, together with train_path")
    test_path: str | None = record(None, description="where the test rows are, together with train_path")
    target: str | Annotated[list[str], Field(min_length=1)] | None = bits(
        default="target",
        description="the column to predict; a list: several, of numbers (regression) or of 0 and 1 "
        "(multilabel); null: none, as for an autoencoder (torch)",
    )
    weight: str | None = bits(
        default=None,
        description="column, or named array, of sample weights, in the loss and in metrics (as "
        "sample_weight of scikit-learn); it is not used as a feature",
    )
    task: str = bits(
        default="auto",
        description="classification, regression, multilabel, segmentation, language_modeling ...; "
        "custom_loss: a loss of one's own, with targets of any form (torch); auto: inferred from the target",
    )
    target_transform: Literal["log1p", "log", "sqrt", "quantile", "standardize"] | None = bits(
        default=None,
        description="regression: a transform of the target that models train on, fitted on the training "
        "rows; metrics and predictions are in the target's original units, losses on the transformed scale; "
        "quantile: normal scores of the ranks",
    )
    split: SplitConfig = SplitConfig()
    sampling: SamplingConfig | None = None
    features: list[str] | None = bits(
        default=None, min_length=1, description="the columns to learn from; default: all but the target"
    )
    features_from: str | None = bits(
        default=None,
        description="columns of your own: package.module:name of a function that gets a data frame and "
        "returns one of the same rows, or of a class with `fit` and `transform`; applied to all rows alike, "
        "also those to predict",
    )
    exclude: list[str] = bits(default_factory=list, description="columns to leave out")
    columns: dict[str, ColumnConfig] = bits(
        default_factory=dict,
        description="what columns hold: {signup: date, zip: category, note: text, code: ignore}, or "
        "{signup: {type: "
        'date, format: "%d/%m/%Y"}}; others are inferred from the training rows (`trainwright config show` '
        "prints them)",
    )
    missing_values: list[str | int | float] | dict[str, list[str | int | float]] = bits(
        default_factory=list,
        description='values that mean a missing one: {age: [-999], city: ["?"]}, or a list for all columns',
    )
    expect: ExpectConfig | None = record(
        None,
        description="what must hold of the rows that are read: else the run ends before its first step, with "
        "exit code 3; `trainwright data check CONFIG` checks that alone",
    )
    missing_target: Literal["drop", "error"] = bits(
        default="error", description="rows whose target is missing: drop them (counted), or an error"
    )
    standardize: bool = bits(
        default=True,
        description="zero mean and unit variance for numeric columns, fitted on the training rows ("
        "images, whole numbers in arrays and map-style datasets are taken as they are); default for data "
        "that Python objects or a function give to a model of one's own: false; torch also "
        "standardizes the target of a regression (losses are in units of its variance, metrics and "
        "predictions in the original units)",
    )
    impute: Literal["mean", "median", "most_frequent", "keep"] | None = bits(
        default=None,
        description="how to fill missing values; keep: leave them to the model, which must accept them; "
        "default: they are an error, or keep for models that accept them",
    )
    encode: Encode = bits(
        default="auto",
        description="how category columns become numbers; onehot: a feature for each category; ordinal: "
        "their index; category: codes, for models that accept categories (their default); target: the mean "
        "target of the category's training rows (for a training row: of other folds); frequency: its share "
        "of them; auto: onehot for up to 500 categories, target for more; a category that no training row "
        "has becomes all zeros (onehot), -1 (ordinal), missing (category), the mean target (target) or 0 "
        "(frequency), and predictions warn of it",
    )

    transforms: list[Transform] = bits(
        default_factory=list,
        description="images in files: their transforms before the model sees them, in this order; random "
        "ones in training only",
    )
    on_corrupt: Literal["error", "skip"] = bits(
        "error",
        description="samples that cannot be read: images in files, items of map-style data sets, samples of "
        "shards; skip: all are read when the run is built, and these are left out, counted, and recorded as "
        "a decision",
    )
    cache: Literal["none", "memory"] = placement(
        default="none",
        description="images in files; memory: keep them decoded, in at most half of the free memory",
    )
    ignore_index: int | None = bits(
        default=None, description="masks: the value of pixels that do not count, besides -100; such as 255"
    )
    workers: int = placement(
        default=0,
        ge=0,
        le=1024,
        description="processes that read samples ahead of training (map-style data sets and shards), for "
        "each process that trains, like num_workers of a DataLoader; 0: the step reads them itself; changes "
        "no bit",
    )
    prefetch: int = placement(
        default=2, ge=1, le=1024, description="(micro)batches that each worker reads ahead (prefetch_factor)"
    )
    timeout: float = placement(
        default=300.0,
        gt=0,
        description="seconds that one sample may take, in a worker or in the process itself; after that the "
        "run ends and names the sample",
    )
    collate: str | None = bits(
        default=None,
        description="map-style data sets: package.module:function that makes a batch of a list of samples "
        "(collate_fn of a DataLoader): (features, target), or a mapping of named arrays; it is called for "
        "each microbatch",
    )

    _versions_in: str = PrivateAttr("")

    def with_versions_in(self, url: str) -> DataConfig:
        """Return the section with the place of the versions that it names, which is no part of a config."""
        copy = self.model_copy()
        copy._versions_in = url
        return copy

    @property
    def has_versions(self) -> bool:
        """True if the data are a version of a data set, and no file."""
        paths = (self.path, self.train_path, self.val_path, self.test_path)
        return self.version_system is not None or any(path and is_reference(path) for path in paths)

    @property
    def version_system(self) -> tuple[str, VersionSection] | None:
        """The kind of the system that keeps the data, and the section that names them there, if one does."""
        return next(((kind, one) for kind in SYSTEMS if (one := getattr(self, kind)) is not None), None)

    @property
    def versions_in(self) -> str:
        """The URL of the folder of runs that keeps the versions; empty if the section names none."""
        return self._versions_in

    @property
    def targets(self) -> list[str]:
        """The columns to predict; without a target none."""
        return [self.target] if isinstance(self.target, str) else list(self.target or ())

    @property
    def target_name(self) -> str:
        """The column to predict, or the names of several, joined by commas; without a target empty."""
        return ", ".join(self.targets)
