"""Optimizers of our own beside their formulas, and microbatches beside the whole batch."""

from typing import Any

import numpy as np
import pytest
import torch

from small_runs import SMALL
from trainwright.config import load
from trainwright.config.schema import TrainingConfig
from trainwright.frameworks.torch.optim.build import build_optimizer
from trainwright.frameworks.torch.optim.lion import Lion
from trainwright.frameworks.torch.params import OPTIMIZERS
from trainwright.runs.catalog import Catalog
from trainwright.runs.objects import Objects
from trainwright.runs.wiring import build


def test_lion_is_the_formula() -> None:
    """Algorithm 2 of Chen et al., 2023, in NumPy."""
    random = np.random.default_rng(0)
    weights, momentum = random.normal(size=(3, 4)), np.zeros((3, 4))
    parameter = torch.nn.Parameter(torch.tensor(weights))
    optimizer = Lion([parameter], lr=0.02, betas=(0.8, 0.95), weight_decay=0.3)
    for _ in range(5):
        gradient = random.normal(size=(3, 4))
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        direction = np.sign(0.8 * momentum + 0.2 * gradient)
        weights -= 0.02 * (direction + 0.3 * weights)
        momentum = 0.95 * momentum + 0.05 * gradient
    np.testing.assert_allclose(parameter.detach().numpy(), weights, rtol=1e-12)
    np.testing.assert_allclose(optimizer.state[parameter]["exp_avg"].numpy(), momentum, rtol=1e-12)


def loss_and_weights(overrides: dict[str, Any]) -> tuple[float, np.ndarray]:
    """The loss of one step, and the weights after it: plain SGD at rate 1 subtracts the gradient."""
    plain = {"model.params.dropout": 0.0, "training.optimizer": "sgd", "training.learning_rate": 1.0}
    learner = build(load(SMALL, plain | overrides, adapters=Catalog()).config, 1, Objects()).learner
    (loss,) = learner.read([learner.step(0, 1.0).loss])
    state = learner.state(weights_only=True)
    return loss, np.concatenate([np.frombuffer(tensor.buffer, dtype=np.float32) for tensor in state])


@pytest.mark.parametrize("weights", [None, "balanced"])
def test_every_microbatch_size_gives_the_same_loss_and_gradient(weights: str | None) -> None:
    given = {"training.class_weights": weights}
    loss, whole = loss_and_weights(given)
    for size in (1, 3, 5, 8, 15):
        part_loss, parts = loss_and_weights(given | {"training.microbatch_size": size})
        assert part_loss == pytest.approx(loss, abs=1e-6), size
        np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "cls", "own"),
    [
        ({"type": "nadam", "momentum_decay": 0.1}, torch.optim.NAdam, {"momentum_decay": 0.1}),
        ({"type": "nadam"}, torch.optim.NAdam, {}),
        (
            {"type": "adagrad", "initial_accumulator_value": 0.1},
            torch.optim.Adagrad,
            {"initial_accumulator_value": 0.1},
        ),
    ],
)
def test_options_reach_torchs_optimizer(optimizer: Any, cls: Any, own: dict[str, float]) -> None:
    training = TrainingConfig.model_validate(
        {"optimizer": {"type": optimizer["type"], "params": {**optimizer_defaults(optimizer), **own}}}
    )
    models = [torch.nn.Linear(3, 2) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    ours = build_optimizer(training, models[0], torch.device("cpu"))
    theirs = cls(models[1].parameters(), lr=training.learning_rate, **own)
    for _ in range(3):
        inputs = torch.randn(5, 3)
        for model, one in zip(models, (ours, theirs), strict=True):
            model.zero_grad()
            model(inputs).square().sum().backward()
            one.step()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other)


def optimizer_defaults(optimizer: dict[str, Any]) -> dict[str, Any]:
    return OPTIMIZERS[optimizer["type"]]().model_dump()
