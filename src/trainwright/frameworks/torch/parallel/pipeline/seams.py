"""Seams: what stands in the place of blocks while one stage of a model computes.

The model's own forward pass runs in each stage, and finds in the place of a block what the stage needs there:
blocks of earlier stages give back their input, the first block of the stage gets the hidden state that the
stage before has computed, and the first block of the next stage ends the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, NoReturn

from torch import Tensor, nn

from trainwright.errors import ModelError


class Places:
    """The entries of containers by which a model finds its blocks.

    Args:
        module: The model.
        names: The names of the blocks.
    """

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        self.names = names
        pairs = [(name.rpartition(".")[0], name.rpartition(".")[2]) for name in names]
        self._entries = [(module.get_submodule(parent)._modules, leaf) for parent, leaf in pairs]

    def __getitem__(self, index: int) -> nn.Module:
        entries, leaf = self._entries[index]
        module = entries[leaf]
        assert module is not None
        return module

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, index: int, module: nn.Module) -> None:
        """Put a module in the place of a block."""
        entries, leaf = self._entries[index]
        entries[leaf] = module

    @contextmanager
    def replaced(self, modules: Mapping[int, nn.Module]) -> Iterator[None]:
        """Put modules in the place of some blocks for as long as the context lasts."""
        before = {index: self[index] for index in modules}
        for index, module in modules.items():
            self.put(index, module)
        try:
            yield
        finally:
            for index, module in before.items():
                self.put(index, module)


class Seam(nn.Module):
    """A module in the place of a block, with all other attributes of the block.

    Args:
        block: The block, which does not become a part of this module.
        act: What is called instead of it: with the block and its arguments.
    """

    def __init__(self, block: nn.Module, act: Callable[..., Any]) -> None:
        super().__init__()
        self.training = block.training
        self.__dict__["block"] = block
        self._act = act

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call what stands in for the block."""
        return self._act(self.__dict__["block"], *inputs, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["block"], name)


class StageEnd(BaseException):
    """The end of a stage: it leaves the model's forward pass, through whatever the model catches.

    Args:
        hidden: The hidden state that the next stage begins with.
    """

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


def skip(items: int) -> Callable[..., Any]:
    """Return what gives back a block's first argument, in a tuple of so many items, or alone with 0."""

    def act(block: nn.Module, *inputs: Any, **named: Any) -> Any:  # noqa: ARG001 - it is not called
        hidden = first_argument(inputs, named)
        return (hidden, *[None] * (items - 1)) if items else hidden

    return act


def leave(block: nn.Module, *inputs: Any, **named: Any) -> NoReturn:  # noqa: ARG001 - it is not called
    """End a stage before this block."""
    raise StageEnd(first_argument(inputs, named))


def enter(hidden: Callable[[], Tensor]) -> Callable[..., Any]:
    """Return what calls a block with another first argument."""

    def act(block: nn.Module, *inputs: Any, **named: Any) -> Any:
        if inputs:
            return block(hidden(), *inputs[1:], **named)
        return block(**{**named, next(iter(named)): hidden()})

    return act


def ended_by_stages(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a model's forward pass, which returns the hidden state where a stage has ended it.

    So what is around the model's forward pass, as the hooks of FSDP2, gets an output in any case.
    """

    @wraps(forward)
    def compute(*inputs: Any, **named: Any) -> Any:
        try:
            return forward(*inputs, **named)
        except StageEnd as end:
            return end.hidden.contiguous()

    return compute


def first_argument(inputs: Sequence[Any], named: Mapping[str, Any]) -> Tensor:
    """Return the first argument of a block, by position or by name, which is the hidden state.

    Raises:
        ModelError: It is no tensor of floating-point numbers.
    """
    first = inputs[0] if inputs else next(iter(named.values()), None)
    if not isinstance(first, Tensor) or not first.is_floating_point():
        kind = first.dtype if isinstance(first, Tensor) else type(first).__name__
        raise ModelError(
            "a stage of a pipeline begins with a block whose first argument is the hidden state, a tensor of "
            f"floating-point numbers, not {kind}"
        )
    return first
