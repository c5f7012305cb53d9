"""The rows of Arrow files, as a map-style data set: mapped into memory, and read when they are asked for.

Columns are used as they are. Columns of single numbers become one array `features`; columns of lists are
arrays, and encoded images are decoded.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainwright.config.sampling import sampling_column
from trainwright.config.schema import DataConfig
from trainwright.config.splits import SplitConfig
from trainwright.datasets.base import DataBundle, LoadRequest
from trainwright.datasets.images.decoders import ImageForm, decoded_image
from trainwright.datasets.samples import map_style
from trainwright.datasets.samples.cache import data_cache
from trainwright.datasets.samples.file_hashes import hashes_of
from trainwright.datasets.samples.files import existing_file
from trainwright.datasets.samples.items import BatchReader
from trainwright.datasets.samples.shards import shard_paths
from trainwright.datasets.tables.arrow import cells_of
from trainwright.datasets.tables.expectations import examined
from trainwright.datasets.tables.split_keys import HASHED, hashes
from trainwright.datasets.tables.splitting import fractions, split_rows
from trainwright.datasets.tables.table import Table, nearest, objects
from trainwright.datasets.tables.tabular import provided_splits
from trainwright.datasets.tables.target import require_target
from trainwright.digest import sha256_file, sha256_json
from trainwright.errors import DataError
from trainwright.numerals import listed
from trainwright.require import require
from trainwright.types import FEATURES, Array, Ids, SplitName

log = logging.getLogger("trainwright")
Reader = Callable[[int], Any]  # of a row
_ROWS = 1024  # of a batch in a converted file
_CONVERTED = "arrow-1"


class ArrowFile(NamedTuple):
    """A file: its name in messages, where it is, and the SHA-256 of what it was made from."""

    name: str
    path: Path
    sha256: str


class ArrowRows(BatchReader):
    """The rows of Arrow files with one schema.

    Args:
        files: The files.
        config: The data section: which columns are the features, and which is the target.
        images: What encoded images become.
    """

    def __init__(self, files: Sequence[ArrowFile], config: DataConfig, images: ImageForm) -> None:
        self._sha256s = [file.sha256 for file in files]
        self._images = images
        self._names = [file.name for file in files]
        self._is_converted = any(file.name != str(file.path) for file in files)
        self._table, rows = _mapped(files)
        self._file_ends = np.cumsum(rows)
        self._rows: Ids | None = None  # those of this split; None: all
        counts = [len(chunk) for chunk in self._table.column(0).chunks] if self._table.num_columns else []
        self._firsts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._readers: dict[tuple[str, int], Reader] = {}
        require_target(config)
        self._target = config.target_name
        if self._target not in self._table.column_names:
            raise DataError(
                f"{files[0].name}: data.target: there is no column {self._target!r}; "
                f"{nearest(self._target, self._table.column_names)}"
            )
        self._inputs = _inputs(self._table.schema, config, files[0].name)
        self._is_table = all(_is_number(self._table.schema.field(name).type) for name in self._inputs)
        if labels := _labels(self._table.schema, self._target):
            self.classes = labels

    def divided(self, config: SplitConfig, val: float, test: float) -> dict[SplitName, ArrowRows]:
        """Return the rows of each split, by the hashes of their keys.

        Raises:
            DataError: A key is missing, or a split would be empty.
        """
        names = [name for name in config.keys or self._table.column_names if name in self._table.column_names]
        cells = {name: objects(self._table.column(name).to_pylist()) for name in names}
        table = Table(cells, self._names[0], unread=self._table.column_names)
        hashed = Table({HASHED: hashes(table, config.keys, config.seed)}, self._names[0])
        parts: dict[SplitName, ArrowRows] = {}
        for name, rows in split_rows(hashed, config, val, test, None).items():
            parts[name] = copy(self)
            parts[name]._rows = rows
        return parts

    def __len__(self) -> int:
        return int(self._firsts[-1]) if self._rows is None else len(self._rows)

    def _of_files(self, positions: Any) -> Any:
        """Return the positions in the files of one row, or of several."""
        return positions if self._rows is None else self._rows[positions]

    def __getitem__(self, position: int) -> Any:
        """Return a row as `Items` takes it."""
        if not 0 <= position < len(self):
            raise IndexError(f"row {position} of {len(self)}")
        name_of, position = partial(self.name_of, position), int(self._of_files(position))
        chunk = int(np.searchsorted(self._firsts, position, side="right")) - 1
        row = position - int(self._firsts[chunk])
        try:
            values = {name: self._reader(name, chunk)(row) for name in (*self._inputs, self._target)}
        except Exception as error:
            raise DataError(f"{name_of()}: {error}") from error
        if self._is_table:
            features = np.array([values[name] for name in self._inputs], np.float32)
            return features, values[self._target]
        if len(self._inputs) == 1:
            return values[self._inputs[0]], values[self._target]
        return values

    def whole_batch(self, positions: Sequence[int]) -> dict[str, Array] | None:
        """Return rows of numbers, and of lists of equal length, as `BatchReader` says."""
        if not self._is_numeric:
            return None
        at = self._of_files(np.asarray(positions, np.int64))
        chunks = np.searchsorted(self._firsts, at, side="right") - 1
        places = list(zip(chunks.tolist(), (at - self._firsts[chunks]).tolist(), strict=True))
        columns: dict[str, Array] = {}
        for name in (*self._inputs, self._target):
            if (values := self._gathered(name, places)) is None:
                return None
            columns[name] = values
        if not self._is_table:
            (only, *others) = self._inputs
            return columns if others else {FEATURES: columns[only], self._target: columns[self._target]}
        features = np.stack([columns[name].astype(np.float32) for name in self._inputs], axis=1)
        return {FEATURES: features, self._target: columns[self._target]}

    def _gathered(self, name: str, places: Sequence[tuple[int, int]]) -> Array | None:
        """Return a column's values at some (chunk, row within it); None if their lengths differ."""
        read = [self._reader(name, chunk)(row) for chunk, row in places]
        if not isinstance(read[0], np.ndarray):
            return np.array(read)
        if any(len(one) != len(read[0]) for one in read):
            return None
        return np.stack(read)

    @cached_property
    def _is_numeric(self) -> bool:
        """True where all columns that are read hold numbers, or lists of numbers, and none is missing."""
        columns = [self._table.column(name) for name in (*self._inputs, self._target)]
        return all(not column.null_count and _holds_numbers(column.type) for column in columns)

    @cached_property
    def targets(self) -> Array | None:
        """The targets of all rows, if they may be classes."""
        column, types = self._table.column(self._target), require("pyarrow", "tabular").types
        if column.null_count or not len(column):
            return None
        if types.is_integer(column.type) or types.is_boolean(column.type):
            values: Array = column.to_numpy()
            return self._own(values)
        return self._own(np.array(column.to_pylist())) if types.is_string(column.type) else None

    def _own(self, values: Array) -> Array:
        """Return the values of these rows, of those of all rows of the files."""
        return values if self._rows is None else values[self._rows]

    @property
    def is_stored(self) -> bool:
        """True where no function of the user's takes part; see `StoredSamples`."""
        return True

    @property
    def is_converted(self) -> bool:
        """True where the rows are read from copies in the cache; see `StoredSamples`."""
        return self._is_converted

    @property
    def files(self) -> dict[str, str]:
        """The SHA-256 of each file, by its name."""
        return dict(zip(self._names, self._sha256s, strict=True))

    def name_of(self, position: int) -> str:
        """Return the name of a row in messages."""
        position = int(self._of_files(position))
        file = int(np.searchsorted(self._file_ends, position, side="right"))
        return f"row {position - (self._file_ends[file - 1] if file else 0)} of {self._names[file]}"

    def numbers(self, name: str) -> Array | None:
        """Return a column of numbers, (rows,); None if there is none of that name.

        Raises:
            DataError: It holds something else, or lacks values.
        """
        if name not in self._table.column_names:
            return None
        column = self._table.column(name)
        if not _is_number(column.type) or column.null_count:
            what = "lacks values" if column.null_count else f"holds {column.type}"
            raise DataError(f"column {name!r} {what}; give a number in each row")
        return self._own(column.to_numpy())

    def table(self, names: Iterable[str]) -> Table:
        """Return columns of single values as a table."""
        types = require("pyarrow", "tabular").types
        columns = {name: self._table.column(name) for name in names if name in self._table.column_names}
        columns = {name: one for name, one in columns.items() if not types.is_nested(one.type)}
        source = f"{self._names[0]}{' ...' if len(self._names) > 1 else ''}"
        return Table(
            {name: cells_of(column, name, source) for name, column in columns.items()},
            source,
            numbers=np.arange(len(self)),
            unread=[name for name in self._table.column_names if name not in columns],
        )

    def fingerprint(self) -> str:
        """Return the SHA-256 of the contents, of the files that they name, and of what is used of them."""
        known = ["arrow", self._sha256s, self._inputs, self._target, self._images]
        known += (
            [] if self._rows is None else [hashlib.sha256(self._rows.astype("<i8").tobytes()).hexdigest()]
        )
        return sha256_json([*known, self._outside] if self._outside else known)

    @cached_property
    def _outside(self) -> list[str]:
        """The hashes of the images that are not inside of the files."""
        arrow, compute = require("pyarrow", "tabular"), require("pyarrow.compute", "tabular")
        paths: list[str] = []
        for name in (*self._inputs, self._target):
            for chunk in self._table.column(name).chunks:
                values = getattr(chunk, "storage", chunk)
                if arrow.types.is_struct(values.type) and {"bytes", "path"} <= {
                    field.name for field in values.type
                }:
                    data, path = compute.struct_field(values, "bytes"), compute.struct_field(values, "path")
                    paths += path.filter(data.is_null()).drop_null().to_pylist()
        return hashes_of(paths)

    def _reader(self, name: str, chunk: int) -> Reader:
        """Return the function that reads a row of a chunk of a column."""
        known = self._readers.get((name, chunk))
        if known is None:
            values = self._table.column(name).chunk(chunk)
            known = self._readers[name, chunk] = self._made_reader(getattr(values, "storage", values), name)
        return known

    def _made_reader(self, values: Any, name: str) -> Reader:
        if values.null_count:
            return lambda row: _present(values[row].as_py(), name)
        if (reader := _reader_of_numbers(values)) is not None:
            return reader
        types = require("pyarrow", "tabular").types
        if types.is_binary(values.type) or types.is_large_binary(values.type):
            return lambda row: decoded_image(values[row].as_py(), self._images)
        if types.is_struct(values.type):
            return lambda row: decoded_image(_image_bytes(values[row].as_py(), name), self._images)
        if types.is_nested(values.type):
            return lambda row: np.array(values[row].as_py())
        return lambda row: values[row].as_py()


