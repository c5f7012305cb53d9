"""Convert the values of keys that have a short form, another name, or the shape of another tool.

The tables at the end have them all, by key, for one layer of a config.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from trainwright.config import synonyms
from trainwright.config.expectations import read_expectations
from trainwright.config.file_types import FILE_TYPES, ending_of
from trainwright.config.image_transforms import read_transforms
from trainwright.config.schedules import CustomSchedule
from trainwright.config.schema import TrackerConfig
from trainwright.config.search_spaces import read_search
from trainwright.config.synonyms import fold
from trainwright.config.tree import Conversion, Draft, Node, find, mapping, named, put, take
from trainwright.config.versions import is_reference
from trainwright.config.words import literal

# Values of `distributed.strategy`, in lower case and without separators, as PyTorch, Lightning and Accelerate
# users write them.
DDP = ("ddp", "ddpspawn", "ddpnotebook", "ddpfork", "distributeddataparallel", "multigpu")
DP = ("dp", "dataparallel")
FSDP = ("fsdp2", "fullyshardeddataparallel", "fullysharded", "fullyshard", "fullshard", "zero3")
# Keys of `distributed.plan` that list modules.
PLANS = ("colwise", "rowwise", "vocabulary", "sequence")
HSDP = ("hybridshard", "hybridshardeddataparallel", "hybridsharded")


def is_path(value: object) -> bool:
    """Return whether a value is the import path of something of the user's."""
    return isinstance(value, str) and ":" in value


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# Short forms of sections and lists.


_OF_GROUPS = synonyms.table(
    {"learning_rate": "lr", "weight_decay": "wd", "match": "params", "lr_ratio": "lr_scale lr_mult"}
)


def _section(key: str, draft: Draft, path: str, node: Node) -> None:  # noqa: ARG001 - a conversion
    """Make a section of a text that stands for one of its keys."""
    if isinstance(node.value, str):
        node.value = named(node, key)


def _data(draft: Draft, path: str, node: Node) -> None:
    """Read the path of a file as `data.path`."""
    ending = ending_of(node.value) if isinstance(node.value, str) else ""
    if ending in FILE_TYPES:
        draft.notes.append(f"{node.source}: {path}: {node.value} is read as data.path")
        kind = Node(FILE_TYPES[ending], node.source, node.key)
        node.value = {"path": Node(node.value, node.source, node.key), "type": kind}
    elif isinstance(node.value, str) and is_reference(node.value):
        draft.notes.append(f"{node.source}: {path}: {node.value} is read as data.path")
        node.value = {"path": Node(node.value, node.source, node.key)}
    _section("type", draft, path, node)


def _scheduler(draft: Draft, path: str, node: Node) -> None:
    """Make `{type: package.module:name, ...}` a schedule of the type `custom`; the rest are its arguments."""
    _section("type", draft, path, node)
    options = mapping(node)
    kind = options.get("type")
    if kind is None or not is_path(kind.value) or "function" in options:
        return
    own = [name for name in options if name not in CustomSchedule.model_fields]
    if own:
        given = options.setdefault("params", Node({}, kind.source, kind.key))
        if isinstance(given.value, dict):
            given.value.update({name: options.pop(name) for name in own})
    options["function"] = kind
    options["type"] = Node("custom", kind.source, kind.key)


def _list(draft: Draft, path: str, node: Node) -> None:  # noqa: ARG001 - a conversion
    """Make a list of a single item; names of metrics may be divided by commas."""
    if isinstance(node.value, str):
        names = node.value.split(",") if path == "evaluation.metrics" else [node.value]
        node.value = [Node(name.strip(), node.source, node.key) for name in names]


