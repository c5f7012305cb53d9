"""Advice on scikit-learn's models: proposals for tables, what is worth a search or holds them back."""

from __future__ import annotations

from collections.abc import Mapping

from trainwright.frameworks.base import Advice
from trainwright.frameworks.support.advice import (
    BOOSTED_RATE,
    LEAF_PENALTY,
    LEAF_ROWS,
    LEARNING_RATE,
    LEAVES,
    ROWS,
    least_in_leaf,
    linear,
    logarithmic,
)
from trainwright.types import Mode, Proposal, Suggestion, TableShape

# How scikit-learn's documentation tells whether higher or lower is better.
METRIC_MODES: Mapping[str, Mode] = {
    "_score": "max",
    "_coef": "max",
    "_error": "min",
    "_loss": "min",
    "_deviance": "min",
}

# Models that no option holds back, and the line of config with the nearest one that has such an option.
UNRESTRAINED: Mapping[str, str] = {
    "linear_regression": "model.type: ridge",
    "perceptron": "model.params.penalty: l2",
    "linear_discriminant_analysis": "model.type: logistic_regression",
}

UNWEIGHTED = (
    *("gaussian_process", "k_neighbors", "label_propagation", "label_spreading", "nearest_centroid"),
    *("linear_discriminant_analysis", "quadratic_discriminant_analysis", "passive_aggressive"),
    "radius_neighbors",
)

_FOREST = {
    "model.max_features": Suggestion(["sqrt", 0.3, 0.6, 1.0], "columns that a split looks at; matters most"),
    "model.min_samples_leaf": Suggestion(logarithmic(1, 50), LEAF_ROWS.why),
    "model.max_depth": Suggestion([None, 6, 12, 20], "none: until leaves are pure"),
}
_LINEAR = {"model.alpha": Suggestion(logarithmic(1e-5, 1e2), "the strength of the penalty")}
_LOGISTIC = {"model.C": Suggestion(logarithmic(1e-3, 1e3), "the inverse of the penalty's strength")}
_NEIGHBORS = {
    "model.n_neighbors": Suggestion(logarithmic(1, 50), "rows that vote"),
    "model.weights": Suggestion(["uniform", "distance"], "whether nearer ones count more"),
}

SPACES: Mapping[str, Mapping[str, Suggestion]] = {
    "hist_gradient_boosting": {
        "model.learning_rate": BOOSTED_RATE,
        "model.max_leaf_nodes": LEAVES,
        "model.min_samples_leaf": LEAF_ROWS,
        "model.l2_regularization": LEAF_PENALTY,
    },
    "gradient_boosting": {
        "model.learning_rate": BOOSTED_RATE,
        "model.max_depth": Suggestion(linear(2, 6), "depth of a tree; matters most"),
        "model.subsample": ROWS,
    },
    "random_forest": _FOREST,
    "extra_trees": _FOREST,
    "decision_tree": {
        "model.max_depth": Suggestion([None, 3, 5, 8, 12], "none: until leaves are pure"),
        "model.min_samples_leaf": Suggestion(logarithmic(1, 50), LEAF_ROWS.why),
    },
    "logistic_regression": _LOGISTIC,
    "linear_svm": _LOGISTIC,
    "ridge": _LINEAR,
    "lasso": _LINEAR,
    "elastic_net": {**_LINEAR, "model.l1_ratio": Suggestion(linear(0.05, 1.0), "1: lasso; 0: ridge")},
    "sgd": _LINEAR,
    "knn": _NEIGHBORS,
    "k_neighbors": _NEIGHBORS,
    "svm": {
        "model.C": Suggestion(logarithmic(1e-2, 1e3), "the price of errors; matters most with gamma"),
        "model.gamma": Suggestion(
            ["scale", 1e-3, 1e-2, 1e-1, 1.0], "the reach of a row: less reaches further"
        ),
    },
}


def proposals(shape: TableShape) -> Mapping[str, Proposal]:
    """Return what a config for a table begins with, by model; boosted trees learn one target."""
    boosted = {
        "max_iter": 1000,
        "learning_rate": LEARNING_RATE,
        "min_samples_leaf": least_in_leaf(shape),
    }
    stop = {"early_stopping": {"metric": "val_loss", "patience": 5}}  # of 10 iterations each
    forest = {"n_estimators": 300, "min_samples_leaf": 1 if shape.classes else 2}
    of_labels = shape.several == "labels"
    return {
        "hist_gradient_boosting": Proposal(boosted, stop, default_rank=None if shape.several else 4),
        "random_forest": Proposal(forest, default_rank=4 if shape.several else None, comparison_rank=3),
        "logistic_regression": Proposal(
            {"C": 1.0, "max_iter": 1000}, comparison_rank=2 if shape.classes else None
        ),
        "ridge": Proposal({"alpha": 1.0}, comparison_rank=None if shape.classes or of_labels else 2),
    }


ADVICE = Advice(proposals, SPACES, UNRESTRAINED, UNWEIGHTED)
