"""Write `models.json`: the short names of models and their options, taken from the installed scikit-learn.

    python -m trainwright.frameworks.sklearn.generate

Run it by hand after upgrading scikit-learn. With the file, names and options are known in a millisecond and
without scikit-learn.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainwright.frameworks.sklearn.params import TABLE
from trainwright.require import require

TASKS = {"classifier": "classification", "regressor": "regression"}
MAX_CHOICES = 15  # an option with more choices is described as text

# A short name stands for the classifier and the regressor of one method. These belong together despite their
# class names.
PAIRS = {
    "SVC": "svm",
    "SVR": "svm",
    "NuSVC": "nu_svm",
    "NuSVR": "nu_svm",
    "LinearSVC": "linear_svm",
    "LinearSVR": "linear_svm",
    "RidgeClassifier": "ridge",
    "RidgeClassifierCV": "ridge_cv",
    "MLPClassifier": "sklearn_mlp",  # `mlp` is torch's
    "MLPRegressor": "sklearn_mlp",
}
ALIASES = {
    "adaboost": "ada_boost",
    "knn": "k_neighbors",
    "lda": "linear_discriminant_analysis",
    "naive_bayes": "gaussian_nb",
    "qda": "quadratic_discriminant_analysis",
}
# Options that the run sets: its seed and threads, and that its rows must not be overwritten.
SET_BY_RUN = {"random_state", "n_jobs", "verbose", "warm_start", "copy", "copy_X", "copy_X_train"}
# Options that may be mappings; the keys of other mappings are feature names, which arrays do not have.
MAPPINGS = {"class_weight", "metric_params", "solver_options"}
# Options that would interfere with the run's own steps or stopping, by kind of step.
UNAVAILABLE = {
    "growth": {"early_stopping", "validation_fraction", "n_iter_no_change", "scoring", "tol", "oob_score"},
    "batches": {
        *("early_stopping", "validation_fraction", "n_iter_no_change", "tol", "max_iter", "max_fun"),
        *("batch_size", "shuffle"),
    },
    "once": set(),
}
FORBIDDEN = {  # choices that are not offered, by kind of step
    "batches": {"adaptive", "balanced", "lbfgs"},  # they need all rows
    "growth": set(),
    "once": {"precomputed"},
}


def snake(name: str) -> str:
    """Convert to snake case: `HistGradientBoosting` -> `hist_gradient_boosting`, `SVR` -> `svr`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def table() -> dict[str, Any]:
    """Return the content of `models.json`."""
    sklearn = require("sklearn", "sklearn")
    from sklearn.utils import all_estimators

    classes = {task: dict(all_estimators(type_filter=kind)) for kind, task in TASKS.items()}
    both = {_stem(name) for name in classes["classification"]} & {
        _stem(name) for name in classes["regression"]
    }
    models: dict[str, dict[str, Any]] = {}
    for task, named in classes.items():
        for name, cls in named.items():
            if _is_standalone(cls):
                short = PAIRS.get(name) or snake(_stem(name) if _stem(name) in both else name)
                models.setdefault(short, {})[task] = cls
    entries = {short: _entry(by_task) for short, by_task in sorted(models.items())}
    types = sorted(f"{cls.__module__}.{cls.__name__}" for _, cls in all_estimators())
    return {"scikit-learn": sklearn.__version__, "estimators": types, "aliases": ALIASES, "models": entries}


def _stem(name: str) -> str:
    """Return a class name without `Classifier` or `Regressor` at its end."""
    return name.removesuffix("Classifier").removesuffix("Regressor")


def _is_standalone(cls: type) -> bool:
    """Return whether an estimator can be used without another estimator."""
    required = [parameter.default is parameter.empty for parameter in _parameters(cls).values()]
    return not any(required) and cls.__name__ != "SelfTrainingClassifier"


def _parameters(cls: type) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(cls).parameters


def _entry(classes: Mapping[str, type]) -> dict[str, Any]:
    """Return the entry of one short name; see `models.entry`."""
    from trainwright.frameworks.sklearn.steps import step_kind

    estimators = [cls() for cls in classes.values()]
    kind = step_kind(estimators[0])
    paths = {task: f"{_public(cls.__module__)}:{cls.__name__}" for task, cls in classes.items()}
    return {
        **paths,
        "steps": kind,
        "data": _data(estimators),
        "params": _params(list(classes.values()), kind),
    }


def _public(module: str) -> str:
    """Return the public part of a module's name: `sklearn.ensemble._forest` -> `sklearn.ensemble`."""
    parts = module.split(".")
    return ".".join(
        part for i, part in enumerate(parts) if not any(name.startswith("_") for name in parts[: i + 1])
    )


