"""Read other names of frameworks, models and metrics as ours; what they mean is known to the adapters."""

from __future__ import annotations

import re

from trainwright.config.adapters import Adapters, Kind, Meaning
from trainwright.config.metrics import METRIC_KEYS, own_name
from trainwright.config.other_models import elsewhere
from trainwright.config.synonyms import IMPORTED_AS
from trainwright.config.tree import Node, Problems, find_value, put
from trainwright.config.words import nearest, some
from trainwright.errors import InputError

DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
FILES = (".py", ".pt", ".pth", ".pkl", ".joblib", ".onnx", ".safetensors", ".keras", ".h5", ".bin", ".json")
SPLITS = {
    "val": "val",
    "valid": "val",
    "validation": "val",
    "eval": "val",
    "dev": "val",
    "train": "train",
    "test": "test",
}


def translate(root: Node, adapters: Adapters, problems: Problems, notes: list[str], *, objects: bool) -> None:
    """Put our names of the framework, the model and the metrics into a merged config.

    Args:
        root: The config.
        adapters: The installed adapters.
        problems: Where problems are reported.
        notes: Where translations are noted.
        objects: The data are given in Python, so there need be no `data` section.
    """
    _framework(root, adapters, notes)
    _model(root, adapters, problems, notes, objects=objects)
    _sampler(root, adapters, notes)
    own = _metrics(root, adapters, notes)
    deciding = {path: find_value(root, path) for path in (*METRIC_KEYS, "tuning.metric")}
    searched = deciding["tuning.metric"]
    if searched is not None and isinstance(searched.value, list):
        deciding |= {f"tuning.metric.{index}": item for index, item in enumerate(searched.value)}
    for path, node in deciding.items():
        if node is None or str(node.value).removeprefix("val_") not in own:
            _metric(node, adapters, path, notes, prefix="val_")
    loss = find_value(root, "training.loss")
    is_path = loss is not None and isinstance(loss.value, str) and "." in loss.value
    if loss is not None and is_path and not adapters.has("loss", str(loss.value)):
        _dotted(loss, "training.loss", notes)


def _metrics(root: Node, adapters: Adapters, notes: list[str]) -> set[str]:
    """Translate `evaluation.metrics`, and return the names of the user's own, which mean what they say."""
    metrics = find_value(root, "evaluation.metrics")
    items = metrics.value if metrics is not None and isinstance(metrics.value, list) else []
    for index, item in enumerate(items):
        _metric(item, adapters, f"evaluation.metrics.{index}", notes, prefix="")
    return {own_name(str(item.value)) for item in items if ":" in str(item.value)}


def _framework(root: Node, adapters: Adapters, notes: list[str]) -> None:
    node = find_value(root, "model.framework")
    if node is None or not isinstance(node.value, str) or _has("framework", node.value, adapters):
        return
    if (meaning := adapters.framework_meant(node.value)) is not None:
        notes.append(f"{node.source}: model.framework: {node.value} is read as {meaning}")
        node.value = meaning


def _sampler(root: Node, adapters: Adapters, notes: list[str]) -> None:
    node = find_value(root, "tuning.sampler.type")
    if node is None or not isinstance(node.value, str) or _has("sampler", node.value, adapters):
        return
    if (meaning := adapters.sampler_meant(node.value.removeprefix("optuna.samplers."))) is not None:
        notes.append(f"{node.source}: tuning.sampler: {node.value} is read as {meaning}")
        node.value = meaning


def _model(root: Node, adapters: Adapters, problems: Problems, notes: list[str], *, objects: bool) -> None:
    node, chosen = find_value(root, "model.type"), find_value(root, "model.framework")
    if node is None or not isinstance(node.value, str) or ":" in node.value:
        return
    name, framework = node.value, chosen.value if chosen is not None else None
    if framework is not None and not _has("framework", framework, adapters):
        return  # the lookup reports it
    asked = framework if isinstance(framework, str) else None
    if (asked is None and adapters.framework_of(name) is not None) or (
        asked and adapters.has("model", name, asked)
    ):
        return
    if (meaning := adapters.model_meant(_without_module(name), asked)) is not None:
        node.value = meaning.name
        notes.append(f"{node.source}: model.type: {name} is read as {meaning.name} ({meaning.framework})")
        if meaning.task is not None:
            _task(root, meaning, node, name, problems, notes, objects=objects)
    else:
        _dotted(node, "model.type", notes)


