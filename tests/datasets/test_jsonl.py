"""JSON Lines, by the contract of data sets; other tests are in `test_table_files.py`."""

import json
from pathlib import Path
from typing import Any

from rows import config, people

from trainwright.datasets.base import Dataset
from trainwright.datasets.jsonl import JsonlDataset
from trainwright.testing.dataset_suite import DatasetSuite


class TestJsonl(DatasetSuite):
    def make(self, folder: Path) -> Dataset:
        path = folder / "people.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in people()), encoding="utf-8")
        return JsonlDataset(config(type="jsonl", path=str(path)), JsonlDataset.Params())

    def raw_rows(self, folder: Path) -> Any:
        return people()