def _tracking(draft: Draft, path: str, node: Node) -> None:
    """Make a list of trackers: of one, or of `{mlflow: {uri: ...}}`, which is `{type: mlflow, uri: ...}`."""
    _list(draft, path, node)
    given = mapping(node)
    if given.keys() & {"type", "match"}:
        node.value = [Node(node.value, node.source)]
    elif given and all(_stands_for_tracker(*one) for one in given.items()):
        node.value = [Node({name: child}, child.key_source) for name, child in given.items()]
    for item in node.value if isinstance(node.value, list) else ():
        if len(mapping(item)) == 1:
            name, child = next(iter(mapping(item).items()))
            if _stands_for_tracker(name, child):
                item.value = {"type": Node(name, child.key_source, child.key), **mapping(child)}
                draft.note(child, f"tracking: {name} is read as {{type: {name}}}")


def _stands_for_tracker(name: str, child: Node) -> bool:
    """Return whether this is the name of a tracker with its options, or `true`, and no number of an item."""
    has_options = isinstance(child.value, dict) or child.value is None or child.value is True
    return has_options and not name.isdigit() and name not in TrackerConfig.model_fields


def _freeze(draft: Draft, path: str, node: Node) -> None:
    """Make a list of patterns of parameters."""
    _list(draft, path, node)
    if mapping(node).keys() & {"type", "match"}:
        node.value = [Node(node.value, node.source)]
    for item in node.value if isinstance(node.value, list) else ():
        _section("match", draft, path, item)


def _init_from(draft: Draft, path: str, node: Node) -> None:
    """Make a section of a source, and a list of a single pattern to skip."""
    _section("source", draft, path, node)
    if (skip := mapping(node).get("skip")) is not None:
        _list(draft, f"{path}.skip", skip)


def _heads(draft: Draft, path: str, node: Node) -> None:
    for head in mapping(node).values():
        _section("loss", draft, path, head)


def _optimizers(draft: Draft, path: str, node: Node) -> None:
    """Read the keys and types of several optimizers by the names that PyTorch and others give them."""
    for name, item in mapping(node).items():
        _rename(draft, f"{path}.{name}", mapping(item), _OF_OPTIMIZERS)
        if "type" in mapping(item):
            _choice(draft, "training.optimizer", item)


def _ema(draft: Draft, path: str, node: Node) -> None:
    """Read a number as the decay, and report `true`, which does not say it; `false` is none."""
    if isinstance(node.value, bool):
        if node.value:
            draft.problems.report("say how much of the average a step keeps: ema: 0.999", path, node.source)
        node.value = None
    elif _number(node.value):
        node.value = {"decay": Node(node.value, node.source, node.key)}


def _early_stopping(draft: Draft, path: str, node: Node) -> None:
    """Read `early_stopping: true`, or a number of evaluations, as the section."""
    given, enabled = node.value, mapping(node).get("enabled")
    if isinstance(given, dict) and enabled is not None and isinstance(enabled.value, bool):
        del given["enabled"]
        node.value = given if enabled.value else None
        draft.note(enabled, f"{path}.enabled is read as {path} being there, or null")
    elif isinstance(given, bool):
        node.value = {} if given else None
        meaning = "early stopping with its defaults" if given else "null"
        draft.note(node, f"{path}: {literal(given)} is read as {meaning}")
    elif isinstance(given, int) and given > 0:
        node.value = {"patience": Node(given, node.source, node.key)}
        draft.note(node, f"{path}: {given} is read as {path}.patience: {given}")


# Keys of other tools that are no other names, but have values of their own.


def _flag(new: str, yes: str, no: str, draft: Draft, path: str, node: Node) -> None:
    """Read a boolean as one of two values of another key."""
    if not isinstance(node.value, bool):
        return
    newer = find(draft.root, new)
    if newer is not None:
        draft.refuse(path, node, new, newer)
    take(draft.root, path)
    value = yes if node.value else no
    if newer is None:
        put(draft.root, new, Node(value, node.source, node.key))
        draft.note(node, f"{path}: {literal(node.value)} is read as {new}: {value}")


