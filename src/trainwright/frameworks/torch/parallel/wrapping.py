"""The modules of a model have their parameters gathered one at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from torch import nn

from trainwright.config.distributed import DistributedConfig
from trainwright.errors import ModelError
from trainwright.frameworks.torch.patterns import matching_modules

_PARTS = (nn.MultiheadAttention, nn.Embedding, nn.EmbeddingBag)  # of what contains them
_UNCALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def modules_to_wrap(module: nn.Module, distributed: DistributedConfig) -> list[nn.Module]:
    """Return the modules that are gathered one at a time, inner ones first.

    They are those that `distributed.wrap` names, or those of `min_num_params`; by default the blocks of the
    model: members of `nn.ModuleList`s that have parameters, which models call one after the other, and share
    none with what is outside of them.

    Raises:
        ModelError: A pattern matches no module, or one that cannot be gathered by itself.
    """
    if distributed.min_num_params is not None:
        return _large(module, distributed.min_num_params)
    if distributed.wrap:
        wrapped = _named(module, distributed.wrap)
    else:
        lists = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
        members = {id(one) for part in lists for one in part}
        shares = _sharing(module)
        wrapped = [
            one
            for one in module.modules()
            if id(one) in members and any(True for _ in one.parameters()) and not shares(one)
        ]
    if repeated := [part for part in wrapped if isinstance(part, nn.ModuleList | nn.ModuleDict)]:
        kind = type(repeated[0]).__name__
        raise ModelError(f"distributed.wrap: a {kind} is not called itself; write its members, as `layers.*`")
    shares = _sharing(module)
    if sharing := [part for part in wrapped if shares(part)]:
        name = next(name for name, part in module.named_modules() if part is sharing[0])
        raise ModelError(
            f"distributed.wrap: {name} shares a parameter with a module outside it; leave it out"
        )
    return [part for part in reversed(wrapped) if part is not module]


def _named(module: nn.Module, patterns: Sequence[str]) -> list[nn.Module]:
    names = matching_modules(module, patterns, "distributed.wrap")
    return [part for name, part in module.named_modules() if name in names]


def _sharing(module: nn.Module) -> Callable[[nn.Module], bool]:
    """Return what says whether a part of a module shares a parameter with what is outside the part."""
    names, prefixes = defaultdict(set), defaultdict(set)  # by id; a shared module has several, too
    for name, one in module.named_parameters(remove_duplicate=False):
        names[id(one)].add(name)
    for name, part in module.named_modules(remove_duplicate=False):
        prefixes[id(part)].add(f"{name}." if name else "")

    def shares(part: nn.Module) -> bool:
        inside = (*prefixes[id(part)],)
        return not all(name.startswith(inside) for one in part.parameters() for name in names[id(one)])

    return shares


def _large(module: nn.Module, least: int) -> list[nn.Module]:
    """Return the modules with at least so many parameters, but for those of others within them.

    This is the rule of torch's `size_based_auto_wrap_policy`; `nn.MultiheadAttention` is a part of what
    contains it, since it uses the weights of a layer that it does not call. So are embeddings, whose weights
    models often use as those of the output layer, and modules that share a parameter with others.
    """
    wrapped: list[nn.Module] = []
    shares = _sharing(module)

    def visit(part: nn.Module) -> dict[int, int]:
        """Wrap what is large enough in a module; return the sizes of its other parameters, by id."""
        left = {id(one): one.numel() for one in part._parameters.values() if one is not None}
        if isinstance(part, _PARTS):
            return {id(one): one.numel() for one in part.parameters()}
        for child in part.children():
            if child not in wrapped:
                left |= visit(child)
        can_be = part is not module and not isinstance(part, _UNCALLED)
        if sum(left.values()) < least or not can_be or shares(part):
            return left
        wrapped.append(part)
        return {}

    visit(module)
    return wrapped
