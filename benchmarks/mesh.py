"""Two processes on each axis of the mesh, against torch by hand: `python benchmarks/mesh.py`.

Both sides train the built-in GPT on Python's own library as text, with the same windows, fused AdamW, and one
thread in each process. By hand are DistributedDataParallel, FSDP2, a DTensor plan of tensor parallelism, and
1F1B of torch.distributed.pipelining, each in the shortest way that is fast. Trainwright gives the bits of one
process besides, with a virtual mesh that is equal to the mesh, or twice as large; `not exact` leaves sums
to the backend. Jobs take turns; each notes the time every few steps, and its rate is that of the median one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness import ONE_THREAD, interval_of, machine, table, temporary_folder
from tokens import BATCH, LENGTH, windows, write_text

MICROBATCHES, INTERVAL = 8, 2
HIDDEN, LAYERS, HEADS = 256, 4, 8
BY_HAND = "torch by hand"
CONFIG = f"""\
experiment: {{name: mesh, seed: 1}}
data: {{type: text, path: text.txt, length: {LENGTH}, split: {{val: 0.01, test: 0.01}}}}
model: {{type: gpt, hidden_size: {HIDDEN}, num_layers: {LAYERS}, num_heads: {HEADS}, tie_embeddings: false}}
training: {{batch_size: {BATCH}, learning_rate: 3e-4, weight_decay: 0.1, threads: 1}}
evaluation: {{every_n_steps: 1000000}}
checkpoint: {{every_n_minutes: null, save_top_k: 0}}
logging: {{every_n_steps: {INTERVAL}}}
tracking: []
distributed: {{nproc: 2}}
"""
AXES = {
    "ddp": ("strategy=ddp", "virtual.data"),
    "fsdp": ("strategy=fsdp", "virtual.data"),
    "tensor": ("tensor=2", "virtual.tensor"),
    "pipeline": ("pipeline=2", "virtual.pipeline"),
}
JOBS: dict[str, Callable[[str], list[str]]] = {
    "virtual mesh = mesh": lambda _: [],
    "virtual mesh = 2 x mesh": lambda virtual: [f"{virtual}=4"],
    "not exact": lambda _: ["exact=false"],
}


def main() -> None:
    """Run all jobs of each axis in interleaved rounds and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=16, help="steps of each run")
    parser.add_argument("--axes", choices=AXES, nargs="+", default=list(AXES))
    parser.add_argument("--by-hand", choices=AXES, metavar="AXIS", help="be a process of the peer")
    arguments = parser.parse_args()
    if arguments.by_hand:
        by_hand(arguments.by_hand, arguments.steps)
        return
    print(machine())
    with temporary_folder() as folder:
        write_text(folder / "text.txt")
        (folder / "config.yaml").write_text(CONFIG)
        for axis in arguments.axes:
            print(f"\n{axis}")
            report(rates_of(axis, folder, arguments.rounds, arguments.steps))


def rates_of(axis: str, folder: Path, rounds: int, steps: int) -> dict[str, list[float]]:
    """Return the tokens per second of each job in each round."""
    environment = ONE_THREAD | {"GLOO_SOCKET_IFNAME": "lo"}
    rates: dict[str, list[float]] = {BY_HAND: [], **{job: [] for job in JOBS}}
    for number in range(rounds):
        for job in list(rates) if number % 2 else list(rates)[::-1]:
            seconds = interval_of(command(axis, job, steps), folder, environment)
            rates[job].append(INTERVAL * BATCH * LENGTH / seconds)
        latest = ", ".join(f"{job} {values[-1]:,.0f}" for job, values in rates.items())
        print(f"{axis}: round {number + 1} of {rounds} done: {latest}", file=sys.stderr)
    return rates


def command(axis: str, job: str, steps: int) -> list[str]:
    """Return the command of a job."""
    if job == BY_HAND:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        return [sys.executable, *launcher, __file__, "--by-hand", axis, "--steps", str(steps)]
    mesh, virtual = AXES[axis]
    words = [f"training.max_steps={steps}", *(f"distributed.{one}" for one in (mesh, *JOBS[job](virtual)))]
    if axis == "pipeline":
        words.append(f"training.microbatch_size={BATCH // MICROBATCHES}")
    return [sys.executable, "-m", "trainwright", "train", "config.yaml", *words, "--quiet"]


