"""Boosting that a fresh booster takes up exactly.

What LightGBM carries from one round to the next, besides the trees, is the sum of their values for each training row
and the state of its random generators. The sum comes out of the trees again, bit by bit, since it is made in their
order. The generators, where there are any, are put into a state that is a function of (seed, round) at every tenth round
and wherever the learning rate changes, by resetting the booster's parameters. So what comes after a resume at a tenth
round is what would have come. (In every round it would do, too, but its 0.2 ms are felt.)

What resetting does, by LightGBM's sources (4.x): the features' generator starts anew where its seed differs from the one
before; the thresholds' (extra_trees) always do; the rows' only where the fraction of rows changes, which is why it alternates
between two values that no draw, a multiple of 1/32768, can tell apart.

Dart changes trees that are there, a random forest averages, and goss takes all rows until it has counted enough rounds: a
resume makes their rounds once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainyard.errors import TrainingError
from trainyard.frameworks.lightgbm.data import Rows, Scores
from trainyard.frameworks.lightgbm.model import Trees, split
from trainyard.frameworks.lightgbm.objective import Gradients
from trainyard.order import INIT, STEP, stream_seed
from trainyard.types import Array

_SEED_BITS = 30  # LightGBM counts on from a seed, within 31 bits
_SEED_STEPS = 1 << 10
_DRAWS = 32768  # its random numbers are multiples of 1 / _DRAWS
_NEVER = 1 << 30  # rounds: only we say when the rows are drawn anew
_TRIES = 100  # rounds, each with other rows
EVERY = 10  # rounds between two resets, where something is drawn; part of the model's definition
_ROWS, _FEATURES, _THRESHOLDS, _DROPS, _BINS = range(5)  # what is drawn


@dataclass(frozen=True)
class Recipe:
    """What the rounds are made with: `params` as LightGBM calls them, `seed` of the run, a custom objective's `gradients`."""

    params: dict[str, Any]
    seed: int
    gradients: Gradients | None = None

    @property
    def restarts(self) -> bool:
        """Whether only the rounds themselves lead to the state after them."""
        return self.changes or bool(self.params["data_sample_strategy"] == "goss")

    @property
    def changes(self) -> bool:
        """Whether a round changes what those before it made."""
        return bool(self.params["boosting"] != "gbdt")

    @property
    def rows_every(self) -> int:
        """Rounds between two draws of rows; 0: there are none."""
        return int(self.params["bagging_freq"]) if self.params["bagging_fraction"] < 1 else 0

    @property
    def draws(self) -> bool:
        """Whether anything is."""
        shares = (self.params["feature_fraction"], self.params["feature_fraction_bynode"])
        return bool(self.rows_every or min(shares) < 1 or self.params["extra_trees"])

    @property
    def boundary(self) -> int:
        """Rounds between two from which it goes on exactly."""
        return EVERY if self.draws and not self.restarts else 1

    def initial(self) -> dict[str, Any]:
        """The parameters that a booster begins with."""
        found = dict(self.params)
        if self.restarts:  # the generators run on from here
            uses = {
                "bagging_seed": _ROWS,
                "feature_fraction_seed": _FEATURES,
                "extra_seed": _THRESHOLDS,
                "drop_seed": _DROPS,
            }
            return found | {name: _short(stream_seed(self.seed, INIT, use)) for name, use in uses.items()}
        found["feature_fraction_seed"] = 1 << _SEED_BITS  # none that a round has
        if self.rows_every:
            found |= {
                "bagging_fraction": self._share(0),
                "bagging_freq": 1 if self.rows_every == 1 else _NEVER,
            }
        return found

    def of_round(self, step: int, learning_rate: float) -> dict[str, Any]:
        """What is reset before a round; those of two resets have other seeds always."""
        found = {"learning_rate": learning_rate, "num_threads": self.params["num_threads"]}
        return found | {
            "feature_fraction_seed": self._seed(step, _FEATURES),
            "extra_seed": self._seed(step, _THRESHOLDS),
        }

    def of_draw(self, step: int, side: int) -> dict[str, Any]:
        """What is reset to draw the rows of the round; `side` differs from that of the draw before."""
        return {
            "bagging_seed": self._seed(step - step % self.rows_every, _ROWS),
            "bagging_fraction": self._share(side),
        }

    def _seed(self, step: int, use: int) -> int:
        found = _short(stream_seed(self.seed, STEP, step, use))
        # A feature's generator that is given the seed it had does not start anew: by the round, too, neighbours differ.
        return found // _SEED_STEPS * _SEED_STEPS + step % _SEED_STEPS

    def _share(self, side: int) -> float:
        """The fraction of rows, or a little less, or more: always between the same two numbers that may be drawn."""
        share = float(self.params["bagging_fraction"])
        return (math.ceil(share * _DRAWS) - 0.4) / _DRAWS + side * 2.0**-40


