"""A transformer encoder over the features of a row."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from trainwright.frameworks.torch.models.drawing import Drawn
from trainwright.frameworks.torch.models.encoder import Encoder

_HEAD_SIZE = 64


class Transformer(Drawn):
    """An FT-Transformer with pre-norm layers.

    Each feature becomes a token `value * w + b`; the head reads a learned summary token (Gorishniy et al.:
    "Revisiting deep learning models for tabular data", 2021).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        hidden_size: int = 64,
        num_layers: int = 2,
        num_heads: int | None = None,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        heads = num_heads or math.gcd(max(1, hidden_size // _HEAD_SIZE), hidden_size)
        if hidden_size % heads:
            raise ValueError(f"num_heads ({heads}) must divide hidden_size ({hidden_size})")
        self.scale = nn.Parameter(torch.empty(in_features, hidden_size))
        self.bias = nn.Parameter(torch.empty(in_features, hidden_size))
        self.summary = nn.Parameter(torch.empty(1, 1, hidden_size))
        self.reset_parameters()
        self.encoder = Encoder(hidden_size, heads, num_layers, 4 * hidden_size, dropout)
        self.head = nn.Sequential(nn.LayerNorm(hidden_size), nn.Linear(hidden_size, out_features))

    def reset_parameters(self) -> None:
        """Draw the tokens of the features, and the summary."""
        bound = 1 / math.sqrt(self.scale.shape[1])
        for parameter in (self.scale, self.bias, self.summary):
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, features: Tensor) -> Tensor:
        """Compute (rows, ...) float32 -> (rows, out_features)."""
        values = features.flatten(1)  # (rows, features)
        tokens = values.unsqueeze(-1) * self.scale + self.bias  # (rows, features, hidden_size)
        summary = self.summary.expand(tokens.shape[0], -1, -1)  # (rows, 1, hidden_size)
        tokens = torch.cat([summary, tokens], dim=1)  # (rows, 1 + features, hidden_size)
        outputs: Tensor = self.head(self.encoder(tokens)[:, 0])  # (rows, out_features)
        return outputs
