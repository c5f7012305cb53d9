"""A transformer encoder over tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainwright.frameworks.torch.models.drawing import Drawn
from trainwright.frameworks.torch.models.encoder import Encoder
from trainwright.frameworks.torch.models.tokens import Embedding, counted, pooled


class TextTransformer(Drawn):
    """A transformer encoder with pre-norm layers and learned positions; no token sees padding.

    It predicts for a text, or for each token, by `output_shape`: (outputs,) or (length, outputs).
    """

    def __init__(
        self,
        vocab_size: int,
        context_length: int,
        output_shape: Sequence[int],
        hidden_size: int = 128,
        num_layers: int = 2,
        num_heads: int = 4,
        dropout: float = 0.1,
        *,
        intermediate_size: int | None = None,
        pooling: str = "mean",
    ) -> None:
        super().__init__()
        if hidden_size % num_heads:
            raise ValueError(f"num_heads ({num_heads}) must divide hidden_size ({hidden_size})")
        self.pooling = "none" if len(output_shape) > 1 else pooling
        self.token_embedding = Embedding(vocab_size, hidden_size)
        self.position_embedding = Embedding(context_length, hidden_size)
        # What BERT calls the CLS token: a learned one before the others, whose state stands for the text.
        self.summary = nn.Parameter(torch.zeros(1, 1, hidden_size)) if self.pooling == "cls" else None
        self.dropout = nn.Dropout(dropout)
        inner = intermediate_size or 4 * hidden_size
        self.encoder = Encoder(hidden_size, num_heads, num_layers, inner, dropout)
        self.norm = nn.LayerNorm(hidden_size)
        self.head = nn.Linear(hidden_size, output_shape[-1])

    def reset_parameters(self) -> None:
        """Give the summary its initial values."""
        if self.summary is not None:
            nn.init.zeros_(self.summary)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Compute (rows, length) int64 tokens -> (rows, outputs), or (rows, length, outputs).

        Args:
            input_ids: The tokens.
            attention_mask: (rows, length) 1 for tokens, 0 for padding; None: there is no padding.
        """
        is_counted = counted(input_ids, attention_mask)  # (rows, length)
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)  # (length,)
        hidden = self.token_embedding(input_ids) + self.position_embedding(positions)
        if self.summary is not None:
            hidden = torch.cat([self.summary.expand(hidden.shape[0], -1, -1), hidden], dim=1)
            is_counted = nn.functional.pad(is_counted, (1, 0), value=True)  # (rows, 1 + length)
        hidden = self.encoder(self.dropout(hidden), is_counted)
        hidden = self.norm(hidden)  # (rows, length, hidden_size), with a summary one more token
        if self.pooling == "cls":
            hidden = hidden[:, 0]
        elif self.pooling != "none":
            hidden = pooled(hidden, is_counted, self.pooling)
        outputs: Tensor = self.head(hidden)
        return outputs
