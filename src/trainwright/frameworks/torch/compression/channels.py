"""Remove whole channels: from layers whose outputs go to known layers only, smaller tensors are left."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import prune

from trainwright.frameworks.torch.compression.structure import narrow

_LAYERS = (nn.Linear, nn.Conv2d)
_ALONG = (  # change no channel by another one, and keep zeros
    nn.ReLU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.LeakyReLU,
    nn.Dropout,
    nn.Identity,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_FUNCTIONS = {torch.relu, torch.tanh, nn.functional.relu, nn.functional.gelu, nn.functional.silu}


class _Tracer(fx.Tracer):
    """A tracer that looks only into modules that hold layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002 - its signature
        """Return whether a module is one node."""
        return not any(isinstance(one, (*_LAYERS, *_NORMS)) for one in list(m.modules())[1:])


class _Uses(NamedTuple):
    """The layers that take the outputs of one, and the normalizations between."""

    takers: list[str]
    norms: list[str]


class _Blocked(Exception):  # noqa: N818 - an answer, not an error
    """A use of outputs that ties their channels to others."""


def drop(
    module: nn.Module, chosen: Collection[str], share: float
) -> tuple[dict[str, list[int]], list[str], dict[str, str]]:
    """Remove the channels with the smallest L2 norms, or set them to zero where they cannot go.

    Args:
        module: The module, which is changed.
        chosen: The names of the layers to take channels from.
        share: The share of the channels of each.

    Returns:
        The shapes of the weights that are smaller now, by layer; the layers with rows of zeros; and notes on
        layers that were left, or have zeros, with the reason.
    """
    shapes: dict[str, list[int]] = {}
    zeroed: list[str] = []
    notes: dict[str, str] = {}
    nodes, reason = _nodes(module)
    for name in chosen:
        layer = module.get_submodule(name)
        if not isinstance(layer, _LAYERS):
            notes[name] = f"{type(layer).__name__} has no channels to drop"
            continue
        try:
            if reason:
                raise _Blocked(reason)
            uses = _uses(module, nodes.get(name, []))
        except _Blocked as blocked:
            if str(blocked) == _OUTPUTS:
                notes[name] = _OUTPUTS
                continue
            prune.ln_structured(layer, "weight", share, n=2, dim=0)
            prune.remove(layer, "weight")
            zeroed.append(name)
            notes[name] = f"rows are zero, and the latency is as before: {blocked}"
            continue
        kept, before = _kept(layer, share), layer.weight.shape[0]
        for one in (name, *uses.norms):
            _keep_rows(module.get_submodule(one), kept)
        for one in uses.takers:
            _keep_columns(module.get_submodule(one), kept, before)
        for one in (name, *uses.norms, *uses.takers):
            shapes[one] = list(cast(Tensor, module.get_submodule(one).weight).shape)
    return shapes, zeroed, notes


_OUTPUTS = "it gives the outputs of the model"


def _nodes(module: nn.Module) -> tuple[dict[str, list[fx.Node]], str]:
    """Return the calls of each layer, or why they are not known."""
    try:
        graph = _Tracer().trace(module)
    except Exception as error:  # whatever the forward of a user's module does with a proxy
        return {}, f"the flow of the model cannot be followed ({type(error).__name__})"
    nodes: dict[str, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            nodes.setdefault(str(node.target), []).append(node)
    return nodes, ""


def _uses(module: nn.Module, nodes: list[fx.Node]) -> _Uses:
    """Return the uses of the outputs of a layer that is called at one node.

    Raises:
        _Blocked: They go elsewhere, too.
    """
    if len(nodes) != 1:
        raise _Blocked(f"it is called {len(nodes)} times")
    uses = _Uses([], [])
    waiting = [nodes[0]]
    while waiting:
        for user in waiting.pop().users:
            if user.op == "output":
                raise _Blocked(_OUTPUTS)
            if _is_passing(module, user, uses):
                waiting.append(user)
    return uses


def _is_passing(module: nn.Module, user: fx.Node, uses: _Uses) -> bool:
    """Return whether channels go through a node; note those where they end.

    Raises:
        _Blocked: They are tied to others there.
    """
    if user.op == "call_module":
        name, layer = str(user.target), module.get_submodule(str(user.target))
        if isinstance(layer, _NORMS):
            uses.norms.append(name)
            return True
        if isinstance(layer, _LAYERS) and getattr(layer, "groups", 1) == 1:
            if name in uses.takers:
                raise _Blocked(f"its outputs go to {name} twice")
            uses.takers.append(name)
            return False
        if isinstance(layer, (*_ALONG, nn.Flatten)):
            return True
        raise _Blocked(f"its outputs go to {type(layer).__name__}")
    if user.op == "call_function" and user.target in _FUNCTIONS:
        return True
    if user.op == "call_method" and user.target in ("relu", "tanh", "flatten"):
        return True
    if user.op == "call_method" and user.target == "mean" and user.kwargs.get("dim") == (2, 3):
        return True
    name = getattr(user.target, "__name__", str(user.target))
    raise _Blocked(f"its outputs are used by {name}")


def _kept(layer: nn.Linear | nn.Conv2d, share: float) -> Tensor:
    """Return the channels to keep, in order: those with the largest norms, one at least."""
    norms = layer.weight.detach().double().flatten(1).norm(dim=1)  # (channels,)
    count = max(1, len(norms) - round(share * len(norms)))
    kept: Tensor = norms.argsort(descending=True, stable=True)[:count].sort().values
    return kept


def _tensors(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from layer.named_parameters(recurse=False)
    yield from layer.named_buffers(recurse=False)


def _keep_rows(layer: nn.Module, kept: Tensor) -> None:
    """Keep some output channels of a layer, or some channels of a normalization."""
    values = {name: one.detach()[kept] for name, one in _tensors(layer) if one.dim()}
    _fill(layer, values)


def _keep_columns(layer: Any, kept: Tensor, before: int) -> None:
    """Keep the inputs of a layer that come from some of so many channels."""
    columns = layer.weight.shape[1]
    each = columns // before  # places of each channel, where maps were flattened
    indices = (kept[:, None] * each + torch.arange(each)).flatten()
    values = {name: one.detach() for name, one in _tensors(layer) if one.dim()}
    _fill(layer, values | {"weight": layer.weight.detach()[:, indices]})


def _fill(layer: nn.Module, values: dict[str, Tensor]) -> None:
    narrow(layer, list(values["weight"].shape))
    with torch.no_grad():
        for name, one in _tensors(layer):
            if one.dim():
                one.copy_(values[name])
