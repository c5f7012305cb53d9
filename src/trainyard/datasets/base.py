"""The contract of datasets: rows in, splits out.

A dataset adapter (`datasets/csv.py` -> `CsvDataset`) reads its source once, when a run is built. What it returns
is immutable; every method may be called from any thread. It draws no randomness but what `config.split.seed` gives,
so equal inputs give equal splits on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel

from trainyard.config.schema import DataConfig
from trainyard.types import Array, Batch, DataInfo, Ids, SplitName


class Split(Protocol):
    """A sequence of samples; a sample's id is its position."""

    def __len__(self) -> int: ...

    def take(self, ids: Ids) -> Batch:
        """The samples `ids` (any order, repetitions allowed), stacked along a new first axis."""

    def fingerprint(self) -> str:
        """SHA-256 (hex) of what the model gets to see; equal for equal content, whatever the file was called."""


@runtime_checkable
class ArraySplit(Split, Protocol):
    """A split that fits in memory: frameworks slice its arrays instead of calling `take`."""

    features: Array
    targets: Array


class Preparation(Protocol):
    """What was fitted on the training split: turns raw rows into features, at training and again at prediction."""

    def features(self, rows: Any) -> Array:
        """(rows, features) float32 of a data frame, or of a sequence of mappings; extra columns are ignored.

        Raises:
            DataError: a column is missing, or a value cannot be used; names both column and row.
        """

    def targets(self, rows: Any) -> Array | None:
        """The targets as in `Batch`, or None where the rows carry no target column."""

    def to_json(self) -> dict[str, Any]:
        """Everything needed to do the same elsewhere; no code."""


@dataclass(frozen=True)
class DataBundle:
    """What a run trains on.

    `rows` gives each split's positions in the source (for tables of predictions), where there is one source;
    `warnings` are what the checks found that does not forbid training; `preparation` is None for datasets that
    bring finished samples; `content_hashed` is False where a fingerprint could only cover a sample of the rows.
    """

    info: DataInfo
    splits: Mapping[SplitName, Split]
    preparation: Preparation | None = None
    rows: Mapping[SplitName, Ids] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    content_hashed: bool = True


class Dataset(Protocol):
    """An adapter; constructed with the data section and its own validated `Params`."""

    names: ClassVar[Sequence[str]]  # the values of data.type that it answers to
    Params: ClassVar[type[BaseModel]]

    def __init__(self, config: DataConfig, params: BaseModel) -> None: ...

    def load(self) -> DataBundle:
        """Reads, checks, splits and prepares.

        Raises:
            DataError: what is wrong, where (file, column, row), and what to do.
            MissingExtraError: the library that reads this format is not installed.
        """
