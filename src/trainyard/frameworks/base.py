"""The contract of frameworks: how to step, predict, snapshot and restore.

A framework adapter is a class that is light to import: its names and options are read without its library, which
it imports when it is constructed. Everything is called from the thread of the loop, except `Snapshot.write`.

The result of a run must be a function of what is given to the constructor and of the calls to `step`, nothing
else: not of `predict`, of snapshots, nor of how often the process died in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel

from trainyard.config.schema import RunConfig
from trainyard.datasets.base import Split
from trainyard.digest import FileRecord
from trainyard.order import SampleOrder
from trainyard.types import DataInfo, Determinism, NamedBuffer, Predictions, SplitName, StepResult

# The file that holds the model's weights, under their own names. In `state()` a tensor is called FILE.TENSOR,
# so what the run's digest covers is named `weights.*`.
WEIGHTS_FILE = "weights.safetensors"


@dataclass(frozen=True)
class Job:
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


class Snapshot(Protocol):
    """A copy of the state at one step, which training does not touch any more."""

    def write(self, folder: Path) -> list[FileRecord]:
        """Writes and fsyncs the files into the (empty) folder, hashing them on the way; called from any thread, and again
        into another folder where it failed.

        The weights go into `WEIGHTS_FILE`; tensors and their files are named as `Framework.state` names them.
        """

    def release(self) -> None:
        """The copy is not needed any more: its memory may serve the next one."""


class Framework(Protocol):
    """An adapter; `frameworks/torch/` -> `TorchFramework`."""

    models: ClassVar[Mapping[str, type[BaseModel]]]  # the short names it answers to, and their options
    optimizers: ClassVar[Mapping[str, type[BaseModel]]]
    losses: ClassVar[Sequence[str]]
    base_modules: ClassVar[Sequence[str]]  # top-level modules in a model class's MRO that mean this framework

    def __init__(self, job: Job) -> None:
        """Builds the model with seeded initial weights, and whatever trains it.

        Raises:
            MissingExtraError: the library is not installed.
            ModelError: the model cannot be built, or does not fit the data.
        """

    @staticmethod
    def determinism(config: RunConfig) -> Determinism:
        """How exactly such a run can be repeated; asked before anything is built, and the library may have to be asked, too."""

    def describe(self) -> Mapping[str, str]:
        """What of it belongs to the run's environment: the library's version, the device ..."""

    def step(self, step: int, lr: float) -> StepResult:
        """Makes step number `step` (from 0), on the samples `order.batch(step)`, at learning rate `lr`.

        All randomness comes from (seed, step, microbatch or sample), so the step needs no replay of earlier ones.
        """

    def read(self, losses: Sequence[Any]) -> list[float]:
        """The values of the losses of some steps: the one place where the loop waits for the device."""

    def predict(self, split: Split) -> Iterator[Predictions]:
        """The outputs for all rows of a split, in order; leaves no trace in the state."""

    def snapshot(self, *, weights_only: bool = False) -> Snapshot:
        """Copies the state; the only part of a save that blocks training."""

    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        """Takes up the state that `Snapshot.write` left in `folder`, whose files have been verified."""

    def state(self, *, weights_only: bool = False) -> Iterator[NamedBuffer]:
        """The tensors of the state, in a fixed order; `weights.*` are the model, the rest is what a resume needs besides."""

    def resumable_at(self, step: int) -> bool:
        """Whether a snapshot after `step` steps continues exactly; most frameworks: always."""
