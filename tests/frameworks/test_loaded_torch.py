"""Loaded modules that draw, change their buffers, or keep other state, in many threads."""

import random
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from small_runs import SMALL
from trainwright.config import load
from trainwright.digest import tensor_records
from trainwright.errors import ModelError
from trainwright.frameworks.base import Model, ModelInputs
from trainwright.runs.catalog import Catalog
from trainwright.runs.objects import Objects
from trainwright.runs.wiring import Components, build
from trainwright.types import Array

MODULES = """
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.first = nn.Linear(in_features, 8)
        self.last = nn.Linear(8, out_features)

    def between(self, x):
        return x

    def forward(self, x):
        return self.last(self.between(torch.relu(self.first(x))))


class Dropout(Net):
    "Monte Carlo dropout."

    def between(self, x):
        return functional.dropout(x, 0.5, training=True)


class Noise(Net):
    "Draws in ways that differ for torch: with a method, a function, of the shape of another tensor."

    def between(self, x):
        x = x + torch.randn(x.shape) + torch.rand_like(x) + torch.empty_like(x).uniform_()
        return x + torch.randint(0, 3, x.shape) + torch.multinomial(x.abs() + 1, 8)


class Attention(Net):
    "Attends to the rows of its batch."

    def between(self, x):
        return functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])[0, 0]


class Counting(Net):
    "Each call changes a buffer that the next one reads."

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.register_buffer("calls", torch.zeros(()))

    def between(self, x):
        self.calls += 1
        return x * self.calls


class DrawsLater(Net):
    "Draws in the last part of the validation split alone, which has fewer rows than the others."

    def between(self, x):
        return functional.dropout(x, 0.5, training=len(x) < 4)


class CountsLater(Counting):
    "Changes its buffer in the same part."

    def between(self, x):
        if len(x) < 4:
            self.calls += 1
        return x * (1 + self.calls)


class Cached(Net):
    "Makes a table in the first call."

    table = None

    def between(self, x):
        if self.table is None:
            self.table = torch.arange(8.0)
        return x + self.table


class OwnGenerator(Net):
    "Has a generator that goes on from call to call."

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.generator = torch.Generator().manual_seed(1)

    def between(self, x):
        return x + torch.randn(x.shape, generator=self.generator)


class Draws(Net):
    "Draws when it is built, from every generator of the process."

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        random.random(), np.random.rand(), torch.rand(3)
        nn.init.orthogonal_(self.first.weight)
"""
NETS = ["Net", "Attention", "Dropout", "Noise", "Counting", "Cached", "DrawsLater", "CountsLater"]


