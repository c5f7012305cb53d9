"""An LSTM over tokens."""

from __future__ import annotations

from collections.abc import Sequence

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
        lengths = is_counted.sum(dim=1).clamp(min=1).cpu()  # (rows,)
        vectors = self.dropout(self.embedding(input_ids))  # (rows, length, embedding_dim)
        packed = pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False)
        states, (last, _) = self.lstm(packed)  # last: (layers * directions, rows, hidden_size)
        if self.pooling == "last":
            directions = 2 if self.lstm.bidirectional else 1
            text = torch.cat(tuple(last[-directions:]), dim=1)  # (rows, directions * hidden_size)
        else:
            text, _ = pad_packed_sequence(states, batch_first=True, total_length=input_ids.shape[1])
            if self.pooling != "none":
                text = pooled(text, is_counted, self.pooling)
        outputs: Tensor = self.head(self.dropout(text))
        return outputs
