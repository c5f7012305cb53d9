"""Read what people write by habit from other tools as our keys and values; `synonyms.py` has the tables.

Each translation is noted. Two spellings of one key are a problem.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from pathlib import PurePath

from pydantic import BaseModel

from trainwright.config import synonyms
from trainwright.config.checks import FILE_TYPES
from trainwright.config.image_habits import read_transforms
from trainwright.config.schedules import OwnSchedule
from trainwright.config.schema import DataConfig, RunConfig, TrackerConfig, TrainingConfig
from trainwright.config.search_habits import read_search
from trainwright.config.synonyms import fold
from trainwright.config.tree import Node, Problems, find, find_value, join, mapping, put, take
from trainwright.config.words import literal, without_null

_AMBIGUOUS = ("timeout",)  # keys that other tools have with another meaning
ANOTHER = "another spelling of"
# Sections in which a key of another section, or its synonym, can mean nothing else.
OPEN = ("", "training", "evaluation", "checkpoint", "logging", "experiment", "distributed")
LISTS = (
    *("evaluation.metrics", "data.features", "data.exclude", "data.transforms", "tracking"),
    *("training.freeze", "training.activation_checkpointing"),
)
VALUES = {
    "training.optimizer": synonyms.OPTIMIZERS,
    "training.scheduler": synonyms.SCHEDULERS,
    "training.loss": synonyms.LOSSES,
    "training.precision": synonyms.PRECISIONS,
    "data.on_corrupt": synonyms.ON_CORRUPT,
    "data.task": synonyms.TASKS,
    "tuning.pruner": synonyms.PRUNERS,
}


def translate(root: Node, problems: Problems, notes: list[str], own: Collection[str] | None = ()) -> None:
    """Rewrite the keys and values of one layer, in place.

    Args:
        root: The layer.
        problems: Where problems are reported.
        notes: Where translations are noted.
        own: The options of `data.type`, which mean what they say; None: any key may be one.
    """
    _sections(root, problems, notes)
    for depth in range(3):  # first what may be a short form of the section that others go into
        for old, new in list(_moves(root, own)):
            if new.count(".") <= depth:
                move(root, old, new, problems, notes, ANOTHER)
        _forms(root, notes)
        _early_stopping(root, notes)
    _flags(root, problems, notes)
    _split(root, problems, notes)
    _warmup(root, problems, notes)
    _values(root, problems, notes)
    read_search(root, problems, notes)


def move(root: Node, old: str, new: str, problems: Problems, notes: list[str], relation: str) -> None:
    """Move a key, or a section key by key; it is a problem if the new key is given, too.

    Args:
        root: The layer.
        old: The dotted key that was given.
        new: The dotted key that it means.
        problems: Where that is reported.
        notes: Where the translation is noted.
        relation: What the old key is of the new one, for the message.
    """
    if old.partition(".")[0] not in mapping(root) or (node := find(root, old)) is None:
        return
    newer = find(root, new)
    if newer is not None and isinstance(newer.value, dict) and isinstance(node.value, dict):
        for key in list(node.value):
            move(root, join(old, key), join(new, key), problems, notes, relation)
        take(root, old)
        return
    take(root, old)
    if newer is not None:
        problems.report(
            f"is {relation} {new}, which is given too ({newer.key_source}); keep one", old, node.key_source
        )
        return
    put(root, new, node)
    notes.append(f"{node.key_source}: {old} is read as {new}")


def key_meant(name: str) -> str | None:
    """Return the dotted key that a key means, with its section or without one; None if that is not known."""
    section, _, key = name.rpartition(".")
    return _meaning(section, key) or name if section else _meaning("", name.replace("-", "_"))


def _sections(root: Node, problems: Problems, notes: list[str]) -> None:
    """Read `train`, `val` and `test` as files of the data if they are texts, and other names of sections."""
    files = {"train": "train_path", "val": "val_path", "validation": "val_path", "test": "test_path"}
    for name, key in files.items():
        node = mapping(root).get(name)
        if node is not None and isinstance(node.value, str):
            move(root, name, f"data.{key}", problems, notes, ANOTHER)
    for section, others in synonyms.SECTIONS.items():
        for other in others:
            move(root, other, section, problems, notes, ANOTHER)
    experiment = mapping(root).get("experiment")
    if experiment is not None and isinstance(experiment.value, str):
        experiment.value = {"name": Node(experiment.value, experiment.source, experiment.key)}


_SECTIONS = tuple(dict.fromkeys([*OPEN, "data", *synonyms.INSIDE]))


def _moves(root: Node, own: Collection[str] | None) -> Iterator[tuple[str, str]]:
    """Yield the keys that are known by other names, with the keys that they mean."""
    model = find_value(root, "model.type")
    # An own model may have an argument `lora`, whose keys are its own.
    has_lora = model is not None and str(model.value).startswith("transformers:")
    given = mapping(root)
    for section in _SECTIONS:
        if section and section.partition(".")[0] not in given:
            continue
        if (section == "data" and own is None) or (section == "model.lora" and not has_lora):
            continue
        for key in mapping(find(root, section) if section else root):
            new = _meaning(section, key)
            if section == "data" and own is not None and key in own:
                continue
            if new is not None and new != join(section, key):
                yield join(section, key), new


def _meaning(section: str, key: str) -> str | None:
    """Return the dotted key that a key means in a section; None if it is the section's own, or unknown."""
    if key in fields_of(section):
        return None
    if (inside := synonyms.INSIDE.get(section, {}).get(fold(key))) is not None:
        return inside
    meaning = _at_the_top().get(key) or synonyms.KEYS.get(fold(key)) or _unique_keys().get(key)
    if meaning is None or section == "" or meaning.startswith(f"{section}."):
        return meaning
    return None if section not in OPEN or meaning.startswith(("data", "model")) else meaning


