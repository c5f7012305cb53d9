"""A model that is given as an object is trained itself, and holds the weights that the run reports."""

import copy
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from catboost import CatBoostClassifier, CatBoostRegressor
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.ensemble import AdaBoostClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from torch import nn
from xgboost import XGBClassifier, XGBRegressor

import trainwright
from small_runs import SMALL, SignalAt, every_save_on_disk, flip
from trainwright.callbacks.base import Callback
from trainwright.errors import (
    ChangedInputsError,
    CheckpointError,
    ConfigError,
    InputError,
    ModelError,
    TrainingError,
    TrainwrightError,
)
from trainwright.frameworks.torch import TorchFramework
from trainwright.runs.run import Run

PLAIN = {key: value for key, value in SMALL.items() if key != "model"}
EVERY_STEP = {"evaluation.every_n_steps": 1, "checkpoint.save_top_k": 1}


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def weights_of(module: nn.Module) -> dict[str, np.ndarray[Any, Any]]:
    return {name: tensor.detach().numpy().copy() for name, tensor in module.state_dict().items()}


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


def stored(run: Run, module: nn.Module) -> dict[str, Any]:
    """Return the weights of a run as another process would load them, into an object of its own."""
    return weights_of(trainwright.load(run, model=copy.deepcopy(module)).native)


def test_the_object_holds_the_best_weights(tmp_path: Path) -> None:
    module, first = net(), weights_of(net())
    settings = EVERY_STEP | {"training.learning_rate": 30.0}  # so high that the last model is not the best
    run = trainwright.train(PLAIN, settings, runs_dir=tmp_path, model=module)
    assert run.result["best"]["step"] < 30
    assert any(not np.array_equal(first[name], value) for name, value in weights_of(module).items())
    assert_equal(weights_of(module), stored(run, net()))
    module.eval()
    predicted = trainwright.load(run, model=net())
    assert predicted.evaluate("val").metrics["val_loss"] == pytest.approx(run.metrics["val_loss"])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"training.ema.decay": 0.9},
        {"training.activation_checkpointing": ["0"]},
        {"training.freeze": [{"match": "0.*", "until_step": 9}]},
    ],
    ids=["plain", "averaged", "activations", "frozen"],
)
def test_it_comes_back_with_its_settings(settings: dict[str, Any], tmp_path: Path) -> None:
    module = net().eval()
    module[3].bias.requires_grad_(False)
    attributes = {name: set(vars(part)) for name, part in module.named_modules()}
    run = trainwright.train(PLAIN, settings, runs_dir=tmp_path, model=module)
    assert not any(part.training for part in module.modules())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert [name for name, one in module.named_parameters() if not one.requires_grad] == ["3.bias"]
    assert {name: set(vars(part)) for name, part in module.named_modules()} == attributes
    assert_equal(weights_of(module), stored(run, net()))


def test_a_second_training_goes_on_from_the_weights(tmp_path: Path) -> None:
    module = net()
    one = trainwright.train(PLAIN, runs_dir=tmp_path, model=module)
    held = copy.deepcopy(module)
    two = trainwright.train(PLAIN, runs_dir=tmp_path, model=module)
    assert one.manifest["weights"] != two.manifest["weights"]
    assert one.digest != two.digest
    assert trainwright.train(PLAIN, runs_dir=tmp_path, model=held).digest == two.digest


def test_a_repetition_begins_with_the_initial_weights(tmp_path: Path) -> None:
    module = net()
    run = trainwright.train(PLAIN, runs_dir=tmp_path, model=module)
    trainwright.train(PLAIN, runs_dir=tmp_path, model=module)
    held = weights_of(module)
    assert trainwright.reproduce(run, model=module).verdict == "identical"
    assert trainwright.reproduce(run, model=net(seed=5)).verdict == "identical"
    assert_equal(weights_of(module), held)


def test_a_resume_trains_the_object_it_is_given(tmp_path: Path) -> None:
    whole = trainwright.train(PLAIN, runs_dir=tmp_path / "whole", model=(other := net()))
    module = net()
    cut = trainwright.train(PLAIN, runs_dir=tmp_path, model=module, callbacks=[SignalAt(13)])
    assert cut.status == "preempted"
    assert_equal(weights_of(module), stored(cut, net()))
    again = net(seed=7)
    assert trainwright.resume(cut, model=again).digest == whole.digest
    assert_equal(weights_of(again), weights_of(other))


