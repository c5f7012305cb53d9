"""The definition of a module that is given in Python, besides its weights and the code of its classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trainwright.frameworks.support.definition import described_attributes, path_of
from trainwright.process.object_identity import module_attributes, module_hooks, tensor_layout

GRADIENT_HOOKS = {  # the attribute of a parameter: the method that registers one
    "_backward_hooks": "register_hook",
    "_post_accumulate_grad_hooks": "register_post_accumulate_grad_hook",
}


def definition_of_object(model: nn.Module) -> dict[str, str]:
    """Return classes, attributes and hooks of a module and its parts, and what its weights do not say.

    Those of torch's own classes are hashed together: `layers`.
    """
    parts = dict(model.named_modules(remove_duplicate=False))
    theirs = {name: part for name, part in parts.items() if type(part).__module__.startswith("torch.")}
    own = {name: part for name, part in parts.items() if name not in theirs}
    attributes = {
        f"attribute {_within(name, attribute)}": value
        for name, part in own.items()
        for attribute, value in module_attributes(part).items()
    }
    hooks = {
        f"hooks of {name or 'the model'}": found
        for name, part in parts.items()
        if (found := module_hooks(part))
    }
    hooks |= {
        f"hooks of parameter {name}": found
        for name, parameter in model.named_parameters()
        if (found := gradient_hooks(parameter))
    }
    everywhere = vars(torch.nn.modules.module)
    hooks |= {
        f"hooks of all modules, {kind}": {kind: list(everywhere[kind].values())}
        for kind in sorted(everywhere)
        if kind.startswith(("_global_forward", "_global_backward"))
        and kind.endswith("hooks")
        and everywhere[kind]
    }
    layers = [(name, path_of(type(part)), module_attributes(part)) for name, part in theirs.items()]
    classes = {name or "class": path_of(type(part)) for name, part in own.items()}
    return {**classes, **_frozen(model)} | described_attributes(
        {**attributes, **hooks, "layers": [[*parts], layers], "tensors": _tensors(model)}
    )


def gradient_hooks(parameter: nn.Parameter) -> dict[str, list[Any]]:
    """Return the hooks of a parameter's gradient by their kind, in the order of their calls."""
    return {
        kind: list(hooks.values()) for kind in GRADIENT_HOOKS if (hooks := getattr(parameter, kind, None))
    }


def _within(name: str, attribute: str) -> str:
    return f"{name}.{attribute}" if name else attribute


def _tensors(model: nn.Module) -> list[Any]:
    """Return the layout of parameters and buffers, their own attributes, and which of them are one tensor."""
    first: dict[int, str] = {}
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return [
        (name, first.setdefault(id(tensor), name), tensor_layout(tensor), vars(tensor))
        for name, tensor in tensors
    ]


def _frozen(model: nn.Module) -> dict[str, str]:
    """Return the names of parameters that are not trained."""
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    return {"parameters that are not trained": ", ".join(frozen)} if frozen else {}