@cache
def fields_of(section: str) -> frozenset[str]:
    """Return the keys that a section has."""
    model: type[BaseModel] = RunConfig
    for name in section.split(".") if section else ():
        inner = without_null(model.model_fields[name].annotation) if name in model.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return frozenset({"type", "params"})  # a choice of sections
        model = inner
    return frozenset(model.model_fields)


@cache
def _at_the_top() -> dict[str, str]:
    """Return the dotted keys of settings that are usually written without a section."""
    sections: dict[str, type[BaseModel]] = {"training": TrainingConfig, "data": DataConfig}
    keys = [(key, name) for name, section in sections.items() for key in section.model_fields]
    return {key: f"{name}.{key}" for key, name in keys if key not in ("type", "params", *_AMBIGUOUS)}


@cache
def _unique_keys() -> dict[str, str]:
    """Return the dotted keys of the schema by their last words, for those that only one section has."""
    keys: dict[str, list[str]] = {}
    for section, field in RunConfig.model_fields.items():
        inner = without_null(field.annotation)
        for key in inner.model_fields if isinstance(inner, type) and issubclass(inner, BaseModel) else ():
            keys.setdefault(key, []).append(f"{section}.{key}")
    general = (*_AMBIGUOUS, "type", "params", "metric", "mode", "enabled", "backend", *RunConfig.model_fields)
    return {key: dotted[0] for key, dotted in keys.items() if len(dotted) == 1 and key not in general}


def data_type(root: Node) -> str | None:
    """Return the `data.type` that a layer names, also in its short form."""
    node = find_value(root, "data")
    kind = find_value(root, "data.type") if node is not None and isinstance(node.value, dict) else node
    return kind.value if kind is not None and isinstance(kind.value, str) else None


def _forms(root: Node, notes: list[str]) -> None:
    """Expand short forms of mappings and lists."""
    data, scheduler = mapping(root).get("data"), find(root, "training.scheduler")
    if data is not None and isinstance(data.value, str) and PurePath(data.value).suffix.lower() in FILE_TYPES:
        notes.append(f"{data.source}: data: {data.value} is read as data.path")
        kind = FILE_TYPES[PurePath(data.value).suffix.lower()]
        file = Node(data.value, data.source, data.key)
        data.value = {"path": file, "type": Node(kind, data.source, data.key)}
    for node in (data, scheduler, find(root, "training.optimizer")):
        if node is not None and isinstance(node.value, str):
            node.value = {"type": Node(node.value, node.source, node.key, bare=node.bare)}
    _own_schedule(scheduler)
    for path in LISTS:
        node = find(root, path)
        if node is not None and isinstance(node.value, str):
            names = node.value.split(",") if path == "evaluation.metrics" else [node.value]
            node.value = [Node(name.strip(), node.source, node.key) for name in names]
        elif path in ("tracking", "training.freeze") and mapping(node).keys() & {"type", "match"}:
            assert node is not None
            node.value = [Node(node.value, node.source)]
    _trackers(find(root, "tracking"), notes)
    _short_sections(root)


