"""The sum of gradients over processes, which are threads here, against the same steps in one process."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from trainwright.config.schema import TrainingConfig
from trainwright.errors import WorldError
from trainwright.frameworks.support.prefetcher import Samples
from trainwright.frameworks.torch.optim.build import build_optimizer
from trainwright.frameworks.torch.optim.update import Clipping, Update
from trainwright.frameworks.torch.parallel import all_reduce as module
from trainwright.frameworks.torch.parallel.all_reduce import (
    Bucket,
    GradientAllReduce,
    _buckets,
    gather_tensor,
)
from trainwright.frameworks.torch.parallel.ddp import DataParallel
from trainwright.frameworks.torch.parallel.virtual_ranks import GradientTree
from trainwright.frameworks.torch.precision import Precision
from trainwright.frameworks.torch.step import StepSettings, TorchStep
from trainwright.order import STEP, Cursor, stream_seed
from trainwright.types import Ids
from trainwright.world import ALONE, Mesh, World

T = TypeVar("T")
SAMPLES, FEATURES = 40, 6
BATCHES = [16, 13, 3, 16, 5]  # with eight virtual ranks, most parts of the third are empty


class Operation(NamedTuple):
    """What one process sends to, or receives from, another one."""

    kind: str
    tensor: Tensor
    group: None
    group_peer: int


class Arrival(NamedTuple):
    """A tensor on its way."""

    target: Tensor
    source: Tensor

    def wait(self) -> None:
        self.target.copy_(self.source)


class Collectives:
    """What processes send to each other, between threads; in place of `torch.distributed`."""

    P2POp = Operation
    isend, irecv = "isend", "irecv"

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=60)
        self.calls = 0  # of the first process
        self._slots: list[Any] = [None] * size
        self._rank = threading.local()

    def connect(self, all_reduce: GradientAllReduce | None, rank: int) -> None:
        """Tell an all-reduce's thread, of which there is one, its rank."""
        assert all_reduce is not None
        all_reduce._thread.submit(lambda: setattr(self._rank, "value", rank)).result()

    def batch_isend_irecv(self, operations: list[Operation]) -> list[Any]:
        """Send; what is received arrives when it is waited for."""
        rank = self._rank.value
        self.calls += rank == 0
        self._slots[rank] = {
            one.group_peer: one.tensor for one in operations if one.kind == Collectives.isend
        }
        self.barrier.wait()
        receives = [one for one in operations if one.kind == Collectives.irecv]
        sent = [self._slots[one.group_peer][rank].clone() for one in receives]
        self.barrier.wait()
        return [Arrival(one.tensor, source) for one, source in zip(receives, sent, strict=True)]

    def together(self, function: Callable[[int], T]) -> list[T]:
        """Call a function in each process; where one fails, the others do not wait for it."""

        def call(rank: int) -> T:
            try:
                return function(rank)
            except BaseException:
                self.barrier.abort()
                raise

        with ThreadPoolExecutor(len(self._slots)) as pool:
            return list(pool.map(call, range(len(self._slots))))


class Member(World):
    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.mesh = rank, size, Mesh(data=size)


@pytest.fixture
def collectives(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Collectives]:
    """Returns the collectives of so many processes, and lets the all-reduce use them, with small buckets."""

    def make(size: int) -> Collectives:
        made = Collectives(size)
        monkeypatch.setattr(module, "dist", made)
        monkeypatch.setattr(module, "FIRST_BUCKET_BYTES", 40)
        monkeypatch.setattr(module, "BUCKET_BYTES", 100)
        return made

    return make


