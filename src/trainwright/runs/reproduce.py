"""Proof: a run, computed again and compared bit by bit."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from trainwright.digest import TensorRecord
from trainwright.errors import CheckpointError, InputError
from trainwright.records.checkpoint_names import checkpoint_names, step_of
from trainwright.records.decision import Decisions, journalled_decisions
from trainwright.records.journal import each_loss, evaluations, read
from trainwright.records.manifest import DeterminismRecord, Difference
from trainwright.records.run_dir import RunDir
from trainwright.records.status import FINAL
from trainwright.runs.decisions import trained_by
from trainwright.runs.wiring import run_checkpoints
from trainwright.storage.copies import download_all
from trainwright.storage.seals import problems

log = logging.getLogger("trainwright")
Verdict = Literal["identical", "different", "incomplete"]
_SPLITS = ("train", "val", "test")
_RESULTS = ("status", "epochs", "evaluated", "best", "weights", "skipped_samples")
_OLDER = ("checkpoints/", "best/")  # beginnings of what is compared by itself, or not at all


@dataclass(frozen=True)
class FirstTensor:
    """The first tensor that differs, by name; a hash is None where one of the runs has no such tensor."""

    name: str
    before: str | None
    now: str | None


@dataclass(frozen=True)
class FirstEvaluation:
    """The first value of an evaluation that differs; it is None where one of the runs has no such value."""

    step: int
    metric: str
    before: Any
    now: Any


@dataclass(frozen=True)
class Reproduction:
    """The answer of `reproduce`.

    `identical` means that everything was compared and is equal: the loss of every step, every evaluation, all
    tensors of the final state (weights, optimizer, buffers, extra state), the result and the tables. It is
    `different` if anything differs, and `incomplete` if nothing does, but not all could be compared:
    `uncompared` says what, and why.

    `step` is the first step whose losses differ in their bits, `evaluation` the first value of an evaluation
    that does, `tensor` the first tensor of the final state; `inputs` are the inputs that differ, `metrics`
    the final metrics that do, and `results` other parts of the result. `processes` are the numbers of
    processes that trained each of the runs, one after the other, `meshes` the sizes of the meshes that they
    formed at first. `determinism` says how exactly the original can be repeated, and why not better.
    """

    verdict: Verdict
    original: str
    repetition: str
    digests: tuple[str, str]
    steps: tuple[int, int]
    inputs: Sequence[Difference] = ()
    step: int | None = None
    step_losses: tuple[float | None, float | None] | None = None
    tensor: FirstTensor | None = None
    metrics: Sequence[str] = ()
    uncompared: Sequence[str] = ()
    processes: tuple[Sequence[int], Sequence[int]] = ((1,), (1,))
    evaluation: FirstEvaluation | None = None
    results: Sequence[str] = ()
    meshes: tuple[Mapping[str, int], Mapping[str, int]] = field(default_factory=lambda: ({}, {}))
    determinism: DeterminismRecord = field(default_factory=DeterminismRecord)

    @property
    def complete(self) -> bool:
        """True if everything could be compared."""
        return not self.uncompared

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON holds it."""
        evaluation = vars(self.evaluation) if self.evaluation else None
        return {
            "verdict": self.verdict,
            "complete": self.complete,
            "original": self.original,
            "repetition": self.repetition,
            "digest": {"original": self.digests[0], "repetition": self.digests[1]},
            "steps": {"original": self.steps[0], "repetition": self.steps[1]},
            "processes": {"original": list(self.processes[0]), "repetition": list(self.processes[1])},
            "meshes": {"original": dict(self.meshes[0]), "repetition": dict(self.meshes[1])},
            "determinism": self.determinism.to_json(),
            "inputs": [difference.to_json() for difference in self.inputs],
            "first_step": self.step,
            "first_step_losses": [str(value) for value in self.step_losses] if self.step_losses else None,
            "first_evaluation": evaluation,
            "first_tensor": vars(self.tensor) if self.tensor else None,
            "metrics": list(self.metrics),
            "results": list(self.results),
            "uncompared": list(self.uncompared),
        }


