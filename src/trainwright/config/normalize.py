"""Normalize one layer of a config, so that layers can be merged key by key: our keys, names and long forms.

The tables say what users of other tools write: `synonyms` their names of keys and values, `conversions` how
the values of a key become ours. Each translation is noted. Two spellings of one key are a problem.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache

from pydantic import BaseModel

from trainwright.config import synonyms
from trainwright.config.conversions import CONVERSIONS, FLAGS, SHORT_FORMS, is_path
from trainwright.config.fields import TypedSection
from trainwright.config.schema import (
    DataConfig,
    ModelConfig,
    NamedOptimizer,
    OptimizerConfig,
    RunConfig,
    TrackerConfig,
    TrainingConfig,
)
from trainwright.config.synonyms import fold
from trainwright.config.tree import Draft, Node, find, find_value, join, mapping, named, put, take
from trainwright.config.tuning import SamplerConfig, TunerConfig
from trainwright.config.words import without_null

# Other spellings, key by key first, then of whole sections; the order matters.
_SPELLINGS = (
    ("model.name", "model.type"),
    ("checkpointing.save_every_n_steps", "checkpoint.every_n_steps"),
    ("checkpointing.keep_n_checkpoints", "checkpoint.keep_last"),
    ("checkpointing", "checkpoint"),
    ("training.checkpoint", "checkpoint"),
    ("logging.log_every_n_steps", "logging.every_n_steps"),
    ("logging.eval_every_n_steps", "evaluation.every_n_steps"),
)
_FILES = {"train": "train_path", "val": "val_path", "validation": "val_path", "test": "test_path"}
_AMBIGUOUS = ("timeout",)  # keys that other tools have with another meaning
# Sections in which a key of another section, or its synonym, can mean nothing else.
_OPEN = ("", "training", "evaluation", "checkpoint", "logging", "experiment", "distributed")
_SECTIONS = tuple(dict.fromkeys([*_OPEN, "data", *synonyms.INSIDE]))
_OPTIONAL = ("experiment", "training", "evaluation", "checkpoint", "logging", "distributed")
# Sections whose `type` alone may stand for them, and whose other keys go into `params`, if they have it.
_TYPED: dict[str, type[TypedSection] | None] = {
    "data": DataConfig,
    "model": ModelConfig,
    "training.optimizer": OptimizerConfig,
    "training.loss": TypedSection,
    "tuning.sampler": SamplerConfig,
    "tuning.tuner": TunerConfig,
    "training.scheduler": None,
    "tuning.pruner": None,
}


def normalize(draft: Draft, own: Collection[str] | None = ()) -> None:
    """Rewrite the keys and values of one layer, in place.

    Args:
        draft: The layer.
        own: The options of `data.type`, which mean what they say; None: any key may be one.
    """
    _rename_sections(draft)
    for depth in range(3):  # first what may be a short form of the section that others go into
        for old, new in list(_synonyms(draft.root, own)):
            if new.count(".") <= depth:
                draft.move(old, new)
        draft.convert(SHORT_FORMS)
    for section in ("", "training", "distributed"):
        for key, node in list(mapping(find(draft.root, section) if section else draft.root).items()):
            if (flag := FLAGS.get(fold(key))) is not None:
                flag(draft, join(section, key), node)
    draft.convert(CONVERSIONS)
    _expand_sections(draft)


def _rename_sections(draft: Draft) -> None:
    """Read other names of sections; `train`, `val` and `test` are files of the data if they are texts."""
    given = mapping(draft.root)
    kind = find_value(draft.root, "model.type")
    for old, new in _SPELLINGS:
        if old != "model.name" or kind is None or not is_path(str(kind.value)):  # else an argument of a class
            draft.move(old, new)
    for name, key in _FILES.items():
        if name in given and isinstance(given[name].value, str):
            draft.move(name, f"data.{key}")
    for section, others in synonyms.SECTIONS.items():
        for other in others:
            draft.move(other, section)
    experiment = given.get("experiment")
    if experiment is not None and isinstance(experiment.value, str):
        experiment.value = {"name": Node(experiment.value, experiment.source, experiment.key)}


def _synonyms(root: Node, own: Collection[str] | None) -> Iterator[tuple[str, str]]:
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
    return None if section not in _OPEN or meaning.startswith(("data", "model")) else meaning


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


def key_meant(name: str) -> str | None:
    """Return the dotted key that a key means, with its section or without one; None if that is not known."""
    section, _, key = name.rpartition(".")
    return _meaning(section, key) or name if section else _meaning("", name.replace("-", "_"))


def _expand_sections(draft: Draft) -> None:
    """Bring sections into their long form: empty ones (all lines are comments), and those with a `type`."""
    sections = mapping(draft.root)
    for name in _OPTIONAL:
        if name in sections and sections[name].value is None:
            sections[name].value = {}
    if "tracking" in sections and sections["tracking"].value is None:
        sections["tracking"].value = []
    if (params := take(draft.root, "training.loss_params")) is not None:
        _put_into_loss(draft.root, params)
    for name, optimizer in mapping(find(draft.root, "training.optimizers")).items():
        _expand(draft, f"training.optimizers.{name}", optimizer, NamedOptimizer)
    for path, section in _TYPED.items():
        if (node := find(draft.root, path)) is not None:
            _expand(draft, path, node, section)
    transforms = find(draft.root, "data.transforms")
    for index, item in enumerate(
        transforms.value if transforms and isinstance(transforms.value, list) else ()
    ):
        _expand(draft, f"data.transforms.{index}", item, None)
        _custom_transform(item)
    for key, item in tracking_items(draft.root):
        _expand(draft, join("tracking", key), item, TrackerConfig)


def _put_into_loss(root: Node, params: Node) -> None:
    """Put `loss_params` into the section of the loss."""
    loss = find(root, "training.loss")
    if loss is not None and loss.value is not None and not isinstance(loss.value, dict):
        loss.value = named(loss)
    if loss is None or not isinstance(loss.value, dict):
        put(root, "training.loss", loss := Node({}, params.source, params.key))
    mapping(loss).setdefault("params", params)


def _custom_transform(item: Node) -> None:
    """Make `{type: package.module:name, ...}` a transform of type `custom`; the rest are its arguments."""
    options = mapping(item)
    kind = options.get("type")
    if kind is None or not isinstance(kind.value, str) or ":" not in kind.value:
        return
    params = {name: options.pop(name) for name in [*options] if name != "type"}
    given = params.pop("params", None)
    options |= {"function": kind, "params": Node({**params, **mapping(given)}, kind.source, kind.key)}
    options["type"] = Node("custom", kind.source, kind.key)


def tracking_items(root: Node) -> list[tuple[str, Node]]:
    """Return the trackers with their index; overrides such as `tracking.0.uri=...` hold them in a mapping."""
    tracking = find(root, "tracking")
    if tracking is not None and isinstance(tracking.value, list):
        return [(str(index), item) for index, item in enumerate(tracking.value)]
    return list(mapping(tracking).items())


def _expand(draft: Draft, path: str, node: Node, section: type[TypedSection] | None) -> None:
    if isinstance(node.value, str):
        node.value = named(node)
    if section is not None and isinstance(node.value, dict):
        _fold(draft, path, node.value, section)


def _fold(draft: Draft, path: str, children: dict[str, Node], section: type[TypedSection]) -> None:
    """Move the options that are written beside `type` into `params`."""
    inline = {name: child for name, child in children.items() if name not in section.model_fields}
    params = children.get("params")
    if not inline or (params is not None and params.value is not None and not isinstance(params.value, dict)):
        return  # nothing to fold, or `params` is not a mapping, which validation reports
    first = next(iter(inline.values()))
    options = mapping(params)
    for name, child in inline.items():
        del children[name]
        if name in options:
            other = options[name].key_source
            draft.problems.report(
                f"given twice: here and in params ({other}); keep one", join(path, name), child.key_source
            )
            continue
        child.inline = True
        options[name] = child
    if params is None:
        children["params"] = Node(options, first.key_source, first.key, inline=True)
    else:
        params.value = options
