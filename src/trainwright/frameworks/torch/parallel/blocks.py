"""The blocks of parameters that a process updates, in tensors of whole vectors.

A vectorized kernel on a CPU may round the last elements of a tensor, which fill no vector, in another way
than the others (by a multiplication and an addition where vectors have one fused operation). So an update
would depend on how a parameter is divided. It does not where every tensor is filled up to whole
vectors, and where one thread goes through it: threads divide a tensor anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.errors import ModelError
from trainwright.frameworks.torch.state.layout import is_dense, is_divided, local, with_block

LANES = 64  # elements: two vectors of 512 bits of any dtype of weights


class Blocks:
    """The tensors that the optimizer updates in place of the parameters of a module.

    Of a `DTensor` it is the block of this process, of another parameter the parameter itself; where `fills`,
    a copy that is filled up to whole vectors, if it is not as long as some.

    Args:
        parameters: The parameters.
        fills: Whether the update must not depend on how they are divided.
        whole: The ids of those whose update is not one of element by element.

    Raises:
        ModelError: One of those is divided.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], *, fills: bool = False, whole: Collection[int] = ()
    ) -> None:
        if any(id(one) in whole and is_divided(one) for one in parameters):
            raise ModelError(
                "training.optimizer: it updates matrices as a whole, and the processes have parts of them; "
                "use one that updates element by element, such as adamw, or strategy: ddp without tensor"
            )
        self._held = {id(one): _held(one) for one in parameters}
        self._fills = fills
        self._whole = whole
        self._filled = {
            id(one): nn.Parameter(torch.zeros(-(-held.numel() // LANES) * LANES), one.requires_grad)
            for one in parameters
            if fills
            and one.device.type == "cpu"
            and id(one) not in whole
            and _fits(held := self._held[id(one)])
        }
        self._pairs = [
            (self._held[id(one)], self._filled[id(one)]) for one in parameters if id(one) in self._filled
        ]

    def held(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the block of a parameter in this process, which shares its memory."""
        return self._held.get(id(parameter), parameter)

    def updated(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return what the optimizer updates."""
        return self._filled.get(id(parameter), self.held(parameter))

    def outward(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        """Return a tensor of the optimizer's state, as `updated` has it, as one of the parameter."""
        updated, held = self.updated(parameter), self.held(parameter)
        if (held is parameter and updated is held) or value.shape != updated.shape:
            return value
        if updated is not held:
            value = value[: held.numel()].view(held.shape)
        return with_block(value, parameter) if is_divided(parameter) else value

    def inward(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        """Return a tensor of the optimizer's state, as `outward` gives it, as one of `updated`."""
        updated, held = self.updated(parameter), self.held(parameter)
        value = local(value)
        if updated is held or value.shape != held.shape:
            return value
        filled = value.new_zeros(updated.shape)
        filled[: held.numel()].view(held.shape).copy_(value)
        return filled

    def update(
        self, apply: Callable[[], object], groups: Sequence[Mapping[str, Any]]
    ) -> Callable[[], object]:
        """Return an update, made by `apply`, of the blocks.

        Args:
            apply: Updates what `updated` gives from its gradients; called under `no_grad`.
            groups: The groups of parameters of the optimizer; fused kernels give each thread whole vectors.
        """
        if not self._fills:
            return apply
        is_fused = all(
            group.get("fused") or all(id(one) in self._whole for one in group["params"]) for group in groups
        )
        if is_fused and not self._pairs:
            return apply

        def updated() -> None:
            pairs = self._pairs
            for held, filled in pairs:
                if held.grad is None:
                    filled.grad = None
                elif filled.grad is None:
                    filled.grad = torch.zeros_like(filled)
            live = [(held, filled) for held, filled in pairs if held.grad is not None]
            values = [filled[: held.numel()].view(held.shape) for held, filled in live]
            if live:
                torch._foreach_copy_(values, [held for held, _ in live])
                torch._foreach_copy_(
                    [_gradient(filled)[: held.numel()].view(held.shape) for held, filled in live],
                    [_gradient(held) for held, _ in live],
                )
            with _threads(None if is_fused else 1):
                apply()
            if live:
                torch._foreach_copy_([held for held, _ in live], values)

        return updated


def _gradient(block: nn.Parameter) -> Tensor:
    assert block.grad is not None
    return block.grad


def _held(parameter: nn.Parameter) -> nn.Parameter:
    if not is_divided(parameter):
        return parameter
    with torch.no_grad():
        return nn.Parameter(local(parameter), parameter.requires_grad)


def _fits(held: Tensor) -> bool:
    """Return whether a tensor is to be filled up: it is long enough for no whole number of vectors.

    A scalar is never divided; `inward` could not tell its moments from an optimizer's step counter.
    """
    is_open = held.dim() > 0 and held.numel() % LANES != 0
    return is_open and held.dtype == torch.float32 and is_dense(held) and held.is_contiguous()


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Let torch use a number of threads within the block; None: those that it uses anyway."""
    before = torch.get_num_threads()
    if number is None or before == number:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
