"""Draft a first config from a data file."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.config.emit import inline
from trainyard.config.schema import DataConfig
from trainyard.datasets.rows import checks
from trainyard.datasets.rows.files import existing_file
from trainyard.datasets.rows.frames import read_table
from trainyard.datasets.rows.table import Table, kind_of, listed, missing
from trainyard.datasets.rows.target import class_indices, inspect
from trainyard.errors import DataError
from trainyard.registry import task_of
from trainyard.types import Array

_MANY = 100  # a column of more categories is not worth one feature per category
_GROUPS = (
    "group",
    "patient",
    "subject",
    "customer",
    "user",
    "session",
    "household",
    "site",
    "device",
    "store",
)


@dataclass
class Draft:
    """The settings of the data section, and remarks about the columns."""

    table: Table
    task: str
    features: list[str]
    exclude: dict[str, str] = field(default_factory=dict)  # column -> why
    impute: str | None = None
    remarks: list[str] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)


_READ = (".csv", ".tsv", ".txt", ".parquet", ".pq")


def draft_config(path: Path | str, target: str, encoding: str | None = None) -> str:
    """Return a commented config that trains the built-in `mlp` on a CSV or Parquet file.

    Args:
        path: The file.
        target: The column to predict.
        encoding: That of a CSV file; None for UTF-8, or UTF-16 if the file says so.

    Raises:
        DataError: The file cannot be read or trained on, or has no such target; names the nearest column.
    """
    if Path(path).suffix.lower() not in _READ:
        raise DataError(
            f"{path}: only CSV ({', '.join(_READ[:3])}) and Parquet (.parquet) files can be inspected; "
            "convert it first"
        )
    parquet = Path(path).suffix.lower() in (".parquet", ".pq")
    if parquet and encoding is not None:
        raise DataError(f"{path}: an encoding is for CSV files; leave --encoding out")
    params = {} if parquet else _csv_params(str(path), encoding)
    table = read_table(path, params)
    if not len(table):
        raise DataError(f"{table.source}: there are columns, but no rows")
    table.column(target, "--target")
    if texts := _missing_texts(table):
        params["missing"] = texts
        table = read_table(path, params)
    values = table.column(target, "--target")
    if (absent := missing(values)).any():
        raise DataError(
            f"{table.source}: the target {target!r} has no value in {table.where(absent)}; remove these rows"
        )
    config = DataConfig(path=str(path), target=target)
    checks.refuse_mixtures(table, [target])
    task, doubts = inspect(table, config)
    draft = Draft(
        table, task, [name for name in table.columns if name != target], remarks=doubts, params=params
    )
    _choose_columns(draft, values)
    return "\n".join(_lines(draft, str(path), target)) + "\n"


def _csv_params(path: str, encoding: str | None) -> dict[str, Any]:
    """Return the delimiter and the encoding, unless they are the defaults."""
    with existing_file(path).open("rb") as file:
        start = file.read(1 << 16)
    params: dict[str, Any] = {} if encoding is None else {"encoding": encoding}
    if encoding is None and start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        params["encoding"] = "utf-16"
    try:
        text = start.decode(encoding or params.get("encoding", "latin-1"), errors="ignore")
    except LookupError:
        raise DataError(
            f"there is no encoding {encoding!r}; for example, give utf-8, latin-1 or cp1252"
        ) from None
    first = text.partition("\n")[0]
    counts = {delimiter: len(next(csv.reader([first], delimiter=delimiter), [])) for delimiter in ",;\t|"}
    best = max(counts, key=lambda delimiter: counts[delimiter])
    return params if best == "," or counts[best] == 1 else params | {"delimiter": best}


def _missing_texts(table: Table) -> list[str]:
    """Return texts that mark missing values, such as `?`: the only text in a column of numbers."""
    strays = [set(table.columns[name][checks.strays(table, name)]) for name in table.columns]
    return sorted({text for texts in strays if len(texts) == 1 for text in texts})


def _choose_columns(draft: Draft, target: Array) -> None:
    """Divide the columns into those to learn from and those to leave out, with the reason."""
    labels = task_of(draft.task).labels(target)
    codes = class_indices(target, labels) if labels is not None else target.astype(np.float32)
    for name in draft.features:
        mixed = checks.strays(draft.table, name).any()
        if reason := "mixes numbers and text" if mixed else _why_not(draft.table.columns[name], codes):
            draft.exclude[name] = reason
    usable = [name for name in draft.features if name not in draft.exclude]
    if not usable:  # a column that numbers the rows may be the only one: x in a file of x and y
        usable = [name for name, reason in draft.exclude.items() if reason == checks.NUMBERS_ROWS]
        draft.exclude = {name: reason for name, reason in draft.exclude.items() if name not in usable}
    draft.features = usable
    if not draft.features:
        reasons = listed(f"{name}: {why}" for name, why in draft.exclude.items())
        raise DataError(f"{draft.table.source}: there is no column to learn from ({reasons})")
    gaps = {name: int(missing(draft.table.columns[name]).sum()) for name in draft.features}
    if any(gaps.values()):
        draft.impute = "median"
        counts = listed(f"{name} {count}" for name, count in gaps.items() if count)
        draft.remarks.append(f"missing values, filled with the median or the commonest category: {counts}")
    draft.remarks += _split_hints(draft)


def _why_not(values: Array, targets: Array) -> str | None:
    absent = missing(values)
    if absent.all():
        return "has no values"
    if values.dtype.kind == "f" and np.isinf(values).any():
        return "has infinite values"
    if kind_of(values) == "time":
        return "holds dates; make numbers of them, or use it as split.time"
    if kind_of(values) == "text" and len(set(values[~absent])) > max(_MANY, len(values) // 2):
        return "has a different text in most rows, like an identifier"
    reason = checks.oddity(values, targets)
    return reason if reason != checks.GIVES_AWAY else None


def _split_hints(draft: Draft) -> Iterator[str]:
    times = [name for name, values in draft.table.columns.items() if kind_of(values) == "time"]
    if times:
        column = inline(times[0])
        yield f"rows have dates: if the model is to predict the future, set `time: {column}` under split"
    for name in [*draft.features, *draft.exclude]:
        repeated = len(set(draft.table.columns[name].tolist())) <= len(draft.table) // 2
        if repeated and any(word in name.lower().replace("-", "_").split("_") for word in _GROUPS):
            yield f"to keep the rows of one {name} in one split, set `group: {inline(name)}` under split"


def _lines(draft: Draft, path: str, target: str) -> Iterator[str]:
    rows = len(draft.table)
    yield f"# Written by `trainyard init` for {rows} rows and {len(draft.table.columns)} columns."
    yield "data:"
    yield f"  type: {'parquet' if Path(path).suffix.lower() in ('.parquet', '.pq') else 'csv'}"
    yield f"  path: {inline(path)}"
    if draft.params:
        yield "  params:"
        yield from (
            f"    {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in draft.params.items()
        )
    yield f"  target: {inline(target)}"
    yield f"  task: {draft.task}  # {_why_task(draft, target)}"
    yield f"  # to learn from: {_columns(draft)}"
    if draft.exclude:
        yield "  exclude:"
        yield from (f"    - {inline(name)}  # {reason}" for name, reason in draft.exclude.items())
    if draft.impute:
        yield f"  impute: {draft.impute}"
    yield from (f"  # {_one_line(remark)}" for remark in draft.remarks)
    share = 0.1 if rows >= 50 else 0.2
    yield f"  split: {{val: {share}, test: {share}}}  # the rest trains"
    yield "model:"
    yield "  type: mlp"
    yield "  params: {hidden: [128, 64], dropout: 0.1}"
    yield "training:"
    yield "  epochs: 20"
    yield f"  batch_size: {_batch_size(rows)}"
    yield "  learning_rate: 1e-3"
    yield "  # early_stopping: {metric: val_loss, patience: 5}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _columns(draft: Draft) -> str:
    kinds: dict[str, list[str]] = {}
    for name in draft.features:
        kinds.setdefault(kind_of(draft.table.columns[name]), []).append(_one_line(name))
    words = {"number": "numbers", "boolean": "booleans", "text": "categories"}
    return "; ".join(f"{words[kind]}: {listed(names, 12)}" for kind, names in kinds.items())


def _why_task(draft: Draft, target: str) -> str:
    values = draft.table.columns[target]
    labels = task_of(draft.task).labels(values)
    if labels is None:
        return f"values from {values.min():g} to {values.max():g}"
    counts = np.bincount(class_indices(values, labels)).tolist()
    return f"{len(labels)} classes: " + _one_line(
        listed(f"{label} ({n} rows)" for label, n in zip(labels, counts, strict=True))
    )


def _batch_size(rows: int) -> int:
    """Return a power of two from 8 to 256, for about 20 steps per epoch; at most a third of the rows."""
    return int(max(1, min(2 ** int(np.clip(np.log2(max(rows / 20, 1)), 3, 8)), rows // 3)))