class Net(nn.Module):
    """Has what is hard to add up."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 7)
        self.twice = nn.Linear(7, 7, bias=False)
        self.transposed = nn.Parameter(torch.randn(3, 7).t())  # (7, 3)
        self.unused = nn.Parameter(torch.ones(3))
        self.seldom = nn.Parameter(torch.ones(7))  # some virtual ranks do not use it
        self.precise = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.ones(7), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.twice(torch.relu(self.twice(self.first(x))))) * self.frozen
        if x[0, 0] > 0:
            hidden = hidden * self.seldom
        return (hidden @ self.transposed) * self.precise.sum()


class Batches:
    """The order of the samples, and the samples."""

    def __init__(self) -> None:
        random = np.random.default_rng(3)
        self._order = [random.permutation(SAMPLES)[:size] for size in BATCHES]
        self._features = torch.from_numpy(random.normal(size=(SAMPLES, FEATURES)).astype(np.float32))

    def batch(self, step: int) -> Ids:
        return self._order[step]

    def cursor(self, step: int) -> Cursor:
        return Cursor(step, 0, 0)

    def draw_numbers(self, step: int) -> None:
        return None

    def take(self, ids: Ids) -> dict[str, Tensor]:
        return {"features": self._features[torch.from_numpy(ids)]}

    def take_from(self, samples: Samples) -> dict[str, Tensor]:
        return self.take(samples.ids)


def update_of(name: str, model: nn.Module, clip: float | None = None) -> Update:
    config = TrainingConfig.model_validate({"optimizer": {"type": name}})
    optimizer = build_optimizer(config, model, torch.device("cpu"))
    precision = Precision("fp32", torch.device("cpu"))
    return Update(optimizer, list(model.parameters()), precision, Clipping(clip))


def built(world: World, **settings: Any) -> tuple[Net, TorchStep]:
    """The same model in each process, and its step."""
    torch.manual_seed(1)
    model = Net()
    values: dict[str, Any] = {"seed": 5, "microbatch_size": 3} | settings
    step = TorchStep(
        lambda batch: model(batch["features"]),
        lambda outputs, batch: (outputs**2).mean(),
        update_of("adamw", model, clip=0.5),
        Precision("fp32", torch.device("cpu")),
        StepSettings(**values),
        strategy=DataParallel(world) if world.size > 1 else None,
    )
    return model, step


def all_reduce_in(step: TorchStep) -> GradientAllReduce:
    """The all-reduce of a step in one of several processes."""
    assert isinstance(step._strategy, DataParallel)
    assert step._strategy._all_reduce is not None
    return step._strategy._all_reduce


def train(model: Net, step: TorchStep) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return the losses of each step, and the weights; what is frozen is trained from the fourth step on."""
    batches: Any = Batches()
    losses = []
    for number in range(len(BATCHES)):
        model.frozen.requires_grad_(number >= 3)
        losses.append(step(number, 0.05, batches, batches).loss)
    return losses, model.state_dict()


@pytest.mark.parametrize(("size", "ranks"), [(2, 8), (4, 8), (2, 2), (4, 4)])
def test_the_bits_of_one_process(size: int, ranks: int, collectives: Callable[[int], Collectives]) -> None:
    alone, expected = train(*built(ALONE, virtual_ranks=ranks))
    together = collectives(size)
    pairs = [built(Member(rank, size), virtual_ranks=ranks) for rank in range(size)]
    for rank, (_, step) in enumerate(pairs):
        together.connect(all_reduce_in(step), rank)
    for rank, (losses, weights) in enumerate(together.together(lambda rank: train(*pairs[rank]))):
        share = ranks // size
        for mine, whole in zip(losses, alone, strict=True):
            assert torch.equal(mine, whole[rank * share : (rank + 1) * share])
        assert weights.keys() == expected.keys()
        for name, weight in weights.items():
            assert torch.equal(weight, expected[name]), name


def test_one_virtual_rank_is_what_nothing_is() -> None:
    plain, weights = train(*built(ALONE))
    losses, same = train(*built(ALONE, virtual_ranks=1))
    assert [float(loss) for loss in losses] == [float(loss) for loss in plain]
    assert all(torch.equal(same[name], weight) for name, weight in weights.items())


# -- which gradients travel together, and when


def all_reduce_of(
    parameters: list[Tensor], collectives: Collectives, rank: int = 0
) -> tuple[GradientAllReduce, Member]:
    world = Member(rank, len(collectives._slots))
    all_reduce = GradientAllReduce(parameters, GradientTree(parameters), world)
    collectives.connect(all_reduce, rank)
    return all_reduce, world


def weights(count: int, size: int = 4) -> list[Tensor]:
    return [torch.ones(size, requires_grad=True) for _ in range(count)]


def total(parameters: list[Tensor]) -> Tensor:
    """Gradients of 1, in the order of a backward pass: the last parameter first."""
    result = torch.zeros(())
    for parameter in parameters:
        result = result + parameter.sum()
    return result


def test_buckets_are_full_when_they_have_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_BUCKET_BYTES", 32)
    monkeypatch.setattr(module, "BUCKET_BYTES", 33)
    parameters = weights(7)
    parameters += [torch.ones(1, requires_grad=True, dtype=torch.float64), torch.ones(1), *weights(1)]
    buckets = _buckets(parameters, 2)
    # From the last parameter to the first; each number has four bytes, but for the one of eight; frozen ones last.
    assert [list(bucket.indices) for bucket in buckets] == [[9], [7], [6, 5, 4], [3, 2, 1], [0], [8]]
    assert [bucket.is_trained for bucket in buckets] == [True] * 5 + [False]
    assert all(
        [*map(id, bucket.parameters)] == [id(parameters[i]) for i in bucket.indices] for bucket in buckets
    )
    assert [list(one.indices) for one in _buckets(weights(5), 2)] == [[4, 3], [2, 1, 0]]


