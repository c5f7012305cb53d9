"""Convert what depends on several keys of a config, which several layers may have given.

A loss with options is a section, `loss: {type: mine:Loss, alpha: 0.5}`, so that its layers are merged as
those of other sections with a type are. Then it becomes two keys of `training`: the name alone, and
`loss_params`; options of a loss of ours are keys of `training`.
"""

from __future__ import annotations

from trainwright.config.conversions import is_path
from trainwright.config.schema import TrainingConfig
from trainwright.config.tree import OLDER, Conversion, Draft, Node, find, find_value, mapping, put, take
from trainwright.config.words import literal

# Options of losses of ours, by the names that users know, and the keys of `training` that they are.
_OURS = {
    "gamma": "focal_gamma",
    "focal_gamma": "focal_gamma",
    "label_smoothing": "label_smoothing",
    "class_weights": "class_weights",
}


def _names_own(name: object) -> bool:
    """Return whether a loss is named by its import path, in which a dot may stand for the colon."""
    return is_path(name) or (isinstance(name, str) and "." in name)


def _heads(draft: Draft, path: str, node: Node) -> None:
    """Divide the losses of several heads; only losses of the user's own have options there."""
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
    if given and not _names_own(name):
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
    if not isinstance(params.value, dict) or _names_own(name):
        put(draft.root, f"{path}_params", params)  # validation reports what is no mapping
        return
    for option, given in params.value.items():
        _option(draft, f"the loss {name}", option, given)


def _option(draft: Draft, loss: str, option: str, node: Node) -> None:
    """Make an option of a loss of ours the key of `training` that it is."""
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
        draft.problems.report(message, path, node.key_source)
    draft.move(path, new)


def _accumulation(draft: Draft, path: str, node: Node) -> None:
    """Read n accumulation steps and a `batch_size` of b as a batch size of n*b and a microbatch size of b."""
    take(draft.root, path)
    if not isinstance(node.value, int) or isinstance(node.value, bool) or node.value < 1:
        draft.problems.report("expected a whole number above 0", path, node.source)
        return
    if find_value(draft.root, "training.microbatch_size") is not None:
        message = f"is {OLDER} training.microbatch_size, which is given too; keep one"
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


MERGED: tuple[tuple[str, Conversion], ...] = (
    ("training.per_device_batch_size", _per_device_batch_size),
    ("training.heads", _heads),
    ("training.loss", _loss),
    ("training.gradient_accumulation_steps", _accumulation),
)
