"""Draft a first config from a data file."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from trainwright import plugins
from trainwright.config.emit import emit, inline
from trainwright.config.file_types import COMPRESSIONS
from trainwright.config.schema import ColumnConfig, DataConfig
from trainwright.datasets.tables.draft_files import read_for_draft
from trainwright.datasets.tables.kinds import has_unit, holds_periods, infer, infer_target, judge
from trainwright.datasets.tables.preparation import MAX_ONEHOT
from trainwright.datasets.tables.proposals import default_model, reasons, sections
from trainwright.datasets.tables.suspects import odd_spellings, row_of_sums
from trainwright.datasets.tables.table import Table, kind_of, missing
from trainwright.datasets.tables.target import class_indices, inspect, rows_with_target
from trainwright.datasets.tables.typed import ColumnKind, stray_texts, typed
from trainwright.errors import DataError
from trainwright.frameworks.base import Framework
from trainwright.numerals import listed, number
from trainwright.plugins import task_of
from trainwright.tasks.support.columns import unless_counts
from trainwright.tasks.support.positive import in_words, positive_of_two
from trainwright.types import Ids, TableShape

_GROUPS = (
    *(
        "group",
        "patient",
        "subject",
        "participant",
        "person",
        "customer",
        "client",
        "member",
        "user",
        "account",
    ),
    *("student", "employee", "driver", "player", "session", "household", "family", "site", "device", "store"),
)
_WORDS = {
    "number": "numbers",
    "boolean": "booleans",
    "category": "categories",
    "time": "times",
    "text": "texts",
}
_ROW_NAMES = re.compile(r"row[._ ]?names?|unnamed: 0", re.IGNORECASE)  # as R and pandas write them
_MOST_STRAYS = 20  # different texts among numbers or dates, that a config names as missing values
_MIN_TIMES = 20  # different ones: rows that come in their order do not so by chance
_SHARING = 0.1  # of the rows share their group with another row, at least
_MIN_GROUPS = 20  # with fewer, whole groups make splits of very different sizes


@dataclass
class Draft:
    """The draft of a config for a table, with the reasons.

    `table` holds the rows as they were read, and `typed` those with a target, read as `kinds` says. `strays`
    are the texts of a column that cannot be read, with their numbers of rows. `exclude` maps columns to the
    reason to leave them out, and `split` evident settings of the split to a column and the reason.
    `comparison` are lines about models that were compared. `rare` are columns of categories that the training
    rows alone would take for identifiers, and `declared` what would be taken for something else: categories
    among numbers or dates, quarters or months of years, and numbers with a unit. `listed`: the config lists
    the features, as the time that splits the rows would not be one otherwise.
    """

    table: Table
    typed: Table
    kinds: Mapping[str, ColumnKind]
    path: str
    targets: Sequence[str]
    task: str
    type: str = "csv"
    params: dict[str, Any] = field(default_factory=dict)
    features: list[str] = field(default_factory=list)
    exclude: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    split: dict[str, tuple[str, str]] = field(default_factory=dict)
    comparison: list[str] = field(default_factory=list)
    rare: list[str] = field(default_factory=list)
    strays: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    declared: Mapping[str, ColumnConfig] = field(default_factory=dict)
    listed: bool = False

    @property
    def shape(self) -> TableShape:
        """The shape of the table, on which the proposal of a model depends."""
        values = self.typed.columns[self.targets[0]]
        rows = int(len(values) * (1 - 2 * _share(len(values))))
        if len(self.targets) > 1:
            holds_values = task_of(self.task).scales_target
            return TableShape(rows, len(self.features), several="values" if holds_values else "labels")
        labels = task_of(self.task).labels(values)
        if labels is None:
            return TableShape(rows, len(self.features))
        counts = np.bincount(class_indices(values, labels), minlength=len(labels))
        return TableShape(rows, len(self.features), len(labels), float(counts.min() / counts.sum()))

    def drop_split(self) -> None:
        """Turn the settings of the split into remarks: the rows cannot be split so."""
        for key, (column, why) in self.split.items():
            self.remarks.append(_hint(key, column, why))
        self.split, self.listed = {}, False

    def keep_categories(self, train: Ids) -> None:
        """Note the categories that would be left out in training, which judges the training rows alone.

        Args:
            train: The positions of the training rows in `table`.
        """
        numbers = self.typed.numbers
        rows = np.flatnonzero(np.isin(np.arange(len(self.typed)) if numbers is None else numbers, train))
        config = DataConfig(path=self.path, target=list(self.targets))
        names = [name for name in self.features if self.kinds[name].kind == "category"]
        judged = judge(self.typed, names, config, rows).kinds
        self.rare = [name for name in names if judged[name].kind == "identifier"]

    def summary(self) -> str:
        """Return one line that says what was read."""
        counts = Counter(self.kinds[name].kind for name in self.features)
        kinds = listed(f"{count:,} {kind if count == 1 else _WORDS[kind]}" for kind, count in counts.items())
        left = f"; left out: {listed(map(_one_line, self.exclude))}" if self.exclude else ""
        return f"read {self.path}: {len(self.table):,} rows; to learn from: {kinds}{left}"

    def text(self, model: str | None = None) -> str:
        """Return the config, with comments.

        Args:
            model: The value of `model.type`; None for the best one by the libraries that are installed.
        """
        return "\n".join(_lines(self, model or default_model(self.shape))) + "\n"


def draft_config(
    path: Path | str, target: str | Sequence[str], options: Mapping[str, Any] | None = None
) -> Draft:
    """Return what a config for a table in a file says.

    Args:
        path: The file, or its URL; or a folder of files.
        target: The column to predict; several in a sequence, or divided by commas.
        options: Options of the reader; default: what the bytes tell.

    Raises:
        DataError: The file cannot be read or trained on, or has no such target; names the nearest column.
    """
    path = str(path)
    table, kind_of_file, params = read_for_draft(path, options or {})
    targets = _targets(table, target)
    names = [name for name in table.columns if name not in targets]
    if not names:
        raise DataError(
            f"{table.source}: no usable feature column: {listed(map(repr, targets))} is the only one"
        )
    config = DataConfig(path=path, target=targets if len(targets) > 1 else targets[0], missing_target="drop")
    config = _with_declared(table, [*targets, *names], config)
    strays: dict[str, Mapping[str, int]] = {}
    labelled = table
    for name in targets:
        config = _without_strays(
            labelled, {name: infer_target(labelled, _alone(config, name))}, config, strays
        )
        kind = infer_target(labelled, _alone(config, name))
        labelled, _ = rows_with_target(typed(labelled, {name: kind}), name)
    task, doubts = _task(labelled, config)
    config = _without_strays(labelled, infer(labelled, names, config).kinds, config, strays)
    inference = infer(labelled, names, config)
    draft = Draft(table, typed(labelled, inference.kinds), inference.kinds, path, targets, task)
    draft.type, draft.params = kind_of_file, params
    draft.strays, draft.declared = strays, config.columns
    draft.remarks = [*table.remarks, *doubts]
    draft.remarks += [line for line in inference.warnings if line not in inference.excluded]
    odd = odd_spellings(labelled, {**inference.kinds, **dict.fromkeys(targets, ColumnKind("category"))})
    draft.remarks += [*odd, *row_of_sums(table)]
    _choose_columns(draft)
    _choose_split(draft)
    draft.exclude |= dict.fromkeys(table.unread, "its cells hold lists or structures, which are no features")
    return draft


def columns_of(path: Path | str, options: Mapping[str, Any] | None = None) -> str:
    """Return the names of the columns of a table in a file, in one line for a message."""
    return listed((_one_line(name) for name in read_for_draft(str(path), options or {}).table.columns), 12)


def _task(table: Table, config: DataConfig) -> tuple[str, list[str]]:
    """Return the task and warnings as `inspect` does, but take counts for amounts."""
    task, doubts = inspect(table, config)
    if len(config.targets) > 1:
        return task, doubts
    task, why = unless_counts(task, table.columns[config.targets[0]])
    if why is None:
        return task, doubts
    return task, [
        f"whole numbers are taken for amounts, as {why}; set `task: classification` if they are classes"
    ]


def _targets(table: Table, target: str | Sequence[str]) -> list[str]:
    """Return the columns to predict.

    Raises:
        DataError: There is no such column.
    """
    if isinstance(target, str):
        target = [target] if target in table.columns else [name.strip() for name in target.split(",")]
    for name in target:
        table.column(name, "--target")
    return list(dict.fromkeys(target))


def _alone(config: DataConfig, target: str) -> DataConfig:
    return config.model_copy(update={"target": target})


def _without_strays(
    table: Table, kinds: Mapping[str, ColumnKind], config: DataConfig, strays: dict[str, Mapping[str, int]]
) -> DataConfig:
    """Return the config with the texts that cannot be read as missing values; add them to `strays`.

    Of many different ones, the column holds categories instead.
    """
    found = {name: texts for name, kind in kinds.items() if (texts := stray_texts(table, name, kind))}
    few = {name: texts for name, texts in found.items() if len(texts) <= _MOST_STRAYS}
    strays |= few
    absent: dict[str, Any] = {name: list(texts) for name, texts in strays.items()}
    categories = {name: ColumnConfig(type="category") for name in found if name not in few}
    columns = {**config.columns, **categories}
    return config.model_copy(update={"missing_values": absent, "columns": columns})


def _with_declared(table: Table, names: Sequence[str], config: DataConfig) -> DataConfig:
    """Return the config with what training would not read so: dates of quarters or months, and units."""
    dates = [name for name in names if name not in config.targets and holds_periods(table.columns[name])]
    numbers = [name for name in names if has_unit(table.columns[name])]
    columns = dict.fromkeys(dates, ColumnConfig(type="date"))
    columns |= dict.fromkeys(numbers, ColumnConfig(type="number"))
    return config.model_copy(update={"columns": columns})


def _choose_columns(draft: Draft) -> None:
    """Divide the columns into those to learn from and those to leave out, with the reason."""
    names: list[str] = []
    for name, kind in draft.kinds.items():
        values = draft.typed.columns[name]
        if not kind.is_feature:
            draft.exclude[name] = f"{kind.kind}: {kind.reason}"
        elif _names_rows(draft, name):
            names.append(name)
        elif values.dtype.kind == "f" and np.isinf(values).any():
            draft.exclude[name] = "has infinite values"
        elif values.dtype.kind == "f" and np.fmax.reduce(np.abs(values)) > np.finfo(np.float32).max:
            draft.exclude[name] = "has values too large for float32"
        else:
            draft.features.append(name)
    if draft.features:
        draft.exclude |= dict.fromkeys(names, "identifier: its name says that it names the rows")
    draft.features = draft.features or names
    if not draft.features:
        reasons = listed(f"{name}: {why}" for name, why in draft.exclude.items())
        raise DataError(f"{draft.table.source}: no usable feature column ({reasons})")


def _names_rows(draft: Draft, name: str) -> bool:
    """Return whether a column is called as R and pandas call the names of rows, or has no name at all."""
    if draft.kinds[name].kind not in ("number", "category"):
        return False
    is_nameless = name == "column 1" and "column 2" not in draft.table.columns
    return is_nameless or _ROW_NAMES.fullmatch(name) is not None


def _choose_split(draft: Draft) -> None:
    """Decide what rows are split by: time or groups where that is evident, else remarks."""
    for key, column, why, is_evident in [*_times(draft), *_groups(draft)]:
        if is_evident and not draft.split:  # time and group cannot be combined
            draft.split[key] = (column, why)
        else:
            draft.remarks.append(_hint(key, column, why))
    split = [column for column, _ in draft.split.values()]
    left = [name for name in draft.features if name not in split]
    if not left and "time" not in draft.split:
        draft.drop_split()
        return
    if "time" in draft.split:  # its parts, such as the month, may tell much
        left = [name for name in draft.typed.columns if name in {*left, *split}]
        draft.listed = len(left) > 1
    draft.features = left
    draft.exclude = {name: why for name, why in draft.exclude.items() if name not in split}


def _hint(key: str, column: str, why: str) -> str:
    return f"{why}: to split by it, set `{key}: {inline(column)}` under split"


def _times(draft: Draft) -> Iterator[tuple[str, str, str, bool]]:
    """Yield the columns of times; it is evident to split by one that rises, or falls, from row to row."""
    for name, values in draft.typed.columns.items():
        if name in draft.targets or kind_of(values) != "time" or missing(values).any():
            continue
        later, earlier = values[1:], values[:-1]
        orders = {"": (later >= earlier).all(), ", the newest first": (later <= earlier).all()}
        order = next((words for words, is_so in orders.items() if is_so), None)
        ordered = order is not None and len(np.unique(values)) >= min(_MIN_TIMES, len(values) // 2)
        why = f"in order of {_one_line(name)}{order}" if ordered else f"dated by {_one_line(name)}"
        yield "time", name, f"rows are {why}", ordered


def _groups(draft: Draft) -> Iterator[tuple[str, str, str, bool]]:
    """Yield columns whose names say that they group rows; identifiers of many groups are evident."""
    for name in [*draft.features, *draft.exclude]:
        words = re.split(r"[\W_]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower())
        values = draft.typed.columns[name]
        rows = Counter(values.tolist()).values()
        sharing = sum(count for count in rows if count > 1)
        is_one_word = any(word == f"{group}id" for word in words for group in _GROUPS)  # customerid
        is_named, is_id = is_one_word or any(map(_GROUPS.__contains__, words)), is_one_word or "id" in words
        if sharing < _SHARING * len(values) or not (is_named or is_id):
            continue
        is_evident = is_named and len(rows) >= _MIN_GROUPS and is_id and not missing(values).any()
        why = "each with several rows" if 2 * len(rows) <= len(values) else f"shared by {sharing} of the rows"
        yield "group", name, f"{len(rows)} different {_one_line(name)}, {why}", is_evident


def _lines(draft: Draft, model: str) -> Iterator[str]:
    rows = len(draft.table)
    yield f"# Written by `trainwright init` for {rows} rows and {len(draft.table.columns)} columns."
    path = PurePath(draft.path)
    stem = PurePath(path.stem).stem if path.suffix.lower() in COMPRESSIONS else path.stem
    if name := re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("._-"):
        yield f"experiment: {{name: {inline(name)}}}"
    yield "data:"
    yield f"  type: {draft.type}"
    yield f"  path: {inline(draft.path)}"
    if draft.params:
        yield "  params:"
        yield from (
            f"    {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in draft.params.items()
        )
    yield f"  target: {inline(draft.targets[0] if len(draft.targets) == 1 else list(draft.targets))}"
    yield f"  task: {draft.task}  # {_why_task(draft)}"
    if without := rows - len(draft.typed):
        yield f"  missing_target: drop  # {without} rows have none"
    yield f"  # to learn from: {_columns(draft)}"
    if draft.listed:
        time = _one_line(draft.split["time"][0])
        yield f"  features: {inline(draft.features)}  # the parts of {time}, such as the month, among them"
    if draft.exclude:
        yield "  exclude:"
        yield from (f"    - {inline(name)}  # {reason}" for name, reason in draft.exclude.items())
    yield from _declared(draft, model)
    yield from _strays(draft)
    yield from _preparation(draft, model)
    yield from (f"  # {_one_line(remark)}" for remark in draft.remarks)
    yield from _split(draft)
    yield from (f"# {line}" for line in draft.comparison)
    yield from _proposal(model, draft.shape)


def _proposal(model: str, shape: TableShape) -> Iterator[str]:
    """Yield the lines of the proposal, with the reason in a comment where there is one."""
    why = reasons(model, shape)
    for line in emit(sections(model, shape)).splitlines():
        reason = why.get(line.strip().partition(":")[0])
        yield line if reason is None else f"{line}  # {reason}"


def _declared(draft: Draft, model: str) -> Iterator[str]:
    """Yield the columns whose kind or encoding must be said: categories with many values.

    Trees split off a category with few rows as easily as any other, and learn them by heart, unless their
    framework encodes categories by the target itself.
    """
    framework = _framework(model)
    takes_codes = _defaults(model).get("data.encode") == "category" and not (
        framework is not None and framework.capabilities.target_encoding
    )
    lines = []
    for name, column in draft.declared.items():
        if column.type != "category":
            first = next(text for text in draft.table.columns[name] if text is not None)
            lines.append(f"    {inline(name)}: {column.type}  # such as {_one_line(first)}")
    for name, kind in draft.kinds.items():
        if name not in draft.features or kind.kind != "category":
            continue
        count = len(set(draft.typed.columns[name].tolist()) - {None})
        if takes_codes and count > MAX_ONEHOT:
            lines.append(f"    {inline(name)}: {{type: category, encode: target}}  # {count:,} different")
        elif name in draft.rare or name in draft.declared:
            lines.append(f"    {inline(name)}: category  # {count:,} different")
    yield from ["  columns:", *lines] if lines else []


def _strays(draft: Draft) -> Iterator[str]:
    """Yield the texts that are taken for missing values."""
    if draft.strays:
        yield "  missing_values:"
    for name, texts in draft.strays.items():
        kind = draft.kinds[name].kind if name in draft.kinds else "number"
        rows = f"{sum(texts.values()):,} rows"
        yield f"    {inline(name)}: {inline(list(texts))}  # no {_WORDS[kind]}, in {rows}"


def _framework(model: str) -> type[Framework] | None:
    """Return the framework that has a model of this short name, or None."""
    name = plugins.framework_of(model)
    return None if name is None else plugins.adapter("framework", name)


def _defaults(model: str) -> Mapping[str, Any]:
    """Return the defaults of a model's framework, by dotted key of the config."""
    framework = _framework(model)
    return {} if framework is None else framework.defaults(model)


