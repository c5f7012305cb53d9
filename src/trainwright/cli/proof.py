"""The answers of `reproduce`, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainwright.runs.reproduce import Reproduction

UNPROVEN = 3  # the exit code where runs differ, or not all could be compared


def verdict_lines(result: Reproduction) -> Iterator[str]:
    """Yield the answer of `reproduce` for people."""
    for difference in result.inputs:
        yield f"input differs: {difference}"
    if result.verdict == "different":
        yield from _differences(result)
        return
    steps = f"{result.steps[0]} steps, digest {result.digests[0]}"
    repeats = f"{result.repetition} repeats {result.original}"
    if result.verdict == "identical":
        yield f"identical: {repeats}: {steps}"
    else:
        yield f"weights identical; {'; '.join(result.uncompared)}"
        yield f"  incomplete: {repeats} as far as could be compared: {steps}"
    yield from _processes(result)


def _differences(result: Reproduction) -> Iterator[str]:
    """Yield what differs."""
    yield f"different: {result.repetition} does not repeat {result.original}"
    if result.steps[0] != result.steps[1]:
        yield f"  steps: {result.steps[0]}, then {result.steps[1]}"
    if result.step is not None and result.step_losses is not None:
        first, then = result.step_losses
        yield f"  first step that differs: {result.step} (loss {first!r}, then {then!r})"
    else:
        yield "  the losses of all steps that both runs journalled are the same"
    if (evaluation := result.evaluation) is not None:
        values = f"{evaluation.before!r}, then {evaluation.now!r}"
        yield f"  first evaluation that differs: step {evaluation.step} ({evaluation.metric} {values})"
    if result.tensor is not None:
        tensor = result.tensor
        yield f"  first tensor that differs: {tensor.name} ({tensor.before}, then {tensor.now})"
    if result.metrics:
        yield f"  metrics that differ: {', '.join(result.metrics)}"
    if result.results:
        yield f"  results that differ: {', '.join(result.results)}"
    yield from (f"  {reason}" for reason in result.uncompared)
    if result.determinism.tier != "bitwise":
        yield f"  determinism: {result.determinism.tier}: {result.determinism.reason}"
    yield from _processes(result)
    yield f"  digests: {result.digests[0]}, then {result.digests[1]}"


def _processes(result: Reproduction) -> Iterator[str]:
    """Yield how many processes trained the runs, unless it was one each time, and meshes that differ."""
    original, repetition = (", then ".join(map(str, numbers)) for numbers in result.processes)
    if (original, repetition) != ("1", "1"):
        yield f"  processes: {original}; of the repetition: {repetition}"
    if result.meshes[0] != result.meshes[1]:
        yield "  mesh: {}; of the repetition: {}".format(*map(_in_words, result.meshes))


def _in_words(mesh: Mapping[str, int]) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in mesh.items() if size > 1) or "one process"
