"""A pipeline ends with the bits of one process that adds up everything in order."""

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import Queue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from staged_runs import (
    BATCHES,
    CPU,
    MODELS,
    SEED,
    Batches,
    Case,
    Result,
    Run,
    digest,
    gpt,
    in_processes,
    loss_of,
    model_of,
    result_of,
)
from torch import Tensor, nn
from torch.nn import functional

from trainwright.errors import InputError, ModelError
from trainwright.frameworks.torch.parallel.pipeline.links import Channel, Links
from trainwright.frameworks.torch.parallel.pipeline.pipeline import Pipeline
from trainwright.frameworks.torch.parallel.pipeline.schedule import (
    GPIPE,
    INTERLEAVED,
    ONE_F_ONE_B,
    SCHEDULES,
    ZERO_BUBBLE,
    Action,
    Kind,
    process_of,
    schedule,
)
from trainwright.frameworks.torch.parallel.pipeline.split import split
from trainwright.frameworks.torch.parallel.pipeline.uses import uses_of
from trainwright.order import STEP, stream_seed

# --- a loop written out for a GPT with tied embeddings


def _stage(model: Any, index: int, stages: int, given: Tensor, head: Tensor) -> Tensor:
    """One stage of equal numbers of blocks, of (rows, length) tokens or (rows, length, width)."""
    hidden, blocks = given, len(model.blocks) // stages
    if index == 0:
        positions = model.position_embedding(torch.arange(given.shape[1]))
        hidden = model.dropout(model.token_embedding(given) + positions)
    for block in model.blocks[index * blocks : (index + 1) * blocks]:
        hidden = block(hidden, None)
    return functional.linear(model.norm(hidden), head) if index == stages - 1 else hidden


def _microbatch(
    model: Any, stages: int, batch: dict[str, Tensor], seed: int, factor: float
) -> list[Tensor | None]:
    """The gradients of one microbatch: the parameters, and the embedding once more, as the output layer."""
    table = model.token_embedding.weight
    head = table.detach().clone().requires_grad_() if stages > 1 else table
    wanted = [*model.parameters(), head]
    begins, ends = [batch["input_ids"]], []
    for index in range(stages):
        key = seed if index == 0 else stream_seed(seed, index)
        torch.default_generator.manual_seed(key & 0xFFFFFFFF)
        end = _stage(model, index, stages, begins[-1], head)
        ends.append(end)
        begins.append(end.detach().clone().requires_grad_())
    loss = loss_of(ends.pop(), batch) * factor
    found: list[Tensor | None] = [None] * len(wanted)
    back = None
    for index in reversed(range(stages)):
        output = loss if index == stages - 1 else ends[index]
        inputs = [*wanted, *([begins[index]] if index else [])]
        got = list(torch.autograd.grad(output, inputs, back, allow_unused=True))
        back = got.pop() if index else None
        found = [one if other is None else other for one, other in zip(found, got, strict=True)]
    return found if stages > 1 else [*found[:-1], None]


def _plain(stages: int, ranks: int, microbatch: int) -> dict[str, Tensor]:
    torch.manual_seed(1)
    model, batches = gpt(), Batches()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, 1e-2, weight_decay=0.0, fused=True)
    for step, size in enumerate(BATCHES):
        ids, trees = batches.batch(step), []
        for rank in range(ranks):
            part = ids[size * rank // ranks : size * (rank + 1) // ranks]
            sums: list[Tensor | None] = [None] * (len(parameters) + 1)
            for number, start in enumerate(range(0, len(part), microbatch)):
                some = part[start : start + microbatch]
                stream = (step,) if ranks == 1 else (step, rank)
                seed = stream_seed(stream_seed(SEED, STEP), *stream, number)
                got = _microbatch(model, stages, batches.take(some), seed, len(some) / size)
                sums = [
                    one if two is None else two if one is None else one + two
                    for one, two in zip(sums, got, strict=True)
                ]
            if sums[-1] is not None and sums[0] is not None:
                sums[0] = sums[0] + sums[-1]  # the first parameter is the embedding
            trees.append(
                [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, sums, strict=False)]
            )
        while len(trees) > 1:
            pairs = zip(trees[::2], trees[1::2], strict=True)
            trees = [[a + b for a, b in zip(*pair, strict=True)] for pair in pairs]
        for parameter, gradient in zip(parameters, trees[0], strict=True):
            parameter.grad = gradient
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize(("stages", "ranks"), [(1, 1), (1, 4), (2, 1), (2, 2), (4, 4)])
def test_one_process_is_a_plain_loop(stages: int, ranks: int) -> None:
    wanted = digest(_plain(stages, ranks, 4))
    for name in (ONE_F_ONE_B, ZERO_BUBBLE):
        assert result_of(Case(stages=stages, ranks=ranks, schedule=name)).digest == wanted, name


