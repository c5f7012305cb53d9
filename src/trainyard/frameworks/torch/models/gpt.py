"""A decoder-only transformer over tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Gpt(nn.Module):
    """A GPT with pre-norm blocks, learned positions, and an output layer that is the token embedding.

    Radford et al.: "Language models are unsupervised multitask learners", 2019. Residual projections are
    initialized smaller by the square root of their number, as there.
    """

    def __init__(
        self,
        vocab_size: int,
        context_length: int,
        hidden_size: int = 128,
        num_layers: int = 4,
        num_heads: int = 4,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if hidden_size % num_heads:
            raise ValueError(f"num_heads ({num_heads}) must divide hidden_size ({hidden_size})")
        self.token_embedding = nn.Embedding(vocab_size, hidden_size)
        self.position_embedding = nn.Embedding(context_length, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Block(hidden_size, num_heads, dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(hidden_size)
        self._initialize()

    def _initialize(self) -> None:
        residual_std = 0.02 / (2 * len(self.blocks)) ** 0.5
        for name, parameter in self.named_parameters():
            if name.endswith(("out_proj.weight", "down_proj.weight")):
                nn.init.normal_(parameter, std=residual_std)
            elif parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Compute (rows, length) int64 tokens -> (rows, length, vocab_size) logits of the next token of each."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)  # (length,)
        hidden = self.token_embedding(input_ids) + self.position_embedding(positions)
        hidden = self.dropout(hidden)  # (rows, length, hidden_size)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = functional.linear(self.norm(hidden), self.token_embedding.weight)
        return logits


class _Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each after a normalization and added to its input."""

    def __init__(self, hidden_size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.attention_dropout = num_heads, dropout
        self.attention_norm = nn.LayerNorm(hidden_size)
        self.qkv_proj = nn.Linear(hidden_size, 3 * hidden_size)
        self.out_proj = nn.Linear(hidden_size, hidden_size)
        self.mlp_norm = nn.LayerNorm(hidden_size)
        self.up_proj = nn.Linear(hidden_size, 4 * hidden_size)
        self.down_proj = nn.Linear(4 * hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute (rows, length, hidden_size) -> the same shape."""
        attended = hidden + self.dropout(self._attend(self.attention_norm(hidden)))
        mlp = self.down_proj(functional.gelu(self.up_proj(self.mlp_norm(attended)), approximate="tanh"))
        out: Tensor = attended + self.dropout(mlp)
        return out

    def _attend(self, hidden: Tensor) -> Tensor:
        rows, length, size = hidden.shape
        # (rows, length, 3 * hidden_size) -> three of (rows, heads, length, hidden_size / heads)
        query, key, value = (
            part.view(rows, length, self.heads, size // self.heads).transpose(1, 2)
            for part in self.qkv_proj(hidden).split(size, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.attention_dropout if self.training else 0.0, is_causal=True
        )
        out: Tensor = self.out_proj(mixed.transpose(1, 2).reshape(rows, length, size))
        return out
