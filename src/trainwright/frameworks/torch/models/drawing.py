"""Initial weights drawn module by module: each from a stream of its own, whose key is the module's name.

So the weights depend neither on the order in which modules are made, nor on which of them a process has, nor
on how their parameters are divided: a process makes one module whole at a time, and keeps its blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from trainwright.digest import sha256_bytes
from trainwright.errors import ModelError
from trainwright.frameworks.support.torch_imports import skip_compiler_import
from trainwright.frameworks.torch.generators import drawing_from
from trainwright.frameworks.torch.state.layout import block_of, copy_into, is_expanded, local
from trainwright.order import INIT, stream_seed

# Gives the parameters and buffers that a module, of this name in its model, has itself their initial values.
# It may also set those of the modules within, after their own rule has.
Rule = Callable[[nn.Module, str], object]


class Drawn(nn.Module):
    """A model whose initial weights are drawn module by module; a base of the built-in ones."""

    def draw_parameters(self, module: nn.Module, name: str) -> None:  # noqa: ARG002 - for others
        """Give a module within this one its initial values; by default those of torch."""
        reset(module)

    def _draw_all(self) -> None:
        """Draw all weights from torch's generator, for those who make the model themselves."""
        with torch.no_grad():
            for name, module in _bottom_up(self):
                self.draw_parameters(module, name)


def reset(module: nn.Module) -> None:
    """Give a module the initial values that its own method says, by torch's convention for such methods."""
    method = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    if method is not None:
        method()


def undrawn(model: nn.Module, rule: Rule) -> list[str]:
    """Return the names of the parameters and buffers of a model that the rule does not set."""
    with _emptied(model) as (slots, asked):
        drawn = {slot.name for group in _groups(model, rule, slots, asked) for slot in group.slots}
    return [slot.name for slot in slots if slot.name not in drawn]


def draw(model: nn.Module, rule: Rule, seed: int, only: Collection[str] | None = None) -> None:
    """Draw the initial weights of a model, on the processor, and give each process its blocks.

    Args:
        model: The model; its tensors may be `DTensor`s.
        rule: How its modules are drawn.
        seed: The seed of the run.
        only: The names of the parameters and buffers to set; None: all that the rule sets.

    Raises:
        ModelError: The rule leaves elements of a tensor without a value.
    """
    before = torch.default_generator.get_state()
    try:
        with torch.no_grad(), _emptied(model) as (slots, asked):
            for group in _groups(model, rule, slots, asked):
                wanted = [slot for slot in group.slots if only is None or slot.name in only]
                if wanted:
                    _draw_group(group, rule, seed, wanted)
    finally:
        torch.default_generator.set_state(before)


class _Slot(NamedTuple):
    """A parameter or buffer where its module has it: `holder[key]`. `tensor` is the model's own."""

    name: str
    holder: dict[str, Any]
    key: str
    tensor: Tensor

    def put(self, values: Tensor) -> None:
        is_parameter = isinstance(self.tensor, nn.Parameter)
        self.holder[self.key] = nn.Parameter(values, requires_grad=False) if is_parameter else values


@dataclass
class _Group:
    """Modules that set tensors in common, in the order of their rules, and all tensors that they set."""

    modules: list[tuple[str, nn.Module]]
    slots: list[_Slot]


@contextmanager
def _emptied(model: nn.Module) -> Iterator[tuple[list[_Slot], list[int]]]:
    """Put tensors without memory in the place of all parameters and buffers.

    Returns:
        The places, but of a tensor that is in several the first alone, whose module draws it; and a list that
        gets the storages of parameters that were asked; see `_StandIn`.
    """
    asked: list[int] = []
    places = [
        _Slot(f"{prefix}.{key}" if prefix else key, holder, key, tensor)
        for prefix, module in model.named_modules()
        for holder in (module._parameters, module._buffers)
        for key, tensor in holder.items()
        if tensor is not None and not is_lazy(tensor)
    ]
    try:
        for slot in places:
            empty = torch.empty(slot.tensor.shape, dtype=slot.tensor.dtype, device="meta")
            slot.holder[slot.key] = empty
            if isinstance(slot.tensor, nn.Parameter):
                slot.holder[slot.key] = _StandIn(empty, requires_grad=False)
                slot.holder[slot.key].asked = asked
        yield list({id(slot.tensor): slot for slot in reversed(places)}.values())[::-1], asked
    finally:
        for slot in places:
            slot.holder[slot.key] = slot.tensor