# --- several processes, and other models

ROWS = [
    Case(),
    Case(ranks=4),
    Case(stages=4, ranks=4),
    Case("untied", stages=4, ranks=2, microbatch=2),  # a stage begins a rank before another one ends the last
    Case(stages=4, ranks=2, precision="bf16"),
    Case("llama", stages=4, ranks=2),
    Case("llama", ranks=2, precision="bf16"),
    Case("gpt2", ranks=2),
    Case("encoder", ranks=2),
    Case("repeated", stages=4, ranks=2),
    Case(ranks=2, first_blocks=("blocks.1",)),
]


def _spread(row: Case) -> list[Case]:
    """The same training in all ways over 2 and 4 processes."""
    names = SCHEDULES if row.model in ("gpt", "untied") else (ONE_F_ONE_B, ZERO_BUBBLE)
    return [
        replace(row, processes=processes, schedule=name, separate=name == GPIPE and processes == 4)
        for processes in (2, 4)
        if row.stages % processes == 0
        for name in names
    ]


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, Result]:
    cases = [one for row in ROWS for one in _spread(row)]
    return in_processes(cases, tmp_path_factory.mktemp("spread") / "store")


@pytest.mark.services
@pytest.mark.parametrize("row", ROWS)
def test_processes_and_schedules_change_no_bits(row: Case, spread: dict[Case, Result]) -> None:
    """Weights, losses of each virtual rank, and what is predicted."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the processes, whatever other tests have set here
    alone = result_of(row)
    torch.set_num_threads(threads)
    for case in _spread(row):
        result = spread[case]
        assert (result.digest, result.losses, result.outputs) == (
            alone.digest,
            alone.losses,
            alone.outputs,
        ), case


@pytest.mark.services
def test_a_process_has_what_its_stages_use(spread: dict[Case, Result]) -> None:
    """The embedding, which is the output layer too, is in the first and in the last one."""
    names = set(gpt().state_dict())
    held = spread[Case(stages=4, ranks=4, processes=4)].held
    blocks = [{name for name in names if name.startswith(f"blocks.{stage}.")} for stage in range(4)]
    tied = "token_embedding.weight"
    assert list(map(set, held)) == [
        blocks[0] | {tied, "position_embedding.weight"},
        blocks[1],
        blocks[2],
        blocks[3] | {tied, "norm.weight", "norm.bias"},
    ]
    held = spread[Case(stages=4, ranks=4, processes=2, schedule=INTERLEAVED)].held
    assert {name.split(".")[1] for name in held[0] if name.startswith("blocks")} == {"0", "2"}


@pytest.mark.parametrize("name", MODELS)
def test_stages_compute_what_the_whole_model_does(name: str) -> None:
    """Up to rounding, without dropout: outputs and gradients of a batch."""
    run = Run(Case(name, stages=4))
    for part in (*run.module.modules(),):
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    run.module.eval()  # attention has a dropout of its own
    batch = run.batches.take(np.arange(5))
    whole = model_of(name).eval()
    loss = loss_of(whole(batch["input_ids"]), batch)
    loss.backward()
    hidden: Any = None
    outputs: list[Any] = []
    begins: list[Any] = []
    for stage in range(4):
        begins.append(hidden)
        outputs.append(run.pipeline.compute(stage, hidden, 3, lambda: run.call(batch)))
        hidden = outputs[-1].detach().requires_grad_() if stage < 3 else None
    found = loss_of(outputs[-1], batch)
    found.backward()
    for stage in (2, 1, 0):
        outputs[stage].backward(begins[stage + 1].grad)
    torch.testing.assert_close(found, loss)
    ours = {name: one.grad for name, one in run.module.named_parameters()}
    for key, one in whole.named_parameters():
        torch.testing.assert_close(ours[key], one.grad, rtol=1e-4, atol=1e-6)


# --- stages


def _stages_of(module: nn.Module, count: int) -> list[int]:
    return list(split(module, count).firsts)


def test_the_largest_stage_is_as_small_as_can_be() -> None:
    """Embedding and head count as a block each; without them, only blocks do."""
    model = gpt()
    model.blocks.extend([*gpt().blocks[:2]])
    assert _stages_of(model, 4) == [0, 1, 3, 5]
    assert _stages_of(nn.Sequential(*(nn.Linear(8, 8) for _ in range(6))), 3) == [0, 2, 4]
    widths = [64, 8, 8, 8, 8]
    uneven = nn.Sequential(*(nn.Sequential(nn.Linear(8, one), nn.Linear(one, 8)) for one in widths))
    assert _stages_of(uneven, 2) == [0, 1]


@pytest.mark.parametrize(
    ("count", "first_blocks", "said"),
    [
        (5, (), "5 stages given, but Gpt has 4 blocks, from blocks.0 to blocks.3; give at most 4, such as"),
        (3, ("blocks.1",), "1 blocks given for 3 stages"),
        (2, ("blocks.7",), "blocks.7 is none of blocks.0 to blocks.3"),
        (3, ("blocks.2", "blocks.1"), "in the order of the model"),
        (2, ("norm",), "norm is not a member of a sequence"),
    ],
)
def test_a_wrong_split_is_refused(count: int, first_blocks: tuple[str, ...], said: str) -> None:
    with torch.device("meta"):  # shapes alone are read
        model = gpt()
    with pytest.raises(ModelError, match=said.replace(".", r"\.")):
        split(model, count, first_blocks)


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ModelError, match=r"Linear has no sequence of blocks; a pipeline needs"):
        split(nn.Linear(3, 3), 2)


class _Skipping(nn.Module):
    """Blocks that need more than the hidden state."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.embedding = nn.Linear(6, 6)
        self.normal = nn.BatchNorm1d(6)
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        first = self.embedding(x)
        if self.how == "counts":
            first = self.normal(first)
        hidden = self.blocks[0](first)
        if self.how == "twice":
            hidden = self.blocks[0](hidden)
        hidden = self.blocks[1](hidden)
        return hidden + first if self.how == "skips" else hidden


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("skips", "uses what embedding"),
        ("twice", "calls blocks.0 where the block after 1 others has its turn"),
        ("counts", "changes the buffer normal"),
    ],
)
def test_what_cannot_be_cut_is_refused(how: str, said: str) -> None:
    model = _Skipping(how)
    stages = split(model, 2)
    with pytest.raises(ModelError, match=said):
        uses_of(model, stages, lambda batch: model(batch["x"]), {"x": torch.ones(3, 6)})
    fine = _Skipping("")
    uses = uses_of(fine, stages, lambda batch: fine(batch["x"]), {"x": torch.ones(3, 6)})
    assert uses.stages["blocks.1.weight"] == (1,)
    assert uses.stages["normal.weight"] == (0,)


