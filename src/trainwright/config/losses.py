"""The loss and its options: `loss: {type: mine:Loss, alpha: 0.5}`, as other sections with a type have them.

Layers hold the loss as such a section, so that they are merged as others are. In the merged config it is two
keys of `training`: the name alone, and `loss_params`. Options of a loss of ours are keys of `training`.
"""

from __future__ import annotations

from trainwright.config.tree import Node, Problems, find, mapping, put, take

LOSS, PARAMS, HEADS = "training.loss", "training.loss_params", "training.heads"
# Options of losses of ours, by the names that users know, and the keys of `training` that they are.
_OURS = {
    "gamma": "focal_gamma",
    "focal_gamma": "focal_gamma",
    "label_smoothing": "label_smoothing",
    "class_weights": "class_weights",
}


def as_section(root: Node) -> None:
    """Put `loss_params` of one layer into the section of the loss, in place."""
    if (params := take(root, PARAMS)) is None:
        return
    loss = find(root, LOSS)
    if loss is not None and loss.value is not None and not isinstance(loss.value, dict):
        loss.value = {"type": Node(loss.value, loss.source, loss.key, bare=loss.bare)}
    if loss is None or not isinstance(loss.value, dict):
        put(root, LOSS, Node({}, params.source, params.key))
    mapping(find(root, LOSS)).setdefault("params", params)


def _settle_head(path: str, head: dict[str, Node], problems: Problems) -> None:
    """Divide the loss of one of several heads, whose options only losses of the user's own have."""
    loss = head.get("loss")
    if loss is None or not isinstance(loss.value, dict):
        return
    options = dict(loss.value)
    kind, params = options.pop("type", None), options.pop("params", None)
    given = mapping(params) | options
    head["loss"] = kind or Node("auto", loss.source, loss.key)
    name = head["loss"].value
    if given and (not isinstance(name, str) or (":" not in name and "." not in name)):
        message = (
            f"the loss {name} of a head has no options; write a loss of your own, package.module:function"
        )
        problems.report(message, f"{path}.loss", loss.source)
    elif given:
        head["loss_params"] = Node(given | mapping(head.get("loss_params")), loss.source, loss.key)


def settle(root: Node, problems: Problems, notes: list[str]) -> None:
    """Divide the section of each loss in the merged config into the name and the options, in place."""
    for of, head in mapping(find(root, HEADS)).items():
        _settle_head(f"{HEADS}.{of}", mapping(head), problems)
    loss = find(root, LOSS)
    if loss is None or not isinstance(loss.value, dict):
        return
    take(root, LOSS)
    kind, params = loss.value.get("type"), loss.value.get("params")
    name = "auto" if kind is None else kind.value
    if kind is not None:
        put(root, LOSS, kind)
    if params is None or params.value == {}:
        return
    if not isinstance(params.value, dict) or (isinstance(name, str) and (":" in name or "." in name)):
        put(root, PARAMS, params)  # validation reports what is no mapping
        return
    for option, node in params.value.items():
        key = _OURS.get(option)
        other = None if key is None else find(root, f"training.{key}")
        if key is None:
            problems.report(
                f"the loss {name} has no option {option!r}; ours have gamma, label_smoothing, class_weights",
                LOSS,
                node.key_source,
            )
        elif other is None or other.value is None:
            put(root, f"training.{key}", node)
            if option != key:
                notes.append(f"{node.key_source}: {LOSS}.{option} is read as training.{key}")
        elif other.value != node.value:
            where = f"training.{key} is given, too ({other.key_source}); keep one"
            problems.report(f"{option}: {where}", LOSS, node.key_source)
