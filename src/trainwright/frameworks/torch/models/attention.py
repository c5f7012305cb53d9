"""Attention and feed-forward layers, which the built-in transformers share."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Rotation = tuple[Tensor, Tensor]  # cosines and sines, (length, head size / 2) each
Activation = Literal["gelu", "gelu_tanh", "swiglu"]


class Attention(nn.Module):
    """Multi-head self-attention, in which groups of heads may share keys and values.

    The rows of `qkv_proj` are ordered by head of keys and values: the queries of its group, its key, its
    value. So a slice of the rows is an attention with fewer heads, and `forward` takes their number from it.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.num_kv_heads = num_kv_heads or num_heads
        self.group_size = num_heads // self.num_kv_heads  # heads that share a key and a value
        self.head_size = hidden_size // num_heads
        self.dropout = dropout
        self.causal = causal
        rows = self.num_kv_heads * (self.group_size + 2) * self.head_size
        self.qkv_proj = nn.Linear(hidden_size, rows, bias=bias)
        self.out_proj = nn.Linear(hidden_size, hidden_size, bias=bias)

    def forward(self, hidden: Tensor, rotation: Rotation | None = None, mask: Tensor | None = None) -> Tensor:
        """Compute (rows, length, hidden_size) -> the same shape.

        Args:
            hidden: The states of the tokens.
            rotation: Cosines and sines that turn queries and keys by position.
            mask: (rows, 1, 1, length) bool, True for tokens that are seen.
        """
        rows, length, _ = hidden.shape
        heads = self.qkv_proj(hidden).view(rows, length, -1, self.group_size + 2, self.head_size)
        query, key, value = (
            part.flatten(2, 3).transpose(1, 2)  # (rows, heads, length, head size)
            for part in heads.split([self.group_size, 1, 1], dim=3)
        )
        if rotation is not None:
            query, key = rotated(query, rotation), rotated(key, rotation)
        mixed = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
            enable_gqa=self.group_size > 1,
        )
        out: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return out


class Mlp(nn.Module):
    """A feed-forward layer; with SwiGLU, one projection gates the other (Shazeer, 2020)."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: Activation = "gelu",
        *,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.activation = activation
        gated = activation == "swiglu"
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=bias) if gated else None
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.dropout = nn.Dropout(dropout)  # of the inner activations
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute (..., hidden_size) -> the same shape."""
        inner = self.up_proj(hidden)  # (..., intermediate_size)
        if self.gate_proj is not None:
            inner = functional.silu(self.gate_proj(hidden)) * inner
        else:
            inner = functional.gelu(inner, approximate="tanh" if self.activation == "gelu_tanh" else "none")
        out: Tensor = self.down_proj(self.dropout(inner))
        return out


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