class _Links:
    """What a pipeline asks of its processes before it sends anything."""

    def __init__(self, index: int, size: int) -> None:
        self.index, self.size = index, size

    def open(self, channels: Any, device: torch.device) -> None:
        pass


def test_stages_of_a_model_on_meta_take_no_memory() -> None:
    """What other processes have is gone, and the forward pass of the preamble still works."""
    with torch.device("meta"):
        model = gpt()
        model.blocks[0].register_buffer("counts", torch.zeros(9))
    whole = set(model.state_dict())

    def call(batch: dict[str, Tensor]) -> Any:
        return model(batch["input_ids"])

    stages = split(model, 2)
    uses = uses_of(model, stages, call, Batches().take(np.zeros(1, np.int64)))
    assert uses.stages["token_embedding.weight"] == (0, 1)
    links: Any = _Links(1, 2)
    pipeline = Pipeline(model, stages, uses, links=links)
    pipeline.place(CPU)
    assert {name.split(".")[1] for name in model.state_dict() if name.startswith("blocks")} == {"2", "3"}
    assert {"position_embedding.weight", "blocks.0.counts"} <= pipeline.elsewhere
    assert pipeline.elsewhere | set(model.state_dict()) == whole
    position: Any = model.position_embedding
    assert position.weight.untyped_storage().nbytes() == 4
    assert position.weight.device == CPU


