"""Batch normalization over virtual ranks: against torch's own over the whole batch."""

import copy
import ctypes
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trainwright
from trainwright.errors import ModelError
from trainwright.frameworks.torch.parallel.batch_norm import BatchNorms
from trainwright.frameworks.torch.parallel.lockstep import Lockstep
from trainwright.frameworks.torch.parallel.virtual_ranks import PartGradients
from trainwright.world import ALONE

EDGES = [0, 2, 5, 7, 10]  # of the virtual ranks of a batch of 10
SMALL: dict[str, Any] = {
    "experiment": {"name": "norm"},
    "data": {"type": "iris"},
    "model": {"type": "mlp", "hidden": [8], "normalization": "batch"},
    "training": {"max_steps": 8, "batch_size": 16, "optimizer": "sgd", "threads": 1},
    "tracking": [],
}


def network() -> nn.Sequential:
    """With what batch normalization may have and may lack."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 4, 3),
        nn.BatchNorm2d(4, affine=False, momentum=None),
        nn.Flatten(),
        nn.Linear(64, 5),
        nn.BatchNorm1d(5, track_running_stats=False),
    ).double()


class Parts:
    """The virtual ranks of one batch."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.x = torch.randn(10, 3, 8, 8, dtype=torch.float64)
        self.y = torch.randint(0, 5, (10,))
        self.gradients = [PartGradients(list(net.parameters())) for _ in range(4)]
        layers = {
            name: part
            for name, part in net.named_modules()
            if isinstance(part, nn.modules.batchnorm._BatchNorm)
        }
        self.norms = BatchNorms(net, layers, Lockstep([torch.default_generator], ALONE, 4))

    def function(self, rank: int) -> Callable[[], Tensor]:
        """Return what computes a virtual rank's share of the loss, and its gradients."""
        (start, stop) = list(pairwise(EDGES))[rank]

        def compute() -> Tensor:
            loss = nn.functional.cross_entropy(self.net(self.x[start:stop]), self.y[start:stop])
            share = loss * (stop - start) / len(self.x)
            self.gradients[rank].add(share)
            return share.detach()

        return compute

    def run(self) -> Tensor:
        """Run them all, and return the loss of the batch."""
        return torch.stack(self.norms.run([self.function(rank) for rank in range(4)])).sum()


def test_losses_gradients_and_statistics_are_those_of_the_whole_batch() -> None:
    parts = Parts(network())
    whole = copy.deepcopy(parts.net)
    loss = nn.functional.cross_entropy(whole(parts.x), parts.y)
    loss.backward()
    torch.testing.assert_close(parts.run(), loss.detach())
    sums: dict[str, Any] = {}
    for gradients in parts.gradients:
        gradients.put_back()
        for name, parameter in parts.net.named_parameters():
            sums[name] = sums.get(name, 0) + parameter.grad
    torch.testing.assert_close(sums, {name: one.grad for name, one in whole.named_parameters()})
    torch.testing.assert_close(dict(parts.net.named_buffers()), dict(whole.named_buffers()))
    parts.net.eval()
    whole.eval()
    torch.testing.assert_close(parts.net(parts.x), whole(parts.x))


def test_each_virtual_rank_has_its_own_random_stream() -> None:
    """Dropout draws between two normalizations, where the turn goes to the next one."""
    net = nn.Sequential(
        nn.Flatten(), nn.Dropout(), nn.BatchNorm1d(192), nn.Dropout(), nn.Linear(192, 5)
    ).double()
    parts, masks = Parts(net), []

    def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        masks.append(output == 0)

    net[3].register_forward_hook(record)

    def seeded(rank: int) -> Callable[[], Tensor]:
        def compute() -> Tensor:
            torch.manual_seed(rank)
            return parts.function(rank)()

        return compute

    parts.norms.run([seeded(rank) for rank in range(4)])
    for rank, (start, stop) in enumerate(pairwise(EDGES)):
        torch.manual_seed(rank)
        ones = torch.ones(stop - start, 192, dtype=torch.float64)
        nn.functional.dropout(ones)
        assert torch.equal(masks[rank], nn.functional.dropout(ones) == 0)


