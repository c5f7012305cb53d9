"""Models of Keras that are loaded: used from many threads, beside a training, in a process that stays as it was.

Each test has processes of its own, on each backend: what belongs to a process can be compared only where nothing else
has used it.
"""

import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from trainwright.testing.framework_suite import DATA_MODULES
from warm_commands import warm

BACKENDS = ["tensorflow", "torch", "jax"]
# Models that draw when they predict, from generators of their layers and from those that all share; and a
# model that changes a variable in each call.
MODULE = """
import random

import keras


class Noise(keras.layers.Layer):
    def build(self, shape):
        self.constant = random.random()  # belongs to no weights: it follows from the seed alone

    def call(self, features):
        if keras.backend.backend() == "jax":  # which cannot use the generator that all share
            return features + self.constant
        return features + 0.1 * keras.random.normal(keras.ops.shape(features)) + self.constant


class Dropping(keras.layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, features):
        return self.dropout(features, training=True)


class Count(keras.layers.Layer):
    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, features):
        self.calls.assign(self.calls + 1)
        return features + self.calls


def counting(in_features, out_features):
    return keras.Sequential([keras.Input((in_features,)), Count(), keras.layers.Dense(out_features)])


def drawing(in_features, out_features):
    features = keras.Input((in_features,))
    hidden = keras.layers.Dense(8, activation="relu")(Noise()(features))
    hidden = keras.layers.BatchNormalization()(hidden)
    hidden = Dropping()(hidden)
    return keras.Model(features, keras.layers.Dense(out_features)(hidden))
"""
COMMON = """
import json, os, random, sys, threading, warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, os.getcwd())
backend = words[0]
from trainwright.frameworks.keras.backend import import_keras

environment = dict(os.environ)
keras = import_keras(backend)
ours = {"KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL", "NPROC"}
assert all(os.environ.get(name) == environment.get(name) for name in ours)
os.environ["KERAS_BACKEND"] = backend  # for models whose config names none
import trainwright
from trainwright.datasets.samples.arrays import Arrays

THREADS, CALLS = 8, 6
MODELS = {
    "plain": {"model": {"type": "keras_mlp", "params": {"hidden": [16], "normalization": "batch", "backend": backend}}},
    "drawing": {"model": {"type": "nets_of_mine:drawing", "framework": "keras"}},
    "counting": {"model": {"type": "nets_of_mine:counting", "framework": "keras"}},
}
SETTINGS = {
    "experiment": {"seed": 3},
    "data": {"path": "rows.npz"},
    "training": {"max_steps": 9, "batch_size": 20, "learning_rate": 0.01, "threads": 1},
    "evaluation": {"batch_size": 10},
}
with np.load("rows.npz") as file:
    split = Arrays({"features": file["X"].astype(np.float32)[:40], "target": file["y"][:40]})


def outputs(predictor):
    return np.concatenate([part.outputs for part in predictor.model.predict(split)])


def in_threads(predictors, expected):
    barrier = threading.Barrier(THREADS)

    def call(number):
        barrier.wait()
        return [np.array_equal(outputs(predictors[i % len(predictors)]), expected[i % len(predictors)])
                for i in range(number, number + CALLS)]

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(same for thread in pool.map(call, range(THREADS)) for same in thread)
"""
# Trains the runs of MODELS; those whose models draw or count, again, while the first predicts in other threads.
TRAIN = """
def train_again(model, loaded, alone):
    done, others = threading.Event(), []

    def predict():
        while not done.is_set():
            others.append(np.array_equal(outputs(loaded), alone))

    threads = [threading.Thread(target=predict) for _ in range(2)]
    for thread in threads:
        thread.start()
    again = trainwright.train({**SETTINGS, **model}, runs_dir="runs")
    done.set()
    for thread in threads:
        thread.join()
    assert others and all(others), "a training disturbs the predictions of a loaded model"
    return again


runs = {}
for name, model in MODELS.items():
    first = trainwright.train({**SETTINGS, **model}, runs_dir="runs")
    loaded = trainwright.load(first)
    alone = outputs(loaded)
    if name != "plain":
        again = train_again(model, loaded, alone)
        assert again.result["digest"] == first.result["digest"], "predictions disturb a training"
    if name != "counting":  # whose evaluation in the training is one of its calls, too
        assert trainwright.evaluate(first, split="test")["test_loss"] == first.metrics["test_loss"], name
    np.save(f"{name}.npy", alone)
    runs[name] = str(first.path)
print(json.dumps(runs))
"""
LOAD = """
runs = json.loads(words[1])
assert len(runs) == len(MODELS)
if backend == "torch":
    import torch

    torch.set_num_threads(3)
if backend == "jax":
    import jax

    jax.devices()
if backend == "tensorflow":
    import tensorflow as tf
    from tensorflow.python.eager import context
    from tensorflow.python.framework.config import is_op_determinism_enabled
keras.utils.set_random_seed(5)
keras.src.random.seed_generator.global_seed_generator()  # is made at its first use
import ruamel.yaml  # which adds filters of warnings when it is imported



def state():
    config = keras.config
    values = {
        "environment": dict(os.environ), "filters": list(warnings.filters), "random": random.getstate(),
        "numpy": repr(np.random.get_state()), "threads of Python": threading.active_count(),
        "keras": [config.floatx(), config.epsilon(), config.image_data_format(), config.dtype_policy().name],
        "generator": keras.src.random.seed_generator.global_seed_generator().state.numpy().tolist(),
    }
    if backend == "torch":
        values["torch"] = [
            torch.get_num_threads(), torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark,
            torch.get_rng_state().tolist(), torch.is_grad_enabled(), torch.get_default_dtype(),
        ]
    if backend == "tensorflow":
        threads = tf.config.threading
        values["tensorflow"] = [
            threads.get_intra_op_parallelism_threads(), threads.get_inter_op_parallelism_threads(),
            is_op_determinism_enabled(), context.global_seed(),
        ]
    if backend == "jax":
        values["jax"] = dict(jax.config.values)
    return values


before = state()
loaded = [trainwright.load(run) for run in runs.values()]
expected = [outputs(one) for one in loaded]
assert [outputs(one).tolist() for one in loaded] == [one.tolist() for one in expected]
in_threads(loaded, expected)
with ThreadPoolExecutor(4) as pool:  # models may be loaded in threads, too
    for another in pool.map(trainwright.load, [runs["drawing"]] * 4):
        np.testing.assert_array_equal(outputs(another), expected[1])
after = state()
changed = [name for name in before if before[name] != after[name]]
assert not changed, changed
for name, found in zip(MODELS, expected, strict=True):
    trained = np.load(f"{name}.npy")
    np.testing.assert_allclose(found, trained, rtol=1e-5, atol=1e-5 * np.abs(trained).max(), err_msg=name)

from safetensors.numpy import load_file
from trainwright.records.run_dir import RunDir
from trainwright.runs.weights import stored_model

layers = keras.layers  # the same network by hand
by_hand = keras.Sequential([
    keras.Input((4,)), layers.Dense(16), layers.BatchNormalization(), layers.Activation("relu"), layers.Dense(3)
])
stored = load_file(stored_model(RunDir(Path(runs["plain"]))).folder / "weights.safetensors")
by_hand.set_weights([stored[name] for name in sorted(stored)])
logits = by_hand.predict(split.arrays["features"], verbose=0).astype(np.float64)
exponents = np.exp(logits)
np.testing.assert_allclose(expected[0], exponents / exponents.sum(axis=1, keepdims=True), atol=1e-6)
"""