def test_parameters_are_in_row_major_order() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4))
    model[1].weight = nn.Parameter(torch.ones(4, 4).t() * torch.ones(4, 4).t())
    stages = split(model, 2)
    uses = uses_of(model, stages, lambda batch: model(batch["x"]), {"x": torch.ones(3, 3)})
    links: Any = _Links(0, 2)
    with pytest.raises(ModelError, match=r"1\.weight is not in row-major order"):
        Pipeline(model, stages, uses, links=links).place(CPU)


def test_processes_must_divide_the_stages() -> None:
    model = gpt()
    stages = split(model, 4)
    uses = uses_of(model, stages, lambda batch: model(batch["input_ids"]), Batches().take(np.zeros(1, int)))
    links: Any = _Links(0, 3)
    with pytest.raises(InputError, match=r"do not divide the 4 stages .* give 1, 2, 4"):
        Pipeline(model, stages, uses, links=links)


class _Connecting:
    """What NCCL does to `Links`: the first transfer over a group waits for its other end."""

    def __init__(self, size: int) -> None:
        self.size, self.mine = size, threading.local()
        self.meetings: defaultdict[int, threading.Barrier] = defaultdict(lambda: threading.Barrier(2))
        self.sent: defaultdict[int, Queue[Tensor]] = defaultdict(Queue)

    def get_rank(self, _: Any) -> int:
        rank: int = self.mine.rank
        return rank

    def get_world_size(self, _: Any = None) -> int:
        return self.size

    def get_process_group_ranks(self, _: Any) -> list[int]:
        return list(range(self.size))

    def get_backend(self, _: Any) -> str:
        return "nccl"

    def all_gather_object(self, everyone: list[Any], own: Any) -> None:
        everyone[:] = [own] * self.size

    def new_group(self, _: Any) -> int:
        self.mine.groups = getattr(self.mine, "groups", 0) + 1
        groups: int = self.mine.groups
        return groups

    def isend(self, tensor: Tensor, dst: int, group: int) -> Any:
        return self._transferred(group, lambda: self.sent[group].put(tensor))

    def irecv(self, tensor: Tensor, src: int, group: int) -> Any:
        return self._transferred(group, lambda: tensor.copy_(self.sent[group].get(timeout=20)))

    def _transferred(self, group: int, transfer: Any) -> Any:
        if group not in vars(self.mine).setdefault("connected", set()):
            self.meetings[group].wait(timeout=20)
            self.mine.connected.add(group)
        return SimpleNamespace(wait=transfer, is_completed=lambda: False)


