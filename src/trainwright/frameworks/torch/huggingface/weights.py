"""The weights of a model of transformers: the rule of those that are drawn, and a folder's, read in parts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from trainwright.errors import ModelError
from trainwright.frameworks.torch.huggingface.build import check_loaded
from trainwright.frameworks.torch.huggingface.module import base_of, quiet
from trainwright.frameworks.torch.huggingface.source import Source
from trainwright.frameworks.torch.models.drawing import Rule
from trainwright.frameworks.torch.state.layout import block_of, local

_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_COMPARED = 1 << 22  # elements of two tensors that are compared at once


def rule_of(model: nn.Module) -> Rule:
    """Return how transformers draws the modules of a model: each as the model right around it says."""
    library: Any = base_of(model)
    assert library is not None, "it is a model of transformers"
    base_class = next(one for one in type(library).__mro__ if one.__name__ == "PreTrainedModel")
    models: dict[int, Any] = {}

    def visit(module: nn.Module, around: Any) -> None:
        models[id(module)] = around = module if isinstance(module, base_class) else around
        for child in module.children():
            visit(child, around)

    visit(model, library)
    return lambda module, _: models[id(module)]._init_weights(module)


class _Saved(NamedTuple):
    """A tensor in a file."""

    path: Path
    key: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class SavedWeights:
    """The weights in a folder of transformers, under the names that a model has for them.

    Attributes:
        source: The folder.
        tensors: The saved tensors by the names of the model's.
        missing: The names of the model's parameters and persistent buffers that the folder lacks.
        unexpected: The names of the tensors that the model does not have.
        why_whole: Why the weights cannot be read in parts; empty if they can.
    """

    source: Source
    tensors: Mapping[str, _Saved] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    unexpected: frozenset[str] = frozenset()
    why_whole: str = ""

    @classmethod
    def of(cls, model: Any, source: Source) -> SavedWeights:
        """Find the tensors of a model, which may be on the device `meta`, in a folder.

        Raises:
            ModelError: A file is damaged.
        """
        try:
            saved = dict(_saved_in(source.folder))
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise ModelError(f"model.path: the weights in {source.folder} cannot be read: {error}") from error
        own: dict[str, Tensor] = model.state_dict(keep_vars=True)
        found, unexpected, converted = _renamed(model, saved, own)
        if converted:
            return cls(source, why_whole=f"transformers converts its weights, such as {converted}")
        by_tensor: dict[int, list[str]] = {}  # a tied parameter has several names
        for name in (name for name in own if name in found):
            by_tensor.setdefault(id(own[name]), []).append(name)
        for first, *others in by_tensor.values():
            if any(not _are_equal(found[first], found[other]) for other in others):
                return cls(source, why_whole=f"the folder has two tensors for {first}, which differ")
        differing = sorted(name for name, one in found.items() if one.shape != tuple(own[name].shape))
        return cls(
            source,
            {names[0]: found[names[0]] for names in by_tensor.values()},
            frozenset(name for name, one in own.items() if id(one) not in by_tensor),
            frozenset(unexpected),
            f"{differing[0]} has another shape in the folder" if differing else "",
        )

    def check(self, model: Any) -> None:
        """Check that the weights in the folder, which are about to be read, are those of the model.

        Raises:
            ModelError: There are none of them.
        """
        info = SimpleNamespace(missing_keys=set(self.missing), unexpected_keys=set(self.unexpected))
        model._adjust_missing_and_unexpected_keys(info)  # leaves out those that do not matter
        check_loaded(model, self.source, (), info.missing_keys, info.unexpected_keys)

    def read(self, model: nn.Module) -> None:
        """Read what this process has of the tensors into a model, in the types that it has.

        Raises:
            ModelError: A file is damaged.
        """
        own = model.state_dict(keep_vars=True)
        for name, (path, key, _) in self.tensors.items():
            if name not in own:  # another stage of a pipeline has it
                continue
            try:  # a file that stays open keeps what was read of it in memory
                with safe_open(path, "pt") as file, torch.no_grad():
                    _read_block(file.get_slice(key), own[name])
            except (OSError, SafetensorError) as error:
                raise ModelError(f"model.path: {path} cannot be read: {error}") from error

    def unsaved(self, model: nn.Module) -> frozenset[str]:
        """Return the names of the buffers that no folder holds: the model computes them."""
        saved = model.state_dict().keys()
        return frozenset(name for name, _ in model.named_buffers() if name not in saved)


def _saved_in(folder: Path) -> Iterator[tuple[str, _Saved]]:
    """Yield the tensors of a folder by their names in it."""
    names = [_FILE]
    if not (folder / _FILE).is_file() and (folder / _INDEX).is_file():
        names = sorted(set(json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
    for name in names:
        path = folder / Path(name).name  # never outside of the folder
        with safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118 - not a mapping
                yield key, _Saved(path, key, tuple(file.get_slice(key).get_shape()))


def _renamed(
    model: Any, saved: Mapping[str, _Saved], own: dict[str, Tensor]
) -> tuple[dict[str, _Saved], list[str], str]:
    """Return the saved tensors by the model's names, the names that it does not have, and one to convert."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    with quiet():
        transforms = get_model_conversion_mapping(model)
    renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    found: dict[str, _Saved] = {}
    unexpected: list[str] = []
    for key, one in saved.items():
        name, pattern = rename_source_key(key, renamings, converters, model.base_model_prefix, own)
        if name not in own and key in own:
            name, pattern = rename_source_key(key, [], [], model.base_model_prefix, own)
        if pattern is not None:
            return {}, [], key
        if name in own:
            found[name] = one
        else:
            unexpected.append(name)
    return found, unexpected, ""


def _read_block(saved: Any, tensor: Tensor) -> None:
    """Copy this process's block of a saved tensor, or all of it, into a live one."""
    target, place = local(tensor), block_of(tensor)
    offset = (0,) * target.dim() if place is None else place.offset
    spans = tuple(slice(first, first + size) for first, size in zip(offset, target.shape, strict=True))
    if target.numel():
        target.copy_(saved[spans] if spans else saved[...])


def _are_equal(one: _Saved, other: _Saved) -> bool:
    """Return whether two saved tensors have the same values; some rows of them are in memory at a time."""
    if one.shape != other.shape:
        return False
    rows = max(1, _COMPARED // max(1, torch.Size(one.shape[1:]).numel()))
    with safe_open(one.path, "pt") as file, safe_open(other.path, "pt") as beside:
        a, b = file.get_slice(one.key), beside.get_slice(other.key)
        return all(
            torch.equal(a[start : start + rows], b[start : start + rows])
            for start in range(0, one.shape[0] if one.shape else 0, rows)
        )
