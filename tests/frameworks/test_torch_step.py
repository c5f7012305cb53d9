"""What a step asks of its parts: sums in lockstep, when gradients set out, what is frozen, who draws."""

import copy
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from test_all_reduce import (
    BATCHES,
    FEATURES,
    Batches,
    Collectives,
    Member,
    all_reduce_in,
    built,
    collectives,
    train,
)
from torch import Tensor, nn

from trainwright.config.training import FreezeConfig
from trainwright.frameworks.support.prefetcher import Samples
from trainwright.frameworks.torch.generators import drawing_from
from trainwright.frameworks.torch.optim.freezing import Freezing, frozen_until
from trainwright.frameworks.torch.optim.update import Clipping, Update
from trainwright.frameworks.torch.parallel.batch_norm import BatchNorms
from trainwright.frameworks.torch.parallel.ddp import DataParallel
from trainwright.frameworks.torch.parallel.lockstep import Lockstep
from trainwright.frameworks.torch.precision import Precision
from trainwright.frameworks.torch.step import StepSettings, TorchStep
from trainwright.world import ALONE

__all__ = ["collectives"]  # the fixture

FP32 = Precision("fp32", torch.device("cpu"))


def squares(outputs: Any, batch: Any) -> Tensor:
    mean: Tensor = (outputs**2).mean()
    return mean


def step_of(model: nn.Module, settings: StepSettings, **parts: Any) -> TorchStep:
    """The step of plain gradient descent."""
    parameters: list[Any] = list(model.parameters())
    update = Update(torch.optim.SGD(parameters, 0.5), parameters, FP32, Clipping(None))
    return TorchStep(lambda batch: model(batch["features"]), squares, update, FP32, settings, **parts)


def test_virtual_ranks_in_lockstep_are_one_batch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()
    whole = copy.deepcopy(model)
    norms = BatchNorms(model, {"1": model[1]}, Lockstep([torch.default_generator], ALONE, 4))
    step = step_of(model, StepSettings(5, 16, 4), batch_norms=norms)
    optimizer, batches = torch.optim.SGD(whole.parameters(), 0.5), Doubles()
    for number in (0, 1, 3):
        step(number, 0.5, batches, batches)  # type: ignore[arg-type]
        optimizer.zero_grad()
        squares(whole(batches.take(batches.batch(number))["features"]), None).backward()
        optimizer.step()
    torch.testing.assert_close(model.state_dict(), whole.state_dict())


class Doubles(Batches):
    def take(self, ids: Any) -> dict[str, Tensor]:
        return {"features": super().take(ids)["features"].double()}


def test_gradients_set_out_with_the_last_microbatch_of_a_process(
    collectives: Callable[[int], Collectives],
) -> None:
    together = collectives(2)
    pairs = [built(Member(rank, 2), virtual_ranks=4, microbatch_size=3) for rank in range(2)]
    events: list[list[str]] = [[], []]

    def recorded(rank: int, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: (events[rank].append(name), function(*args))[1]

    for rank, (_, step) in enumerate(pairs):
        all_reduce = all_reduce_in(step)
        together.connect(all_reduce, rank)
        step._loss = recorded(rank, "loss", step._loss)
        all_reduce.arm = recorded(rank, "arm", all_reduce.arm)  # type: ignore[method-assign]
    together.together(lambda rank: train(*pairs[rank]))
    for rank in range(2):
        expected = []
        for samples in BATCHES:
            edges = [samples * part // 4 for part in range(2 * rank, 2 * rank + 3)]
            counts = [math.ceil((edges[i + 1] - edges[i]) / 3) for i in range(2)]
            expected += ["loss"] * sum(counts) + ["arm"]
        assert events[rank] == expected


def test_what_is_frozen_is_in_no_sum() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, 3))
    config: Any = [FreezeConfig(match="0.*", until_step=2), FreezeConfig(match="2.bias")]
    freezing = Freezing(model, frozen_until(model, config), {})
    step, batches = step_of(model, StepSettings(5, 16, 2), freezing=freezing), Batches()
    names = {parameter: name for name, parameter in model.named_parameters()}
    for number, frozen in enumerate([{"0.weight", "0.bias", "2.bias"}] * 2 + [{"2.bias"}] * 2):
        before = copy.deepcopy(model.state_dict())
        step(number, 0.5, batches, batches)  # type: ignore[arg-type]
        assert {names[one] for one in step._strategy._tree._parameters} == set(before) - frozen
        assert {name for name, one in model.state_dict().items() if torch.equal(one, before[name])} == frozen


def test_all_generators_are_seeded_for_a_block_and_go_on_as_before() -> None:
    seed = (3 << 32) + 7
    random.seed(1)
    np.random.seed(2)
    with drawing_from([torch.default_generator], seed):
        drawn = (random.random(), np.random.random(), torch.rand(()).item())
    after = (random.random(), np.random.random())
    numpys = np.random.RandomState([7, 3, 1])
    torchs = torch.Generator().manual_seed(7)
    assert drawn == (
        random.Random(seed).random(),
        numpys.random_sample(),
        torch.rand((), generator=torchs).item(),
    )
    assert after == (random.Random(1).random(), np.random.RandomState(2).random_sample())


def test_weights_count_by_their_share_of_the_batch() -> None:
    """Where they add up to a half, the factor on their sum is 2."""
    torch.manual_seed(0)
    model = nn.Linear(FEATURES, 3)
    whole = copy.deepcopy(model)
    step = step_of(model, StepSettings(5, 16), weights=lambda taking: np.full(len(taking), 1 / 32))
    batches = Batches()
    step._loss = lambda outputs, batch: (outputs**2).mean(dim=1).sum() / 32
    step(0, 0.5, batches, batches)  # type: ignore[arg-type]
    squares(whole(batches.take(batches.batch(0))["features"]), None).backward()
    torch.testing.assert_close(model.weight, whole.weight - 0.5 * whole.weight.grad)


def test_a_batch_without_weight_moves_nothing() -> None:
    model = nn.Linear(FEATURES, 3)
    before = copy.deepcopy(model.state_dict())
    step = step_of(model, StepSettings(5, 16), weights=lambda taking: np.zeros(len(taking)))
    batches = Batches()
    result = step(0, 0.5, batches, batches)  # type: ignore[arg-type]
    assert result.loss.item() == 0.0
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_what_is_read_ahead_are_the_microbatches_of_the_own_virtual_ranks() -> None:
    model, samples = nn.Linear(FEATURES, 3), Samples(np.arange(14))
    whole = step_of(model, StepSettings(5, 3, 4))
    assert [one.ids.tolist() for one in whole.own_microbatches(samples)] == [
        [0, 1, 2], [3, 4, 5], [6], [7, 8, 9], [10, 11, 12], [13]
    ]  # fmt: skip
    second = step_of(model, StepSettings(5, 3, 4), strategy=DataParallel(Member(1, 2)))
    assert [one.ids.tolist() for one in second.own_microbatches(samples)] == [[7, 8, 9], [10, 11, 12], [13]]


def test_an_all_reduce_of_other_parameters_takes_the_place_of_the_first() -> None:
    step = step_of(nn.Linear(FEATURES, 3), StepSettings(5, 16, 2), strategy=DataParallel(Member(0, 2)))
    first = all_reduce_in(step)
    step._prepare_sums()
    assert all_reduce_in(step) is not first
    with pytest.raises(RuntimeError, match="after shutdown"):
        first._thread.submit(print)