def _trackers(tracking: Node | None, notes: list[str]) -> None:
    """Read `{mlflow: {uri: ...}}` as `{type: mlflow, uri: ...}`, as an item of the list or in its place."""
    named = mapping(tracking)
    if tracking is not None and named and all(_stands_for_tracker(*one) for one in named.items()):
        tracking.value = [Node({name: child}, child.key_source) for name, child in named.items()]
    for item in tracking.value if tracking is not None and isinstance(tracking.value, list) else ():
        if len(mapping(item)) == 1:
            name, child = next(iter(mapping(item).items()))
            if _stands_for_tracker(name, child):
                item.value = {"type": Node(name, child.key_source, child.key), **mapping(child)}
                notes.append(f"{child.key_source}: tracking: {name} is read as {{type: {name}}}")


def _stands_for_tracker(name: str, child: Node) -> bool:
    """Return whether this is the name of a tracker with its options, or `true`, and no number of an item."""
    has_options = isinstance(child.value, dict) or child.value is None or child.value is True
    return has_options and not name.isdigit() and name not in TrackerConfig.model_fields


def _short_sections(root: Node) -> None:
    """Make mappings of `ema: 0.999`, `sampling: balanced`, the patterns in `freeze`, and a head's loss."""
    sampling = find(root, "data.sampling")
    if sampling is not None and isinstance(sampling.value, str):
        sampling.value = {"weight": Node(sampling.value, sampling.source, sampling.key)}
    ema, freeze = find(root, "training.ema"), find(root, "training.freeze")
    if ema is not None and isinstance(ema.value, int | float) and not isinstance(ema.value, bool):
        ema.value = {"decay": Node(ema.value, ema.source, ema.key)}
    for item in freeze.value if freeze is not None and isinstance(freeze.value, list) else ():
        if isinstance(item.value, str):
            item.value = {"match": Node(item.value, item.source, item.key)}
    for head in mapping(find(root, "training.heads")).values():
        if isinstance(head.value, str):
            head.value = {"loss": Node(head.value, head.source, head.key)}


def _own_schedule(scheduler: Node | None) -> None:
    """Make `{type: package.module:name, ...}` a schedule of the type `own`; the rest are its arguments."""
    options = mapping(scheduler)
    kind = options.get("type")
    if kind is None or not isinstance(kind.value, str) or ":" not in kind.value or "function" in options:
        return
    own = [name for name in options if name not in OwnSchedule.model_fields]
    if own:
        given = options.setdefault("params", Node({}, kind.source, kind.key))
        if isinstance(given.value, dict):
            given.value.update({name: options.pop(name) for name in own})
    options["function"] = kind
    options["type"] = Node("own", kind.source, kind.key)


def _flags(root: Node, problems: Problems, notes: list[str]) -> None:
    """Translate `fp16: true`, `use_cuda: true`, `gpus: 1`, `accelerator: gpu` and `devices: 1`."""
    for section in ("", "training", "distributed"):
        for key in list(mapping(find(root, section) if section else root)):
            old = join(section, key)
            if fold(key) in ("fp16", "bf16", "tf32"):
                _flag(root, old, "training.precision", (fold(key), "fp32"), problems, notes)
            elif fold(key) in ("usecuda", "usegpu", "cuda", "gpu"):
                _flag(root, old, "training.device", ("cuda", "cpu"), problems, notes)
            elif fold(key) in ("usecpu", "nocuda"):
                _flag(root, old, "training.device", ("cpu", "auto"), problems, notes)
            elif fold(key) == "accelerator":
                move(root, old, "training.device", problems, notes, ANOTHER)
            elif fold(key) == "gpus":
                _gpus(root, old, problems, notes)
            elif fold(key) == "devices":
                _devices(root, old, problems, notes)
    _checkpointing(root, problems)
    steps = find(root, "training.max_steps")
    if steps is not None and steps.value == -1:
        steps.value = None
        notes.append(f"{steps.key_source}: training.max_steps: -1 is read as null: no other length")
    node = find(root, "training.precision")
    if node is not None and isinstance(node.value, int) and str(node.value) in ("16", "32", "64"):
        node.value = str(node.value)


