"""Convert what depends on several keys of a config, which several layers may have given, and on the adapters.

A loss with options is a section, `loss: {type: mine:Loss, alpha: 0.5}`, so that its layers are merged as
those of other sections with a type are. Then it becomes two keys of `training`: the name alone, and
`loss_params`; options of a loss of ours are keys of `training`.
"""

from __future__ import annotations

import re

from trainwright.config.adapters import Adapters, Kind, Meaning
from trainwright.config.conversions import is_path
from trainwright.config.metrics import METRIC_KEYS, custom_name
from trainwright.config.schema import TrainingConfig
from trainwright.config.synonyms import IMPORTED_AS
from trainwright.config.tree import Conversion, Draft, Node, find, find_value, mapping, put, take
from trainwright.config.words import literal
from trainwright.errors import InputError

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_FILES = (".py", ".pt", ".pth", ".pkl", ".joblib", ".onnx", ".safetensors", ".keras", ".h5", ".bin", ".json")
_SPLITS = {
    "val": "val",
    "valid": "val",
    "validation": "val",
    "eval": "val",
    "dev": "val",
    "train": "train",
    "test": "test",
}
# Options of losses of ours, by the names that users know, and the keys of `training` that they are.
_OURS = {
    "gamma": "focal_gamma",
    "focal_gamma": "focal_gamma",
    "label_smoothing": "label_smoothing",
    "class_weights": "class_weights",
}


def _is_custom(name: object) -> bool:
    """Return whether a loss is an import path (`pkg.mod:Loss` or `pkg.mod.Loss`)."""
    return is_path(name) or (isinstance(name, str) and "." in name)


def _heads(draft: Draft, path: str, node: Node) -> None:
    """Divide the losses of several heads; only custom losses have options there."""
    for name, head in mapping(node).items():
        _head(draft, f"{path}.{name}", mapping(head))


def _head(draft: Draft, path: str, head: dict[str, Node]) -> None:
    loss = head.get("loss")
    if loss is None or not isinstance(loss.value, dict):
        return
    options = dict(loss.value)
    kind, params = options.pop("type", None), options.pop("params", None)
    given = mapping(params) | options
    head["loss"] = kind or Node("auto", loss.source, loss.key)
    name = head["loss"].value
    if given and not _is_custom(name):
        message = (
            f"the loss {name} of a head has no options; write a loss of your own, package.module:function"
        )
        draft.problems.report(message, f"{path}.loss", loss.source)
    elif given:
        head["loss_params"] = Node(given | mapping(head.get("loss_params")), loss.source, loss.key)


def _loss(draft: Draft, path: str, node: Node) -> None:
    """Divide the section of the loss into the name and the options."""
    if not isinstance(node.value, dict):
        return
    take(draft.root, path)
    kind, params = node.value.get("type"), node.value.get("params")
    name = "auto" if kind is None else kind.value
    if kind is not None:
        put(draft.root, path, kind)
    if params is None or params.value == {}:
        return
    if not isinstance(params.value, dict) or _is_custom(name):
        put(draft.root, f"{path}_params", params)  # validation reports what is no mapping
        return
    for option, given in params.value.items():
        _option(draft, f"the loss {name}", option, given)


def _option(draft: Draft, loss: str, option: str, node: Node) -> None:
    """Move an option of a built-in loss to its key of `training`."""
    key = _OURS.get(option)
    other = None if key is None else find(draft.root, f"training.{key}")
    if key is None:
        message = f"{loss} has no option {option!r}; ours have gamma, label_smoothing, class_weights"
        draft.problems.report(message, "training.loss", node.key_source)
    elif other is None or other.value is None:
        put(draft.root, f"training.{key}", node)
        if option != key:
            draft.note(node, f"training.loss.{option} is read as training.{key}")
    elif other.value != node.value:
        where = f"training.{key} is given, too ({other.key_source}); keep one"
        draft.problems.report(f"{option}: {where}", "training.loss", node.key_source)


def _per_device_batch_size(draft: Draft, path: str, node: Node) -> None:
    new, nproc = "training.batch_size", find_value(draft.root, "distributed.nproc")
    if nproc is not None and nproc.value != 1:
        take(draft.root, path)
        message = f"{new} is the total over all processes: write {new}: {literal(node.value)} x processes"
        draft.problems.report(message, node.written or path, node.key_source)
    draft.move(path, new)


def _accumulation(draft: Draft, path: str, node: Node) -> None:
    """Read n accumulation steps and a `batch_size` of b as a batch size of n*b and a microbatch size of b."""
    take(draft.root, path)
    if not isinstance(node.value, int) or isinstance(node.value, bool) or node.value < 1:
        draft.problems.report("expected a whole number above 0", path, node.source)
        return
    if find_value(draft.root, "training.microbatch_size") is not None:
        message = "is another spelling of training.microbatch_size, which is given too; keep one"
        draft.problems.report(message, path, node.key_source)
        return
    batch = find_value(draft.root, "training.batch_size")
    micro = TrainingConfig.model_fields["batch_size"].default if batch is None else batch.value
    if not isinstance(micro, int) or isinstance(micro, bool):
        return  # validation reports it
    total, given = micro * node.value, batch or node
    put(draft.root, "training.batch_size", Node(total, node.source, node.key))
    put(draft.root, "training.microbatch_size", Node(micro, given.source, given.key))
    draft.note(
        node, f"{path}: {node.value} is read as training.batch_size: {total}, microbatch_size: {micro}"
    )


# Names that the adapters know.


def _framework(draft: Draft, path: str, node: Node) -> None:
    if isinstance(node.value, str) and not _has("framework", node.value, draft.installed):
        _replace(draft, path, node, draft.installed.framework_meant(node.value))