def test_a_run_without_a_checkpoint_begins_with_the_kept_weights(tmp_path: Path) -> None:
    script = (
        "import os, sys, torch, trainwright\n"
        "from test_passed_objects import PLAIN, net\n"
        "from trainwright.callbacks.base import Callback\n"
        "class Die(Callback):\n"
        "    def on_log(self, step, metrics):\n"
        "        os._exit(9) if step == 3 else None\n"
        "trainwright.train(PLAIN, runs_dir=sys.argv[1], model=net(), callbacks=[Die()])\n"
    )
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": f"{here}{os.pathsep}{here.parent}"}
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=environment, check=False)
    assert done.returncode == 9
    run = trainwright.get("last", runs_dir=tmp_path)
    whole = trainwright.train(PLAIN, runs_dir=tmp_path / "whole", model=net())
    assert trainwright.resume(run, model=net(seed=3)).digest == whole.digest


@pytest.mark.parametrize(
    ("other", "error", "settings"),
    [
        (lambda: nn.Sequential(*net(5)[:2], nn.Dropout(0.5), net(5)[3]), ChangedInputsError, {}),
        (lambda: nn.Sequential(nn.Linear(4, 16), nn.Linear(16, 5), nn.Linear(5, 3)), ModelError, {}),
        (lambda: net(5), ChangedInputsError, {"seed": 4}),
    ],
    ids=["other", "width", "config"],
)
def test_a_refused_resume_leaves_the_weights(
    other: Callable[[], nn.Module], error: type[Exception], settings: dict[str, Any], tmp_path: Path
) -> None:
    cut = trainwright.train(PLAIN, runs_dir=tmp_path, model=net(), callbacks=[SignalAt(13)])
    if settings:
        file = cut.path / "config.yaml"
        file.write_text(file.read_text().replace("seed: 3", "seed: 4"))
    module = other()
    before = weights_of(module)
    with pytest.raises(error):
        trainwright.resume(cut, model=module)
    assert_equal(weights_of(module), before)


def test_a_completed_run_fills_the_object(tmp_path: Path) -> None:
    run = trainwright.train(PLAIN, runs_dir=tmp_path, model=(first := net()))
    module = net(5)
    assert trainwright.resume(run, model=module).id == run.id
    assert_equal(weights_of(module), weights_of(first))


def test_after_an_error_it_holds_the_newest_checkpoint(tmp_path: Path) -> None:
    class Break(Callback):
        def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
            if step == 13:
                with torch.no_grad():
                    module[0].weight.fill_(float("nan"))

    module = net()
    with pytest.raises(TrainingError), every_save_on_disk():
        trainwright.train(PLAIN, runs_dir=tmp_path, model=module, callbacks=[Break()])
    run = trainwright.get("last", runs_dir=tmp_path)
    assert all(np.isfinite(value).all() for value in weights_of(module).values())
    assert_equal(weights_of(module), stored(run, net()))


def drawn() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(1))]


@pytest.mark.parametrize("module", [net(), nn.Sequential(nn.Linear(5, 3))], ids=["trained", "refused"])
def test_a_run_leaves_the_global_generators(module: nn.Module, tmp_path: Path) -> None:
    state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    expected = drawn()
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])
    with suppress(ModelError):
        trainwright.train(PLAIN, runs_dir=tmp_path, model=module)
    assert drawn() == expected


def test_a_fork_of_the_start_begins_with_the_initial_weights(tmp_path: Path) -> None:
    module = net()
    run = trainwright.train(PLAIN, runs_dir=tmp_path, model=module)
    child = trainwright.fork(run, {"training.learning_rate": 0.02}, step=0, model=module)
    fresh = trainwright.train(PLAIN, {"training.learning_rate": 0.02}, runs_dir=tmp_path, model=net())
    assert child.digest == fresh.digest
    assert_equal(weights_of(module), stored(fresh, net()))