@pytest.mark.parametrize("broken", [0, 1, 3])
def test_one_that_fails_or_normalizes_less_often_ends_all(broken: int) -> None:
    parts = Parts(network())
    functions = [parts.function(rank) for rank in range(4)]

    def fail() -> Tensor:
        raise ValueError("mine")

    functions[broken] = fail
    with pytest.raises(ValueError, match="mine"):
        parts.norms.run(functions)
    functions[broken] = lambda: torch.zeros(())
    with pytest.raises(ModelError, match="in different orders"):
        parts.norms.run(functions)
    functions[broken] = lambda: parts.net[4](torch.randn(3, 4, 2, 2, dtype=torch.float64))
    with pytest.raises(ModelError, match="in different orders"):
        parts.norms.run(functions)
    assert parts.run().isfinite(), "and the next step is whole again"


def test_a_run_of_virtual_ranks_is_close_to_one_of_whole_batches(tmp_path: Path) -> None:
    runs = [
        trainwright.train(SMALL, {"distributed.virtual.data": ranks}, runs_dir=tmp_path) for ranks in (1, 4)
    ]
    assert runs[0].digest != runs[1].digest
    states = [trainwright.load(run).native.state_dict() for run in runs]
    torch.testing.assert_close(states[1], states[0], rtol=1e-3, atol=1e-4)


class Own(nn.BatchNorm1d):
    """Defines its own way to normalize."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize (batch, features)."""
        return super().forward(x) * 2


@pytest.mark.parametrize(
    ("layer", "overrides", "message"),
    [
        (Own, {}, r"1 \(Own\) normalizes over the batch in its own way"),
        (nn.BatchNorm1d, {"training.batch_size": 17}, "equally many microbatches; .* leave one of 1;"),
        (nn.BatchNorm1d, {"training.microbatch_size": 4, "training.batch_size": 35}, "leave one of 35;"),
    ],
)
def test_what_cannot_be_divided_is_refused(
    layer: type[nn.Module], overrides: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Linear(4, 8), layer(8), nn.Linear(8, 3))
    settings = {"distributed.virtual.data": 4, "model": {}, **overrides}
    with pytest.raises(ModelError, match=message):
        trainwright.train(SMALL, settings, runs_dir=tmp_path, model=model)


class Keeps(nn.Module):
    """Keeps a value in an attribute, or in a list, while it normalizes."""

    def __init__(self, in_list: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.kept: Any = [] if in_list else None
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 4) to (batch, 3)."""
        if isinstance(self.kept, list):
            self.kept.append(x)
            return self.out(self.norm(x) + self.kept.pop())
        self.kept = x
        x = self.norm(x) + self.kept
        self.kept = None
        return self.out(x)


def with_own_forward() -> nn.Module:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    model[0].forward = torch.tanh
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Keeps(False), "forward keeps kept in an attribute"),
        (lambda: Keeps(True), "forward keeps kept in an attribute"),
        (with_own_forward, r"0 \(BatchNorm1d\) normalizes over the batch in its own way"),
    ],
)
def test_what_the_virtual_ranks_would_mix_up_is_refused(
    make: Callable[[], nn.Module], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        trainwright.train(
            SMALL, {"distributed.virtual.data": 2, "model": {}}, runs_dir=tmp_path, model=make()
        )


def test_the_threads_of_virtual_ranks_compute_in_as_many_threads() -> None:
    """Kernels that ask the OpenMP library themselves get the number that torch was set to."""
    libraries = list((Path(torch.__file__).parent / "lib").glob("libgomp*")) + list(
        (Path(torch.__file__).parents[1] / "torch.libs").glob("libgomp*")
    )
    if not libraries:
        pytest.skip("this torch has no libgomp of its own")
    openmp = ctypes.CDLL(str(libraries[0]))
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        lockstep = Lockstep([torch.default_generator], ALONE, 2)
        assert lockstep.run([openmp.omp_get_max_threads] * 2) == [before + 1] * 2
    finally:
        torch.set_num_threads(before)


def test_hooks_on_gradients_are_refused(tmp_path: Path) -> None:
    overrides = {"distributed.virtual.data": 2, "model": {"type": "faulty_models:Hooked"}}
    with pytest.raises(ModelError, match=r"hooks, as on the gradient of 1\.weight, would not be called"):
        trainwright.train(SMALL, overrides, runs_dir=tmp_path)
