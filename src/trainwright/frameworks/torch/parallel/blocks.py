"""The blocks of parameters that a process updates, in tensors of whole vectors.

A vectorized kernel on a CPU may round the last elements of a tensor, which fill no vector, in another way
than the others (by a multiplication and an addition where vectors have one fused operation). So an update
would depend on how a parameter is divided. It does not where every tensor is filled up to whole
vectors, and where one thread goes through it: threads divide a tensor anywhere.

The update may also be made on the CPU, with the optimizer's state, wherever the parameters are (Ren et al.,
"ZeRO-Offload", 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.errors import ModelError
from trainwright.frameworks.torch.state.layout import is_divided, local, with_block

LANES = 64  # elements: two vectors of 512 bits of any dtype of weights


class Blocks:
    """The tensors that the optimizer updates in place of the parameters of a module.

    Of a `DTensor` it is the block of this process, of another parameter the parameter itself; where `fills`,
    a copy that is filled up to whole vectors, if it is not as long as some; where `offloads`, a copy on the
    CPU.

    Args:
        parameters: The parameters.
        fills: Whether the update must not depend on how they are divided.
        whole: The ids of those whose update is not one of element by element.
        offloads: Whether the update is made on the CPU.

    Raises:
        ModelError: One of those is divided.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        fills: bool = False,
        whole: Collection[int] = (),
        offloads: bool = False,
    ) -> None:
        if any(id(one) in whole and is_divided(one) for one in parameters):
            raise ModelError(
                "training.optimizer: it updates matrices as a whole, and the processes have parts of them; "
                "use one that updates element by element, such as adamw, or strategy: ddp without tensor"
            )
        self._held = {id(one): _held(one) for one in parameters}
        self._fills, self._offloads = fills, offloads
        self._whole = whole
        self._copies: dict[int, nn.Parameter] = {}
        for one in parameters:
            held, is_on_cpu = self._held[id(one)], offloads or one.device.type == "cpu"
            if fills and is_on_cpu and id(one) not in whole and _fits(held):
                filled = torch.zeros(-(-held.numel() // LANES) * LANES)
                self._copies[id(one)] = nn.Parameter(filled, one.requires_grad)
            elif offloads:
                copy = torch.zeros_like(held, device="cpu", requires_grad=False)
                self._copies[id(one)] = nn.Parameter(copy, one.requires_grad)
        self._pairs = [
            (self._held[id(one)], self._copies[id(one)]) for one in parameters if id(one) in self._copies
        ]

    def held(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the block of a parameter in this process, which shares its memory."""
        return self._held.get(id(parameter), parameter)

    def updated(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return what the optimizer updates."""
        return self._copies.get(id(parameter), self.held(parameter))

    def outward(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        """Return a tensor of the optimizer's state, as `updated` has it, as one of the parameter."""
        updated, held = self.updated(parameter), self.held(parameter)
        if (held is parameter and updated is held) or value.shape != updated.shape:
            return value
        value = _shaped(value, held)
        return with_block(value, parameter) if is_divided(parameter) else value

    def inward(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        """Return a tensor of the optimizer's state, as `outward` gives it, as one of `updated`."""
        updated, held = self.updated(parameter), self.held(parameter)
        value = local(value)
        if self._offloads:
            value = value.cpu()
        if updated.shape == held.shape or value.shape != held.shape:
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
        if not self._fills and not self._offloads:
            return apply
        is_fused = all(
            group.get("fused") or all(id(one) in self._whole for one in group["params"]) for group in groups
        )
        if is_fused and not self._pairs:
            return apply

        def updated() -> None:
            pairs = self._pairs
            for held, copy in pairs:
                if held.grad is None:
                    copy.grad = None
                elif copy.grad is None:
                    copy.grad = torch.zeros_like(copy)
            live = [(held, copy) for held, copy in pairs if held.grad is not None]
            values = [_shaped(copy, held) for held, copy in live]
            if live:
                torch._foreach_copy_(values, [held for held, _ in live])
                torch._foreach_copy_(
                    [_shaped(_gradient(copy), held) for held, copy in live],
                    [_gradient(held) for held, _ in live],
                )
            with _threads(1 if self._fills and not is_fused else None):
                apply()
            if live:
                torch._foreach_copy_([held for held, _ in live], values)

        return updated


def _shaped(value: Tensor, held: Tensor) -> Tensor:
    """Return the part of a tensor, of the shape of a block or filled up, that belongs to the block."""
    return value if value.shape == held.shape else value[: held.numel()].view(held.shape)


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
    return is_open and held.dtype == torch.float32 and held.is_contiguous()


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
