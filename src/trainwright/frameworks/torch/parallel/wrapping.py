"""The modules of a model have their parameters gathered one at a time."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from trainwright.errors import ModelError
from trainwright.frameworks.torch.patterns import matching_modules


def modules_to_wrap(module: nn.Module, patterns: Sequence[str]) -> list[nn.Module]:
    """Return the modules that `distributed.wrap` names; by default the blocks of the model, inner ones first.

    The blocks are the members of `nn.ModuleList`s that have parameters: models call them one after the other.

    Raises:
        ModelError: A pattern matches no module.
    """
    if patterns:
        names = matching_modules(module, patterns, "distributed.wrap")
        wrapped = [part for name, part in module.named_modules() if name in names]
    else:
        lists = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
        members = {id(one) for part in lists for one in part}
        wrapped = [
            one for one in module.modules() if id(one) in members and any(True for _ in one.parameters())
        ]
    if repeated := [part for part in wrapped if isinstance(part, nn.ModuleList | nn.ModuleDict)]:
        kind = type(repeated[0]).__name__
        raise ModelError(f"distributed.wrap: a {kind} is not called itself; write its members, as `layers.*`")
    return [part for part in reversed(wrapped) if part is not module]
