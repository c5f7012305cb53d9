"""The layers of the transformer encoders, which see all tokens of a row at once."""

from __future__ import annotations

from torch import Tensor, nn

from trainwright.frameworks.torch.models.attention import Attention, Mlp


class Encoder(nn.Module):
    """Pre-norm layers of self-attention and a feed-forward layer."""

    def __init__(
        self, hidden_size: int, num_heads: int, num_layers: int, intermediate_size: int, dropout: float
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            _Layer(hidden_size, num_heads, intermediate_size, dropout) for _ in range(num_layers)
        )

    def forward(self, hidden: Tensor, is_counted: Tensor | None = None) -> Tensor:
        """Compute (rows, length, hidden_size) -> the same shape.

        Args:
            hidden: The states of the tokens.
            is_counted: (rows, length) bool, False for padding, which no token sees.
        """
        mask = None if is_counted is None else is_counted[:, None, None]  # (rows, 1, 1, length)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return hidden


class _Layer(nn.Module):
    """Self-attention and a feed-forward layer, each after a normalization and added to its input."""

    def __init__(self, hidden_size: int, num_heads: int, intermediate_size: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden_size)
        self.attention = Attention(hidden_size, num_heads, dropout=dropout)
        self.mlp_norm = nn.LayerNorm(hidden_size)
        self.mlp = Mlp(hidden_size, intermediate_size, dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Let attention begin as in `torch.nn.MultiheadAttention`."""
        nn.init.xavier_uniform_(self.attention.qkv_proj.weight)
        for projection in (self.attention.qkv_proj, self.attention.out_proj):
            nn.init.zeros_(projection.bias)

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Compute (rows, length, hidden_size) -> the same shape."""
        attended = hidden + self.dropout(self.attention(self.attention_norm(hidden), mask=mask))
        out: Tensor = attended + self.dropout(self.mlp(self.mlp_norm(attended)))
        return out
