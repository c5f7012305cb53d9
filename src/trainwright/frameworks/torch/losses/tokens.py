"""The loss of tokens: the mean over the rows of the mean over their labels, or the sum over all labels."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from trainwright.frameworks.torch.data import Tensors
from trainwright.frameworks.torch.outputs import Outputs, token_logits
from trainwright.frameworks.torch.parallel.tensor.cross_entropy import SplitLogits
from trainwright.types import LABELS, NO_LABEL


def token_cross_entropy(outputs: Outputs, batch: Tensors) -> Tensor:
    """Return the mean over the rows of the mean over a row's labels, ().

    Where all rows have as many labels, this is the mean over the labels; for others, see `label_counts`.
    """
    labels = batch[LABELS]  # (rows, length)
    nats = token_nll(token_logits(outputs), labels)  # (rows, length)
    return (nats.sum(dim=1) / (labels != NO_LABEL).sum(dim=1).clamp(min=1)).mean()


def total_of_tokens(outputs: Outputs, batch: Tensors) -> Tensor:
    """Return the sum of the negative log-likelihood of all labels of a batch in nats, ()."""
    return token_nll(token_logits(outputs), batch[LABELS]).sum()


def token_nll(logits: Tensor | SplitLogits, labels: Tensor) -> Tensor:
    """Return the negative log-likelihood of each label in nats, (rows, length); 0 where there is no label.

    Args:
        logits: (rows, length, tokens), or its slices.
        labels: (rows, length) int64.
    """
    if isinstance(logits, SplitLogits):
        return logits.nll(labels, NO_LABEL)
    # Forward and backward, this takes half the time: the logits of a token lie together.
    flat = functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL, reduction="none"
    )  # (rows * length,)
    return flat.reshape(labels.shape)
