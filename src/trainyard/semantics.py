"""The versions of the parts of our code that bits depend on, in one table.

A run records the versions of its parts, and a resume compares them. Raise a version by hand when a change of
its part alters the bits, or the recorded values, of an unchanged config, and give it an entry under *Changed
bits* in the changelog. Nothing else identifies our code: the hash of our sources is a record, which is never
compared, so an edited comment refuses no unfinished run.

Golden digests (`tests/test_golden.py`) guard the parts that give the same bits on every machine. The steps of
the frameworks are compared with loops by hand, on the same machine.
"""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """A part of our code: its version, what it decides, and its files or folders in the package."""

    version: int
    decides: str
    sources: tuple[str, ...]


PARTS: dict[str, Part] = {
    "order": Part(1, "the order of the samples", ("order.py",)),
    "streams": Part(1, "the random streams of a seed", ("order.py", "engine/state.py")),
    "split": Part(1, "which rows train, validate and test", ("datasets/rows/splitting.py",)),
    "preparation": Part(1, "how rows become features and targets", ("datasets",)),
    "loop": Part(1, "the order within a step, and its state", ("engine",)),
    "rules": Part(
        1, "learning rate, best model and early stopping", ("engine/rules.py", "engine/history.py")
    ),
    "tasks": Part(1, "targets, outputs and default losses of the tasks", ("tasks",)),
    "metrics": Part(1, "losses and metrics of an evaluation", ("evaluation/metrics.py", "tasks")),
    "catboost": Part(1, "a step of CatBoost", ("frameworks/catboost", "frameworks/support")),
    "keras": Part(1, "a step of Keras", ("frameworks/keras", "frameworks/support")),
    "lightgbm": Part(1, "a step of LightGBM", ("frameworks/lightgbm", "frameworks/support")),
    "sklearn": Part(1, "a step of scikit-learn", ("frameworks/sklearn", "frameworks/support")),
    "torch": Part(1, "a step of PyTorch", ("frameworks/torch", "frameworks/support")),
    "xgboost": Part(1, "a step of XGBoost", ("frameworks/xgboost", "frameworks/support")),
}
_OF_FRAMEWORKS = {name for name, part in PARTS.items() if f"frameworks/{name}" in part.sources}


def versions(framework: str) -> dict[str, int]:
    """Return the versions of our parts that a run of a framework, ours or a plugin, depends on."""
    others = _OF_FRAMEWORKS - {framework}
    return {name: part.version for name, part in PARTS.items() if name not in others}


def decides(name: str) -> str:
    """Return what a part decides, for messages; the name of a part that only another version of ours has."""
    return PARTS[name].decides if name in PARTS else name
