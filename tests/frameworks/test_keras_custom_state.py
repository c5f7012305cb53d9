"""Layers, losses and optimizers of the user's with state of their own, on each backend of Keras."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import trainwright
from small_runs import SMALL, assert_same, whole_and_resumed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(None in map(find_spec, ("keras", "tensorflow")), reason="Keras is not installed"),
]

SOURCE = """
import keras
from keras import ops


class Drifting(keras.losses.Loss):
    "Weighs by a variable that each call changes, and by numbers of a generator of its own."

    def __init__(self):
        super().__init__()
        self.level = keras.Variable(1.0, trainable=False)
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, y_true, y_pred):
        self.level.assign(self.level * 0.9 + 0.2)
        weight = self.level + keras.random.uniform((), seed=self.seeds)
        return weight * keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)


class Counting(keras.losses.Loss):
    "Weighs by attributes of Python."

    def __init__(self):
        super().__init__()
        self.calls, self.values = 0, []

    def call(self, y_true, y_pred):
        self.calls += 1
        self.values.append(self.calls % 3)
        weight = 1 + 0.1 * (self.calls % 4) + 0.01 * sum(self.values)
        return weight * keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)


class Level:
    "What Keras does not track."

    def __init__(self):
        self.value = keras.Variable(1.0, trainable=False)


class Layer(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.inner, self.seen, self.level = keras.layers.Dense(8), keras.metrics.Mean(), Level()

    def build(self, shape):
        self.inner.build(shape)
        self.total = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.built = True

    def call(self, x, training=False):
        if training:
            self.total.assign_add(0.01 * ops.mean(x))
            self.seen.update_state(ops.mean(x))
            self.level.value.assign(0.99 * self.level.value)
        return ops.relu(self.inner(x)) * (self.level.value + self.total + 0.1 * self.seen.result())


def build():
    return keras.Sequential([keras.Input((4,)), Layer(), keras.layers.Dense(3)])


class Alternating(keras.optimizers.SGD):
    def __init__(self, *options, **more):
        super().__init__(*options, **more)
        self.calls = 0

    def apply(self, gradients, *variables, **more):
        self.calls += 1
        return super().apply([one * (1 + 0.1 * (self.calls % 3)) for one in gradients], *variables, **more)


def compiled():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(Alternating(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""
LOSS = {"model": {"type": "keras_mlp"}, "training.loss": "keras_own_state:Drifting"}
COUNTING = LOSS | {"training.loss": "keras_own_state:Counting"}
LAYER = {"model": {"type": "keras_own_state:build", "framework": "keras"}}
COMPILED = {"model": {"type": "keras_own_state:compiled", "framework": "keras"}}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("keras")
    (folder / "keras_own_state.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
    sys.modules.pop("keras_own_state", None)


@pytest.mark.parametrize("overrides", [LOSS, LAYER], ids=["loss", "layer"])
def test_variables_that_the_model_does_not_have_are_restored(
    overrides: dict[str, Any], tmp_path: Path
) -> None:
    whole, resumed = whole_and_resumed(tmp_path, overrides)
    assert_same(resumed, whole)
    assert whole.result["determinism"]["tier"] == "bitwise"


def test_attributes_that_change_while_a_graph_is_made_are_named(tmp_path: Path) -> None:
    run = trainwright.train(SMALL, COUNTING | {"training.max_steps": 3}, runs_dir=tmp_path)
    assert "loss.calls" in run.result["determinism"]["reason"]


IN_A_PROCESS = """
import sys
from pathlib import Path
from small_runs import assert_same, whole_and_resumed
from test_keras_custom_state import COMPILED, COUNTING, LAYER, LOSS

for index, overrides in enumerate([LOSS, LAYER, *([COUNTING, COMPILED] if sys.argv[2] == "torch" else [])]):
    whole, resumed = whole_and_resumed(Path(sys.argv[1]) / str(index), overrides)
    assert_same(resumed, whole)
    assert whole.result["determinism"]["tier"] == "bitwise", overrides
"""


@pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=pytest.mark.soak)])
def test_other_backends_keep_it_too(backend: str, folder: Path, tmp_path: Path) -> None:
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    here = Path(__file__).parent
    paths = os.pathsep.join(map(str, [folder, here, here.parent]))
    command = [sys.executable, "-c", IN_A_PROCESS, str(tmp_path), backend]
    ended = subprocess.run(  # noqa: PLW1510 - checked below
        command,
        env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
