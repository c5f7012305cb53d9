"""The contract of frameworks: how to step, predict, snapshot and restore.

A framework adapter is a class that is light to import: its names and options are read without its library, which
it imports when it is constructed. Everything is called from the thread of the loop, except `Snapshot.write`.

The result of a run must be a function of what is given to the constructor and of the calls to `step`, nothing
else: not of `predict`, of snapshots, nor of how often the process died in between.

One process makes a run today. With several, `FrameworkInputs.order` will still give the global batch of a step,
and each process will call `step` with the same number and learning rate; what they exchange is up to the framework.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from pydantic import BaseModel

from trainyard.config.schema import RunConfig
from trainyard.datasets.base import Split
from trainyard.digest import FileRecord
from trainyard.errors import DataError, InputError, ModelError
from trainyard.order import PREDICT, KeyedPermutation, SampleOrder, stream_seed
from trainyard.types import Array, DataInfo, Determinism, Ids, NamedBuffer, Predictions, SplitName, StepResult

# The file that holds the model's weights, under their own names. In `state()` a tensor is called FILE.TENSOR,
# so what the run's digest covers is named `weights.*`.
WEIGHTS_FILE = "weights.safetensors"
LOSS_SAMPLE = (1_000, 10_000)  # rows: least and most


class Plan(NamedTuple):
    """How a framework goes about a run.

    Args:
        batch_size: samples of one step: all training rows, where a step sees them all (an epoch is then one step).
        total_steps: the steps of a run that nothing stops early.
        learning_rate: the highest one; None where there is none, and `step` is given 1.
        boundary: a snapshot continues exactly only after a multiple of so many steps. It is a matter of the config alone: the
            model must not depend on when it was saved.
        cumulative: whether the state after a step still holds the model of every earlier one, as that of additive trees
            does: then the weights of the best step are taken when they are needed, with `snapshot(step=...)`.
        scheduled: whether `training.scheduler` varies the learning rate.
    """

    batch_size: int
    total_steps: int
    learning_rate: float | None
    boundary: int = 1
    cumulative: bool = False
    scheduled: bool = True


@dataclass(frozen=True)
class FrameworkInputs:
    """What a framework is made from.

    `model` is an object that the user passed in Python, else None; `model_params` are the validated options of
    `config.model.type`; `threads` is the number of CPU threads that the run is pinned to; `order` is None where the
    framework is only to predict.
    """

    config: RunConfig
    info: DataInfo
    splits: Mapping[SplitName, Split]
    order: SampleOrder | None
    threads: int
    model_params: Mapping[str, Any]
    model: Any = None

    def owns(self, split: Split) -> bool:
        """Whether this is one of the run's splits, which are asked for again and again; others are not worth remembering."""
        return any(split is own for own in self.splits.values())


