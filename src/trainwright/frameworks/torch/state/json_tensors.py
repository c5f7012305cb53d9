"""JSON values as tensors of bytes, so that a safetensors file can hold them."""

from __future__ import annotations

import json
from typing import Any

import torch


def to_tensor(value: Any) -> torch.Tensor:
    """Return the JSON text of a value as a (bytes,) uint8 tensor."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def from_tensor(tensor: torch.Tensor) -> Any:
    """Return the value whose JSON text a (bytes,) uint8 tensor holds."""
    return json.loads(tensor.numpy().tobytes())


def is_json(value: Any) -> bool:
    """Return whether JSON gives back the same value."""
    if type(value) is list:
        return all(is_json(part) for part in value)
    if type(value) is dict:
        return all(type(key) is str and is_json(part) for key, part in value.items())
    return value is None or type(value) in (bool, int, float, str)