def _bottom_up(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules of a model with their names, each after those within it."""
    return list(model.named_modules())[::-1]


def _groups(model: nn.Module, rule: Rule, slots: list[_Slot], asked: list[int]) -> list[_Group]:
    """Return what the rule sets, as calls of it with stand-ins show."""
    of_storage = {_storage(slot.holder[slot.key]): slot for slot in slots}
    groups: dict[str, _Group] = {}  # by the names of their tensors
    for name, module in _bottom_up(model):
        asked.clear()
        with torch.no_grad(), _Writes() as writes:
            rule(module, name)
        touched = dict.fromkeys((*writes.storages, *asked))
        found = [of_storage[storage] for storage in touched if storage in of_storage]
        if not found:
            continue
        within = {id(group): group for slot in found if (group := groups.get(slot.name))}.values()
        joined = _Group(
            [*(one for group in within for one in group.modules), (name, module)],
            list({slot.name: slot for slot in (*(s for g in within for s in g.slots), *found)}.values()),
        )
        groups |= dict.fromkeys((slot.name for slot in joined.slots), joined)
    return list({id(group): group for group in groups.values()}.values())


def _draw_group(group: _Group, rule: Rule, seed: int, wanted: list[_Slot]) -> None:
    held = [(slot, slot.holder[slot.key]) for slot in group.slots]
    try:
        for slot in group.slots:
            values = torch.empty(slot.tensor.shape, dtype=slot.tensor.dtype, device="cpu")
            slot.put(values.fill_(torch.nan) if values.is_floating_point() else values.zero_())
        for name, module in group.modules:
            key = int(sha256_bytes(name.encode())[:16], 16)
            with drawing_from([torch.default_generator], stream_seed(seed, INIT, key)):
                rule(module, name)
        for slot in wanted:
            _keep_block(slot)
    finally:
        for slot, stand_in in held:
            slot.holder[slot.key] = stand_in


def _keep_block(slot: _Slot) -> None:
    """Copy the elements of a whole tensor that this process has into the model's own."""
    whole: Tensor = slot.holder[slot.key].detach()
    if whole.is_floating_point() and bool(whole.sum().isnan()):
        raise ModelError(f"the initial values of {slot.name} are not all set: its rule leaves some out")
    if (place := block_of(slot.tensor)) is not None:
        spans = zip(place.offset, local(slot.tensor).shape, strict=True)
        whole = whole[tuple(slice(first, first + size) for first, size in spans)]
    copy_into(local(slot.tensor), whole)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class _StandIn(nn.Parameter):
    """A parameter without memory. It notes who asks whether it is one: `torch.nn.init` does before it writes.

    Attributes:
        asked: Gets the storage of each that was asked.
    """

    asked: list[int]

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        """Return that it is."""
        self.asked.append(_storage(self))
        return True


class _Writes(TorchDispatchMode):
    """Note the memory that operations write to, also through views and `data`; `storages` are in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        skip_compiler_import(type(self).__torch_dispatch__)
        self.storages: list[int] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call an operation, and note what it writes to."""
        given = dict(kwargs or {})
        for position, argument in enumerate(func._schema.arguments):
            value = args[position] if position < len(args) else given.get(argument.name)
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Tensor):
                self.storages.append(_storage(value))
                if is_expanded(value):  # in the place of what other stages of a pipeline have
                    return value
        return func(*args, **given)
