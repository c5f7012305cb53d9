"""Studies of a model object: each run trains a copy of its own, and the object stays as it is."""

import copy
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import trainwright
from study_configs import SignalInRun
from trainwright.errors import ChangedInputsError, InputError, Interrupted

CONFIG = {"training": {"max_steps": 4}, "logging": {"every_n_steps": 1}}
RATES = [0.01, 0.1]
SPACE = {"training.learning_rate": RATES}


class Net(torch.nn.Module):
    """A network that no module can import again, as in a notebook."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(3, width), torch.nn.ReLU(), torch.nn.Linear(width, 2)
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layers(features)  # type: ignore[no-any-return]


class _Uncopyable(Net):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("it cannot be copied")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


@pytest.fixture
def pair() -> tuple[Any, Any]:
    """Return features and classes."""
    features = np.random.default_rng(0).normal(size=(80, 3)).astype("float32")
    return features, (features[:, 0] + features[:, 1] > 0).astype("int64")


def _tuned(model: Any, pair: Any, **more: Any) -> Any:
    given = {"trials": 2, "sampler": "grid", "metric": "val_loss", "quiet": True}
    return trainwright.tune(CONFIG, model=model, data=pair, space=SPACE, **given | more)


def test_each_trial_trains_a_copy_of_the_object(pair: Any) -> None:
    """A trial has the bits of `train` with a copy; the object keeps its weights, and is not fitted."""
    net = Net()
    before = copy.deepcopy(net.state_dict())
    study = _tuned(net, pair)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())
    for rate, run_id in zip(RATES, study.trials["run_id"], strict=True):
        config = {"training": {"max_steps": 4, "learning_rate": rate}}
        alone = trainwright.train(config, model=copy.deepcopy(net), data=pair, quiet=True)
        assert trainwright.Run(study.path.parent / run_id).digest == alone.digest
    assert trainwright.evaluate(study.best_run, model=net, data=pair)
    with pytest.raises(InputError, match="was given a model in Python; give it again"):
        trainwright.resume_study(study.id, {"tuning.max_minutes": 5}, data=pair)
    assert trainwright.reproduce_study(study.id, model=net, data=pair, quiet=True).verdict == "identical"


def test_a_study_of_an_object_resumes(pair: Any) -> None:
    """It has the trials of a study that was never interrupted; another object is refused."""
    net = Net()
    whole = _tuned(net, pair)
    with pytest.raises(Interrupted, match="resume=True continues it"):
        _tuned(net, pair, callbacks=[SignalInRun(1, 2, signal.SIGINT)])
    with pytest.raises(ChangedInputsError, match="model"):
        _tuned(Net(width=8), pair, resume=True)
    with pytest.raises(Interrupted, match="the same call continues it"):
        trainwright.resume_study(
            "last", model=net, data=pair, callbacks=[SignalInRun(0, 3, signal.SIGINT)], quiet=True
        )
    resumed = trainwright.resume_study("last", model=net, data=pair, quiet=True)
    assert resumed.digest == whole.digest


def test_each_fold_fits_an_estimator_of_its_own(pair: Any) -> None:
    """The estimator that was given stays unfitted."""
    estimator = LogisticRegression(C=3.0)
    given = dict(vars(estimator))
    study = trainwright.cross_validate({}, model=estimator, data=pair, folds=2, quiet=True)
    assert vars(estimator) == given
    (fold, _) = study.runs
    split = {"data": {"split": {"folds": 2, "fold": 0}}}
    alone = trainwright.train(split, model=LogisticRegression(C=3.0), data=pair, quiet=True)
    assert fold.digest == alone.digest
    again = trainwright.cross_validate({}, model=estimator, data=pair, folds=2, quiet=True)
    assert [run.id for run in again.runs] == [alone.id, study.runs[1].id], "the newest of the same inputs"
    other = trainwright.cross_validate({}, model=LogisticRegression(C=0.1), data=pair, folds=2, quiet=True)
    assert other.runs[0].id != fold.id


def test_names_and_classes_are_put_into_the_config(pair: Any) -> None:
    """They are what `train` takes, and the space may have their options."""
    space = {"model.params.C": [0.1, 1.0]}
    study = trainwright.tune(
        {}, model="logistic_regression", data=pair, space=space, trials=2, metric="val_accuracy", quiet=True
    )
    assert study.status == "completed"


def test_what_cannot_be_made_of_an_object_is_refused(pair: Any) -> None:
    """The message says what to give instead."""
    with pytest.raises(InputError, match=r"model.params.width has no effect on a model that is given"):
        trainwright.tune(CONFIG, model=Net(), data=pair, space={"model.params.width": [2, 4]})
    with pytest.raises(InputError, match=r"tuning.parallel: 2 given, but model and data given as objects"):
        _tuned(Net(), pair, parallel=2)
    with pytest.raises(InputError, match="_Uncopyable cannot be copied"):
        _tuned(_Uncopyable(), pair)
    with pytest.raises(InputError, match="takes no model object"):
        trainwright.benchmark(CONFIG, model=Net(), models=["mlp"], data=pair)
    with pytest.raises(InputError, match="a function makes its own models"):
        trainwright.tune(lambda trial: trial.suggest_float("x", 0, 1), model=Net())
