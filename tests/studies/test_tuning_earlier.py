"""What a search learns from an earlier one, spaces to begin with, the progress line, and broken spaces."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import trainwright
from small_runs import SMALL
from trainwright import plugins
from trainwright.cli.tuning import tune
from trainwright.config.yaml import read_value
from trainwright.errors import ConfigError, InputError
from trainwright.records.trials import Ending, LoggedTrial, TrialLog
from trainwright.samplers.base import Observation, Parameter
from trainwright.samplers.optuna import TpeParams, TpeSampler
from trainwright.studies.study import Study
from trainwright.studies.tuning.goals import Goals
from trainwright.studies.tuning.results import Progress
from trainwright.studies.tuning.sampling import learned, observations

LOSS = Goals(["val_loss"], ["min"])


def earlier_study(folder: Path) -> Study:
    study = Study.create(folder, "small", "tune", {"tuning": {"metric": "val_loss"}})
    log = TrialLog(study.path)
    for number, (rate, size, status) in enumerate(
        [(0.1, 8, "completed"), (0.01, 16, "completed"), (0.02, 8, "pruned"), (0.03, 8, "failed")]
    ):
        log.begin(LoggedTrial(number, {"rate": rate, "size": size}, ""))
        log.end(number, Ending(status, float(number), 1, ((1, float(number)),)))  # type: ignore[arg-type]
    log.close()
    return study


def test_trials_in_the_space_are_learned_from(tmp_path: Path) -> None:
    space = [Parameter("rate", 0.005, 0.05, log=True), Parameter("size", choices=[8, 16])]
    kept = json.loads(json.dumps(learned(earlier_study(tmp_path), space, LOSS)))
    assert observations(kept) == [
        Observation({"rate": 0.01, "size": 16}, "completed", 1.0, ((1, 1.0),)),
        Observation({"rate": 0.02, "size": 8}, "pruned", 2.0, ((1, 2.0),)),
    ]


@pytest.mark.parametrize(
    ("space", "goals", "named"),
    [
        ([Parameter("rate", 1.0, 2.0)], LOSS, "none of the 3 trials"),
        ([Parameter("other", 1.0, 2.0)], LOSS, "none of the 3 trials"),
        ([Parameter("size", choices=[9])], LOSS, "none of the 3 trials"),
        ([Parameter("size", 0.0, 15.0, step=3.0)], LOSS, "none of the 3 trials"),
        ([Parameter("rate", 0.0, 1.0)], Goals(["val_f1"], ["max"]), "searched by val_loss, not by val_f1"),
    ],
)
def test_a_study_that_says_nothing_is_refused(
    space: list[Parameter], goals: Goals, named: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=named):
        learned(earlier_study(tmp_path), space, goals)


def test_a_study_starts_with_what_another_one_learned(tmp_path: Path) -> None:
    """By hand: the first proposal knows the trials of the other study, and is no random one."""
    space = {"training.learning_rate": {"low": 1e-3, "high": 0.1, "log": True}}
    tuning = {
        "trials": 3,
        "horizon": 1,
        "sampler": {"type": "tpe", "n_startup_trials": 2},
        "space": space,
    }
    short = {**SMALL, "training": {**SMALL["training"], "max_steps": 8}}
    first = trainwright.tune({**short, "tuning": tuning}, runs_dir=tmp_path)
    second = trainwright.tune(
        {**short, "tuning": {**tuning, "trials": 2}, "experiment": {"name": "small", "seed": 4}},
        start_from=first.id,
        runs_dir=tmp_path,
    )
    known = [
        Observation({"training.learning_rate": rate}, "completed", value)
        for rate, value in zip(first.trials["training.learning_rate"], first.trials["value"], strict=True)
    ]
    sampler = TpeSampler(
        TpeParams(n_startup_trials=2), [Parameter("training.learning_rate", 1e-3, 0.1, log=True)], "min", 4
    )
    own = second.trials.to_dict("records")
    assert sampler.propose(0, known) == {"training.learning_rate": own[0]["training.learning_rate"]}
    known.append(Observation(sampler.propose(0, known), "completed", own[0]["value"]))
    assert sampler.propose(1, known) == {"training.learning_rate": own[1]["training.learning_rate"]}
    assert trainwright.reproduce_study(second.id, runs_dir=tmp_path).verdict == "identical"
    with pytest.raises(InputError, match="random proposes without regard"):
        trainwright.tune(
            {**short, "tuning": {"sampler": "random", "space": space}}, start_from="last", runs_dir=tmp_path
        )


# -- spaces to begin with


ADVISED = {
    model: space
    for _, framework in plugins.adapters("framework")
    for model in framework.models
    if (space := framework.advice.spaces.get(model))
}


@pytest.mark.parametrize("model", sorted(ADVISED))
def test_what_is_suggested_can_be_searched(model: str) -> None:
    task = "regression" if model in ("ridge", "lasso", "elastic_net") else "classification"
    config = {"data": {"path": "rows.csv", "target": "y", "task": task}, "model": {"type": model}}
    if model == "gpt":
        config["data"] = {"path": "texts", "type": "text"}
    text = trainwright.suggest_tuning(config)
    from trainwright.config.tree import Problems, plain

    node = read_value(text, "text", Problems())
    assert node is not None
    section = plain(node)
    assert len(section["tuning"]["space"]) >= min(2, len(ADVISED[model]))
    trainwright.check({**config, **section})


def test_all_models_with_a_space_exist() -> None:
    advised = {model for _, framework in plugins.adapters("framework") for model in framework.advice.spaces}
    assert {"mlp", "random_forest", "keras_mlp", "xgboost"} < advised
    assert advised <= set(ADVISED)


def test_a_network_without_advice_is_searched_by_its_rate_and_batch_size() -> None:
    text = trainwright.suggest_tuning({"data": {"type": "digits"}, "model": {"type": "cnn"}})
    assert re.findall(r"^    ([a-z_.]+):", text, re.MULTILINE) == [
        "training.learning_rate",
        "training.batch_size",
    ]


def test_the_command_prints_a_section(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("data: {type: iris}\nmodel: {type: mlp}\n")
    shown = CliRunner().invoke(tune, ["--suggest", str(tmp_path / "c.yaml")])
    assert shown.exit_code == 0
    assert shown.output.startswith("tuning:  # of mlp")
    (tmp_path / "c.yaml").write_text("data: {type: iris}\nmodel: {type: gaussian_nb}\n")
    refused = CliRunner().invoke(tune, ["--suggest", str(tmp_path / "c.yaml")])
    assert "nothing is known" in str(refused.exception or refused.output)


# -- progress


def test_the_time_left_is_that_of_the_pace() -> None:
    now = [0.0]
    progress = Progress(10, clock=lambda: now[0])
    trials = [LoggedTrial(i, {}, "", ending=Ending("completed")) for i in range(4)]
    progress.resumed(trials[:2])
    assert progress.shown(trials[:2], 1) == {"done": "2/10", "running": 1}
    now[0] = 60.0
    trials[3] = trials[3]._replace(ending=Ending("pruned"))
    assert progress.shown(trials, 2) == {"done": "4/10", "running": 2, "pruned": 1, "time_left": "3m00s"}
    limited = Progress(10, 2.0, clock=lambda: now[0])
    now[0] += 30.0
    assert limited.shown(trials[:1], 1)["time_left"] == "1m30s", "not 270 s"


# -- broken spaces: line and column are those of the file

HEAD = "data: {type: iris}\nmodel: {type: mlp}\ntuning:\n  space:\n"
BROKEN: list[tuple[str, str, str]] = [
    ("    training.lerning_rate: [0.1]\n", "5:28", "did you mean 'learning_rate'"),
    ("    training.batch_size: [0]\n", "5:26", "above 0"),
    ("    training.batch_size: {low: 0, high: 8}\n", "5:32", "above 0"),
    ("    training.batch_size: [many]\n", "5:26", "a whole number"),
    ("    training.learning_rate: {low: 0.1, high: 0.01}\n", "5:35", "swap them"),
    ("    training.learning_rate: {low: 0.0, high: 0.1, log: true}\n", "5:35", "needs a low above 0"),
    ("    training.learning_rate: {low: 0.1}\n", "5:35", "has no high"),
    ("    training.learning_rate: {low: a, high: 1}\n", "5:35", "numbers; got 'a'"),
    ("    training.learning_rate: {low: 0.1, high: 1, base: 2}\n", "5:35", "a range has low, high"),
    ("    training.learning_rate: 0.1\n", "5:29", "expected {low"),
    ("    training.learning_rate: []\n", "5:29", "give at least one value"),
    ("    training.learning_rate: [0.1, 0.1]\n", "5:29", "given twice"),
    (
        "    training.learning_rate: {low: 0.1, high: 1, when: {model.type: mlp}}\n",
        "5:68",
        "model.type is not in the space",
    ),
    (
        "    training.optimizer.type: [adam, sgd]\n    training.optimizer.momentum: {low: 0.0, high: 0.9, when: {training.optimizer: sgd}}\n",
        "6:83",
        "training.optimizer is not in the space; write training.optimizer.type",
    ),
    (
        "    training.batch_size: [8, 16]\n    training.learning_rate: {low: 1, high: 2, when: {training.batch_size: 9}}\n",
        "6:75",
        "never holds",
    ),
    ("    model.type: [mlp, resnet_from_mars]\n", "5:17", "resnet_from_mars"),
    ("    training.learning_rate: {low: 0.1, high: 1}\n  sampler: grid\n", "5:35", "a range with a step"),
    ("    training.learning_rate: [0.1, 1]\n  metric: val_acuracy\n", "6:11", "did you mean 'accuracy'"),
]


@pytest.mark.parametrize(("space", "place", "named"), BROKEN, ids=[named for *_, named in BROKEN])
def test_a_broken_space_is_refused_with_file_line_and_column(
    space: str, place: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(HEAD + space)
    with pytest.raises(ConfigError) as refused:
        trainwright.check("c.yaml")
    assert f"c.yaml:{place}: tuning." in str(refused.value)
    assert named in str(refused.value)
    assert refused.value.exit_code == 2


def test_a_space_may_be_nested_as_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(HEAD + "    training.learning_rate: [0.1]\n")
    resolved = trainwright.check("c.yaml", ["tuning.space.training.batch_size=[8, 16]"])
    assert resolved.config.tuning is not None
    with pytest.raises(ConfigError, match=r"command line: tuning.space.training.batch_size"):
        trainwright.check("c.yaml", ["tuning.space.training.batch_size=[0]"])
