"""The names that arrays in files usually have: which is the input, which the target, and of which split."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from trainwright.errors import DataError
from trainwright.types import INPUT_IDS, NO_LABEL, SPLITS, TARGET, Array, Batch, SplitName

_INPUTS = ("x", "data", "features", "images", "inputs", "input")
_TARGETS = ("y", "target", "targets", "label", "labels", "output", "outputs")
_SPLITS: Mapping[str, SplitName] = {**{name: name for name in SPLITS}, "valid": "val", "validation": "val"}
_USUAL_TARGETS = ("labels", "label", "target", "targets", "y")
_PERHAPS_TARGETS = ("mask", "masks", "boxes")  # beside which none of the usual names is plainly the target
FEATURE_NAMES = "feature_names"  # of the columns of a two-dimensional X
TEXT = "language models take text, and make its tokens: data: {type: text, path: FILE.txt} (docs/media.md)"
Letter = Literal["X", "y"]
LETTERS: Sequence[Letter] = ("X", "y")


class Role(NamedTuple):
    """The role of an array: `X`, the input, or `y`, the target; of one split, or of rows to be split."""

    letter: Letter
    split: SplitName | None

    def __str__(self) -> str:
        return self.letter if self.split is None else f"{self.letter}_{self.split}"


def role_of(name: str) -> Role | None:
    """Return what an array of a name usually is, or None: `labels`, `X_train`, `trainY`, `test_images`."""
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|[^\W_]+", name)]
    splits = [_SPLITS[word] for word in words if word in _SPLITS]
    rest = [word for word in words if word not in _SPLITS]
    if len(rest) != 1 or len(splits) > 1 or rest[0] not in (*_INPUTS, *_TARGETS):
        return None
    return Role("X" if rest[0] in _INPUTS else "y", splits[0] if splits else None)


def roles_of(names: Iterable[str]) -> dict[str, Role]:
    """Return the roles of arrays; none if they are not plainly pairs, each of an input and its target."""
    roles = {name: role_of(name) for name in names}
    known = {name: role for name, role in roles.items() if role is not None}
    splits = {role.split for role in known.values()}
    are_pairs = len(known) == len(roles) == len(set(known.values())) == 2 * len(splits)
    return known if are_pairs and (splits == {None} or (None not in splits and "train" in splits)) else {}


def usual_target(names: Iterable[Any], target: str) -> str | None:
    """Return the only name that targets usually have, where the config leaves `target` at its default.

    None if there is no such name, or several, or nothing to learn from beside it.
    """
    known = list(names)
    usual = [str(name) for name in known if name in (*_USUAL_TARGETS, *_PERHAPS_TARGETS)]
    if set(usual) & set(_PERHAPS_TARGETS):
        return None
    return usual[0] if target == TARGET and len(usual) == 1 and len(known) > 1 else None


def refuse_causal(inputs: Batch, targets: Array) -> None:
    """Refuse tokens as the labels of themselves, as causal language models of Transformers take them.

    Raises:
        DataError: The targets are such labels.
    """
    tokens = inputs.get(INPUT_IDS)
    if tokens is None or not np.ndim(tokens) or tokens.shape != targets.shape:
        return
    is_label = targets != NO_LABEL
    if is_label.any() and (tokens == targets)[is_label].all():
        raise DataError(f"the labels repeat input_ids; {TEXT}")


def with_usual_names(arrays: Mapping[str, Array], target: str) -> dict[str, Array]:
    """Return the arrays of a file with the names that `npz` documents, where theirs are other usual ones.

    An input of another name than X keeps it, as the model takes it by its name, unless the file names its
    columns.

    Args:
        arrays: The arrays by their names in the file.
        target: The name of the target in the config; an array that is called so is the target as it is.
    """
    roles = roles_of(name for name in arrays if name != FEATURE_NAMES)
    letters = {role.letter: name for name, role in roles.items() if role.split is None}
    if letters and _is_x(letters["X"], arrays):
        names = {letters["X"]: "X", letters["y"]: "y"}
    elif target in arrays:
        names = {}
    elif letters:
        names = {letters["y"]: target}
    else:
        names = {name: str(role) for name, role in roles.items()}
    return {names.get(name, name): array for name, array in arrays.items()}


def _is_x(name: str, arrays: Mapping[str, Array]) -> bool:
    """Return whether an input is the X of rows: by its name, or because its columns have names."""
    ndim = arrays[name].ndim
    return (name.lower() == "x" and ndim > 1) or (FEATURE_NAMES in arrays and ndim == 2)
