"""The short names and their options, readable without scikit-learn.

They stand in `models.json`, which `generate.py` writes; the pydantic model of a name is made when it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from pydantic import Field, create_model

from trainyard.config.schema import Section
from trainyard.types import Task

TABLE = Path(__file__).with_name("models.json")
OWN = "default"  # stands for scikit-learn's own default, where that depends on the task
PER_STEP = "iterations_per_step"
ITERATIONS = 10  # of a step, where nothing else is said

MEANINGS = {
    "alpha": "strength of the regularization",
    "C": "inverse strength of the regularization",
    "class_weight": "weights of the classes, by their labels; balanced: inversely to their shares of the rows",
    "eta0": "the learning rate; the scheduler varies it, where the rule `learning_rate` uses it",
    "fit_intercept": "whether there is a constant term",
    "kernel": "the kernel function",
    "learning_rate_init": "the learning rate; the scheduler varies it",
    "loss": "what is made small",
    "max_depth": "levels of a tree; null: no limit",
    "max_features": "features that a split, or an estimator, may choose from",
    "max_iter": "iterations",
    "min_samples_leaf": "rows that a leaf must have",
    "min_samples_split": "rows that a node must have to be divided",
    "n_estimators": "how many there are in the end; it wins over training.epochs and max_steps",
    "n_neighbors": "how many neighbours decide",
    "subsample": "share of the rows that each tree sees",
}


@cache
def table() -> Mapping[str, Any]:
    """The content of `models.json`."""
    found: Mapping[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return found


def entry(name: str) -> Mapping[str, Any] | None:
    """What is known of a short name: class paths by task, `steps`, `data` and `params`; None for no such name."""
    whole = table()
    found: Mapping[str, Any] | None = whole["models"].get(whole["aliases"].get(name, name))
    return found


class Models(Mapping[str, type[Section]]):
    """The options by short name, each made once, when they are asked for."""

    def __getitem__(self, name: str) -> type[Section]:
        return _options(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and entry(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(sorted([*table()["models"], *table()["aliases"]]))

    def __len__(self) -> int:
        return len(table()["models"]) + len(table()["aliases"])


@cache
def _options(name: str) -> type[Section]:
    found = entry(name)
    if found is None:
        raise KeyError(name)
    classes = [found[task].partition(":")[2] for task in ("classification", "regression") if task in found]
    fields: dict[str, Any] = {param: _field(param, described) for param, described in found["params"].items()}
    if found["steps"] == "growth":
        meaning = "trees, or iterations of boosting, that one step adds; it changes no bit of the model"
        fields[PER_STEP] = (int, Field(ITERATIONS, ge=1, description=meaning))
    summary = f"scikit-learn's {' or '.join(classes)}."
    return create_model(f"{classes[0]}Params", __base__=Section, __doc__=summary, **fields)


def _field(param: str, described: Mapping[str, Any]) -> tuple[Any, Any]:
    """The annotation and the default of an option."""
    kinds = [_annotation(one) for one in described["types"]]
    meaning = MEANINGS.get(param, "as in scikit-learn")
    if "default" not in described:
        kinds.append(Literal[OWN])
        meaning += f"; {OWN}: as scikit-learn has it"
    default = described.get("default", OWN)
    made = {"default_factory": lambda: list(default)} if isinstance(default, list) else {"default": default}
    return Union[tuple(kinds)], Field(**made, description=meaning)  # noqa: UP007 - made here


PLAIN: Mapping[str, Any] = {
    "bool": bool,
    "text": str,
    "list": list[int | float | bool | str],
    "mapping": dict[str, float],
    "null": None,
}


def _annotation(one: Mapping[str, Any]) -> Any:
    if one["type"] == "choice":
        return Literal[tuple(one["of"])]
    if one["type"] in PLAIN:
        return PLAIN[one["type"]]
    limits = {key: one[key] for key in ("ge", "gt", "le", "lt") if key in one}
    return Annotated[{"int": int, "float": float}[one["type"]], Field(**limits)]


def chosen(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The options that differ from the defaults; the others are left to the installed scikit-learn."""
    found = entry(name)
    assert found is not None, "a short name"
    return {
        param: value
        for param, value in params.items()
        if param != PER_STEP and not _same(value, found["params"].get(param, {}).get("default", OWN))
    }


def _same(value: Any, default: Any) -> bool:
    """Whether a value is the default; 1 is not 1.0: it is one feature, and that is all of them."""
    return type(value) is type(default) and bool(value == default)


def names_for(task: Task) -> list[str]:
    """The short names whose models do such a task."""
    return [name for name, found in table()["models"].items() if task in found]


def defaults(name: str) -> dict[str, Any]:
    """The defaults of the config, by dotted key, that such a model asks for."""
    found = entry(name)
    if found is None:
        return {}
    wanted = {f"data.{key}": value for key, value in found["data"].items()}
    if found["steps"] == "batches":
        wanted["training.epochs"] = (
            1 if name.endswith(("_nb", "_bayes")) else 50
        )  # a second pass tells naive Bayes nothing
    return wanted
