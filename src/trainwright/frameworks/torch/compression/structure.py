"""The structure of a compressed module: which of its layers are replaced, pruned or narrower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainwright.errors import ModelError
from trainwright.frameworks.torch.compression.layers import LAYERS

VALUES, MASK = "_values", "_mask"  # ends of the names of what is kept of a pruned weight


def compress_structure(module: nn.Module, structure: Mapping[str, Any]) -> None:
    """Give a module, whose weights are about to be loaded, the structure of a compressed one.

    Args:
        module: The module; its layers are replaced in place.
        structure: `narrowed`, the shapes of the weights of layers that have lost channels; `layers`, the
            schemes of those that are compressed; `pruned`, those whose zeros are not in the file.

    Raises:
        ModelError: The module has no such layers.
    """
    try:
        for name, shape in structure.get("narrowed", {}).items():
            narrow(module.get_submodule(name), shape)
        for name, scheme in structure.get("layers", {}).items():
            replace_layer(module, name, LAYERS[scheme](module.get_submodule(name)))
        for name in structure.get("pruned", ()):
            module.get_submodule(name).register_load_state_dict_pre_hook(_expand)
    except (AttributeError, KeyError, ValueError) as error:
        raise ModelError(f"the model is not the one that was compressed: {error}") from error


def replace_layer(module: nn.Module, name: str, layer: nn.Module) -> None:
    """Put another layer in the place of one."""
    parent, _, child = name.rpartition(".")
    setattr(module.get_submodule(parent), child, layer.train(module.training))


def narrow(layer: nn.Module, shape: list[int]) -> None:
    """Give a layer fewer channels: a weight of this shape, and a bias and statistics that fit it."""
    for name, tensor in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]:
        if not tensor.dim():
            continue
        empty = tensor.new_zeros(shape if name == "weight" else shape[:1])
        is_parameter = isinstance(tensor, nn.Parameter)
        setattr(layer, name, nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty)
    sized: Any = layer
    if len(shape) == 1:
        sized.num_features = shape[0]
    elif isinstance(layer, nn.Conv2d):
        sized.out_channels, sized.in_channels = shape[:2]
    else:
        sized.out_features, sized.in_features = shape


def packed(weight: Tensor) -> dict[str, Tensor]:
    """Return what a file keeps of a pruned weight: the values that are not zero, and a bit for each place."""
    flat = weight.reshape(-1)
    kept = flat != 0
    bits = torch.from_numpy(np.packbits(kept.numpy()))
    return {VALUES: flat[kept], MASK: bits}


def _expand(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Put the zeros back into the weight of a pruned layer, before it is loaded."""
    name = f"{prefix}weight"
    values, bits = state.pop(name + VALUES, None), state.pop(name + MASK, None)
    if values is None or bits is None:
        return  # it comes whole
    weight = torch.zeros_like(module.weight, device="cpu", requires_grad=False)  # type: ignore[arg-type]
    kept = np.unpackbits(bits.numpy(), count=weight.numel()).astype(np.bool_)
    weight.view(-1)[torch.from_numpy(kept)] = values
    state[name] = weight
