"""TFRecord shards whose records are read when they are needed, in any order."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.config.sampling import sampling_column
from trainwright.config.schema import DataConfig
from trainwright.datasets.images.decoders import ImageForm, decoded_image
from trainwright.datasets.samples.shards import Indexer, Shard, ShardFiles, Tables
from trainwright.datasets.tables.table import nearest
from trainwright.datasets.tfrecord.examples import Feature, Values, infer, parsed, value_of
from trainwright.datasets.tfrecord.records import index_of
from trainwright.digest import sha256_json
from trainwright.errors import DataError
from trainwright.numerals import listed

log = logging.getLogger("trainwright")
_SAMPLE = 64  # records of the first shard that show what the features are
_IMAGES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\0", b"MM\0*")  # how files of images begin


class Records:
    """The records of some shards, as a map-style data set.

    Args:
        shards: The shards.
        config: The data section: which features the model gets, and which is the target.
        features: dtype and shape of the features; None: as the first records have them.
        images: What encoded images become.
        classes: The labels, or their number; None: those of the training records, which are read for it.

    Raises:
        DataError: A record is damaged and not to be skipped, or there is no such feature.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        config: DataConfig,
        features: Mapping[str, Feature] | None,
        images: ImageForm,
        classes: int | Sequence[Any] | None = None,
    ) -> None:
        self._files = ShardFiles(shards, [len(shard.table["offsets"]) for shard in shards])
        self._images = images
        if classes is not None:
            self.classes = list(range(classes)) if isinstance(classes, int) else list(classes)
        self._target = config.target_name
        if config.on_corrupt == "error":
            for number, shard in enumerate(shards):
                if len(damaged := np.flatnonzero(shard.table["damaged"])):
                    raise self._damaged(number, int(damaged[0]))
        self._encoded: set[str] = set()  # the features that hold images
        found = self._inferred(config)
        known = found if features is None else features
        if self._target not in known:
            what = f"no record has {self._target!r}; {nearest(self._target, known)}"
            raise DataError(f"{shards[0].name}: data.target: {what}")
        self._inputs = self._chosen(known, config)
        self._features = {name: known[name] for name in (*self._inputs, self._target)}
        self._is_table = all(
            not self._features[name].shape and name not in self._encoded for name in self._inputs
        )

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, position: int) -> Any:
        """Return a record as `Items` takes it."""
        columns = self._columns(position)
        values = {
            name: self._value(columns.get(name), name, position) for name in (*self._inputs, self._target)
        }
        if self._is_table:
            return np.array([values[name] for name in self._inputs], np.float32), values[self._target]
        if len(self._inputs) == 1:
            return values[self._inputs[0]], values[self._target]
        return values

    @property
    def is_stored(self) -> bool:
        """True where no function of the user's takes part; see `StoredSamples`."""
        return True

    @property
    def is_converted(self) -> bool:
        """True where samples are read from copies; see `StoredSamples`."""
        return False

    @property
    def files(self) -> dict[str, str]:
        """The SHA-256 of each shard, by its name."""
        return self._files.files

    def name_of(self, position: int) -> str:
        """Return the name of a record in messages."""
        number, row = self._files.locate(position)
        return f"record {row + 1} of {self._files.shards[number].name}"

    def fingerprint(self) -> str:
        """Return the SHA-256 of the shards' contents, and of how they are decoded."""
        features = {name: feature.model_dump() for name, feature in self._features.items()}
        known = [self._files.sha256s, self._inputs, self._target, features, self._images]
        return sha256_json(["tfrecord", *known])

    def _columns(self, position: int) -> Mapping[str, Values]:
        """Return the values of a record's features.

        Raises:
            DataError: It is damaged, or is no `tf.train.Example`.
        """
        number, row = self._files.locate(position)
        table = self._files.shards[number].table
        if table["damaged"][row]:
            raise self._damaged(number, row)
        data = self._files.read(number, int(table["offsets"][row]), int(table["sizes"][row]))
        return parsed(data, self.name_of(position))

    def _damaged(self, number: int, row: int) -> DataError:
        return DataError(
            f"record {row + 1} of {self._files.shards[number].name} is damaged: its checksum does not match "
            "its content; data.on_corrupt: skip leaves such records out"
        )

    def _value(self, values: Values, name: str, position: int) -> Any:
        where = f"feature {name!r} of {self.name_of(position)}"
        if values is None:
            raise DataError(f"{where} is missing")
        if name not in self._encoded:
            return value_of(values, self._features[name], where)
        try:
            return decoded_image(values[0], self._images)
        except Exception as error:  # Pillow's decoders raise many kinds of errors
            raise DataError(f"{where} cannot be decoded: {type(error).__name__}: {error}") from error

    def _inferred(self, config: DataConfig) -> dict[str, Feature]:
        """Return the features of the first records that can be read."""
        columns: dict[str, list[Values]] = {}
        for position in range(min(_SAMPLE, len(self))):
            try:
                values = self._columns(position)
            except DataError:
                if config.on_corrupt == "error":
                    raise
                continue
            for name, value in values.items():
                columns.setdefault(name, []).append(value)
        self._encoded = {name for name, column in columns.items() if any(map(_is_image, column))}
        return infer(dict(sorted(columns.items())))

    def _chosen(self, known: Mapping[str, Feature], config: DataConfig) -> list[str]:
        """Return the features that the model gets: those of the config, or all but text and the target."""
        if config.features is not None:
            if unknown := [name for name in config.features if name not in known]:
                raise DataError(f"data.features: no record has {unknown[0]!r}; {nearest(unknown[0], known)}")
            return list(config.features)
        left_out = {self._target, sampling_column(config.sampling), *config.exclude}
        texts = [
            name
            for name, feature in known.items()
            if feature.dtype == "string" and name not in {*self._encoded, *left_out}
        ]
        if texts:
            log.info("data: features of text are left out: %s", listed(texts))
        chosen = [name for name in known if name not in {*left_out, *texts}]
        if not chosen:
            raise DataError(
                "all features are text, which is left out; give at least one feature of numbers to learn from"
            )
        return chosen


def _is_image(values: Values) -> bool:
    return isinstance(values, list) and len(values) == 1 and values[0].startswith(_IMAGES)


def _index(path: Path) -> Tables:
    """Return where the records of a shard are, `offsets` and `sizes`, and which are `damaged`, (records,)."""
    offsets, sizes, damaged = index_of(path)
    return {"offsets": offsets, "sizes": sizes, "damaged": damaged}


INDEXER = Indexer("tfrecord-1", _index)