def _gpus(draft: Draft, path: str, node: Node) -> None:
    """Read a number of GPUs as the device, and as that of processes if it is above 1."""
    if not isinstance(node.value, int) or isinstance(node.value, bool) or node.value < 0:
        return  # validation reports it
    count, node.value = node.value, node.value > 0
    _flag("training.device", "cuda", "cpu", draft, path, node)
    if count > 1 and find(draft.root, "distributed.nproc") is None:
        put(draft.root, "distributed.nproc", Node(count, node.source, node.key))
        draft.note(node, f"{path}: {count} is read as distributed.nproc: {count}")


def _devices(draft: Draft, path: str, node: Node) -> None:
    """Read the number of devices, as Lightning has it beside `accelerator`, as that of processes."""
    if not isinstance(node.value, bool) and node.value in (1, "auto", "1"):
        take(draft.root, path)
        draft.note(node, f"{path}: {literal(node.value)} has no effect: a run has one device")
    elif isinstance(node.value, int) and node.value > 1:
        draft.move(path, "distributed.nproc")  # validation reports other values


def _accelerator(draft: Draft, path: str, node: Node) -> None:  # noqa: ARG001 - a conversion
    draft.move(path, "training.device")


# By the folded name of a key at the top, in `training` or in `distributed`.
FLAGS: dict[str, Conversion] = {
    **{name: partial(_flag, "training.precision", name, "fp32") for name in ("fp16", "bf16", "tf32")},
    **dict.fromkeys(("usecuda", "usegpu", "cuda", "gpu"), partial(_flag, "training.device", "cuda", "cpu")),
    **dict.fromkeys(("usecpu", "nocuda"), partial(_flag, "training.device", "cpu", "auto")),
    "accelerator": _accelerator,
    "gpus": _gpus,
    "devices": _devices,
}


def _activation_checkpointing(draft: Draft, path: str, node: Node) -> None:
    """Report `true`, which does not say what to recompute; `false` is none."""
    if isinstance(node.value, bool):
        if node.value:
            draft.problems.report(
                'name the modules to compute again: ["blocks.*"] for gpt, ["model.layers.*"] for '
                "most language models of transformers; a model without such blocks, as mlp, needs none",
                path,
                node.source,
            )
        node.value = []


def _max_steps(draft: Draft, path: str, node: Node) -> None:
    if node.value == -1:
        node.value = None
        draft.note(node, f"{path}: -1 is read as null: no other length")


def _split(draft: Draft, path: str, node: Node) -> None:
    """Read `split: [0.8, 0.1, 0.1]` and `split: {train: 0.8, ...}` as the shares of validation and test."""
    if isinstance(node.value, float):
        message = f"name the share: {path}: {{val: {node.value}}}, or {{test: {node.value}}}, or both"
        draft.problems.report(message, path, node.source)
        take(draft.root, path)
        return
    if isinstance(node.value, list):
        shares = [item.value for item in node.value]
        if _are_shares(shares):
            _, val, test = node.value
            node.value = {"val": val, "test": test}
            draft.note(node, f"{path}: {shares} is read as val: {val.value}, test: {test.value}")
        return
    if node.value in ("hash", "hashed"):
        node.value = {"by": Node("hash", node.source, node.key)}
        draft.note(node, f"{path}: hash is read as {path}: {{by: hash}}, by the whole content of a row")
        return
    children = mapping(node)
    for other in ("validation", "valid", "dev"):
        if other in children and "val" not in children:
            children["val"] = children.pop(other)
            draft.note(node, f"{path}.{other} is read as {path}.val")
    if _are_shares([one.value for name in ("train", "val", "test") if (one := children.get(name))]):
        draft.note(children.pop("train"), f"{path}.train is the rest, and need not be given")


def _are_shares(values: Sequence[object]) -> bool:
    """Return whether these are the shares of the three splits, which add up to all rows."""
    shares = [value for value in values if isinstance(value, float | int)]
    return len(values) == len(shares) == 3 and abs(sum(shares) - 1) < 1e-6


