"""Compare a model that was trained again on other data with its parent, on rows that neither learned from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from trainwright.config.schema import DataConfig
from trainwright.config.splits import SplitConfig
from trainwright.datasets.base import DataBundle, Split
from trainwright.datasets.images.preparation import ImagePreparation
from trainwright.datasets.images.split import ImageSplit
from trainwright.datasets.tables.key_forms import SharedKeys
from trainwright.datasets.tables.split_keys import hashes
from trainwright.datasets.tables.table import as_table
from trainwright.errors import InputError
from trainwright.evaluation.metrics import LOSS, EvaluationResult, adds_up, wanted_metrics
from trainwright.evaluation.significance import same_rows
from trainwright.inference.bad_rows import count_of, take
from trainwright.inference.predictor import Predictor
from trainwright.plugins import task_for
from trainwright.records.run_dir import RunDir
from trainwright.runs.data.versions import with_local_data
from trainwright.runs.split_predictions import other_question
from trainwright.types import SplitName

log = logging.getLogger("trainwright")
# Of each split that is compared: the parent's splits whose rows are left out of it.
_LEFT_OUT: Mapping[SplitName, Sequence[SplitName]] = {"test": ("train", "val"), "val": ("train",)}
_OF_ROWS = ("csv", "parquet", "jsonl", "excel", "npz", "requests", "text_table")  # data types
Read = Callable[[str], Any]


Seen = Mapping[SplitName, Any]  # the rows that a parent learned from, by split


def seen_by(parent: Predictor, split: SplitConfig) -> Seen:
    """Return the rows that a parent learned from.

    They need not be known where the splits of parent and child follow from the keys of the rows, so that no
    test row of one trains the other. The content of a row is no such key: with a column more, it is another.

    Args:
        parent: The parent, which is not trained on objects.
        split: The section `data.split` of the child.

    Raises:
        InputError: They are not what they were, or cannot be taken one by one.
        DataError: They cannot be read.
    """
    if _keys_decide(parent, split):
        return {}
    data = with_local_data(_data(parent))[0]
    if not _takes_rows(parent):
        raise InputError(
            f"run {parent.run.id} was trained on {data.type}, whose rows are not recognised by their "
            "content; split by the hash of a key (docs/splits.md)"
        )
    bundle = parent.load_data()
    names: tuple[SplitName, ...] = ("train", "val")
    _check_unchanged(parent.run, bundle, names)
    read: Read = cache(parent.files.read)
    found = {name: _rows(read, data, bundle, name) for name in names}
    return {name: rows for name, rows in found.items() if rows is not None}


def compare(parent: Predictor, child: Predictor, seen: Seen) -> dict[str, Any]:
    """Return both models side by side, on the validation and test rows of the child that the parent may see.

    These are the test rows that the parent neither trained nor validated on, and the validation rows that it
    did not train on.

    Returns:
        The `metrics` of `parent` and `child`, and of their `differences` with 95% intervals, where the metric
        has a test; and the numbers of `rows` that were compared, and that were `left_out`.

    Raises:
        InputError: The models answer other questions, or there are no such rows.
        DataError: A model cannot predict the rows.
    """
    if reason := other_question(parent.run.require_manifest(), child.run.require_manifest()):
        raise InputError(f"they cannot be compared: {reason}")
    if _keys_decide(parent, _data(child).split):
        _check_keys(parent.run, child.run)
    bundle, data = child.load_data(), with_local_data(_data(child))[0]
    _check_unchanged(child.run, bundle, [*_LEFT_OUT])
    readers: list[Read] = [cache(one.files.read) for one in (parent, child)]
    takes_rows = _takes_rows(parent)
    table: dict[str, Any] = {"parent": {"run_id": parent.run.id}, "child": {"run_id": child.run.id}}
    table |= {"differences": {}, "rows": {}, "left_out": {}}
    for split in _LEFT_OUT:
        if split in bundle.splits and not takes_rows:
            samples = bundle.splits[split]
            table["rows"][split], table["left_out"][split] = len(samples), 0
            prepared = (_prepared(samples, parent), samples)
            pairs = zip((parent, child), prepared, strict=True)
            _add(table, child, [one.evaluate(split, samples=its) for one, its in pairs])
            continue
        both = [_rows(read, data, bundle, split) for read in readers]
        if split not in bundle.splits or both[0] is None:
            continue
        kept = np.flatnonzero(_unseen(both[0], seen, split))
        table["rows"][split], table["left_out"][split] = len(kept), count_of(both[0]) - len(kept)
        if table["left_out"][split]:
            _warn_of_seen(parent.run, split, table["left_out"][split], count_of(both[0]))
        if len(kept):
            results = [
                one.evaluate(split, take(rows, kept)) for one, rows in zip((parent, child), both, strict=True)
            ]
            _add(table, child, results)
    if not any(table["rows"].values()):
        raise InputError("they cannot be compared: there is no test or validation row that both may see")
    return table


def _keys_decide(parent: Predictor, split: SplitConfig) -> bool:
    """Return whether the keys of the rows decide their splits, in the same way as for the parent."""
    data = _data(parent)
    return split.key is not None and split == data.split and data.train_path is None


def _check_keys(parent: RunDir, child: RunDir) -> None:
    """Compare how keys are written that both runs have, and warn where they hardly share any.

    Raises:
        InputError: They are written differently, so that rows have changed their splits.
    """
    before, now = (run.require_manifest().data.keys for run in (parent, child))
    shared = SharedKeys.of(before, now)
    if shared.are_written_otherwise:
        raise InputError(
            f"{shared.changed} of {shared.there} keys of data.split that were looked at are written "
            f"differently than in the data of run {parent.id} (without leading zeros, say): rows have "
            "changed their splits, and it has learned from some of the test rows; write the keys as they were"
        )
    if shared.are_few:
        log.warning(
            "%d of %d keys of data.split that were looked at in the data of run %s are in the new data: "
            "unless these are of others (new customers, say), the keys are written differently, and it has "
            "learned from some of the test rows",
            shared.there,
            shared.expected,
            parent.id,
        )


def _takes_rows(predictor: Predictor) -> bool:
    """Return whether rows of other files can be taken one by one."""
    kind, preparation = _data(predictor).type, predictor.preparation
    return kind in _OF_ROWS and (preparation is not None or kind == "npz")


def _prepared(samples: Split, parent: Predictor) -> Split:
    """Return samples of the child's data as its parent takes them.

    Raises:
        InputError: It is not known how.
    """
    if isinstance(samples, ImageSplit) and isinstance(parent.preparation, ImagePreparation):
        return parent.preparation.samples(samples)
    if parent.preparation is not None:
        kind = _data(parent).type
        raise InputError(f"they cannot be compared: rows of {kind} cannot be taken one by one")
    return samples  # as they are


def _data(predictor: Predictor) -> DataConfig:
    data = predictor.config.data
    assert data is not None, "a retrained run has data"
    return data


def _check_unchanged(run: RunDir, bundle: DataBundle, splits: Iterable[SplitName]) -> None:
    manifest = run.require_manifest()
    for name in splits:
        if name in bundle.splits and bundle.splits[name].fingerprint() != manifest.split_sha256(name):
            raise InputError(
                f"the data of run {run.id} have changed, so it is not known which rows it was trained on; "
                "put them back, or split by the hash of a key (docs/splits.md)"
            )


def _rows(read: Read, data: DataConfig, bundle: DataBundle, split: SplitName) -> Any:
    """Return the rows of a split as they are in their file; None where it is not known which they are.

    Where validation or test rows were drawn from the training rows of several sources, those of `train` are
    all of them.
    """
    source = data.path or data.train_path
    own = {"train": source, "val": data.val_path, "test": data.test_path}[split]
    if split in bundle.rows:
        assert source is not None, "rows of one source have positions"
        return take(read(source), bundle.rows[split])
    return None if own is None else read(own)


def _unseen(rows: Any, seen: Seen, split: SplitName) -> Any:
    """Return a mask, (rows,) bool, of the rows that are not among those that the parent learned from."""
    mask = np.ones(count_of(rows), dtype=bool)
    for name in _LEFT_OUT[split]:
        if (others := seen.get(name)) is not None:
            shared = [column for column in rows if column in set(others)]
            known = set(_contents(others, shared))
            mask &= np.array([one not in known for one in _contents(rows, shared)], dtype=bool)
    return mask


def _contents(rows: Any, names: Sequence[str]) -> list[Hashable]:
    """Return what stands for the content of each row, in the columns or arrays that are named."""
    if isinstance(rows, Mapping):
        arrays = [np.asarray(rows[name]) for name in names]
        return [b"".join(array[row].tobytes() for array in arrays) for row in range(count_of(rows))]
    numbers = hashes(as_table(rows.loc[:, list(names)], lists=names))
    return [tuple(pair) for pair in numbers.tolist()]


def _warn_of_seen(parent: RunDir, split: SplitName, count: int, rows: int) -> None:
    log.warning(
        "%d of %d %s rows are left out of the comparison, as run %s has learned from them; with data.split: "
        "{by: hash} rows keep their splits (docs/splits.md)",
        count,
        rows,
        split,
        parent.id,
    )


def _add(table: dict[str, Any], child: Predictor, results: Sequence[EvaluationResult]) -> None:
    """Add the metrics of a split to the table, and their differences."""
    first, second = results
    for name, one in (("parent", first), ("child", second)):
        table[name] |= dict(one.metrics)
    task = task_for(child.info)
    finite = all(np.isfinite(one.outputs).all() for one in results)
    tested = {}
    for metric in wanted_metrics(child.config, child.info) if finite else ():
        if metric != LOSS and not adds_up(metric):
            found = same_rows(metric, first.scores(task), second.scores(task))
            tested[f"{first.split}_{found.metric}"] = found.to_json()
    for name in first.metrics:
        if name in second.metrics:
            difference = {"effect": second.metrics[name] - first.metrics[name]}
            table["differences"][name] = tested.get(name, difference)
