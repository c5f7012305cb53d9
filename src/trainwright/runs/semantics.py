"""The versions of the parts of our code that bits depend on, in one table.

A run records the versions of its parts; what resumes, repeats or uses it compares them. Raise a version by
hand when a change of its part alters the bits, or the recorded values, of an unchanged config, and give it an
entry under *Changed bits* in the changelog. Nothing else identifies our code: the hash of our sources is a
record, which is never compared, so an edited comment refuses no unfinished run.

Golden digests (`tests/test_golden.py`) guard the parts that give the same bits on every machine. The steps of
the frameworks are compared with loops by hand, on the same machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Part(NamedTuple):
    """A part of our code: its version, what it decides, and its files or folders in the package."""

    version: int
    decides: str
    sources: tuple[str, ...]


_BOOSTING = ("frameworks/boosting", "frameworks/support")
PARTS: dict[str, Part] = {
    "order": Part(1, "the order of the samples", ("order.py",)),
    "streams": Part(1, "the random streams of a seed", ("order.py", "engine/state.py")),
    "split": Part(1, "which rows train, validate and test", ("datasets/tables/splitting.py",)),
    "preparation": Part(5, "how rows become features and targets", ("datasets",)),
    "samples": Part(2, "the random numbers that samples draw when they are read", ("datasets/base.py",)),
    "loop": Part(1, "the order within a step, and its state", ("engine",)),
    "rules": Part(
        1,
        "learning rate, best model and early stopping",
        ("engine/rules.py", "engine/history.py", "engine/schedules.py"),
    ),
    "tasks": Part(1, "targets, outputs and default losses of the tasks", ("tasks",)),
    "metrics": Part(
        5,
        "losses and metrics of an evaluation",
        ("evaluation/custom.py", "evaluation/metrics.py", "tasks"),
    ),
    "catboost": Part(3, "a step of CatBoost", ("frameworks/catboost", *_BOOSTING)),
    "keras": Part(1, "a step of Keras", ("frameworks/keras", "frameworks/support")),
    "lightgbm": Part(1, "a step of LightGBM", ("frameworks/lightgbm", *_BOOSTING)),
    "sklearn": Part(2, "a step of scikit-learn", ("frameworks/sklearn", "frameworks/support")),
    "torch": Part(7, "a step of PyTorch, and initial weights", ("frameworks/torch", "frameworks/support")),
    "xgboost": Part(2, "a step of XGBoost", ("frameworks/xgboost", *_BOOSTING)),
}
_OF_FRAMEWORKS = {name for name, part in PARTS.items() if f"frameworks/{name}" in part.sources}


def versions(framework: str) -> dict[str, int]:
    """Return the versions of our parts that a run of a framework, ours or a plugin, depends on."""
    others = _OF_FRAMEWORKS - {framework}
    return {name: part.version for name, part in PARTS.items() if name not in others}


def changed(recorded: Mapping[str, int]) -> list[str]:
    """Return the parts that a run recorded in another version than ours."""
    return [name for name, version in recorded.items() if name not in PARTS or PARTS[name].version != version]


def in_words(parts: Iterable[str]) -> str:
    """Return what parts decide, with their names, for messages.

    A part that only another version of ours has is told by its name.
    """
    return ", ".join(f"{PARTS[name].decides} ({name})" if name in PARTS else name for name in parts)
