"""An update of blocks of parameters has the bits of that of the whole, for each optimizer that is elementwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainwright.config.schema import TrainingConfig
from trainwright.frameworks.torch.optim.build import build_optimizer, update_of, whole_parameters
from trainwright.frameworks.torch.parallel.blocks import Blocks
from trainwright.frameworks.torch.parallel.norms import row_squares
from trainwright.frameworks.torch.precision import Precision
from trainwright.frameworks.torch.state.optimizer import OptimizerState

SHAPES = [(33, 7), (1, 5), (3,), (1,), (5, 3, 3), (130, 16), ()]
CPU = torch.device("cpu")
Cut = Callable[[Tensor], Tensor]


def training(optimizer: str, **params: Any) -> TrainingConfig:
    return TrainingConfig.model_validate(
        {"optimizer": {"type": optimizer, "params": params}, "weight_decay": 0.01, "learning_rate": 0.003}
    )


def trained(config: TrainingConfig, cut: Cut, steps: int = 5, **how: Any) -> list[Tensor]:
    """Return what updates make of the blocks that `cut` takes of all parameters."""
    draws = torch.Generator().manual_seed(0)
    module = nn.ParameterList([nn.Parameter(cut(torch.randn(s, generator=draws))) for s in SHAPES])
    blocks = Blocks(list(module), **({"fills": True} | how))
    optimizer = build_optimizer(config, module, CPU, updated=blocks.updated)
    update = blocks.update(update_of(optimizer), optimizer.param_groups)
    for _ in range(steps):
        for parameter, shape in zip(module, SHAPES, strict=True):
            blocks.held(parameter).grad = cut(torch.randn(shape, generator=draws))
        with torch.no_grad():
            update()
    return [one.detach() for one in module]


def rows(number: int, processes: int) -> Cut:
    """Return a function that takes the rows of a process, as FSDP2 divides them; a scalar has none."""

    def cut(whole: Tensor) -> Tensor:
        if not whole.dim():
            return whole
        size = -(-len(whole) // processes)
        return whole[number * size : (number + 1) * size].clone()

    return cut


@pytest.mark.parametrize(
    ("optimizer", "params"),
    [
        *(
            (name, {})
            for name in ("adamw", "adam", "sgd", "rmsprop", "adagrad", "nadam", "radam", "adamax", "lion")
        ),
        ("sgd", {"momentum": 0.9}),
        ("sgd", {"momentum": 0.9, "nesterov": True}),
        ("rmsprop", {"momentum": 0.9, "centered": True}),
    ],
)
def test_blocks_are_updated_like_the_whole(optimizer: str, params: dict[str, Any]) -> None:
    """Also those of one row, of few elements, and of none."""
    config = training(optimizer, **params)
    whole = trained(config, lambda one: one)
    for processes in (2, 4):
        parts = [trained(config, rows(number, processes)) for number in range(processes)]
        for index, expected in enumerate(whole):
            found: Sequence[Tensor] = [part[index] for part in parts]
            assert torch.equal(torch.cat(list(found)) if expected.dim() else found[0], expected), index


@pytest.mark.parametrize("optimizer", ["adamw", "rmsprop", "lion"])
@pytest.mark.parametrize("fills", [True, False])
def test_copies_of_blocks_are_updated_like_these(optimizer: str, fills: bool) -> None:
    config = training(optimizer)
    expected = trained(config, lambda one: one, fills=fills)
    found = trained(config, lambda one: one, fills=fills, offloads=True)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_the_state_of_a_scalar_is_restored() -> None:
    """Its moments have the shape of an optimizer's step counter."""
    config = training("adamw")
    states: list[dict[str, Tensor]] = []
    for restored in (False, True):
        module = nn.ParameterList([nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.ones(3))])
        blocks = Blocks(list(module), fills=True)
        optimizer = build_optimizer(config, module, CPU, updated=blocks.updated)
        update = blocks.update(update_of(optimizer), optimizer.param_groups)
        state = OptimizerState(optimizer, module, Precision("fp32", CPU), blocks=blocks)
        if restored:
            state.load({name: one.clone() for name, one in states[0].items()}, {})
        for _ in range(2 - restored):
            for parameter in module:
                blocks.held(parameter).grad = torch.full_like(parameter, 0.3)
            with torch.no_grad():
                update()
            states.append({name: one.clone() for name, one in state.tensors().items()})
    once, twice, again = states
    assert once.keys() == again.keys()
    assert {name: again[name].tolist() for name in again} == {name: twice[name].tolist() for name in twice}


def test_squares_of_a_row_do_not_depend_on_other_rows() -> None:
    """Threads would divide a single row."""
    gradient = torch.randn(4, 100_003, generator=torch.Generator().manual_seed(0))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        apart = torch.cat([row_squares(row) for row in gradient.split(1)])
        assert torch.equal(row_squares(gradient), apart)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0,), (0, 4, 2)])
def test_an_empty_block_has_no_squares(shape: tuple[int, ...]) -> None:
    assert row_squares(torch.zeros(shape)).shape == (shape[0], 1)
    assert not row_squares(torch.zeros(shape)).any()


def test_a_stage_has_the_matrices_that_the_whole_model_gives_muon() -> None:
    """The last linear layer of a stage is no output of the model."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    config = training("muon")
    whole = whole_parameters(config, model)
    assert whole == {"0.weight", "1.weight"}
    optimizer: Any = build_optimizer(config, model[:2], CPU, whole=whole)
    (muon, _) = optimizer.parts
    assert {id(one) for group in muon.param_groups for one in group["params"]} == {
        id(model[0].weight),
        id(model[1].weight),
    }
