"""Class weights of samples that are read one by one: beside the same samples as arrays, and torch's loss."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import trainwright
from trainwright.datasets.samples import items
from trainwright.errors import DataError, InputError
from trainwright.records.journal import losses, read

CONFIG: dict[str, Any] = {
    "experiment": {"seed": 5},
    "training": {"max_steps": 9, "batch_size": 16, "learning_rate": 0.01, "threads": 1},
    "evaluation": {"every_n_steps": 9},
}
WEIGHTS = {0: 0.5, 2: 6.0}


class Flat(nn.Module):
    """A linear model of images."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (rows, 3) logits of images (rows, 1, 3, 4)."""
        return self.last(x.flatten(1))


class Samples:
    """A map-style data set; with `targets`, the classes need not be read."""

    num_classes = 3

    def __init__(self, x: np.ndarray, y: np.ndarray, told: bool) -> None:
        self.x, self.y, self.has_been_read = x, y, 0
        if told:
            self.targets = y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        self.has_been_read += 1
        return self.x[i], int(self.y[i])


def rows(count: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.normal(size=(count, 1, 3, 4)).astype(np.float32), draw.choice(3, count, p=[0.6, 0.3, 0.1])


def train(weights: Any, data: Any, **training: Any) -> trainwright.Run:
    given = CONFIG["training"] | {"class_weights": weights} | training
    return trainwright.train(CONFIG | {"training": given}, model=Flat(), data=data)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory, for the runs."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("weights", "told"), [("balanced", False), (WEIGHTS, True)])
def test_they_are_those_of_the_same_samples_as_arrays(weights: Any, told: bool) -> None:
    torch.manual_seed(0)
    both, val = rows(), rows(12, 1)
    as_arrays = train(weights, (both, val), microbatch_size=5)
    torch.manual_seed(0)
    one_by_one = train(
        weights, {"train": Samples(*both, told), "val": Samples(*val, told)}, microbatch_size=5
    )
    assert one_by_one.digest == as_arrays.digest
    assert one_by_one.metrics == as_arrays.metrics


def test_the_loss_of_a_step_is_that_of_torch() -> None:
    x, y = rows(16)
    torch.manual_seed(0)
    with torch.no_grad():
        logits = Flat()(torch.from_numpy(x))
    weights = torch.tensor([WEIGHTS.get(label, 1.0) for label in range(3)])
    expected = functional.cross_entropy(logits, torch.from_numpy(y), weight=weights)
    torch.manual_seed(0)
    run = train(WEIGHTS, {"train": Samples(x, y, True)}, max_steps=1)
    assert losses(read(run.path / "journal"))[1] == pytest.approx(float(expected), rel=1e-6)


def test_what_cannot_be_weighted_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rows()
    with pytest.raises(InputError, match="all training rows are 0"):
        train({0: 0, 1: 0, 2: 0}, {"train": Samples(x, y, True)})
    monkeypatch.setattr(items, "READ_THROUGH", 30)
    with pytest.raises(DataError, match=r"training.class_weights: the train dataset has 40 items, too many"):
        train("balanced", {"train": Samples(x, y, False)})
