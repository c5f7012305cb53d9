"""Estimators that the user passed in Python, and what a run may put into them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.plugins import task_for
from trainwright.types import DataInfo

log = logging.getLogger("trainwright")


def fill_estimator(
    estimator: Any, info: DataInfo, fill: Callable[[], None], *, with_labels: bool = False
) -> None:
    """Put what was fitted into an estimator, where it then predicts in the user's units.

    Otherwise it stays as it is, and a warning says why: it would silently predict something else.

    Args:
        estimator: The estimator.
        info: What the model was trained on.
        fill: Puts it there.
        with_labels: Whether the estimator then answers with the labels of the classes.
    """
    if reason := _other_unit(info, with_labels=with_labels):
        log.warning(
            "the %s that was given stays unfitted, since the model learned %s; predict with "
            "trainwright.load(run, model=...)",
            type(estimator).__name__,
            reason,
        )
        return
    fill()


def class_labels(info: DataInfo) -> NDArray[Any] | None:
    """Return the labels (classes,) of the classes; None where they are the numbers that a model learns.

    Labels of several types are text.
    """
    if not task_for(info).has_classes() or info.classes is None:
        return None
    numbers = [str(number) for number in range(len(info.classes))]
    labels = list(info.classes)
    return None if [_plain(label) for label in labels] == numbers else np.array(labels)


def _other_unit(info: DataInfo, *, with_labels: bool) -> str:
    """Return what a model learned instead of the targets as they were given; "": nothing."""
    if not with_labels and (labels := class_labels(info)) is not None:
        return f"the numbers of the classes {', '.join(map(str, labels[:3]))}" + " ..." * (len(labels) > 3)
    if info.target_transform is not None:
        return "a transformed target"
    if any(info.target_offset):
        return "a shifted target"
    return "" if (info.target_mean, info.target_scale) == (0.0, 1.0) else "a standardized target"


def _plain(label: Any) -> str:
    """Return a label as text; False and True are the numbers 0 and 1 to every library."""
    return str(int(label)) if isinstance(label, bool | np.bool_) else str(label)


def give_fitted(fitted: Any, estimator: Any) -> None:
    """Give an estimator of scikit-learn the attributes that another one of its class got when it was fitted.

    What is fitted in place, such as the steps of a pipeline, gets its own.
    """
    options = estimator.get_params(deep=False)
    vars(estimator).update({name: value for name, value in vars(fitted).items() if name not in options})
    for name, own in options.items():
        for mine, theirs in zip(_estimators(own), _estimators(getattr(fitted, name)), strict=False):
            if type(mine) is type(theirs):
                give_fitted(theirs, mine)


def _estimators(option: Any) -> list[Any]:
    """Return the estimators that an option is, or holds in pairs or triples with names."""
    if isinstance(option, list | tuple):
        return [one for item in option for one in _estimators(item)]
    is_object = hasattr(option, "get_params") and not isinstance(option, type)
    return [option] if is_object else []
