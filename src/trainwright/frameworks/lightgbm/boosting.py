"""Boosting that a new booster resumes bit-identically.

Besides the trees, LightGBM carries two things from one round to the next: the raw score of each training row,
and the state of its random generators. The scores follow from the trees, to the same bits, since they are
added in the order of the trees. The generators, if any are in use, are put into a state that is a function of
(seed, round) in every tenth round and whenever the learning rate changes, by resetting the booster's
parameters. A run that is resumed at a tenth round therefore continues as the uninterrupted one. (A reset in
every round would be exact, too, but costs 0.2 ms.)

What a reset does, according to LightGBM's sources (4.x): the generator of features is seeded again if its
seed differs from the previous one; those of thresholds (extra_trees) always are; that of rows only if the
bagging fraction changes. So the fraction alternates between two values that select the same rows, as every
draw is a multiple of 1/32768.

Dart changes earlier trees, a random forest averages its trees, and goss uses all rows until it has counted
enough rounds. A resume replays the rounds of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.errors import TrainingError
from trainwright.frameworks.lightgbm.data import Rows, Scores
from trainwright.frameworks.lightgbm.trees import Trees, split_model
from trainwright.order import INIT, STEP, stream_seed
from trainwright.types import Array

_SEED_BITS = 30  # LightGBM adds small numbers to a seed and needs it within 31 bits
_SEED_STEPS = 1 << 10
_DRAWS = 32768  # LightGBM's random numbers are multiples of 1 / _DRAWS
_NEVER = 1 << 30  # rounds: LightGBM draws no rows by itself, only at a reset
_MAX_TRIES = 100  # rounds, each with other rows
RESET_INTERVAL = 10  # rounds between two resets, where anything is sampled; part of the model's definition
_ROWS, _FEATURES, _THRESHOLDS, _DROPS, _BINS = range(5)  # random streams


@dataclass(frozen=True)
class RoundParams:
    """The parameters of the boosting rounds, as functions of the seed and the round.

    Args:
        params: The model's options, under LightGBM's names.
        seed: The run's seed.
        gradients: A custom objective.
    """

    params: dict[str, Any]
    seed: int
    gradients: Callable[[Array, Any], tuple[Array, Array]] | None = None

    @property
    def replays(self) -> bool:
        """Return whether a resume must replay all rounds, as their state does not follow from the trees."""
        return self.changes_trees or bool(self.params["data_sample_strategy"] == "goss")

    @property
    def changes_trees(self) -> bool:
        """Return whether a round changes the output of earlier trees."""
        return bool(self.params["boosting"] != "gbdt")

    @property
    def bagging_interval(self) -> int:
        """The number of rounds for which a sample of rows is kept; 0: rows are not sampled."""
        return int(self.params["bagging_freq"]) if self.params["bagging_fraction"] < 1 else 0

    @property
    def samples(self) -> bool:
        """Return whether rows, features or thresholds are sampled."""
        fractions = (self.params["feature_fraction"], self.params["feature_fraction_bynode"])
        return bool(self.bagging_interval or min(fractions) < 1 or self.params["extra_trees"])

    @property
    def boundary(self) -> int:
        """The number of rounds between two states from which a resume is exact."""
        return RESET_INTERVAL if self.samples and not self.replays else 1

    def initial(self) -> dict[str, Any]:
        """Return the parameters of a new booster."""
        params = dict(self.params)
        if self.replays:  # the generators are seeded here and never again
            streams = {
                "bagging_seed": _ROWS,
                "feature_fraction_seed": _FEATURES,
                "extra_seed": _THRESHOLDS,
                "drop_seed": _DROPS,
            }
            return params | {
                name: _to_seed(stream_seed(self.seed, INIT, stream)) for name, stream in streams.items()
            }
        params["feature_fraction_seed"] = 1 << _SEED_BITS  # differs from the seed of every round
        if self.bagging_interval:
            params |= {
                "bagging_fraction": self._bagging_fraction(0),
                "bagging_freq": 1 if self.bagging_interval == 1 else _NEVER,
            }
        return params

    def at_reset(self, step: int, learning_rate: float) -> dict[str, Any]:
        """Return the parameters to reset before a round; the seeds of two successive resets always differ."""
        params = {"learning_rate": learning_rate, "num_threads": self.params["num_threads"]}
        return params | {
            "feature_fraction_seed": self._seed(step, _FEATURES),
            "extra_seed": self._seed(step, _THRESHOLDS),
        }

    def at_bagging(self, step: int, side: int) -> dict[str, Any]:
        """Return the parameters to reset so that rows are drawn; `side` (-1 or 1) alternates."""
        return {
            "bagging_seed": self._seed(step - step % self.bagging_interval, _ROWS),
            "bagging_fraction": self._bagging_fraction(side),
        }

    def _seed(self, step: int, stream: int) -> int:
        seed = _to_seed(stream_seed(self.seed, STEP, step, stream))
        # A generator of features that gets the seed it already has is not seeded again, so the seeds of
        # neighboring rounds must differ: their last bits are those of the round's number.
        return seed // _SEED_STEPS * _SEED_STEPS + step % _SEED_STEPS

    def _bagging_fraction(self, side: int) -> float:
        """Return the fraction of rows for `side` -1, 0 or 1; the three differ, but select the same rows."""
        fraction = float(self.params["bagging_fraction"])
        return (math.ceil(fraction * _DRAWS) - 0.4) / _DRAWS + side * 2.0**-40


def _to_seed(seed: int) -> int:
    return seed % (1 << _SEED_BITS)


def bin_seed(seed: int) -> int:
    """Return the seed for the choice of rows from which the bins are made."""
    return _to_seed(stream_seed(seed, INIT, _BINS))


class Boosting:
    """Run boosting rounds and append their trees to `trees`.

    Args:
        library: The module `lightgbm`.
        params: The parameters of the rounds.
        dataset: The training rows as a `lightgbm.Dataset`.
        rows: The same rows.
        trees: The trees to start from; `collect` appends the new ones.
        sample: The rows that `sample_predictions` covers, as (`lightgbm.Dataset`, rows), or None.
    """

    def __init__(
        self,
        library: Any,
        params: RoundParams,
        dataset: Any,
        rows: Rows,
        trees: Trees,
        sample: tuple[Any, Rows] | None,
    ) -> None:
        self._library = library
        self._params = params
        self._rows = {"training": (dataset, rows)} | ({"sample": sample} if sample else {})
        self._trees = trees
        self.begin([0], 0)
        self._create_booster()  # now, since LightGBM checks the options here

    def begin(self, rounds_after: list[int], rounds_with_split: int) -> None:
        """Start from the present trees.

        Args:
            rounds_after: The number of rounds of the model after each step, from step 0 on. A step in which
                no tree could be grown adds none.
            rounds_with_split: How many rounds of this run have a split.
        """
        self._booster: Any = None  # created by the next step: often there is none, only predictions
        steps = len(rounds_after) - 1 if self._params.replays else 0
        if steps:
            rounds_after, rounds_with_split = rounds_after[:1], 0
            self._trees.truncate(rounds_after[0])
        self.rounds_after, self.rounds_with_split = rounds_after, rounds_with_split
        self._collected_steps = len(rounds_after)  # those whose trees are in `trees`
        for step in range(steps):
            self.step(step, self._params.params["learning_rate"])
        self.collect()

    @property
    def is_idle(self) -> bool:
        """Return whether there was no step yet since `begin`."""
        return self._booster is None

    def _create_booster(self) -> None:
        self._first = self._trees.rounds
        self._is_new = True
        self._has_split = False  # whether one of the booster's rounds has a split
        self._rounds = 0  # of the booster
        self._kept: list[int] = []  # the booster's rounds that belong to the model
        self._collected = (0, 0)  # how many of both are in `trees`
        self._learning_rate = 0.0
        self._side = 1
        if self._first:
            for data, rows in self._rows.values():
                raw = Scores(rows, self._trees.width).recompute(self._trees)
                data.set_init_score(raw if raw.shape[1] > 1 else raw[:, 0])
        self._booster = self._library.Booster(self._params.initial(), self._rows["training"][0])
        if "sample" in self._rows:
            self._booster.add_valid(self._rows["sample"][0], "sample")
        self._trees.head, _ = split_model(self._booster.model_to_string())

    def step(self, step: int, learning_rate: float) -> None:
        """Run one round; it adds no trees to the model if no split can be found."""
        if self._booster is None:
            self._create_booster()
        if not self._params.replays:
            self._make_first_round()
        empty = self._update(lambda: self._reset(step, learning_rate))
        self._is_new = False
        self.rounds_with_split += not empty
        self._has_split |= not empty
        if not empty or not self._rounds:  # LightGBM keeps the booster's first tree even if it is empty,
            if not empty or not self._first:  # but it may not be the first of the model
                self._kept.append(self._rounds)
            self._rounds += 1
        self.rounds_after.append(self._first + len(self._kept))

    def collect(self) -> None:
        """Bring `trees` up to the last step."""
        if self._collected_steps == len(self.rounds_after):
            return
        self._collected_steps = len(self.rounds_after)
        if self._params.changes_trees:
            self._trees.truncate(self._first)
            self._collected = (0, 0)
        (rounds, kept), width = self._collected, self._trees.width
        _, texts = split_model(self._booster.model_to_string(start_iteration=rounds))
        for number in self._kept[kept:]:
            start = (number - rounds) * width
            self._trees.texts.extend(texts[start : start + width])
        self._collected = self._rounds, len(self._kept)

    @property
    def rounds(self) -> int:
        """The number of rounds of the model."""
        return self.rounds_after[-1]

    def values(self, start: int, stop: int, features: Array) -> Array:
        """Return (stop - start, rows, width) float64 values that the rounds from `start` to `stop` add.

        The rounds must have been run since `begin`.
        """
        own, width = self._kept[start - self._first : stop - self._first], self._trees.width
        span = {"start_iteration": own[0], "num_iteration": own[-1] - own[0] + 1}
        leaves = self._booster.predict(
            features, pred_leaf=True, num_threads=self._params.params["num_threads"], **span
        )
        leaves = leaves.reshape(len(features), -1, width)  # (rows, rounds, width) leaf indices
        values = np.empty((len(own), len(features), width))
        for i, number in enumerate(own):
            for k in range(width):
                indices, tree = leaves[:, number - own[0], k], number * width + k
                outputs = [self._booster.get_leaf_output(tree, leaf) for leaf in range(indices.max() + 1)]
                values[i, :, k] = np.array(outputs)[indices]
        return values

    def sample_predictions(self) -> Array:
        """Return LightGBM's predictions for the sample, (rows, width); raw scores for a custom objective."""
        captured: list[Array] = []

        def capture(predictions: Array, _: Any) -> tuple[str, float, bool]:
            captured.append(predictions)
            return "", 0.0, True

        self._booster.eval_valid(feval=capture)
        return captured[0].reshape(len(self._rows["sample"][1]), -1)

    def _reset(self, step: int, learning_rate: float) -> None:
        """Reset the booster's parameters before a round if the learning rate, seeds or rows are to change."""
        params, interval = self._params, self._params.bagging_interval
        if params.replays:
            return
        due = learning_rate != self._learning_rate or (params.samples and step % RESET_INTERVAL == 0)
        # Rows that are kept for several rounds are drawn only when their time is over.
        rows_due = interval > 1 and (step % interval == 0 or not self.rounds_with_split)
        if not (due or rows_due):
            return
        values = params.at_reset(step, learning_rate)
        if rows_due or interval == 1 or (interval and self._is_new):
            self._side = -self._side
            values |= params.at_bagging(step, self._side)
        self._learning_rate = learning_rate
        self._booster.reset_parameter(values)

    def _update(self, prepare: Callable[[], None]) -> bool:
        """Run one round, with `prepare` called before it, and return whether no split was found."""
        gradients = self._params.gradients
        if gradients is None:
            prepare()
            return bool(self._booster.update())

        def objective(raw: Array, dataset: Any) -> tuple[Array, Array]:
            prepare()  # only here: LightGBM itself resets parameters before it computes the first gradients
            return gradients(raw, dataset)

        return bool(self._booster.update(fobj=objective))

    def _make_first_round(self) -> None:
        """Run a first round of a new booster that adds nothing to the model.

        Until a booster has a split it draws rows in every round, so a sample could not be kept for several
        rounds.

        Raises:
            TrainingError: No split can be found.
        """
        if self._params.bagging_interval <= 1 or self._has_split or not self.rounds_with_split:
            return
        gain = self._params.params["min_gain_to_split"]
        # Values of this size vanish when they are added to the scores.
        self._booster.reset_parameter({"learning_rate": 1e-100, "min_gain_to_split": 0.0})
        for _ in range(_MAX_TRIES):
            self._has_split = not self._update(lambda: None)
            if self._has_split:
                break
        else:
            raise TrainingError(
                "the training cannot continue from here: no split is left; train fewer rounds"
            )
        self._rounds = self._booster.current_iteration()
        self._booster.reset_parameter({"min_gain_to_split": gain})
