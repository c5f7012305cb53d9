"""Plain text, byte by byte, for language modeling.

`data.path` is a file, or a folder whose files are read one after the other, in the order of their names. The
text is cut once into training, validation and test text, in this order, and each part into windows of
`length` bytes. The labels of a sample are its bytes shifted by one position: the byte that follows each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from trainyard.config.fields import Section
from trainyard.config.schema import DataConfig
from trainyard.datasets.base import DataBundle
from trainyard.datasets.rows.files import files_below, read_bytes
from trainyard.datasets.rows.splitting import fractions
from trainyard.datasets.rows.tabular import paths_by_split, provided_splits
from trainyard.digest import array_buffer, digest, tensor_records
from trainyard.errors import DataError
from trainyard.types import INPUT_IDS, LABELS, NO_LABEL, SPLITS, ArraySpec, Batch, DataInfo, Ids, SplitName

_TASK = "language_modeling"
_BYTES = 256
Text = NDArray[np.uint8]


class TextParams(Section):
    """Plain text files."""

    length: int = Field(128, gt=0, description="bytes of one sample: what the model sees at once")
    pattern: str = Field("*.txt", min_length=1, description="the files of a folder, its subfolders included")


class TextDataset:
    """A text file or a folder of text files, to be cut into splits; or a file or folder for each split."""

    names: ClassVar[Sequence[str]] = ("text",)
    Params: ClassVar[type[BaseModel]] = TextParams

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, TextParams)
        self._config = config
        self._params = params

    def load(self) -> DataBundle:
        """Load the data; see `Dataset.load`."""
        config, length = self._config, self._params.length
        _refuse_settings(config)
        texts = {name: self._read(path) for name, path in paths_by_split(config).items()}
        texts = _cut(texts, config)
        for name, text in texts.items():
            if len(text) <= length:
                share = "" if name == "train" else f"a larger data.split.{name}, "
                raise DataError(
                    f"the {name} text has {len(text)} bytes, too few for a sample of data.params.length: "
                    f"{length} and the byte after it; give more text, {share}or a smaller length"
                )
        splits = {
            name: Windows(texts[name], length, every_byte=name != "train") for name in SPLITS if name in texts
        }
        return DataBundle(
            info=DataInfo(_TASK, {INPUT_IDS: ArraySpec((length,), "int64")}, _BYTES, target=LABELS),
            splits=dict(splits),
        )

    def samples(self, path: str) -> Windows:
        """Return another text in windows, in which each byte but the first is predicted once."""
        text, length = self._read(path), self._params.length
        if not len(text):
            raise DataError(f"{path} is empty: give a text of at least {length + 1} bytes")
        if len(nulls := np.flatnonzero(text == 0)):
            raise DataError(
                f"{path} is no plain text: its byte {int(nulls[0]) + 1:,} is 0; give a text file in UTF-8, "
                "not a compressed or binary one"
            )
        if len(text) <= length:
            raise DataError(
                f"{path} has {len(text)} bytes, too few for a window of the run's data.params.length: "
                f"{length} and the byte after it; give more text"
            )
        return Windows(text, length, every_byte=True)

    def _read(self, path: str) -> Text:
        files = files_below(path, self._params.pattern)
        if files is None:
            return np.frombuffer(read_bytes(path), np.uint8)
        if not files:
            raise DataError(
                f"{path}: no file in this folder matches data.params.pattern: {self._params.pattern}"
            )
        return np.frombuffer(b"".join(map(read_bytes, files)), np.uint8)


def _refuse_settings(config: DataConfig) -> None:
    """Refuse settings that need rows and columns.

    Raises:
        DataError: One is given.
    """
    given = {
        "task": config.task not in ("auto", _TASK),
        "features": config.features is not None,
        "weight": config.weight is not None,
        "target_transform": config.target_transform is not None,
        "exclude": bool(config.exclude),
        "impute": config.impute not in (None, "keep"),
        "split.stratify": bool(config.split.stratify),
        "split.group": config.split.group is not None,
        "split.time": config.split.time is not None,
        "split.folds": config.split.folds is not None,
        "split.val_folds": config.split.val_folds is not None,
    }
    for name, is_given in given.items():
        if is_given:
            raise DataError(
                f"data.{name} does not apply to text, which is cut in its own order for {_TASK}; leave it out"
            )


def _cut(texts: Mapping[SplitName, Text], config: DataConfig) -> dict[SplitName, Text]:
    """Cut validation and test text off the end of the training text, unless they have files of their own."""
    val, test = fractions(config.split, provided_splits(texts, config))
    train = texts["train"]
    first_val, first_test = (int(len(train) * share) for share in (1 - val - test, 1 - test))
    parts: dict[SplitName, Text] = {"train": train[:first_val]}
    if val:
        parts["val"] = train[first_val:first_test]
    if test:
        parts["test"] = train[first_test:]
    return {**parts, **{name: text for name, text in texts.items() if name != "train"}}


class Windows:
    """A text in windows of equal length.

    Args:
        text: (bytes,) uint8.
        length: The number of bytes in a window.
        every_byte: Whether every byte but the first is predicted exactly once. The last window then overlaps
            the one before it, and has no labels there. Otherwise, bytes that fill no window are left out.
    """

    def __init__(self, text: Text, length: int, *, every_byte: bool) -> None:
        self._text = np.ascontiguousarray(text)
        self._length = length
        self._rows = (len(text) - 1) // length
        self._rest = (len(text) - 1) % length if every_byte else 0  # bytes that only the last window predicts

    def __len__(self) -> int:
        return self._rows + (self._rest > 0)

    def take(self, ids: Ids) -> Batch:
        """Return the windows `ids` as (rows, length) int64 tokens and labels."""
        starts = ids * self._length
        is_last = ids == self._rows  # none is, unless there is a rest
        if self._rest:
            starts[is_last] = len(self._text) - 1 - self._length
        windows = self._text[starts[:, None] + np.arange(self._length + 1)].astype(np.int64)
        labels = windows[:, 1:].copy()  # (rows, length)
        if self._rest:
            labels[is_last, : self._length - self._rest] = NO_LABEL
        return {INPUT_IDS: windows[:, :-1].copy(), LABELS: labels}

    def fingerprint(self) -> str:
        """Return the digest of the text, the length of a window, and the number of bytes in the rest."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        form = np.array([self._length, self._rest], np.int64)
        return digest(tensor_records([array_buffer("text", self._text), array_buffer("windows", form)]))
