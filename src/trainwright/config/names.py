"""Read other names of frameworks, models and metrics as ours; what they mean is known to the adapters."""

from __future__ import annotations

import re

from trainwright.config.adapters import Adapters, Kind, Meaning
from trainwright.config.metrics import METRIC_KEYS, own_name
from trainwright.config.other_models import elsewhere
from trainwright.config.synonyms import IMPORTED_AS
from trainwright.config.tree import Conversion, Draft, Node, find_value, put
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


def _loss(draft: Draft, path: str, node: Node) -> None:
    if isinstance(node.value, str) and "." in node.value and not draft.installed.has("loss", node.value):
        _dotted(draft, path, node)


def _dotted(draft: Draft, path: str, node: Node) -> None:
    """Read an import path with dots alone as one with a colon."""
    name = str(node.value)
    if DOTTED.fullmatch(name) and not name.endswith(FILES):
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
    own = {own_name(str(item.value)) for item in paths if ":" in str(item.value)}
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


NAMES: tuple[tuple[str, Conversion], ...] = (
    ("model.framework", _framework),
    ("model.type", _model),
    ("tuning.sampler.type", _sampler),
    ("evaluation.metrics", _metrics),
    *((path, _deciding) for path in (*METRIC_KEYS, "tuning.metric")),
    ("training.loss", _loss),
)
