"""Search for the largest compression that passes a gate."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainwright.errors import GateError, InputError
from trainwright.evaluation.gates import Condition, Gate
from trainwright.records.compression import LayerRecord, Recipe

log = logging.getLogger("trainwright")
_PARTS = 32  # shares that a search of pruning tries are multiples of its share / 32
_RATED = ("val_",)  # beginnings of the metrics that a search looks at: the test split must not choose


@dataclass(frozen=True)
class Trial:
    """A compression that was tried: the validation metrics, and the bytes that are stored."""

    recipe: Recipe
    values: Mapping[str, float]
    bytes: int
    layers: Sequence[LayerRecord]


@dataclass
class Search:
    """A search; the same models and gate give the same answer.

    Quantization is chosen layer by layer: each layer alone first, which is its sensitivity, then all together
    in the order of that, each kept if the gate is still passed. A share is bisected.

    Args:
        gate: The gate; only its conditions on validation metrics count here.
        reference: The name by which conditions refer to the parent.
        parent: The metrics of the parent.
        attempt: Compresses by a recipe, and evaluates.
    """

    gate: Gate
    reference: str
    parent: Mapping[str, float]
    attempt: Callable[[Recipe], Trial]
    trials: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._conditions: list[Condition] = [
            one for one in self.gate.conditions if one.name.startswith(_RATED)
        ]
        if not self._conditions:
            raise InputError(
                f"--search needs a gate on a validation metric, which {self.gate.text!r} is not: the test "
                "split must not choose; write, for example, --gate 'val_loss <= parent * 1.01'"
            )

    def largest(self, recipe: Recipe) -> Recipe:
        """Return the largest compression that passes the gate.

        Raises:
            GateError: None passes.
        """
        first = self._tried(recipe, "all")
        if self._passes(first):
            return recipe
        for name in ("prune", "leaves"):
            if getattr(recipe, name):
                recipe = self._share(recipe, name)
        if recipe.quantize:
            recipe = self._layers(recipe, first)
        if not (recipe.prune or recipe.leaves or recipe.layers):
            found = {"search": self.trials_json()}
            raise GateError("no compression passes the gate, so no run is kept: see the table", found)
        return recipe

    def trials_json(self) -> list[dict[str, Any]]:
        """Return what was tried, in order."""
        return self.trials

    def _share(self, recipe: Recipe, name: str) -> Recipe:
        """Return the recipe with the largest share of one kind that passes without quantization; maybe 0."""
        low, high, whole = 0, _PARTS, getattr(recipe, name)
        while high - low > 1:
            middle = (low + high) // 2
            share = whole * middle / _PARTS
            trial = self._tried(
                recipe.model_copy(update={name: share, "quantize": None}), f"{name} {share:g}"
            )
            low, high = (middle, high) if self._passes(trial) else (low, middle)
        return recipe.model_copy(update={name: whole * low / _PARTS})

    def _layers(self, recipe: Recipe, first: Trial) -> Recipe:
        """Return the recipe with the layers that can be quantized together."""
        names = [layer.name for layer in first.layers if layer.scheme == recipe.quantize]
        alone = {name: self._tried(_of(recipe, [name]), name) for name in names}
        order = sorted(names, key=lambda name: (-self._margin(alone[name]), names.index(name)))
        chosen: list[str] = []
        for name in order:
            trial = self._tried(_of(recipe, [*chosen, name]), f"{len(chosen) + 1} layers, with {name}")
            if self._passes(trial):
                chosen.append(name)
        if not chosen and recipe.prune:
            return recipe.model_copy(update={"quantize": None})
        return _of(recipe, chosen)

    def _tried(self, recipe: Recipe, what: str) -> Trial:
        trial = self.attempt(recipe)
        self.trials.append(
            {
                "tried": what,
                "bytes": trial.bytes,
                **{one.name: trial.values[one.name] for one in self._conditions},
                "passed": self._passes(trial),
            }
        )
        log.info("search: %s: %s", what, "passed" if self.trials[-1]["passed"] else "not passed")
        return trial

    def _passes(self, trial: Trial) -> bool:
        references = {self.reference: self.parent}
        return all(one.passes(trial.values, references) for one in self._conditions)

    def _margin(self, trial: Trial) -> float:
        """Return how far a trial is from failing, by its first condition."""
        return self._conditions[0].margin(trial.values, {self.reference: self.parent})


def _of(recipe: Recipe, layers: Sequence[str]) -> Recipe:
    return recipe.model_copy(update={"layers": list(layers)})
