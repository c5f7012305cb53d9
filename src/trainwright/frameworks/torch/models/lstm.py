"""An LSTM over tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from trainwright.frameworks.torch.models.drawing import Drawn
from trainwright.frameworks.torch.models.tokens import Embedding, counted, pooled


class Lstm(Drawn):
    """An LSTM that reads each text up to its last token, and no padding after it.

    It answers for a text, or for each token, as `output_shape` says: (outputs,) or (length, outputs).
    """

    def __init__(
        self,
        vocab_size: int,
        output_shape: Sequence[int],
        embedding_dim: int = 128,
        hidden_size: int = 128,
        num_layers: int = 1,
        dropout: float = 0.0,
        *,
        bidirectional: bool = False,
        pooling: str = "last",
    ) -> None:
        super().__init__()
        self.pooling = "none" if len(output_shape) > 1 else pooling
        self.embedding = Embedding(vocab_size, embedding_dim)
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(
            embedding_dim,
            hidden_size,
            num_layers,
            batch_first=True,
            dropout=dropout if num_layers > 1 else 0.0,
            bidirectional=bidirectional,
        )
        self.head = nn.Linear(hidden_size * (1 + bidirectional), output_shape[-1])

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Compute (rows, length) int64 tokens -> (rows, outputs), or (rows, length, outputs).

        Args:
            input_ids: The tokens; those of a row come first, then padding.
            attention_mask: (rows, length) 1 for tokens, 0 for padding; None: there is no padding.
        """
        is_counted = counted(input_ids, attention_mask)  # (rows, length)
        lengths = is_counted.sum(dim=1).clamp(min=1)  # (rows,)
        vectors = self.dropout(self.embedding(input_ids))  # (rows, length, embedding_dim)
        if torch.compiler.is_exporting():  # other formats have no packed sequences
            text, last_states = _unpacked(self.lstm, vectors, lengths)
            if self.pooling == "last":
                text = last_states
            elif self.pooling != "none":
                text = pooled(text, is_counted, self.pooling)
            return cast(Tensor, self.head(text))
        packed = pack_padded_sequence(vectors, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, (last, _) = self.lstm(packed)  # last: (layers * directions, rows, hidden_size)
        if self.pooling == "last":
            directions = 2 if self.lstm.bidirectional else 1
            text = torch.cat(tuple(last[-directions:]), dim=1)  # (rows, directions * hidden_size)
        else:
            text, _ = pad_packed_sequence(states, batch_first=True, total_length=input_ids.shape[1])
            if self.pooling != "none":
                text = pooled(text, is_counted, self.pooling)
        return cast(Tensor, self.head(self.dropout(text)))


def _unpacked(lstm: nn.LSTM, vectors: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the states of a packed sequence, and the last ones, without packing it.

    Padding follows the tokens, so it changes no state of theirs; the reverse direction reads the tokens of
    each row mirrored.

    Args:
        lstm: The layers; no dropout is applied.
        vectors: (rows, length, size).
        lengths: (rows,) the tokens of each row.

    Returns:
        (rows, length, directions * hidden_size), zeros at padding; and (rows, directions * hidden_size).
    """
    rows, length = vectors.shape[:2]
    places = torch.arange(length, device=vectors.device)[None]  # (1, length)
    ends = lengths[:, None] - 1  # (rows, 1)
    mirrored = torch.where(places <= ends, ends - places, places)
    zeros = vectors.new_zeros(1, rows, lstm.hidden_size)
    last: list[Tensor] = []
    for layer in range(lstm.num_layers):
        states = []
        for reverse in (False, True)[: 1 + lstm.bidirectional]:
            name = f"l{layer}_reverse" if reverse else f"l{layer}"
            kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            weights = [getattr(lstm, f"{kind}_{name}") for kind in kinds]
            given = _at(vectors, mirrored) if reverse else vectors
            one, _, _ = torch.lstm(given, (zeros, zeros), weights, True, 1, 0.0, False, False, True)
            states.append(_at(one, mirrored) if reverse else one)
        vectors = torch.cat(states, dim=2)
        last = [_at(states[0], ends)[:, 0], *(one[:, 0] for one in states[1:])]
    return vectors * (places <= ends)[:, :, None], torch.cat(last, dim=1)


def _at(vectors: Tensor, places: Tensor) -> Tensor:
    """Return the vectors, (rows, length, size), at some places of each row, (rows, places)."""
    return vectors.gather(1, places[:, :, None].expand(-1, -1, vectors.shape[2]))
