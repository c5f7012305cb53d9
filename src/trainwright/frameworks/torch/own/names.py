"""The methods by which a module says how it is trained, and which of them are its own."""

from __future__ import annotations

from torch import nn

_LIGHTNING = ("lightning.", "pytorch_lightning.")


def is_lightning(module: nn.Module) -> bool:
    """Return whether a module is a `LightningModule`, without importing Lightning."""
    return any(one.__name__ == "LightningModule" and _is_theirs(one) for one in type(module).__mro__)


def is_given(module: nn.Module, method: str) -> bool:
    """Return whether the user has written a method; Lightning's own ones do nothing."""
    if not callable(vars(module).get(method, getattr(type(module), method, None))):
        return False
    owner = next((one for one in type(module).__mro__ if method in vars(one)), None)
    return owner is None or not _is_theirs(owner)


def _is_theirs(owner: type) -> bool:
    return owner.__module__.startswith(_LIGHTNING)
