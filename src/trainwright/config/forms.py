"""Bring the short forms of a config into the long one: a name for `{type: name}`, options beside `type`."""

from __future__ import annotations

from trainwright.config import losses
from trainwright.config.fields import TypedSection
from trainwright.config.schema import DataConfig, ModelConfig, OptimizerConfig, TrackerConfig
from trainwright.config.tree import Node, Problems, find, join, mapping
from trainwright.config.tuning import SamplerConfig, TunerConfig

TYPED: dict[str, type[TypedSection]] = {
    "data": DataConfig,
    "model": ModelConfig,
    "training.optimizer": OptimizerConfig,
    "training.loss": TypedSection,
    "tuning.sampler": SamplerConfig,
    "tuning.tuner": TunerConfig,
}
OPTIONAL_SECTIONS = ("experiment", "training", "evaluation", "checkpoint", "logging", "distributed")


def normalize(root: Node, problems: Problems) -> None:
    """Bring one layer into the long form, in place, so that layers can be merged key by key.

    A section without content (all its lines are comments, for example) becomes an empty mapping.
    """
    sections = mapping(root)
    for name in OPTIONAL_SECTIONS:
        if name in sections and sections[name].value is None:
            sections[name].value = {}
    if "tracking" in sections and sections["tracking"].value is None:
        sections["tracking"].value = []
    losses.as_section(root)
    for path, section in TYPED.items():
        _expand(find(root, path), path, section, problems)
    for path in ("training.scheduler", "tuning.pruner"):
        _expand(find(root, path), path, None, problems)
    transforms = find(root, "data.transforms")
    for index, item in enumerate(
        transforms.value if transforms and isinstance(transforms.value, list) else []
    ):
        _expand(item, join("data.transforms", str(index)), None, problems)
        _own_transform(item)
    for key, item in tracking_items(root):
        _expand(item, join("tracking", key), TrackerConfig, problems)


def _own_transform(item: Node) -> None:
    """Make `{type: package.module:name, ...}` a transform of the type `own`; the rest are its arguments."""
    options = mapping(item)
    kind = options.get("type")
    if kind is None or not isinstance(kind.value, str) or ":" not in kind.value:
        return
    params = {name: options.pop(name) for name in [*options] if name != "type"}
    given = params.pop("params", None)
    options |= {"function": kind, "params": Node({**params, **mapping(given)}, kind.source, kind.key)}
    options["type"] = Node("own", kind.source, kind.key)


def tracking_items(root: Node) -> list[tuple[str, Node]]:
    """Return the trackers with their index; overrides such as `tracking.0.uri=...` hold them in a mapping."""
    tracking = find(root, "tracking")
    if tracking is not None and isinstance(tracking.value, list):
        return [(str(index), item) for index, item in enumerate(tracking.value)]
    return list(mapping(tracking).items())


def _expand(node: Node | None, path: str, section: type[TypedSection] | None, problems: Problems) -> None:
    if node is None:
        return
    if isinstance(node.value, str):
        node.value = {"type": Node(node.value, node.source, node.key, bare=node.bare)}
    if section is not None and isinstance(node.value, dict):
        _fold(node.value, path, section, problems)


def _fold(children: dict[str, Node], path: str, section: type[TypedSection], problems: Problems) -> None:
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
            problems.report(
                f"given twice: here and in params ({other}); keep one", join(path, name), child.key_source
            )
            continue
        child.inline = True
        options[name] = child
    if params is None:
        children["params"] = Node(options, first.key_source, first.key, inline=True)
    else:
        params.value = options
