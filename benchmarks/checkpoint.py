"""What a save of 0.6 GB costs: `python benchmarks/checkpoint.py [--on FOLDER]`.

50 million parameters and AdamW's two moments. (a) how long training is blocked, against a copy of the same tensors into
memory that is in use already; (b) how long until it is durable, hashed and committed, against safetensors' `save_file`
and an fsync. The two sides take turns, and each begins when the disk has nothing left to do.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from harness import machine, median, table, workplace
from safetensors.torch import save_file

from trainyard.engine.checkpoint import Checkpoints
from trainyard.frameworks.torch.precision import Precision
from trainyard.frameworks.torch.snapshot import TrainingState
from trainyard.stores.local import LocalStore

WIDTH, LAYERS = 2236, 10  # 50 million parameters


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument(
        "--on", type=Path, default=Path.cwd(), help="a folder on the disk to write to; default: here"
    )
    given = options.parse_args()
    print(machine())
    with workplace(given.on) as folder:
        times = measure(folder, given.rounds)
    rows = [
        row("blocked: snapshot", times["snapshot"], times["copy"]),
        row("  a copy in warm memory", times["copy"], times["copy"]),
        row("durable: commit", times["commit"], times["safetensors"]),
        row("  safetensors + fsync", times["safetensors"], times["safetensors"]),
    ]
    print(table(["", "least s", "median s", "ratio of least", "median ratio"], rows))


def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round; the first save, into buffers that are new, is not counted."""
    state = trained()
    live = {f"{file}.{name}": tensor for file, tensors in state.files(weights_only=False).items()
            for name, tensor in tensors.items()}  # fmt: skip
    print(f"{sum(tensor.nbytes for tensor in live.values()) / 1e9:.2f} GB in {len(live)} tensors")
    warm = {name: tensor.clone() for name, tensor in live.items()}
    checkpoints = Checkpoints(LocalStore(folder), "checkpoints", 1)
    times: dict[str, list[float]] = {"copy": [], "snapshot": [], "commit": [], "safetensors": []}
    for number in range(rounds + 1):
        times["copy"].append(seconds(lambda: copy(live, warm)))
        began = time.perf_counter()
        snapshot = state.copy(weights_only=False)
        times["snapshot"].append(time.perf_counter() - began)
        sides: list[tuple[str, Callable[[], object]]] = [
            ("commit", lambda number=number, snapshot=snapshot: checkpoints.commit(number, snapshot, {})),  # type: ignore[misc]
            ("safetensors", lambda: save_durably(warm, folder / "peer.safetensors")),
        ]
        for name, save in sides if number % 2 else reversed(sides):
            os.sync()
            times[name].append(seconds(save))
        checkpoints.prune([])
        (folder / "peer.safetensors").unlink()
        print(f"round {number} of {rounds} done", file=sys.stderr)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return {name: some[1:] for name, some in times.items()}


def trained() -> TrainingState:
    """The state after one step."""
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.randn(2, WIDTH)).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return TrainingState(model, optimizer, Precision("fp32", torch.device("cpu")))


def copy(live: Mapping[str, torch.Tensor], into: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in live.items():
        into[name].copy_(tensor)


def save_durably(tensors: dict[str, torch.Tensor], path: Path) -> None:
    save_file(tensors, path)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def row(name: str, mine: list[float], base: list[float]) -> list[str]:
    ratios = [a / b for a, b in zip(mine, base, strict=True)]
    return [
        name,
        f"{min(mine):.3f}",
        f"{median(mine):.3f}",
        f"{min(mine) / min(base):.2f}x",
        f"{median(ratios):.2f}x",
    ]


if __name__ == "__main__":
    main()
