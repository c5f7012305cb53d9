"""The positive class: of two classes, the one for which F1, precision, recall and thresholds are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from trainwright.errors import InputError
from trainwright.tasks.support.columns import as_json
from trainwright.types import Array

KEY = "evaluation.positive"
# Labels that name the class to be found; what they are not (no, good, ham ...) needs no list.
_WORDS = frozenset(
    """
y yes t true p pos positive bad abnormal anomalous anomaly attack attrition bankrupt bankruptcy
buyer cancelled canceled case churn churned churner click clicked converted conversion damaged
dead deceased default defaulted defaulter defect defective delayed died disease diseased error
event fail failed failure fake fault faulty fraud fraudulent hate ill infected intrusion late
malicious malignant malware outlier overdue phishing poisonous present purchase purchased
readmitted relapse risk risky sick spam suspicious terminated threat toxic unhealthy
""".split()  # noqa: SIM905 - a list of as many literals would fill the screen
)


class PositiveClass(NamedTuple):
    """The code of the positive class, and why it is that one."""

    code: int
    reason: str


def positive_of_two(named: Any, labels: Sequence[Any], counts: Callable[[], Array | None]) -> PositiveClass:
    """Return which of two classes is the positive one.

    Args:
        named: `evaluation.positive`; None: 1 of 0 and 1, else by the usual words, else the rarer class.
        labels: The labels of both, in index order.
        counts: Returns the number of rows of each, (2,); None: they are not known.

    Raises:
        InputError: No class has that name.
    """
    if named is not None:
        return PositiveClass(_index(named, labels), "")
    return by_label(labels) or _by_rows(counts())


def in_words(label: Any, reason: str) -> str:
    """Return the positive class with the reason, and how to change it: `bad (the rarer class; ...)`."""
    why = f"{reason}; to change it, set {KEY}" if reason else KEY
    return f"{label} ({why})"


def _index(named: Any, labels: Sequence[Any]) -> int:
    """Return the index of the class that the config names."""
    for same in (_is_written, _is_equal, _is_alike):
        found = [index for index, label in enumerate(labels) if same(label, named)]
        if len(found) == 1:
            return found[0]
    allowed = " or ".join(map(str, labels))
    raise InputError(f"{KEY}: {named} is not a class of the target; give {allowed}")


def _is_written(label: Any, named: Any) -> bool:
    return str(as_json(label)) == str(named)


def _is_equal(label: Any, named: Any) -> bool:
    return not isinstance(named, str) and bool(as_json(label) == named)


def _is_alike(label: Any, named: Any) -> bool:
    return _folded(label) == _folded(named)


def _folded(label: Any) -> str:
    return str(as_json(label)).strip().casefold()


def by_label(labels: Sequence[Any]) -> PositiveClass | None:
    """Return the class that its label tells; None where both labels do, or neither."""
    first, second = map(_folded, labels)
    if {first, second} in ({"0", "1"}, {"-1", "1"}, {"false", "true"}):
        return PositiveClass(int(second in ("1", "true")), f"of {labels[0]} and {labels[1]}")
    found = [index for index, label in enumerate((first, second)) if label in _WORDS]
    return PositiveClass(found[0], "chosen by its name") if len(found) == 1 else None


def _by_rows(counts: Array | None) -> PositiveClass:
    """Return the class with fewer rows; of equally many, or where they are not known, the second one."""
    if counts is None:
        return PositiveClass(1, "the second in order, as the rows of each are not known")
    if counts[0] == counts[1]:
        return PositiveClass(1, "the second in order, as both have as many rows")
    return PositiveClass(int(np.argmin(counts)), "the rarer class")
