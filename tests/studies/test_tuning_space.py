"""Spaces of a study: what is read from the config, and what is refused before anything is trained."""

from pathlib import Path
from typing import Any

import pytest

import trainwright
from small_runs import SMALL
from trainwright.errors import ConfigError, InputError
from trainwright.samplers.base import Parameter, exists
from trainwright.studies.tuning.search_space import read_space


def test_a_space_is_read_in_the_order_of_its_conditions() -> None:
    space = read_space(
        {
            "training.optimizer.momentum": {
                "low": 0.0,
                "high": 0.9,
                "when": {"training.optimizer.type": "sgd"},
            },
            "training.optimizer.type": ["adamw", "sgd"],
            "training.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
            "training.batch_size": {"low": 8, "high": 32, "step": 8},
            "model.hidden": {
                "choices": [[8], [16, 8]],
                "when": {"training.optimizer.type": ["adamw", "sgd"]},
            },
        }
    )
    by_key = {parameter.key: parameter for parameter in space}
    assert [p.key for p in space].index("training.optimizer.type") < [p.key for p in space].index(
        "model.hidden"
    )
    assert by_key["training.learning_rate"] == Parameter("training.learning_rate", 1e-4, 1e-1, log=True)
    assert by_key["training.batch_size"] == Parameter("training.batch_size", 8, 32, step=8, integer=True)
    momentum = by_key["training.optimizer.momentum"]
    assert exists(momentum, {"training.optimizer.type": "sgd"})
    assert not exists(momentum, {"training.optimizer.type": "adamw"})
    assert not exists(momentum, {})


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({}, "is empty"),
    ({"training.lerning_rate": [0.1]}, "learning_rate"),
    ({"training.batch_size": [0]}, "above 0"),
    ({"training.batch_size": {"low": 0, "high": 8}}, "above 0"),
    ({"training.batch_size": ["many"]}, "a whole number"),
    ({"training.learning_rate": {"low": 0.1, "high": 0.01}}, "the range is empty: low is 0.1, high is 0.01"),
    ({"training.learning_rate": {"low": 0.0, "high": 0.1, "log": True}}, "needs a low above 0"),
    ({"training.learning_rate": {"low": 0.1}}, "has no high"),
    ({"training.learning_rate": {"low": None, "high": 0.1}}, "has no low"),
    ({"training.learning_rate": {"low": "a", "high": 1}}, "numbers; got 'a'"),
    (
        {"training.learning_rate": {"low": 0.1, "high": 1, "base": 2}},
        "there is no 'base'; a range has low, high",
    ),
    ({"training.learning_rate": {"low": 0.1, "high": 1, "log": True, "step": 0.1}}, "log and step"),
    ({"training.learning_rate": 0.1}, "expected {low: 1e-5"),
    ({"training.learning_rate": []}, "the list of choices is empty"),
    ({"training.learning_rate": [0.1, 0.1]}, "given twice"),
    ({"training.learning_rate": {"choices": [0.1], "low": 1}}, "choices and low"),
    (
        {"training.learning_rate": {"low": 0.1, "high": 1, "when": {"model.type": "mlp"}}},
        "model.type is not in the space",
    ),
    (
        {
            "training.batch_size": [8, 16],
            "training.learning_rate": {"low": 0.1, "high": 1, "when": {"training.batch_size": 99}},
        },
        "never holds: training.batch_size is never 99",
    ),
    ({"training.batch_size": {"choices": [8], "when": {"training.batch_size": 8}}}, "depends on itself"),
    ({"model.type": ["mlp", "resnet_from_mars"]}, "resnet_from_mars"),
    ({"model.params.depth": [1]}, "depth"),
    ({"training.optimizer.type": ["adamw"], "training.optimizer.momentum": [0.9]}, "momentum"),
    (
        {"training.optimizer.type": ["adamw", "sgd"], "training.optimizer.momentum": [0.9]},
        "momentum: needs when: {training.optimizer.type: sgd}; with training.optimizer.type: adamw: 0.9: unknown",
    ),
    (  # the config itself has an mlp, so trials of the other models would fail
        {"model.type": ["mlp", "random_forest", "extra_trees"], "model.hidden": [[8]]},
        "model.hidden: needs when: {model.type: mlp}; with model.type: random_forest: [8]: unknown key",
    ),
    (
        {"model.type": ["mlp", "random_forest", "extra_trees"], "model.max_depth": {"low": 2, "high": 8}},
        "needs when: {model.type: [random_forest, extra_trees]}; with model.type: mlp: 2: unknown key",
    ),
    (
        {
            "model.type": ["mlp", "random_forest"],
            "model.max_depth": {"low": 2, "high": 8, "when": {"model.type": ["random_forest", "mlp"]}},
        },
        "max_depth: when has a value too many: with model.type: mlp: 2: unknown key",
    ),
    (
        {"training.learning_rate": [0.1], "training.lr": [0.2]},
        "training.lr: is another spelling of training.",
    ),
    (
        {"training.batch_size": {"low": 8, "high": 16, "step": 0.5}},
        "expected a whole number above 0, got 8.5",
    ),
    (
        {"training.batch_size": {"low": 8, "high": 16, "step": 100}},
        "step 100 leads beyond the range of 8 to 16",
    ),
    ({"tuning.trials": [1, 2]}, "is the same for all trials of a study"),
    ({"checkpoint.metric": ["val_f1", "val_loss"]}, "is the same for all trials of a study"),
]


