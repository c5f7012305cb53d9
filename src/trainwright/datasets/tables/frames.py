"""Read files of other rows than a run's own, for prediction and evaluation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from trainwright import plugins
from trainwright.config.schema import DataConfig
from trainwright.datasets.tables.chunks import RowChunks
from trainwright.datasets.tables.raw import frame_of
from trainwright.datasets.tables.table import Table

_KINDS = {".parquet": "parquet", ".pq": "parquet", ".npz": "npz"}  # by suffix; all others are CSV


def read_table(
    path: Path | str,
    params: Mapping[str, Any] | None = None,
    text: Collection[str] = (),
    target: str = "",
) -> Table:
    """Return the rows of a Parquet (`.parquet`, `.pq`), npz or CSV file (any other suffix).

    Args:
        path: The file.
        params: Options of the CSV reader (`delimiter`, `encoding` ...): those of the run's own data, if they
            were CSV.
        text: Columns to read as text even if they look like numbers: `TabularPreparation.text_columns`.
        target: What the array y of an npz file is called.

    Raises:
        DataError: The file cannot be read.
    """
    table: Table = _reader(path, params, target).read(str(path), text)
    return table


def row_chunks(
    path: Path | str,
    params: Mapping[str, Any] | None = None,
    text: Collection[str] = (),
    target: str = "",
) -> RowChunks:
    """Return the same rows, to be read chunk by chunk; the arguments are those of `read_table`.

    Raises:
        DataError: The file cannot be read.
    """
    chunks: RowChunks = _reader(path, params, target).chunks(str(path), text)
    return chunks


def _reader(path: Path | str, params: Mapping[str, Any] | None, target: str) -> Any:
    """Return the data set adapter that reads a file."""
    kind = _KINDS.get(Path(path).suffix.lower(), "csv")
    reader = plugins.adapter("dataset", kind)
    config = DataConfig(target=target) if target else DataConfig()
    return reader(config, reader.Params(**(params or {} if kind == "csv" else {})))


def read_frame(
    path: Path | str,
    params: Mapping[str, Any] | None = None,
    text: Collection[str] = (),
    target: str = "",
) -> Any:
    """Return the same rows as a pandas data frame."""
    return frame_of(dict(read_table(path, params, text, target).columns))
