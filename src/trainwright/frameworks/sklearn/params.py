"""The short names of models and their options, readable without scikit-learn.

They come from `models.json`, which `generate.py` writes. The pydantic model of a name is created on first
use.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from pydantic import Field, create_model

from trainwright.config.fields import Section
from trainwright.config.schema import RunConfig
from trainwright.errors import ModelError

TABLE = Path(__file__).with_name("models.json")
OWN_DEFAULT = "default"  # stands for scikit-learn's own default, where that depends on the task
PER_STEP = "iterations_per_step"
ITERATIONS = 10  # default of `iterations_per_step`
# The options that a trained estimator still obeys at its next step.
OBEYED = (
    *("n_estimators", "max_iter", "alpha", "l1_ratio", "penalty", "C", "l2_regularization", "max_depth"),
    *("min_samples_leaf", "min_samples_split", "max_leaf_nodes", "eta0", "learning_rate_init"),
)

MEANINGS = {
    "alpha": "strength of the regularization",
    "C": "inverse strength of the regularization",
    "class_weight": "weights of the classes by label; balanced: inversely proportional to their frequency",
    "eta0": "the learning rate; the scheduler varies it if the rule `learning_rate` uses it",
    "fit_intercept": "whether the model has a constant term",
    "kernel": "the kernel function",
    "learning_rate_init": "the learning rate; the scheduler varies it",
    "loss": "the loss function",
    "max_depth": "maximum depth of a tree; null: no limit",
    "max_features": "number or share of features that a split, or an estimator, may choose from",
    "max_iter": "maximum number of iterations",
    "min_samples_leaf": "minimum number or share of rows in a leaf",
    "min_samples_split": "minimum number or share of rows in a node that is split",
    "n_estimators": "final number of estimators; takes precedence over training.epochs and max_steps",
    "n_neighbors": "number of neighbors",
    "subsample": "share of the rows that each tree is fitted to",
}

SHORT_FORMS: Mapping[str, tuple[str, str | None]] = {
    "ada": ("ada_boost", None),
    "dt": ("decision_tree", None),
    "tree": ("decision_tree", None),
    "et": ("extra_trees", None),
    "xt": ("extra_trees", None),
    "forest": ("random_forest", None),
    "rf": ("random_forest", None),
    "gbc": ("gradient_boosting", "classification"),
    "gbr": ("gradient_boosting", "regression"),
    "gbdt": ("gradient_boosting", None),
    "gbrt": ("gradient_boosting", None),
    "gradient_boosted_trees": ("gradient_boosting", None),
    "hgb": ("hist_gradient_boosting", None),
    "hist_gb": ("hist_gradient_boosting", None),
    "hist_gbdt": ("hist_gradient_boosting", None),
    "gp": ("gaussian_process", None),
    "k_nearest_neighbors": ("k_neighbors", None),
    "nearest_neighbors": ("k_neighbors", None),
    "linear": ("linear_regression", None),
    "lin_reg": ("linear_regression", None),
    "ols": ("linear_regression", None),
    "log_reg": ("logistic_regression", None),
    "logistic": ("logistic_regression", None),
    "logit": ("logistic_regression", None),
    "mlp": ("sklearn_mlp", None),
    "nb": ("gaussian_nb", None),
    "gnb": ("gaussian_nb", None),
    "hist_gbm": ("hist_gradient_boosting", None),
    "ard": ("ard_regression", "regression"),
    "br": ("bayesian_ridge", "regression"),
    "gpc": ("gaussian_process", "classification"),
    "gpr": ("gaussian_process", "regression"),
    "huber": ("huber_regressor", "regression"),
    "kr": ("kernel_ridge", "regression"),
    "lar": ("lars", "regression"),
    "llar": ("lasso_lars", "regression"),
    "omp": ("orthogonal_matching_pursuit", "regression"),
    "par": ("passive_aggressive", "regression"),
    "quantile": ("quantile_regressor", "regression"),
    "ransac": ("ransac_regressor", "regression"),
    "rbfsvm": ("svm", None),
    "theil_sen": ("theil_sen_regressor", "regression"),
    "support_vector_machine": ("svm", None),
    "support_vector_classifier": ("svm", "classification"),
    "support_vector_regressor": ("svm", "regression"),
}


@cache
def table() -> Mapping[str, Any]:
    """Return the content of `models.json`."""
    content: Mapping[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return content


def entry(name: str) -> Mapping[str, Any] | None:
    """Return the table's entry of a short name or alias; None if there is none.

    Its keys are the tasks (-> import path of the class), `steps` (kind of step), `data` (recommended
    preparation) and `params` (the options).
    """
    models, aliases = table()["models"], table()["aliases"]
    model: Mapping[str, Any] | None = models.get(aliases.get(name, name))
    return model


class Models(Mapping[str, type[Section]]):
    """Short name -> pydantic model of the options, created on first use."""

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
    """Create the pydantic model of a short name's options."""
    model = entry(name)
    if model is None:
        raise KeyError(name)
    classes = [model[task].partition(":")[2] for task in ("classification", "regression") if task in model]
    fields: dict[str, Any] = {param: _field(param, described) for param, described in model["params"].items()}
    if model["steps"] == "growth":
        meaning = "number of trees or boosting iterations that a step adds; does not change the final model"
        fields[PER_STEP] = (int, Field(ITERATIONS, ge=1, description=meaning))
    summary = f"scikit-learn's {' or '.join(classes)}."
    return create_model(f"{classes[0]}Params", __base__=Section, __doc__=summary, **fields)