def _checkpointing(root: Node, problems: Problems) -> None:
    """Report `activation_checkpointing: true`, which does not say what to recompute; `false` is none."""
    path = "training.activation_checkpointing"
    node = find(root, path)
    if node is not None and isinstance(node.value, bool):
        if node.value:
            problems.report(
                'name the modules to compute again: ["blocks.*"] for gpt, ["model.layers.*"] for '
                "most language models of transformers",
                path,
                node.source,
            )
        node.value = []


def _flag(
    root: Node, old: str, new: str, values: tuple[str, str], problems: Problems, notes: list[str]
) -> None:
    """Read a boolean as one of two values of another key: `values` are those of true and false."""
    node = find(root, old)
    if node is None or not isinstance(node.value, bool):
        return
    if (newer := find(root, new)) is not None:
        problems.report(
            f"is {ANOTHER} {new}, which is given too ({newer.key_source}); keep one",
            old,
            node.key_source,
        )
    take(root, old)
    value = values[0] if node.value else values[1]
    if newer is None:
        put(root, new, Node(value, node.source, node.key))
        notes.append(f"{node.key_source}: {old}: {literal(node.value)} is read as {new}: {value}")


def _gpus(root: Node, old: str, problems: Problems, notes: list[str]) -> None:
    """Read a number of GPUs as the device, and as that of processes if it is above 1."""
    node = find(root, old)
    if node is None or not isinstance(node.value, int) or isinstance(node.value, bool) or node.value < 0:
        return  # validation reports it
    count, node.value = node.value, node.value > 0
    _flag(root, old, "training.device", ("cuda", "cpu"), problems, notes)
    if count > 1 and find(root, "distributed.nproc") is None:
        put(root, "distributed.nproc", Node(count, node.source, node.key))
        notes.append(f"{node.key_source}: {old}: {count} is read as distributed.nproc: {count}")


def _devices(root: Node, old: str, problems: Problems, notes: list[str]) -> None:
    """Read the number of devices, as Lightning has it beside `accelerator`, as that of processes."""
    node = find(root, old)
    if node is None or isinstance(node.value, bool) or node.value not in (1, "auto", "1"):
        if node is not None and isinstance(node.value, int) and node.value > 1:
            move(root, old, "distributed.nproc", problems, notes, ANOTHER)
        return  # validation reports other values
    take(root, old)
    notes.append(f"{node.key_source}: {old}: {literal(node.value)} has no effect: a run has one device")


def _early_stopping(root: Node, notes: list[str]) -> None:
    """Read `early_stopping: true`, or a number of evaluations, as the section."""
    path = "training.early_stopping"
    node = find(root, path)
    if node is None:
        return
    given = node.value
    enabled = mapping(node).get("enabled")
    if isinstance(given, dict) and enabled is not None and isinstance(enabled.value, bool):
        del given["enabled"]
        node.value = given if enabled.value else None
        notes.append(f"{enabled.key_source}: {path}.enabled is read as {path} being there, or null")
    elif isinstance(given, bool):
        node.value = {} if given else None
        meaning = "early stopping with its defaults" if given else "null"
        notes.append(f"{node.key_source}: {path}: {literal(given)} is read as {meaning}")
    elif isinstance(given, int) and given > 0:
        node.value = {"patience": Node(given, node.source, node.key)}
        notes.append(f"{node.key_source}: {path}: {given} is read as {path}.patience: {given}")


