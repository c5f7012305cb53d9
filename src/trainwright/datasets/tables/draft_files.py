"""Data files of which a config is drafted: what they are, and how they are to be read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from trainwright import plugins
from trainwright.config.file_types import ENDINGS, ending_of, file_type
from trainwright.datasets.samples.compression import unpacked
from trainwright.datasets.tables.encodings import find_delimiter
from trainwright.datasets.tables.frames import read_table
from trainwright.datasets.tables.sources import guess_of_file, table_files
from trainwright.datasets.tables.table import Table
from trainwright.errors import DataError

_START = 1 << 16  # bytes that the delimiter is found in


class ReadFile(NamedTuple):
    """The rows of a file, its `data.type`, and the options of the reader that they need."""

    table: Table
    type: str
    params: dict[str, Any]


def read_for_draft(path: str, options: Mapping[str, Any]) -> ReadFile:
    """Read a file, a folder of files or a pattern.

    Args:
        path: The file, or its URL.
        options: Options of the reader that the user gave (`encoding`, `delimiter`, `sheet`).

    Raises:
        DataError: It is no table, or holds no rows.
    """
    kind = "csv" if ending_of(path) == ".txt" else file_type(path)
    if kind is None or kind not in ENDINGS:
        convert = f"arrays train as they are: write data: {path}, model: mlp"
        raise DataError(
            f"{path}: only CSV (.csv, .tsv, .txt; also .gz ...), Parquet (.parquet), JSON Lines (.jsonl) and "
            f"Excel (.xlsx) files can be inspected; "
            + (convert if PurePath(path).suffix == ".npz" else "convert it first")
        )
    fields = plugins.adapter("dataset", kind).Params.model_fields
    given = {key: value for key, value in options.items() if value is not None}
    if useless := [key for key in given if key not in fields]:
        raise DataError(f"{path}: --{useless[0]} is not for files of the type {kind}; leave it out")
    params = given if kind != "csv" else {**_csv_params(path, given), **given}
    table = read_table(path, params, finds=())
    if not len(table):
        raise DataError(f"{table.source}: there are columns, but no rows")
    return ReadFile(table, kind, params)


def _csv_params(path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the delimiter and the encoding, unless they are the defaults."""
    one = table_files(path, "csv")[0]
    with unpacked(one.name, one.file) as stream:
        start = stream.read(_START)
    params: dict[str, Any] = {}
    encoding = given.get("encoding")
    if encoding is None and (found := guess_of_file(one.name, one.file)) is not None:
        encoding = params["encoding"] = found.encoding
    try:
        text = start.decode(encoding or "latin-1", errors="ignore")
    except LookupError:
        raise DataError(
            f"there is no encoding {encoding!r}; for example, give utf-8, latin-1 or cp1252"
        ) from None
    best = find_delimiter(text.encode(), most=True)
    return params if best is None else params | {"delimiter": best}