def _dotted(node: Node, path: str, notes: list[str]) -> None:
    """Read an import path with dots alone as one with a colon."""
    name = str(node.value)
    if DOTTED.fullmatch(name) and not name.endswith(FILES):
        node.value = ":".join(name.rsplit(".", 1))
        notes.append(f"{node.source}: {path}: {name} is read as {node.value}")


def _without_module(name: str) -> str:
    """Return the class in `xgb.XGBClassifier` or `svm.SVC`: names of modules as they are usually imported."""
    module, _, last = name.rpartition(".")
    return last if module in IMPORTED_AS else name


def _has(kind: Kind, name: object, adapters: Adapters) -> bool:
    try:
        return isinstance(name, str) and adapters.has(kind, name)
    except InputError:  # a plugin that cannot be used
        return False


def _task(
    root: Node,
    meaning: Meaning,
    node: Node,
    name: str,
    problems: Problems,
    notes: list[str],
    *,
    objects: bool,
) -> None:
    """Set the task that the name of a class implies, or report that another one is set."""
    given, target = find_value(root, "data.task"), find_value(root, "data.target")
    task = meaning.task
    if given is not None and given.value in meaning.other_tasks:
        problems.report(
            f"{name} is for {task}, but data.task is {given.value}; write model: {node.value}, or change the "
            "task",
            "model.type",
            node.source,
        )
    elif (given is None or given.value == "auto") and not (target and isinstance(target.value, list)):
        if find_value(root, "data") is None and not objects:
            return
        put(root, "data.task", Node(task, node.source, node.key))
        notes.append(f"{node.source}: data.task is {task}, as {name} says")


def _metric(node: Node | None, adapters: Adapters, path: str, notes: list[str], prefix: str) -> None:
    """Replace another name of a metric by ours; one that decides gets the prefix `val_`."""
    if node is None or not isinstance(node.value, str) or ":" in node.value:
        return
    name = node.value
    split, bare = _parts(name, adapters)
    if (prefix and split in ("train", "test")) or (not prefix and split):
        return  # validation reports it
    if (bare == "loss" and prefix) or adapters.has("metric", bare):
        ours = bare
    elif (meant := adapters.metric_meant(bare)) is not None:
        ours = meant
    else:
        if not prefix:
            _dotted(node, path, notes)
        return
    if prefix + ours != name:
        node.value = prefix + ours
        notes.append(f"{node.source}: {path}: {name} is read as {node.value}")


def _parts(name: str, adapters: Adapters) -> tuple[str, str]:
    """Return the split that a metric's name begins with, or nothing, and the rest."""
    match = re.match(r"([a-z]+)[_/.-](.+)", name.lower())
    if match is None or match[1] not in SPLITS or adapters.has("metric", name):
        return "", name
    return SPLITS[match[1]], match[2]


def unknown_model(name: str, framework: str | None, adapters: Adapters) -> str:
    """Return the message for a model that no framework has, or that the chosen one has not."""
    if (hint := elsewhere(name)) is not None:
        return f"model {name}: {hint}"
    if framework is not None:
        models = adapters.names("model", framework)
        near = nearest(name, models)
        if not near and (meaning := adapters.model_meant(name)) is not None:
            near = f"; {meaning.framework} has it as {meaning.name}: leave model.framework out"
        listed = some(models, name, "model")
        return f"model {name}: {framework} has no such model; known: {listed}{near}"
    known, broken = adapters.names("model"), adapters.broken("model")
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()  # RandomForestClassifier
    bare = re.sub(r"_(classifier|regressor|model)$", "", snake)
    near = nearest(name, known) or nearest(bare, known)
    hints = [] if near else [f"known: {some(known, bare, 'model')}", "or package.module:Class"]
    return "; ".join([f"model {name}: no installed framework has it{near}", *hints, *broken])
