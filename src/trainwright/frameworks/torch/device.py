"""The device that a config names, and the libraries that this package needs; torch is imported when asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.require import require

if TYPE_CHECKING:
    import torch


def require_libraries() -> None:
    """Check that the libraries that the other files of this package import are installed.

    Raises:
        MissingExtraError: One is not.
    """
    require("torch", "torch")
    require("safetensors", "torch")


def device_named(name: str) -> torch.device:
    """Return the device that `training.device` means here; see `process.device_of`."""
    require_libraries()
    from trainwright.frameworks.torch.process import device_of

    return device_of(name)
