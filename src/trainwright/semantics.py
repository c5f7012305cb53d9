"""The versions of the parts of our code that bits depend on, in one table.

A run records the versions of its parts, and a resume compares them. Raise a version by hand when a change of
its part alters the bits, or the recorded values, of an unchanged config, and give it an entry under *Changed
bits* in the changelog. Nothing else identifies our code: the hash of our sources is a record, which is never
compared, so an edited comment refuses no unfinished run.

Where the code can still compute as an older version did, that version is `kept`: a run that began under it
finishes under it. So do its repetitions, forks and continuations, and a study goes on as it began. Everything
that reads or trains such a run does so inside `computing_by`, and asks `version`; what is made from the data
asks `DataInfo.semantics`, which was set there and is right in any thread.

Golden digests (`tests/test_golden.py`) guard the parts that give the same bits on every machine. The steps of
the frameworks are compared with loops by hand, on the same machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Part(NamedTuple):
    """A part of our code: its version, what it decides, and its files or folders in the package.

    `kept` are the older versions that the code can still compute.
    """

    version: int
    decides: str
    sources: tuple[str, ...]
    kept: tuple[int, ...] = ()


PARTS: dict[str, Part] = {
    "order": Part(1, "the order of the samples", ("order.py",)),
    "streams": Part(1, "the random streams of a seed", ("order.py", "engine/state.py")),
    "split": Part(1, "which rows train, validate and test", ("datasets/rows/splitting.py",)),
    # 3: targets are float32
    # 2: also, mean targets of categories heed neither the weights nor the groups of rows
    # 1: also, columns are what the file's types say; all are features; those of arrays stay as they are
    "preparation": Part(4, "how rows become features and targets", ("datasets",), kept=(1, 2)),
    # 1: from the generators as the step before left them
    "samples": Part(
        2, "the random numbers that samples draw when they are read", ("datasets/base.py",), kept=(1,)
    ),
    "loop": Part(1, "the order within a step, and its state", ("engine",)),
    "rules": Part(
        1,
        "learning rate, best model and early stopping",
        ("engine/rules.py", "engine/history.py", "engine/schedules.py"),
    ),
    "tasks": Part(1, "targets, outputs and default losses of the tasks", ("tasks",)),
    # 3: targets, and predictions of boosters, are rounded to float32
    # 2: also, metrics of the user's own get neither sample_weight nor pos_label
    # 1: also, f1, precision and recall of two classes are macro averages
    "metrics": Part(
        4,
        "losses and metrics of an evaluation",
        ("evaluation/own.py", "evaluation/metrics.py", "tasks"),
        kept=(1, 2),
    ),
    "catboost": Part(
        2, "a step of CatBoost", ("frameworks/catboost", "frameworks/support"), kept=(1,)
    ),  # 1: random_seed is drawn from the seed of the run
    "keras": Part(1, "a step of Keras", ("frameworks/keras", "frameworks/support")),
    "lightgbm": Part(1, "a step of LightGBM", ("frameworks/lightgbm", "frameworks/support")),
    # 1: features and targets in float32, pipelines get them prepared
    "sklearn": Part(2, "a step of scikit-learn", ("frameworks/sklearn", "frameworks/support"), kept=(1,)),
    # 4: the check before the first step leaves its traces in a loss of the user's that has state
    # 3: importing the model's module may draw from the generators that its initial weights are drawn from;
    # Python's and NumPy's are as imports have left them
    # 2: also, all parameters have weight decay; label_smoothing is left out where samples have weights; rows
    # of tokens count the same in the loss, however many labels they have; a loss of the user's own gets the
    # targets of a regression unstandardized, while outputs are standardized
    # 1: also, the loss of tokens is computed with the tokens of the vocabulary on the middle axis
    "torch": Part(5, "a step of PyTorch", ("frameworks/torch", "frameworks/support"), kept=(1, 2, 3)),
    "xgboost": Part(
        2, "a step of XGBoost", ("frameworks/xgboost", "frameworks/support"), kept=(1,)
    ),  # 1: seed is drawn from the seed of the run
}
_OF_FRAMEWORKS = {name for name, part in PARTS.items() if f"frameworks/{name}" in part.sources}


_older: ContextVar[Mapping[str, int]] = ContextVar("older_semantics", default={})  # noqa: B039 - never changed


def versions(framework: str, older: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return the versions of our parts that a run of a framework, ours or a plugin, depends on.

    Args:
        framework: The name of the framework.
        older: The parts that compute as an older version; default: none.
    """
    others = _OF_FRAMEWORKS - {framework}
    newest = {name: part.version for name, part in PARTS.items() if name not in others}
    return newest | {name: version for name, version in (older or {}).items() if name in newest}


def older_versions(recorded: Mapping[str, int] | None) -> dict[str, int]:
    """Return the parts that compute as an older version for a run, and these versions.

    Args:
        recorded: The versions that the run recorded. A part that it does not name had version 1. A version
            that is not kept is left out: a resume is refused then. None: nothing is recorded, so those in
            force here are returned.
    """
    if recorded is None:
        return dict(in_force())
    began = {name: recorded.get(name, 1) for name in PARTS}
    return {name: version for name, version in began.items() if version in PARTS[name].kept}


@contextmanager
def computing_by(older: Mapping[str, int]) -> Iterator[None]:
    """Compute by older versions of some parts, those that `older_versions` returned."""
    token = _older.set(dict(older))
    try:
        yield
    finally:
        _older.reset(token)


def in_force() -> Mapping[str, int]:
    """Return the parts that compute as an older version here, and these versions."""
    return _older.get()


def version(part: str, older: Mapping[str, int] | None = None) -> int:
    """Return the version that a part computes with.

    Args:
        part: Its name.
        older: The parts that compute as an older version (`DataInfo.semantics`); default: those in force.
    """
    return (in_force() if older is None else older).get(part, PARTS[part].version)


def decides(name: str) -> str:
    """Return what a part decides, for messages; the name of a part that only another version of ours has."""
    return PARTS[name].decides if name in PARTS else name