def _field(param: str, described: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the annotation and the pydantic field of an option."""
    annotations = [_annotation(one) for one in described["types"]]
    meaning = MEANINGS.get(param, "as in scikit-learn")
    if "default" not in described:
        annotations.append(Literal[OWN_DEFAULT])
        meaning += f"; {OWN_DEFAULT}: scikit-learn's own default"
    default = described.get("default", OWN_DEFAULT)
    options = (
        {"default_factory": lambda: list(default)} if isinstance(default, list) else {"default": default}
    )
    return Union[tuple(annotations)], Field(**options, description=meaning)  # noqa: UP007 - built at run time


PLAIN: Mapping[str, Any] = {
    "bool": bool,
    "text": str,
    "list": list[int | float | bool | str],
    "mapping": dict[str, float],
    "null": None,
}


def _annotation(described: Mapping[str, Any]) -> Any:
    """Return the annotation of one of an option's types."""
    name = described["type"]
    if name == "choice":
        return Literal[tuple(described["of"])]
    if name in PLAIN:
        return PLAIN[name]
    limits = {key: described[key] for key in ("ge", "gt", "le", "lt") if key in described}
    return Annotated[{"int": int, "float": float}[name], Field(**limits)]


def changed_options(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that differ from the defaults; the installed scikit-learn decides on the others.

    Args:
        name: A short name.
        params: All options by name.
    """
    model = entry(name)
    assert model is not None, "a short name"
    return {
        param: value
        for param, value in params.items()
        if param != PER_STEP
        and not _is_default(value, model["params"].get(param, {}).get("default", OWN_DEFAULT))
    }


def _is_default(value: Any, default: Any) -> bool:
    """Return whether a value is the default, in type too: `max_features: 1` is one feature, 1.0 means all."""
    return type(value) is type(default) and bool(value == default)


@cache
def other_names() -> Mapping[str, tuple[str, str | None]]:
    """Return the usual short forms and the class names, with the short names and the tasks."""
    return {
        **SHORT_FORMS,
        **{
            model[task].partition(":")[2]: (name, task)
            for name, model in table()["models"].items()
            for task in ("classification", "regression")
            if task in model
        },
    }


def names_of_task(task: str) -> list[str]:
    """Return the short names of the models that do a task."""
    return [name for name, model in table()["models"].items() if task in model]


def defaults(name: str) -> dict[str, Any]:
    """Return the config defaults of a model by dotted key: data preparation and number of epochs."""
    model = entry(name)
    if model is None:
        return {}
    values = {f"data.{key}": value for key, value in model["data"].items()}
    if model["steps"] == "batches":
        # Naive Bayes learns nothing more from a second epoch.
        values["training.epochs"] = 1 if name.endswith(("_nb", "_bayes")) else 50
    return values


def iterations_per_step(config: RunConfig) -> int:
    """Return the number of iterations that a step adds to an ensemble.

    Raises:
        ModelError: The option is no whole number of at least 1.
    """
    iterations = config.model.params.get(PER_STEP, ITERATIONS)
    if not isinstance(iterations, int) or iterations < 1:
        raise ModelError(f"model.params.{PER_STEP}: expected a whole number of at least 1")
    return iterations


def quantile_of(config: RunConfig) -> float | None:
    """Return the quantile that an estimator predicts; None if its loss is another one."""
    params = config.model.params
    if config.model.type == "quantile_regressor":
        return float(params.get("quantile", 0.5))
    if params.get("loss") != "quantile":
        return None
    given = params.get("quantile")  # of hist_gradient_boosting
    return float(params.get("alpha", 0.9) if given is None else given)