def test_a_reused_run_gives_its_weights(tmp_path: Path) -> None:
    one = trainwright.train(PLAIN, runs_dir=tmp_path, model=(first := net()))
    module = net()
    assert trainwright.train(PLAIN, runs_dir=tmp_path, model=module, reuse=True).id == one.id
    assert_equal(weights_of(module), weights_of(first))
    assert trainwright.train(PLAIN, runs_dir=tmp_path, model=module, reuse=True).id != one.id


def test_two_processes(tmp_path: Path) -> None:
    module = net()
    settings = {"distributed.nproc": 2, "distributed.virtual.data": 2}
    run = trainwright.train(PLAIN, settings, runs_dir=tmp_path, model=module)
    assert_equal(weights_of(module), stored(run, net()))
    alone = net()
    assert (
        trainwright.train(PLAIN, {"distributed.virtual.data": 2}, runs_dir=tmp_path, model=alone).digest
        == run.digest
    )
    assert_equal(weights_of(module), weights_of(alone))


def test_it_comes_back_where_training_is_refused(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(5, 3)).eval()  # the data have four features
    with pytest.raises(ModelError, match="fails on features"):
        trainwright.train(PLAIN, runs_dir=tmp_path, model=module)
    assert not module.training
    run = trainwright.train(PLAIN, runs_dir=tmp_path, model=net())
    cut = trainwright.train(PLAIN, runs_dir=tmp_path, model=net(), callbacks=[SignalAt(13)])
    other = nn.Sequential(*net()[:3], nn.Linear(16, 3, bias=False)).eval()
    for again in (lambda: trainwright.resume(cut, model=other), lambda: trainwright.fork(run, model=other)):
        with pytest.raises(TrainwrightError):
            again()
        assert not any(part.training for part in other.modules())


