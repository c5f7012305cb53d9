"""Tokens per second of the built-in GPT, against the same loop by hand: `python benchmarks/tokens.py`.

Both train the same module on Python's own library as text, with the same windows, in a random order, with
fused AdamW and one thread. Trainwright also journals every loss and writes a checkpoint and a report. Each
job runs in its own process and notes the time every 10 steps; its rate is that of the median interval.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import ONE_THREAD, interval_of, machine, table, temporary_folder

LENGTH, BATCH, INTERVAL = 128, 16, 10
SIZES = {"small": (64, 2, 2), "medium": (192, 4, 4)}  # hidden_size, num_layers, num_heads
TEXT_BYTES = 2_000_000
CONFIG = """\
experiment: {{name: tokens, seed: 1}}
data: {{type: text, path: text.txt, length: {length}, split: {{val: 0.01, test: 0.01}}}}
model: {{type: gpt, hidden_size: {hidden}, num_layers: {layers}, num_heads: {heads}}}
training: {{max_steps: {steps}, batch_size: {batch}, learning_rate: 3e-4, weight_decay: 0.1, threads: 1}}
evaluation: {{every_n_steps: 1000000, metrics: [bits_per_byte]}}
checkpoint: {{every_n_minutes: null, save_top_k: 0}}
logging: {{every_n_steps: {interval}}}
tracking: []
"""


def main() -> None:
    """Run pairs in interleaved rounds and print the table; with `--by-hand`, be the peer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=300, help="steps of each run")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--by-hand", type=int, metavar="STEPS", help="run as the peer")
    arguments = parser.parse_args()
    if arguments.by_hand:
        by_hand(arguments.by_hand, *SIZES[arguments.size])
        return
    print(machine())
    ratios: list[float] = []
    rates: dict[str, list[float]] = {"by hand": [], "trainwright": []}
    with temporary_folder() as folder:
        write_text(folder / "text.txt")
        hidden, layers, heads = SIZES[arguments.size]
        sizes = {"hidden": hidden, "layers": layers, "heads": heads, "length": LENGTH, "batch": BATCH}
        config = CONFIG.format(**sizes, steps=arguments.steps, interval=INTERVAL)
        (folder / "config.yaml").write_text(config)
        for number in range(arguments.rounds):
            jobs = list(rates) if number % 2 else list(rates)[::-1]
            for job in jobs:
                seconds = interval_of(command(job, arguments.steps, arguments.size), folder, ONE_THREAD)
                rates[job].append(INTERVAL * BATCH * LENGTH / seconds)
            ratios.append(rates["trainwright"][-1] / rates["by hand"][-1])
            print(f"round {number + 1} of {arguments.rounds} done: {ratios[-1]:.3f}x", file=sys.stderr)
    report(rates, ratios)


def command(job: str, steps: int, size: str) -> list[str]:
    """Return the command of a job."""
    if job == "by hand":
        return [sys.executable, __file__, "--by-hand", str(steps), "--size", size]
    return [sys.executable, "-m", "trainwright", "train", "config.yaml", "--quiet"]


def write_text(path: Path) -> None:
    """Write the beginning of Python's own library, in the order of the names."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    path.write_bytes(b"".join(file.read_bytes() for file in files)[:TEXT_BYTES])


def windows() -> tuple[Any, Any]:
    """Return the inputs and labels of the training split of `text.txt`, (rows, LENGTH) int64 each."""
    import torch

    text = np.fromfile("text.txt", np.uint8)[: int(TEXT_BYTES * 0.98)]
    rows = (len(text) - 1) // LENGTH
    inputs, labels = (
        torch.from_numpy(text[start : start + rows * LENGTH].reshape(rows, LENGTH).astype(np.int64))
        for start in (0, 1)
    )
    return inputs, labels


def by_hand(steps: int, hidden: int, layers: int, heads: int) -> None:
    """Train in the shortest way that is fast: windows of a tensor in memory, fused AdamW."""
    import torch
    from torch.nn import functional

    from trainwright.frameworks.torch.models.gpt import Gpt

    torch.set_num_threads(1)
    torch.manual_seed(1)
    inputs, labels = windows()
    rows = len(inputs)
    model = Gpt(256, LENGTH, hidden, layers, heads)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    losses, times = [], []
    for step in range(steps):
        if step % (rows // BATCH) == 0:
            order = torch.randperm(rows)
        ids = order[step % (rows // BATCH) * BATCH :][:BATCH]
        logits = model(inputs[ids])
        loss = functional.cross_entropy(logits.flatten(0, 1), labels[ids].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if (step + 1) % INTERVAL == 0:
            times.append(time.time())
    Path("times.txt").write_text(" ".join(map(str, times)))
    print(torch.stack(losses).mean().item())


def report(rates: dict[str, list[float]], ratios: list[float]) -> None:
    """Print tokens per second, and the ratio with its spread."""
    rows = [
        [job, f"{max(values):,.0f}", f"{statistics.median(values):,.0f}"] for job, values in rates.items()
    ]
    print(table(["tokens/s", "best", "median"], rows))
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"ratio: median {middle:.3f}x of {len(ratios)} pairs, quartiles {low:.3f}x to {high:.3f}x")


if __name__ == "__main__":
    main()