def _split(root: Node, problems: Problems, notes: list[str]) -> None:
    """Read `split: [0.8, 0.1, 0.1]` and `split: {train: 0.8, ...}` as the shares of validation and test."""
    node = find(root, "data.split")
    if node is None:
        return
    if isinstance(node.value, float):
        problems.report(
            f"name the share: data.split: {{val: {node.value}}}, or {{test: {node.value}}}, or both",
            "data.split",
            node.source,
        )
        take(root, "data.split")
        return
    if isinstance(node.value, list):
        shares = [item.value for item in node.value]
        numbers = [share for share in shares if isinstance(share, float | int)]
        if len(shares) == len(numbers) == 3 and abs(sum(numbers) - 1) < 1e-6:
            _, val, test = node.value
            node.value = {"val": val, "test": test}
            notes.append(
                f"{node.key_source}: data.split: {shares} is read as val: {val.value}, test: {test.value}"
            )
        return
    children = mapping(node)
    for other in ("validation", "valid", "dev"):
        if other in children and "val" not in children:
            children["val"] = children.pop(other)
            notes.append(f"{node.key_source}: data.split.{other} is read as data.split.val")
    train = children.get("train")
    others = [one.value for name in ("val", "test") if (one := children.get(name)) is not None]
    parts = [train.value if train is not None else None, *others]
    numbers = [part for part in parts if isinstance(part, float | int)]
    if train is not None and len(numbers) == 3 and abs(sum(numbers) - 1) < 1e-6:
        del children["train"]
        notes.append(f"{train.key_source}: data.split.train is the rest, and need not be given")


def settle(root: Node, problems: Problems, notes: list[str]) -> None:
    """Translate what depends on other keys of the merged config: `per_device_batch_size`."""
    old, new = "training.per_device_batch_size", "training.batch_size"
    nproc = find_value(root, "distributed.nproc")
    if (node := find(root, old)) is not None and nproc is not None and nproc.value != 1:
        take(root, old)
        message = f"{new} is the total over all processes: write {new}: {literal(node.value)} x processes"
        problems.report(message, old, node.key_source)
    move(root, old, new, problems, notes, ANOTHER)


def _warmup(root: Node, problems: Problems, notes: list[str]) -> None:
    """Read `warmup` as steps if it is a whole number, and as a ratio if it is a fraction."""
    old = "training.scheduler.warmup"
    node = find(root, old)
    if node is None or isinstance(node.value, bool) or not isinstance(node.value, int | float):
        return
    new = "warmup_steps" if isinstance(node.value, int) else "warmup_ratio"
    move(root, old, f"training.scheduler.{new}", problems, notes, ANOTHER)


def _values(root: Node, problems: Problems, notes: list[str]) -> None:
    """Read other names of optimizers, schedulers, losses, precisions, devices and metrics as ours."""
    for path, table in VALUES.items():
        node = find(root, path)
        chosen = mapping(node).get("type", node)
        if node is None or chosen is None or not isinstance(chosen.value, str) or ":" in chosen.value:
            continue
        word = fold(synonyms.LIBRARY.sub("", chosen.value))
        _value(chosen, path, table.get(word), problems, notes, word)
        if chosen.value == "constant" and word in synonyms.VALUE_HINTS.get(path, {}):
            node.value = {"type": chosen}  # without the options of another scheduler
    for name, column in mapping(find(root, "data.columns")).items():
        chosen = mapping(column).get("type", column)
        if isinstance(chosen.value, str):
            word = fold(chosen.value)
            _value(chosen, f"data.columns.{name}", synonyms.COLUMN_TYPES.get(word), problems, notes, word)
    read_transforms(find(root, "data.transforms"), problems, notes)
    node = find(root, "training.device")
    if node is not None and isinstance(node.value, str):
        word, colon, number = node.value.lower().partition(":")
        kind = synonyms.DEVICES.get(word)
        _value(node, "training.device", kind and f"{kind}{colon}{number}", problems, notes, word)


def _value(
    node: Node, path: str, meaning: str | None, problems: Problems, notes: list[str], word: str
) -> None:
    """Replace a value by what it means, or report what to write instead; `word` is the value, folded."""
    if meaning is not None and meaning != node.value:
        notes.append(f"{node.source}: {path}: {node.value} is read as {meaning}")
        node.value = meaning
    elif (hint := synonyms.VALUE_HINTS.get(path, {}).get(word)) is not None:
        problems.report(f"there is no {node.value}; {hint}", path, node.source)
        node.value = {"training.scheduler": "constant", "training.device": "auto"}.get(path, "fp32")