class Awkward(nn.Module):
    """Holds what `copy.deepcopy` refuses, and keeps its last hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.utils.weight_norm(nn.Linear(4, 8))
        self.last = nn.Linear(8, 3)
        self.lock = threading.Lock()
        self.generator = torch.Generator().manual_seed(3)
        self.hidden: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.lock:
            self.hidden = self.first(x).relu()
            return self.last(self.hidden)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_cannot_be_copied_is_trained(tmp_path: Path) -> None:
    module, gradients = Awkward(), list[float]()
    module.last.bias.register_hook(lambda gradient: gradients.append(float(gradient.norm())) or 2 * gradient)
    run = trainwright.train(PLAIN, runs_dir=tmp_path, model=module)
    assert len(gradients) == 30, "the hook is that of the parameter which is trained"
    without = trainwright.train(PLAIN, runs_dir=tmp_path, model=Awkward())
    assert without.digest != run.digest
    assert trainwright.reproduce(run, model=module).verdict == "identical"
    cut = trainwright.train(PLAIN, runs_dir=tmp_path, model=(again := Awkward()), callbacks=[SignalAt(13)])
    assert trainwright.resume(cut, model=again).status == "completed", "`hidden` is no other model"


def doubled(gradient: torch.Tensor) -> torch.Tensor:
    return 2 * gradient


def halved(gradient: torch.Tensor) -> torch.Tensor:
    return gradient / 2


def halved_in_place(parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.grad /= 2


def test_another_hook_of_a_gradient_is_another_model(tmp_path: Path) -> None:
    module, same, other, later = net(), net(), net(), net()
    for one in (module, same, later):
        one[3].bias.register_hook(doubled)
    other[3].bias.register_hook(halved)
    later[0].bias.register_post_accumulate_grad_hook(halved_in_place)
    cut = trainwright.train(PLAIN, runs_dir=tmp_path, model=module, callbacks=[SignalAt(13)])
    for another in (net(), other, later):
        with pytest.raises(ChangedInputsError, match="hooks of parameter"):
            trainwright.resume(cut, model=another)
    assert trainwright.resume(cut, model=same).status == "completed"


def test_hooks_do_not_travel_to_other_processes(tmp_path: Path) -> None:
    module = net()
    module[3].bias.register_hook(lambda gradient: 2 * gradient)
    with pytest.raises(ModelError, match=r"parameter 3\.bias has a hook, which does not travel"):
        trainwright.train(PLAIN, {"distributed.nproc": 2}, runs_dir=tmp_path, model=module)


def test_a_copy_shares_nothing() -> None:
    module = Awkward()
    module(torch.ones(2, 4))
    calls = list[int]()
    module.last.weight.register_hook(lambda gradient: calls.append(1))
    module.last.bias.register_post_accumulate_grad_hook(lambda parameter: calls.append(2))
    twin = TorchFramework.copied(module)
    assert twin is not module
    assert twin.lock is not module.lock
    assert torch.equal(torch.rand(3, generator=twin.generator), torch.rand(3, generator=module.generator))
    shared = {one.data_ptr() for one in module.parameters()} & {one.data_ptr() for one in twin.parameters()}
    assert not shared
    twin(torch.ones(2, 4)).sum().backward()
    assert sorted(calls) == [1, 2]


CLASSES, VALUES = load_breast_cancer(return_X_y=True), load_diabetes(return_X_y=True)


@pytest.mark.parametrize(
    ("make", "data"),
    [
        (lambda: RandomForestClassifier(10), CLASSES),
        (lambda: AdaBoostClassifier(n_estimators=5), CLASSES),
        (lambda: make_pipeline(StandardScaler(), LogisticRegression()), CLASSES),
        (lambda: LGBMClassifier(n_estimators=5, verbose=-1), CLASSES),
        (lambda: LGBMRegressor(n_estimators=5, verbose=-1), VALUES),
        (lambda: XGBClassifier(n_estimators=5), CLASSES),
        (lambda: XGBRegressor(n_estimators=5), VALUES),
    ],
    ids=["forest", "adaboost", "pipeline", "lightgbm", "lightgbm-values", "xgboost", "xgboost-values"],
)
def test_an_estimator_is_fitted(make: Callable[[], Any], data: tuple[Any, Any], tmp_path: Path) -> None:
    estimator, config = make(), {"data": {"standardize": False}, "training": {"threads": 1}}
    before = estimator.get_params()
    run = trainwright.train(config, runs_dir=tmp_path, model=estimator, data=data)
    predicted = trainwright.load(run, model=make()).predict(data[0])["prediction"]
    np.testing.assert_allclose(estimator.predict(data[0]), predicted, rtol=1e-6)
    assert repr(estimator.get_params()) == repr(before)
    assert trainwright.train(config, runs_dir=tmp_path, model=estimator, data=data).digest == run.digest


@pytest.mark.parametrize(
    ("make", "data"),
    [
        (lambda: XGBClassifier(n_estimators=5), load_iris(return_X_y=True)),
        (lambda: XGBClassifier(n_estimators=5), CLASSES),
        (lambda: XGBRegressor(n_estimators=5, objective="reg:absoluteerror"), VALUES),
        (lambda: XGBRegressor(n_estimators=5, objective="count:poisson", base_score=100), VALUES),
        (lambda: LGBMClassifier(n_estimators=5, verbose=-1), load_iris(return_X_y=True)),
        (
            lambda: LGBMClassifier(n_estimators=5, verbose=-1, objective="multiclassova"),
            load_iris(return_X_y=True),
        ),
        (lambda: LGBMClassifier(n_estimators=5, verbose=-1), CLASSES),
        (lambda: LGBMRegressor(n_estimators=5, verbose=-1, objective="poisson"), VALUES),
    ],
)
def test_a_booster_is_as_after_its_fit(
    make: Callable[[], Any], data: tuple[Any, Any], tmp_path: Path
) -> None:
    config, booster, fitted = {"data": {}, "training": {"threads": 1}}, make(), make().fit(*data)
    run = trainwright.train(config, runs_dir=tmp_path, model=booster, data=data)
    booster.set_params(n_jobs=1)  # XGBoost gives the options to its booster again
    loaded = trainwright.load(run, model=make()).predict(data[0])
    names = sorted(name for name in loaded if name.startswith("probability"))
    if names:
        expected = np.stack([loaded[name] for name in names], axis=1)
        shares = booster.predict_proba(data[0])  # whose sums are not 1 for `multiclassova`
        shares /= shares.sum(1, keepdims=True)
        np.testing.assert_allclose(shares, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(booster.predict(data[0]), loaded["prediction"], rtol=1e-5)
    assert vars(booster).keys() == vars(fitted).keys()
    options = {**fitted.get_params(), "n_jobs": 1}
    assert repr(booster.get_params()) == repr(options)
    assert getattr(booster, "_objective", None) == getattr(fitted, "_objective", None)


@pytest.mark.parametrize(
    ("make", "data"),
    [
        (lambda: CatBoostRegressor(iterations=25, random_seed=0, thread_count=1, verbose=False), VALUES),
        (
            lambda: CatBoostRegressor(
                iterations=25, l2_leaf_reg=3, random_seed=0, thread_count=1, verbose=False
            ),
            VALUES,
        ),
        (
            lambda: CatBoostRegressor(
                iterations=25, loss_function="MAE", random_seed=0, thread_count=1, verbose=False
            ),
            VALUES,
        ),
        (lambda: CatBoostClassifier(iterations=25, random_seed=0, thread_count=1, verbose=False), CLASSES),
        (
            lambda: CatBoostClassifier(iterations=25, random_seed=0, thread_count=1, verbose=False),
            load_iris(return_X_y=True),
        ),
    ],
    ids=["auto", "penalty", "absolute", "classes", "three"],
)
def test_catboost_trains_what_its_fit_would(
    make: Callable[[], Any], data: tuple[Any, Any], tmp_path: Path
) -> None:
    rows, targets = data[0].astype(np.float32), data[1]
    train = (rows[::2], targets[::2])
    given = make()
    before = given.get_params()
    parts = (train, (rows[1::2], targets[1::2]))
    config = {"data": {}, "checkpoint": {"save_top_k": 0}}  # as `fit` keeps the last model
    run = trainwright.train(config, runs_dir=tmp_path, model=given, data=parts)
    fitted = make().fit(*train)
    expected = np.asarray(fitted.predict(rows), dtype=np.float64).reshape(-1)
    loaded = trainwright.load(run, model=make()).predict(rows)["prediction"]
    np.testing.assert_allclose(np.asarray(loaded, dtype=np.float64), expected, rtol=1e-5)
    np.testing.assert_allclose(
        np.asarray(given.predict(rows), dtype=np.float64).reshape(-1), expected, rtol=1e-5
    )
    assert given.get_params() == before


def test_a_resume_takes_the_booster_that_was_cut(tmp_path: Path) -> None:
    config = {"data": {}, "training": {"threads": 1}, "logging": {"every_n_steps": 1}}
    booster = XGBClassifier(n_estimators=5)
    data = load_iris(return_X_y=True)
    cut = trainwright.train(config, runs_dir=tmp_path, model=booster, data=data, callbacks=[SignalAt(3)])
    assert cut.status == "preempted"
    assert trainwright.resume(cut, model=booster, data=data).status == "completed"
    assert booster.get_booster().num_boosted_rounds() == 5


NAMES = np.array(["no", "bad"])[CLASSES[1]]  # not in alphabetical order


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_pipeline(StandardScaler(), LogisticRegression()),
        lambda: GridSearchCV(DecisionTreeClassifier(random_state=0), {"max_depth": [1, 3]}),
        lambda: HistGradientBoostingClassifier(max_iter=5),
        lambda: MLPClassifier(5, max_iter=20),
        lambda: LGBMClassifier(n_estimators=5, verbose=-1),
    ],
    ids=["pipeline", "search", "rounds", "batches", "lightgbm"],
)
@pytest.mark.parametrize("labels", [NAMES, np.array([7, 3])[CLASSES[1]]], ids=["text", "numbers"])
def test_an_estimator_answers_with_the_labels(make: Callable[[], Any], labels: Any, tmp_path: Path) -> None:
    estimator, config = make(), {"data": {}, "training": {"threads": 1}}
    run = trainwright.train(config, runs_dir=tmp_path, model=estimator, data=(CLASSES[0], labels))
    predicted = estimator.predict(CLASSES[0])
    assert predicted.dtype.kind == labels.dtype.kind
    loaded = trainwright.load(run, model=make()).predict(CLASSES[0])["prediction"]
    np.testing.assert_array_equal(predicted, np.asarray(loaded))
    assert (predicted == labels).mean() > 0.8
    assert sorted(estimator.classes_) == sorted(set(labels.tolist()))


def test_an_estimator_that_cannot_have_the_labels_stays_unfitted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    boosted = AdaBoostClassifier(n_estimators=3)
    trainwright.train({"data": {}}, runs_dir=tmp_path, model=boosted, data=(CLASSES[0], NAMES))
    assert not hasattr(boosted, "estimators_")
    assert "stays unfitted, since the model learned the numbers of the classes bad, no" in caplog.text


@pytest.mark.parametrize(
    ("settings", "target"),
    [
        ({"target_transform": "log1p"}, "a transformed target"),
        ({"standardize": True}, "a standardized target"),
    ],
)
def test_an_estimator_of_other_targets_stays_unfitted(
    settings: dict[str, Any], target: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tree = DecisionTreeRegressor(max_depth=2)
    trainwright.train({"data": settings}, runs_dir=tmp_path, model=tree, data=VALUES)
    assert not hasattr(tree, "tree_")
    assert f"the model learned {target}; predict with trainwright.load(run, model=...)" in caplog.text


@pytest.mark.parametrize(
    ("config", "overrides", "message"),
    [
        (
            {"model": {"type": "mlp", "foo": 1, "lora": {"r": 8}}},
            {},
            r"model\.lora: has no effect",
        ),
        ({"model": {"hidden": [3], "foo": 1}}, {}, r"model\.hidden: has no effect .* \(nor have foo\)"),
        ({"model": {"init_from": "last"}}, {}, r"model\.init_from: .* load the weights into it before"),
        ({}, {"model.hidden": [3]}, r"model\.hidden: has no effect"),
    ],
)
def test_options_beside_an_object_are_refused(
    config: dict[str, Any], overrides: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        trainwright.train({**PLAIN, **config}, overrides, runs_dir=tmp_path, model=net())
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps({**PLAIN, **config}))
    with pytest.raises(ConfigError, match=message):
        trainwright.train(file, overrides, runs_dir=tmp_path, model=net())


def test_an_object_replaces_the_type_of_the_config(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert trainwright.train(SMALL, runs_dir=tmp_path, model=net()).status == "completed"
    assert "the model given replaces model.type mlp, with its hidden, dropout" in caplog.text


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (net().double(), r"the data are float32 here, and the model is float64: give net\.float\(\)"),
        (net().half(), r"the model is float16: give net\.float\(\)"),
        (net().requires_grad_(False), "all its parameters have requires_grad=False"),
        (
            nn.Sequential(nn.LazyLinear(3)),
            r"0\.weight has no shape yet: run one batch through the module first",
        ),
    ],
    ids=["double", "half", "frozen", "lazy"],
)
def test_what_is_wrong_with_a_module(module: nn.Module, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        trainwright.train(PLAIN, runs_dir=tmp_path, model=module)


def test_the_initial_weights_are_in_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = (tmp_path / "store" / "runs").as_uri()
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "one"))
    run = trainwright.train(PLAIN, runs_dir=url, model=net())
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "other"))
    assert trainwright.reproduce(run.id, runs_dir=url, model=net(seed=2)).verdict == "identical"


def test_a_damaged_initial_state_is_named(tmp_path: Path) -> None:
    run = trainwright.train(PLAIN, runs_dir=tmp_path, model=net())
    (kept,) = run.path.glob("initial/passed/*/weights.safetensors")
    flip(kept)
    with pytest.raises(CheckpointError, match=r"weights\.safetensors"):
        trainwright.reproduce(run, model=net())


def test_evaluating_a_split_of_data_objects_says_how_they_are_given_again(tmp_path: Path) -> None:
    features = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
    pair = features, (features[:, 0] > 0).astype("int64")
    config = {"model": {"type": "mlp", "hidden": [4]}, "training": {"max_steps": 2}}
    run = trainwright.train(config, data=pair, runs_dir=tmp_path, quiet=True)
    with pytest.raises(InputError, match=r"trainwright\.evaluate\('[^']*', data=\.\.\.\)") as raised:
        trainwright.load(run).evaluate(split="test")
    assert raised.value.__cause__ is None
    assert "test_loss" in trainwright.evaluate(run, data=pair)
