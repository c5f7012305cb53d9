"""Cut the trees in the text of a LightGBM model."""

from __future__ import annotations

import numpy as np

from trainwright.errors import InputError
from trainwright.frameworks.support.smaller_trees import cut_tree

_SPLITS = (
    "split_feature",
    "split_gain",
    "threshold",
    "decision_type",
    "internal_value",
    "internal_weight",
    "internal_count",
)


def cut_text(text: str, share: float) -> str:
    """Return the text of a tree without a share of its leaves.

    Thresholds of categories stay, also those of splits that are gone: the splits refer to them by number.

    Raises:
        InputError: Its leaves hold linear models.
    """
    lines = [line.partition("=") for line in text.split("\n")]
    fields = {name: value.split() for name, _, value in lines}
    if fields.get("is_linear") == ["1"]:
        raise InputError("trees with linear models in their leaves cannot be cut; drop trees with --prune")
    leaves = int(fields["num_leaves"][0])
    if leaves < 3:
        return text
    splits = leaves - 1  # the nodes are these, then the leaves; in the text, leaf i is the child -i - 1
    children = [np.array(fields[name], np.int64) for name in ("left_child", "right_child")]
    left, right = (
        np.concatenate([np.where(one < 0, splits - one - 1, one), np.full(leaves, -1)]) for one in children
    )
    gain = np.array(fields["split_gain"] + ["0"] * leaves, np.float64)
    cover, values = (
        np.array(["0"] * splits + fields[name], np.float64) for name in ("leaf_weight", "leaf_value")
    )
    counts = np.array(fields["internal_count"] + fields["leaf_count"])
    weights = fields["internal_weight"] + fields["leaf_weight"]
    tree = cut_tree(left, right, gain, cover, values, share)
    inner, outer = tree.left >= 0, tree.left < 0
    number = np.where(inner, np.cumsum(inner) - 1, 0 - np.cumsum(outer))
    ends = tree.kept[outer]
    new = {name: [fields[name][i] for i in tree.kept[inner]] for name in _SPLITS}
    new |= {
        "num_leaves": [str(len(ends))],
        "left_child": [str(one) for one in number[tree.left[inner]]],
        "right_child": [str(one) for one in number[tree.right[inner]]],
        "leaf_value": [
            repr(float(tree.values[i])) if i < splits else fields["leaf_value"][i - splits] for i in ends
        ],
        "leaf_weight": [weights[i] for i in ends],
        "leaf_count": [str(counts[i]) for i in ends],
    }
    return "\n".join(
        f"{name}={' '.join(new[name])}" if name in new else name + sep + value for name, sep, value in lines
    )
