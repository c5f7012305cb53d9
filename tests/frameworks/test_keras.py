"""The Keras framework.

Every optimizer, precision, loss and kind of model trains, and resumes to the same bits.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import small_runs
import trainwright
from late import Late, keras_in_one_thread
from small_runs import SMALL, assert_same, checkpoints, journal_values, preempted
from trainwright.config import load
from trainwright.digest import sha256_file
from trainwright.errors import ConfigError, InputError, ModelError, TrainingError, TrainwrightError
from trainwright.frameworks.base import ModelInputs
from trainwright.frameworks.keras import KerasFramework
from trainwright.frameworks.keras.backend import _pin_tensorflow
from trainwright.frameworks.keras.building import _last_activation
from trainwright.frameworks.keras.losses import Outputs
from trainwright.frameworks.keras.params import COMPILED, OPTIMIZERS
from trainwright.records.run_dir import RunDir
from trainwright.runs.catalog import Catalog
from trainwright.runs.run import Run
from trainwright.runs.wiring import Objects, build
from trainwright.types import DataInfo, features_spec

pytestmark = pytest.mark.skipif(
    None in map(find_spec, ("keras", "tensorflow")), reason="Keras or TensorFlow is not installed"
)


keras: Any = Late(lambda: keras_in_one_thread()[0])
tf: Any = Late(lambda: keras_in_one_thread()[1])

KERAS: dict[str, Any] = {"type": "keras_mlp", "params": {"hidden": [16], "dropout": 0.2}}


def whole_and_resumed(
    tmp_path: Path, overrides: Mapping[str, Any], at: int = 13, **objects: Any
) -> tuple[Run, Run]:
    """The uninterrupted run, and one that continued from a checkpoint before `at`."""
    overrides = ({} if "model" in objects else {"model": KERAS}) | dict(overrides)
    return small_runs.whole_and_resumed(tmp_path, overrides, at=at, **objects)


def train(tmp_path: Path, overrides: Mapping[str, Any] | None = None, **objects: Any) -> Run:
    return trainwright.train(SMALL, {"model": KERAS, **(overrides or {})}, runs_dir=tmp_path, **objects)


@pytest.fixture(scope="module")
def iris(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of the config above, for the tests that look at what came out."""
    return train(tmp_path_factory.mktemp("iris"))


