"""The cost of a 0.6 GB save: `python benchmarks/checkpoint.py [--on FOLDER]`.

The state consists of 50 million parameters and AdamW's two moments. Two times are measured: (a) how long
training is blocked, against a copy of the same tensors into warm memory; (b) how long it takes until the
checkpoint is durable, hashed and committed, against safetensors' `save_file` and an fsync. The two sides take
turns, each after a sync.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from harness import machine, median, table, temporary_folder
from safetensors.torch import save_file

from trainwright.engine.checkpoint import Checkpoints
from trainwright.frameworks.torch.precision import Precision
from trainwright.frameworks.torch.state.training import TrainingState
from trainwright.stores.local import LocalStore

WIDTH, LAYERS = 2236, 10  # 50 million parameters


def main() -> None:
    """Measure both times and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--on", type=Path, default=Path.cwd(), help="a folder on the disk to write to; default: here"
    )
    arguments = parser.parse_args()
    print(machine())
    with temporary_folder(arguments.on) as folder:
        times = measure(folder, arguments.rounds)
    rows = [
        row("blocked: snapshot", times["snapshot"], times["copy"]),
        row("  copy to warm memory", times["copy"], times["copy"]),
        row("durable: commit", times["commit"], times["safetensors"]),
        row("  safetensors + fsync", times["safetensors"], times["safetensors"]),
    ]
    print(table(["", "minimum s", "median s", "ratio of minima", "median ratio"], rows))


def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each round by job; the first save, into new buffers, is not counted."""
    state = trained_state()
    live = {
        f"{file}.{name}": tensor
        for file, tensors in state.files(weights_only=False).items()
        for name, tensor in tensors.items()
    }
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
            ("commit", partial(checkpoints.commit, number, snapshot, {})),
            ("safetensors", partial(save_durably, warm, folder / "peer.safetensors")),
        ]
        for name, save in sides if number % 2 else reversed(sides):
            os.sync()
            times[name].append(seconds(save))
        checkpoints.prune([])
        (folder / "peer.safetensors").unlink()
        print(f"round {number} of {rounds} done", file=sys.stderr)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return {name: rounds[1:] for name, rounds in times.items()}


def trained_state() -> TrainingState:
    """Return the state of a model and its optimizer after one step."""
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.randn(2, WIDTH)).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return TrainingState(model, optimizer, Precision("fp32", torch.device("cpu")))


def copy(live: Mapping[str, torch.Tensor], into: Mapping[str, torch.Tensor]) -> None:
    """Copy all tensors into existing ones of the same names."""
    for name, tensor in live.items():
        into[name].copy_(tensor)


def save_durably(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Save the tensors with safetensors and fsync the file."""
    save_file(tensors, path)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def seconds(function: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def row(name: str, mine: list[float], base: list[float]) -> list[str]:
    """Return a row of the table: times, and ratios to those of the peer."""
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