class _Side:
    """A finished run, as it is compared with another one."""

    def __init__(self, run: RunDir) -> None:
        if (status := run.status()) not in FINAL:
            allowed = "a completed, stopped or pruned run"
            raise InputError(f"run {run.id} is {status}: only {allowed} can be compared; resume it first")
        self.run, self.result = run, run.require_result()
        download_all(run)
        self.damage = [problem for problem in problems(run) if not problem.startswith(_OLDER)]
        self._journal: list[str] = []

    def losses(self) -> Iterator[tuple[int, float]]:
        """Yield each step with its loss, in order: a line that is there twice is damage, as its seal says."""
        last = 0
        for step, loss in each_loss(read(self.run.journal, self._journal)):
            if step > last:
                last = step
                yield step, loss

    @cached_property
    def evaluations(self) -> dict[tuple[int, str], Any]:
        """The value of each evaluation, by step and metric."""
        records = evaluations(read(self.run.journal))
        return {(step, name): value for step, values in records for name, value in values.items()}

    @cached_property
    def decisions(self) -> Decisions:
        """The decisions that its journal names."""
        return journalled_decisions(self.run.journal)

    @property
    def journal_damage(self) -> str | None:
        """The damage of the journal; complete only once `losses` has been read to its end."""
        damaged = [one for one in self.damage if one.startswith(("journal/", "log:"))]
        return next(iter([*damaged, *self._journal]), None)

    def tables(self, split: str) -> dict[str, Any]:
        """Return the tables of the evaluation of a split; empty if they are damaged, which is in `damage`."""
        try:
            return self.run.read_json(f"evaluation/{split}.json")
        except CheckpointError:
            return {}

    def tensors(self) -> dict[str, TensorRecord]:
        """Return the tensors of the final state by name.

        Raises:
            CheckpointError: The final checkpoint is damaged, or missing.
        """
        commit = run_checkpoints(self.run).resume.load_step(self.result.steps)
        return {tensor.name: tensor for tensor in commit.tensors}

    @property
    def best_step(self) -> int | None:
        """The step of the best model; None if no metric decides one."""
        return self.result.best.step if self.result.best is not None else None

    def best_tensors(self) -> dict[str, TensorRecord]:
        """Return the tensors of the best model by name; empty where none is kept by itself.

        Raises:
            CheckpointError: It is damaged, or missing.
        """
        step = self.best_step
        if step is None or step not in map(step_of, checkpoint_names(self.run, "best")):
            return {}
        commit = run_checkpoints(self.run).best.load_step(step)
        return {tensor.name: tensor for tensor in commit.tensors}


@dataclass
class _Found:
    """The findings when two runs are compared."""

    step: int | None = None
    step_losses: tuple[float | None, float | None] | None = None
    evaluation: FirstEvaluation | None = None
    tensor: FirstTensor | None = None
    metrics: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    uncompared: list[str] = field(default_factory=list)

    @property
    def differs(self) -> bool:
        firsts = (self.evaluation, self.tensor, self.step_losses)
        return any(one is not None for one in firsts) or bool(self.metrics or self.results)


def compare_bits(original: RunDir, repetition: RunDir) -> Reproduction:
    """Compare two finished runs: inputs, the loss of every step, all evaluations, final state and result.

    Raises:
        InputError: One of them has not ended, or has failed.
        CheckpointError: The result of one is damaged or missing.
    """
    sides = first, second = _Side(original), _Side(repetition)
    before, now = original.require_manifest(), repetition.require_manifest()
    found = _Found()
    _compare_results(first, second, found)
    _compare_losses(first, second, found)
    _compare_evaluations(first, second, found)
    _compare_tensors(first, second, found)
    for side in sides:
        if (damage := side.journal_damage) is not None:
            found.uncompared.append(_lacking("losses and evaluations", side, damage))
        others = [one for one in side.damage if not one.startswith(("journal/", "log:"))]
        found.uncompared += [_lacking(one.partition(":")[0], side, one) for one in others]
    digests = (str(first.result.digest), str(second.result.digest))
    steps = (first.result.steps, second.result.steps)
    differs = digests[0] != digests[1] or steps[0] != steps[1] or found.differs
    return Reproduction(
        "different" if differs else "incomplete" if found.uncompared else "identical",
        original.id,
        repetition.id,
        digests,
        steps,
        [*(one for change in before.changes for one in change.differences), *before.differences(now)],
        found.step,
        found.step_losses,
        found.tensor,
        found.metrics,
        found.uncompared,
        (trained_by(original), trained_by(repetition)),
        found.evaluation,
        found.results,
        (before.environment.mesh, now.environment.mesh),
        before.determinism,
    )


