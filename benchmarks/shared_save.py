"""A 0.6 GB save by two processes: `python benchmarks/shared_save.py [--on FOLDER]`.

Both hold the state of 50 million parameters and AdamW's two moments, and each writes a part. Two times are
measured, the slower process's of each round: how long training is blocked, against a copy of the whole state
into warm memory in each process; and how long it takes until the checkpoint is durable. Beside it, torch's
own `torch.distributed.checkpoint.async_save` of the same state. The sides take turns.
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
from checkpoint import copy, row, seconds, trained_state
from harness import ONE_THREAD, machine, run, table, temporary_folder
from torch.distributed.checkpoint.state_dict_saver import async_save

from trainwright.engine.checkpoint import Checkpoints
from trainwright.frameworks.torch.parallel.ddp import DataParallel
from trainwright.frameworks.torch.parallel.world import ProcessGroup, join
from trainwright.stores.local import LocalStore

PROCESSES = 2
RESULT = "result.txt"


def main() -> None:
    """Start the processes and print their table; with `--in`, be one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--on", type=Path, default=Path.cwd(), help="a folder on the disk to write to")
    parser.add_argument("--in", dest="folder", type=Path, metavar="FOLDER", help="be one of the processes")
    arguments = parser.parse_args()
    if arguments.folder is not None:
        measure(arguments.folder, arguments.rounds)
        return
    print(machine())
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
    with temporary_folder(arguments.on) as folder:
        words = ["--in", str(folder), "--rounds", str(arguments.rounds)]
        environment = ONE_THREAD | {"GLOO_SOCKET_IFNAME": "lo"}
        run([sys.executable, *launcher, __file__, *words], folder, environment)
        print((folder / RESULT).read_text())


def measure(folder: Path, rounds: int) -> None:
    """Measure in this process; the main one writes the table. The first round fills buffers."""
    torch.set_num_threads(1)
    world = join("gloo")
    assert isinstance(world, ProcessGroup)
    torch.manual_seed(0)
    state, saving = trained_state(), world.savers(everyone=False)
    files = state.files(weights_only=False)
    live = {f"{file}.{name}": tensor for file, tensors in files.items() for name, tensor in tensors.items()}
    warm = {name: tensor.clone() for name, tensor in live.items()}
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
        own = DataParallel(world, saving).owned
        snapshot = timed("blocked", lambda: saving.take(state.copy(own, weights_only=False)))
        if world.is_main:
            checkpoints.commit(number, snapshot, {})
            snapshot.release()
        durable(lambda: None, began, "durable")

    def theirs(number: int) -> None:
        began = time.perf_counter()
        target = folder / f"dcp-{number}"
        future = timed("blocked by DCP", lambda: async_save(live, checkpoint_id=target, process_group=group))
        durable(future.result, began, "durable by DCP")

    for number in range(rounds + 1):
        timed("copy", lambda: copy(live, warm))
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


def report(times: dict[str, list[float]]) -> str:
    """Return the table."""
    rows = [
        row("blocked", times["blocked"], times["copy"]),
        row("  DCP async_save", times["blocked by DCP"], times["copy"]),
        row("  copy of the whole state to warm memory", times["copy"], times["copy"]),
        row("durable", times["durable"], times["durable by DCP"]),
        row("  DCP async_save", times["durable by DCP"], times["durable by DCP"]),
    ]
    return table(["", "minimum s", "median s", "ratio of minima", "median ratio"], rows)


if __name__ == "__main__":
    main()