def _warmup(draft: Draft, path: str, node: Node) -> None:
    """Read `warmup` as steps if it is a whole number, and as a ratio if it is a fraction."""
    if _number(node.value):
        draft.move(path, f"{path}_{'steps' if isinstance(node.value, int) else 'ratio'}")


# Names of values.

# Valid values in place of reported ones, so that they are reported once.
_STAND_INS = {"training.scheduler": "constant", "training.device": "auto", "data.split.by": "random"}


def _choice(draft: Draft, path: str, node: Node) -> None:
    """Read another name of an optimizer, a scheduler, a loss ... as ours."""
    chosen = mapping(node).get("type", node)
    if not isinstance(chosen.value, str) or ":" in chosen.value:
        return
    word = fold(synonyms.LIBRARY.sub("", chosen.value))
    _value(draft, path, chosen, synonyms.VALUES[path].get(word), word)
    if chosen.value == "constant" and word in synonyms.VALUE_HINTS.get(path, {}):
        node.value = {"type": chosen}  # without the options of another scheduler


def _precision(draft: Draft, path: str, node: Node) -> None:
    if isinstance(node.value, int) and str(node.value) in ("16", "32", "64"):
        node.value = str(node.value)
    _choice(draft, path, node)


def _columns(draft: Draft, path: str, node: Node) -> None:
    for name, column in mapping(node).items():
        chosen = mapping(column).get("type", column)
        if isinstance(chosen.value, str):
            word = fold(chosen.value)
            _value(draft, f"{path}.{name}", chosen, synonyms.COLUMN_TYPES.get(word), word)


def _device(draft: Draft, path: str, node: Node) -> None:
    if isinstance(node.value, str):
        word, colon, number = node.value.lower().partition(":")
        kind = synonyms.DEVICES.get(word)
        _value(draft, path, node, kind and f"{kind}{colon}{number}", word)


def _value(draft: Draft, path: str, node: Node, meaning: str | None, word: str) -> None:
    """Replace a value by its meaning, or report what to write instead; `word` is the value, folded."""
    if meaning is not None and meaning != node.value:
        draft.notes.append(f"{node.source}: {path}: {node.value} is read as {meaning}")
        node.value = meaning
    elif (hint := synonyms.VALUE_HINTS.get(path, {}).get(word)) is not None:
        draft.problems.report(f"there is no {node.value}; {hint}", path, node.source)
        node.value = _STAND_INS.get(path, "fp32")


# Other spellings of keys.


def _tracking_uri(draft: Draft, path: str, node: Node) -> None:
    take(draft.root, path)
    if find(draft.root, "tracking") is not None:
        draft.problems.report(
            "is another spelling of tracking: [{type: mlflow, uri: ...}], which is given too; keep one",
            path,
            node.key_source,
        )
        return
    item = Node({"type": Node("mlflow", node.key_source, node.key), "uri": node}, node.key_source)
    put(draft.root, "tracking", Node([item], node.key_source, node.key))
    draft.note(node, f"{path} is read as tracking: [{{type: mlflow, uri: ...}}]")


def _mixed_precision(draft: Draft, path: str, node: Node) -> None:
    take(draft.root, path)
    if find(draft.root, "training.precision") is not None:
        message = "is another spelling of training.precision, which is given too; keep one"
        draft.problems.report(message, path, node.key_source)
    elif not isinstance(node.value, bool):
        draft.problems.report("expected true or false", path, node.source)
    else:
        precision = "mixed" if node.value else "fp32"
        meaning = " (fp16 on CUDA, bf16 on CPU)" if node.value else ""
        put(draft.root, "training.precision", Node(precision, node.source, node.key))
        draft.note(node, f"{path}: {literal(node.value)} is read as training.precision: {precision}{meaning}")


