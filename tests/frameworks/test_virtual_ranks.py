"""The parts of a batch, and the tree that their gradients are summed by."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainwright
from small_runs import SMALL
from trainwright.errors import ConfigError, ModelError
from trainwright.frameworks.torch.parallel.virtual_ranks import (
    GradientTree,
    PartGradients,
    cut,
    microbatches,
    tree_sum,
)


@pytest.mark.parametrize(("samples", "ranks"), [(12, 4), (13, 4), (3, 8), (1, 1), (64, 2)])
def test_the_parts_are_the_batch_in_its_order(samples: int, ranks: int) -> None:
    parts = cut(np.arange(samples), ranks)
    assert len(parts) == ranks
    assert [i for part in parts for i in part] == list(range(samples))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_microbatches_are_full_but_for_the_last() -> None:
    cuts = {
        samples: [part.tolist() for part in microbatches(np.arange(samples), 3)] for samples in (0, 1, 3, 7)
    }
    assert cuts == {0: [], 1: [[0]], 3: [[0, 1, 2]], 7: [[0, 1, 2], [3, 4, 5], [6]]}


def test_the_gradients_of_a_part_are_those_of_backward_passes() -> None:
    """The loss does not depend on the second parameter, the third one is frozen, the fourth is added as it is."""
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    ours, torchs = ([torch.nn.Parameter(torch.arange(3.0)) for _ in range(5)] for _ in range(2))
    part = PartGradients(ours)
    for parameters in (ours, torchs):
        parameters[2].requires_grad_(False)
        for some in (rows[:2], rows[2:4], rows[4:]):
            first, _, frozen, fourth, fifth = parameters
            loss = (some @ (first * frozen) + (fourth + fifth).sum()).sum()
            if parameters is ours:
                part.add(loss)
            else:
                loss.backward()
    assert [parameter.grad for parameter in ours] == [None] * 5
    part.put_back()
    for one, other in zip(ours, torchs, strict=True):
        assert (one.grad is None) == (other.grad is None)
        assert one.grad is None or torch.equal(one.grad, other.grad)


def by_halves(values: list[Any]) -> Any:
    """The sum of the first half and that of the second half; None counts as nothing."""
    if len(values) == 1:
        return values[0]
    left, right = by_halves(values[: len(values) // 2]), by_halves(values[len(values) // 2 :])
    if left is None or right is None:
        return right if left is None else left
    return np.float32(left + right)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
def test_the_tree_adds_halves_to_halves(ranks: int) -> None:
    random = np.random.default_rng(ranks)
    # Numbers whose sum depends on the order, and parameters that the loss does not always depend on.
    table = [
        [np.float32(random.normal() * 10.0 ** random.integers(-6, 6)) for _ in range(3)] for _ in range(ranks)
    ]
    missing = random.random((ranks, 3)) < 0.3
    missing[:, 2] = True
    parameters = [torch.zeros(1, requires_grad=True) for _ in range(3)]
    tree = GradientTree(parameters)
    for row, gone in zip(table, missing, strict=True):
        for parameter, value, is_gone in zip(parameters, row, gone, strict=True):
            parameter.grad = None if is_gone else torch.tensor([value])
        tree.take()
        assert all(parameter.grad is None for parameter in parameters)
    tree.put_back()
    for i, parameter in enumerate(parameters):
        expected = by_halves([None if gone[i] else row[i] for row, gone in zip(table, missing, strict=True)])
        assert (parameter.grad is None) == (expected is None)
        assert parameter.grad is None or parameter.grad.item() == expected
    values = [row[0] for row in table]
    assert tree_sum([torch.tensor(value) for value in values]).item() == by_halves(values)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_sum_is_put_where_it_is_asked_for(count: int) -> None:
    """Of a single tensor, too: as where one process has all shards."""
    out = torch.zeros(3)
    assert tree_sum([torch.arange(3.0)] * count, out=out) is out
    assert out.tolist() == [0.0, count, 2.0 * count]


@pytest.mark.parametrize("sparse", [{0}, {1}, {0, 1}, {0, 3}, {0, 1, 2, 3}])
def test_sparse_gradients_are_added_to_dense_ones(sparse: set[int]) -> None:
    """As of an embedding that some parts of a batch also use as a matrix."""
    parameter = torch.zeros(4, 3, requires_grad=True)
    tree, table = GradientTree([parameter]), torch.randn(4, 4, 3, generator=torch.Generator().manual_seed(0))
    for rank, gradient in enumerate(table):
        parameter.grad = gradient.clone().to_sparse(1) if rank in sparse else gradient.clone()
        tree.take()
    tree.put_back()
    assert parameter.grad is not None
    total = parameter.grad.to_dense()
    assert torch.equal(total, (table[0] + table[1]) + (table[2] + table[3]))


def test_one_virtual_rank_is_none(tmp_path: Path) -> None:
    plain = trainwright.train(SMALL, runs_dir=tmp_path)
    again = trainwright.train(SMALL, {"distributed.virtual.data": 1}, runs_dir=tmp_path)
    parts = trainwright.train(SMALL, {"distributed.virtual.data": 4}, runs_dir=tmp_path)
    assert (plain.digest, plain.manifest["computation_hash"]) == (
        again.digest,
        again.manifest["computation_hash"],
    )
    assert parts.digest != plain.digest
    assert parts.manifest["computation_hash"] != plain.manifest["computation_hash"]


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        ({"distributed.virtual.data": 3}, ConfigError, "3 is not a power of two"),
        ({"distributed.virtual.data": 0}, ConfigError, "0 is not a power of two"),
        ({"distributed.virtual.data": 32}, ConfigError, "32 is more than the batch_size of 16"),
        (
            {"distributed.virtual.data": 2, "model": "logistic_regression"},
            ModelError,
            "sklearn computes a step as a whole",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    overrides: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        trainwright.train(
            {**SMALL, **({"model": overrides.pop("model")} if "model" in overrides else {})},
            overrides,
            runs_dir=tmp_path,
        )


class Averaging(torch.nn.Module):
    """Keeps a running mean of what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, 4) to (batch, 3)."""
        if self.training and torch.is_grad_enabled():
            self.mean.lerp_(x.mean(dim=0), 0.1)
        return self.layer(x - self.mean)


def test_a_buffer_that_each_process_would_change_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="training changes the buffer mean"):
        trainwright.train(
            SMALL, {"distributed.virtual.data": 2, "model": {}}, runs_dir=tmp_path, model=Averaging()
        )
