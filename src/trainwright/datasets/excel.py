"""Excel workbooks (.xlsx): one sheet is a table."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, Field

from trainwright.config.fields import Section
from trainwright.config.schema import DataConfig
from trainwright.datasets.samples.files import paths_by_split
from trainwright.datasets.tables.cell_columns import table_of_cells
from trainwright.datasets.tables.cells import MISSING
from trainwright.datasets.tables.chunks import TableChunks
from trainwright.datasets.tables.sources import table_files
from trainwright.datasets.tables.table import Table, nearest
from trainwright.errors import DataError
from trainwright.numerals import listed
from trainwright.require import require

if TYPE_CHECKING:
    from trainwright.datasets.base import DataBundle, LoadRequest

_TITLES = 20  # lines above the header, at most
_HEADER = 0.6  # of the cells of the fullest line, a header has this share at least
_ERRORS = ("#DIV/0!", "#N/A", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!")


class ExcelParams(Section):
    """The place of the table in the workbook."""

    sheet: str | None = Field(
        None, description="the name of the sheet; default: the first one that holds rows"
    )
    header: int | None = Field(
        None,
        ge=1,
        description="the line that names the columns, from 1; default: the first one below a title",
    )


class ExcelDataset:
    """Excel workbooks: one to split, or one per split."""

    names: ClassVar[Sequence[str]] = ("excel",)
    Params: ClassVar[type[BaseModel]] = ExcelParams
    has_tokens: ClassVar[bool] = False

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, ExcelParams)
        self._config = config
        self._params = params
        self._openpyxl: Any = require("openpyxl", "excel")

    def load(self, request: LoadRequest) -> DataBundle:
        """Load the data; see `Dataset.load`."""
        from trainwright.datasets.tables.tabular import load_files  # late: a config is checked without it

        return load_files(self._config, self.read, request)

    def sources(self) -> list[str]:
        """Return the files that are read; see `KnownSources`."""
        paths = paths_by_split(self._config).values()
        return [one.name for path in paths for one in table_files(path, "excel")]

    def read(self, path: str, text: Collection[str] = ()) -> Table:
        """Return all rows of a sheet.

        Raises:
            DataError: The file is no workbook, has no such sheet, or the sheet holds no table.
        """
        (one, *others) = table_files(path, "excel")
        if others:
            raise DataError(f"{path} holds several workbooks; give one of them, such as {one.name}")
        InvalidFile = require("openpyxl.utils.exceptions", "excel").InvalidFileException  # noqa: N806 - a class
        try:
            book = self._openpyxl.load_workbook(one.file, read_only=True, data_only=True)
        except (OSError, KeyError, ValueError, zipfile.BadZipFile, InvalidFile) as error:
            raise DataError(f"{path} cannot be read as an Excel workbook (.xlsx): {error}") from error
        try:
            sheet, remarks = self._sheet(book, path)
            lines = [list(line) for line in sheet.iter_rows(values_only=True)]
        finally:
            book.close()
        table, more = self._table(lines, path, text)
        return Table(**{**vars(table), "remarks": [*table.remarks, *remarks, *more]})

    def chunks(self, path: str, text: Collection[str] = ()) -> TableChunks:
        """Return the same rows, to be taken chunk by chunk; a sheet has about a million at most."""
        return TableChunks(self.read(path, text))

    def sample(self) -> Table:
        """Return the training rows."""
        return self.read(paths_by_split(self._config)["train"])

    def _sheet(self, book: Any, path: str) -> tuple[Any, list[str]]:
        """Return the sheet to read, and a remark if others hold rows, too."""
        names = [sheet.title for sheet in book.worksheets]
        if (wanted := self._params.sheet) is not None:
            if wanted not in names:
                raise DataError(f"{path}: there is no sheet {wanted!r}; {nearest(wanted, names)}")
            return book[wanted], []
        filled = [sheet for sheet in book.worksheets if _has_rows(sheet)]
        if not filled:
            raise DataError(f"{path} is empty; its first line must name the columns")
        if len(filled) == 1:
            return filled[0], []
        others = listed(repr(sheet.title) for sheet in filled[1:])
        return filled[0], [
            f"{path}: the sheet {filled[0].title!r} is read, and not {others}; for another one, give "
            "data.params.sheet (--sheet)"
        ]

    def _table(self, lines: list[list[Any]], path: str, text: Collection[str]) -> tuple[Table, list[str]]:
        lines = [[_cell(cell) for cell in line] for line in lines]
        at = _header(lines) if self._params.header is None else self._params.header - 1
        if at >= len(lines):
            raise DataError(f"{path}: data.params.header: the sheet has {len(lines)} lines")
        remarks = []
        if self._params.header is None and any(cell is not None for line in lines[:at] for cell in line):
            remarks = [
                f"{path}: line {at + 1} is taken for the names of the columns, and what is above it for a "
                "title; if that is wrong, give data.params.header"
            ]
        width = max(map(len, lines[at:]))
        rows = [line + [None] * (width - len(line)) for line in lines[at:]]
        header, body = rows[0], [row for row in rows[1:] if any(cell is not None for cell in row)]
        columns = [(name, [row[i] for row in body]) for i, name in enumerate(header)]
        kept = [
            (f"column {i + 1}" if name is None else str(name), cells)
            for i, (name, cells) in enumerate(columns)
            if name is not None or any(cell is not None for cell in cells)
        ]
        declared = {
            name for name, column in self._config.columns.items() if column.type in ("category", "text")
        }
        first = at + 2 if len(body) == len(rows) - 1 else None
        names, cells = [name for name, _ in kept], [cells for _, cells in kept]
        return table_of_cells(names, cells, path, {*text, *declared}, first), remarks


def _has_rows(sheet: Any) -> bool:
    lines = sheet.iter_rows(values_only=True, max_row=_TITLES)
    return any(cell is not None for line in lines for cell in line)


def _cell(cell: Any) -> Any:
    """Return a cell; None where it is empty, or holds an error of Excel or a word for a missing value."""
    return None if isinstance(cell, str) and cell.strip() in (*MISSING, *_ERRORS) else cell


def _header(lines: Sequence[Sequence[Any]]) -> int:
    """Return the position of the line of names: the first one with nearly as many cells as any."""
    counts = [sum(cell is not None for cell in line) for line in lines[: _TITLES + 1]]
    most = max(counts, default=0)
    least = max(min(2, most), most * _HEADER)
    return next((i for i, count in enumerate(counts) if count >= least), 0)
