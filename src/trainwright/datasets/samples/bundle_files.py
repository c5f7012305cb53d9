"""Prepared data in one file, which each run that shares them maps into its memory.

    8 bytes       the length of the description, little-endian
    description   JSON: all that is not an array, and name, dtype, shape and place of each array
    arrays        each begins at a multiple of 64 bytes

What a run changes in its arrays is its own: the mapping is private, and no other run sees it.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainwright.datasets.base import DataBundle, Identifiers, Split
from trainwright.datasets.samples.arrays import Arrays
from trainwright.datasets.tables.preparation import TabularPreparation, from_json
from trainwright.records.manifest import RepeatedRows
from trainwright.types import Array, DataInfo, SplitName

FORMAT = 5  # of the files; raise it when they change
_ALIGNED = 64
_PLAIN = (
    "warnings",
    "columns",
    "content_hashed",
    "skipped",
    "unrepeatable",
    "files",
    "packages",
    "ranges",
    "expectations",
    "keys",
)
_NUMBERS = "biufM"  # the kinds of NumPy's dtypes that are nothing but their bytes
Json = dict[str, Any]


class Packed(NamedTuple):
    """The content of a file: the description, and the arrays in their order."""

    description: Json
    arrays: Sequence[Array]

    @property
    def bytes(self) -> int:
        """About how large the file is."""
        return sum(array.nbytes + _ALIGNED for array in self.arrays)


def packed(bundle: DataBundle) -> Packed | None:
    """Return what a file of these data holds; None where it cannot hold them: they are not only numbers."""
    own = bundle.preparation
    is_table = own is None or type(own) is TabularPreparation
    if not is_table or bundle.skips is not None or bundle.tokenizer is not None:
        return None
    if not all(type(split) is Arrays for split in bundle.splits.values()):
        return None
    named = dict(_arrays(bundle))
    texts = {name: one.values for name, one in bundle.identifiers.items() if one.values.dtype.kind == "O"}
    if not all(isinstance(array, np.ndarray) and array.dtype.kind in _NUMBERS for array in named.values()):
        return None
    if not all(value is None or type(value) is str for values in texts.values() for value in values.tolist()):
        return None
    description = {
        "info": bundle.info.to_json(),
        "preparation": own.to_json() if own is not None else None,
        "splits": {name: list(split.arrays) for name, split in bundle.splits.items()},  # type: ignore[attr-defined]
        "identifiers": {name: one.column for name, one in bundle.identifiers.items()},
        "texts": {name: values.tolist() for name, values in texts.items()},
        **{name: getattr(bundle, name) for name in _PLAIN},
        "repeated": [one.to_json() for one in bundle.repeated],
        "arrays": [[*name, array.dtype.str, list(array.shape)] for name, array in named.items()],
    }
    try:
        description = json.loads(json.dumps(description, allow_nan=False))
    except (TypeError, ValueError):
        return None
    return Packed(description, [*named.values()]) if _is_same(description, bundle) else None


def _arrays(bundle: DataBundle) -> Iterator[tuple[tuple[str, str], Array]]:
    """Yield the arrays of a bundle: what each is of (`splits/train`, `rows` ...), its name, and itself."""
    for split, samples in bundle.splits.items():
        for name, array in samples.arrays.items():  # type: ignore[attr-defined]
            yield (f"splits/{split}", name), array
    for split, positions in bundle.rows.items():
        yield ("rows", split), positions
    for split, one in bundle.identifiers.items():
        if one.values.dtype.kind != "O":
            yield ("identifiers", split), one.values
    if bundle.sampling is not None:
        yield ("sampling", ""), bundle.sampling


def _is_same(description: Json, bundle: DataBundle) -> bool:
    """Return whether what is not an array can be read back as it was."""
    info, own = DataInfo.from_json(description["info"]), bundle.preparation
    before, now = ([] if one.classes is None else list(one.classes) for one in (bundle.info, info))
    if before != now:  # labels that JSON does not know
        return False
    return own is None or from_json(description["preparation"]).to_json() == own.to_json()


def write(path: Path, data: Packed) -> None:
    """Write a file of data.

    Raises:
        OSError: It cannot be written.
    """
    text = json.dumps(data.description).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in data.arrays:
            file.write(bytes(-file.tell() % _ALIGNED))
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


class BundleFile:
    """A file of data; what is not an array is read once, and shared by all that map it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")  # which stays open: the name may be deleted
        length = int.from_bytes(self._file.read(8), "little")
        self._plain: Json = json.loads(self._file.read(length))
        self._start = 8 + length
        self._info = DataInfo.from_json(self._plain["info"])
        preparation = self._plain["preparation"]
        self._preparation = None if preparation is None else from_json(preparation)

    def bundle(self) -> DataBundle:
        """Map the arrays, and return the data."""
        arrays = dict(self._mapped())
        plain = self._plain
        texts = {name: _objects(values) for name, values in plain["texts"].items()}
        values = {**{name: array for (of, name), array in arrays.items() if of == "identifiers"}, **texts}
        return DataBundle(
            info=self._info,
            splits={
                split: Arrays({name: arrays[f"splits/{split}", name] for name in names})
                for split, names in plain["splits"].items()
            },
            preparation=self._preparation,
            rows={name: array for (of, name), array in arrays.items() if of == "rows"},
            identifiers={
                name: Identifiers(column, values[name]) for name, column in plain["identifiers"].items()
            },
            sampling=arrays.get(("sampling", "")),
            repeated=[RepeatedRows(**one) for one in plain["repeated"]],
            **{name: plain[name] for name in _PLAIN},
        )

    def _mapped(self) -> Iterator[tuple[tuple[str, Any], Array]]:
        content = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY)
        place = self._start
        for of, name, dtype, shape in self._plain["arrays"]:
            place += -place % _ALIGNED
            count = math.prod(shape)
            yield (of, name), np.frombuffer(content, dtype, count, place).reshape(shape)
            place += count * np.dtype(dtype).itemsize


def _objects(values: Sequence[str | None]) -> Array:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def copied(splits: Mapping[SplitName, Split]) -> dict[SplitName, Split]:
    """Return splits with copies of the arrays that are in memory."""
    return {name: _copied(split) if type(split) is Arrays else split for name, split in splits.items()}


def _copied(split: Arrays) -> Arrays:
    return Arrays({name: array.copy() for name, array in split.arrays.items()})
