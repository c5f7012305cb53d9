"""Read files of other rows than a run's own, for prediction and evaluation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from trainyard import registry
from trainyard.config.schema import DataConfig
from trainyard.datasets.rows.chunks import RowChunks
from trainyard.datasets.rows.raw import frame_of
from trainyard.datasets.rows.table import Table
from trainyard.errors import DataError


def read_table(
    path: Path | str, params: Mapping[str, Any] | None = None, text: Collection[str] = ()
) -> Table:
    """Return the rows of a Parquet file (`.parquet`, `.pq`), or of a CSV file (any other suffix).

    Args:
        path: The file.
        params: Options of the CSV reader (`delimiter`, `encoding` ...): those of the run's own data, if they
            were CSV.
        text: Columns to read as text even if they look like numbers: `TabularPreparation.text_columns`.

    Raises:
        DataError: The file cannot be read.
    """
    table: Table = _reader(path, params).read(str(path), text)
    return table


def row_chunks(
    path: Path | str, params: Mapping[str, Any] | None = None, text: Collection[str] = ()
) -> RowChunks:
    """Return the same rows, to be read chunk by chunk; the arguments are those of `read_table`.

    Raises:
        DataError: The file cannot be read.
    """
    chunks: RowChunks = _reader(path, params).chunks(str(path), text)
    return chunks


def _reader(path: Path | str, params: Mapping[str, Any] | None) -> Any:
    """Return the data set adapter that reads a file.

    Raises:
        DataError: The file is of another kind.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".npz":
        raise DataError(f"{path}: give rows as CSV or Parquet; npz is for training")
    parquet = suffix in (".parquet", ".pq")
    reader = registry.adapter("dataset", "parquet" if parquet else "csv")
    return reader(DataConfig(), reader.Params(**({} if parquet else params or {})))


def read_frame(path: Path | str, params: Mapping[str, Any] | None = None, text: Collection[str] = ()) -> Any:
    """Return the same rows as a pandas data frame."""
    return frame_of(dict(read_table(path, params, text).columns))
