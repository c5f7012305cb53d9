"""Map-style datasets of the user: `len(dataset)`; `dataset[i]` is (features, target), or a mapping of arrays.

They are never read as a whole, so a run starts as fast with 10^8 items as with 100.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trainwright.config.schema import DataConfig
from trainwright.config.splits import SplitConfig
from trainwright.datasets.base import DataBundle, LoadRequest, Reading, Split
from trainwright.datasets.samples.array_names import refuse_causal
from trainwright.datasets.samples.corrupt import StoredSamples, without_corrupt
from trainwright.datasets.samples.custom import sample_function
from trainwright.datasets.samples.items import READ_THROUGH, Items, declared_fingerprint
from trainwright.datasets.samples.loaders import Collating
from trainwright.datasets.samples.sampling import balanced, item_weights
from trainwright.datasets.tables.table import kind_of, tidy
from trainwright.datasets.tables.tabular import rounded_targets
from trainwright.datasets.tables.target import untargeted
from trainwright.errors import DataError
from trainwright.numerals import listed
from trainwright.plugins import task_of
from trainwright.tasks.base import Task
from trainwright.tasks.support.columns import distinct_labels, infer_task_of_sample
from trainwright.tasks.support.masks import class_numbers
from trainwright.tasks.support.precision import offset_of
from trainwright.types import Array, ArraySpec, DataInfo, SplitName

_AT_ONCE = 64  # masks in memory
_NOT_PINNED = ", so its content cannot be pinned; give it a `fingerprint`, too"


def refuse_division(config: SplitConfig) -> None:
    """Refuse settings that would split a map-style dataset.

    Raises:
        DataError: A share other than 0, `stratify` or `folds` is set.
    """
    settings = [
        name for name in ("val", "test") if getattr(config, name) not in (0, getattr(SplitConfig(), name))
    ]
    settings += ["stratify"] if config.stratify else []
    settings += ["by"] if config.by == "hash" else []
    settings += [name for name in ("folds", "val_folds") if getattr(config, name) is not None]
    if settings:
        raise DataError(
            f"data.split.{settings[0]}: map-style datasets are not split; leave it out, and give a dataset "
            "for each split (torch.utils.data.random_split makes them)"
        )


def refuse_settings_of_tables(config: DataConfig) -> None:
    """Refuse settings that have no effect on the samples of shards, which are read as they are.

    Raises:
        DataError: Such a setting, or one that would split the samples, is given.
    """
    refuse_division(config.split)
    given = {
        "weight": config.weight is not None,
        "target_transform": config.target_transform is not None,
        "missing_values": bool(config.missing_values),
        "missing_target": config.missing_target != "error",
        "impute": config.impute not in (None, "keep"),
        "encode": config.encode not in ("auto", "category"),
        "columns": bool(config.columns),
    }
    if setting := next((name for name, is_given in given.items() if is_given), None):
        advice = "draw some more often by data.sampling" if setting == "weight" else "change them beforehand"
        raise DataError(
            f"data.{setting} is for rows in memory, and samples of shards are read one by one, as they are; "
            f"leave it out, and {advice}"
        )


def bundle(datasets: Mapping[SplitName, Any], config: DataConfig, request: LoadRequest) -> DataBundle:
    """Build the data of a run from one map-style dataset per split.

    Raises:
        DataError: A dataset is empty, its items are not (features, target), or its classes are unknown.
    """
    for name, dataset in datasets.items():
        if not len(dataset):
            raise DataError(f"the {name} dataset is empty: its length is 0")
    is_open = not config.targets or (config.task != "auto" and task_of(config.task).is_open)
    raw, collates = _items(datasets, config, is_open=is_open)
    whole = None if config.on_corrupt == "error" else without_corrupt(raw, datasets, request.settle)
    raw = raw if whole is None else dict(whole.items)
    sample, target = raw["train"].items([0])[0]
    if not is_open:
        refuse_causal(sample, target)
    targets = [one for _, one in raw["train"].items(raw["train"].sample().tolist())]
    task_name, warnings = _task(targets, config)
    task = task_of(task_name)
    for items in raw.values():
        items.notice_draws()
    classes, indices = _classes(task, raw, datasets["train"], target, config.ignore_index)
    unrepeatable = [  # this reads their content, which the splits below share
        name
        for name, items in raw.items()
        if not _vouches(datasets[name], collates[name]) and items.content is None
    ]
    pinned = [name for name, dataset in datasets.items() if declared_fingerprint(dataset) is not None]
    warnings += _warnings(raw, unrepeatable, pinned)
    splits: dict[SplitName, Split] = {
        split: items.of_task(task, classes, indices, config.ignore_index) for split, items in raw.items()
    }
    inputs = {key: ArraySpec(array.shape, str(array.dtype)) for key, array in sample.items()}
    if is_open:
        inputs = raw["train"].specs()
        target = np.empty(next(iter(inputs.values())).shape[:1])  # whose values a model of ours gives
    outputs = len(classes) if classes is not None else (target.shape[0] if target.ndim else 1)
    info = DataInfo(
        task_name,
        inputs,
        outputs,
        classes,
        target=config.target_name,
        target_shape=target.shape if task.gives_masks else (),
    )
    if task.scales_target and len({one.shape for one in targets}) == 1:
        sample_targets = np.stack(targets).astype(np.float64)
        if request.form.target == "centered":
            info = replace(info, target_offset=offset_of(sample_targets))
        warnings += rounded_targets(info, sample_targets, request.form)
    stored = [dataset for dataset in datasets.values() if isinstance(dataset, StoredSamples)]
    return DataBundle(
        skipped=[] if whole is None else whole.names,
        skips=None if whole is None else whole.skips,
        info=info,
        splits=splits,
        sampling=_sampling(raw["train"].of_task(task, classes, indices), datasets["train"], config),
        warnings=warnings,
        unrepeatable=_reason(unrepeatable),
        content_hashed=len(pinned) == len(datasets),
        code=[*datasets.values(), *collates.values()],
        files={shard: sha256 for one in stored for shard, sha256 in one.files.items()},
        shards_read=[shard for one in stored if not one.is_converted for shard in one.files],
    )


def _items(
    datasets: Mapping[SplitName, Any], config: DataConfig, *, is_open: bool
) -> tuple[dict[SplitName, Items], dict[SplitName, Any]]:
    """Return the samples of each split, and the function that makes their batches, if there is one."""
    named = None if config.collate is None else sample_function(config.collate, "data.collate")
    collates = {
        name: named or (dataset.collate if isinstance(dataset, Collating) else None)
        for name, dataset in datasets.items()
    }
    items = {
        name: Items(dataset, reading_of(config, name), config.target_name, collates[name], is_open=is_open)
        for name, dataset in datasets.items()
    }
    return items, collates


def _sampling(train: Items, dataset: Any, config: DataConfig) -> Array | None:
    """Return the sampling weights of the training samples, (rows,); None if each comes once in an epoch.

    Raises:
        DataError: There are none, or the classes of all samples would have to be read.
    """
    if config.sampling is None:
        return None
    if config.sampling.column is not None:
        return item_weights(dataset, config.sampling.column)[train.at(np.arange(len(train)))]
    if not train.has_classes:
        return None  # which is refused for data of any kind
    return balanced(*train.codes("data.sampling"))


def reading_of(config: DataConfig, split: SplitName) -> Reading:
    """Return how the samples of a split are read."""
    return Reading(f"the {split} dataset", config.workers, config.prefetch, config.timeout)


def _task(targets: Sequence[Array], config: DataConfig) -> tuple[str, list[str]]:
    """Return the task that a sample of the targets suggests, or the config names, and warnings."""
    if not config.targets:
        return untargeted(config), []
    sample = np.stack(targets) if len({target.shape for target in targets}) == 1 else targets[0][None]
    if config.task == "auto":
        return infer_task_of_sample(sample, "the targets")
    task = task_of(config.task)
    if not task.accepts(sample):
        raise DataError(
            f"the targets are {sample.dtype} of shape {targets[0].shape}, but the task is {task.name}; "
            f"give {task.wants}"
        )
    return task.name, []


def _inner_classes(train: Items, dataset: Any, task: type[Task]) -> list[Any] | None:
    """Return the classes of the parts of rows: those that the dataset declares, or that its targets have."""
    if (declared := _declared(dataset)) is not None:
        return declared
    _refuse_to_read(train, dataset)
    return task.inner_labels(train.targets())


def _declaration(dataset: Any) -> Any:
    """Return what a dataset declares of its classes: their labels or their number; None if nothing."""
    classes = getattr(dataset, "classes", None)
    return getattr(dataset, "num_classes", None) if classes is None else classes


def _declared(dataset: Any) -> list[Any] | None:
    """Return the classes that a dataset declares, if it does."""
    declared = _declaration(dataset)
    if declared is None:
        return None
    return list(range(declared)) if isinstance(declared, int) else list(declared)


def _refuse_to_read(train: Items, dataset: Any) -> None:
    """Refuse a dataset that is too large to read for its classes.

    Raises:
        DataError: It is too large, and has no attribute `targets`.
    """
    if len(train) > READ_THROUGH and getattr(dataset, "targets", None) is None:
        raise DataError(
            f"the train dataset has {len(train)} items, too many to read all for their classes; "
            "give it an attribute `classes` (the labels in order) or `num_classes`"
        )


def _classes(
    task: type[Task], raw: Mapping[SplitName, Items], dataset: Any, target: Array, ignored: int | None
) -> tuple[list[Any] | None, bool]:
    """Return the classes of a task, None where it has none; and whether targets are indices of them.

    Args:
        task: The task.
        raw: The splits.
        dataset: The training dataset.
        target: The target of one of its items.
        ignored: The number of pixels of masks that do not count.
    """
    if task.gives_masks:
        return _classes_of_masks(raw, dataset, ignored), False
    if task.has_inner_labels:
        return _inner_classes(raw["train"], dataset, task), False
    if task.has_classes():
        return _classes_of_samples(raw, dataset, target)
    return None, False


def _classes_of_samples(
    raw: Mapping[SplitName, Items], dataset: Any, target: Array
) -> tuple[list[Any], bool]:
    """Return the labels, and whether targets are indices of them."""
    if (declared := _declared(dataset)) is not None:
        return declared, isinstance(_declaration(dataset), int) or target.dtype.kind in "iub"
    _refuse_to_read(raw["train"], dataset)
    classes = _labels(raw["train"])
    for name, items in raw.items():
        if name != "train" and len(items) <= READ_THROUGH and (unknown := set(_labels(items)) - set(classes)):
            raise DataError(
                f"the {name} dataset has class {listed(map(repr, sorted(unknown)))}, which no "
                "training item has; give the train dataset such items, or leave these out"
            )
    return classes, False


def _classes_of_masks(raw: Mapping[SplitName, Items], dataset: Any, ignored: int | None) -> list[Any]:
    """Return the classes 0, 1 ... of masks: those that the training data set declares, or that masks hold."""
    if (declared := _declared(dataset)) is not None:
        return declared
    _refuse_to_read(raw["train"], dataset)
    highest = 1
    for items in raw.values():
        for start in range(0, len(items), _AT_ONCE):  # so that few masks are in memory
            for _, mask in items.items(range(start, min(start + _AT_ONCE, len(items)))):
                numbers = class_numbers(mask)
                highest = max(highest, int(numbers[numbers != ignored].max(initial=0)))
    return list(range(highest + 1))


def _labels(items: Items) -> list[Any]:
    targets = items.targets()
    values = tidy(targets, "target")
    return distinct_labels(values.astype(np.int64) if kind_of(values) == "boolean" else values)


def _vouches(dataset: Any, collate: Any) -> bool:
    """Return whether the fingerprint of a dataset covers all that makes its items.

    That of shards covers no function of the user's.
    """
    is_foreign = isinstance(dataset, StoredSamples) and not dataset.is_stored
    return declared_fingerprint(dataset) is not None and collate is None and not is_foreign


def _reason(unrepeatable: Sequence[SplitName]) -> str:
    """Return why samples cannot be read again as they were; empty if they can."""
    if not unrepeatable:
        return ""
    return f"the {unrepeatable[0]} dataset returns different items when it is read again"


def _warnings(
    raw: Mapping[SplitName, Items], unrepeatable: Sequence[SplitName], pinned: Sequence[SplitName]
) -> list[str]:
    warnings = [
        f"{_reason([name])}{'' if name in pinned else _NOT_PINNED}; draw from the global generators of "
        "random, numpy or torch, or derive randomness from the item's position, to make runs repeatable"
        for name in unrepeatable
    ]
    train = raw["train"].content
    warnings += [
        f"the {name} dataset holds the same items as the train dataset, which flatters the metrics"
        for name, items in raw.items()
        if name != "train" and train is not None and (len(items), items.content) == (len(raw["train"]), train)
    ]
    if "val" not in raw:
        warnings.append(
            "there is no validation dataset, so there are no validation metrics, and no best model: a "
            "map-style data set is not split by data.split; give data=torch.utils.data.random_split(dataset, "
            "[0.8, 0.1, 0.1], torch.Generator().manual_seed(0)), or "
            'data={"train": ..., "val": ...}, or let the class take `split`'
        )
    return warnings