def module(folder: Path, name: str, code: str) -> str:
    """Write a module with a function `main`, and return its name."""
    text = f"def main(*words):\n{textwrap.indent(COMMON + code, '    ')}"
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return name


def run_afresh(name: str, *words: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    code = f"import sys, {name}; {name}.main(*sys.argv[1:])"
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_threads_have_the_outputs_of_one_and_the_process_is_left_as_it_was(
    backend: str, tmp_path: Path
) -> None:
    """Beside a training, and then in a process that has imported Keras, and no more."""
    for library in ("keras", backend):
        if find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    (tmp_path / "nets_of_mine.py").write_text(textwrap.dedent(MODULE))
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", X=draw.normal(size=(150, 4)), y=draw.integers(0, 3, 150))
    trained = run_afresh(module(tmp_path, "train_models", TRAIN), backend, folder=tmp_path)
    assert trained.returncode == 0, trained.stderr[-3000:]
    name, runs = module(tmp_path, "load_models", LOAD), trained.stdout.strip().splitlines()[-1]
    if backend == BACKENDS[0]:  # of others, no process is forked
        loaded = warm(name, (*DATA_MODULES, "keras"), tmp_path).run(backend, runs, folder=tmp_path)
    else:
        loaded = run_afresh(name, backend, runs, folder=tmp_path)
    assert loaded.returncode == 0, loaded.stderr[-3000:]
