"""Losses of the user's that have state: a checkpoint holds it, or the determinism tier names it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import trainwright
from small_runs import SMALL, assert_same, whole_and_resumed
from trainwright.errors import ModelError
from trainwright.frameworks.support.object_state import ObjectState
from trainwright.frameworks.torch.state.custom import TorchKinds

LOSSES = """
import random
from collections import deque

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy


class Part:
    "What is no module, as an attribute of one."

    def __init__(self):
        self.level = 1.0


class Weighing(nn.Module):
    "Weighs the loss by all kinds of state."

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("quiet", torch.zeros(2), persistent=False)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.calls, self.ema, self.history, self.last = 0, 0.0, [], None
        self.counts, self.recent, self.array = {}, deque(maxlen=3), np.zeros(3)
        self.python, self.numpy = random.Random(1), np.random.default_rng(2)
        self.torch, self.part = torch.Generator().manual_seed(3), Part()
        self.same = self.history

    def forward(self, input, target):
        loss = cross_entropy(input, target)
        value = float(loss)
        self.mean.mul_(0.9).add_(loss.detach() * 0.1)
        self.quiet += value
        self.frozen.add_(value * 0.01)
        self.calls += 1
        self.ema = 0.9 * self.ema + 0.1 * value
        self.history.append(value)
        self.recent.append(value)
        self.last = input.detach().mean(0)
        self.counts[self.calls % 5] = self.counts.get(self.calls % 5, 0) + 1
        self.array += value
        self.part.level *= 1.01
        state = [self.mean, self.quiet.sum(), self.frozen.sum(), self.calls % 7, self.ema, sum(self.same[-3:])]
        state += [sum(self.recent), self.last.sum(), max(self.counts.values()), self.array.sum()]
        state += [self.part.level, self.python.random(), self.numpy.random()]
        state += [torch.rand((), generator=self.torch)]
        return loss * (1 + 0.01 * sum(float(one) for one in state))


class Counting:
    "No module, but called as one."

    def __init__(self):
        self.calls = 0

    def __call__(self, outputs, batch):
        self.calls += 1
        return cross_entropy(outputs, batch["target"]) * (1 + 0.1 * (self.calls % 4))


READY = Counting()
CALLS = []


def counted(outputs, batch):
    CALLS.append(1)
    return cross_entropy(outputs, batch["target"])


class Boxes(nn.Module):
    "Keeps objects that it makes in training, which no new process has."

    def __init__(self):
        super().__init__()
        self.boxes = []

    def forward(self, input, target):
        self.boxes.append(Part())
        return cross_entropy(input, target)


class Drawing(random.Random):
    "A generator of the user's own."


class Draws(Boxes):
    def __init__(self):
        super().__init__()
        self.drawing = Drawing(1)

    def forward(self, input, target):
        return cross_entropy(input, target) * (1 + self.drawing.random())


class Replaces(nn.Module):
    "Puts another object in the place of the one that it was built with."

    def __init__(self):
        super().__init__()
        self.part = Part()

    def forward(self, input, target):
        level = self.part.level
        self.part = Part()
        self.part.level = 1.01 * level
        return cross_entropy(input, target) * level


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, features):
        first = self.layer(features)
        return {"first": first[:, :3], "second": first[:, 3:]}
"""


@pytest.fixture(scope="module", autouse=True)
def losses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("losses")
    (folder / "stateful_losses.py").write_text(LOSSES)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield
    sys.modules.pop("stateful_losses", None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Weighing", "Counting", "READY"])
def test_a_killed_run_resumes_with_the_state_of_its_loss(name: str, tmp_path: Path) -> None:
    whole, resumed = whole_and_resumed(tmp_path, {"training.loss": f"stateful_losses:{name}"})
    assert_same(resumed, whole)
    assert whole.result["determinism"]["tier"] == "bitwise"


@pytest.mark.slow
def test_a_killed_run_resumes_with_the_state_of_the_loss_of_a_head(tmp_path: Path) -> None:
    overrides = {
        "model": {"type": "stateful_losses:Heads"},
        "training.heads": {"second": {"target": "target", "loss": "stateful_losses:Counting"}},
    }
    whole, resumed = whole_and_resumed(tmp_path, overrides)
    assert_same(resumed, whole)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("counted", "loss.stateful_losses.CALLS"),
        ("Boxes", "loss.boxes"),
        ("Draws", "loss.drawing"),
        ("Replaces", "loss.part"),
    ],
)
def test_state_that_no_checkpoint_can_hold_is_named(name: str, named: str, tmp_path: Path) -> None:
    short = {"training.loss": f"stateful_losses:{name}", "training.max_steps": 3}
    run = trainwright.train(SMALL, short, runs_dir=tmp_path)
    assert run.result["determinism"]["tier"] == "statistical"
    assert named in run.result["determinism"]["reason"]
    with pytest.raises(ModelError, match=named):
        trainwright.train(SMALL, short | {"training.determinism": "bitwise"}, runs_dir=tmp_path)


@pytest.mark.slow
def test_a_run_whose_loss_replaces_its_parts_can_be_resumed(tmp_path: Path) -> None:
    _, resumed = whole_and_resumed(tmp_path, {"training.loss": "stateful_losses:Replaces"})
    assert resumed.status == "completed"


class Node:
    """An object with attributes of all kinds."""

    def __init__(self, option: int = 1) -> None:
        self.option, self.left, self.right = option, [1, 2], (1.5, b"x", 1j)
        self.child: object = None


def test_attributes_that_lead_to_one_object_still_do_after_a_restore() -> None:
    node, fresh = Node(), Node(option=7)
    states = [ObjectState(one, TorchKinds()) for one in (node, fresh)]
    node.left.append(node)  # which contains itself
    node.same = node.left  # type: ignore[attr-defined]
    node.right = (float("nan"), {"a": np.float32(2)}, torch.ones(2, 3).t())  # type: ignore[assignment]
    del node.child
    saved, arrays = states[0].files()
    states[1].load(saved, {name: one.clone() for name, one in arrays.items()})
    assert fresh.left is fresh.same  # type: ignore[attr-defined]
    assert fresh.left == [1, 2, fresh]
    assert fresh.option == 7  # what has not changed is as it was built
    assert not hasattr(fresh, "child")
    assert fresh.right[2].stride() == (1, 3)  # type: ignore[attr-defined]
    assert type(fresh.right[1]["a"]) is np.float32  # type: ignore[index]
    states[1].load((), {})
    assert (fresh.left, fresh.right, fresh.child) == ([1, 2], (1.5, b"x", 1j), None)
    assert not hasattr(fresh, "same")
