"""A user's own loss by import path, and the names of losses, beside loops and formulas by hand."""

import importlib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import trainwright
from late import keras_in_one_thread
from small_runs import SMALL, assert_same, crashed, whole_and_resumed
from trainwright.errors import ChangedInputsError, ConfigError, ModelError
from trainwright.frameworks.torch.losses import base as losses
from trainwright.frameworks.torch.losses.base import LossOptions
from trainwright.frameworks.torch.outputs import class_logits
from trainwright.records.journal import losses as losses_of
from trainwright.records.journal import read
from trainwright.tasks.classification import ClassificationTask
from trainwright.tasks.regression import RegressionTask
from trainwright.types import TARGET, DataInfo, features_spec

SOURCE = """
def focal(outputs, batch):
    import torch
    log = torch.log_softmax(outputs, dim=1)
    own = log.gather(1, batch["target"][:, None])[:, 0]
    return (-(1 - own.exp()) ** 2 * own).mean()


def keras_focal(targets, outputs):
    from keras import ops
    log = ops.log_softmax(outputs, axis=-1)
    own = ops.sum(ops.one_hot(targets, outputs.shape[-1]) * log, axis=-1)
    return -(1 - ops.exp(own)) ** 2 * own


def probabilities(targets, outputs, from_logits=False):
    return 0.0


def of_images(outputs, batch):
    return outputs.sum() + batch["image"].sum()


class Kind:
    pass


class Scaled:
    def __init__(self, factor=1.0):
        self.factor = factor

    def __call__(self, outputs, batch):
        return self.factor * focal(outputs, batch)


class KerasScaled(Scaled):
    def __call__(self, targets, outputs):
        return self.factor * keras_focal(targets, outputs)


def scaled(outputs, batch, factor=1.0):
    return factor * focal(outputs, batch)


def keras_scaled(targets, outputs, factor=1.0):
    return factor * keras_focal(targets, outputs)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the module `my_losses`, in which the test works."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_losses.py").write_text(SOURCE)
    yield tmp_path
    sys.modules.pop("my_losses", None)


def focal(outputs: Any, targets: Any) -> float:
    """The focal loss (Lin et al., 2017) with gamma 2."""
    shifted = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    own = (shifted / shifted.sum(axis=1, keepdims=True))[np.arange(len(targets)), targets]
    return float(np.mean(-((1 - own) ** 2) * np.log(own)))


def drawn(rows: int = 20, classes: int = 3) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    return random.normal(size=(rows, classes)).astype(np.float32), random.integers(0, classes, rows)


def classification(classes: int = 3) -> DataInfo:
    return DataInfo("classification", features_spec((4,)), classes)


VALUES = DataInfo("regression", features_spec((4,)), 1)


@pytest.mark.parametrize(
    ("name", "reference"),
    [("l1", functional.l1_loss), ("smooth_l1", functional.smooth_l1_loss), ("huber", functional.huber_loss)],
)
def test_losses_of_values_are_those_of_torch(name: str, reference: Any) -> None:
    outputs, targets = torch.randn(30, 1) * 3, torch.randn(30)
    expected = float(reference(outputs[:, 0], targets))
    assert float(
        losses.build_loss(name, RegressionTask(VALUES))(outputs, {TARGET: targets})
    ) == pytest.approx(expected)


def test_options_of_an_own_loss_reach_classes_and_functions(mine: Path) -> None:
    outputs, targets = map(torch.from_numpy, drawn())
    batch, task = {TARGET: targets}, ClassificationTask(classification())
    smooth = losses.build_loss(
        "torch.nn:CrossEntropyLoss", task, LossOptions(params={"label_smoothing": 0.2})
    )
    expected = functional.cross_entropy(outputs, targets, label_smoothing=0.2)
    assert float(smooth(outputs, batch)) == float(expected)
    by_sample = losses.build_weighted_loss(
        "torch.nn:CrossEntropyLoss", task, LossOptions(params={"label_smoothing": 0.2})
    )
    assert float(by_sample(outputs, batch, torch.ones(20))) == pytest.approx(20 * float(expected))
    scaled = losses.build_loss("my_losses:scaled", task, LossOptions(params={"factor": 3.0}))
    assert float(scaled(outputs, batch)) == pytest.approx(3 * focal(*drawn()), rel=1e-5)
    scaled = losses.build_loss("my_losses:Scaled", task, LossOptions(params={"factor": 3.0}))
    assert float(scaled(outputs, batch)) == pytest.approx(3 * focal(*drawn()), rel=1e-5)
    assert float(losses.build_loss("my_losses:Scaled", task)(outputs, batch)) == pytest.approx(
        focal(*drawn())
    )
    with pytest.raises(ModelError, match="my_losses:Kind is a class; a function"):
        losses.build_loss("my_losses:Kind", task)
    with pytest.raises(ModelError, match=r"my_losses:Scaled cannot be constructed with gamma: .*gamma"):
        losses.build_loss("my_losses:Scaled", task, LossOptions(params={"gamma": 3.0}))
    with pytest.raises(
        ModelError, match=r"CrossEntropyLoss cannot be constructed with smoothing: .*smoothing"
    ):
        losses.build_loss("torch.nn:CrossEntropyLoss", task, LossOptions(params={"smoothing": 0.2}))


def test_options_of_an_own_loss_are_inputs_of_the_run(mine: Path) -> None:
    def train(loss: Any) -> trainwright.Run:
        return trainwright.train(SMALL, {"training.loss": loss, "training.max_steps": 3})

    plain, thrice = train("my_losses:scaled"), train({"type": "my_losses:scaled", "factor": 3.0})
    first = [next(iter(losses_of(read(one.path / "journal")).values())) for one in (plain, thrice)]
    assert first[1] == pytest.approx(3 * first[0], rel=1e-6)
    assert thrice.manifest["computation"]["training.loss_params.factor"] == 3.0
    assert trainwright.reproduce(thrice).verdict == "identical"


def test_label_smoothing_is_that_of_torch() -> None:
    outputs, targets = map(torch.from_numpy, drawn())
    task = ClassificationTask(classification())
    loss = losses.build_loss("auto", task, LossOptions(0.2))(outputs, {TARGET: targets})
    assert float(loss) == float(functional.cross_entropy(outputs, targets, label_smoothing=0.2))
    with pytest.raises(ModelError, match=r"label_smoothing: 0\.2 given, but the loss is mse"):
        losses.build_loss("auto", RegressionTask(VALUES), LossOptions(0.2))


def keras_loss(name: str, info: DataInfo, single: bool = False, **training: Any) -> Any:
    config = trainwright.check({**SMALL, "model": "keras_mlp"}, {"training.loss": name, **training}).config
    from trainwright.frameworks.keras.backend import import_keras
    from trainwright.frameworks.keras.losses import Outputs, build_loss

    return build_loss(import_keras(), config.training, None, Outputs(single=single, logits=True), info)


@pytest.mark.slow
def test_keras_has_the_same_losses(mine: Path) -> None:
    keras_in_one_thread()
    outputs, targets = drawn()
    smooth = {"training.label_smoothing": 0.2}
    expected = functional.cross_entropy(*map(torch.from_numpy, (outputs, targets)), label_smoothing=0.2)
    got = keras_loss("auto", classification(), **smooth)(outputs, targets)
    assert float(got) == pytest.approx(float(expected), rel=1e-5)
    column, pair = outputs[:, :1], targets > 0
    expected = functional.binary_cross_entropy_with_logits(
        torch.from_numpy(column[:, 0]), torch.from_numpy(pair * 0.8 + 0.1)
    )
    got = keras_loss("cross_entropy", classification(2), single=True, **smooth)(column, pair.astype(np.int64))
    assert float(got) == pytest.approx(float(expected), rel=1e-5)
    values = outputs[:, 0] * 3
    for name, reference in (("l1", functional.l1_loss), ("smooth_l1", functional.smooth_l1_loss)):
        expected = reference(torch.from_numpy(column[:, 0]), torch.from_numpy(values))
        assert float(keras_loss(name, VALUES, single=True)(column, values)) == pytest.approx(
            float(expected), rel=1e-5
        )
    own = keras_loss("my_losses:keras_focal", classification())
    assert float(own(outputs, targets)) == pytest.approx(focal(outputs, targets), rel=1e-5)
    thrice = {"type": "my_losses:keras_scaled", "factor": 3.0}
    own = keras_loss("auto", classification(), **{"training.loss": thrice})
    assert float(own(outputs, targets)) == pytest.approx(3 * focal(outputs, targets), rel=1e-5)
    own = keras_loss(
        "auto", classification(), **{"training.loss": thrice | {"type": "my_losses:KerasScaled"}}
    )
    assert float(own(outputs, targets)) == pytest.approx(3 * focal(outputs, targets), rel=1e-5)
    with pytest.raises(ModelError, match="returns logits, and my_losses:probabilities has from_logits=False"):
        keras_loss("my_losses:probabilities", classification())
    with pytest.raises(
        ModelError, match=r"is a class; a function of .targets, outputs., or a class with __call__"
    ):
        keras_loss("my_losses:Kind", classification())
    with pytest.raises(ModelError, match=r"label_smoothing: 0\.2 given, but the loss is not cross_entropy"):
        keras_loss("my_losses:keras_focal", classification(), **smooth)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "loss"), [("mlp", "focal"), ("keras_mlp", "keras_focal")])
def test_a_run_with_an_own_loss_is_resumed_to_its_bits(mine: Path, model: str, loss: str) -> None:
    if model == "keras_mlp":
        keras_in_one_thread()
    overrides = {"model": {"type": model, "params": {"hidden": [8]}}, "training.loss": f"my_losses:{loss}"}
    whole, resumed = whole_and_resumed(mine, overrides)
    assert_same(resumed, whole)
    assert "my_losses" in whole.manifest["code"]["modules"]
    probabilities = trainwright.predict(whole, iris_test(mine)).filter(like="probability").to_numpy()
    assert probabilities.shape == (150, 3)


def iris_test(folder: Path) -> Path:
    from sklearn.datasets import load_iris

    path = folder / "iris.csv"
    load_iris(as_frame=True).data.to_csv(path, index=False)
    return path


def test_an_array_that_a_batch_does_not_have_is_named_with_those_it_has(mine: Path) -> None:
    config = {"data": "iris", "model": "mlp", "training": {"epochs": 1, "loss": "my_losses:of_images"}}
    with pytest.raises(ModelError, match="KeyError: 'image'; the batch has the keys features, target"):
        trainwright.train(config, runs_dir=mine / "runs")


def test_a_changed_loss_is_a_changed_input(mine: Path) -> None:
    run = crashed(mine / "runs", {"training.loss": "my_losses:focal"})
    (mine / "my_losses.py").write_text(SOURCE.replace("** 2", "** 3"))
    del sys.modules["my_losses"]
    with pytest.raises(ChangedInputsError, match="module my_losses"):
        trainwright.resume(run)


@pytest.mark.parametrize(
    ("model", "loss", "message"),
    [
        ("keras_mlp", "focal", "loss: mine:focal"),
        ("mlp", "label_smoothing", "next to it label_smoothing: 0.1"),
        ("mlp", "a b:c", "expected package.module:Name"),
        ("xgboost", "mine:focal", r"does not take it here; its loss is model\.params\.objective"),
        ("lightgbm", "mine:focal", r"its loss is model\.params\.objective"),
        ("catboost", "mine:focal", r"its loss is model\.params\.objective"),
        ("sgd", "mine:focal", r"its loss is model\.params\.loss"),
    ],
)
def test_losses_by_other_names_are_hinted_at(model: str, loss: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trainwright.check({"data": "iris", "model": model, "training": {"loss": loss}})


@pytest.mark.parametrize(
    ("model", "loss", "ours"),
    [
        ("mlp", "bce", "binary_cross_entropy"),
        ("mlp", "BCEWithLogitsLoss", "binary_cross_entropy"),
        ("mlp", "CrossEntropyLoss", "cross_entropy"),
        ("keras_mlp", "sparse_categorical_crossentropy", "cross_entropy"),
        ("mlp", "l2", "mse"),
    ],
)
def test_losses_by_other_names_are_read_as_ours(model: str, loss: str, ours: str) -> None:
    resolved = trainwright.check({"data": "iris", "model": model, "training": {"loss": loss}})
    assert resolved.config.training.loss == ours
    assert any(loss in note and ours in note for note in resolved.notes)


def test_a_name_that_a_booster_ignores_is_noted_with_its_key() -> None:
    resolved = trainwright.check({"data": "iris", "model": "xgboost", "training": {"loss": "huber"}})
    assert any(
        "no effect on xgboost" in line and "model.params.objective" in line for line in resolved.unused
    )


CONVENTIONS = """
import torch
from torch.nn import functional