def _reader_of_numbers(values: Any) -> Reader | None:
    """Return the function that reads a row of numbers, or of lists of numbers, without a copy; else None."""
    types, kind = require("pyarrow", "tabular").types, values.type
    if _is_number(kind):
        numbers = values.to_numpy(zero_copy_only=False)
        return lambda row: numbers[row]
    if types.is_fixed_size_list(kind) and _is_number(kind.value_type):
        matrix = values.flatten().to_numpy(zero_copy_only=False).reshape(len(values), -1)
        return lambda row: matrix[row]
    if (types.is_list(kind) or types.is_large_list(kind)) and _is_number(kind.value_type):
        offsets, flat = values.offsets.to_numpy(), values.values.to_numpy(zero_copy_only=False)
        return lambda row: flat[offsets[row] : offsets[row + 1]]
    return None


def arrow_bundle(
    files: Mapping[SplitName, Sequence[ArrowFile]],
    config: DataConfig,
    images: ImageForm,
    request: LoadRequest,
) -> DataBundle:
    """Build the data of a run from Arrow files.

    Raises:
        DataError: A file cannot be read, or lacks a column.
    """
    by_hash = config.split.by == "hash"
    plain = config.model_copy(update={"split": SplitConfig()}) if by_hash else config
    map_style.refuse_settings_of_tables(plain)
    sets = {name: ArrowRows(some, config, images) for name, some in files.items()}
    tables = (
        {} if config.expect is None else {name: one.table(config.expect.column) for name, one in sets.items()}
    )
    if by_hash:
        shares = fractions(config.split, provided_splits(sets, config))
        sets |= sets["train"].divided(config.split, *shares)
    if config.expect is None:
        return map_style.bundle(sets, config, request)
    expectations = examined(tables, config, request.examine)
    return replace(map_style.bundle(sets, config, request), expectations=expectations)


