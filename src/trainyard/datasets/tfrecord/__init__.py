"""TFRecord files of `tf.train.Example` records.

Features of one value make columns, and features of several values a column for each (`name_0`, `name_1` ...), which are
prepared as those of any other file. A feature of more dimensions (an image) must be the only one beside the target; it is
served as it is, floats as float32.
"""

from __future__ import annotations

import glob
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, Field

from trainyard.config.schema import DataConfig, Section
from trainyard.datasets.base import DataBundle
from trainyard.datasets.rows.files import existing_file
from trainyard.datasets.rows.objects import from_objects
from trainyard.datasets.rows.table import Table, listed, nearest, tidy
from trainyard.datasets.rows.tabular import build, given_paths
from trainyard.datasets.tfrecord.examples import Feature, Values, infer, read_examples, stacked
from trainyard.errors import DataError
from trainyard.types import Array

Tensors = Mapping[str, Array]
Shard = tuple[str, Mapping[str, Sequence[Values]]]  # a file, and its features record by record


class TfrecordParams(Section):
    """What is in the records."""

    features: dict[str, Feature] | None = Field(
        None,
        description="dtype and shape of each feature to read; default: all, as the first record that has it holds it",
    )


class TfrecordDataset:
    """One file that is divided, or one for each split; a path may be a pattern (`train-*.tfrecord`) for several files."""

    names: ClassVar[Sequence[str]] = ("tfrecord",)
    Params: ClassVar[type[BaseModel]] = TfrecordParams

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, TfrecordParams)
        self._config = config
        self._features = params.features

    def load(self) -> DataBundle:
        """See `Dataset.load`."""
        paths = given_paths(self._config)
        shards = {name: _read(path) for name, path in paths.items()}
        features = self._chosen(shards["train"], paths["train"])
        found = {name: _tensors(some, features) for name, some in shards.items()}
        if any(array.ndim > 2 for array in found["train"].values()):
            return from_objects(
                {name: self._pair(some, paths[name]) for name, some in found.items()}, self._config
            )
        given = self._config
        update = {
            "exclude": _expanded(
                [name for name in given.exclude if name not in self._unread()], found["train"]
            )
        }
        if given.features is not None:
            update["features"] = _expanded(given.features, found["train"])
        return build(
            {name: _table(some, paths[name]) for name, some in found.items()}, given.model_copy(update=update)
        )

    def read(self, path: str, text: Collection[str] = ()) -> Table:  # noqa: ARG002
        """The rows of a file of features of at most one dimension, for predictions.

        Raises:
            DataError: the file is damaged, or holds something else.
        """
        shards = _read(path)
        return _table(_tensors(shards, self._chosen(shards, path)), path)

    def _chosen(self, shards: Sequence[Shard], path: str) -> dict[str, Feature]:
        """The features to read: what is left out may be of any kind."""
        present = {name: column for _, shard in reversed(shards) for name, column in shard.items()}
        features = infer(present) if self._features is None else self._features
        if unknown := [name for name in features if name not in present]:
            raise DataError(
                f"{path}: data.params.features: no record has {unknown[0]!r}; {nearest(unknown[0], present)}"
            )
        return {name: feature for name, feature in features.items() if name not in self._unread()}

    def _unread(self) -> set[str]:
        """The features that nothing needs: those left out, unless rows are divided by them."""
        return set(self._config.exclude) - {self._config.split.group, self._config.split.time}

    def _pair(self, tensors: Tensors, path: str) -> tuple[Any, Any]:
        chosen = self._config.features
        names = [
            name for name in tensors if name != self._config.target and (chosen is None or name in chosen)
        ]
        if len(names) > 1:
            raise DataError(
                f"{path}: the features {listed(names)} are of more than one dimension in part; such a one "
                "must stand alone: "
                "leave the others out with data.exclude"
            )
        if self._config.target not in tensors:
            raise DataError(
                f"{path}: data.target: no record has {self._config.target!r}; "
                f"{nearest(self._config.target, tensors)}"
            )
        features = tensors[names[0]]
        return features.astype(np.float32) if features.dtype.kind == "f" else features, tensors[
            self._config.target
        ]


def _read(path: str) -> list[Shard]:
    return [(file, read_examples(file)) for file in _files(path)]


def _tensors(shards: Sequence[Shard], features: Mapping[str, Feature]) -> dict[str, Array]:
    """Each feature (rows, ...), one file after another."""
    parts: dict[str, list[Array]] = {name: [] for name in features}
    for file, shard in shards:
        absent = [None] * len(next(iter(shard.values())))
        for name, feature in features.items():
            parts[name].append(stacked(name, shard.get(name, absent), feature, file))
    return {name: np.concatenate(some) for name, some in parts.items()}


def _files(path: str) -> list[str]:
    if not any(letter in path for letter in "*?["):
        return [str(existing_file(path))]
    found = sorted(glob.glob(path, recursive=True))  # noqa: PTH207 - that of pathlib takes no absolute pattern
    if not found:
        raise DataError(f"{path}: no file has such a name")
    return found


def _table(tensors: Tensors, path: str) -> Table:
    columns: dict[str, Array] = {}
    for name, array in tensors.items():
        if array.ndim > 2:
            raise DataError(
                f"{path}: feature {name!r} has values of shape {array.shape[1:]}; leave it out with "
                "data.exclude"
            )
        parts = (
            {name: array} if array.ndim == 1 else {f"{name}_{i}": array[:, i] for i in range(array.shape[1])}
        )
        columns |= {key: tidy(values, key, path) for key, values in parts.items()}
    return Table(columns, path)


def _expanded(names: Sequence[str], tensors: Tensors) -> list[str]:
    """The columns that a feature of several values makes, where it is named."""
    return [
        column
        for name in names
        for column in (
            [f"{name}_{i}" for i in range(tensors[name].shape[1])]
            if name in tensors and tensors[name].ndim == 2
            else [name]
        )
    ]