@pytest.fixture(scope="module")
def diabetes(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same on values."""
    return train(tmp_path_factory.mktemp("diabetes"), {"data.type": "diabetes"})


def weights(run: Run) -> dict[str, np.ndarray]:
    return load_file(checkpoints(run)[-1] / "weights.safetensors")


def loss_of(run: Run) -> list[float]:
    return list(journal_values(run)[0].values())


def assert_learns(run: Run) -> None:
    losses = loss_of(run)
    assert np.mean(losses[-5:]) < np.mean(losses[:5]), "it does not learn"


# -- what trains


OPTIMIZER_OPTIONS: list[dict[str, Any]] = [
    *({"type": name} for name in OPTIMIZERS),
    {"type": "adamw", "amsgrad": True},
    {"type": "sgd", "momentum": 0.9, "nesterov": True},
    {"type": "rmsprop", "momentum": 0.5, "centered": True},
]


def test_a_reset_gives_keras_the_settings_of_a_fresh_process() -> None:
    def settings() -> tuple[Any, ...]:
        config = keras.config
        names = keras.layers.Dense(2).name, sorted(keras.saving.get_custom_objects())
        return (
            config.floatx(),
            config.epsilon(),
            config.image_data_format(),
            config.dtype_policy().name,
            names,
        )

    keras.config.set_floatx("float64")
    keras.config.set_epsilon(1e-3)
    keras.config.set_image_data_format("channels_first")
    keras.config.set_dtype_policy("mixed_bfloat16")
    keras.saving.register_keras_serializable("mine")(type("Mine", (keras.layers.Dense,), {}))
    settings()
    KerasFramework.reset()
    assert settings() == ("float32", 1e-7, "channels_last", "float32", ("dense", []))


@pytest.mark.parametrize(
    "options", OPTIMIZER_OPTIONS, ids=lambda options: "-".join(map(str, options.values()))
)
def test_every_optimizer_learns_and_resumes_to_the_same_bits(options: dict[str, Any], tmp_path: Path) -> None:
    whole, resumed = whole_and_resumed(
        tmp_path, {"training.optimizer": options, "training.learning_rate": 0.01}
    )
    assert_same(resumed, whole)
    assert_learns(whole)


def test_the_same_options_make_the_same_update_as_in_torch(tmp_path: Path) -> None:
    """Adam's first step moves every weight by the learning rate, where epsilon is small.

    AdamW decays by what is asked for.
    """
    options = {"training.max_steps": 1, "training.learning_rate": 0.5, "model.params.dropout": 0.0}
    runs = {
        decay: weights(
            train(tmp_path, options | {"training.weight_decay": decay, "training.learning_rate": rate})
        )
        for decay, rate in ((0.0, 1e-30), (0.1, 1e-2), (0.2, 1e-2))
    }
    for before, less, more in zip(*(run.values() for run in runs.values()), strict=True):
        np.testing.assert_allclose(less - more, 0.1 * 1e-2 * before, atol=1e-6)


PRECISIONS = [("bf16", None), ("mixed", 0.5), ("fp16", None), ("fp16", 0.5), ("fp32", 0.5)]


@pytest.mark.parametrize(("precision", "norm"), PRECISIONS)
def test_every_precision_learns_and_resumes_to_the_same_bits(
    precision: str, norm: float | None, tmp_path: Path
) -> None:
    whole, resumed = whole_and_resumed(
        tmp_path, {"training.precision": precision, "training.max_grad_norm": norm}
    )
    assert_same(resumed, whole)
    assert_learns(whole)
    assert {array.dtype for array in weights(whole).values()} == {np.dtype(np.float32)}, (
        "the weights themselves stay whole"
    )
    assert keras.config.dtype_policy().name == "float32", "the policy leaks"


def test_precisions_differ(tmp_path: Path) -> None:
    short = {"training.max_steps": 5}
    assert (
        len(
            {
                train(tmp_path, {**short, "training.precision": name}).digest
                for name in ("fp32", "bf16", "fp16")
            }
        )
        == 3
    )


def test_the_scale_of_the_loss_is_part_of_the_state(tmp_path: Path) -> None:
    """With values so large that the scaled gradients overflow at first.

    The scale falls, and steps are left out.
    """
    overrides = {"training.precision": "fp16", "data.standardize": False, "data.type": "wine"}
    whole, resumed = whole_and_resumed(tmp_path, overrides)
    assert_same(resumed, whole)
    saved = load_file(checkpoints(whole)[-1] / "optimizer.safetensors")
    (scale,) = (float(value) for name, value in saved.items() if name.endswith("dynamic_scale"))
    assert 0 < scale < 2**15


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_microbatches_give_the_same_step_up_to_rounding(precision: str, tmp_path: Path) -> None:
    plain = {
        "model.params.dropout": 0.0,
        "training.batch_size": 50,
        "training.max_steps": 10,
        "training.precision": precision,
    }
    whole = train(tmp_path, plain)
    parts = train(tmp_path, {**plain, "training.microbatch_size": 16})
    assert parts.digest != whole.digest, "it took no microbatches"
    close = {"fp32": 1e-6, "fp16": 1e-2}[precision]
    for name, array in weights(whole).items():
        np.testing.assert_allclose(weights(parts)[name], array, rtol=0, atol=close)
    np.testing.assert_allclose(loss_of(parts), loss_of(whole), rtol=0, atol=close)


def test_an_embedding_learns_the_same_from_microbatches_and_under_clipping(tmp_path: Path) -> None:
    """The gradient of an embedding comes as rows, some of them twice, of which the norm and Adam's squares want the sum."""
    few = own("embedding") | {"data.standardize": False, "training.batch_size": 48, "training.max_steps": 8}
    few |= {"training.optimizer": {"type": "adam"}, "training.max_grad_norm": 0.1}
    whole = train(tmp_path, few)
    parts = train(tmp_path, few | {"training.microbatch_size": 16})
    for name, array in weights(whole).items():
        np.testing.assert_allclose(weights(parts)[name], array, rtol=0, atol=1e-5)
    sgd = few | {
        "training.optimizer": {"type": "sgd"},
        "training.max_steps": 1,
        "training.learning_rate": 1.0,
    }
    pair = (weights(train(tmp_path, sgd | {"training.learning_rate": rate})) for rate in (1e-30, 1.0))
    moved = sum(
        float(((new - old) ** 2).sum()) for old, new in zip(*(one.values() for one in pair), strict=True)
    )
    assert moved**0.5 == pytest.approx(0.1, rel=1e-3)


def test_clipping_limits_the_gradient(tmp_path: Path) -> None:
    sgd = {"training.optimizer": {"type": "sgd"}, "training.max_steps": 1, "training.learning_rate": 1.0}
    before = train(tmp_path, sgd | {"training.learning_rate": 1e-30})
    after = train(tmp_path, sgd | {"training.max_grad_norm": 0.01})
    moved = sum(float(((weights(after)[name] - array) ** 2).sum()) for name, array in weights(before).items())
    assert moved**0.5 == pytest.approx(0.01, rel=1e-3)


def test_the_convolutional_network_trains(tmp_path: Path) -> None:
    params = {"filters": [4], "hidden": [8], "dropout": 0.1, "normalization": "batch", "image_shape": [8, 8]}
    overrides = {
        "data.type": "digits",
        "model": {"type": "keras_cnn", "params": params},
        "training.epochs": None,
    }
    run = train(tmp_path, overrides)
    assert_learns(run)
    assert [name for name in weights(run) if "moving" in name], (
        "the statistics of batch normalization are weights"
    )


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (None, r"\(4,\) are not images .*set model.params.image_shape"),
        ([3, 3], "needs 9 features per row.* have 4"),
    ],
)
def test_rows_that_make_no_image(shape: list[int] | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        train(tmp_path, {"model": {"type": "keras_cnn", "params": {"image_shape": shape}}})


@pytest.mark.parametrize("loss", ["auto", "mae", "huber"])
def test_regression_with_every_loss(loss: str, diabetes: Run, tmp_path: Path) -> None:
    run = diabetes if loss == "auto" else train(tmp_path, {"data.type": "diabetes", "training.loss": loss})
    assert_learns(run)
    found = trainwright.load(run).evaluate("test")
    assert found.outputs.ndim == 1
    assert 20 < found.outputs.mean() < 300, "predictions are in the units of the data"


def test_losses_mean_what_they_mean_elsewhere(iris: Run, diabetes: Run) -> None:
    """The loss of a split is the mean of -log(p of the true class), and that of values the mean squared error in units of
    their variance.
    """
    classes = trainwright.load(iris).evaluate("val")
    rows = np.arange(len(classes.targets))
    assert classes.metrics["val_loss"] == pytest.approx(
        -np.log(classes.outputs[rows, classes.targets]).mean(), rel=1e-5
    )
    values = trainwright.load(diabetes).evaluate("val")
    scale = json.loads((diabetes.path / "data.json").read_text())["info"]["target_scale"]
    errors = ((values.outputs - values.targets) / scale) ** 2
    assert values.metrics["val_loss"] == pytest.approx(errors.mean(), rel=1e-4)


@pytest.mark.parametrize(
    ("data", "loss", "allowed"),
    [("iris", "mse", "cross_entropy"), ("diabetes", "cross_entropy", "mse, mae, huber")],
)
def test_a_loss_of_another_task_is_refused(data: str, loss: str, allowed: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"{loss} is not a loss for .*allowed: auto, {allowed}"):
        train(tmp_path, {"data.type": data, "training.loss": loss})


def test_a_typo_in_the_params_is_an_error_of_the_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hiden"):
        train(tmp_path, {"model": {"type": "keras_mlp", "params": {"hiden": [3]}}})


def test_codes_of_categories_are_no_amounts(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(
        "a,b,y\n" + "\n".join(f"{'xyz'[i % 3]},{i},{i % 2}" for i in range(60))
    )
    data = {"path": str(tmp_path / "rows.csv"), "type": "csv", "target": "y", "encode": "category"}
    with pytest.raises(
        ModelError, match=r"data.encode: category gives codes, which keras_mlp would treat as quantities"
    ):
        train(tmp_path, {"data": data})


def test_early_stopping_and_a_schedule_resume_to_the_same_end(tmp_path: Path) -> None:
    decide = {
        "training.early_stopping": {"metric": "val_loss", "patience": 2, "mode": "max"},
        "training.scheduler": {"type": "cosine", "warmup_steps": 4},
        "training.max_steps": 200,
    }
    whole, resumed = whole_and_resumed(tmp_path, decide)
    assert whole.result["steps"] < 200
    assert_same(resumed, whole)
    assert len({row["learning_rate"] for row in whole.history() if "learning_rate" in row}) > 1


# -- the user's own models


MODULES = """
import random

import keras
import numpy as np
import tensorflow as tf
from keras import layers


class Net(keras.Model):
    def __init__(self, out_features, width=8):
        super().__init__()
        self.out_features, self.width = out_features, width
        self.first = layers.Dense(width)
        self.norm = layers.BatchNormalization()
        self.drop = layers.Dropout(0.3)
        self.last = layers.Dense(out_features)

    def call(self, x, training=False):
        return self.last(self.drop(keras.activations.relu(self.norm(self.first(x), training=training)), training=training))

    def get_config(self):
        return {"out_features": self.out_features, "width": self.width}


class Drawing(Net):
    "Draws from the shared generator, in training and in evaluation."

    def call(self, x, training=False):
        return super().call(x, training=training) * (1 + 0.1 * keras.random.normal((), dtype=self.compute_dtype))


class Unrepeatable(Net):
    "Draws from a generator of TensorFlow's."

    def call(self, x, training=False):
        return super().call(x, training=training) * (1 + 0.1 * tf.random.normal(()))


class Penalized(keras.Model):
    def __init__(self, out_features, strength=0.1):
        super().__init__()
        self.last = layers.Dense(out_features, kernel_regularizer=keras.regularizers.L2(strength))

    def call(self, x):
        return self.last(x)


class Tied(keras.Model):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.inner = layers.Dense(in_features)
        self.last = layers.Dense(out_features)

    def call(self, x):
        return self.last(self.inner(self.inner(x)))


class Unused(Net):
    "A layer that the loss does not depend on."

    def __init__(self, out_features):
        super().__init__(out_features)
        self.idle = layers.Dense(3)

    def call(self, x, training=False):
        self.idle(x)
        return super().call(x, training=training)


class Frozen(Net):
    def __init__(self, out_features):
        super().__init__(out_features)
        self.first.trainable = False


class Flat(Net):
    "One output for each row, without a second dimension."

    def __init__(self):
        super().__init__(1)

    def call(self, x, training=False):
        return keras.ops.squeeze(super().call(x, training=training), axis=1)


class Wide(Net):
    def __init__(self, out_features):
        super().__init__(out_features + 4)


class Fails(Net):
    def __init__(self, in_features, out_features):
        raise ValueError("no such width")


class Empty(keras.Model):
    def call(self, x):
        return x[:, :3]


class Pair(Net):
    def call(self, x, training=False):
        return super().call(x, training=training), None


class Choking(Net):
    def call(self, x, training=False):
        if training:
            raise RuntimeError("choked")
        return super().call(x)


class OwnStep(Net):
    def train_step(self, data):
        return {}


class Measuring(Net):
    def __init__(self, out_features):
        super().__init__(out_features)
        self.mean = keras.metrics.Mean()

    def call(self, x, training=False):
        self.mean.update_state(x)
        return super().call(x, training=training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {"mean": self.mean.result()}


class Apart(Net):
    "A sigmoid for each class, which only the loss tells."

    def call(self, x, training=False):
        return keras.ops.sigmoid(super().call(x, training=training))


def embedding(in_features, out_features):
    rows = [keras.Input((in_features,)), layers.Embedding(9, 4), layers.Flatten(), layers.Dense(out_features)]
    return keras.Sequential(rows)


def net(in_features, out_features, activation=None, rate=None, width=8):
    inputs = keras.Input((in_features,))
    model = keras.Model(inputs, layers.Dense(out_features, activation)(layers.Dense(width, "tanh")(inputs)))
    if rate:
        model.compile(optimizer=keras.optimizers.SGD(rate), loss="sparse_categorical_crossentropy")
    return model


def measured(in_features, out_features):
    model = net(in_features, out_features, "softmax")
    model.compile(loss="categorical_crossentropy", metrics=["AUC", keras.metrics.Precision()])
    return model


class Spread(keras.metrics.Metric):
    "Gives a dictionary, and has a state of its own."

    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.least = self.add_variable((), "zeros", name="least")
        self.most = self.add_variable((), "zeros", name="most")

    def update_state(self, targets, outputs, sample_weight=None):
        self.least.assign(keras.ops.minimum(self.least, self.scale * keras.ops.min(outputs)))
        self.most.assign(keras.ops.maximum(self.most, self.scale * keras.ops.max(outputs)))

    def result(self):
        return {"least": self.least, "most": self.most}


def no_model():
    return 3


SIZE = 3
"""


@pytest.fixture(scope="module", autouse=True)
def own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A working directory with the module `keras_of_mine`."""
    folder = tmp_path_factory.mktemp("cwd")
    (folder / "keras_of_mine.py").write_text(textwrap.dedent(MODULES))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        keras_in_one_thread()
        yield
    sys.modules.pop("keras_of_mine", None)


def own(name: str, **params: Any) -> dict[str, Any]:
    return {"model": {"type": f"keras_of_mine:{name}", "framework": "keras", "params": params}}


@pytest.mark.parametrize("name", ["Net", "Drawing", "Penalized", "Tied", "Unused", "Frozen"])
def test_a_class_of_the_users_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    whole, resumed = whole_and_resumed(tmp_path, own(name))
    assert_same(resumed, whole)
    assert "keras_of_mine" in whole.manifest["code"]["modules"]


@pytest.mark.parametrize("name", ["Drawing", "Unused"])
def test_microbatches_of_a_class_of_the_users_resume(name: str, tmp_path: Path) -> None:
    whole, resumed = whole_and_resumed(
        tmp_path, own(name) | {"training.microbatch_size": 5, "training.precision": "bf16"}
    )
    assert_same(resumed, whole)


def test_a_class_needs_no_framework_beside_it(tmp_path: Path) -> None:
    run = train(tmp_path, {"model": {"type": "keras_of_mine:Net", "params": {"width": 5}}})
    assert weights(run)["000.dense.kernel"].shape == (4, 5)


def test_a_function_that_makes_a_model_needs_it(tmp_path: Path) -> None:
    run = train(tmp_path, own("net", width=5) | {"training.max_steps": 2})
    assert weights(run)["000.dense.kernel"].shape == (4, 5)
    with pytest.raises(InputError, match=r"is a function: name its framework in model\.framework"):
        train(tmp_path, {"model": {"type": "keras_of_mine:net"}})


def test_frozen_weights_stay(tmp_path: Path) -> None:
    before, after = (
        weights(train(tmp_path, own("Frozen") | {"training.max_steps": steps})) for steps in (1, 9)
    )
    moved = {name for name, array in before.items() if not np.array_equal(array, after[name])}
    assert moved
    assert not moved & {"000.dense.kernel", "001.dense.bias"}


def test_penalties_are_learned_from_but_not_told(tmp_path: Path) -> None:
    weak, strong = (
        train(tmp_path, own("Penalized", strength=s) | {"training.max_steps": 20}) for s in (0.0, 10.0)
    )
    assert (
        np.abs(weights(strong)["000.dense.kernel"]).mean() < np.abs(weights(weak)["000.dense.kernel"]).mean()
    )
    assert loss_of(weak)[0] == loss_of(strong)[0]


def test_metrics_that_a_model_computes_itself_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, own("Measuring") | {"training.max_steps": 1})
    assert "keras_of_mine:Measuring: metrics that it was not compiled with are never computed" in caplog.text
    caplog.clear()
    train(tmp_path, own("measured") | {"training.max_steps": 1})
    assert "never computed" not in caplog.text


def test_a_generator_of_tensorflows_own_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "trainwright")
    train(tmp_path, own("Unrepeatable") | {"training.max_steps": 2})
    assert "draws from TensorFlow's own generators (RandomStandardNormal)" in caplog.text
    with pytest.raises(ModelError, match=r"bitwise was requested, but .*keras.random.SeedGenerator"):
        train(tmp_path, own("Unrepeatable") | {"training.determinism": "bitwise"})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Wide",
            r"for 8 samples it returns \(8, 7\), but the data have 3 classes; expected a tensor of shape \(8, 3\)",
        ),
        ("Fails", r"Fails\(in_features=4, out_features=3\) failed: ValueError: no such width"),
        ("Empty", "it has no weights to train"),
        ("Pair", "for 8 samples it returns tuple, .* a tensor of shape"),
        ("OwnStep", "it overrides train_step, which .* never calls"),
        ("no_model", "it returned a int; expected a keras.Model"),
        ("SIZE", "int given; expected a keras.Model class, or a function that returns one"),
        ("Nets", "keras_of_mine has no 'Nets'"),
    ],
)
def test_a_model_that_cannot_be_is_refused(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as error:
        train(tmp_path, own(name))
    assert error.value.exit_code == 2
    assert not list(tmp_path.rglob("config.yaml")), "a run is left behind"


def test_a_constructor_that_does_not_take_the_params(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"Net\(out_features=3, widht=\.\.\.\) failed: .*'?widht'?"):
        train(tmp_path, own("Net", widht=5))


def test_a_model_that_fails_in_training_names_the_step(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"step 1 failed: RuntimeError: .*see where with --debug"):
        train(tmp_path, own("Choking"))


# -- what the outputs are


def test_probabilities_and_logits_are_told_apart(tmp_path: Path) -> None:
    """The same model with a softmax at its end and without learns the same, up to rounding."""
    few = {"training.max_steps": 10}
    runs = [train(tmp_path, own("net", activation=activation) | few) for activation in (None, "softmax")]
    np.testing.assert_allclose(loss_of(runs[0]), loss_of(runs[1]), rtol=1e-4)
    found = [trainwright.load(run).evaluate("test").outputs for run in runs]
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def made(option: Any) -> Any:
    """What a parameter of a test stands for: an object of Keras is made when the test is run."""
    return option() if callable(option) else option


APART = [
    ("sigmoid", "binary_crossentropy"),
    ("sigmoid", "mse"),
    ("sigmoid", None),
    (None, lambda: keras.losses.BinaryCrossentropy(from_logits=True)),
    ("class", lambda: keras.losses.BinaryCrossentropy(from_logits=False)),
]


@pytest.mark.parametrize(("activation", "loss"), APART)
def test_a_sigmoid_for_each_class_gives_shares_of_their_sum(activation: str | None, loss: Any) -> None:
    from keras_of_mine import Apart

    model = Apart(3) if activation == "class" else functional(activation=activation)
    if loss is not None:
        model.compile(optimizer="adam", loss=made(loss))
    parts = build(load({**SMALL, "model": KERAS}, adapters=Catalog()).config, 1, Objects(model=model))
    split = parts.bundle.splits["test"]
    batch = split.take(np.arange(len(split)))
    raw = parts.learner.model().native(batch["features"], training=False).numpy()
    sigmoids = 1 / (1 + np.exp(-raw)) if activation is None else raw
    found = list(parts.learner.model().predict(split))
    outputs = np.concatenate([part.outputs for part in found])
    np.testing.assert_allclose(outputs, sigmoids / sigmoids.sum(axis=1, keepdims=True), rtol=1e-5)
    if loss is None:
        expected = -np.log(outputs[np.arange(len(split)), batch["target"]]).sum()
        assert sum(part.loss for part in found) == pytest.approx(expected, rel=1e-5)


def test_probabilities_that_vanish_are_equal_shares() -> None:
    info = DataInfo("classification", features_spec((4,)), 3, ["a", "b", "c"])
    found = Outputs(single=False, logits=False, independent=True).to_predictions(
        np.zeros((1, 3), dtype=np.float32), info
    )
    np.testing.assert_allclose(found, 1 / 3, rtol=1e-6)
    low = np.array([[-300, -200, -200]], dtype=np.float32)
    found = Outputs(single=False, logits=True, independent=True).to_predictions(low, info)
    np.testing.assert_allclose(found, [[0, 0.5, 0.5]], atol=1e-6)


@pytest.mark.parametrize(
    ("classes", "activation", "loss", "message"),
    [
        (
            3,
            None,
            "sparse_categorical_crossentropy",
            r"returns logits \(linear\), but .* takes probabilities; set from_logits=True",
        ),
        (
            3,
            "softmax",
            lambda: keras.losses.CategoricalCrossentropy(from_logits=True),
            r"returns probabilities \(softmax\), but .* logits",
        ),
        (
            1,
            "sigmoid",
            lambda: keras.losses.BinaryCrossentropy(from_logits=True),
            r"returns probabilities \(sigmoid\), but .* takes logits; set from_logits=False",
        ),
        (3, "class", "sparse_categorical_crossentropy", "returns logits, but .* takes probabilities"),
    ],
)
def test_a_loss_that_takes_the_outputs_for_something_else_is_refused(
    classes: int, activation: str | None, loss: Any, message: str, tmp_path: Path
) -> None:
    from keras_of_mine import Net

    inputs, data = (
        keras.Input((4 if classes == 3 else 30,)),
        {"data.type": "iris" if classes == 3 else "breast_cancer"},
    )
    model = (
        Net(3)
        if activation == "class"
        else keras.Model(inputs, keras.layers.Dense(classes, activation)(inputs))
    )
    model.compile(optimizer="adam", loss=made(loss))
    with pytest.raises(ModelError, match=message):
        trainwright.train(SMALL, AUTO | data, runs_dir=tmp_path, model=model)
    named = {"training.loss": "cross_entropy", "training.max_steps": 2}
    assert trainwright.train(SMALL, AUTO | data | named, runs_dir=tmp_path, model=model).status == "completed"


def test_the_last_activation_is_found() -> None:
    layers, inputs = keras.layers, keras.Input((4,))
    hidden = layers.Dense(3, "sigmoid")(inputs)
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Softmax()])
    cases = {
        "sigmoid": [
            keras.Model(inputs, layers.Activation("linear")(hidden)),
            keras.Model(inputs, keras.ops.sigmoid(hidden)),
        ],
        "softmax": [inner, keras.Sequential([keras.Input((4,)), inner]), keras.Model(inputs, inner(inputs))],
        "linear": [keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Activation("linear")])],
    }
    for name, models in cases.items():
        assert [_last_activation(model) for model in models] == [name] * len(models)


@pytest.mark.parametrize("activation", [None, "sigmoid"])
def test_one_output_serves_two_classes(activation: str | None, tmp_path: Path) -> None:
    overrides = own("net", activation=activation, out_features=1) | {"data.type": "breast_cancer"}
    run = train(tmp_path, overrides)
    found = trainwright.load(run).evaluate("test")
    assert found.outputs.shape[1] == 2
    np.testing.assert_allclose(found.outputs.sum(axis=1), 1, atol=1e-6)
    assert found.metrics["test_accuracy"] > 0.8
    rows = np.arange(len(found.targets))
    assert found.metrics["test_loss"] == pytest.approx(
        -np.log(found.outputs[rows, found.targets]).mean(), rel=1e-3
    )


def test_one_output_without_a_word_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match="nothing says whether it is a probability; give it two outputs, or compile"
    ):
        train(tmp_path, own("Net", out_features=1) | {"data.type": "breast_cancer"})


def test_values_may_come_without_a_second_dimension(tmp_path: Path) -> None:
    assert_learns(train(tmp_path, own("Flat") | {"data.type": "diabetes"}))


# -- compiled models


def functional(*, classes: int = 3, activation: str | None = "softmax", **compiled: Any) -> Any:
    """A model with its weights already made."""
    inputs = keras.Input((4,))
    hidden = keras.layers.Dropout(0.1)(keras.layers.Dense(8, "relu")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(classes, activation)(hidden))
    if compiled:
        model.compile(**compiled)
    return model


AUTO = {"training.optimizer": {"type": COMPILED}, "training.learning_rate": 1e-3}


def test_an_object_is_trained_and_resumed(tmp_path: Path) -> None:
    model = functional()
    model.layers[1].trainable = False
    before = [array.copy() for array in model.get_weights()]
    whole, resumed = whole_and_resumed(tmp_path, {}, model=model)
    assert_same(resumed, whole)
    for mine, kept in zip(model.get_weights(), weights(whole).values(), strict=True):
        np.testing.assert_array_equal(mine, kept)
    trained = [array.copy() for array in model.get_weights()]
    assert trainwright.reproduce(whole, model=model).verdict == "identical"
    assert trainwright.train(SMALL, runs_dir=tmp_path, model=model).digest != whole.digest
    assert any((mine != old).any() for mine, old in zip(model.get_weights(), trained, strict=True))
    np.testing.assert_array_equal(weights(whole)["000.dense.kernel"], before[0])
    assert not np.array_equal(weights(whole)["002.dense.kernel"], before[2])


def test_a_refused_resume_leaves_the_weights_of_an_object(tmp_path: Path) -> None:
    cut = preempted(tmp_path, model=functional())
    for other in (functional(activation=None), functional(classes=4)):
        before = [array.copy() for array in other.get_weights()]
        with pytest.raises(TrainwrightError):
            trainwright.resume(cut, model=other)
        for mine, own in zip(other.get_weights(), before, strict=True):
            np.testing.assert_array_equal(mine, own)


def test_a_run_leaves_the_global_generator(tmp_path: Path) -> None:
    model = functional()
    keras.utils.set_random_seed(5)
    expected = [tf.random.normal((2,)).numpy() for _ in range(3)]
    keras.utils.set_random_seed(5)
    drawn = [tf.random.normal((2,)).numpy()]
    trainwright.train(SMALL, runs_dir=tmp_path, model=model)
    drawn += [tf.random.normal((2,)).numpy() for _ in range(2)]
    np.testing.assert_array_equal(drawn, expected)


@pytest.mark.parametrize("kind", ["lambda", "nested", "recurrent", "sequential"])
def test_objects_of_any_layers_are_trained_and_copied(kind: str, tmp_path: Path) -> None:
    layers = keras.layers
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(6, "relu"), layers.BatchNormalization()])
    stacks: dict[str, list[Any]] = {
        "lambda": [layers.Lambda(lambda x: keras.ops.tanh(2 * x)), layers.Dense(3)],
        "nested": [inner, layers.Dense(3)],
        "recurrent": [layers.Reshape((2, 2)), layers.GRU(4, dropout=0.1), layers.Dense(3)],
        "sequential": [
            layers.Dense(6, "relu", kernel_regularizer="l2"),
            layers.GaussianNoise(0.1),
            layers.Dense(3),
        ],
    }
    model = keras.Sequential([keras.Input((4,)), *stacks[kind]])
    before = model.predict(np.ones((2, 4)), verbose=0)
    run = trainwright.train(SMALL, runs_dir=tmp_path, model=model)
    assert_learns(run)
    after = model.predict(np.ones((2, 4)), verbose=0)
    assert not np.allclose(after, before)
    twin = KerasFramework.copied(model)
    assert twin is not model
    np.testing.assert_array_equal(twin.predict(np.ones((2, 4)), verbose=0), after)
    assert trainwright.reproduce(run, model=model).verdict == "identical"
    np.testing.assert_array_equal(model.predict(np.ones((2, 4)), verbose=0), after)


def test_an_object_of_a_class_of_the_users_is_trained(tmp_path: Path) -> None:
    from keras_of_mine import Net  # type: ignore[import-not-found]

    model = Net(out_features=3)
    model(np.zeros((1, 4), dtype=np.float32))
    before = model.get_weights()[0].copy()
    run = trainwright.train(
        SMALL, {"training.learning_rate": 1e-30, "training.max_steps": 1}, runs_dir=tmp_path, model=model
    )
    np.testing.assert_array_equal(weights(run)["000.dense.kernel"], before)


def test_an_object_that_cannot_be_copied_is_trained(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Closed(keras.Model):  # type: ignore[misc]
        def __init__(self, secret: object) -> None:
            super().__init__()
            self.last = keras.layers.Dense(3)

        def get_config(self) -> dict[str, Any]:
            raise NotImplementedError("no config")

        def call(self, x: Any) -> Any:
            return self.last(x)

    model = Closed(object())
    run = trainwright.train(SMALL, runs_dir=tmp_path, model=model)
    assert_learns(run)
    assert "cannot be copied" not in caplog.text
    assert trainwright.load(run, model=model).native is model
    assert "cannot be copied (NotImplementedError: no config)" in caplog.text


def test_what_a_model_is_compiled_with_is_what_trains_it(tmp_path: Path) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy()
    model = functional(optimizer=keras.optimizers.SGD(0.05, momentum=0.9), loss=loss)
    first = model.get_weights()
    whole, resumed = whole_and_resumed(tmp_path, AUTO, model=model)
    assert_same(resumed, whole)
    model.set_weights(first)
    assert {row["learning_rate"] for row in whole.history() if "learning_rate" in row} == {0.05}
    assert any("momentum" in name for name in load_file(checkpoints(whole)[-1] / "optimizer.safetensors"))
    named = {"training.optimizer": {"type": "sgd", "momentum": 0.9}, "training.learning_rate": 0.05}
    assert trainwright.train(SMALL, named, runs_dir=tmp_path, model=model).digest == whole.digest


def test_the_config_wins_over_what_a_model_is_compiled_with(tmp_path: Path) -> None:
    model = functional(optimizer=keras.optimizers.SGD(0.05), loss="categorical_crossentropy")
    run = trainwright.train(SMALL, {**AUTO, "training.learning_rate": 0.2}, runs_dir=tmp_path, model=model)
    assert {row["learning_rate"] for row in run.history() if "learning_rate" in row} == {0.2}


def custom_loss(targets: Any, outputs: Any) -> Any:
    """Is given the indices of the classes, as `fit` would with such targets."""
    return keras.ops.sparse_categorical_crossentropy(targets, outputs)


LOSSES: list[Any] = [
    "sparse_categorical_crossentropy",
    "categorical_crossentropy",
    "crossentropy",
    lambda: custom_loss,
    lambda: keras.losses.CategoricalCrossentropy(from_logits=False),
]
LOSS_NAMES = [*LOSSES[:3], "custom_loss", "CategoricalCrossentropy"]


@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_NAMES)
def test_every_form_of_a_compiled_cross_entropy_is_the_same(loss: Any, tmp_path: Path) -> None:
    model, losses = functional(), []
    first = model.get_weights()
    for some in (None, made(loss)):
        model.set_weights(first)
        model.compile(optimizer="adam", loss=some)
        run = trainwright.train(SMALL, AUTO | {"training.max_steps": 5}, runs_dir=tmp_path, model=model)
        losses.append(loss_of(run))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


def test_a_compiled_loss_that_is_another_one_is_used(tmp_path: Path) -> None:
    model = functional()
    model.compile(optimizer="adam", loss=keras.losses.CategoricalFocalCrossentropy(gamma=3.0))
    one = AUTO | {"training.max_steps": 1}
    focal = trainwright.train(SMALL, one, runs_dir=tmp_path, model=model)
    plain = trainwright.train(SMALL, one | {"training.loss": "cross_entropy"}, runs_dir=tmp_path, model=model)
    assert loss_of(focal)[0] < 0.7 * loss_of(plain)[0]


def test_a_compiled_loss_of_values(tmp_path: Path) -> None:
    inputs = keras.Input((10,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile(optimizer="adam", loss="mse")
    data = {"data.type": "diabetes", "training.max_steps": 5}
    first = model.get_weights()
    compiled = trainwright.train(SMALL, AUTO | data, runs_dir=tmp_path, model=model)
    model.set_weights(first)
    named = trainwright.train(SMALL, AUTO | data | {"training.loss": "mse"}, runs_dir=tmp_path, model=model)
    np.testing.assert_allclose(loss_of(compiled), loss_of(named), rtol=1e-5)


def scheduled() -> dict[str, Any]:
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    return {"optimizer": keras.optimizers.SGD(rate), "loss": "mse"}


@pytest.mark.parametrize(
    ("compiled", "message"),
    [
        (scheduled, "a learning rate schedule, .*training.scheduler"),
        (lambda: {"optimizer": keras.optimizers.SGD(use_ema=True), "loss": "mse"}, "use_ema"),
        (
            lambda: {"loss": keras.losses.SparseCategoricalCrossentropy(reduction="sum")},
            "reduction is 'sum'",
        ),
        ({"loss": "no_such_loss"}, "'no_such_loss', which Keras does not know"),
        ({"loss": ["mse", "mae"]}, "2 losses in a list or dictionary; compile it with a single loss"),
    ],
)
def test_what_cannot_be_kept_of_a_compiled_model_is_refused(
    compiled: Any, message: str, tmp_path: Path
) -> None:
    model = functional()
    model.compile(**made(compiled))
    with pytest.raises(ModelError, match=message):
        trainwright.train(SMALL, AUTO, runs_dir=tmp_path, model=model)


def test_a_function_that_compiles_must_agree_with_the_config(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"is compiled with the learning rate 0.05; set training.learning_rate to that"
    ):
        train(tmp_path, own("net", activation="softmax", rate=0.05) | AUTO)
    run = train(
        tmp_path, own("net", activation="softmax", rate=0.05) | AUTO | {"training.learning_rate": 0.05}
    )
    assert not any("momentum" in name for name in load_file(checkpoints(run)[-1] / "optimizer.safetensors"))


# -- compiled metrics


def distance(targets: Any, outputs: Any) -> Any:
    return keras.ops.sum(keras.ops.abs(targets - outputs), axis=-1)


COMPARED = """
import os
import numpy as np
from trainwright.frameworks.keras.backend import import_keras

keras = import_keras(backend)
from keras import metrics
from trainwright.config import load
from trainwright.runs.wiring import Objects, build
from trainwright.runs.catalog import Catalog
from trainwright.evaluation.metrics import evaluate_predictions


def own(targets, outputs):
    return keras.ops.sum(keras.ops.abs(targets - outputs), axis=-1)


def compare(data, model, one_hot, names, **compiled):
    model.compile(**compiled)
    config = {"experiment": {"name": "x"}, "data": {"type": data, "standardize": False}, "model": {"type": "keras_mlp"}}
    config["training"] = {"epochs": 1, "determinism": "bitwise"}
    threads = len(os.sched_getaffinity(0)) if backend == "jax" else 1  # JAX runs since the model was made
    parts = build(load(config, adapters=Catalog()).config, threads, Objects(model=model))
    split, before = parts.bundle.splits["val"], [variable.numpy() for variable in model.metrics_variables]
    predict, info = parts.learner.model().predict, parts.bundle.info
    found = [evaluate_predictions(predict(split), [], info, "val").metrics for _ in range(2)]
    assert found[0] == found[1], "an evaluation leaves something behind"
    assert all(np.array_equal(*pair) for pair in zip(before, (v.numpy() for v in model.metrics_variables)))
    batch = split.take(np.arange(len(split)))
    x, y = batch["features"], batch["target"]
    y = np.eye(one_hot)[y] if one_hot else y
    expected = model.evaluate(x, y, batch_size=1024, verbose=0, return_dict=True)
    del expected["loss"], found[0]["val_loss"]
    assert set(expected) == set(names), expected
    np.testing.assert_allclose([found[0][f"val_{name}"] for name in names], list(map(expected.get, names)), rtol=1e-6, atol=1e-6)
    assert len(found[0]) == len(names), found[0]


def model(features, columns, activation):
    inputs = keras.Input((features,))
    return keras.Model(inputs, keras.layers.Dense(columns, activation)(keras.layers.Rescaling(0.1)(inputs)))


several = ["accuracy", "AUC", "mae", metrics.Precision(name="sure"), metrics.F1Score("macro"), own]
compare("iris", model(4, 3, "softmax"), 3, ["accuracy", "AUC", "mae", "sure", "f1_score", "own", "weighted_accuracy", "mse"],
    loss="categorical_crossentropy", metrics=several, weighted_metrics=["accuracy", "mse"])
compare("iris", model(4, 3, None), 0, ["acc", "sparse_top_k_categorical_accuracy"],
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics={"acc": "acc", "top": metrics.SparseTopKCategoricalAccuracy(2)})
compare("breast_cancer", model(30, 1, "sigmoid"), 0, ["accuracy", "auc", "auc_1", "recall"], loss="binary_crossentropy",
    metrics=["accuracy", metrics.AUC(name="auc"), metrics.AUC(curve="PR", name="auc_1"), metrics.Recall(name="recall")])
"""


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_compiled_metrics_are_those_of_keras(backend: str) -> None:
    if backend == "tensorflow":
        exec(COMPARED, {"backend": backend})
        return
    pytest.importorskip(backend)
    words = [sys.executable, "-c", f"backend = {backend!r}\n{COMPARED}"]
    chosen = os.environ | {"KERAS_BACKEND": backend}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=chosen)
    assert done.returncode == 0, done.stderr


def test_compiled_metrics_are_in_every_result(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from keras_of_mine import Spread

    spread, first = Spread(0.5), keras.metrics.AUC()
    spread.update_state(np.zeros(2), np.full(2, 9.0))
    metrics = ["accuracy", first, keras.metrics.AUC(curve="PR"), spread, distance, keras.metrics.F1Score()]
    model = functional(optimizer="adam", loss="categorical_crossentropy", metrics=metrics)
    first = model.get_weights()
    whole = trainwright.train(SMALL, AUTO, runs_dir=tmp_path, model=model)
    ours, theirs = ["loss", "accuracy", "f1"], ["auc", "auc_1", "spread_least", "spread_most", "distance"]
    assert list(whole.metrics) == [f"{split}_{name}" for split in ("val", "test") for name in ours + theirs]
    assert {name for row in whole.history() for name in row if name.startswith("val_")} == {
        f"val_{n}" for n in ours + theirs
    }
    assert 0.15 < whole.metrics["test_spread_most"] <= 0.5
    assert (float(spread.most), float(spread.least)) == (4.5, 0), "the user's own object has changed"
    assert "compiled metric f1_score is left out: it returns 3 values instead of one" in caplog.text
    assert (
        trainwright.load(whole, model=model).evaluate("test").metrics["test_auc"] == whole.metrics["test_auc"]
    )
    plain = functional(optimizer="adam", loss="categorical_crossentropy")
    plain.set_weights(first)
    assert trainwright.train(SMALL, AUTO, runs_dir=tmp_path, model=plain).digest == whole.digest, (
        "a metric has changed the model"
    )


def test_compiled_metrics_of_values_are_in_the_unit_of_the_data(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((10,)), keras.layers.Dense(1)])
    model.compile(loss="mse", metrics=[keras.metrics.MeanAbsoluteError(), distance])
    found = trainwright.train(SMALL, AUTO | {"data.type": "diabetes"}, runs_dir=tmp_path, model=model).metrics
    for name in ("mean_absolute_error", "distance"):
        assert found[f"test_{name}"] == pytest.approx(found["test_mae"], rel=1e-5)


def test_runs_with_metrics_of_their_models_are_reproduced_and_compared(tmp_path: Path) -> None:
    few = own("measured") | {"training.max_steps": 10}
    runs = [train(tmp_path, few | {"experiment.seed": seed}) for seed in (1, 2)]
    assert trainwright.reproduce(runs[0]).verdict == "identical"
    found = trainwright.compare(*runs)
    assert {"test_auc", "test_AUC", "test_precision"} & {pair.name for pair in found.numbers} == {
        "test_AUC",
        "test_precision",
    }
    assert {test.metric for test in found.tests} == {"accuracy", "f1"}
    assert "validation AUC" in trainwright.report(runs[0]).read_text()


def test_metrics_of_a_saved_model(tmp_path: Path) -> None:
    model = functional(
        optimizer="adam", loss="categorical_crossentropy", metrics=["AUC", keras.metrics.Precision()]
    )
    run = trainwright.train(SMALL, saved(tmp_path, model) | {"training.max_steps": 2}, runs_dir=tmp_path)
    assert {"test_AUC", "test_precision"} < set(run.metrics)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("no_such", r"cannot be computed: ValueError: .*no_such.*; remove it from compile"),
        (lambda targets, outputs: 1 / 0, r"\(one of AUC, .*lambda.*\) cannot be computed: ZeroDivisionError"),
    ],
)
def test_a_compiled_metric_that_fails_is_told_before_the_first_step(
    metric: Any, message: str, tmp_path: Path
) -> None:
    model = functional(optimizer="adam", loss="categorical_crossentropy", metrics=["AUC", metric])
    with pytest.raises(ModelError, match=message):
        trainwright.train(SMALL, AUTO, runs_dir=tmp_path, model=model)
    assert not list(tmp_path.rglob("config.yaml")), "a run is left behind"


# -- saved models


def saved(folder: Path, model: Any) -> dict[str, Any]:
    file = folder / "model.keras"
    model.save(file)
    return {"model": {"type": "keras", "params": {"file": str(file)}}, "training.learning_rate": 1e-3}


def test_a_saved_model_goes_on_learning(tmp_path: Path) -> None:
    model = functional(optimizer=keras.optimizers.Adam(0.004), loss="sparse_categorical_crossentropy")
    overrides = saved(tmp_path, model)
    whole, resumed = whole_and_resumed(tmp_path, overrides)
    assert_same(resumed, whole)
    assert {row["learning_rate"] for row in whole.history() if "learning_rate" in row} == {0.004}
    assert whole.manifest["model"] == {"file": sha256_file(tmp_path / "model.keras")}
    frozen = trainwright.train(
        SMALL, overrides | {"training.learning_rate": 1e-30, "training.max_steps": 1}, runs_dir=tmp_path
    )
    for mine, old in zip(weights(frozen).values(), model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, old, atol=1e-12)


def test_a_saved_model_computes_in_halves_where_asked(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)])
    overrides = saved(tmp_path, model) | {"training.max_steps": 5}
    runs = [
        trainwright.train(SMALL, overrides | {"training.precision": name}, runs_dir=tmp_path)
        for name in ("fp32", "bf16")
    ]
    assert runs[0].digest != runs[1].digest
    np.testing.assert_allclose(loss_of(runs[0]), loss_of(runs[1]), atol=0.05)


def test_no_code_of_a_file_is_executed(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: x * 2), keras.layers.Dense(3)])
    with pytest.raises(ModelError, match="a Lambda layer holds code, which is never executed from a file"):
        trainwright.train(SMALL, saved(tmp_path, model), runs_dir=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "there is no file"), (b"PK not really", "not a complete .keras file")]
)
def test_a_file_that_is_no_model(content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "model.keras").write_bytes(content)
    model = {"type": "keras", "params": {"file": str(tmp_path / "model.keras")}}
    with pytest.raises(ModelError, match=message):
        train(tmp_path, {"model": model, "training.learning_rate": 1e-3})


def test_classes_of_the_users_in_a_file_are_named(tmp_path: Path) -> None:
    from keras_of_mine import Net

    model = Net(out_features=3)
    model(np.zeros((1, 4), dtype=np.float32))
    overrides = saved(tmp_path, model)
    with pytest.raises(
        ModelError, match=r"list your own classes that it needs in model.params.custom_objects"
    ):
        trainwright.train(SMALL, overrides, runs_dir=tmp_path)
    overrides["model"]["params"]["custom_objects"] = ["keras_of_mine:Net"]
    assert trainwright.train(SMALL, overrides, runs_dir=tmp_path).status == "completed"


# -- what comes out


def test_the_native_model_is_kerass(tmp_path: Path) -> None:
    parts = build(load({**SMALL, "model": KERAS}, adapters=Catalog()).config, 1, Objects())
    assert isinstance(parts.learner.model().native, keras.Model)


def test_a_model_predicts_again_from_its_run(tmp_path: Path) -> None:
    run = train(tmp_path, own("Drawing") | {"training.max_steps": 10})
    first, second = (trainwright.load(run).evaluate("test") for _ in range(2))
    np.testing.assert_array_equal(first.outputs, second.outputs)
    assert first.metrics["test_loss"] == run.metrics["test_loss"]


def test_weights_of_a_run_begin_another(iris: Run, tmp_path: Path) -> None:
    best = next((iris.path / "best").rglob("weights.safetensors"))
    begun = train(
        tmp_path,
        {
            "model": {**KERAS, "init_from": str(iris.path)},
            "training.learning_rate": 1e-30,
            "training.max_steps": 1,
        },
    )
    for name, array in load_file(best).items():
        np.testing.assert_allclose(weights(begun)[name], array, atol=1e-12)
    other = {**KERAS, "params": {"hidden": [17]}, "init_from": str(iris.path)}
    with pytest.raises(
        ModelError,
        match=r"the weights do not fit the model: 000.dense.kernel is \(4, 17\) in the model, \(4, 16\) in the file",
    ):
        train(tmp_path, {"model": other})


# -- what a step must not depend on


def test_what_was_made_and_drawn_before_changes_nothing(tmp_path: Path) -> None:
    import random

    few = own("Drawing") | {"training.max_steps": 5}
    first = train(tmp_path, few)
    functional().predict(np.zeros((2, 4)), verbose=0)
    keras.random.normal((3,))
    random.seed(99)
    np.random.seed(99)
    second = train(tmp_path, few)
    assert second.digest == first.digest
    assert list(weights(second)) == list(weights(first))


def test_building_leaves_the_global_generators_alone() -> None:
    import random

    config = load({**SMALL, "model": KERAS}, adapters=Catalog()).config
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    build(config, 1, Objects())
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]


def test_no_source_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow would rewrite our functions, which takes a second, and leave the files if the process is killed."""
    from tensorflow.python.eager.polymorphic_function import autograph_util

    monkeypatch.setattr(autograph_util, "py_func_from_autograph", lambda *_, **__: 1 / 0)
    training = {**SMALL["training"], "microbatch_size": 5}
    config = load({**SMALL, "model": KERAS, "training": training}, adapters=Catalog()).config
    parts = build(config, 1, Objects())
    parts.learner.step(0, 0.01)
    assert list(parts.learner.model().predict(parts.bundle.splits["val"]))


def test_the_seed_changes_the_weights_and_the_order(tmp_path: Path) -> None:
    few = {"training.max_steps": 2}
    first, second = (train(tmp_path, few | {"experiment.seed": seed}) for seed in (1, 2**62))
    assert first.digest != second.digest
    assert first.manifest["weights"] != second.manifest["weights"]


def test_cadences_change_no_weight(iris: Run, tmp_path: Path) -> None:
    other = {"evaluation.every_n_steps": 1, "evaluation.batch_size": 7, "checkpoint.every_n_steps": 3}
    assert train(tmp_path, other).digest == iris.digest


def test_samples_that_are_fetched_one_by_one(tmp_path: Path) -> None:
    rows = [(np.array([i % 3, i % 5, 1.0], dtype=np.float32), i % 3) for i in range(160)]
    data = {"train": rows[:120], "val": rows[120:140], "test": rows[140:]}
    whole, resumed = whole_and_resumed(tmp_path, {}, data=data)
    assert_same(resumed, whole)


def test_images_of_bytes(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 160)
    x = (draw.integers(0, 60, (160, 6, 6)) + 60 * y[:, None, None]).astype(np.uint8)
    model = {"type": "keras_cnn", "params": {"filters": [4], "hidden": []}}
    data = {"train": (x[:120], y[:120]), "val": (x[120:140], y[120:140]), "test": (x[140:], y[140:])}
    run = trainwright.train(SMALL, {"model": model, "training.max_steps": 60}, runs_dir=tmp_path, data=data)
    assert_learns(run)
    assert trainwright.load(run, model=None).outputs(x[:5]).shape == (5, 3)


def test_several_values_at_once(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(160, 4)).astype(np.float32)
    y = np.stack([x[:, 0] + x[:, 1], x[:, 2]], axis=1)
    data = {"train": (x[:120], y[:120]), "val": (x[120:140], y[120:140]), "test": (x[140:], y[140:])}
    run = trainwright.train(SMALL, {"model": KERAS, "training.max_steps": 60}, runs_dir=tmp_path, data=data)
    assert_learns(run)
    assert trainwright.load(run).outputs(x[:5]).shape == (5, 2)


# -- processes


def test_threads_that_cannot_be_had_any_more_are_told(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"training.threads: 7 given, but TensorFlow already runs with 1 threads"
    ):
        train(tmp_path, {"training.threads": 7})


def test_pinning_undoes_what_another_run_has_set() -> None:
    from tensorflow.python.framework.config import is_op_determinism_enabled

    for deterministic in (False, True):  # the last is what the other tests need
        _pin_tensorflow(1, deterministic=deterministic, seed=5)
        assert is_op_determinism_enabled() is deterministic
    before = tf.random.uniform(()).numpy()
    _pin_tensorflow(1, deterministic=True, seed=5)
    assert tf.random.uniform(()).numpy() == before


def test_a_model_predicts_on_any_number_of_threads(tmp_path: Path) -> None:
    config = load({**SMALL, "model": KERAS, "training": {"threads": 7}}, adapters=Catalog()).config
    parts = build(load({**SMALL, "model": KERAS}, adapters=Catalog()).config, 1, Objects())
    parts.learner.snapshot(weights_only=True).write(tmp_path)
    inputs = ModelInputs(config, parts.bundle.info, config.model.params, 7)
    alone = KerasFramework.load(inputs, tmp_path)
    split = parts.bundle.splits["test"]
    for one, other in zip(parts.learner.model().predict(split), alone.predict(split), strict=True):
        np.testing.assert_allclose(one.outputs, other.outputs, atol=1e-6)


def test_another_backend_in_the_same_process_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="backend: torch given, but Keras already uses tensorflow"):
        train(tmp_path, {"model": {"type": "keras_mlp", "params": {"backend": "torch"}}})


def test_a_device_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a CUDA device")
    with pytest.raises(
        ModelError,
        match=r"device: cuda:0 given, but Keras \(tensorflow\) sees no CUDA device; use cpu",
    ):
        train(tmp_path, {"training.device": "cuda:0"})


def victim(*words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainwright.testing.victim", *words]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, **environment},
    )


ON_BACKEND = """
import sys
from pathlib import Path
import numpy as np
from trainwright.frameworks.keras.backend import import_keras

backend, folder = sys.argv[1], Path(sys.argv[2])
import_keras(backend)
from small_runs import assert_same, whole_and_resumed

draw = np.random.default_rng(0)
np.savez(folder / "rows.npz", X=draw.normal(size=(150, 4)), y=draw.integers(0, 3, 150))
params = {"hidden": [4], "dropout": 0.2, "normalization": "batch", "backend": backend}
overrides = {"model": {"type": "keras_mlp", "params": params}}
overrides |= {"data.type": "npz", "data.path": str(folder / "rows.npz")}
# The sizes divide each other: JAX compiles each shape anew.
overrides |= {"training.max_steps": 8, "training.batch_size": 20, "training.microbatch_size": 5}
overrides |= {"training.precision": "bf16", "training.max_grad_norm": 1.0, "evaluation.batch_size": 5}
whole, resumed = whole_and_resumed(folder, overrides, at=7)
assert_same(resumed, whole)
assert whole.manifest["environment"]["framework"]["backend"].startswith(backend)
assert np.isfinite(whole.metrics["test_loss"])
"""


@pytest.mark.slow
def test_another_backend_resumes_to_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", ON_BACKEND, "jax", str(tmp_path)],
        cwd=tmp_path,
        # Half of the time is XLA's, which compiles with all optimizations in `make soak`, below.
        env={**os.environ, "PYTHONPATH": path, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
@pytest.mark.parametrize("micro", [None, 5])
def test_every_backend_resumes_to_the_same_bits(backend: str, micro: int | None, tmp_path: Path) -> None:
    pytest.importorskip(backend)
    params = {"hidden": [16], "dropout": 0.2, "normalization": "batch", "backend": backend}
    training = {
        **SMALL["training"],
        "max_steps": 12,
        "batch_size": 20,  # divides the rows, and is divided by the microbatches: JAX compiles each shape anew
        "microbatch_size": micro,
        "precision": "bf16" if micro else "fp32",
        "max_grad_norm": 1.0,
    }
    config = {**SMALL, "model": {"type": "keras_mlp", "params": params}, "training": training}
    config["evaluation"] = {"every_n_steps": 7, "batch_size": 5}
    file = tmp_path / "config.yaml"
    file.write_text(load(config, adapters=Catalog()).dump())
    done = victim("never", "0", str(file), str(tmp_path / "whole"), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    whole = RunDir(Path(done.stdout.strip().splitlines()[-1]))
    assert whole.require_manifest().environment.framework["backend"].startswith(backend)
    assert (
        victim("step", "9", str(file), str(tmp_path / "cut"), folder=tmp_path).returncode == -signal.SIGKILL
    )
    (cut,) = (tmp_path / "cut").glob("*/*/config.yaml")
    resumed = victim("never", "0", "--resume", str(cut.parent), folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    keys = ("digest", "metrics", "best", "steps")
    found, expected = (run.require_result().to_json() for run in (RunDir(cut.parent), whole))
    assert {key: found[key] for key in keys} == {key: expected[key] for key in keys}
    assert np.isfinite(expected["metrics"]["test_loss"])


@pytest.mark.slow
def test_a_run_imports_no_other_framework(tmp_path: Path) -> None:
    others = ("torch", "sklearn", "xgboost", "lightgbm", "catboost", "jax", "transformers")
    code = (
        "import json, sys, trainwright; trainwright.train(json.loads(sys.argv[1]), runs_dir='runs'); "
        f"print([name for name in {others} if name in sys.modules]); import sklearn"
    )
    draw = np.random.default_rng(0)
    # Iris comes from scikit-learn
    np.savez(tmp_path / "rows.npz", X=draw.normal(size=(160, 4)), y=draw.integers(0, 3, 160))
    config = {**SMALL, "data": {"path": "rows.npz"}, "model": KERAS}
    words = [sys.executable, "-c", code, json.dumps(config)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_a_backend_that_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys; sys.modules['tensorflow'] = None; from trainwright.frameworks.keras.backend import import_keras; "
        "import_keras('tensorflow')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "tensorflow is not installed: run `pip install 'keras<3.16,>=3.15' " in done.stderr


def test_compiled_metrics_of_one_class_are_of_the_positive_class(tmp_path: Path) -> None:
    inputs = keras.Input((30,))
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs))
    names = ["accuracy", keras.metrics.Recall(name="found"), keras.metrics.AUC(curve="PR", name="area")]
    model.compile(optimizer="adam", loss="binary_crossentropy", metrics=names)
    ours = {"evaluation.metrics": ["recall", "average_precision"], "data.type": "breast_cancer"}
    for label in (0, 1):
        settings = AUTO | ours | {"evaluation.positive": label}
        found = trainwright.train(SMALL, settings, runs_dir=tmp_path, model=model).metrics
        assert found["test_found"] == pytest.approx(found["test_recall"], rel=1e-5)
        assert found["test_area"] == pytest.approx(found["test_average_precision"], abs=0.05)
