"""Parquet files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import BaseModel, Field

from trainwright.config.fields import Section
from trainwright.config.schema import DataConfig
from trainwright.datasets.images.decoders import ImageForm
from trainwright.datasets.samples.files import paths_by_split
from trainwright.datasets.tables.arrow import SAMPLE, cells_of
from trainwright.datasets.tables.chunks import ParquetChunks, common_schema, in_schema
from trainwright.datasets.tables.sources import table_files
from trainwright.datasets.tables.table import Table
from trainwright.errors import DataError
from trainwright.require import require
from trainwright.types import Array

if TYPE_CHECKING:
    from trainwright.datasets.base import DataBundle, LoadRequest


class ParquetParams(Section):
    """The options of reading rows; a Parquet file holds its types."""

    streaming: bool = Field(
        False,
        description="read rows when they are needed, instead of holding all in memory: columns are then used "
        "as they are; a path may be a pattern of shards (`train-{000..099}.parquet`)",
    )
    images: ImageForm = Field(
        "torchrgb", description="with streaming: how images are decoded; see webdataset"
    )


class ParquetDataset:
    """Parquet files: one file (or folder, or pattern) to split, or one per split."""

    names: ClassVar[Sequence[str]] = ("parquet",)
    Params: ClassVar[type[BaseModel]] = ParquetParams
    has_tokens: ClassVar[bool] = False

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, ParquetParams)
        self._config = config
        self._params = params
        self._arrow: Any = require("pyarrow", "tabular")
        self._parquet: Any = require("pyarrow.parquet", "tabular")

    def load(self, request: LoadRequest) -> DataBundle:
        """Load the data; see `Dataset.load`."""
        # Late: a config is checked without them.
        from trainwright.datasets.samples.arrow_rows import arrow_bundle, parquet_as_arrow
        from trainwright.datasets.tables.tabular import load_files

        if not self._params.streaming:
            return load_files(self._config, self._checked, request)
        paths = paths_by_split(self._config)
        files = {name: parquet_as_arrow(path) for name, path in paths.items()}
        return arrow_bundle(files, self._config, self._params.images, request)

    def sources(self) -> list[str] | None:
        """Return the files that are read; None where a path may name many. See `KnownSources`."""
        if self._params.streaming:
            return None
        paths = paths_by_split(self._config).values()
        return [one.name for path in paths for one in table_files(path, "parquet")]

    def read(self, path: str, text: Collection[str] = ()) -> Table:
        """Return all rows of one file; columns in `text`, and the target, may hold lists.

        Other columns of lists, and of structures, are not read.

        Raises:
            DataError: The file is not a Parquet file.
        """
        return self._table(path, self._arrow_table(path), text)

    def _checked(self, path: str, text: Collection[str] = ()) -> Table:
        """Return the same rows, to be trained on.

        Raises:
            DataError: A feature holds lists or structures.
        """
        whole, config = self._arrow_table(path), self._config
        self._refuse_nested(path, whole.schema, config)
        return self._table(path, whole, text)

    def _refuse_nested(self, path: str, schema: Any, config: DataConfig) -> None:
        used = set(config.features or schema.names) - {*config.exclude, *config.targets}
        for field in schema:
            if field.name in used and self._arrow.types.is_nested(field.type):
                raise DataError(
                    f"{path}: column {field.name!r} holds {field.type}; give each of its values a column of "
                    "its own, or data.exclude it"
                )

    def chunks(self, path: str, text: Collection[str] = ()) -> ParquetChunks:
        """Return the rows of one file, to be read chunk by chunk; see `read`.

        Raises:
            DataError: The file is not a Parquet file.
        """
        files = table_files(path, "parquet", mapped=True)
        return ParquetChunks(path, files, lambda column, name: self._column(column, name, path, text))

    def sample(self) -> Table:
        """Return the first training rows.

        Raises:
            DataError: The file is not a Parquet file, or a column holds lists or structures.
        """
        path = paths_by_split(self._config)["train"]
        files = table_files(path, "parquet")
        if len(files) > 1 or files[0].partition:
            return self._table(path, self._arrow_table(path).slice(0, SAMPLE))
        try:
            with files[0].file.open("rb") as stream:
                file = self._parquet.ParquetFile(stream)
                self._refuse_nested(path, file.schema_arrow, self._config)
                batches = [next(file.iter_batches(SAMPLE))] if file.metadata.num_rows else []
                return self._table(path, self._arrow.Table.from_batches(batches, file.schema_arrow))
        except (self._arrow.ArrowException, OSError) as error:
            raise self._unreadable(path, error) from error

    def _arrow_table(self, path: str) -> Any:
        files = table_files(path, "parquet")
        schemas, tables = [], []
        for one in files:
            try:
                with one.file.open("rb") as stream:
                    table = self._parquet.ParquetFile(stream).read()  # `read_table` would import pandas
            except (self._arrow.ArrowException, OSError) as error:
                raise self._unreadable(one.name, error) from error
            tables.append(table)
            schemas.append(table.schema)
        schema = common_schema(self._arrow, files, schemas)
        return self._arrow.concat_tables(
            in_schema(self._arrow, table, one, schema) for one, table in zip(files, tables, strict=True)
        )

    def _unreadable(self, path: str, error: Exception) -> DataError:
        return DataError(f"{path} cannot be read as Parquet (is it complete?): {str(error).splitlines()[0]}")

    def _table(self, path: str, table: Any, text: Collection[str] = ()) -> Table:
        columns = {name: table.column(name) for name in table.column_names}
        unread = [name for name in columns if self._is_unread(columns[name].type, name, text)]
        columns = {name: columns[name] for name in columns if name not in unread}
        coded = {name for name in columns if self._arrow.types.is_dictionary(columns[name].type)}
        del table  # each column is freed when it is converted
        values = {name: self._column(columns.pop(name), name, path, text) for name in [*columns]}
        return Table(values, path, unread=unread, categorical=frozenset(coded))

    def _is_unread(self, kind: Any, name: str, text: Collection[str]) -> bool:
        """Return whether a column holds structures, or lists where single values are needed."""
        types = self._arrow.types
        is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        return types.is_nested(kind) and not (is_list and name in {*text, *self._config.targets})

    def _column(self, column: Any, name: str, path: str, text: Collection[str]) -> Array:
        types = self._arrow.types
        if types.is_nested(column.type) and not self._is_unread(column.type, name, text):
            values = np.empty(len(column), dtype=object)
            for row, value in enumerate(column.to_pylist()):
                values[row] = value
            return values
        if types.is_nested(column.type):
            raise DataError(
                f"{path}: column {name!r} holds {column.type}; give each of its values a column of its own, "
                "or data.exclude it"
            )
        return cells_of(column, name, path)