def test_channels_are_connected_before_the_first_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first stage would wait in its look ahead for a gradient, and the others for its next pass."""
    size = 3
    nccl = _Connecting(size)
    monkeypatch.setattr("trainwright.frameworks.torch.parallel.pipeline.links.dist", nccl)
    pairs = [(0, 1), (1, 2), (1, 0), (2, 1), (0, 2)]
    channels = [Channel(tag, *pair) for tag, pair in enumerate(pairs)]

    def connected(rank: int) -> set[int]:
        nccl.mine.rank = rank
        Links(None).open(channels, CPU)
        groups: set[int] = nccl.mine.connected
        return {channels[group - 1].tag for group in groups}

    with ThreadPoolExecutor(size) as threads:
        seen = list(threads.map(connected, range(size)))
    assert seen == [{tag for tag, pair in enumerate(pairs) if rank in pair} for rank in range(size)]


# --- schedules


@pytest.mark.parametrize("name", SCHEDULES)
def test_each_stage_takes_the_microbatches_in_order(name: str) -> None:
    """For any number of microbatches, and no process waits for ever."""
    for processes in range(1, 6):
        for owned in range(1, 4):
            stages = processes * owned
            for microbatches in range(12):
                made = schedule(name, stages, processes, microbatches)
                for stage in range(stages):
                    process = process_of(stage, stages, processes, name)
                    found: dict[Kind, list[int]] = {}
                    for one in made.actions[process]:
                        if one.stage == stage:
                            found.setdefault(one.kind, []).append(one.microbatch)
                    parts = {Kind.INPUT, Kind.WEIGHT} if name == ZERO_BUBBLE and stage else {Kind.BACKWARD}
                    kinds = {Kind.FORWARD, *parts} if microbatches else set()
                    assert found == {kind: list(range(microbatches)) for kind in kinds}
                assert made.length >= _shortest(made.actions, stages)


def _shortest(actions: Any, stages: int) -> int:
    """The time of the passes if each begins when the one before it in its process, and what it needs, have
    ended: found by going over them until nothing changes."""
    ends: dict[Action, int] = {}
    cost = {Kind.FORWARD: 1, Kind.BACKWARD: 2, Kind.INPUT: 1, Kind.WEIGHT: 1}
    is_done = False
    while not is_done:
        is_done = True
        for some in actions:
            time = 0
            for one in some:
                kind, stage, number = one
                if kind is Kind.FORWARD:
                    needed = [Action(Kind.FORWARD, stage - 1, number)] if stage else []
                elif kind is Kind.WEIGHT:
                    needed = [Action(Kind.INPUT, stage, number)]
                elif stage == stages - 1:
                    needed = [Action(Kind.FORWARD, stage, number)]
                else:
                    needed = [Action(Kind.INPUT, stage + 1, number), Action(Kind.BACKWARD, stage + 1, number)]
                time = max([time, *(ends.get(two, 0) for two in needed)]) + cost[kind]
                if ends.get(one) != time:
                    ends[one], is_done = time, False
    return max(ends.values(), default=0)


def test_schedules_have_their_bubbles_and_activations() -> None:
    """8 stages, 4 processes, 16 microbatches: 96 units of work each, and the idle time of each schedule."""
    made = {name: schedule(name, 8, 4, 16) for name in SCHEDULES}
    idle = {GPIPE: 18, ONE_F_ONE_B: 18, INTERLEAVED: 9, ZERO_BUBBLE: 3}
    assert {name: one.length - 96 for name, one in made.items()} == idle
    assert {name: _shortest(one.actions, 8) - 96 for name, one in made.items()} == idle
    assert {name: one.bubble for name, one in made.items()} == pytest.approx(
        {name: time / (96 + time) for name, time in idle.items()}
    )
    most_held = {name: [_most_held(some) for some in one.actions] for name, one in made.items()}
    assert most_held == {
        GPIPE: [32, 32, 32, 32],
        ONE_F_ONE_B: [8, 6, 4, 2],
        INTERLEAVED: [11, 9, 7, 5],
        ZERO_BUBBLE: [8, 8, 8, 8],
    }


def _most_held(actions: Any) -> int:
    held = [0]
    for one in actions:
        change = {Kind.FORWARD: 1, Kind.INPUT: 0}.get(one.kind, -1)
        held.append(held[-1] + change)
    return max(held)


def test_zero_bubble_waits_for_a_third_of_what_1f1b_does() -> None:
    """With a stage for each process: (processes - 1) units, and the activations of its first process."""
    for processes in (2, 3, 4, 8):
        for microbatches in (processes, 2 * processes, 3 * processes + 1):
            made = schedule(ZERO_BUBBLE, processes, processes, microbatches)
            assert made.length == 3 * microbatches + processes - 1
            before = schedule(ONE_F_ONE_B, processes, processes, microbatches)
            assert before.length == 3 * (microbatches + processes - 1)
            held = {_most_held(some) for some in made.actions}
            assert held == {_most_held(before.actions[0])}
