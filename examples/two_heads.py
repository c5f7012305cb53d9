"""Train a model with two inputs and two heads: a loss for each, and their weighted sum.

Run it with `python examples/two_heads.py`. It makes its data, downloads nothing, and takes a few seconds. The
model and a metric are named by their import paths, as in any config; `heads` says how the second output is
trained and judged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

import trainwright

WORDS = 50  # that reviews are made of


class TwoHeads(nn.Module):
    """Read the numbers and the words of an order; tell whether it is returned, and what it costs."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.numbers = nn.Linear(4, width)
        self.returned = nn.Linear(2 * width, 2)
        self.cost = nn.Linear(2 * width, 1)

    def forward(self, numbers: Tensor, words: Tensor) -> dict[str, Tensor]:
        """Compute (rows, 4) and (rows, 6) -> the task's own output first: (rows, 2) logits; and (rows,)."""
        both = torch.cat([self.numbers(numbers).relu(), self.words(words).mean(dim=1)], dim=1)
        return {"logits": self.returned(both), "cost": self.cost(both)[:, 0]}


def loss_of_money(targets: np.ndarray[Any, Any], predictions: np.ndarray[Any, Any]) -> float:
    """Return what wrong answers cost: an unforeseen return 10, a needless call 1, on average."""
    missed, needless = (targets == 1) & (predictions == 0), (targets == 0) & (predictions == 1)
    return float((10 * missed + needless).mean())


# Lower is better.
loss_of_money.greater_is_better = False  # type: ignore[attr-defined]


def orders(rows: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return named arrays: those that `forward` names are the model's inputs, the others are targets."""
    random = np.random.default_rng(0)
    numbers = random.normal(size=(rows, 4)).astype(np.float32)
    words = random.integers(0, WORDS, (rows, 6))
    mood = (words < WORDS // 2).mean(axis=1) - 0.5  # bad words
    returned = numbers[:, 0] + 6 * mood + random.normal(0, 0.5, rows) > 0.5
    cost = numbers[:, 1] - numbers[:, 2] + random.normal(0, 0.2, rows)
    return {
        "numbers": numbers,
        "words": words,
        "cost": cost.astype(np.float32),
        "target": returned.astype(np.int64),
    }


CONFIG: dict[str, Any] = {
    "experiment": {"name": "two-heads", "seed": 1},
    "model": "two_heads:TwoHeads",
    "training": {
        "epochs": 20,
        "learning_rate": 0.01,
        "threads": 1,
        # The loss is the cross entropy of `logits` plus half of the squared error of `cost`.
        "heads": {"cost": {"loss": "mse", "weight": 0.5, "metrics": ["rmse", "r2"]}},
    },
    "evaluation": {"metrics": ["accuracy", "two_heads:loss_of_money"]},
    "checkpoint": {"metric": "val_loss_of_money"},
}


def main() -> None:
    """Train, and look at both heads."""
    data = orders(2000)
    run = trainwright.train(CONFIG, data=data)
    metrics = run.metrics
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"accuracy {metrics['test_accuracy']:.3f}, loss of money {metrics['test_loss_of_money']:.3f}"
    )
    console.print(
        f"root mean squared error of the cost {metrics['test_rmse_cost']:.3f}, "
        f"of always the mean {data['cost'].std():.3f}"
    )
    model = trainwright.load(run, trust=True).native  # the module itself, for what it says of one order
    with torch.no_grad():
        outputs = model(torch.from_numpy(data["numbers"][:1]), torch.from_numpy(data["words"][:1]))
    console.print(f"the first order costs {data['cost'][0]:.2f}, and {outputs['cost'][0]:.2f} is predicted")


if __name__ == "__main__":
    main()
