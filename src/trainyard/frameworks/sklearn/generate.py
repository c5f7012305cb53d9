"""Writes `models.json`: the short names, and the options of each, read off the installed scikit-learn.

    python -m trainyard.frameworks.sklearn.generate

It is made by hand after an upgrade, so that names and options can be read without scikit-learn, and in a millisecond.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.frameworks.sklearn.models import TABLE
from trainyard.require import require

TASKS = {"classifier": "classification", "regressor": "regression"}
MOST_CHOICES = 15  # of more, only the type is told

# A short name stands for the classifier and the regressor of one method; here their class names do not tell so.
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
# Set by the run: its seed, its threads; and its rows are not to be overwritten.
OURS = {"random_state", "n_jobs", "verbose", "warm_start", "copy", "copy_X", "copy_X_train"}
MAPPINGS = {
    "class_weight",
    "metric_params",
    "solver_options",
}  # of others, the keys are names that arrays have not
NOT_HERE = {  # what would stop or divide the steps that the run counts, by the kind of step
    "growth": {"early_stopping", "validation_fraction", "n_iter_no_change", "scoring", "tol", "oob_score"},
    "batches": {
        *("early_stopping", "validation_fraction", "n_iter_no_change", "tol", "max_iter", "max_fun"),
        *("batch_size", "shuffle"),
    },
    "once": set(),
}
FORBIDDEN = {
    "batches": {"adaptive", "balanced", "lbfgs"},  # not to be had from a part of the rows
    "growth": set(),
    "once": {"precomputed"},
}


def snake(name: str) -> str:
    """`HistGradientBoosting` -> `hist_gradient_boosting`, `PLSRegression` -> `pls_regression`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def table() -> dict[str, Any]:
    """Everything that `models.json` holds."""
    sklearn = require("sklearn", "sklearn")
    from sklearn.utils import all_estimators

    classes = {task: dict(all_estimators(type_filter=kind)) for kind, task in TASKS.items()}
    both = {_stem(name) for name in classes["classification"]} & {
        _stem(name) for name in classes["regression"]
    }
    models: dict[str, dict[str, Any]] = {}
    for task, named in classes.items():
        for name, cls in named.items():
            if _alone(cls):
                short = PAIRS.get(name) or snake(_stem(name) if _stem(name) in both else name)
                models.setdefault(short, {})[task] = cls
    entries = {short: _entry(found) for short, found in sorted(models.items())}
    types = sorted(f"{cls.__module__}.{cls.__name__}" for _, cls in all_estimators())
    return {"scikit-learn": sklearn.__version__, "estimators": types, "aliases": ALIASES, "models": entries}


def _stem(name: str) -> str:
    return name.removesuffix("Classifier").removesuffix("Regressor")


def _alone(cls: type) -> bool:
    """Whether it can be used without another estimator."""
    required = [parameter.default is parameter.empty for parameter in _parameters(cls).values()]
    return not any(required) and cls.__name__ != "SelfTrainingClassifier"


def _parameters(cls: type) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(cls).parameters


def _entry(classes: Mapping[str, type]) -> dict[str, Any]:
    from trainyard.frameworks.sklearn.steps import kind_of

    made = [cls() for cls in classes.values()]
    kind = kind_of(made[0])
    paths = {task: f"{_public(cls.__module__)}:{cls.__name__}" for task, cls in classes.items()}
    return {**paths, "steps": kind, "data": _data(made), "params": _params(list(classes.values()), kind)}


def _public(module: str) -> str:
    """`sklearn.ensemble._forest` -> `sklearn.ensemble`."""
    parts = module.split(".")
    return ".".join(
        part for i, part in enumerate(parts) if not any(one.startswith("_") for one in parts[: i + 1])
    )