def by_hand(axis: str, steps: int) -> None:
    """Train as one of two processes."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from trainwright.frameworks.torch.models.gpt import Gpt

    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (2,))
    inputs, labels = windows()
    torch.manual_seed(1)
    model = Gpt(256, LENGTH, HIDDEN, LAYERS, HEADS, tie_embeddings=False)
    step_of = {"ddp": data_parallel, "fsdp": fully_sharded, "tensor": tensor_parallel, "pipeline": pipelined}
    parameters, forward_and_backward = step_of[axis](model, mesh)
    optimizer = torch.optim.AdamW(parameters, lr=3e-4, weight_decay=0.1, fused=True)
    losses, times = [], []
    order = torch.randperm(len(inputs))
    for step in range(steps):
        ids = order[step * BATCH : (step + 1) * BATCH]
        if axis in ("ddp", "fsdp"):
            ids = ids.chunk(2)[dist.get_rank()]
        optimizer.zero_grad(set_to_none=True)
        losses.append(forward_and_backward(inputs[ids], labels[ids]))
        optimizer.step()
        if (step + 1) % INTERVAL == 0:
            times.append(time.time())
    if dist.get_rank() == 0:
        Path("times.txt").write_text(" ".join(map(str, times)))
    print([float(one) for one in losses if one is not None][-1:])
    dist.destroy_process_group()


def simple_step(model: Any) -> Callable[[Any, Any], Any]:
    """Return the passes of a model that does its communication itself."""
    from torch.nn import functional

    def step(inputs: Any, labels: Any) -> Any:
        loss = functional.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
        loss.backward()
        return loss.detach()

    return step


def data_parallel(model: Any, _: Any) -> tuple[Sequence[Any], Callable[[Any, Any], Any]]:
    """Return the parameters of a process, and its forward and backward passes."""
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return list(model.parameters()), simple_step(model)


def fully_sharded(model: Any, mesh: Any) -> tuple[Sequence[Any], Callable[[Any, Any], Any]]:
    """Return the same for FSDP2."""
    from torch.distributed.fsdp import fully_shard

    for block in (*model.blocks, model):
        fully_shard(block, mesh=mesh)
    return list(model.parameters()), simple_step(model)


def tensor_parallel(model: Any, mesh: Any) -> tuple[Sequence[Any], Callable[[Any, Any], Any]]:
    """Return the same for attention and feed-forward layers that two processes divide."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    styles: dict[str, Callable[[], Any]] = {
        "attention.qkv_proj": ColwiseParallel,
        "attention.out_proj": RowwiseParallel,
        "mlp.up_proj": ColwiseParallel,
        "mlp.down_proj": RowwiseParallel,
    }
    for block in model.blocks:
        parallelize_module(block, mesh, {name: style() for name, style in styles.items()})
    split = [one for one in model.parameters() if hasattr(one, "placements")]
    whole = [one for one in model.parameters() if not hasattr(one, "placements")]
    return [{"params": split}, {"params": whole}], simple_step(model)  # a fused update takes one kind each


def pipelined(model: Any, mesh: Any) -> tuple[Sequence[Any], Callable[[Any, Any], Any]]:
    """Return the same for two stages, with 1F1B."""
    import torch
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.nn import functional

    index, half = mesh.get_rank(), LAYERS // 2

    class Stage(torch.nn.Module):
        """Half of the blocks, with the embeddings or the head."""

        def __init__(self) -> None:
            super().__init__()
            own = model.blocks[:half] if index == 0 else model.blocks[half:]
            self.ends = torch.nn.ModuleList(
                [model.token_embedding, model.position_embedding] if index == 0 else [model.norm, model.head]
            )
            self.blocks = own

        def forward(self, hidden: Any) -> Any:
            first, second = self.ends
            if index == 0:
                hidden = first(hidden) + second(torch.arange(LENGTH))
            for block in self.blocks:
                hidden = block(hidden, None)
            return hidden if index == 0 else second(first(hidden))

    module = Stage()
    stage = PipelineStage(module, index, 2, torch.device("cpu"), group=mesh.get_group())

    def loss_of(logits: Any, labels: Any) -> Any:
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=loss_of)

    def step(inputs: Any, labels: Any) -> Any:
        losses: list[Any] = []
        if index == 0:
            schedule.step(inputs)
            return None
        schedule.step(target=labels, losses=losses)
        return torch.stack(losses).mean().detach()

    return list(module.parameters()), step


def report(rates: dict[str, list[float]]) -> None:
    """Print tokens per second, and the ratios of the pairs with their spread."""
    rows = []
    for job, values in rates.items():
        ratios = [mine / peer for mine, peer in zip(values, rates[BY_HAND], strict=True)]
        spread = (
            [f"{one:.3f}x" for one in statistics.quantiles(ratios, n=4)] if len(ratios) > 1 else ["", "", ""]
        )
        rows.append(
            [job, f"{max(values):,.0f}", f"{statistics.median(values):,.0f}", spread[1], *spread[::2]]
        )
    print(table(["tokens/s", "best", "median", "median ratio", "lower quartile", "upper quartile"], rows))


if __name__ == "__main__":
    main()
