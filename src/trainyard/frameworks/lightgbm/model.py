"""A model as text: the trees that LightGBM writes, kept one by one.

A round adds trees and changes none that are there (dart apart), so the text of an earlier model is the text of the
trees that it had. Seeds and the like, which LightGBM writes behind the trees, are left out: they differ between a run
and its resumption where the models do not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainyard.errors import ModelError
from trainyard.types import Array

_SIZES, _END = "\ntree_sizes=", "end of trees\n"


class Trees:
    """Trees in the order of their making; `width` of them belong to one round.

    Args:
        library: the module `lightgbm`.
        threads: that predictions take; LightGBM's number of threads is the process's, so it has to be the run's always.
    """

    def __init__(self, library: Any, width: int, threads: int) -> None:
        self._library = library
        self.width = width
        self._threads = threads
        self._whole: tuple[int, Any] | None = None  # the booster of so many rounds
        self.head = ""
        self.texts: list[str] = []

    @property
    def rounds(self) -> int:
        """How many there are."""
        return len(self.texts) // self.width

    def parse(self, text: str) -> None:
        """Takes over the trees of a model's text.

        Raises:
            ModelError: it is none, or one for other data, or for another objective than there was.
        """
        head, texts = split(text)
        if f"\nnum_tree_per_iteration={self.width}\n" not in head + "\n":
            raise ModelError("these weights are a LightGBM model for another number of classes")
        if self.head:
            _refuse_misfit(head, self.head)
        self.head, self.texts, self._whole = head, texts, None

    def cut(self, rounds: int) -> None:
        """Leaves the first `rounds`."""
        del self.texts[rounds * self.width :]
        self._whole = None

    def part(self, rounds: int) -> tuple[str, list[str]]:
        """The head and the trees of the model of the first `rounds`, for `joined`."""
        return self.head, self.texts[: rounds * self.width]

    def booster(self) -> Any:
        """A `lightgbm.Booster` of all rounds."""
        if self._whole is None or self._whole[0] != self.rounds:
            self._whole = self.rounds, self._library.Booster(model_str=joined(self.head, self.texts))
        return self._whole[1]

    def raw(self, features: Array) -> Array:
        """(rows, width) float64: the sum of all trees, added in their order."""
        if not self.texts:
            return np.zeros((len(features), self.width))
        found: Array = self.booster().predict(features, raw_score=True, num_threads=self._threads)
        return found.reshape(len(features), self.width)


def joined(head: str, trees: Sequence[str]) -> str:
    """The text of a model."""
    numbered = [f"Tree={i}\n{tree}" for i, tree in enumerate(trees)]
    return f"{head}{_SIZES}{' '.join(str(len(tree)) for tree in numbered)}\n\n{''.join(numbered)}{_END}"


def split(text: str) -> tuple[str, list[str]]:
    """What stands before the trees, and each tree without its number.

    Raises:
        ModelError: this is no model of LightGBM.
    """
    head, found, rest = text.partition(_SIZES)
    sizes, _, rest = rest.partition("\n")
    start, texts = 1, []
    for size in map(int, sizes.split()):
        texts.append(rest[start : start + size].partition("\n")[2])
        start += size
    if not found or not rest.startswith(_END, start):
        raise ModelError("these weights are no model of LightGBM")
    return head, texts


def _refuse_misfit(given: str, expected: str) -> None:
    """Compares what stands before the trees to go on from with what will stand before the new ones.

    Raises:
        ModelError: they are for another objective, or other features.
    """
    for key in ("objective", "feature_names"):
        line = re.compile(rf"^{key}=(.*)$", re.MULTILINE)
        found, wanted = (line.search(head) for head in (given, expected))
        if (found and found[1]) != (wanted and wanted[1]):
            was, will = (match[1] if match else "of its own" for match in (found, wanted))
            raise ModelError(f"the model to go on from has {key} {was}, the run {will}")