def _preparation(draft: Draft, model: str) -> Iterator[str]:
    """Yield how missing values are filled, where the model does not take them."""
    columns = {name: draft.typed.columns[name] for name in draft.features}
    gaps = {name: count for name, values in columns.items() if (count := int(missing(values).sum()))}
    if not gaps:
        return
    counts = listed(f"{_one_line(name)} {count}" for name, count in gaps.items())
    if _defaults(model).get("data.impute") == "keep":
        yield f"  # missing values, which the model takes as they are: {counts}"
    else:
        yield "  impute: median"
        yield f"  # missing values, filled with the median or the commonest category: {counts}"


def _split(draft: Draft) -> Iterator[str]:
    share = _share(len(draft.typed))
    yield "  split:"
    yield from (f"    {key}: {inline(column)}  # {why}" for key, (column, why) in draft.split.items())
    yield f"    val: {share}"
    yield f"    test: {share}  # the rest trains"


def _share(rows: int) -> float:
    """Return the share of the rows to validate, and to test: larger where a tenth is only a few rows."""
    return 0.1 if rows >= 1000 else 0.15 if rows >= 50 else 0.2


def _one_line(text: str) -> str:
    """Return a text of the data as a comment, or a terminal, may show it: without control characters."""
    return "".join(
        char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in " ".join(text.split())
    )


def _columns(draft: Draft) -> str:
    kinds: dict[str, list[str]] = {}
    for name in draft.features:
        kinds.setdefault(draft.kinds[name].kind, []).append(_one_line(name))
    return "; ".join(f"{_WORDS[kind]}: {listed(names, 12)}" for kind, names in kinds.items())


def _why_task(draft: Draft) -> str:
    if len(draft.targets) > 1:
        return f"{len(draft.targets)} columns"
    values = draft.typed.columns[draft.targets[0]]
    labels = task_of(draft.task).labels(values)
    if labels is None:
        low, high = (number(end.item(), zeros=False) for end in (values.min(), values.max()))
        return f"values from {low} to {high}"
    counts = np.bincount(class_indices(values, labels))
    text = listed(f"{label} ({n} rows)" for label, n in zip(labels, counts.tolist(), strict=True))
    if len(labels) == 2 and task_of(draft.task).has_classes():
        positive = positive_of_two(None, labels, lambda: counts)
        text += f"; positive: {in_words(labels[positive.code], positive.reason)}"
    return f"{len(labels)} classes: {_one_line(text)}"