def backward(
    all_reduce: GradientAllReduce, parameters: list[Tensor], *, used: list[Tensor] | None = None
) -> None:
    """The last backward pass of a step."""
    all_reduce.arm()
    total(parameters if used is None else used).backward()


def test_gradients_set_out_during_the_backward_pass(collectives: Callable[[int], Collectives]) -> None:
    """From the second step on, and only in the last part of a step."""
    together = collectives(1)
    parameters = weights(8)  # of 16 bytes each: a bucket of 3, and one of 5
    all_reduce, _ = all_reduce_of(parameters, together)
    for step in range(3):
        total(parameters).backward()
        assert all(parameter.grad is not None for parameter in parameters)
        all_reduce._tree.take()
        backward(all_reduce, parameters)
        gone = [parameter.grad is None for parameter in parameters]
        assert gone == [step > 0] * 8
        all_reduce.finish()
        assert together.calls == 2 * 2 * (step + 1), "two for each bucket: there, and back"
        for parameter in parameters:
            assert parameter.grad is not None
            assert parameter.grad.tolist() == [2.0] * 4
            parameter.grad = None


def test_buckets_set_out_in_their_order(collectives: Callable[[int], Collectives]) -> None:
    """What the loss does not depend on waits for the end, and all that comes after it."""
    together = collectives(1)
    parameters = weights(8)
    all_reduce, _ = all_reduce_of(parameters, together)
    for without in (None, 7, 1):
        used = [parameter for i, parameter in enumerate(parameters) if i != without]
        backward(all_reduce, parameters, used=used)
        left = [i for i, parameter in enumerate(parameters) if parameter.grad is not None]
        # The first bucket has the last three.
        assert left == {None: list(range(8)), 7: list(range(7)), 1: [0, 2, 3, 4]}[without]
        all_reduce.finish()
        assert [i for i, parameter in enumerate(parameters) if parameter.grad is None] == (
            [] if without is None else [without]
        )
        for parameter in parameters:
            parameter.grad = None
    sizes = [bucket.numel for bucket in all_reduce._buckets]
    assert sizes == [3 * 4 + 3, 5 * 4 + 5], "numbers, and for each gradient a flag"
    assert together.calls == 2 * 2 * 3


@pytest.mark.parametrize("is_first", [True, False])
def test_gradients_that_come_in_two_parts(is_first: bool, collectives: Callable[[int], Collectives]) -> None:
    """In the first step, all later ones wait for the end; after it, it is too late."""
    together = collectives(1)
    parameters = weights(8)
    all_reduce, _ = all_reduce_of(parameters, together)
    all_reduce.finish()  # of a process whose part is empty: it says nothing of the others
    if is_first:
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = None
            backward(all_reduce, parameters)
            total(parameters).backward()
            assert all(parameter.grad is not None for parameter in parameters)
            all_reduce.finish()
            assert [parameter.grad.tolist() for parameter in parameters if parameter.grad is not None] == [
                [2.0] * 4
            ] * 8
    else:
        backward(all_reduce, parameters)
        all_reduce.finish()
        backward(all_reduce, parameters)
        with pytest.raises(WorldError, match="a parameter got its gradient in two parts"):
            total(parameters).backward()


def test_one_parameter_in_two_processes(collectives: Callable[[int], Collectives]) -> None:
    """The second one computes nothing; the sum has the sign of a zero that the first one has."""
    together = collectives(2)

    def run(rank: int) -> Tensor | None:
        parameters = [torch.full((3,), -0.0, requires_grad=True)]
        all_reduce, _ = all_reduce_of(parameters, together, rank)
        if rank == 0:
            all_reduce.arm()
            (parameters[0] * parameters[0].detach().clone().fill_(-0.0)).sum().backward()
        all_reduce.finish()
        return parameters[0].grad

    for gradient in together.together(run):
        assert gradient is not None
        assert torch.signbit(gradient).all()


