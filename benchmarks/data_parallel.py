"""Two processes, against DistributedDataParallel by hand: `python benchmarks/data_parallel.py`.

Both train the same MLP on the same digits with fused AdamW, one thread in each process. Trainwright adds up
gradients by the tree of the virtual ranks (`ranks 2`: one part for each process; `ranks 4`, `ranks 8`: two
and four), journals every loss and writes a checkpoint and a report. Each job runs in its own processes and
notes the time every 25 steps; its rate is that of the median interval after the first, so that neither the
start-up nor a moment in which the machine did something else counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from harness import ONE_THREAD, interval_of, machine, table, temporary_folder

BATCH, PROCESSES, INTERVAL = 256, 2, 25
MODEL = """\
from torch import nn


class Wide(nn.Sequential):
    def __init__(self, width: int = 64) -> None:
        super().__init__(
            nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10),
        )
"""
CONFIG = """\
experiment: {{name: parallel, seed: 1}}
data: {{type: digits}}
model: {{type: "wide:Wide", params: {{width: {width}}}}}
training: {{max_steps: {steps}, batch_size: {batch}, learning_rate: 3e-4, threads: 1}}
evaluation: {{every_n_steps: 1000000}}
checkpoint: {{every_n_minutes: null, save_top_k: 0}}
logging: {{every_n_steps: {interval}}}
tracking: []
distributed: {{nproc: {processes}}}
"""


def main() -> None:
    """Run pairs in interleaved rounds and print the table; with `--by-hand`, be a process of the peer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=300, help="steps of each run")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--by-hand", type=int, metavar="STEPS", help="run as a process of the peer")
    arguments = parser.parse_args()
    if arguments.by_hand:
        by_hand(arguments.by_hand, arguments.width)
        return
    print(machine())
    jobs = ["by hand", *(f"ranks {ranks}" for ranks in arguments.ranks)]
    rates: dict[str, list[float]] = {job: [] for job in jobs}
    environment = ONE_THREAD | {"GLOO_SOCKET_IFNAME": "lo"}
    with temporary_folder() as folder:
        (folder / "wide.py").write_text(MODEL)
        config = CONFIG.format(
            width=arguments.width, batch=BATCH, processes=PROCESSES, steps=arguments.steps, interval=INTERVAL
        )
        (folder / "config.yaml").write_text(config)
        for number in range(arguments.rounds):
            for job in jobs if number % 2 else jobs[::-1]:
                seconds = interval_of(command(job, arguments.steps, arguments.width), folder, environment)
                rates[job].append(INTERVAL * BATCH / seconds)
            latest = ", ".join(f"{job} {values[-1]:,.0f}" for job, values in rates.items())
            print(f"round {number + 1} of {arguments.rounds} done: {latest}", file=sys.stderr)
    report(rates)


def command(job: str, steps: int, width: int) -> list[str]:
    """Return the command of a job."""
    if job == "by hand":
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
        return [sys.executable, *launcher, __file__, "--by-hand", str(steps), "--width", str(width)]
    ranks = f"distributed.virtual.data={job.split()[1]}"
    return [sys.executable, "-m", "trainwright", "train", "config.yaml", ranks, "--quiet"]


def by_hand(steps: int, width: int) -> None:
    """Train in the shortest way that is fast: a share of each shuffled batch, taken from memory."""
    sys.path.insert(0, str(Path.cwd()))
    import torch
    import torch.distributed as dist
    from sklearn.datasets import load_digits
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel
    from wide import Wide

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, share = dist.get_rank(), BATCH // PROCESSES
    digits = load_digits()
    features = torch.from_numpy(digits.data[:1257]).float()  # (1257, 64)
    labels = torch.from_numpy(digits.target[:1257])  # (1257,)
    torch.manual_seed(1)
    model = DistributedDataParallel(Wide(width), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    losses = []
    marks = []
    rows = len(features)
    for step in range(steps):
        if step % (rows // BATCH) == 0:
            order = torch.randperm(rows)
        first = step % (rows // BATCH) * BATCH + rank * share
        ids = order[first : first + share]
        loss = functional.cross_entropy(model(features[ids]), labels[ids])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if (step + 1) % INTERVAL == 0:
            marks.append(time.time())
    if rank == 0:
        Path("times.txt").write_text(" ".join(map(str, marks)))
    print(torch.stack(losses).mean().item())
    dist.destroy_process_group()


def report(rates: dict[str, list[float]]) -> None:
    """Print samples per second, and the ratios of the pairs with their spread."""
    rows = []
    for job, values in rates.items():
        ratios = [mine / peer for mine, peer in zip(values, rates["by hand"], strict=True)]
        spread = (
            [f"{one:.3f}x" for one in statistics.quantiles(ratios, n=4)] if len(ratios) > 1 else ["", "", ""]
        )
        rows.append(
            [job, f"{max(values):,.0f}", f"{statistics.median(values):,.0f}", spread[1], *spread[::2]]
        )
    print(table(["samples/s", "best", "median", "median ratio", "lower quartile", "upper quartile"], rows))


if __name__ == "__main__":
    main()
