"""A decoder-only transformer over tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainwright.frameworks.torch.models.drawing import Drawn

_STD = 0.02  # of the initial weights
_RMS_EPS = 1e-6
_MULTIPLE = 8  # of the width of a SwiGLU layer, which kernels like
Rotation = tuple[Tensor, Tensor]  # cosines and sines, (length, head size / 2) each


@dataclass(frozen=True)
class _Form:
    """The options that the layers of a model have in common."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    dropout: float
    normalization: str
    bias: bool
    activation: str
    intermediate_size: int

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    def linear(self, inputs: int, outputs: int) -> nn.Linear:
        return nn.Linear(inputs, outputs, bias=self.bias)

    def norm(self) -> nn.Module:
        if self.normalization == "rms":
            return nn.RMSNorm(self.hidden_size, eps=_RMS_EPS)
        return nn.LayerNorm(self.hidden_size, bias=self.bias)


class Gpt(Drawn):
    """A GPT with pre-norm blocks; by default with learned positions and a tied output layer, as GPT-2 has it.

    Radford et al.: "Language models are unsupervised multitask learners", 2019. Residual projections are
    initialized smaller by the square root of their number, as there. With rotary positions, RMSNorm, SwiGLU,
    grouped-query attention and no biases it is a Llama (Touvron et al., 2023).
    """

    def __init__(
        self,
        vocab_size: int,
        context_length: int,
        hidden_size: int = 128,
        num_layers: int = 4,
        num_heads: int = 4,
        dropout: float = 0.0,
        *,
        position: str = "learned",
        rotary_base: float = 10_000.0,
        tie_embeddings: bool = True,
        num_kv_heads: int | None = None,
        **form: Any,
    ) -> None:
        """Build the model; `form` holds `normalization`, `bias`, `activation` and `intermediate_size`."""
        super().__init__()
        kv_heads = num_kv_heads or num_heads
        if hidden_size % num_heads:
            raise ValueError(f"num_heads ({num_heads}) must divide hidden_size ({hidden_size})")
        if num_heads % kv_heads:
            raise ValueError(f"num_kv_heads ({kv_heads}) must divide num_heads ({num_heads})")
        if position == "rotary" and hidden_size // num_heads % 2:
            raise ValueError(
                f"rotary positions need heads of an even size, not {hidden_size // num_heads}: hidden_size "
                f"({hidden_size}) / num_heads ({num_heads})"
            )
        common = _form(hidden_size, num_heads, kv_heads, dropout, **form)
        self.rotary_base = rotary_base
        self.head_size = common.head_size
        self.token_embedding = nn.Embedding(vocab_size, hidden_size)
        self.position_embedding = nn.Embedding(context_length, hidden_size) if position == "learned" else None
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Block(common) for _ in range(num_layers))
        self.norm = common.norm()
        self.head = None if tie_embeddings else nn.Linear(hidden_size, vocab_size, bias=False)
        self._residual_std = _STD / (2 * num_layers) ** 0.5
        self._draw_all()

    def draw_parameters(self, module: nn.Module, name: str) -> None:
        """Draw the matrices of a module; its biases are 0, and the weights of a normalization 1."""
        is_residual = name.endswith(("out_proj", "down_proj"))
        for key, parameter in module.named_parameters(recurse=False):
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=self._residual_std if is_residual else _STD)
            else:
                nn.init.constant_(parameter, float(key != "bias"))

    def forward(self, input_ids: Tensor) -> Tensor:
        """Compute (rows, length) int64 tokens -> (rows, length, vocab_size) logits of the next token."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)  # (length,)
        hidden = self.token_embedding(input_ids)  # (rows, length, hidden_size)
        rotation = None
        if self.position_embedding is None:
            rotation = rotation_of(positions, self.head_size, self.rotary_base)
        else:
            hidden = hidden + self.position_embedding(positions)
        hidden = self.dropout(hidden)
        for block in self.blocks:
            hidden = block(hidden, rotation)
        output = self.token_embedding if self.head is None else self.head
        logits: Tensor = functional.linear(self.norm(hidden), output.weight)
        return logits


def _form(  # the defaults of what all layers share
    hidden_size: int,
    num_heads: int,
    num_kv_heads: int,
    dropout: float,
    normalization: str = "layer",
    bias: bool = True,
    activation: str = "gelu",
    intermediate_size: int | None = None,
) -> _Form:
    """Return the form of the layers.

    A SwiGLU layer has three matrices instead of two, so by default it is narrower: it then has about as many
    weights.
    """
    usual = 4 * hidden_size
    if activation == "swiglu":
        usual = -(-8 * hidden_size // 3 // _MULTIPLE) * _MULTIPLE
    return _Form(
        hidden_size,
        num_heads,
        num_kv_heads,
        dropout,
        normalization,
        bias,
        activation,
        intermediate_size or usual,
    )


def rotation_of(positions: Tensor, size: int, base: float) -> Rotation:
    """Return the cosines and sines that rotate the heads at each position, (length, size / 2) float32 each.

    Su et al.: "RoFormer: enhanced transformer with rotary position embedding", 2021.
    """
    exponents = torch.arange(0, size, 2, device=positions.device, dtype=torch.float32) / size
    angles = positions.float()[:, None] / base**exponents  # (length, size / 2)
    return angles.cos(), angles.sin()


def rotated(heads: Tensor, rotation: Rotation) -> Tensor:
    """Rotate (rows, heads, length, size) by position: element i together with element i + size / 2."""
    cos, sin = (one.to(heads.dtype) for one in rotation)  # (length, size / 2)
    first, second = heads.chunk(2, dim=-1)  # (rows, heads, length, size / 2) each
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class _Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each after a normalization and added to its input."""

    def __init__(self, form: _Form) -> None:
        super().__init__()
        self.form = form
        size, inner = form.hidden_size, form.intermediate_size
        self.attention_norm = form.norm()
        self.qkv_proj = form.linear(size, (form.num_heads + 2 * form.num_kv_heads) * form.head_size)
        self.out_proj = form.linear(size, size)
        self.mlp_norm = form.norm()
        self.gate_proj = form.linear(size, inner) if form.activation == "swiglu" else None
        self.up_proj = form.linear(size, inner)
        self.down_proj = form.linear(inner, size)
        self.dropout = nn.Dropout(form.dropout)

    def forward(self, hidden: Tensor, rotation: Rotation | None) -> Tensor:
        """Compute (rows, length, hidden_size) -> the same shape."""
        attended = hidden + self.dropout(self._attend(self.attention_norm(hidden), rotation))
        mlp = self.down_proj(self._activated(self.mlp_norm(attended)))
        out: Tensor = attended + self.dropout(mlp)
        return out

    def _activated(self, hidden: Tensor) -> Tensor:
        if self.gate_proj is None:
            return functional.gelu(self.up_proj(hidden), approximate="tanh")
        gated: Tensor = functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden)
        return gated

    def _attend(self, hidden: Tensor, rotation: Rotation | None) -> Tensor:
        form = self.form
        rows, length, _ = hidden.shape
        sizes = [count * form.head_size for count in (form.num_heads, form.num_kv_heads, form.num_kv_heads)]
        # (rows, length, all heads * head size) -> three of (rows, heads, length, head size)
        query, key, value = (
            part.view(rows, length, -1, form.head_size).transpose(1, 2)
            for part in self.qkv_proj(hidden).split(sizes, dim=2)
        )
        if rotation is not None:
            query, key = rotated(query, rotation), rotated(key, rotation)
        mixed = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=form.dropout if self.training else 0.0,
            is_causal=True,
            enable_gqa=form.num_kv_heads != form.num_heads,
        )
        out: Tensor = self.out_proj(mixed.transpose(1, 2).reshape(rows, length, form.hidden_size))
        return out
