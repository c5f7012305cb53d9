"""Searches as other tools write them: what they mean as our `tuning` section."""

from typing import Any

import numpy as np
import pytest

from trainwright.config import load
from trainwright.errors import ConfigError
from trainwright.runs.catalog import Catalog

LOG = {"low": 1e-4, "high": 0.1, "log": True}


def tuning_of(section: str = "tuning", **keys: Any) -> Any:
    """Return the tuning section of a config that has these keys in it, and a space unless they give one."""
    given = {"space": {"training.batch_size": [8]}} if section == "tuning" and len(keys) == 1 else {}
    if any(key in keys for key in ("space", "parameters", "param_grid", "param_space")):
        given = {}
    config = {"data": {"type": "wine"}, "model": "mlp", section: given | keys}
    loaded = load(config, adapters=Catalog())
    assert loaded.config.tuning is not None
    return loaded.config.tuning, loaded.notes


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"min": 1e-4, "max": 0.1, "distribution": "log_uniform_values"}, LOG),
        ({"min": 0, "max": 1, "distribution": "uniform"}, {"low": 0.0, "high": 1.0}),
        ({"min": 1, "max": 9}, {"low": 1, "high": 9}),
        ({"min": 1, "max": 9, "distribution": "int_uniform"}, {"low": 1, "high": 9}),
        (
            {"min": 0, "max": 1, "q": 0.25, "distribution": "q_uniform"},
            {"low": 0, "high": 1, "step": 0.25},
        ),
        ({"values": [1, 2]}, {"choices": [1, 2]}),
        ({"value": 3}, {"choices": [3]}),
        ({"type": "float", "low": 0, "high": 1}, {"low": 0.0, "high": 1.0}),
        (
            {"values": [1, 2], "when": {"model.type": "mlp"}},
            {"choices": [1, 2], "when": {"model.type": "mlp"}},
        ),
        ("tune.loguniform(1e-4, 1e-1)", LOG),
        ("loguniform(1e-4, 0.1)", LOG),
        ("ray.tune.uniform(0, 1)", {"low": 0.0, "high": 1.0}),
        ("tune.quniform(0, 1, 0.5)", {"low": 0, "high": 1, "step": 0.5}),
        ("tune.quniform(16, 64, 16)", {"low": 16, "high": 64, "step": 16}),
        ({"min": 1, "max": 9, "distribution": "q_uniform"}, {"low": 1, "high": 9, "step": 1}),
        ("tune.randint(1, 10)", {"low": 1, "high": 9}),  # Ray leaves the upper end out
        ("tune.qrandint(2, 10, 2)", {"low": 2, "high": 10, "step": 2}),
        ("tune.lograndint(1, 65)", {"low": 1, "high": 64, "log": True}),
        ("tune.choice([8, 16])", [8, 16]),
        ("choice(8, 16)", [8, 16]),
        ("tune.grid_search(['a', None])", ["a", None]),
        ("trial.suggest_float('lr', 1e-4, 1e-1, log=True)", LOG),
        ("suggest_int('n', 1, 9)", {"low": 1, "high": 9}),
        (np.array([1, 2]), [1, 2]),
        (np.logspace(-2, -1, 2), [0.01, 0.1]),
        (range(2, 5), [2, 3, 4]),
    ],
)
def test_a_parameter_in_the_words_of_another_tool(given: Any, ours: Any) -> None:
    """It is the list or the range that the other tool draws from; nested sections, too."""
    flat, notes = tuning_of(space={"model.width": given})
    assert flat.space == {"model.width": ours}
    assert bool(notes) == isinstance(given, dict | str)
    nested, _ = tuning_of(space={"model": {"width": given}})
    assert nested.space == {"model": {"width": ours}}


