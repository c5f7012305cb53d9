"""A framework whose losses and metrics are written down, and a loop around it.

The engine alone, in milliseconds.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from trainwright.callbacks.base import Callback
from trainwright.config import load
from trainwright.config.schema import RunConfig
from trainwright.digest import FileRecord, write_tensors
from trainwright.engine.checkpoint import Checkpoints, RunCheckpoints
from trainwright.engine.journal import Journal
from trainwright.engine.loop import Loop, LoopParts
from trainwright.engine.outside import Outside
from trainwright.engine.recorder import Recorder
from trainwright.engine.rules import Rules
from trainwright.engine.saver import FollowerSaver, Saver
from trainwright.engine.signals import Signals
from trainwright.engine.state import RunState
from trainwright.evaluation.metrics import mode_of
from trainwright.frameworks.base import Plan
from trainwright.order import SampleOrder
from trainwright.runs.catalog import Catalog
from trainwright.stores.local import LocalStore
from trainwright.types import LoggedValues, Metrics, NamedBuffer, StepResult
from trainwright.world import ALONE, World

SAMPLES, BATCH = 44, 10  # 5 steps in an epoch, the last of them of 4 samples
STEPS = 23


class Scripted:
    """Step number s (from 0) has the loss `losses[s]`; its weights are the number of its steps."""

    def __init__(self, losses: Callable[[int], float]) -> None:
        self._losses = losses
        self.sizes = lambda step: BATCH if step % 5 < 4 else 4
        self.steps = 0
        self.rates: list[float] = []
        self.reads: list[int] = []
        self.released = 0
        self.parameters: int | None = None

    def step(self, step: int, lr: float) -> StepResult:
        assert step == self.steps, "a step was left out, or made twice"
        self.steps += 1
        self.rates.append(lr)
        return StepResult(self._losses(step), self.sizes(step))

    def read(self, losses: Sequence[float]) -> list[float]:
        self.reads.append(len(losses))
        return list(losses)

    def step_seconds(self) -> Sequence[float]:
        return ()

    def logged(self) -> Sequence[LoggedValues]:
        return ()

    def model(self) -> SimpleNamespace:
        return SimpleNamespace(parameter_count=self.parameters)

    def measures(self) -> dict[str, float]:
        return {}

    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> "Weights":
        return Weights(self.steps if step is None else step, self)


class Weights:
    """A snapshot of one number."""

    def __init__(self, value: int, owner: Scripted | None = None) -> None:
        self._array = np.full(3, value, dtype=np.float32)
        self._owner = owner

    def write(self, folder: Path) -> list[FileRecord]:
        buffer = NamedBuffer("w", "F32", (3,), memoryview(self._array.view(np.uint8)))
        return [write_tensors(folder / "weights.safetensors", [buffer])]

    def release(self) -> None:
        if self._owner:
            self._owner.released += 1


class Bench:
    """A loop over a scripted framework in a folder; `validation[i]` is the `val_loss` of evaluation i.

    With `waits`, each step waits for the save before it, so that none gives way to a newer one.
    """

    def __init__(
        self,
        folder: Path,
        validation: Sequence[float] = (),
        losses: Callable[[int], float] = lambda step: 1.0 / (step + 1),
        plan: Plan | None = None,
        *,
        waits: bool = False,
        **sections: dict[str, Any],
    ) -> None:
        self.folder = folder
        self.config = config_of(**sections)
        self.saver: Saver | None = None

        def after_saves(step: int) -> float:
            if self.saver is not None:
                self.saver.drain()
            return losses(step)

        self.learner = Scripted(after_saves if waits else losses)
        self.validation = {7 * (i + 1): value for i, value in enumerate(validation)}
        self.plan = plan or Plan(BATCH, STEPS, 0.1)
        self.rules = Rules(self.config, self.plan, 5, mode_of)
        self.attempt = 0
        self.outside: Callable[[], Outside] = Outside
        self.world: World = ALONE

    def loop(self, state: RunState | None = None, callbacks: Sequence[Callback] = ()) -> Loop:
        """Return the loop of the next attempt, from `state`."""
        self.attempt += 1
        state = state or RunState()
        self.learner.steps = state.step
        journal = Journal(self.folder / "journal", self.attempt, state.step)
        recorder, signals = Recorder(journal, callbacks), Signals()
        checkpoints = checkpoints_of(self.folder, self.attempt)
        make = Saver if self.world.is_main else FollowerSaver
        self.saver = saver = make(self.config.checkpoint, self.learner, self.plan, checkpoints, recorder)  # type: ignore[arg-type]
        order = SampleOrder(SAMPLES, BATCH, 0)
        parts = LoopParts(
            learner=self.learner,  # type: ignore[arg-type]
            order=order,
            rules=self.rules,
            recorder=recorder,
            saver=saver,
            signals=signals,
            evaluate=self._evaluate,
            outside=self.outside(),
            world=self.world,
        )
        saver.resume_from(state, self.rules.best_steps(state.evaluations))
        return Loop(parts, state)

    def run(self, state: RunState | None = None, callbacks: Sequence[Callback] = ()) -> Loop:
        """Run a loop to its end, its saves included."""
        loop = self.loop(state, callbacks)
        self.status = loop.run()
        loop.parts.saver.drain()
        loop.parts.saver.close()
        loop.parts.recorder.journal.flush()
        loop.parts.recorder.journal.close()
        return loop

    def _evaluate(self) -> Metrics:
        if not self.validation:
            return {}
        step = self.learner.steps
        return {"val_loss": self.validation.get(step, 9.0)}


def config_of(**sections: dict[str, Any]) -> RunConfig:
    """A config of cadences that do not divide each other, changed in these sections."""
    base: dict[str, Any] = {
        "model": "mlp",
        "data": "iris",
        "training": {"max_steps": STEPS, "batch_size": BATCH, "learning_rate": 0.1},
        "evaluation": {"every_n_steps": 7},
        "checkpoint": {"every_n_steps": 5, "every_n_minutes": None, "keep_last": 2},
        "logging": {"every_n_steps": 3},
    }
    for name, section in sections.items():
        base[name] = {**base[name], **section}
    return load(base, adapters=Catalog()).config


def checkpoints_of(folder: Path, attempt: int = 1) -> RunCheckpoints:
    """The checkpoints in a folder, as an attempt writes them."""
    store = LocalStore(folder)
    return RunCheckpoints(Checkpoints(store, "checkpoints", attempt), Checkpoints(store, "best", attempt))


def steps_in(folder: Path) -> Iterator[int]:
    """The steps of the checkpoints in a folder."""
    return (int(path.name.split("-")[1]) for path in sorted(folder.glob("step-*")))