def parquet_as_arrow(pattern: str) -> list[ArrowFile]:
    """Return Arrow files with the rows of Parquet files, which are converted once, into the user's cache.

    A row of a Parquet file cannot be read without the thousands beside it; one of an Arrow file can.

    Raises:
        DataError: A file is not a Parquet file, or there is no room for its rows.
    """
    cache, names, converted = data_cache(), shard_paths(pattern), []
    files = [existing_file(name, mapped=True) for name in names]  # which verifies copies of objects, once
    for name, file, sha256 in zip(names, files, hashes_of([str(file) for file in files]), strict=True):
        path = cache.made(
            f"{_CONVERTED} {sha256}",
            f"the rows of {name}",
            _rows_bytes(name, file),
            _conversion(name, file, sha256),
        )
        converted.append(ArrowFile(name, path, sha256))
    return converted


def _rows_bytes(name: str, file: Path) -> int:
    """Return about how many bytes the rows of a Parquet file take up when they are not compressed."""
    parquet = require("pyarrow.parquet", "tabular")
    with _read_as_parquet(name):
        metadata = parquet.read_metadata(file)
        return sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))


def _conversion(name: str, file: Path, sha256: str) -> Callable[[Path], None]:
    """Return the function that writes the rows of a Parquet file as an Arrow file."""
    arrow, parquet = require("pyarrow", "tabular"), require("pyarrow.parquet", "tabular")

    def convert(target: Path) -> None:
        with _read_as_parquet(name):
            source = parquet.ParquetFile(file)
            with (
                arrow.OSFile(str(target), "wb") as sink,
                arrow.ipc.new_file(sink, source.schema_arrow) as writer,
            ):
                for batch in source.iter_batches(_ROWS):
                    writer.write_batch(batch)
        if sha256_file(file) != sha256:  # the rows would be found under the hash of others
            raise DataError(f"{name} was changed while its rows were copied; start the run again")

    return convert