def _data(estimators: list[Any]) -> dict[str, Any]:
    """Return the recommended values of the `data` section."""
    from sklearn.utils import get_tags

    tags = [get_tags(estimator).input_tags for estimator in estimators]
    options: dict[str, Any] = {}
    modules = " ".join(type(estimator).__module__ for estimator in estimators)
    if ".ensemble." in modules or ".tree." in modules or any(tag.positive_only for tag in tags):
        options["standardize"] = False
    if all(tag.allow_nan for tag in tags):
        options["impute"] = "keep"
    if "_hist_gradient_boosting" in modules:
        options["encode"] = "category"
    elif "CategoricalNB" in type(estimators[0]).__name__:
        options["encode"] = "ordinal"
    return options


def _params(classes: list[type], kind: str) -> dict[str, Any]:
    """Return the options of the classifier and the regressor together."""
    collected: dict[str, list[tuple[Any, list[Any]]]] = {}  # name -> (default, types) in each class
    for cls in classes:
        constraints = getattr(cls, "_parameter_constraints", {})
        for name, parameter in _parameters(cls).items():
            kinds = [one for constraint in constraints.get(name, ()) for one in _kinds(constraint, kind)]
            kinds = [one for one in kinds if one["type"] != "mapping" or name in MAPPINGS]
            if (
                name not in SET_BY_RUN | UNAVAILABLE[kind]
                and kinds != [{"type": "null"}] * len(kinds)
                and parameter.default != "deprecated"
            ):
                collected.setdefault(name, []).append((parameter.default, kinds))
    return {name: _merged(variants) for name, variants in collected.items()}


def _merged(variants: list[tuple[Any, list[Any]]]) -> dict[str, Any]:
    """Merge the (default, types) of an option in both classes.

    `default` is left out if the classes differ in it or JSON cannot hold it: then scikit-learn's own default
    applies.
    """
    types: list[Any] = []
    for _, more in variants:
        for one in more:
            choice = next((known for known in types if known["type"] == one["type"] == "choice"), None)
            if choice is not None:
                choice["of"] = sorted({*choice["of"], *one["of"]})
            elif one not in types:
                types.append(dict(one))
    defaults = [_as_declared(_plain(default), types) for default, _ in variants]
    written = all(default == defaults[0] for default in defaults) and _writable(defaults[0])
    return {"types": types} | ({"default": defaults[0]} if written else {})


def _plain(value: Any) -> Any:
    """Return a default without tuples and NumPy scalars."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value


def _as_declared(default: Any, types: list[Any]) -> Any:
    """Return a default with the type that a config gives it: scikit-learn writes 1 for some floats."""
    numbers = {one["type"] for one in types} & {"int", "float"}
    return float(default) if type(default) is int and numbers == {"float"} else default


def _writable(value: Any) -> bool:
    """Return whether a default can be written as JSON."""
    return value != "warn" and not (isinstance(value, float) and not math.isfinite(value))


def _kinds(constraint: Any, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the types that a config can hold, of those that one of scikit-learn's constraints allows."""
    from sklearn.utils import _param_validation as known

    if isinstance(constraint, known.Interval):
        yield _interval(constraint)
    elif isinstance(constraint, known.Options):
        options = (
            {one for one in constraint.options if isinstance(one, str)}
            - FORBIDDEN[kind]
            - {"deprecated", "warn"}
        )
        if len(options) > MAX_CHOICES:
            yield {"type": "text"}
        elif options:
            yield {"type": "choice", "of": sorted(options)}
    elif constraint is None:
        yield {"type": "null"}
    elif isinstance(constraint, str):
        names = {"boolean": "bool", "array-like": "list"}
        if constraint == "cv_object":
            yield from ({"type": "int", "ge": 2}, {"type": "null"})
        elif constraint in names:
            yield {"type": names[constraint]}
    elif getattr(constraint, "__name__", "") in (
        types := {"Integral": "int", "Real": "float", "str": "text", "dict": "mapping"}
    ):
        yield {"type": types[constraint.__name__]}


def _interval(interval: Any) -> dict[str, Any]:
    """Return the type and the limits of a number."""
    whole = interval.type.__name__ == "Integral"
    closed = {"left": ("left", "both"), "right": ("right", "both")}
    described: dict[str, Any] = {"type": "int" if whole else "float"}
    if interval.left is not None and math.isfinite(interval.left):
        described["ge" if interval.closed in closed["left"] else "gt"] = _plain(interval.left)
    if interval.right is not None and math.isfinite(interval.right):
        described["le" if interval.closed in closed["right"] else "lt"] = _plain(interval.right)
    return described


def text() -> str:
    """Return the text of `models.json`, with one option per line."""
    content = table()
    entries = []
    for name, entry in content["models"].items():
        params = ",\n".join(
            f"   {json.dumps(param)}: {json.dumps(described)}" for param, described in entry["params"].items()
        )
        head = ",\n".join(
            f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in entry.items() if key != "params"
        )
        entries.append(f'  {json.dumps(name)}: {{\n{head},\n   "params": {{\n{params}\n   }}}}')
    rest = "".join(
        f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in content.items() if key != "models"
    )
    return f'{{\n{rest} "models": {{\n' + ",\n".join(entries) + "\n }\n}\n"


if __name__ == "__main__":
    TABLE.write_text(text(), encoding="utf-8")
