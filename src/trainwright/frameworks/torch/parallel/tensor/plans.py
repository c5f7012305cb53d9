"""The plans of the models that are known: the built-in ones, and those of transformers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class _Known:
    """The plan of an architecture that transformers has none for, by the names in its base model.

    Attributes:
        styles: The style of each layer, by pattern.
        openings: As in `Plan`, as are the others.
        fused: The number of layers that one is, by pattern.
        divided: Attributes by pattern.
    """

    styles: Mapping[str, str]
    openings: Sequence[str] = ()
    fused: Mapping[str, int] = field(default_factory=dict)
    divided: Mapping[str, Sequence[str]] = field(default_factory=dict)


def _styles(colwise: Sequence[str], rowwise: Sequence[str]) -> dict[str, str]:
    return dict.fromkeys(colwise, COLWISE) | dict.fromkeys(rowwise, ROWWISE)


_BERT = _Known(  # norms and residuals are in the modules of the row-wise layers
    _styles(
        [
            *(f"encoder.layer.*[0-9].attention.self.{name}" for name in ("query", "key", "value")),
            "encoder.layer.*[0-9].intermediate.dense",
        ],
        ["encoder.layer.*[0-9].attention.output.dense", "encoder.layer.*[0-9].output.dense"],
    ),
    openings=["encoder.layer.*[0-9].attention.self", "encoder.layer.*[0-9].intermediate"],
)
_DISTILBERT = _Known(
    _styles(
        [
            *(f"transformer.layer.*.attention.{name}_lin" for name in "qkv"),
            "transformer.layer.*.ffn.lin1",
        ],
        ["transformer.layer.*.attention.out_lin", "transformer.layer.*.ffn.lin2"],
    )
)
_GPT2 = _Known(
    _styles(
        ["h.*[0-9].attn.c_attn", "h.*.mlp.c_fc"],
        ["h.*[0-9].attn.c_proj", "h.*.mlp.c_proj"],
    ),
    fused={"h.*[0-9].attn.c_attn": 3},
    divided={"h.*[0-9].attn": ["split_size"]},
)
_OPT = _Known(  # the feed-forward layer is no module of its own
    _styles(
        [*(f"decoder.layers.*.self_attn.{name}_proj" for name in "qkv"), "decoder.layers.*.fc1"],
        ["decoder.layers.*.self_attn.out_proj", "decoder.layers.*.fc2"],
    ),
    openings=["decoder.layers.*.fc1", "decoder.layers.*.activation_fn"],
    divided={"decoder.layers.*.self_attn": ["num_heads"]},
)
_KNOWN: Mapping[str, _Known] = {
    **dict.fromkeys(("bert", "camembert", "electra", "ernie", "roberta", "xlm-roberta"), _BERT),
    "distilbert": _DISTILBERT,
    "gpt2": _GPT2,
    "opt": _OPT,
}


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
    """Return the plan of an architecture of transformers; adapters are split like their layers.

    Raises:
        ModelError: There is none, or transformers splits layers in a way of its own.
    """
    config = base.config.get_text_config()
    known = _KNOWN.get(config.model_type)
    if known is None:
        known = _Known(getattr(base.base_model.config, "base_model_tp_plan", None) or {})
    parts: Any = base.base_model
    own = next(name for name, part in module.named_modules() if part is parts)
    prefix = f"{own}." if own else ""
    names = [name for name, _ in parts.named_modules()]

    def matches(patterns: Sequence[str]) -> list[str]:
        return [one for one in names if any(fnmatchcase(one, pattern) for pattern in patterns)]

    layers: dict[str, list[str]] = {COLWISE: [], ROWWISE: []}
    fused: dict[str, int] = {}
    for pattern, style in known.styles.items():
        matched = matches([pattern])
        if style in _WHOLE or not matched:
            continue
        if style not in layers:
            raise ModelError(
                f"{KEY}: transformers splits {matched[0]} of {config.model_type} as {style}, which is not "
                f"exact on all meshes; use a model with {COLWISE} and {ROWWISE} layers, as llama has"
            )
        for one in matched:
            split = list(_with_adapters(prefix + one, parts.get_submodule(one), style))
            layers[style] += split
            if pattern in known.fused:
                fused |= dict.fromkeys(split, known.fused[pattern])
    if not layers[COLWISE]:
        raise ModelError(
            f"{KEY}: there is no plan of tensor parallelism for {config.model_type} of transformers; use one "
            f"of {', '.join(_KNOWN)}, a model of the kind of llama, or type: gpt"
        )
    return Plan(
        layers[COLWISE],
        layers[ROWWISE],
        sizes={size: int(number) for size in _SIZES if (number := getattr(config, size, None))},
        openings=[prefix + one for one in matches(known.openings)],
        fused=fused,
        divided={
            prefix + one: attributes
            for pattern, attributes in known.divided.items()
            for one in matches([pattern])
        },
    )


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
