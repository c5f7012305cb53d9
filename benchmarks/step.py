"""What a training step costs, against the best hand-written loop and against peers: `python benchmarks/step.py`.

Each job runs as a process of its own for N epochs and for 3N; the difference, divided by the steps that it makes, is
the marginal cost of a step: start-up, first evaluation, reports and imports drop out. Trainyard runs as its command
line does by default: journal, MLflow (its feeder process counted in), progress lines, a checkpoint at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

from harness import ONE_THREAD, Cost, machine, median, run, table, workplace

BASE = "hand_written"
STEPS_PER_EPOCH = 45
CONFIG = """\
experiment: {name: step, seed: 1}
data: {type: digits, split: {val: 0.1, test: 0.1}}
model: {type: mlp, hidden: [256, 128], dropout: 0.1}
training: {batch_size: 32, weight_decay: 0.01, threads: 1}
evaluation: {every_n_steps: 1000000}
checkpoint: {every_n_minutes: null}
"""
# What is measured to within 5 % takes longer runs than what is twice as dear.
EPOCHS = {"hand_written": 200, "hand_written_indexed": 200, "trainyard": 200, "trainyard_untracked": 200}
PEER_EPOCHS = 60
JOBS = [*EPOCHS, "hand_written_dataloader", "accelerate", "lightning", "skorch", "hf_trainer"]


class Slope(NamedTuple):
    """Microseconds of a step."""

    wall: float
    cpu: float


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--jobs", nargs="+", default=JOBS, choices=JOBS)
    options.add_argument(
        "--scale", type=float, default=1.0, help="factor of the epochs; below 1 for a quick look"
    )
    given = options.parse_args()
    jobs = [BASE, *(job for job in given.jobs if job != BASE)]
    epochs = {job: max(1, round(EPOCHS.get(job, PEER_EPOCHS) * given.scale)) for job in jobs}
    print(machine())
    costs: dict[tuple[str, int], list[Cost]] = {(job, factor): [] for job in jobs for factor in (1, 3)}
    with workplace() as folder:
        (folder / "config.yaml").write_text(CONFIG)
        if "trainyard" in jobs:
            run(
                command("trainyard", 1), folder, ONE_THREAD
            )  # MLflow's data base is made once, not in each run
        for number in range(given.rounds):
            for factor in (1, 3):
                for job in jobs:
                    costs[job, factor].append(run(command(job, factor * epochs[job]), folder, ONE_THREAD))
                    if job == "trainyard":
                        check_tracked(folder)
            print(f"round {number + 1} of {given.rounds} done", file=sys.stderr)
    report(jobs, epochs, costs)


def command(job: str, epochs: int) -> list[str]:
    if not job.startswith("trainyard"):
        return [sys.executable, str(Path(__file__).with_name("peers.py")), job, str(epochs)]
    tracking = "[mlflow]" if job == "trainyard" else "[]"
    return [
        sys.executable,
        "-m",
        "trainyard",
        "train",
        "config.yaml",
        f"training.epochs={epochs}",
        f"tracking={tracking}",
    ]


def check_tracked(folder: Path) -> None:
    """A run whose tracker has not got everything was not measured in full."""
    newest = max((folder / "runs" / "step").iterdir(), key=lambda path: path.stat().st_mtime)
    state = json.loads((newest / "trackers" / "0-mlflow.json").read_text())
    if state["closed"] != "completed":
        raise RuntimeError(f"MLflow did not get all of {newest}: {state}")


def slope(short: Cost, long: Cost, epochs: int) -> Slope:
    steps = 2 * epochs * STEPS_PER_EPOCH
    return Slope((long.wall - short.wall) / steps * 1e6, (long.cpu - short.cpu) / steps * 1e6)


def report(jobs: list[str], epochs: dict[str, int], costs: dict[tuple[str, int], list[Cost]]) -> None:
    """By minima (the least disturbed runs), and the median of the rounds' own ratios."""
    best, rounds = {}, {}
    for job in jobs:
        short, long = costs[job, 1], costs[job, 3]
        least = [Cost(min(c.wall for c in some), min(c.cpu for c in some), 0.0) for some in (short, long)]
        best[job] = slope(least[0], least[1], epochs[job])
        rounds[job] = [slope(one, three, epochs[job]) for one, three in zip(short, long, strict=True)]
    rows = []
    for job in jobs:
        wall = [mine.wall / base.wall for mine, base in zip(rounds[job], rounds[BASE], strict=True)]
        cpu = [mine.cpu / base.cpu for mine, base in zip(rounds[job], rounds[BASE], strict=True)]
        rows.append([
            job, f"{best[job].wall:.0f}", f"{best[job].wall / best[BASE].wall:.2f}x", f"{median(wall):.2f}x",
            f"{best[job].cpu:.0f}", f"{best[job].cpu / best[BASE].cpu:.2f}x", f"{median(cpu):.2f}x",
        ])  # fmt: skip
    print(
        table(
            ["job", "wall us/step", "ratio of minima", "median ratio", "CPU us/step", "of minima", "median"],
            rows,
        )
    )


if __name__ == "__main__":
    main()