def _sampler(draft: Draft, path: str, node: Node) -> None:
    if isinstance(node.value, str) and not _has("sampler", node.value, draft.installed):
        meaning = draft.installed.sampler_meant(node.value.removeprefix("optuna.samplers."))
        _replace(draft, path.removesuffix(".type"), node, meaning)


def _replace(draft: Draft, path: str, node: Node, meaning: str | None) -> None:
    """Replace a name by its meaning, if it has one."""
    if meaning is not None:
        draft.notes.append(f"{node.source}: {path}: {node.value} is read as {meaning}")
        node.value = meaning


def _model(draft: Draft, path: str, node: Node) -> None:
    chosen, adapters = find_value(draft.root, "model.framework"), draft.installed
    if not isinstance(node.value, str) or ":" in node.value:
        return
    name, framework = node.value, chosen.value if chosen is not None else None
    if framework is not None and not _has("framework", framework, adapters):
        return  # the lookup reports it
    asked = framework if isinstance(framework, str) else None
    if (asked is None and adapters.framework_of(name) is not None) or (
        asked and adapters.has("model", name, asked)
    ):
        return
    if (meaning := adapters.model_meant(_without_module(name), asked)) is None:
        _dotted(draft, path, node)
        return
    node.value = meaning.name
    draft.notes.append(f"{node.source}: {path}: {name} is read as {meaning.name} ({meaning.framework})")
    if meaning.task is not None:
        _task(draft, meaning, node, name)


def _loss_path(draft: Draft, path: str, node: Node) -> None:
    if isinstance(node.value, str) and "." in node.value and not draft.installed.has("loss", node.value):
        _dotted(draft, path, node)


def _dotted(draft: Draft, path: str, node: Node) -> None:
    """Read an import path with dots alone as one with a colon."""
    name = str(node.value)
    if _DOTTED.fullmatch(name) and not name.endswith(_FILES):
        _replace(draft, path, node, ":".join(name.rsplit(".", 1)))


def _without_module(name: str) -> str:
    """Return the class in `xgb.XGBClassifier` or `svm.SVC`: names of modules as they are usually imported."""
    module, _, last = name.rpartition(".")
    return last if module in IMPORTED_AS else name


def _has(kind: Kind, name: object, adapters: Adapters) -> bool:
    try:
        return isinstance(name, str) and adapters.has(kind, name)
    except InputError:  # a plugin that cannot be used
        return False


def _task(draft: Draft, meaning: Meaning, node: Node, name: str) -> None:
    """Set the task that the name of a class implies, or report that another one is set."""
    given, target = find_value(draft.root, "data.task"), find_value(draft.root, "data.target")
    task = meaning.task
    if given is not None and given.value in meaning.other_tasks:
        draft.problems.report(
            f"{name} is for {task}, but data.task is {given.value}; write model: {node.value}, or change the "
            "task",
            "model.type",
            node.source,
        )
    elif (given is None or given.value == "auto") and not (target and isinstance(target.value, list)):
        if find_value(draft.root, "data") is None and not draft.objects:
            return
        put(draft.root, "data.task", Node(task, node.source, node.key))
        draft.notes.append(f"{node.source}: data.task is {task}, as {name} says")


def _metrics(draft: Draft, path: str, node: Node) -> None:
    for index, item in enumerate(node.value if isinstance(node.value, list) else ()):
        _metric(draft, f"{path}.{index}", item, prefix="")


def _deciding(draft: Draft, path: str, node: Node) -> None:
    """Replace the metrics that decide something, but for the user's own, which mean what they say."""
    listed = find_value(draft.root, "evaluation.metrics")
    paths = listed.value if listed is not None and isinstance(listed.value, list) else ()
    own = {custom_name(str(item.value)) for item in paths if ":" in str(item.value)}
    if str(node.value).removeprefix("val_") not in own:
        _metric(draft, path, node, prefix="val_")
    for index, item in enumerate(node.value if isinstance(node.value, list) else ()):  # of a search
        _deciding(draft, f"{path}.{index}", item)


def _metric(draft: Draft, path: str, node: Node, prefix: str) -> None:
    """Replace another name of a metric by ours; one that decides gets the prefix `val_`."""
    if not isinstance(node.value, str) or ":" in node.value:
        return
    name, adapters = node.value, draft.installed
    split, bare = _parts(name, adapters)
    if (prefix and split in ("train", "test")) or (not prefix and split):
        return  # validation reports it
    is_ours = (bare == "loss" and prefix) or adapters.has("metric", bare)
    ours = bare if is_ours else adapters.metric_meant(bare)
    if ours is None:
        if not prefix:
            _dotted(draft, path, node)
    elif prefix + ours != name:
        _replace(draft, path, node, prefix + ours)


def _parts(name: str, adapters: Adapters) -> tuple[str, str]:
    """Return the split that a metric's name begins with, or nothing, and the rest."""
    match = re.match(r"([a-z]+)[_/.-](.+)", name.lower())
    if match is None or match[1] not in _SPLITS or adapters.has("metric", name):
        return "", name
    return _SPLITS[match[1]], match[2]


MERGED: tuple[tuple[str, Conversion], ...] = (
    ("training.per_device_batch_size", _per_device_batch_size),
    ("training.heads", _heads),
    ("training.loss", _loss),
    ("training.gradient_accumulation_steps", _accumulation),
)
NAMES: tuple[tuple[str, Conversion], ...] = (
    ("model.framework", _framework),
    ("model.type", _model),
    ("tuning.sampler.type", _sampler),
    ("evaluation.metrics", _metrics),
    *((path, _deciding) for path in (*METRIC_KEYS, "tuning.metric")),
    ("training.loss", _loss_path),
)