def test_a_model_of_one_parameter() -> None:
    """Three samples for four virtual ranks, one of which has none."""
    weight = nn.Parameter(torch.ones(FEATURES))
    step = TorchStep(
        lambda batch: batch["features"] @ weight,
        lambda outputs, batch: outputs.mean(),
        update_of("sgd", nn.ParameterList([weight])),
        Precision("fp32", torch.device("cpu")),
        StepSettings(0, 8, 4),
    )
    batches: Any = Batches()
    result = step(2, 0.5, batches, batches)
    rows = batches.take(batches.batch(2))["features"]
    assert result.samples == 3
    assert [float(loss) for loss in result.loss] == pytest.approx(
        [0.0, *(float(row.sum()) / 3 for row in rows)]
    )
    assert torch.allclose(weight.detach(), 1 - 0.5 * rows.mean(dim=0))


def test_a_process_that_waits_for_another_says_so(
    collectives: Callable[[int], Collectives], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = collectives(2)
    made = [all_reduce_of(weights(2), together, rank) for rank in range(2)]
    begun = threading.Event()

    class Waiting:
        def __enter__(self) -> None:
            begun.set()

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(module, "waiting", Waiting())

    def run(rank: int) -> list[Tensor | None]:
        all_reduce, _ = made[rank]
        parameters: Any = all_reduce._parameters
        all_reduce.arm()
        total(parameters).backward()
        if rank == 1:
            assert begun.wait(30)
        all_reduce.finish()
        return [parameter.grad for parameter in parameters]

    for gradients in together.together(run):
        assert [gradient.tolist() for gradient in gradients if gradient is not None] == [[2.0] * 4] * 2


def test_a_process_that_is_gone_is_an_error_of_the_world(
    collectives: Callable[[int], Collectives], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = collectives(1)
    all_reduce, _ = all_reduce_of(weights(2), together)

    def gone(*_: Tensor) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(together, "batch_isend_irecv", gone)
    with pytest.raises(WorldError, match="another process is gone"):
        all_reduce.finish()


def test_too_little_memory_is_no_lost_process(
    collectives: Callable[[int], Collectives], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = collectives(1)
    all_reduce, _ = all_reduce_of(weights(2), together)

    def full(*_: Tensor) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(together, "batch_isend_irecv", full)
    with pytest.raises(torch.OutOfMemoryError):
        all_reduce.finish()


def test_an_all_reduce_that_is_closed_leaves_the_parameters_alone(
    collectives: Callable[[int], Collectives],
) -> None:
    """Another one, of fewer parameters, comes in its place."""
    parameters = weights(3)
    first, _ = all_reduce_of(parameters, collectives(1))
    first.close()
    first.arm()
    total(parameters).backward()
    assert first._seen == set()
    with pytest.raises(RuntimeError, match="after shutdown"):
        first._thread.submit(print)


def test_a_tensor_of_each_process_is_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    value, other = torch.tensor([[1.0, -0.0]]), torch.tensor([[3.0, 4.0]])
    (alone,) = gather_tensor(value, ALONE)
    assert alone is value

    def gather(rows: Tensor, mine: Tensor) -> None:
        rows.copy_(torch.cat([other.view(torch.uint8).view(-1), mine]))

    monkeypatch.setattr(module, "all_gather", gather)
    rows = gather_tensor(value, Member(1, 2))
    assert [row.tolist() for row in rows] == [other.tolist(), value.tolist()]
    assert torch.signbit(rows[1][0, 1])

    def gone(*_: Tensor) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(module, "all_gather", gone)
    with pytest.raises(WorldError, match="another process is gone"):
        gather_tensor(value, Member(0, 2))


# -- what travels


def test_gradients_travel_as_they_are() -> None:
    gaps = torch.zeros(2, 6)[:, ::2]  # (2, 3), with gaps in memory
    parameters = [torch.zeros(3, 2).t(), torch.zeros(()), torch.zeros(4), torch.zeros(0), gaps]
    gradients: list[Tensor | None] = [
        torch.arange(6.0).view(3, 2).t(),
        torch.tensor(-0.0),
        None,
        torch.zeros(0),
        torch.arange(6.0).view(2, 3),
    ]
    bucket = Bucket(range(5), parameters, 8)
    flat = bucket.packed(gradients).clone()
    assert len(flat) == 24, "17 numbers and 5 flags, for 8 processes"
    for one, other, parameter in zip(bucket.unpacked(flat), gradients, parameters, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert torch.equal(one, other)
            assert torch.equal(torch.signbit(one), torch.signbit(other))
            assert one.stride() == ((3, 1) if parameter is gaps else parameter.stride())
    # A process without this gradient changes no bit of it, not even the sign of a zero.
    nothing = bucket.packed([None] * 5)
    assert bucket.unpacked(nothing) == [None] * 5
    with_nothing = flat + nothing
    assert torch.equal(torch.signbit(with_nothing[:7]), torch.signbit(flat[:7]))


def test_the_last_part_joins_the_tree_when_it_is_ready() -> None:
    parameters = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    values = torch.tensor([1e8, 1.0, -1e8, 1.0])
    tree = GradientTree(parameters)
    for value in values[:-1]:
        for parameter in parameters:
            parameter.grad = value.clone().view(1)
        tree.take()
    for parameter in parameters:
        parameter.grad = values[-1].clone().view(1)
    (total,) = tree.with_last([1])
    assert total is not None
    assert total.item() == ((values[0] + values[1]) + (values[2] + values[3])).item()


def test_a_gradient_that_an_optimizer_keeps_stays_as_it_is() -> None:
    """The memory of the buckets is used again, but not then."""
    bucket = Bucket([0], [torch.zeros(3)], 2)
    first = bucket.packed([torch.ones(3)])
    address = first.data_ptr()
    (kept,) = bucket.unpacked(first)
    assert kept is not None
    kept = kept.detach()[1:]
    bucket.packed([torch.full((3,), 2.0)])
    assert kept.tolist() == [1, 1]
    del first, kept
    second = bucket.packed([torch.full((3,), 3.0)])
    assert second.data_ptr() != address
    address = second.data_ptr()
    del second
    assert bucket.packed([torch.ones(3)]).data_ptr() == address


class Noisy(torch.optim.Optimizer):
    """Draws a number in each update."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.drawn: list[float] = []
        self.rates: list[float] = []

    def step(self, closure: Any = None) -> None:
        self.drawn.append(torch.rand(()).item())
        self.rates.append(self.param_groups[0]["lr"])


def test_what_an_update_draws_depends_on_seed_and_step_alone() -> None:
    """Its stream has the number that no virtual rank can have, and is fixed: older runs go on with it."""
    model, batches = Net(), Batches()
    optimizer = Noisy(model.parameters())
    precision = Precision("fp32", torch.device("cpu"))
    step = TorchStep(
        lambda batch: model(batch["features"]),
        lambda outputs, batch: (outputs**2).mean(),
        Update(optimizer, list(model.parameters()), precision, Clipping(None)),
        precision,
        StepSettings(seed=5, microbatch_size=3),
    )
    rates = [0.5, 0.25, 0.125]
    for number, rate in enumerate(rates):
        step(number, rate, batches, batches)  # type: ignore[arg-type]
    expected = []
    for number in range(3):
        torch.manual_seed(stream_seed(stream_seed(5, STEP), number, 2**64 - 1))
        expected.append(torch.rand(()).item())
    assert (optimizer.drawn, optimizer.rates) == (expected, rates)


@pytest.mark.parametrize(
    ("size", "norms", "is_timed"), [(1, None, False), (2, None, True), (2, "some", False)]
)
def test_own_work_is_timed_where_it_can_be_told_from_waiting(
    size: int, norms: Any, is_timed: bool, collectives: Callable[[int], Collectives]
) -> None:
    """One process waits for nobody; with synchronized norms, processes wait in the middle of their work."""
    together = collectives(size)
    model = Net()
    members = [Member(rank, size) if size > 1 else ALONE for rank in range(size)]
    steps = [
        TorchStep(
            lambda batch: model(batch["features"]),
            lambda outputs, batch: (outputs**2).mean(),
            update_of("sgd", model),
            Precision("fp32", torch.device("cpu")),
            StepSettings(seed=5, microbatch_size=3, virtual_ranks=2),
            strategy=DataParallel(member) if size > 1 else None,
            batch_norms=norms,
        )
        for member in members
    ]
    assert {step._is_timed for step in steps} == {is_timed}
    assert together.calls == 0


def test_a_timed_step_is_measured_from_its_begin_to_the_all_reduce(
    collectives: Callable[[int], Collectives],
) -> None:
    together = collectives(2)
    pairs = [built(Member(rank, 2), virtual_ranks=4) for rank in range(2)]
    marks = [0, 0]

    def count(rank: int) -> None:
        marks[rank] += 1

    for rank, (_, step) in enumerate(pairs):
        together.connect(all_reduce_in(step), rank)
        step.stopwatch.mark = partial(count, rank)  # type: ignore[method-assign]
    together.together(lambda rank: train(*pairs[rank]))
    assert marks == [2 * len(BATCHES)] * 2
