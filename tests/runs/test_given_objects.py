"""A model that is given as an object is trained itself, and holds the weights that the run reports."""

import copy
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.ensemble import AdaBoostClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from torch import nn
from xgboost import XGBClassifier, XGBRegressor

import trainwright
from small_runs import SMALL, SignalAt, flip
from trainwright.errors import CheckpointError, InputError, ModelError, TrainwrightError
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
        "from test_given_objects import PLAIN, net\n"
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
    settings = {"distributed.nproc": 2, "distributed.virtual_ranks": 2}
    run = trainwright.train(PLAIN, settings, runs_dir=tmp_path, model=module)
    assert_equal(weights_of(module), stored(run, net()))
    alone = net()
    assert (
        trainwright.train(PLAIN, {"distributed.virtual_ranks": 2}, runs_dir=tmp_path, model=alone).digest
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
    twin = TorchFramework.copied(module)
    assert twin is not module
    assert twin.lock is not module.lock
    assert torch.equal(torch.rand(3, generator=twin.generator), torch.rand(3, generator=module.generator))
    shared = {one.data_ptr() for one in module.parameters()} & {one.data_ptr() for one in twin.parameters()}
    assert not shared
    twin(torch.ones(2, 4)).sum().backward()
    assert calls == [1]


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


def test_the_initial_weights_are_in_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = (tmp_path / "store" / "runs").as_uri()
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "one"))
    run = trainwright.train(PLAIN, runs_dir=url, model=net())
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "other"))
    assert trainwright.reproduce(run.id, runs_dir=url, model=net(seed=2)).verdict == "identical"


def test_a_damaged_initial_state_is_named(tmp_path: Path) -> None:
    run = trainwright.train(PLAIN, runs_dir=tmp_path, model=net())
    (kept,) = run.path.glob("initial/given/*/weights.safetensors")
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
