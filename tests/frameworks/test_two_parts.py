"""The two parts of a backward pass together do what a whole one does, and no part does what is the other's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from staged_runs import Case, Run
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from trainwright.errors import ModelError
from trainwright.frameworks.torch.parallel.pipeline.schedule import ZERO_BUBBLE
from trainwright.frameworks.torch.parallel.pipeline.two_parts import backward_input

Weights = dict[str, Tensor]
Compute = Callable[[Tensor, Weights], Tensor]


class _Counted(torch.autograd.Function):
    """The identity, which counts its backward passes."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        _Counted.calls += 1
        return gradient * 1.1


def _identity(value: Tensor) -> Tensor:
    result: Tensor = _Counted.apply(value)
    return result


def _block(hidden: Tensor, w: Weights) -> Tensor:
    """A normalization, two layers and a residual: (rows, 8) -> (rows, 8)."""
    inner = functional.layer_norm(hidden, (8,), w["gain"], w["shift"])
    inner = functional.gelu(functional.linear(inner, w["up"], w["bias"]))
    return hidden + functional.dropout(_identity(functional.linear(inner, w["down"])), 0.0)


def _twice(hidden: Tensor, w: Weights) -> Tensor:
    """One of the weights has the second use on the way from the first one."""
    return functional.linear(_block(_block(hidden, {**w, "up": w["up"] * 2}), w), w["once"])


def _cast(hidden: Tensor, w: Weights) -> Tensor:
    """Parallel uses of what is made of a weight."""
    half = w["once"].to(torch.bfloat16)
    return (functional.linear(hidden.to(torch.bfloat16), half) + hidden.to(torch.bfloat16) @ half).float()


def _apart(hidden: Tensor, w: Weights) -> Tensor:
    """Weights that reach the output without the hidden state."""
    return functional.linear(hidden, w["once"]) + (w["gain"] * w["shift"]).tanh()


def _hooked(hidden: Tensor, w: Weights) -> Tensor:
    """Hooks of tensors, which change gradients."""
    inner = functional.linear(hidden, w["once"])
    inner.register_hook(lambda gradient: gradient * 3)
    return functional.linear(inner.tanh(), w["square"])


def _detached(hidden: Tensor, w: Weights) -> Tensor:
    """No way to the hidden state."""
    return functional.linear(hidden.detach(), w["once"], w["gain"]).tanh()


def _ignored(hidden: Tensor, w: Weights) -> Tensor:
    """A second output of an operation that nothing uses."""
    first, _ = functional.linear(hidden, w["double"]).chunk(2, -1)
    return first


CASES: list[Compute] = [_block, _twice, _cast, _apart, _hooked, _detached, _ignored]


def _weights() -> Weights:
    torch.manual_seed(0)
    sizes = {"gain": (8,), "shift": (8,), "up": (16, 8), "bias": (16,), "down": (8, 16)}
    sizes |= {"once": (8, 8), "square": (8, 8), "double": (16, 8)}
    return {name: torch.randn(size).requires_grad_() for name, size in sizes.items()}


def _taken(weights: Weights) -> Weights:
    found = {name: one.grad for name, one in weights.items() if one.grad is not None}
    for one in weights.values():
        one.grad = None
    return found


def _inputs(count: int) -> list[tuple[Tensor, Tensor]]:
    """The hidden state and the gradient of the output of some microbatches, (5, 8) each."""
    torch.manual_seed(1)
    return [(torch.randn(5, 8).requires_grad_(), torch.randn(5, 8)) for _ in range(count)]


@pytest.mark.parametrize("compute", CASES)
@pytest.mark.parametrize("is_hooked", [False, True])
def test_two_parts_have_the_bits_of_a_whole_pass(compute: Compute, is_hooked: bool) -> None:
    """Of three microbatches, whose gradients of weights are added up after all first parts."""
    weights = _weights()
    if is_hooked:
        for one in weights.values():
            one.register_hook(lambda gradient: gradient * 0.3)
    whole = []
    for hidden, gradient in _inputs(3):
        compute(hidden, weights).backward(gradient)
        whole.append(hidden.grad)
    wanted = _taken(weights)
    later, found = [], []
    for hidden, gradient in _inputs(3):
        later.append(backward_input(compute(hidden, weights), gradient, hidden))
        found.append(hidden.grad)
        assert not _taken(weights), "the first part adds nothing to the gradients of weights"
    for one in later:
        one.add()
    assert [None if one is None else one.tolist() for one in found] == [
        None if one is None else one.tolist() for one in whole
    ]
    got = _taken(weights)
    assert {name: one.tolist() for name, one in got.items()} == {n: g.tolist() for n, g in wanted.items()}
    assert wanted


def test_the_second_part_goes_through_nothing_again() -> None:
    """Neither through what lies between the layers, nor on to the hidden state."""
    weights, ((hidden, gradient),) = _weights(), _inputs(1)
    output = _block(_block(hidden, weights), weights)
    _Counted.calls = 0
    later = backward_input(output, gradient, hidden)
    assert _Counted.calls == 2
    before = hidden.grad
    later.add()
    assert _Counted.calls == 2
    assert hidden.grad is before


def test_a_loss_has_no_gradient() -> None:
    weights, ((hidden, _),) = _weights(), _inputs(1)
    _block(hidden, weights).square().mean().backward()
    wanted, back = _taken(weights), hidden.grad
    hidden.grad = None
    backward_input(_block(hidden, weights).square().mean(), None, hidden).add()
    assert back is not None
    assert hidden.grad is not None
    assert torch.equal(hidden.grad, back)
    assert all(torch.equal(one, wanted[name]) for name, one in _taken(weights).items())


def test_what_computes_activations_again_is_refused() -> None:
    """The model calls torch.utils.checkpoint itself: with each operation, all would be computed again."""
    weights, ((hidden, gradient),) = _weights(), _inputs(1)
    output = checkpoint(_block, hidden, weights, use_reentrant=True)
    with pytest.raises(ModelError, match=r"distributed\.schedule: zero_bubble cannot divide"):
        backward_input(output, gradient, hidden)
    run = Run(Case(schedule=ZERO_BUBBLE))
    block: Any = run.module.get_submodule("blocks.3")
    forward = block.forward

    def again(*inputs: Any) -> Any:
        return checkpoint(forward, *inputs, use_reentrant=False)

    block.forward = again
    with pytest.raises(RuntimeError, match=r"distributed\.schedule: zero_bubble cannot divide"):
        run.train()


def test_a_stage_that_is_frozen_has_no_second_part() -> None:
    run = Run(Case(schedule=ZERO_BUBBLE))
    plain = Run(Case())
    for one in (run, plain):
        for name, parameter in one.module.named_parameters():
            parameter.requires_grad_(requires_grad=name.startswith(("blocks.1.", "blocks.3.")))
    assert run.train() == plain.train()
    ours, theirs = dict(run.module.named_parameters()), dict(plain.module.named_parameters())
    assert all(torch.equal(one, theirs[name]) for name, one in ours.items())