def _lacking(what: str, side: _Side, why: str) -> str:
    return f"{what} not compared: run {side.run.id}: {why}"


def _compare_results(first: _Side, second: _Side, found: _Found) -> None:
    """Compare the final metrics, what else the result says of the training, and the tables of the evaluation.

    Numbers are compared as text: a NaN equals a NaN then, and 0.0 differs from -0.0.
    """
    before, now = first.result, second.result
    names = before.metrics | now.metrics
    found.metrics = [name for name in names if repr(before.metrics.get(name)) != repr(now.metrics.get(name))]
    found.results = [name for name in _RESULTS if repr(getattr(before, name)) != repr(getattr(now, name))]
    damaged = {problem.partition(":")[0] for side in (first, second) for problem in side.damage}
    for split in _SPLITS:
        name = f"evaluation/{split}.json"
        if name not in damaged and repr(first.tables(split)) != repr(second.tables(split)):
            found.results.append(name)


def _compare_losses(first: _Side, second: _Side, found: _Found) -> None:
    """Find the first step whose losses differ, or that only one run has and the other's journal has not lost.

    Losses are journalled with all their bits, so equal numbers are equal bits. Both journals are streamed, to
    their ends.
    """
    missing: dict[_Side, tuple[int, tuple[float | None, float | None]]] = {}  # the first, by who lacks it
    for step, pair in _side_by_side(first.losses(), second.losses()):
        if None in pair:
            missing.setdefault(first if pair[0] is None else second, (step, pair))
        elif found.step is None and repr(pair[0]) != repr(pair[1]):
            found.step, found.step_losses = step, pair
    for side, (step, pair) in missing.items():
        if side.journal_damage is None and (found.step is None or step < found.step):
            found.step, found.step_losses = step, pair


def _side_by_side(
    before: Iterator[tuple[int, float]], now: Iterator[tuple[int, float]]
) -> Iterator[tuple[int, tuple[float | None, float | None]]]:
    """Yield each step with its losses in two runs; None where a run has none."""
    old, new = next(before, None), next(now, None)
    while old is not None or new is not None:
        step = min(one[0] for one in (old, new) if one is not None)
        has_old, has_new = old is not None and old[0] == step, new is not None and new[0] == step
        yield step, (old[1] if old and has_old else None, new[1] if new and has_new else None)
        old = next(before, None) if has_old else old
        new = next(now, None) if has_new else new


def _compare_evaluations(first: _Side, second: _Side, found: _Found) -> None:
    """Find the first value of an evaluation that differs, as `_compare_losses` finds a loss."""
    for key in sorted({*first.evaluations, *second.evaluations}):
        pair = [side.evaluations.get(key) for side in (first, second)]
        lacking = [side for side in (first, second) if key not in side.evaluations]
        if any(side.journal_damage is not None for side in lacking):
            continue
        # The final evaluation of a run that had ended there, and went on: a repetition does not end there.
        if lacking and any(one.decisions.went_on(key[0]) for one in (first, second) if one not in lacking):
            continue
        if lacking or repr(pair[0]) != repr(pair[1]):
            found.evaluation = FirstEvaluation(*key, *pair)
            return


def _compare_tensors(first: _Side, second: _Side, found: _Found) -> None:
    """Find the first tensor of the final states that differs: weights, optimizer, buffers, extra state."""
    for what, which, read_tensors in (
        ("optimizer and other state", "final checkpoint", _Side.tensors),
        ("the best model", "best model", _Side.best_tensors),
    ):
        states = []
        for side in (first, second):
            try:
                states.append(read_tensors(side))
            except CheckpointError as error:
                log.warning("%s", error)
                found.uncompared.append(_lacking(what, side, f"the {which} cannot be read: {error}"))
        # Best models of different steps are a difference of the results.
        if len(states) == 2 and (which != "best model" or first.best_step == second.best_step):
            found.tensor = found.tensor or _first_tensor(*states)


def _first_tensor(old: dict[str, TensorRecord], new: dict[str, TensorRecord]) -> FirstTensor | None:
    for name in [*old, *(name for name in new if name not in old)]:
        if old.get(name) != new.get(name):
            return FirstTensor(name, _hash(old.get(name)), _hash(new.get(name)))
    return None


def _hash(tensor: TensorRecord | None) -> str | None:
    return None if tensor is None else tensor.sha256
