"""Read files of other rows than a run's own, for prediction and evaluation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from trainwright import plugins
from trainwright.config.file_types import file_type
from trainwright.config.schema import DataConfig
from trainwright.datasets.tables.chunks import RowChunks
from trainwright.datasets.tables.table import Table, frame_of

FOUND = ("delimiter", "encoding")  # options of CSV files that may be found
_KINDS = (
    "csv",
    "parquet",
    "jsonl",
    "excel",
    "npz",
    "requests",
)  # that hold rows; files of other endings are CSV


def read_table(
    path: Path | str,
    params: Mapping[str, Any] | None = None,
    text: Collection[str] = (),
    target: str = "",
    *,
    finds: Collection[str] = FOUND,
) -> Table:
    """Return the rows of a Parquet, JSON Lines, Excel, npz or CSV file (any other ending), or of a folder.

    Args:
        path: The file, a folder of such files, or a pattern.
        params: Options of the readers (`delimiter`, `encoding`, `sheet` ...); each takes those that it has.
        text: Columns to read as text even if they look like numbers: `TabularPreparation.text_columns`.
        target: What the array y of an npz file is called.
        finds: The options that are found where those given do not fit a CSV file: another delimiter where
            this one finds one column only, and UTF-8 where all of the file is.

    Raises:
        DataError: The file cannot be read.
    """
    table: Table = _reader(path, params, target, finds).read(str(path), text)
    return table


def row_chunks(
    path: Path | str,
    params: Mapping[str, Any] | None = None,
    text: Collection[str] = (),
    target: str = "",
    *,
    finds: Collection[str] = FOUND,
) -> RowChunks:
    """Return the same rows, to be read chunk by chunk; the arguments are those of `read_table`.

    Raises:
        DataError: The file cannot be read.
    """
    chunks: RowChunks = _reader(path, params, target, finds).chunks(str(path), text)
    return chunks


def _reader(path: Path | str, params: Mapping[str, Any] | None, target: str, finds: Collection[str]) -> Any:
    """Return the data set adapter that reads a file."""
    kind = file_type(str(path))
    reader = plugins.adapter("dataset", kind if kind in _KINDS else "csv")
    config = DataConfig(target=target) if target else DataConfig()
    known = {key: value for key, value in (params or {}).items() if key in reader.Params.model_fields}
    made = reader(config, reader.Params(**known))
    if hasattr(made, "finds"):
        made.finds = finds
    return made


def read_frame(
    path: Path | str,
    params: Mapping[str, Any] | None = None,
    text: Collection[str] = (),
    target: str = "",
    *,
    finds: Collection[str] = FOUND,
) -> Any:
    """Return the same rows as a pandas data frame."""
    return frame_of(dict(read_table(path, params, text, target, finds=finds).columns))
