"""A 0.6 GB save by two processes: `python benchmarks/shared_save.py [--strategy fsdp] [--on FOLDER]`.

The state are 50 million parameters and AdamW's two moments. With `ddp`, both processes hold all of it, with
`fsdp` a shard each, and each writes a part. Three times are measured, the slower process's of each round: how
long training is blocked, against a copy of what each process holds into warm memory; how long it takes until
the checkpoint is durable; and how long until it is restored, of which verifying every byte is a part. Beside
them, torch's own `async_save` and `load` of `torch.distributed.checkpoint`. The sides take turns.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from checkpoint import LAYERS, WIDTH, copy, row, seconds
from harness import ONE_THREAD, machine, run, table, temporary_folder
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from trainwright.config.distributed import DistributedConfig, VirtualConfig
from trainwright.engine.checkpoint import Checkpoints
from trainwright.frameworks.torch.optim.build import update_of
from trainwright.frameworks.torch.parallel.ddp import DataParallel
from trainwright.frameworks.torch.parallel.fsdp import FullySharded
from trainwright.frameworks.torch.parallel.strategy import Strategy
from trainwright.frameworks.torch.parallel.world import ProcessGroup, join
from trainwright.frameworks.torch.precision import Precision
from trainwright.frameworks.torch.state.layout import local
from trainwright.frameworks.torch.state.training import TrainingState
from trainwright.stores.local import LocalStore
from trainwright.world import Mesh

PROCESSES = 2
STRATEGIES: dict[str, type[Strategy]] = {"ddp": DataParallel, "fsdp": FullySharded}
RESULT = "result.txt"


def main() -> None:
    """Start the processes and print their table; with `--in`, be one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--strategy", choices=STRATEGIES, default="ddp")
    parser.add_argument("--on", type=Path, default=Path.cwd(), help="a folder on the disk to write to")
    parser.add_argument("--in", dest="folder", type=Path, metavar="FOLDER", help="be one of the processes")
    arguments = parser.parse_args()
    if arguments.folder is not None:
        measure(arguments.folder, arguments.rounds, arguments.strategy)
        return
    print(machine())
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
    with temporary_folder(arguments.on) as folder:
        words = ["--in", str(folder), "--rounds", str(arguments.rounds), "--strategy", arguments.strategy]
        environment = ONE_THREAD | {"GLOO_SOCKET_IFNAME": "lo"}
        run([sys.executable, *launcher, __file__, *words], folder, environment)
        print((folder / RESULT).read_text())


def measure(folder: Path, rounds: int, name: str) -> None:
    """Measure in this process; the main one writes the table. The first round fills buffers."""
    torch.set_num_threads(1)
    world = join("gloo")
    assert isinstance(world, ProcessGroup)
    torch.manual_seed(0)
    if name == "fsdp":
        world.mesh = Mesh(shard=PROCESSES)
    virtual = VirtualConfig(data=PROCESSES, tensor=1, pipeline=1)
    strategy = STRATEGIES[name](
        world, world.savers(everyone=True), distributed=DistributedConfig(nproc=PROCESSES, virtual=virtual)
    )
    state, saving = trained_state(strategy), strategy.saving
    assert saving is not None
    files = state.files(weights_only=False)
    live = {f"{file}.{name}": tensor for file, tensors in files.items() for name, tensor in tensors.items()}
    held = {name: local(tensor) for name, tensor in live.items()}
    warm = {name: tensor.clone() for name, tensor in held.items()}
    checkpoints = Checkpoints(LocalStore(folder), "checkpoints", 1)
    times: dict[str, list[float]] = {}
    group = dist.new_group(backend="gloo")  # in which DCP talks in the background

    def timed(name: str, function: Callable[[], Any]) -> Any:
        """Call a function in all processes at once; the slowest counts."""
        values: list[Any] = []
        dist.barrier()
        own = seconds(lambda: values.append(function()))
        times.setdefault(name, []).append(max(world.gather(own)))
        return values[0]

    def durable(wait: Callable[[], Any], began: float, name: str) -> None:
        wait()
        times.setdefault(name, []).append(max(world.gather(time.perf_counter() - began)))

    def ours(number: int) -> None:
        began = time.perf_counter()
        snapshot = timed("blocked", lambda: saving.take(state.copy(strategy.owned, weights_only=False)))
        if world.is_main:
            checkpoints.commit(number, snapshot, {})
            snapshot.release()
        durable(lambda: None, began, "durable")
        timed("restored", lambda: restore(number))

    def restore(number: int) -> None:
        commit = world.from_main(lambda: checkpoints.load_step(number))
        state.load(checkpoints.folder(commit), weights_only=False)

    def theirs(number: int) -> None:
        began = time.perf_counter()
        target = folder / f"dcp-{number}"
        future = timed("blocked by DCP", lambda: async_save(live, checkpoint_id=target, process_group=group))
        durable(future.result, began, "durable by DCP")
        timed("restored by DCP", lambda: load(live, checkpoint_id=target))

    for number in range(rounds + 1):
        timed("copy", lambda: copy(held, warm))
        for save in (ours, theirs) if number % 2 else (theirs, ours):
            if world.is_main:
                os.sync()
            save(number)
        if world.is_main:
            checkpoints.prune([])
            shutil.rmtree(folder / f"dcp-{number}")
    if world.is_main:
        (folder / RESULT).write_text(report({name: values[1:] for name, values in times.items()}))
    dist.barrier()
    dist.destroy_process_group()


def trained_state(strategy: Strategy) -> TrainingState:
    """Return the state of a model and its optimizer after one update."""
    model = torch.nn.Sequential(torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]))
    strategy.place(model)
    strategy.prepare(model)
    blocks = strategy.blocks
    updated = [blocks.updated(one) for one in model.parameters()]
    optimizer = torch.optim.AdamW(updated, fused=True)
    for one in model.parameters():
        block = blocks.held(one)
        block.grad = torch.randn_like(block)
    with torch.no_grad():
        blocks.update(update_of(optimizer), optimizer.param_groups)()
    optimizer.zero_grad(set_to_none=True)
    return TrainingState(model, optimizer, Precision("fp32", torch.device("cpu")), blocks=strategy.blocks)


def report(times: dict[str, list[float]]) -> str:
    """Return the table."""
    rows = [
        row("blocked", times["blocked"], times["copy"]),
        row("  DCP async_save", times["blocked by DCP"], times["copy"]),
        row("  copy of what is held to warm memory", times["copy"], times["copy"]),
        row("durable", times["durable"], times["durable by DCP"]),
        row("  DCP async_save", times["durable by DCP"], times["durable by DCP"]),
        row("restored", times["restored"], times["restored by DCP"]),
        row("  DCP load", times["restored by DCP"], times["restored by DCP"]),
    ]
    return table(["", "minimum s", "median s", "ratio of minima", "median ratio"], rows)


if __name__ == "__main__":
    main()
