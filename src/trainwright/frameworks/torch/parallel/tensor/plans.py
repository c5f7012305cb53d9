"""The plans of the models that are known: the built-in ones, and those of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from trainwright.errors import ModelError
from trainwright.frameworks.torch.huggingface.module import base_of
from trainwright.frameworks.torch.models.attention import Attention, Mlp
from trainwright.frameworks.torch.parallel.tensor.plan import COLWISE, KEY, ROWWISE, Plan

# What transformers calls layers that are computed whole here: those of the vocabulary, and what lies within a
# split module, whose gradients are summed.
_WHOLE = ("embedding_rowwise", "embedding_colwise", "replicate", "replicated_with_grad_allreduce")
_SIZES = ("num_attention_heads", "num_key_value_heads", "intermediate_size")


def plan_of(module: nn.Module) -> Plan:
    """Return the plan of a known model, which may be on the device meta.

    Raises:
        ModelError: It is unknown, or has layers that cannot be split.
    """
    base = base_of(module)
    plan = _built_in(module) if base is None else _of_transformers(module, base)
    if plan is None:
        raise ModelError(
            f"{KEY}: no plan is known for {type(module).__name__}: name its modules under {COLWISE} and "
            f"{ROWWISE}"
        )
    return plan


def _built_in(module: nn.Module) -> Plan | None:
    """Return the plan for our attention and feed-forward layers, in whatever model."""
    colwise, rowwise, sizes = list[str](), list[str](), dict[str, int]()
    for name, part in module.named_modules():
        if isinstance(part, Attention):
            colwise.append(f"{name}.qkv_proj")
            rowwise.append(f"{name}.out_proj")
            sizes["num_kv_heads" if part.group_size > 1 else "num_heads"] = part.num_kv_heads
        elif isinstance(part, Mlp):
            gates = [] if part.gate_proj is None else ["gate_proj"]
            colwise += [f"{name}.{layer}" for layer in (*gates, "up_proj")]
            rowwise.append(f"{name}.down_proj")
            sizes["intermediate_size"] = part.up_proj.out_features
    return Plan(colwise, rowwise, sizes=sizes) if colwise else None


def _of_transformers(module: nn.Module, base: Any) -> Plan:
    """Return the plan that transformers itself has for an architecture; adapters are split like their layers.

    Raises:
        ModelError: It has none, or splits layers in a way of its own.
    """
    config = base.config.get_text_config()
    styles = getattr(base.base_model.config, "base_model_tp_plan", None)
    if not styles:
        fused = (
            ": its queries, keys and values are one layer, in this order"
            if config.model_type == "gpt2"
            else ""
        )
        raise ModelError(
            f"{KEY}: transformers has no plan of tensor parallelism for {config.model_type}{fused}; use a "
            "model of the kind of llama, or type: gpt"
        )
    own = next(name for name, part in module.named_modules() if part is base.base_model)
    prefix = f"{own}." if own else ""
    names: dict[str, list[str]] = {COLWISE: [], ROWWISE: []}
    for pattern, style in styles.items():
        matched = [one for one, _ in base.base_model.named_modules() if fnmatchcase(one, pattern)]
        if style in _WHOLE or not matched:
            continue
        if style not in names:
            raise ModelError(
                f"{KEY}: transformers splits {matched[0]} of {config.model_type} as {style}, which is not "
                f"exact on all meshes; use a model with {COLWISE} and {ROWWISE} layers, as llama has"
            )
        for one in matched:
            names[style] += _with_adapters(prefix + one, base.base_model.get_submodule(one), style)
    sizes = {size: int(number) for size in _SIZES if (number := getattr(config, size, None))}
    return Plan(names[COLWISE], names[ROWWISE], sizes=sizes)


def _with_adapters(name: str, layer: nn.Module, style: str) -> Iterator[str]:
    """Yield the name of a linear layer; if it has adapters of peft, also of those that are split with it.

    Of the two matrices of an adapter, that is the one of the outputs, or of the inputs.
    """
    if not hasattr(layer, "base_layer"):
        yield name
        return
    yield f"{name}.base_layer"
    matrix = "lora_B" if style == COLWISE else "lora_A"
    for adapter in getattr(layer, matrix, {}):
        yield f"{name}.{matrix}.{adapter}"
