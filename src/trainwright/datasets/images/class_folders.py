"""Folders of files, one for each class; of each split, if there are such folders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from trainwright.config.schema import DataConfig
from trainwright.datasets.samples.files import (
    TEXT_ENDING,
    as_text,
    files_in,
    is_url,
    log_left_out,
    names_in,
    paths_by_split,
    text_of,
)
from trainwright.datasets.tables.table import Table
from trainwright.errors import DataError
from trainwright.types import SplitName

_FOLDERS: dict[str, SplitName] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}


def folders_by_split(config: DataConfig) -> dict[SplitName, str]:
    """Return the folder of classes of each split that has its own.

    Raises:
        DataError: One is no folder on this machine.
    """
    paths = paths_by_split(config)
    for path in paths.values():
        if is_url(path) or not Path(path).expanduser().is_dir():
            raise DataError(f"data: {path} is not a folder on this machine; {config.type} reads such folders")
    if config.path is None:
        return paths
    inside = {
        _FOLDERS[name]: name
        for name in names_in(str(Path(config.path).expanduser())) or ()
        if name in _FOLDERS
    }
    if "train" not in inside:
        return paths
    return {split: str(Path(config.path, name)) for split, name in inside.items()}


def classes_in(folder: str, what: str) -> list[Path]:
    """Return the folders of classes in a folder, sorted.

    Args:
        folder: The folder.
        what: What the files are, in messages.

    Raises:
        DataError: There are none.
    """
    root = Path(folder).expanduser()
    classes = sorted(one for one in root.iterdir() if one.is_dir() and not one.name.startswith("."))
    if not classes:
        raise DataError(f"{folder}: there is no folder for each class of {what} in it")
    return classes


def text_tables(config: DataConfig, column: str) -> Mapping[SplitName, Table]:
    """Return the texts of each split as a table: a column of texts, and the target with their classes.

    Raises:
        DataError: There are no folders of classes, or one of them holds no text.
    """
    tables: dict[SplitName, Table] = {}
    for split, folder in folders_by_split(config).items():
        texts: list[str] = []
        labels: list[str] = []
        left_out: Counter[str] = Counter()
        for one in classes_in(folder, "texts"):
            files, others = files_in(one, [TEXT_ENDING])
            left_out += others
            if not files:
                raise DataError(f"{one} holds no text: no file that ends in {TEXT_ENDING}")
            texts += [text_of(file) for file in files]
            labels += [as_text(one.name)] * len(files)
        log_left_out(folder, left_out, "texts")
        columns = {column: np.array(texts, object), config.target_name: np.array(labels, object)}
        tables[split] = Table(columns, folder)
    return tables