def _short(seed: int) -> int:
    return seed % (1 << _SEED_BITS)


def bin_seed(seed: int) -> int:
    """Of the choice of rows that the bins are made from."""
    return _short(stream_seed(seed, INIT, _BINS))


class Boosting:
    """Makes rounds; their trees go to `trees`.

    Args:
        library: the module `lightgbm`.
        recipe: how.
        dataset: the training rows as a `lightgbm.Dataset`.
        rows: the same rows.
        trees: those that there are; new ones come with `collect`.
        sample: (rows as a `lightgbm.Dataset`, the same rows) that `converted` gives predictions of, or None.
    """

    def __init__(
        self,
        library: Any,
        recipe: Recipe,
        dataset: Any,
        rows: Rows,
        trees: Trees,
        sample: tuple[Any, Rows] | None,
    ) -> None:
        self._library = library
        self._recipe = recipe
        self._rows = {"training": (dataset, rows)} | ({"sample": sample} if sample else {})
        self._trees = trees
        self.begin([0], 0)
        self._open()  # here, since that finds what is wrong with the options

    def begin(self, ends: list[int], made: int) -> None:
        """From the trees that there are: `ends` are the rounds of the model after each step, from 0 on, which are fewer than
        the steps where no tree could be made; `made` the rounds of this run that have a split.
        """
        self._booster: Any = (
            None  # the next step makes it: often there is none, and only predictions are wanted
        )
        steps = len(ends) - 1 if self._recipe.restarts else 0
        if steps:
            ends, made = ends[:1], 0
            self._trees.cut(ends[0])
        self.ends, self.made = ends, made
        self._fetched = len(ends)  # those whose trees there are
        for step in range(steps):
            self.step(step, self._recipe.params["learning_rate"])
        self.collect()

    @property
    def waits(self) -> bool:
        """Whether there was no step yet since `begin`."""
        return self._booster is None

    def _open(self) -> None:
        self._first = self._trees.rounds
        self._fresh = True
        self._begun = False  # whether one of its rounds has a split
        self._rounds = 0  # of the booster
        self._kept: list[int] = []  # those that are the model's
        self._collected = (0, 0)  # how many of both have been fetched
        self._rate = 0.0
        self._side = 1
        if self._first:
            for data, rows in self._rows.values():
                raw = Scores(rows, self._trees.width).take(self._trees)
                data.set_init_score(raw if raw.shape[1] > 1 else raw[:, 0])
        self._booster = self._library.Booster(self._recipe.initial(), self._rows["training"][0])
        if "sample" in self._rows:
            self._booster.add_valid(self._rows["sample"][0], "sample")
        self._trees.head, _ = split(self._booster.model_to_string())

    def step(self, step: int, learning_rate: float) -> None:
        """One round."""
        if self._booster is None:
            self._open()
        if not self._recipe.restarts:
            self._make_first()
        empty = self._update(lambda: self._reset(step, learning_rate))
        self._fresh = False
        self.made += not empty
        self._begun |= not empty
        if not empty or not self._rounds:  # LightGBM keeps its first tree even if it is empty
            if not empty or not self._first:  # but of the model it may not be the first
                self._kept.append(self._rounds)
            self._rounds += 1
        self.ends.append(self._first + len(self._kept))

    def collect(self) -> None:
        """Brings `trees` up to the last step."""
        if self._fetched == len(self.ends):
            return
        self._fetched = len(self.ends)
        if self._recipe.changes:
            self._trees.cut(self._first)
            self._collected = (0, 0)
        (rounds, kept), width = self._collected, self._trees.width
        _, texts = split(self._booster.model_to_string(start_iteration=rounds))
        for number in self._kept[kept:]:
            start = (number - rounds) * width
            self._trees.texts.extend(texts[start : start + width])
        self._collected = self._rounds, len(self._kept)

    @property
    def rounds(self) -> int:
        """Of the model."""
        return self.ends[-1]

    def values(self, start: int, stop: int, features: Array) -> Array:
        """(stop - start, rows, width) float64: what the trees of these rounds, which were made since `begin`, add."""
        own, width = self._kept[start - self._first : stop - self._first], self._trees.width
        where = {"start_iteration": own[0], "num_iteration": own[-1] - own[0] + 1}
        leaves = self._booster.predict(
            features, pred_leaf=True, num_threads=self._recipe.params["num_threads"], **where
        )
        leaves = leaves.reshape(len(features), -1, width)
        found = np.empty((len(own), len(features), width))
        for i, number in enumerate(own):
            for k in range(width):
                picked, tree = leaves[:, number - own[0], k], number * width + k
                outputs = [self._booster.get_leaf_output(tree, leaf) for leaf in range(picked.max() + 1)]
                found[i, :, k] = np.array(outputs)[picked]
        return found

    def converted(self) -> Array:
        """(rows, width) LightGBM's predictions for the sample; raw scores where the objective is a custom one."""
        found: list[Array] = []

        def look(predictions: Array, _: Any) -> tuple[str, float, bool]:
            found.append(predictions)
            return "", 0.0, True

        self._booster.eval_valid(feval=look)
        return found[0].reshape(len(self._rows["sample"][1]), -1)

    def _reset(self, step: int, learning_rate: float) -> None:
        recipe, every = self._recipe, self._recipe.rows_every
        if recipe.restarts:
            return
        due = learning_rate != self._rate or (recipe.draws and step % EVERY == 0)
        rows = every > 1 and (
            step % every == 0 or not self.made
        )  # what stays for several rounds is drawn when it is due
        if not (due or rows):
            return
        values = recipe.of_round(step, learning_rate)
        if rows or every == 1 or (every and self._fresh):
            self._side = -self._side
            values |= recipe.of_draw(step, self._side)
        self._rate = learning_rate
        self._booster.reset_parameter(values)

    def _update(self, prepare: Callable[[], None]) -> bool:
        """Whether no tree could be made."""
        gradients = self._recipe.gradients
        if gradients is None:
            prepare()
            return bool(self._booster.update())

        def objective(raw: Array, dataset: Any) -> tuple[Array, Array]:
            prepare()  # here, as LightGBM resets parameters itself before it asks for the first gradients
            return gradients(raw, dataset)

        return bool(self._booster.update(fobj=objective))

    def _make_first(self) -> None:
        """Gives a fresh booster a first round that adds nothing: before that, it draws rows anew whatever we say.

        Raises:
            TrainingError: there is no split to be made.
        """
        if self._recipe.rows_every <= 1 or self._begun or not self.made:
            return
        gain = self._recipe.params["min_gain_to_split"]
        self._booster.reset_parameter(
            {"learning_rate": 1e-100, "min_gain_to_split": 0.0}
        )  # values are rounded away
        for _ in range(_TRIES):
            self._begun = not self._update(lambda: None)
            if self._begun:
                break
        else:
            raise TrainingError("the training cannot go on from here: no split is left to be made")
        self._rounds = self._booster.current_iteration()
        self._booster.reset_parameter({"min_gain_to_split": gain})