def _data(made: list[Any]) -> dict[str, Any]:
    """How the rows are best prepared."""
    from sklearn.utils import get_tags

    tags = [get_tags(estimator).input_tags for estimator in made]
    found: dict[str, Any] = {}
    modules = " ".join(type(estimator).__module__ for estimator in made)
    if ".ensemble." in modules or ".tree." in modules or any(tag.positive_only for tag in tags):
        found["standardize"] = False
    if all(tag.allow_nan for tag in tags):
        found["impute"] = "keep"
    if "_hist_gradient_boosting" in modules:
        found["encode"] = "category"
    elif "CategoricalNB" in type(made[0]).__name__:
        found["encode"] = "ordinal"
    return found


def _params(classes: list[type], kind: str) -> dict[str, Any]:
    """The options, of the classifier and of the regressor together."""
    found: dict[str, list[tuple[Any, list[Any]]]] = {}
    for cls in classes:
        constraints = getattr(cls, "_parameter_constraints", {})
        for name, parameter in _parameters(cls).items():
            kinds = [one for constraint in constraints.get(name, ()) for one in _kinds(constraint, kind)]
            kinds = [one for one in kinds if one["type"] != "mapping" or name in MAPPINGS]
            if (
                name not in OURS | NOT_HERE[kind]
                and kinds != [{"type": "null"}] * len(kinds)
                and parameter.default != "deprecated"
            ):
                found.setdefault(name, []).append((parameter.default, kinds))
    return {name: _merged(some) for name, some in found.items()}


def _merged(some: list[tuple[Any, list[Any]]]) -> dict[str, Any]:
    """One description; no `default` where the classes differ, or where it cannot be written: it is scikit-learn's own."""
    kinds: list[Any] = []
    for _, more in some:
        for one in more:
            same = next((known for known in kinds if known["type"] == one["type"] == "choice"), None)
            if same is not None:
                same["of"] = sorted({*same["of"], *one["of"]})
            elif one not in kinds:
                kinds.append(dict(one))
    defaults = [_plain(default) for default, _ in some]
    written = all(default == defaults[0] for default in defaults) and _writable(defaults[0])
    return {"types": kinds} | ({"default": defaults[0]} if written else {})


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value.item() if hasattr(value, "item") else value


def _writable(value: Any) -> bool:
    return value != "warn" and not (isinstance(value, float) and not math.isfinite(value))


def _kinds(constraint: Any, kind: str) -> Iterator[dict[str, Any]]:
    """What of a constraint a config can hold."""
    from sklearn.utils import _param_validation as known

    if isinstance(constraint, known.Interval):
        yield _interval(constraint)
    elif isinstance(constraint, known.Options):
        options = (
            {one for one in constraint.options if isinstance(one, str)}
            - FORBIDDEN[kind]
            - {"deprecated", "warn"}
        )
        if len(options) > MOST_CHOICES:
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
    whole = interval.type.__name__ == "Integral"
    closed = {"left": ("left", "both"), "right": ("right", "both")}
    found: dict[str, Any] = {"type": "int" if whole else "float"}
    if interval.left is not None and math.isfinite(interval.left):
        found["ge" if interval.closed in closed["left"] else "gt"] = _plain(interval.left)
    if interval.right is not None and math.isfinite(interval.right):
        found["le" if interval.closed in closed["right"] else "lt"] = _plain(interval.right)
    return found


def text() -> str:
    """The file's content: an option in each line."""
    whole = table()
    entries = []
    for name, entry in whole["models"].items():
        params = ",\n".join(
            f"   {json.dumps(param)}: {json.dumps(described)}" for param, described in entry["params"].items()
        )
        head = ",\n".join(
            f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in entry.items() if key != "params"
        )
        entries.append(f'  {json.dumps(name)}: {{\n{head},\n   "params": {{\n{params}\n   }}}}')
    rest = "".join(
        f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in whole.items() if key != "models"
    )
    return f'{{\n{rest} "models": {{\n' + ",\n".join(entries) + "\n }\n}\n"


if __name__ == "__main__":
    TABLE.write_text(text(), encoding="utf-8")