@pytest.mark.parametrize(("space", "named"), BROKEN, ids=[named for _, named in BROKEN])
def test_a_broken_space_is_refused_with_its_place(space: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        trainwright.tune(SMALL, space=space, runs_dir=tmp_path)
    assert "tuning.space" in str(refused.value)
    assert named in str(refused.value)
    assert len(str(refused.value).splitlines()) <= 4
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize(
    ("tuning", "named"),
    [
        ({"metric": "val_nothing"}, "nothing"),
        ({"metric": "test_loss"}, "val_"),
        ({"sampler": "tpee"}, "did you mean 'tpe'?"),
        ({"sampler": {"type": "tpe", "n_startup": 3}}, "n_startup"),
        ({"pruner": "hyperbend"}, "hyperband"),
        ({"pruner": {"type": "asha", "min_steps": 0}}, "min_steps"),
        ({"parallel": 3, "horizon": 2}, "more than the horizon of 2"),
        ({"trials": 0}, "above 0"),
        ({"trails": 3}, "did you mean 'trials'?"),
        ({"direction": "upwards"}, "one of auto, min, max"),
        ({"timeout": 600}, "tuning.max_minutes"),
    ],
)
def test_broken_settings_are_refused(tuning: dict[str, Any], named: str, tmp_path: Path) -> None:
    space = {"training.learning_rate": [0.1, 0.2]}
    with pytest.raises(ConfigError) as refused:
        trainwright.tune({**SMALL, "tuning": {"space": space, **tuning}}, runs_dir=tmp_path)
    assert named in str(refused.value)
    assert len(str(refused.value).splitlines()) <= 4


@pytest.mark.parametrize("name", ["none", "halving", "hyperband", "median", "percentile", "asha", "patient"])
def test_each_pruner_can_be_given_by_its_name(name: str) -> None:
    tuning = {"pruner": name, "space": {"training.learning_rate": [0.1, 0.2]}}
    loaded = trainwright.check({**SMALL, "tuning": tuning}).config.tuning
    assert loaded is not None
    assert loaded.pruner.type == name


def test_words_of_other_searches() -> None:
    space = {"training.learning_rate": [0.1, 0.2]}
    loaded = trainwright.check({**SMALL, "tuning": {"n_trials": 4, "n_jobs": 2, "search_space": space}})
    tuning = loaded.config.tuning
    assert tuning is not None
    assert (tuning.trials, tuning.parallel, tuning.space) == (4, 2, space)
    assert len(loaded.notes) == 3


@pytest.mark.parametrize(
    ("name", "meant"),
    [("bayesian", "gp"), ("TPESampler", "tpe"), ("CMA-ES", "cmaes"), ("grid_search", "grid"), ("gp", "gp")],
)
def test_other_names_of_samplers(name: str, meant: str) -> None:
    space = {"training.learning_rate": [0.1, 0.2]}
    for sampler in (name, {"type": name}):
        loaded = trainwright.check({**SMALL, "tuning": {"sampler": sampler, "space": space}})
        assert loaded.config.tuning is not None
        assert loaded.config.tuning.sampler.type == meant
        assert len(loaded.notes) == (name != meant)


TREES = {**SMALL, "model": {"type": "random_forest", "n_estimators": 3}, "training": {}}


ACROSS: dict[str, Any] = {
    "model.type": ["random_forest", "mlp"],
    "model.max_depth": {"low": 2, "high": 8, "when": {"model.type": "random_forest"}},
    "model.hidden": {"choices": [[8], [16]], "when": {"model.type": "mlp"}},
    "training.optimizer.type": {"choices": ["adamw", "sgd"], "when": {"model.type": "mlp"}},
    "training.optimizer.momentum": {"low": 0.0, "high": 0.9, "when": {"training.optimizer.type": "sgd"}},
}


@pytest.mark.parametrize("model", ["mlp", "random_forest", "logistic_regression"])
def test_conditions_hold_whatever_model_the_config_has(model: str) -> None:
    trainwright.check({**SMALL, "model": {"type": model}, "tuning": {"space": ACROSS}})


def warnings_of(space: dict[str, Any], caplog: pytest.LogCaptureFixture) -> list[str]:
    trainwright.check({**TREES, "tuning": {"space": space}})
    return [record.message for record in caplog.records if "tuning.space" in record.message]


def test_a_parameter_without_effect_is_named(caplog: pytest.LogCaptureFixture) -> None:
    (warning,) = warnings_of({"lr": [0.1, 0.2], "model.max_depth": [2, 3]}, caplog)
    assert warning == (
        "tuning.space.lr: training.learning_rate has no effect on random_forest (sklearn); leave it out: it "
        "changes no trial"
    )


def test_a_parameter_that_another_model_takes_has_an_effect(caplog: pytest.LogCaptureFixture) -> None:
    kinds = {"model.type": ["random_forest", "mlp"]}
    assert not warnings_of({**kinds, "training.learning_rate": [0.1, 0.2]}, caplog)
    given = {"low": 0.1, "high": 0.2, "when": {"model.type": "mlp"}}
    assert not warnings_of({**kinds, "training.learning_rate": given}, caplog)
    given["when"] = {"model.type": "random_forest"}
    assert len(warnings_of({**kinds, "training.learning_rate": given}, caplog)) == 1


def test_a_parameter_has_an_effect_if_it_has_one_with_any_value_of_its_condition(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kinds = ["random_forest", "extra_trees", "mlp"]
    rate = {"low": 0.1, "high": 0.2, "when": {"model.type": kinds}}
    assert not warnings_of({"model.type": kinds, "training.learning_rate": rate}, caplog)
    given = {**TREES, "model": {"type": "xgboost"}, "training": {"epochs": 3}}
    trainwright.check({**given, "tuning": {"space": {"model.n_estimators": [3, 4]}}})
    assert not [one for one in caplog.records if "tuning.space" in one.message], "that is training.epochs"


def test_without_a_section_there_is_nothing_to_tune(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tuning: is missing"):
        trainwright.tune(SMALL, runs_dir=tmp_path)


def test_a_config_with_a_tuning_section_trains_as_without(tmp_path: Path) -> None:
    runs = [
        trainwright.train({**SMALL, **more}, runs_dir=tmp_path)
        for more in ({}, {"tuning": {"space": {"training.learning_rate": [0.1]}}})
    ]
    assert runs[0].id != runs[1].id
    assert runs[0].digest == runs[1].digest
    assert trainwright.check({**SMALL, "tuning": {"space": {"training.learning_rate": [0.1]}}}).config.tuning


@pytest.mark.parametrize("key", ["max_depth", "clf__max_depth"])
def test_an_option_of_the_model_without_its_section_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown key; write model\.max_depth"):
        trainwright.check({**TREES, "tuning": {"space": {key: [2, 3]}}})


def test_a_study_of_data_without_a_validation_split_is_not_begun(tmp_path: Path) -> None:
    rows = [([float(i), 1.0], i % 2) for i in range(20)]
    with pytest.raises(InputError, match="no validation rows to tune by"):
        trainwright.tune(
            {"model": "mlp", "tuning": {"space": {"training.learning_rate": [0.1, 0.2]}}},
            data=_Rows(rows),
            runs_dir=tmp_path,
        )
    assert not list(tmp_path.rglob("trials.jsonl"))


class _Rows:
    """A map-style data set, of which there is only one split."""

    def __init__(self, rows: list[tuple[list[float], int]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[list[float], int]:
        return self.rows[i]