def minibatch_plan(config: RunConfig, rows: int) -> Plan:
    """That of frameworks which learn from minibatches: `training` says it all.

    Raises:
        DataError: there are fewer rows than a batch takes.
    """
    training = config.training
    if training.batch_size > rows:
        raise DataError(
            f"training.batch_size: {training.batch_size} is more than the {rows} training rows; allowed: 1 to {rows}"
        )
    assert training.max_steps or training.epochs, "`config.load` sets one of them"
    steps = training.max_steps or (training.epochs or 0) * -(-rows // training.batch_size)
    return Plan(training.batch_size, steps, training.learning_rate)


def rounds_plan(config: RunConfig, rows: int, rounds: int | None, learning_rate: float) -> Plan:
    """That of frameworks whose step is a round over all rows: so many `rounds`, or else those of `training`."""
    training = config.training
    total = rounds or training.max_steps or training.epochs
    assert total, "`config.load` sets one of them"
    return Plan(rows, total, learning_rate)


def loss_sample(inputs: FrameworkInputs, one_in: int) -> Ids | None:
    """(n,) sorted positions of the training rows that stand for all of them where the loss of a step is computed, always the
    same: one row in so many, within `LOSS_SAMPLE`, as more would be felt in the time of a round; None: all.
    """
    rows, (least, most) = len(inputs.splits["train"]), LOSS_SAMPLE
    size = min(most, max(least, rows // one_in))
    if size >= rows:
        return None
    return np.sort(KeyedPermutation(stream_seed(inputs.config.experiment.seed, PREDICT), rows).at(0, size))


def refuse_gaps(inputs: FrameworkInputs) -> None:
    """For models that compute with every feature as a number.

    Raises:
        ModelError: the data are prepared for another kind.
    """
    data, model = inputs.config.data, inputs.config.model.type
    if data is not None and data.impute == "keep":
        raise ModelError(
            f"data.impute: keep leaves values missing, which {model} does not take; give median or most_frequent"
        )
    if any(inputs.info.categories):
        raise ModelError(
            f"data.encode: category gives codes, which {model} would take for amounts; give onehot"
        )


class Snapshot(Protocol):
    """A copy of the state at one step, which training does not touch any more."""

    def write(self, folder: Path) -> list[FileRecord]:
        """Writes and fsyncs the files into the (empty) folder, hashing them on the way; called from any thread, and again
        into another folder where it failed.

        The weights go into `WEIGHTS_FILE`; tensors and their files are named as `Framework.state` names them.
        """

    def release(self) -> None:
        """The copy is not needed any more: its memory may serve the next one."""


class Framework(ABC):
    """An adapter; `frameworks/torch/` -> `TorchFramework`."""

    models: ClassVar[Mapping[str, type[BaseModel]]]  # the short names it answers to, and their options
    optimizers: ClassVar[Mapping[str, type[BaseModel]]] = {}
    losses: ClassVar[Sequence[str]] = ()
    base_modules: ClassVar[Sequence[str]]  # top-level modules in a model class's MRO that mean this framework
    # The import paths of the classes that models derive from. A run directory, which may come from someone else, may
    # name classes of the framework's library that derive from them, and no others.
    model_bases: ClassVar[Sequence[str]] = ()
    formats: ClassVar[Sequence[str]] = ()  # what `export` can write, the usual one first

    @staticmethod
    def defaults(model: str) -> Mapping[str, Any]:  # noqa: ARG004 - most models need none of their own
        """Defaults of the config for the model of a short name, by dotted key, where they differ from the schema's."""
        return {}

    @staticmethod
    @abstractmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:
        """The keys of `training` that have an effect on such a model with such options, besides those that core sees to
        (`early_stopping`, `determinism`, `threads`); the user is told of others that are set.

        Where `epochs` is among them and the config says nothing of the length, `defaults` may give `training.epochs`. `model`
        is `config.model.type`, a short name or an import path.
        """

    @staticmethod
    @abstractmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:
        """How it goes about a run on `rows` training rows; `model` is the object that the user passed, if any.

        Raises:
            InputError: the config cannot be followed.
        """

    @staticmethod
    @abstractmethod
    def determinism(config: RunConfig) -> Determinism:
        """How exactly such a run can be repeated; asked before anything is built, and the library may have to be asked, too."""

    @abstractmethod
    def __init__(self, inputs: FrameworkInputs) -> None:
        """Builds the model with seeded initial weights, and whatever trains it.

        Raises:
            MissingExtraError: the library is not installed.
            ModelError: the model cannot be built, or does not fit the data.
        """

    @abstractmethod
    def describe(self) -> Mapping[str, str]:
        """What of it belongs to the run's environment: the library's version, the device ..."""

    def definition(self) -> Mapping[str, str]:
        """What the model is made from, as far as neither config nor initial weights tell: an object's options, the digest of its
        file, the import paths of its parts. A resume with others is refused, and code that a path leads to is an input, too.
        """
        return {}

    @abstractmethod
    def step(self, step: int, lr: float) -> StepResult:
        """Makes step number `step` (from 0), on the samples `order.batch(step)`, at learning rate `lr`.

        All randomness comes from (seed, step, microbatch or sample), so the step needs no replay of earlier ones (of none
        before the last boundary, where `Plan.boundary` is above 1).
        """

    def read(self, losses: Sequence[Any]) -> list[float]:
        """The values of the losses of some steps: the one place where the loop waits for the device."""
        return [float(loss) for loss in losses]

    @abstractmethod
    def predict(self, split: Split) -> Iterator[Predictions]:
        """The outputs for all rows of a split, in order; leaves no trace in the state."""

    @abstractmethod
    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> Snapshot:
        """Copies the state; the only part of a save that blocks training.

        Args:
            weights_only: without what only a resume needs.
            step: the weights as they were after that many steps; asked of a `cumulative` framework, with `weights_only`.
        """

    @abstractmethod
    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        """Takes up the state that `Snapshot.write` left in `folder`, whose files have been verified."""

    @abstractmethod
    def state(self, *, weights_only: bool = False) -> Iterator[NamedBuffer]:
        """The tensors of the state, in a fixed order; `weights.*` are the model, the rest is what a resume needs besides."""

    @property
    @abstractmethod
    def native(self) -> Any:
        """The model as the library's own object (`torch.nn.Module`, `xgboost.Booster` ...)."""

    def importance(self) -> Mapping[str, Array]:
        """What the library itself says of how much each feature matters, by the kind of measure: (features,) float64."""
        return {}

    def export(self, path: Path, form: str) -> None:
        """Writes the model as a file or folder of the library's own, in one of `formats`; nothing else is in `path.parent`."""
        raise InputError(f"this framework has no format of its own to export to ({path}, {form})")
