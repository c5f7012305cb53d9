"""The plans of the models that are known: the built-in ones, and those of transformers."""

from __future__ import annotations

from torch import nn

from trainwright.frameworks.torch.models.attention import Attention, Mlp
from trainwright.frameworks.torch.parallel.tensor.plan import Plan


def plan_of(module: nn.Module) -> Plan | None:
    """Return the plan of a model; None if it is unknown."""
    return _built_in(module)


def _built_in(module: nn.Module) -> Plan | None:
    """Return the plan for our attention and feed-forward layers, in whatever model."""
    colwise, rowwise, sizes = list[str](), list[str](), dict[str, int]()
    for name, part in module.named_modules():
        if isinstance(part, Attention):
            colwise.append(f"{name}.qkv_proj")
            rowwise.append(f"{name}.out_proj")
            sizes["num_kv_heads"] = part.num_kv_heads
        elif isinstance(part, Mlp):
            gates = [] if part.gate_proj is None else ["gate_proj"]
            colwise += [f"{name}.{layer}" for layer in (*gates, "up_proj")]
            rowwise.append(f"{name}.down_proj")
            sizes["intermediate_size"] = part.up_proj.out_features
    return Plan(colwise, rowwise, sizes=sizes) if colwise else None
