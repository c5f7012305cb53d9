"""Parquet files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, Field

from trainyard.config.fields import Section
from trainyard.config.schema import DataConfig
from trainyard.datasets.base import DataBundle
from trainyard.datasets.rows.arrow import SAMPLE, strings
from trainyard.datasets.rows.arrow_rows import arrow_bundle, parquet_as_arrow
from trainyard.datasets.rows.chunks import ParquetChunks
from trainyard.datasets.rows.decoders import ImageForm
from trainyard.datasets.rows.files import existing_file
from trainyard.datasets.rows.table import Table, tidy
from trainyard.datasets.rows.tabular import load_files, paths_by_split
from trainyard.errors import DataError
from trainyard.require import require
from trainyard.types import Array


class ParquetParams(Section):
    """How the rows are read; a Parquet file holds its types."""

    streaming: bool = Field(
        False,
        description="read rows when they are needed, instead of holding all in memory: columns are then used "
        "as they are; a path may be a pattern of shards (`train-{000..099}.parquet`)",
    )
    images: ImageForm = Field("torchrgb", description="with streaming: what images become; see webdataset")


class ParquetDataset:
    """Parquet files: one file to split, or one file per split."""

    names: ClassVar[Sequence[str]] = ("parquet",)
    Params: ClassVar[type[BaseModel]] = ParquetParams

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, ParquetParams)
        self._config = config
        self._params = params
        self._arrow: Any = require("pyarrow", "tabular")
        self._parquet: Any = require("pyarrow.parquet", "tabular")

    def load(self) -> DataBundle:
        """Load the data; see `Dataset.load`."""
        if not self._params.streaming:
            return load_files(self._config, self.read)
        paths = paths_by_split(self._config)
        files = {name: parquet_as_arrow(path) for name, path in paths.items()}
        return arrow_bundle(files, self._config, self._params.images)

    def read(self, path: str, text: Collection[str] = ()) -> Table:  # noqa: ARG002
        """Return all rows of one file.

        Raises:
            DataError: The file is not a Parquet file, or a column holds lists or structures.
        """
        return self._table(path, self._arrow_table(path))

    def chunks(self, path: str, text: Collection[str] = ()) -> ParquetChunks:  # noqa: ARG002
        """Return the rows of one file, to be read chunk by chunk; see `read`.

        Raises:
            DataError: The file is not a Parquet file.
        """
        file = existing_file(path, mapped=True)
        return ParquetChunks(path, file, lambda column, name: self._column(column, name, path))

    def sample(self) -> Table:
        """Return the first training rows.

        Raises:
            DataError: The file is not a Parquet file, or a column holds lists or structures.
        """
        path = paths_by_split(self._config)["train"]
        try:
            with existing_file(path).open("rb") as stream:
                file = self._parquet.ParquetFile(stream)
                batches = [next(file.iter_batches(SAMPLE))] if file.metadata.num_rows else []
                return self._table(path, self._arrow.Table.from_batches(batches, file.schema_arrow))
        except (self._arrow.ArrowException, OSError) as error:
            raise self._unreadable(path, error) from error

    def _arrow_table(self, path: str) -> Any:
        file = existing_file(path)
        try:
            with file.open("rb") as stream:
                return self._parquet.ParquetFile(stream).read()  # `read_table` would import pandas
        except (self._arrow.ArrowException, OSError) as error:
            raise self._unreadable(path, error) from error

    def _unreadable(self, path: str, error: Exception) -> DataError:
        return DataError(f"{path} cannot be read as Parquet (is it complete?): {str(error).splitlines()[0]}")

    def _table(self, path: str, table: Any) -> Table:
        columns = {name: table.column(name) for name in table.column_names}
        coded = {name for name in columns if self._arrow.types.is_dictionary(columns[name].type)}
        del table  # each column is freed when it is converted
        values = {name: self._column(columns.pop(name), name, path) for name in [*columns]}
        return Table(values, path, categorical=frozenset(coded))

    def _column(self, column: Any, name: str, path: str) -> Array:
        types = self._arrow.types
        if types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if types.is_decimal(column.type):
            column = column.cast(self._arrow.float64())
        if types.is_nested(column.type):
            raise DataError(
                f"{path}: column {name!r} holds {column.type}; give each of its values a column of its own, "
                "or data.exclude it"
            )
        if types.is_string(column.type) or types.is_large_string(column.type):
            return strings(column)
        values = (
            column.to_numpy(zero_copy_only=False)
            if column.num_chunks
            else np.empty(0, column.type.to_pandas_dtype())
        )
        return tidy(values, name, path)
