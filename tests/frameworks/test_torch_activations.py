"""Modules that compute their activations again, and compiled steps, beside steps without either."""

from pathlib import Path
from typing import Any

import pytest
import torch
from test_torch_groups import assert_equal, module_of, parts_of, train
from torch import Tensor, nn

from small_runs import whole_and_resumed
from trainwright.errors import ModelError
from trainwright.frameworks.torch.activations import checkpoint_activations


class Net(nn.Module):
    """Draws, normalizes over the batch, and has a buffer that it replaces and then uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.4))
        self.last = nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        hidden = self.first(x)
        self.mean = self.mean * 0.9 + hidden.detach().mean(0)
        return self.last(torch.relu(hidden - self.mean))


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def test_the_bits_are_those_without() -> None:
    models = []
    for patterns in ([], ["net"], ["net.first.*", "net.last"]):
        torch.manual_seed(0)
        model = Outer()
        checkpoint_activations(model, patterns, synchronized=False)
        for _ in range(3):
            loss = model(torch.randn(16, 4)).square().mean() + model(torch.randn(16, 4)).abs().mean()
            loss.backward()
        models.append(model)
    plain, *others = models
    assert [model.net.calls for model in models] == [6, 12, 6]
    for model in others:
        assert_equal(model, plain)
        for one, two in zip(model.parameters(), plain.parameters(), strict=True):
            assert one.grad is not None
            assert two.grad is not None
            assert torch.equal(one.grad, two.grad)
        for one, two in zip(model.buffers(), plain.buffers(), strict=True):
            assert torch.equal(one, two)
    plain.eval()
    calls = others[0].net.calls
    others[0].eval()
    assert torch.equal(others[0](torch.ones(2, 4)), plain(torch.ones(2, 4)))
    assert others[0].net.calls == calls + 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_learner_comes_to_the_bits_of_one_without(ranks: int) -> None:
    given = {"model.params.dropout": 0.3, "distributed.virtual.data": ranks, "training.microbatch_size": 5}
    plain, again = parts_of(given), parts_of(given | {"training.activation_checkpointing": "layers"})
    for parts in (plain, again):
        train(parts)
    assert_equal(module_of(again), module_of(plain))


def test_synchronized_batch_normalization_is_refused() -> None:
    given: dict[str, Any] = {"model.params.normalization": "batch", "distributed.virtual.data": 2}
    with pytest.raises(ModelError, match=r"layers\.2 has batch normalization"):
        parts_of(given | {"training.activation_checkpointing": "layers.*", "training.drop_last": True})


@pytest.mark.soak
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_compiled_step_is_that_of_the_module(ranks: int, tmp_path: Path) -> None:
    given = {"distributed.virtual.data": ranks, "training.freeze": [{"match": "layers.1", "until_step": 3}]}
    plain, compiled = parts_of(given), parts_of(given | {"training.compile": True})
    for parts in (plain, compiled):
        train(parts)
    for one, two in zip(module_of(plain).parameters(), module_of(compiled).parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    whole, resumed = whole_and_resumed(tmp_path, given | {"training.compile": True})
    assert whole.result["determinism"]["tier"] == "order"
    assert resumed.metrics["test_loss"] == pytest.approx(whole.metrics["test_loss"], rel=1e-4)