@pytest.mark.parametrize(
    "ours", [[1, 2], LOG, {"low": 1, "high": 9, "step": 2}, {"choices": [1], "when": {"model.type": ["mlp"]}}]
)
def test_a_parameter_in_our_words_is_not_noted(ours: Any) -> None:
    """It stays as it is."""
    tuning, notes = tuning_of(space={"model.width": ours})
    assert tuning.space == {"model.width": ours}
    assert not notes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"min": -9, "max": -2, "distribution": "log_uniform"}, "exponents of e"),
        ({"mu": 0, "sigma": 1, "min": 0, "distribution": "normal"}, "has no ends"),
        ({"min": 0, "max": 1, "distribution": "beta"}, "there is no distribution 'beta'"),
        ("hp.loguniform(-9, -2)", "is not known here"),
        ("tune.loguniform(1e-4)", "cannot be read"),
        ("tune.loguniform(LOW, HIGH)", "cannot be read"),
        ("tune.sample_from(1)", "is a function"),
    ],
)
def test_what_has_no_meaning_here_says_what_to_write(given: Any, message: str) -> None:
    """One problem, at the parameter."""
    with pytest.raises(ConfigError) as error:
        tuning_of(space={"model.width": given})
    (problem,) = error.value.problems
    assert message in problem.message
    assert problem.path == "tuning.space.model.width"


def test_a_sweep_of_weights_and_biases() -> None:
    """Method, metric with its goal, number of runs, parameters and the pruner."""
    tuning, _ = tuning_of(
        "sweep",
        method="bayes",
        metric={"name": "val_accuracy", "goal": "maximize"},
        run_cap=4,
        parameters={"lr": {"min": 1e-4, "max": 0.1, "distribution": "log_uniform_values"}},
        early_terminate={"type": "hyperband", "eta": 2},
    )
    assert (tuning.sampler.type, tuning.metric, tuning.mode) == ("gp", "val_accuracy", "max")
    assert (tuning.trials, tuning.space) == (4, {"lr": LOG})
    assert (tuning.pruner.type, tuning.pruner.reduction_factor) == ("hyperband", 2)


def test_a_search_of_scikit_learn_and_one_of_ray() -> None:
    """Folds, score and grid; number of samples and scheduler."""
    grid, _ = tuning_of(cv=3, scoring="neg_log_loss", param_grid={"model.dropout": [0.0, 0.1]})
    assert (grid.folds, grid.metric, grid.space) == (3, "val_log_loss", {"model.dropout": [0.0, 0.1]})
    ray, _ = tuning_of(num_samples=6, scheduler="ASHAScheduler", mode="max", param_space={"lr": [0.1]})
    assert (ray.trials, ray.pruner.type, ray.mode) == (6, "asha", "max")


@pytest.mark.parametrize(
    ("key", "given", "ours"),
    [
        ("direction", "maximize", "max"),
        ("directions", ["minimize", "maximize"], ["min", "max"]),
        ("mode", "minimise", "min"),
    ],
)
def test_the_direction(key: str, given: Any, ours: Any) -> None:
    """As Optuna writes it."""
    assert tuning_of(**{key: given})[0].mode == ours


@pytest.mark.parametrize("name", ["optuna.samplers.TPESampler", "TPESampler", "tpe"])
def test_the_sampler_by_its_class(name: str) -> None:
    """With its module or without."""
    assert tuning_of(sampler=name)[0].sampler.type == "tpe"


def test_the_seed_of_a_search_is_that_of_the_experiment() -> None:
    """As scikit-learn's searches are given it."""
    config = {"data": "wine", "model": "mlp", "tuning": {"random_state": 7, "param_grid": {"lr": [0.1]}}}
    assert load(config, adapters=Catalog()).config.experiment.seed == 7


def test_a_model_in_the_place_of_a_config_is_named() -> None:
    """It ends in no traceback."""
    with pytest.raises(
        ConfigError, match=r"or its content as a mapping; got a Catalog; a model is named in it"
    ):
        load(Catalog())  # type: ignore[arg-type]
