"""A model as text: the trees in LightGBM's text format, kept one by one.

Except with dart, a round adds trees and changes none of the earlier ones, so the text of an earlier model
consists of the texts of its trees. The parameters that LightGBM writes after the trees, such as seeds, are
left out: they may differ between a run and its resumption even though the models are equal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from trainwright.errors import ModelError
from trainwright.frameworks.lightgbm.library import THREAD_NUMBER
from trainwright.types import Array

_SIZES, _END = "\ntree_sizes=", "end of trees\n"


class Trees:
    """The trees of a model in the order they were grown, `width` of them per round.

    Args:
        library: The module `lightgbm`.
        width: Trees per round: 1, or the number of classes if there are more than two.
        threads: Threads for predictions. LightGBM sets the number for the whole process, so in a training
            this must be the run's. None leaves the number as it is.
    """

    def __init__(self, library: Any, width: int, threads: int | None) -> None:
        self.library = library
        self.width = width
        self._threads = threads
        self._cached: tuple[int, Any] | None = None  # (rounds, the booster of these rounds)
        self.head = ""
        self.texts: list[str] = []

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return len(self.texts) // self.width

    def parse(self, text: str) -> None:
        """Replace the trees by those of a model's text.

        Raises:
            ModelError: This is not a LightGBM model, or its objective, features or number of classes differ.
        """
        head, texts = split_model(text)
        if f"\nnum_tree_per_iteration={self.width}\n" not in head + "\n":
            raise ModelError("these weights are a LightGBM model for another number of classes")
        if self.head:
            _check_header(head, self.head)
        self.head, self.texts, self._cached = head, texts, None

    def truncate(self, rounds: int) -> None:
        """Keep only the first `rounds` rounds."""
        del self.texts[rounds * self.width :]
        self._cached = None

    def part(self, rounds: int) -> tuple[str, list[str]]:
        """Return the header and the trees of the first `rounds` rounds, for `join_model`."""
        return self.head, self.texts[: rounds * self.width]

    def booster(self) -> Any:
        """Return a `lightgbm.Booster` of all rounds; it is cached until the trees change."""
        if self._cached is None or self._cached[0] != self.rounds:
            self._cached = self.rounds, self.library.Booster(model_str=join_model(self.head, self.texts))
        return self._cached[1]

    def raw_scores(self, features: Array) -> Array:
        """Return (rows, width) float64 sums of the values of all trees, added in the order of the trees."""
        if not self.texts:
            return np.zeros((len(features), self.width))
        booster, number = self.booster(), self._threads
        with THREAD_NUMBER.kept(self.library) if number is None else nullcontext(number) as threads:
            scores: Array = booster.predict(features, raw_score=True, num_threads=threads)
        return scores.reshape(len(features), self.width)


def join_model(head: str, trees: Sequence[str]) -> str:
    """Return the text of a model."""
    numbered = [f"Tree={i}\n{tree}" for i, tree in enumerate(trees)]
    return f"{head}{_SIZES}{' '.join(str(len(tree)) for tree in numbered)}\n\n{''.join(numbered)}{_END}"


def split_model(text: str) -> tuple[str, list[str]]:
    """Split a model's text into its header and its trees, each without its number.

    Raises:
        ModelError: This is not a LightGBM model.
    """
    head, separator, rest = text.partition(_SIZES)
    sizes, _, rest = rest.partition("\n")
    start, texts = 1, []
    for size in map(int, sizes.split()):
        texts.append(rest[start : start + size].partition("\n")[2])
        start += size
    if not separator or not rest.startswith(_END, start):
        raise ModelError("these are not the weights of a LightGBM model")
    return head, texts


def _check_header(initial: str, expected: str) -> None:
    """Compare the header of the model to continue from with that of the run's own model.

    Raises:
        ModelError: Objective or features differ.
    """
    for key in ("objective", "feature_names"):
        line = re.compile(rf"^{key}=(.*)$", re.MULTILINE)
        old, new = (line.search(head) for head in (initial, expected))
        if (old and old[1]) != (new and new[1]):
            was, will = (match[1] if match else "custom" for match in (old, new))
            raise ModelError(f"the initial model has {key} {was}, the run {will}; make them agree")