@pytest.fixture(scope="module", autouse=True)
def own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A working directory with the module `loaded_nets`."""
    folder = tmp_path_factory.mktemp("cwd")
    (folder / "loaded_nets.py").write_text(MODULES)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        yield
    sys.modules.pop("loaded_nets", None)


def components(name: str) -> Components:
    """What a run of a network is computed with, at step 0."""
    model = {"model": {"type": f"loaded_nets:{name}"}}
    return build(load(SMALL, model, adapters=Catalog()).config, 1, Objects())


def loaded(parts: Components, folder: Path) -> Model:
    """The model as it is now, loaded."""
    folder.mkdir()
    parts.learner.snapshot(weights_only=True).write(folder)
    return parts.framework.load(
        ModelInputs(parts.config, parts.bundle.info, parts.config.model.params, 1), folder
    )


def outputs(model: Model, parts: Components) -> Array:
    """The outputs for the validation split, in parts of four rows."""
    return np.concatenate([part.outputs for part in model.predict(parts.bundle.splits["val"])])


def in_threads(model: Model, parts: Components, calls: int = 24) -> list[Array]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda _: outputs(model, parts), range(calls)))


@pytest.mark.parametrize("name", NETS)
def test_eight_threads_have_the_outputs_of_one(name: str, tmp_path: Path) -> None:
    parts = components(name)
    parts.learner.step(0, 0.01)
    alone = outputs(loaded(parts, tmp_path / "alone"), parts)
    model = loaded(parts, tmp_path / "shared")
    assert all(np.array_equal(one, alone) for one in in_threads(model, parts))


@pytest.mark.parametrize("name", ["Net", "Attention", "Dropout", "Noise", "DrawsLater"])
def test_its_outputs_are_those_of_the_learner(name: str, tmp_path: Path) -> None:
    """The learner draws from torch's own generators, and the loaded model from others."""
    parts = components(name)
    parts.learner.step(0, 0.01)
    expected = outputs(parts.learner.model(), parts)
    model = loaded(parts, tmp_path / "model")
    torch.manual_seed(5)
    before = torch.get_rng_state()
    for _ in range(2):  # the first call finds out what the others may leave out
        assert np.array_equal(outputs(model, parts), expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_buffers_that_the_user_sets_are_used(tmp_path: Path) -> None:
    parts = components("CountsLater")
    model = loaded(parts, tmp_path / "model")
    calls: torch.Tensor = model.native.calls
    before = outputs(model, parts)[:4]
    calls += 1
    value = float(calls)
    assert not np.array_equal(outputs(model, parts)[:4], before)
    assert float(model.native.calls) == value


def test_each_part_draws_its_own_numbers(tmp_path: Path) -> None:
    parts = components("Dropout")
    model = loaded(parts, tmp_path / "model")
    module: Any = model.native
    torch.nn.init.zeros_(module.first.weight)
    torch.nn.init.ones_(module.first.bias)
    rows = outputs(model, parts)  # all rows are alike but for the masks
    assert len(np.unique(rows, axis=0)) > 8


def test_a_buffer_has_its_loaded_value_after_each_part(tmp_path: Path) -> None:
    parts = components("Counting")
    model = loaded(parts, tmp_path / "model")
    first = next(iter(model.predict(parts.bundle.splits["val"]))).outputs
    assert np.array_equal(next(iter(model.predict(parts.bundle.splits["val"]))).outputs, first)
    assert float(model.native.calls) == float(parts.learner.model().native.calls)


def test_a_model_with_a_generator_of_its_own_is_for_one_thread(tmp_path: Path) -> None:
    parts = components("OwnGenerator")
    model = loaded(parts, tmp_path / "model")
    outputs(model, parts)
    outputs(model, parts)
    errors: list[str] = []

    def elsewhere() -> None:
        with pytest.raises(ModelError) as caught:
            outputs(model, parts)
        errors.append(str(caught.value))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    (error,) = errors
    assert "is stateful between predictions (generator), so it is not thread-safe" in error
    assert "load one model per thread" in error


def test_loading_leaves_every_generator_as_it_was(tmp_path: Path) -> None:
    """Those of Python and NumPy are preserved by the caller, which also has the run directory."""
    import trainwright

    run = trainwright.train(SMALL, {"model": {"type": "loaded_nets:Draws"}}, runs_dir=tmp_path)
    states = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # type: ignore[index, union-attr]
    predictor = trainwright.load(run)
    predictor.outputs(np.zeros((3, 4), dtype=np.float32))
    assert states == [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # type: ignore[index, union-attr]


def test_a_training_beside_a_model_that_draws_has_its_own_bits(tmp_path: Path) -> None:
    """Another thread loads and predicts all the while that this one trains with dropout."""
    alone, beside = components("Dropout"), components("Dropout")
    for step in range(30):
        alone.learner.step(step, 0.01)
    stop, predicted = threading.Event(), []

    def serve() -> None:
        while not stop.is_set():
            predicted.append(outputs(loaded(other, tmp_path / f"model{len(predicted)}"), other))

    other = components("Dropout")
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        while not predicted:  # the other thread is at work
            pass
        for step in range(30):
            beside.learner.step(step, 0.01)
    finally:
        stop.set()
        thread.join()
    assert tensor_records(beside.learner.state()) == tensor_records(alone.learner.state())
    assert all(np.array_equal(one, predicted[0]) for one in predicted)
