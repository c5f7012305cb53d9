"""Spaces to begin with: for each model the keys that usually matter, with a range around the defaults.

The ranges are round numbers, about a factor of ten to both sides of what the libraries use where a scale is
logarithmic. Each is checked against the config before it is suggested.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from trainyard.config import Config, Overrides, Resolved
from trainyard.config import load as load_config
from trainyard.config.emit import inline
from trainyard.errors import ConfigError, InputError
from trainyard.runs.catalog import Catalog

Spec = Any  # of one parameter, as in `tuning.space`


class Advice(NamedTuple):
    """A parameter to search, and why."""

    spec: Spec
    why: str


def _log(low: float, high: float) -> dict[str, Any]:
    return {"low": low, "high": high, "log": True}


def _range(low: float, high: float) -> dict[str, Any]:
    return {"low": low, "high": high}


_RATE = Advice(_log(1e-4, 3e-2), "the step size; matters most")
_DECAY = Advice(_log(1e-6, 1e-1), "pulls weights to zero")
_BATCH = Advice([32, 64, 128, 256], "rows of a step")
_DROPOUT = Advice(_range(0.0, 0.5), "share of activations left out in training")
_NETWORK = {"training.learning_rate": _RATE, "training.optimizer.weight_decay": _DECAY}
_TRANSFORMER = {
    **_NETWORK,
    "model.num_layers": Advice(_range(1, 6), "depth"),
    "model.hidden_size": Advice([64, 128, 256], "width; a multiple of num_heads"),
    "model.dropout": Advice(_range(0.0, 0.3), _DROPOUT.why),
}
_BOOSTED_RATE = Advice(_log(1e-2, 0.3), "the share of each tree that is added; less needs more trees")
_ROWS = Advice(_range(0.5, 1.0), "share of the rows for each tree")
_COLUMNS = Advice(_range(0.5, 1.0), "share of the columns for each tree")
_FOREST = {
    "model.max_features": Advice(["sqrt", 0.3, 0.6, 1.0], "columns that a split looks at; matters most"),
    "model.min_samples_leaf": Advice(_log(1, 50), "rows of a leaf: more is smoother"),
    "model.max_depth": Advice([None, 6, 12, 20], "none: until leaves are pure"),
}
_LINEAR = {"model.alpha": Advice(_log(1e-5, 1e2), "the strength of the penalty")}
_LOGISTIC = {"model.C": Advice(_log(1e-3, 1e3), "the inverse of the penalty's strength")}
_NEIGHBORS = {
    "model.n_neighbors": Advice(_log(1, 50), "rows that vote"),
    "model.weights": Advice(["uniform", "distance"], "whether nearer ones count more"),
}
_SVM = {
    "model.C": Advice(_log(1e-2, 1e3), "the price of errors; matters most with gamma"),
    "model.gamma": Advice(["scale", 1e-3, 1e-2, 1e-1, 1.0], "the reach of a row: less reaches further"),
}

# By model; `hidden` are the widths of the layers.
SPACES: Mapping[str, Mapping[str, Advice]] = {
    "mlp": {
        **_NETWORK,
        "training.batch_size": _BATCH,
        "model.hidden": Advice([[64], [256], [128, 64], [256, 256], [256, 128, 64]], "widths of the layers"),
        "model.dropout": _DROPOUT,
    },
    "transformer": _TRANSFORMER,
    "gpt": _TRANSFORMER,
    "keras_mlp": {
        "training.learning_rate": _RATE,
        "training.batch_size": _BATCH,
        "model.hidden": Advice([[64], [256], [128, 64], [256, 256], [256, 128, 64]], "widths of the layers"),
        "model.dropout": _DROPOUT,
    },
    "keras_cnn": {
        "training.learning_rate": _RATE,
        "training.batch_size": _BATCH,
        "model.filters": Advice([[16, 32], [32, 64], [32, 64, 128]], "channels of the layers"),
        "model.dropout": _DROPOUT,
    },
    "xgboost": {
        "model.learning_rate": _BOOSTED_RATE,
        "model.max_depth": Advice(_range(2, 10), "depth of a tree; matters most"),
        "model.min_child_weight": Advice(_log(1.0, 100.0), "weight of a leaf: more is smoother"),
        "model.subsample": _ROWS,
        "model.colsample_bytree": _COLUMNS,
        "model.reg_lambda": Advice(_log(1e-3, 10.0), "the penalty of large leaf values"),
    },
    "lightgbm": {
        "model.learning_rate": _BOOSTED_RATE,
        "model.num_leaves": Advice(_log(7, 255), "leaves of a tree; matters most"),
        "model.min_child_samples": Advice(_log(5, 100), "rows of a leaf: more is smoother"),
        "model.colsample_bytree": _COLUMNS,
        "model.reg_lambda": Advice(_log(1e-3, 10.0), "the penalty of large leaf values"),
    },
    "catboost": {
        "model.learning_rate": _BOOSTED_RATE,
        "model.max_depth": Advice(_range(4, 9), "depth of a tree; matters most"),
        "model.reg_lambda": Advice(_log(1.0, 30.0), "the penalty of large leaf values"),
        "model.random_strength": Advice(_log(0.1, 10.0), "noise in the choice of splits"),
    },
    "hist_gradient_boosting": {
        "model.learning_rate": _BOOSTED_RATE,
        "model.max_leaf_nodes": Advice(_log(7, 255), "leaves of a tree; matters most"),
        "model.min_samples_leaf": Advice(_log(5, 100), "rows of a leaf: more is smoother"),
        "model.l2_regularization": Advice(_log(1e-3, 10.0), "the penalty of large leaf values"),
    },
    "gradient_boosting": {
        "model.learning_rate": _BOOSTED_RATE,
        "model.max_depth": Advice(_range(2, 6), "depth of a tree; matters most"),
        "model.subsample": _ROWS,
    },
    "random_forest": _FOREST,
    "extra_trees": _FOREST,
    "decision_tree": {
        "model.max_depth": Advice([None, 3, 5, 8, 12], "none: until leaves are pure"),
        "model.min_samples_leaf": Advice(_log(1, 50), "rows of a leaf: more is smoother"),
    },
    "logistic_regression": _LOGISTIC,
    "linear_svm": _LOGISTIC,
    "ridge": _LINEAR,
    "lasso": _LINEAR,
    "elastic_net": {**_LINEAR, "model.l1_ratio": Advice(_range(0.05, 1.0), "1: lasso; 0: ridge")},
    "sgd": _LINEAR,
    "knn": _NEIGHBORS,
    "k_neighbors": _NEIGHBORS,
    "svm": _SVM,
}
_DEFAULT = {"training.learning_rate": _RATE, "training.batch_size": _BATCH}  # of a user's own network
_TRIALS_PER_PARAMETER = 10


def suggest(config: Config, overrides: Overrides = ()) -> str:
    """Return a `tuning` section (YAML) for a config: see `trainyard.suggest_tuning`."""
    resolved = load_config(config, overrides, Catalog())
    model = resolved.config.model.type
    advised = {
        key: advice
        for key, advice in SPACES.get(model, _DEFAULT if ":" in model else {}).items()
        if _is_taken(key, advice.spec, resolved, config, overrides)
    }
    if not advised:
        raise InputError(
            f"nothing is known to be worth a search for {model}; docs/config.md has its options, and "
            "docs/tuning.md says how to write a space"
        )
    return _section(model, advised, resolved)


def _is_taken(key: str, spec: Spec, resolved: Resolved, config: Config, overrides: Overrides) -> bool:
    """Return whether a config takes the ends of a range (all choices), and they have an effect."""
    values = spec if isinstance(spec, list) else [spec["low"], spec["high"]]
    for value in values:
        if isinstance(overrides, Mapping):
            more: Overrides = {**overrides, key: value}
        else:
            more = [*overrides, f"{key}={inline(value)}"]
        try:
            unused = load_config(config, more, Catalog()).unused
        except ConfigError:
            return False
        if len(unused) > len(resolved.unused):
            return False
    return True


def _section(model: str, advised: Mapping[str, Advice], resolved: Resolved) -> str:
    metric = resolved.config.checkpoint.metric
    trials = _TRIALS_PER_PARAMETER * len(advised)
    lines = [
        f"tuning:  # of {model}; add it to the config, and start with: trainyard tune CONFIG",
        f"  metric: {metric}",
        f"  trials: {trials}  # ten for each parameter; more is better",
        "  space:",
    ]
    texts = {key: f"    {key}: {inline(advice.spec)}" for key, advice in advised.items()}
    width = max(map(len, texts.values()))
    lines += [f"{texts[key]:{width}}  # {advice.why}" for key, advice in advised.items()]
    return "\n".join(lines) + "\n"
