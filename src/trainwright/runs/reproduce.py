"""Proof: a run, computed again and compared bit by bit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainwright.digest import TensorRecord
from trainwright.errors import CheckpointError, InputError
from trainwright.records.copies import download_all
from trainwright.records.journal import each_loss, read
from trainwright.records.manifest import Difference
from trainwright.records.result import Result
from trainwright.records.run_dir import RunDir
from trainwright.records.status import FINAL
from trainwright.runs.decisions import trained_by
from trainwright.runs.wiring import run_checkpoints

log = logging.getLogger("trainwright")


@dataclass(frozen=True)
class FirstTensor:
    """The first tensor that differs, by name; a hash is None where one of the runs has no such tensor."""

    name: str
    before: str | None
    now: str | None


@dataclass(frozen=True)
class Reproduction:
    """The answer of `reproduce`.

    `step` is the first step whose losses differ in their bits (None: none of those that both runs
    journalled); `tensor` the first tensor of the state that differs at the end, and `uncompared` says why the
    tensors were not compared, if so; `inputs` are the inputs that differ, `metrics` the final metrics that
    do. `processes` are the numbers of processes that trained each of the runs, one after the other. Runs are
    identical if steps, losses, weights and metrics are.
    """

    verdict: Literal["identical", "different"]
    original: str
    repetition: str
    digests: tuple[str, str]
    steps: tuple[int, int]
    inputs: Sequence[Difference] = ()
    step: int | None = None
    step_losses: tuple[float, float] | None = None
    tensor: FirstTensor | None = None
    metrics: Sequence[str] = ()
    uncompared: str | None = None
    processes: tuple[Sequence[int], Sequence[int]] = ((1,), (1,))

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON holds it."""
        return {
            "verdict": self.verdict,
            "original": self.original,
            "repetition": self.repetition,
            "digest": {"original": self.digests[0], "repetition": self.digests[1]},
            "steps": {"original": self.steps[0], "repetition": self.steps[1]},
            "processes": {"original": list(self.processes[0]), "repetition": list(self.processes[1])},
            "inputs": [difference.to_json() for difference in self.inputs],
            "first_step": self.step,
            "first_step_losses": [str(value) for value in self.step_losses] if self.step_losses else None,
            "first_tensor": vars(self.tensor) if self.tensor else None,
            "metrics": list(self.metrics),
            "uncompared": self.uncompared,
        }


def compare_bits(original: RunDir, repetition: RunDir) -> Reproduction:
    """Compare two finished runs: inputs, the loss of every step, and the final state.

    Raises:
        InputError: One of them has not ended, or not in order.
    """
    first, second = (_ended(run) for run in (original, repetition))
    before, now = original.require_manifest(), repetition.require_manifest()
    step, values = _first_step(original, repetition)
    names = first.metrics | second.metrics
    metrics = [name for name in names if repr(first.metrics.get(name)) != repr(second.metrics.get(name))]
    tensor, uncompared = _first_tensor((original, first.steps), (repetition, second.steps))
    same = first.digest == second.digest and first.steps == second.steps and step is None and not metrics
    return Reproduction(
        "identical" if same else "different",
        original.id,
        repetition.id,
        (str(first.digest), str(second.digest)),
        (first.steps, second.steps),
        [*(one for change in before.changes for one in change.differences), *before.differences(now)],
        step,
        values,
        tensor,
        metrics,
        uncompared,
        (trained_by(original), trained_by(repetition)),
    )


def _ended(run: RunDir) -> Result:
    result = run.result()
    if result is None or run.status() not in FINAL:
        allowed = "a completed, stopped or pruned run"
        raise InputError(f"run {run.id} is {run.status()}: only {allowed} can be compared; resume it first")
    return result


def _first_step(original: RunDir, repetition: RunDir) -> tuple[int | None, tuple[float, float] | None]:
    """Return the first step whose losses differ, and both losses.

    Losses are journalled with all their bits, so equal numbers are equal bits. Both journals are streamed; a
    step that only one of them has is skipped.
    """
    before, now = (each_loss(read(run.journal)) for run in (original, repetition))
    old, new = next(before, None), next(now, None)
    while old is not None and new is not None:
        if old[0] < new[0]:
            old = next(before, None)
        elif old[0] > new[0]:
            new = next(now, None)
        elif repr(old[1]) != repr(new[1]):  # as text, a NaN equals a NaN and 0.0 differs from -0.0
            return old[0], (old[1], new[1])
        else:
            old, new = next(before, None), next(now, None)
    return None, None


def _first_tensor(*ends: tuple[RunDir, int]) -> tuple[FirstTensor | None, str | None]:
    """Return the first tensor that differs at the ends of two runs, or why the tensors were not compared.

    Args:
        ends: Each run with its last step.
    """
    states: list[dict[str, TensorRecord]] = []
    for run, step in ends:
        try:
            download_all(run)
            commit = run_checkpoints(run).resume.load_step(step)
        except CheckpointError as error:
            log.warning("%s", error)
            return None, f"the final checkpoint of run {run.id} is damaged: tensors were not compared"
        states.append({tensor.name: tensor for tensor in commit.tensors})
    old, new = states
    for name in [*old, *(name for name in new if name not in old)]:
        if old.get(name) != new.get(name):
            return FirstTensor(name, _hash(old.get(name)), _hash(new.get(name))), None
    return None, None


def _hash(tensor: TensorRecord | None) -> str | None:
    return None if tensor is None else tensor.sha256
