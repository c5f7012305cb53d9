"""Excel workbooks, by the contract of data sets; other tests are in `test_table_files.py`."""

from pathlib import Path
from typing import Any

import pytest
from rows import config, people

from trainwright.datasets.base import Dataset
from trainwright.datasets.excel import ExcelDataset
from trainwright.testing.dataset_suite import DatasetSuite

openpyxl = pytest.importorskip("openpyxl")


class TestExcel(DatasetSuite):
    def make(self, folder: Path) -> Dataset:
        book, path = openpyxl.Workbook(), folder / "people.xlsx"
        rows = people()
        book.active.append(list(rows[0]))
        for row in rows:
            book.active.append(list(row.values()))
        book.save(path)
        return ExcelDataset(config(type="excel", path=str(path)), ExcelDataset.Params())

    def raw_rows(self, folder: Path) -> Any:
        return people()
