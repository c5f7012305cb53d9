"""A decoder-only transformer over tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainwright.frameworks.torch.models.attention import Attention, Mlp, Rotation, rotation_of
from trainwright.frameworks.torch.models.drawing import Drawn

_STD = 0.02  # of the initial weights
_RMS_EPS = 1e-6
_MULTIPLE = 8  # of the width of a SwiGLU layer, which kernels like


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
        self.head_size = hidden_size // num_heads
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
        hidden = self.norm(hidden)
        if self.head is None:
            return functional.linear(hidden, self.token_embedding.weight)
        logits: Tensor = self.head(hidden)
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


class _Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each after a normalization and added to its input."""

    def __init__(self, form: _Form) -> None:
        super().__init__()
        size, dropout = form.hidden_size, form.dropout
        self.attention_norm = form.norm()
        self.attention = Attention(
            size, form.num_heads, form.num_kv_heads, dropout=dropout, bias=form.bias, causal=True
        )
        self.mlp_norm = form.norm()
        activation: Any = "gelu_tanh" if form.activation == "gelu" else form.activation
        self.mlp = Mlp(size, form.intermediate_size, activation, bias=form.bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, rotation: Rotation | None) -> Tensor:
        """Compute (rows, length, hidden_size) -> the same shape."""
        attended = hidden + self.dropout(self.attention(self.attention_norm(hidden), rotation))
        out: Tensor = attended + self.dropout(self.mlp(self.mlp_norm(attended)))
        return out