def _parameter_groups(draft: Draft, path: str, node: Node) -> None:
    """Read the keys of parameter groups by the names that PyTorch and others give them."""
    for index, item in enumerate(node.value if isinstance(node.value, list) else ()):
        _rename(draft, f"{path}.{index}", mapping(item))


def _rename(draft: Draft, path: str, keys: dict[str, Node], table: Mapping[str, str] = _OF_GROUPS) -> None:
    """Rename the keys of a group of parameters, or of one of several optimizers."""
    for old in [key for key in keys if fold(key) in table]:
        new, given = table[fold(old)], keys.pop(old)
        if new in keys:
            draft.refuse(f"{path}.{old}", given, new, keys[new])
        else:
            keys[new] = given
            draft.note(given, f"{path}.{old} is read as {new}")


def _strategy(draft: Draft, path: str, node: Node) -> None:
    """Read the usual spellings of the strategies."""
    if not isinstance(node.value, str) or node.value in ("ddp", "fsdp", "hsdp", "auto"):
        return
    given, last = node.value, node.value.rpartition(".")[2].lower()
    name = re.sub(r"[^a-z0-9]", "", last.removesuffix("_find_unused_parameters_true"))
    if name in DP:
        draft.notes.append(
            f"{node.source}: {path}: {given} is read as ddp, which trains the same model with one process "
            "for each GPU; write ddp, and set distributed.nproc to the number of processes"
        )
        node.value = "ddp"
        return
    for ours, spellings in {"ddp": DDP, "fsdp": FSDP, "hsdp": HSDP}.items():
        if name in spellings or name == ours:
            draft.notes.append(f"{node.source}: {path}: {given} is read as {ours}")
            node.value = ours  # the lookup reports others


def _pytorch(draft: Draft, path: str, node: Node) -> None:
    if node.value == "pytorch":
        node.value = "mlp"
        draft.notes.append(f"{node.source}: {path}: pytorch is read as {path}: mlp")


_OF_OPTIMIZERS = synonyms.table({"learning_rate": "lr", "weight_decay": "wd"})

# Sections and lists in their short forms, into which other keys may be moved.
SHORT_FORMS: tuple[tuple[str, Conversion], ...] = (
    ("data", _data),
    *((path, partial(_section, "type")) for path in ("model", "training.optimizer")),
    ("training.scheduler", _scheduler),
    *((f"data.{key}", _list) for key in ("features", "exclude", "transforms")),
    *((path, _list) for path in ("evaluation.metrics", "training.activation_checkpointing")),
    *((f"distributed.{key}", _list) for key in ("wrap", *(f"plan.{key}" for key in PLANS))),
    ("tracking", _tracking),
    ("data.sampling", partial(_section, "weight")),
    ("data.split", _split),
    ("training.ema", _ema),
    ("training.freeze", _freeze),
    ("model.init_from", _init_from),
    ("training.heads", _heads),
    ("training.early_stopping", _early_stopping),
)
# What is done with the values of keys, after all have their own names and places.
CONVERSIONS: tuple[tuple[str, Conversion], ...] = (
    ("training.activation_checkpointing", _activation_checkpointing),
    ("training.max_steps", _max_steps),
    ("training.scheduler.warmup", _warmup),
    *((path, _choice) for path in ("training.optimizer", "training.scheduler", "training.loss")),
    ("training.precision", _precision),
    *(
        (path, _choice)
        for path in ("data.on_corrupt", "data.task", "data.split.by", "tuning.pruner", "distributed.schedule")
    ),
    ("data.columns", _columns),
    ("data.expect", read_expectations),
    ("data.transforms", read_transforms),
    ("training.device", _device),
    ("tuning", read_search),
    ("experiment.tracking_uri", _tracking_uri),
    ("training.mixed_precision", _mixed_precision),
    ("training.parameter_groups", _parameter_groups),
    ("training.optimizers", _optimizers),
    ("distributed.strategy", _strategy),
    ("model.type", _pytorch),
)