@contextmanager
def _read_as_parquet(name: str) -> Iterator[None]:
    try:
        yield
    except require("pyarrow", "tabular").ArrowException as error:
        raise DataError(
            f"{name} cannot be read as Parquet (is it complete?): {str(error).splitlines()[0]}"
        ) from error


def _mapped(files: Sequence[ArrowFile]) -> tuple[Any, list[int]]:
    """Return the rows of all files as a table, and the number of rows of each."""
    arrow = require("pyarrow", "tabular")
    tables = []
    for file in files:
        try:
            tables.append(_opened(arrow, file.path))
        except (arrow.ArrowException, OSError) as error:
            raise DataError(f"{file.name} cannot be read as Arrow: {str(error).splitlines()[0]}") from error
    try:
        table = arrow.concat_tables([table for table in tables if table.num_rows] or tables[:1])
    except arrow.ArrowException as error:
        raise DataError(
            f"{files[0].name}: its shards have different columns: {error}; write all of "
            "them with the same columns"
        ) from error
    return table, [one.num_rows for one in tables]


def _opened(arrow: Any, path: Path) -> Any:
    """Return a table that is mapped into memory, of a file in either of Arrow's two formats."""
    source = arrow.memory_map(str(path))
    with open(path, "rb") as file:
        is_file = file.read(6) == b"ARROW1"
    return (arrow.ipc.open_file if is_file else arrow.ipc.open_stream)(source).read_all()


def _labels(schema: Any, column: str) -> list[Any]:
    """Return the labels that Hugging Face's library has noted of a column; empty if there are none."""
    noted = (schema.metadata or {}).get(b"huggingface", b"{}")
    feature = (json.loads(noted).get("info", {}).get("features") or {}).get(column)
    return list(feature.get("names") or []) if isinstance(feature, dict) else []


def _inputs(schema: Any, config: DataConfig, source: str) -> list[str]:
    """Return the columns that the model gets: those of the config, or all but text and the target."""
    if config.features is not None:
        if unknown := [name for name in config.features if name not in schema.names]:
            raise DataError(
                f"{source}: data.features: there is no column {unknown[0]!r}; "
                f"{nearest(unknown[0], schema.names)}"
            )
        return list(config.features)
    left_out = {config.target_name, sampling_column(config.sampling), *config.exclude, *config.split.keys}
    texts = [field.name for field in schema if field.name not in left_out and _is_text(field.type)]
    if texts:
        log.info("data: columns of text or times are left out: %s", listed(texts))
    chosen = [field.name for field in schema if field.name not in {*left_out, *texts}]
    if not chosen:
        raise DataError(
            f"{source}: all columns hold text or times, which are left out; give at least "
            "one column of numbers to learn from"
        )
    return chosen


def _is_number(kind: Any) -> bool:
    types = require("pyarrow", "tabular").types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _holds_numbers(kind: Any) -> bool:
    types = require("pyarrow", "tabular").types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return _is_number(kind.value_type if is_list else kind)


def _is_text(kind: Any) -> bool:
    types = require("pyarrow", "tabular").types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_temporal(kind))


def _present(value: Any, name: str) -> Any:
    if value is None:
        raise DataError(f"column {name!r} has no value")
    return value


def _image_bytes(value: Mapping[str, Any], name: str) -> bytes:
    """Return the bytes of an image as Hugging Face stores it: inside, or in a file that a path names."""
    data, path = value.get("bytes"), value.get("path")
    if data is not None:
        return bytes(data)
    if path is None:
        raise DataError(f"column {name!r} holds {listed(value)}; only images are read from structures")
    return Path(path).read_bytes()
