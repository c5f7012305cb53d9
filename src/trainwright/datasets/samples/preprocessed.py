"""Data in preprocessed arrays: targets are encoded and rows are split; features are left unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from trainwright.config.sampling import sampling_column
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import DataBundle, KnownSplit, Split
from trainwright.datasets.samples import weights
from trainwright.datasets.samples.arrays import Arrays
from trainwright.datasets.samples.sampling import sampling_weights
from trainwright.datasets.tables import checks, tabular
from trainwright.datasets.tables.splitting import fractions, split_rows
from trainwright.datasets.tables.table import Table, tidy
from trainwright.datasets.tables.target import Target, beyond_float64, inspect, untargeted
from trainwright.errors import DataError
from trainwright.numerals import listed
from trainwright.plugins import task_of
from trainwright.tasks.support.columns import infer_task_of_matrix
from trainwright.types import (
    INPUT_IDS,
    SPLITS,
    TARGET,
    WEIGHT,
    Array,
    ArraySpec,
    Batch,
    DataInfo,
    FeatureForm,
    Ids,
    SplitName,
)

Pair = tuple[Batch, Array]  # the named inputs and the raw targets, (rows, ...) each


class _Targets(NamedTuple):
    """Encoded targets by split; `labels` are the classes, None for regression."""

    task: str
    labels: list[Any] | None
    by_split: Mapping[SplitName, Array]
    warnings: list[str]


def in_memory(inputs: Batch, ids: Ids | None, targets: Array, target: str = TARGET) -> Split:
    """Return a split with copies of the rows `ids` (None for all).

    `targets` belong to these rows; of data without a target they are (rows, 0).
    """
    rows = inputs if ids is None else {name: array[ids] for name, array in inputs.items()}
    return Arrays({**rows, target: targets} if targets.shape[1:] != (0,) else rows)


def from_arrays(
    pairs: Mapping[SplitName, Pair],
    config: DataConfig,
    form: FeatureForm,
    serve: Callable[[Batch, Ids | None, Array], Split] | None = None,
    sample_weights: Mapping[SplitName, Array] | None = None,
    columns: Mapping[str, Array] | None = None,
) -> DataBundle:
    """Build the data of a run from preprocessed arrays.

    Args:
        pairs: Inputs (rows, ...) and targets (rows,) or (rows, outputs), by split.
        config: The data section.
        form: The form in which the framework wants targets.
        serve: Makes a split from inputs, ids and targets; default: `in_memory`.
        sample_weights: The weights of the samples, (rows,) float64, by split; None or empty: all count the
            same.
        columns: Columns of the training source by name: those that `data.split` and `data.sampling` use.

    Raises:
        DataError: Targets are missing or of the wrong kind, or a split would be empty.
    """
    targets = _several(pairs, config) if _are_several(pairs) else _single(pairs, config, form)
    inputs, own = pairs["train"][0], targets.by_split["train"]
    serve = serve or partial(in_memory, target=task_of(targets.task).target)
    table = Table({config.target_name: own, **(columns or {})}, "the train rows")
    codes = None if targets.labels is None or own.ndim > 1 else own
    rows = split_rows(
        table, config.split, *fractions(config.split, tabular.provided_splits(pairs.keys(), config)), codes
    )
    if codes is not None and targets.labels is not None:
        checks.refuse_untrained_classes(table, rows, codes, targets.labels, config)
    _refuse_shapes(pairs)
    splits = {name: serve(inputs, ids, own[ids]) for name, ids in rows.items()}
    splits |= {name: serve(pairs[name][0], None, targets.by_split[name]) for name in pairs if name != "train"}
    if sample_weights:
        splits = _with_weights(splits, weights.of_splits(sample_weights, rows, config.weight or WEIGHT))
    held = {name: split for name, split in splits.items() if isinstance(split, Arrays)}
    info = _info(pairs, splits["train"], targets, config)
    warnings = list(targets.warnings)
    if config.standardize:
        warnings += [line for array in inputs.values() for line in checks.far_from_standardized(array)]
    info = tabular.scaled(info, own[rows["train"]], config, form)
    warnings += tabular.rounded_targets(info, own[rows["train"]], form)
    repeated = checks.repeated_rows(held, sources=pairs) if held else []
    return DataBundle(
        info=info,
        splits={name: splits[name] for name in SPLITS if name in splits},
        rows=rows if len(pairs) == 1 else {},
        warnings=[*warnings, *(one.warning for one in repeated)],
        sampling=sampling_weights(table, rows["train"], config),
        repeated=repeated,
    )


def _are_several(pairs: Mapping[SplitName, Pair]) -> bool:
    """Return whether each row has several targets."""
    targets = pairs["train"][1]
    return targets.ndim > 1 and targets.shape[1:] != (1,)


def _info(pairs: Mapping[SplitName, Pair], train: Split, targets: _Targets, config: DataConfig) -> DataInfo:
    """Return what the data are.

    Args:
        pairs: The inputs and targets that were given.
        train: The training split.
        targets: The encoded targets.
        config: The data section.

    Raises:
        DataError: There are not as many targets as the config names.
    """
    own, labels = targets.by_split["train"], targets.labels
    outputs = len(labels) if labels else (own.shape[1] if _are_several(pairs) else 1)
    sample = train.take(np.zeros(1, np.int64))
    inputs = {name: ArraySpec(sample[name].shape[1:], str(sample[name].dtype)) for name in pairs["train"][0]}
    if not config.targets:
        outputs = int(np.prod(next(iter(inputs.values())).shape))
    tokens = max(
        (int(part[INPUT_IDS].max()) + 1 for part, _ in pairs.values() if INPUT_IDS in part), default=0
    )
    shape = own.shape[1:] if task_of(targets.task).gives_masks else ()
    info = DataInfo(
        targets.task,
        inputs,
        outputs,
        labels,
        target=config.target_name,
        target_shape=tuple(map(int, shape)),
        vocab_size=tokens,
    )
    return _named_outputs(info, config)


def refuse_column_settings(config: DataConfig, what: str, advice: str) -> None:
    """Refuse settings that need named columns, for data that have none.

    The defaults of models that accept missing values and categories are allowed: `impute: keep` and `encode:
    category`. `target` is allowed, as it names the target in tables and reports.

    Args:
        config: The data section.
        what: The data, in messages: "these arrays are".
        advice: What to do.

    Raises:
        DataError: Such a setting is given.
    """
    given = {
        "features": config.features is not None,
        "exclude": bool(config.exclude),
        "weight": config.weight is not None,
        "sampling.weight": sampling_column(config.sampling) is not None,
        "impute": config.impute not in (None, "keep"),
        "encode": config.encode in ("ordinal", "target", "frequency"),
        "split.group": config.split.group is not None,
        "split.time": config.split.time is not None,
        "split.key": config.split.key is not None,
        "split.by": config.split.by == "hash",
    }
    for name, is_given in given.items():
        if is_given:
            columns = (
                "named columns" if name in ("features", "exclude", "impute", "encode") else "a named column"
            )
            raise DataError(f"data.{name} needs {columns}; {what} preprocessed already. {advice}")


def _named_outputs(info: DataInfo, config: DataConfig) -> DataInfo:
    """Return the description with the names of several targets, if the config names them.

    Raises:
        DataError: There are not as many as the config names.
    """
    if len(config.targets) < 2:
        return info
    if info.outputs != len(config.targets) or task_of(info.task).has_classes():
        raise DataError(
            f"data.target names {len(config.targets)} targets, but y has {info.outputs} "
            f"{task_of(info.task).noun}; give one name for each column of y"
        )
    if task_of(info.task).targets_are_labels:
        return replace(info, classes=list(config.targets))
    return replace(info, target_names=tuple(config.targets))


def _with_weights(
    splits: Mapping[SplitName, Split], by_split: Mapping[SplitName, Array]
) -> dict[SplitName, Split]:
    """Return the splits with the weights of their rows.

    Raises:
        DataError: The splits are not in memory.
    """
    weighted: dict[SplitName, Split] = {}
    for name, split in splits.items():
        if isinstance(split, Arrays):
            weighted[name] = Arrays({**split.arrays, WEIGHT: by_split[name]})
        elif isinstance(split, KnownSplit):
            weighted[name] = split.with_known({**split.known, WEIGHT: by_split[name]})
        else:
            raise DataError(f"data.weight: the {name} rows are not in memory; leave it out")
    return weighted


def _single(pairs: Mapping[SplitName, Pair], config: DataConfig, form: FeatureForm) -> _Targets:
    tables = {
        name: Table({config.target_name: tidy(targets.reshape(-1), config.target_name)}, f"the {name} rows")
        for name, (_, targets) in pairs.items()
    }
    task, warnings = inspect(tables["train"], config, form.dtype)
    labels = task_of(task).labels(tables["train"].columns[config.target_name])
    target = Target(config.target_name, task, labels)
    encoded = {name: target.encode(table, form.dtype) for name, table in tables.items()}
    return _Targets(task, labels, encoded, warnings)


def _several(pairs: Mapping[SplitName, Pair], config: DataConfig) -> _Targets:
    task, warnings = config.task if config.targets else untargeted(config), list[str]()
    for name, (_, targets) in pairs.items():
        is_text = targets.dtype.kind in "UO" and task != "auto" and task_of(task).accepts(targets)
        if not is_text and (targets.dtype.kind not in "biuf" or not np.isfinite(targets).all()):
            raise DataError(f"the {name} targets have several columns, which must hold finite numbers")
        if (rounded := beyond_float64(targets.reshape(-1))).any():
            raise DataError(
                f"the {name} targets hold {targets.reshape(-1)[rounded][0]}, which float64 cannot hold "
                "exactly; subtract a constant from the column"
            )
    if task == "auto":
        task, warnings = infer_task_of_matrix(pairs["train"][1], "the targets")
    for name, (_, targets) in pairs.items():
        if not task_of(task).accepts(targets):
            raise DataError(
                f"the {name} targets have {' x '.join(map(str, targets.shape[1:]))} columns of "
                f"{targets.dtype}, but the task is {task}; give {task_of(task).wants}, or data.task: "
                "regression"
            )
    labels, encoded = task_of(task).encode_arrays(
        {name: targets for name, (_, targets) in pairs.items()}, config.ignore_index
    )
    return _Targets(task, labels, encoded, warnings)


def _refuse_shapes(pairs: Mapping[SplitName, Pair]) -> None:
    train = pairs["train"][0]
    for name, (inputs, _) in pairs.items():
        if inputs.keys() != train.keys():
            raise DataError(
                f"the {name} split has the arrays {listed(inputs)}, but the train split {listed(train)}"
            )
        for key, array in inputs.items():
            if array.shape[1:] != train[key].shape[1:]:
                raise DataError(
                    f"the {name} {key} have shape (rows, ...) = {array.shape}, but the train {key} "
                    f"{train[key].shape[1:]} a row"
                )