def batched(outputs, batch):
    return functional.mse_loss(outputs[:, 0], batch["target"])


def as_torch(input, target):
    return functional.mse_loss(input, target)


def as_keras(y_true, y_pred):
    return functional.mse_loss(y_pred, y_true)


def each(outputs, batch):
    return (outputs[:, 0] - batch["target"]) ** 2


class Module(torch.nn.Module):
    def forward(self, pred, y):
        return ((pred - y) ** 2).mean()


def detached(outputs, batch):
    return outputs.detach().sum()


class OneLogit(torch.nn.Module):
    def __init__(self, input_dim):
        super().__init__()
        self.last = torch.nn.Linear(input_dim, 1)

    def forward(self, x):
        return self.last(x)
"""


@pytest.fixture
def conventions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_conventions.py").write_text(CONVENTIONS)
    yield
    sys.modules.pop("my_conventions", None)


def amounts() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 3))
    return x, 5000 + 1000 * (x[:, 0] - x[:, 1])


@pytest.mark.usefixtures("conventions")
def test_each_way_to_call_a_loss_is_the_mean_squared_error_of_standardized_targets() -> None:
    """The targets are some thousands: unstandardized, beside standardized outputs, nothing is learned."""
    training = {"epochs": 2, "batch_size": 20, "learning_rate": 0.01, "threads": 1}
    names = [
        "mse",
        *(f"my_conventions:{one}" for one in ("batched", "as_torch", "as_keras", "each", "Module")),
    ]
    runs = {
        name: trainwright.train(
            {"model": {"type": "mlp", "hidden": [8]}, "training": training | {"loss": name}}, data=amounts()
        )
        for name in [*names, "torch.nn.MSELoss"]
    }
    assert len({run.digest for run in runs.values()}) == 1, {name: run.digest for name, run in runs.items()}
    with pytest.raises(ModelError, match="my_conventions:detached has no gradient"):
        trainwright.train({"model": "mlp", "training": {"loss": "my_conventions:detached"}}, data=amounts())


@pytest.mark.usefixtures("conventions")
def test_one_logit_of_two_classes_is_that_of_the_second() -> None:
    import my_conventions

    x, y = amounts()
    kinds = (y > 5000).astype(np.int64)
    training = {"epochs": 1, "batch_size": 20, "learning_rate": 0.1, "optimizer": "sgd", "threads": 1}
    config = {"data": {"split": {"val": 0, "test": 0.2}}, "training": training | {"loss": "bce"}}
    run = trainwright.train(config, model=my_conventions.OneLogit, data=(x, kinds))
    outputs = trainwright.load(run.id).outputs(x[:5])
    np.testing.assert_allclose(outputs.sum(axis=1), 1, rtol=1e-6)  # (5, 2)
    assert run.metrics["test_accuracy"] > 0.5
    logits = torch.tensor([[0.3], [-2.0]])
    pair = torch.cat([torch.zeros_like(logits), logits], dim=1)
    torch.testing.assert_close(class_logits(logits), pair)
    expected = functional.binary_cross_entropy_with_logits(logits[:, 0], torch.tensor([1.0, 0.0]))
    batch = {"target": torch.tensor([1, 0])}
    task = ClassificationTask(DataInfo("classification", features_spec((3,)), 2, [0, 1]))
    for name in ("cross_entropy", "binary_cross_entropy"):
        torch.testing.assert_close(losses.build_loss(name, task)(logits, batch), expected)
        weighted = losses.build_weighted_loss(name, task)(logits, batch, torch.tensor([0.5, 0.5]))
        torch.testing.assert_close(weighted, expected)


EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_example_of_two_heads_runs_in_a_small_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its loss is the sum by hand, and the metrics of both heads are computed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    two_heads = importlib.import_module("two_heads")
    monkeypatch.setitem(two_heads.CONFIG["training"], "epochs", 2)
    two_heads.main()
    assert "loss of money" in capsys.readouterr().out
    found = trainwright.get("last", runs_dir="runs").metrics
    assert found["test_loss"] == pytest.approx(found["test_loss_logits"] + found["test_rmse_cost"] ** 2 / 2)


@pytest.mark.soak
def test_the_example_of_a_rare_class_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "imbalanced.py"), run_name="__main__")
    assert "balanced class weights" in capsys.readouterr().out
