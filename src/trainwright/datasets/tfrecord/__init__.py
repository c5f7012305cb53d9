"""TFRecord files of `tf.train.Example` records.

A feature of one value becomes a column, and a feature of several values becomes a column per value (`name_0`,
`name_1` ...); they are prepared like those of any other file. A feature of more dimensions, such as an image,
must be the only one apart from the target; it is used as it is, and floats become float32.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, Field

from trainwright.config.fields import Section
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import DataBundle, LoadRequest
from trainwright.datasets.images.decoders import ImageForm
from trainwright.datasets.samples import map_style
from trainwright.datasets.samples.files import existing_file, files_matching, is_url, paths_by_split
from trainwright.datasets.samples.objects import from_objects
from trainwright.datasets.samples.shards import open_shards
from trainwright.datasets.tables.table import Table, nearest, tidy
from trainwright.datasets.tables.tabular import build
from trainwright.datasets.tables.target import require_target
from trainwright.datasets.tfrecord.examples import Feature, Values, infer, read_examples, stacked
from trainwright.datasets.tfrecord.stream import INDEXER, Records
from trainwright.errors import DataError
from trainwright.numerals import listed
from trainwright.types import Array, SplitName

Tensors = Mapping[str, Array]
Shard = tuple[str, Mapping[str, Sequence[Values]]]  # a file, and its features record by record


class TfrecordParams(Section):
    """The features of the records."""

    features: dict[str, Feature] | None = Field(
        None,
        description="dtype and shape of each feature to read; default: all, as they are first stored",
    )
    streaming: bool = Field(
        False,
        description="read records when they are needed, instead of holding all in memory: features are then "
        "used as they are; a path may be a pattern of shards (`train-{000..099}.tfrecord`)",
    )
    images: ImageForm = Field(
        "torchrgb", description="with streaming: how images are decoded; see webdataset"
    )
    classes: int | list[str | int] | None = Field(
        None,
        description="with streaming: the number of classes, or their labels; default: those of the training "
        "records, of which 100,000 at most are read for it",
    )


class TfrecordDataset:
    """TFRecord files: one to split, or one per split; a path may be a pattern (`train-*.tfrecord`)."""

    names: ClassVar[Sequence[str]] = ("tfrecord",)
    Params: ClassVar[type[BaseModel]] = TfrecordParams

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, TfrecordParams)
        self._config = config
        self._features = params.features
        self._params = params

    def load(self, request: LoadRequest) -> DataBundle:
        """Load the data; see `Dataset.load`."""
        require_target(self._config)
        paths = paths_by_split(self._config)
        if self._params.streaming:
            return self._streamed(paths, request)
        for key in ("images", "classes"):
            if getattr(self._params, key) != TfrecordParams.model_fields[key].default:
                raise DataError(f"data.{key} is for records that are read one by one: add streaming: true")
        shards = {name: _read(path) for name, path in paths.items()}
        features = self._chosen(shards["train"], paths["train"])
        tensors = {name: _tensors(parts, features) for name, parts in shards.items()}
        if any(array.ndim > 2 for array in tensors["train"].values()):
            return from_objects(
                {name: self._pair(part, paths[name]) for name, part in tensors.items()},
                self._config,
                request=request,
            )
        config, train = self._config, tensors["train"]
        excluded = [name for name in config.exclude if name not in self._unread()]
        update = {"exclude": _expanded(excluded, train)}
        if config.features is not None:
            update["features"] = _expanded(config.features, train)
        tables = {name: _table(part, paths[name]) for name, part in tensors.items()}
        config = config.model_copy(update=update)
        return build(tables, config, request.form, examine=request.examine, examples=request.examples)

    def _streamed(self, paths: Mapping[SplitName, str], request: LoadRequest) -> DataBundle:
        """Return the records of shards, to be read when they are needed."""
        map_style.refuse_settings_of_tables(self._config)
        params = self._params
        sets = {
            name: Records(
                open_shards(path, INDEXER), self._config, self._features, params.images, params.classes
            )
            for name, path in paths.items()
        }
        return map_style.bundle(sets, self._config, request)

    def read(self, path: str, text: Collection[str] = ()) -> Table:  # noqa: ARG002
        """Return the rows of a file whose features have at most one dimension, for predictions.

        Raises:
            DataError: The file is damaged, or a feature has more dimensions.
        """
        shards = _read(path)
        return _table(_tensors(shards, self._chosen(shards, path)), path)

    def _chosen(self, shards: Sequence[Shard], path: str) -> dict[str, Feature]:
        """Return the features to read; those that are left out may be of any kind."""
        present = {name: column for _, shard in reversed(shards) for name, column in shard.items()}
        features = infer(present) if self._features is None else self._features
        if unknown := [name for name in features if name not in present]:
            raise DataError(
                f"{path}: data.params.features: no record has {unknown[0]!r}; {nearest(unknown[0], present)}"
            )
        return {name: feature for name, feature in features.items() if name not in self._unread()}

    def _unread(self) -> set[str]:
        """Return the excluded features, except those that the split needs."""
        return set(self._config.exclude) - {
            self._config.split.group,
            self._config.split.time,
            *self._config.split.keys,
        }

    def _pair(self, tensors: Tensors, path: str) -> tuple[Any, Any]:
        wanted = self._config.features
        names = [
            name
            for name in tensors
            if name not in self._config.targets and (wanted is None or name in wanted)
        ]
        if len(names) > 1:
            raise DataError(
                f"{path}: the features {listed(names)} cannot be combined: one of them has several "
                "dimensions; keep one feature and leave the others out with data.exclude"
            )
        target = self._config.target_name
        if target not in tensors:
            raise DataError(f"{path}: data.target: no record has {target!r}; {nearest(target, tensors)}")
        features = tensors[names[0]]
        return features.astype(np.float32) if features.dtype.kind == "f" else features, tensors[target]


def _read(path: str) -> list[Shard]:
    return [(file, read_examples(file)) for file in _files(path)]


def _tensors(shards: Sequence[Shard], features: Mapping[str, Feature]) -> dict[str, Array]:
    """Return each feature, (rows, ...), of all files in order."""
    parts: dict[str, list[Array]] = {name: [] for name in features}
    for file, shard in shards:
        absent = [None] * len(next(iter(shard.values())))
        for name, feature in features.items():
            parts[name].append(stacked(name, shard.get(name, absent), feature, file))
    return {name: np.concatenate(some) for name, some in parts.items()}


def _files(path: str) -> list[str]:
    if not any(letter in path for letter in "*?["):
        return [path if is_url(path) else str(existing_file(path))]
    files = files_matching(path)
    if not files:
        raise DataError(f"{path}: no file matches this pattern")
    return files


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
    """Replace the names of features with several values by those of their columns."""
    return [
        column
        for name in names
        for column in (
            [f"{name}_{i}" for i in range(tensors[name].shape[1])]
            if name in tensors and tensors[name].ndim == 2
            else [name]
        )
    ]
