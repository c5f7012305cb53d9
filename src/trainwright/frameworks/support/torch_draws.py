"""Random numbers drawn from generators of one's own, where code asks for torch's default ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainwright.frameworks.support.torch_imports import skip_compiler_import

_SEEDED = torch.Tag.nondeterministic_seeded


class OwnGenerators(TorchDispatchMode):
    """Let the code inside draw from generators of its own, with the numbers that the default ones would give.

    A dispatch mode holds for one thread: what other threads draw meanwhile is not touched. The few operations
    that take no generator get the default one, in the state of ours, and its state is put back.

    Attributes:
        drew: Whether the code has drawn anything.
        borrowed: Names of the operations that took the default generator.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        skip_compiler_import(type(self).__torch_dispatch__)
        self._seed = seed
        self._generators: dict[str, torch.Generator] = {}
        self.drew = False
        self.borrowed: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call an operation, with our generator if it draws from a default one."""
        options = dict(kwargs or {})
        if not _draws(func, args, options):
            return func(*args, **options)
        self.drew = True
        generator = self._generator(_device(func, args, options))
        names = [argument.name for argument in func._schema.arguments]
        if "generator" in names:
            position = names.index("generator")
            return func(*args[:position], *args[position + 1 :], **options, generator=generator)
        if (other := _with_generator(func)) is not None:
            return other(*args, **options, generator=generator)
        self.borrowed.add(str(func))
        return _borrowing(generator, lambda: func(*args, **options))

    def _generator(self, device: torch.device) -> torch.Generator:
        key = str(device)
        if key not in self._generators:
            generator = torch.Generator(device)
            # The CPU's generator takes 32 bits of a seed, CUDA's takes 64; see `step.seed_generators`.
            generator.manual_seed(self._seed & 0xFFFFFFFF if device.type == "cpu" else self._seed)
            self._generators[key] = generator
        return self._generators[key]


def _draws(func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Return whether a call may draw from a default generator; attention without dropout does not."""
    return (
        _SEEDED in func.tags
        and _given(func, args, options, "generator") is None
        and not (_has(func, "dropout_p") and not _given(func, args, options, "dropout_p"))
    )


def _has(func: Any, name: str) -> bool:
    return any(argument.name == name for argument in func._schema.arguments)


def _given(func: Any, args: tuple[Any, ...], options: Mapping[str, Any], name: str) -> Any:
    """Return an argument of a call, by position or by name; None if it has none."""
    names = [argument.name for argument in func._schema.arguments]
    position = names.index(name) if name in names else len(args)
    return args[position] if position < len(args) else options.get(name)


def _device(func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> torch.device:
    """Return the device on which a call draws."""
    if (device := _given(func, args, options, "device")) is not None:
        return torch.device(device)
    tensors = [value for value in (*args, *options.values()) if isinstance(value, torch.Tensor)]
    return tensors[0].device if tensors else torch.get_default_device()


def _with_generator(func: Any) -> Any:
    """Return the overload of an operation that takes the same arguments and a generator."""
    expected = [argument.name for argument in func._schema.arguments]
    for name in func.overloadpacket.overloads():
        overload = getattr(func.overloadpacket, name)
        names = [argument.name for argument in overload._schema.arguments]
        if "generator" in names and [one for one in names if one != "generator"] == expected:
            return overload
    return None


def _borrowing(own: torch.Generator, call: Callable[[], Any]) -> Any:
    """Call an operation that draws from the default generator, which gets the state of `own` meanwhile."""
    default = torch.default_generator
    if own.device.type == "cuda":
        default = torch.cuda.default_generators[own.device.index or 0]
    before = default.get_state()
    default.set_state(own.get_state())
    try:
        result = call()
        own.set_state(default.get_state())
        return result
    finally:
        default.set_state(before)
