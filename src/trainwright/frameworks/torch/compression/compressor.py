"""Compress the modules of runs: fewer bits, fewer weights, fewer channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from trainwright.datasets.base import Split
from trainwright.errors import InputError
from trainwright.frameworks.base import WEIGHTS_FILE, Compressed, ModelInputs
from trainwright.frameworks.torch.compression import channels
from trainwright.frameworks.torch.compression.layers import LAYERS, CompressedLayer, Range, Source, Values
from trainwright.frameworks.torch.compression.structure import packed, replace_layer
from trainwright.frameworks.torch.model import opened
from trainwright.frameworks.torch.network import Network
from trainwright.frameworks.torch.state.json_tensors import to_tensor
from trainwright.frameworks.torch.state.snapshot import Owned, TorchSnapshot
from trainwright.frameworks.torch.state.training import COMPRESSION, MODULE_FILE, saved_compression
from trainwright.records.compression import LayerRecord, Recipe
from trainwright.require import require

_KINDS = (nn.Linear, nn.Conv2d, nn.Embedding)
_ANYWHERE = ("fp16", "bf16", "fp8")  # the other schemes have kernels of the CPU


def compress(inputs: ModelInputs, folder: Path, recipe: Recipe, rows: Split, target: Path) -> Compressed:
    """Compress the weights in a folder; see `Framework.compress`."""
    if saved_compression(folder) is not None:
        raise InputError("the run is compressed already: compress its parent")
    network, state = opened(inputs, folder)
    network.module.eval()
    if network.device.type != "cpu" and recipe.quantize not in (None, *_ANYWHERE):
        raise InputError(
            f"{recipe.quantize} has kernels for the CPU only, and the run was trained on {network.device}; "
            f"there are {', '.join(_ANYWHERE)}"
        )
    work = _Work(network, recipe, _observed(network, rows), rows)
    if not work.ranges:
        raise InputError("the model has no linear, convolution or embedding layer that can be compressed")
    if recipe.layers is not None and (missing := set(recipe.layers) - work.ranges.keys()):
        raise InputError(
            f"there is no layer {min(missing)!r} to compress; there are {', '.join(work.ranges)}"
        )
    if recipe.prune:
        work.prune()
        work.ranges = _observed(network, rows)
    if recipe.quantize:
        work.quantize(recipe.quantize)
    if not (work.structure["layers"] or work.structure["pruned"] or work.structure["narrowed"]):
        reasons = sorted(set(work.notes.values()))
        raise InputError(f"no layer can be compressed like this: {'; '.join(reasons)}")
    files = state.files(weights_only=True)
    for name in work.structure["pruned"]:
        weight = files[WEIGHTS_FILE].pop(f"{name}.weight")
        files[WEIGHTS_FILE] |= {f"{name}.weight{end}": one for end, one in packed(weight.cpu()).items()}
    files.setdefault(MODULE_FILE, {})[COMPRESSION] = to_tensor(work.structure)
    files[MODULE_FILE].pop("strides", None)  # of the layers as they were
    records = TorchSnapshot(Owned(files), []).write(target)
    return Compressed(records, work.records(files[WEIGHTS_FILE]))


def _observed(network: Network, rows: Split) -> dict[str, tuple[Range, Range]]:
    """Return the layers that the module calls, with the ranges of their inputs and outputs for some rows.

    A layer whose weight alone is used, as attention of torch does with its projections, is not among them.
    """
    found: dict[str, tuple[Range, Range]] = {}

    def watch(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            now = (_range(inputs[0]), _range(output))
            before = found.get(name, now)
            found[name] = tuple(  # type: ignore[assignment]
                Range(min(one.low, two.low), max(one.high, two.high))
                for one, two in zip(before, now, strict=True)
            )

        return hook

    hooks = [
        layer.register_forward_hook(watch(name))
        for name, layer in network.module.named_modules()
        if name and type(layer) in _KINDS
    ]
    try:
        for batch in _batches(network, rows):
            network.call(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: found[name] for name, _ in network.module.named_modules() if name in found}


def _range(values: Tensor) -> Range:
    return Range(float(values.min()), float(values.max()))


def _batches(network: Network, rows: Split) -> Iterator[Any]:
    source = network.source(rows)
    with torch.no_grad(), network.precision.autocast():
        for ids in network.parts(len(rows)):
            yield source.take(ids)


@dataclass
class _Work:
    """A module that is being compressed, and what becomes of its layers.

    `ranges` are those of the layers that can be compressed; `before` are the bytes of these.
    """

    network: Network
    recipe: Recipe
    ranges: Mapping[str, tuple[Range, Range]]
    rows: Split
    structure: dict[str, Any] = field(default_factory=lambda: {"layers": {}, "pruned": [], "narrowed": {}})
    notes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        module = self.network.module
        self.kinds = {name: type(module.get_submodule(name)).__name__ for name in self.ranges}
        self.before = {name: _bytes(module.get_submodule(name)) for name in self.ranges}
        self._sample = self.network.source(self.rows).take(np.arange(min(2, len(self.rows))))

    @property
    def chosen(self) -> list[str]:
        """The names of the layers to compress."""
        wanted = self.recipe.layers
        return [name for name in self.ranges if wanted is None or name in wanted]

    def prune(self) -> None:
        """Set the share of the weights, or of the channels, with the smallest norms to zero."""
        module, share = self.network.module, self.recipe.prune
        if self.recipe.structured:
            shapes, zeroed, self.notes = channels.drop(module, self.chosen, share)
            self.structure["narrowed"], self.structure["pruned"] = shapes, zeroed
            return
        for name in self.chosen:
            layer = module.get_submodule(name)
            if isinstance(layer, nn.Embedding):
                self.notes[name] = "an embedding is not pruned"
                continue
            prune.l1_unstructured(layer, "weight", share)
            prune.remove(layer, "weight")
            self.structure["pruned"].append(name)

    def quantize(self, scheme: str) -> None:
        """Replace the layers that a scheme can take."""
        kind = LAYERS[scheme]
        for name in self.chosen:
            layer = self.network.module.get_submodule(name)
            if not isinstance(layer, kind.takes):
                self.notes[name] = f"{scheme} does not take {self.kinds[name]}"
                continue
            try:
                made = kind(layer)
                values = quantized(layer, kind)
                with torch.no_grad():
                    made.encode(Source(layer, values, self.ranges[name]))
                with self._replaced(name, layer, made):
                    self._try()
            except (RuntimeError, ValueError, TypeError) as error:
                self.notes[name] = f"not {scheme}: {str(error).splitlines()[0][:120]}"
                continue
            self.structure["layers"][name] = scheme
            if name in self.structure["pruned"]:  # its zeros are stored as such
                self.structure["pruned"].remove(name)
                self.notes[name] = f"{self.recipe.prune:g} of its weights are zero"

    def _try(self) -> None:
        with torch.no_grad(), self.network.precision.autocast():
            self.network.call(self._sample)

    @contextmanager
    def _replaced(self, name: str, layer: nn.Module, made: nn.Module) -> Iterator[None]:
        """Put another layer in the place of one, unless the block fails."""
        replace_layer(self.network.module, name, made)
        try:
            yield
        except BaseException:
            replace_layer(self.network.module, name, layer)
            raise

    def records(self, stored: Mapping[str, Tensor]) -> list[LayerRecord]:
        """Return what became of each layer, given the tensors that are stored."""
        made = []
        for name in self.ranges:
            scheme = self.structure["layers"].get(name)
            if scheme is None and name in self.structure["pruned"]:
                scheme = "pruned"
            if scheme is None and name in self.structure["narrowed"]:
                scheme = "narrowed"
            after = sum(one.nbytes for key, one in stored.items() if key.rpartition(".")[0] == name)
            note = self.notes.get(name, "" if name in self.chosen else "not chosen")
            made.append(
                LayerRecord(
                    name=name,
                    kind=self.kinds[name],
                    scheme=scheme,
                    before=self.before[name],
                    after=after,
                    note=note,
                )
            )
        return made


def _bytes(layer: nn.Module) -> int:
    return sum(one.nbytes for one in layer.parameters())


def quantized(layer: Any, kind: type[CompressedLayer]) -> Values | None:
    """Return the weight of a layer as a matrix of integers, or float8, and its scales, by torchao.

    None where the weight is only cast.

    Raises:
        MissingExtraError: torchao is not installed.
        ValueError: The weight has no such groups.
    """
    if kind.config is CompressedLayer.config:
        return None
    api = require("torchao.quantization", "compress")
    weight = layer.weight.detach().float().reshape(layer.weight.shape[0], -1).cpu()
    matrix = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    matrix.weight = nn.Parameter(weight.clone(), requires_grad=False)
    held = nn.Sequential(matrix)
    api.quantize_(held, kind.config(api))
    made: Any = held[0].weight
    return Values(made.qdata, made.scale)
