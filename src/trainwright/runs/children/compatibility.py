"""Which settings may change where a run begins with the state of another one."""

from __future__ import annotations

from trainwright.config.schema import RunConfig
from trainwright.frameworks.base import Framework

# The settings that say how long a run is, whatever the framework.
LENGTH = ("training.epochs", "training.max_steps", "model.params.n_estimators", "model.params.max_iter")
# Options of optimizers that decide what state they keep.
_STATEFUL = ("amsgrad", "centered", "momentum")


def refusal(key: str, config: RunConfig, framework: type[Framework]) -> str | None:
    """Return why a setting cannot change once steps are trained, or None if it can.

    Args:
        key: The setting that changes.
        config: The config in which it has changed.
        framework: The framework of the model.
    """
    if key in ("model.type", "model.framework"):
        return "the state of another model does not fit"
    if key.startswith("model.init_from"):
        return "the run begins with the state of its parent"
    if key.startswith("training.optimizer."):
        return _of_optimizer(key, config)
    if key.startswith("data."):
        return needs_same_rows(config, framework)
    if key.startswith("model.") and key not in LENGTH:
        return framework.change_refusal(key.split(".")[2], config)
    return None


def _of_optimizer(key: str, config: RunConfig) -> str | None:
    if key == "training.optimizer.type":
        return "the state of another optimizer does not fit"
    option = key.rpartition(".")[2]
    # SGD begins a momentum that it did not have with the next gradient.
    keeps = option in _STATEFUL and (option, config.training.optimizer.type) != ("momentum", "sgd")
    return "the optimizer would keep other state" if keeps else None


def needs_same_rows(config: RunConfig, framework: type[Framework]) -> str | None:
    """Return why a model can continue only with the rows that it was trained on; None if it takes others."""
    if "batch_size" in framework.training_keys(config.model.type, config.model.params):
        return None
    return "each step of this model is fitted to all rows, and goes on only with the same ones"


def longer(total_steps: int) -> str:
    """Return how a run can get steps to train."""
    if total_steps == 1:
        return "this model is fitted in one step, and cannot go on; train a new run"
    return "make it longer (training.epochs or training.max_steps), or begin at an earlier --step"


def advice(run_id: str, framework: type[Framework] = Framework) -> str:
    """Return how a run can begin with no more than the weights of another one."""
    if not framework.capabilities.initial_weights:
        return "train a new run"
    return f"to begin with its weights alone, train a new run with model.init_from={run_id}"
