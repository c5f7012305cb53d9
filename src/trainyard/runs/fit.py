"""Which settings may change where a run begins with the state of another one."""

from __future__ import annotations

from trainyard import registry
from trainyard.config.schema import RunConfig

# The settings that say how long a run is, whatever the framework.
LENGTH = ("training.epochs", "training.max_steps", "model.params.n_estimators", "model.params.max_iter")
# Options of optimizers that decide what state they keep.
_STATEFUL = ("amsgrad", "centered", "momentum")
# The options of scikit-learn's estimators that a trained one still obeys at its next step.
_SKLEARN = (
    *("n_estimators", "max_iter", "alpha", "l1_ratio", "penalty", "C", "l2_regularization", "max_depth"),
    *("min_samples_leaf", "min_samples_split", "max_leaf_nodes", "eta0", "learning_rate_init"),
)
# Only this model of scikit-learn multiplies each tree by the rate at which it was grown.
_VARYING_RATE = ("learning_rate", "hist_gradient_boosting")


def refusal(key: str, config: RunConfig, framework: str) -> str | None:
    """Return why a setting cannot change once steps are trained, or None if it can.

    Args:
        key: The setting that changes.
        config: The config in which it has changed.
        framework: The name of the framework.
    """
    if key in ("model.type", "model.framework"):
        return "the state of another model does not fit"
    if key == "model.init_from":
        return "the run begins with the state of its parent"
    if key.startswith("training.optimizer."):
        return _of_optimizer(key, config)
    if key.startswith("data."):
        return needs_same_rows(config, framework)
    return _of_model(key, config, framework) if key.startswith("model.") and key not in LENGTH else None


def _of_optimizer(key: str, config: RunConfig) -> str | None:
    if key == "training.optimizer.type":
        return "the state of another optimizer does not fit"
    option = key.rpartition(".")[2]
    # SGD begins a momentum that it did not have with the next gradient.
    keeps = option in _STATEFUL and (option, config.training.optimizer.type) != ("momentum", "sgd")
    return "the optimizer would keep other state" if keeps else None


def needs_same_rows(config: RunConfig, framework: str) -> str | None:
    """Return why a model can go on only with the rows that it was trained on, or None if it need not."""
    adapter = registry.adapter("framework", framework)
    if "batch_size" in adapter.training_keys(config.model.type, config.model.params):
        return None
    return "each step of this model is fitted to all rows, and goes on only with the same ones"


def _of_model(key: str, config: RunConfig, framework: str) -> str | None:
    params, option = config.model.params, key.split(".")[2]
    if framework == "sklearn":
        obeyed = option in _SKLEARN or (option, config.model.type) == _VARYING_RATE
        return None if obeyed else "scikit-learn keeps it in the trained estimator"
    if framework == "catboost":
        return None if option == "learning_rate" else "CatBoost goes on only with the options that it had"
    if framework == "lightgbm" and _replays(params.get("boosting"), params.get("data_sample_strategy")):
        return "dart, rf and goss repeat their rounds at a resume, with one set of options"
    return None


def has_smaller_end(config: RunConfig, framework: str) -> bool:
    """Return whether the last step of a run of this length is smaller than it would be in a longer one."""
    params = config.model.params
    count = params.get("n_estimators") or params.get("max_iter")
    step = params.get("iterations_per_step") or 10
    return framework == "sklearn" and isinstance(count, int) and count % step != 0


def _replays(boosting: str | None, strategy: str | None) -> bool:
    return boosting not in (None, "gbdt") or strategy == "goss"
