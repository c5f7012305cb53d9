"""The cost of a training step, against a hand-written loop and peers: `python benchmarks/step.py`.

Each job runs in its own process for N epochs and for 3N epochs. The difference divided by its steps is the
marginal cost of a step, without start-up, first evaluation, reports and imports. Trainwright runs with the
defaults of its command line: journal, MLflow (including the feeder process), progress lines, and a checkpoint
at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

from harness import ONE_THREAD, Cost, machine, median, run, table, temporary_folder

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
# Jobs that are compared to within 5% need longer runs than peers that cost twice as much.
EPOCHS = {"hand_written": 200, "hand_written_indexed": 200, "trainwright": 200, "trainwright_untracked": 200}
PEER_EPOCHS = 60
JOBS = [*EPOCHS, "hand_written_dataloader", "accelerate", "lightning", "skorch", "hf_trainer"]


class Slope(NamedTuple):
    """The marginal cost of a step in microseconds."""

    wall: float
    cpu: float


def main() -> None:
    """Run the jobs in interleaved rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", nargs="+", default=JOBS, choices=JOBS)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor on the number of epochs; below 1 for a quick check"
    )
    arguments = parser.parse_args()
    jobs = [BASE, *(job for job in arguments.jobs if job != BASE)]
    epochs = {job: max(1, round(EPOCHS.get(job, PEER_EPOCHS) * arguments.scale)) for job in jobs}
    print(machine())
    costs: dict[tuple[str, int], list[Cost]] = {(job, factor): [] for job in jobs for factor in (1, 3)}
    with temporary_folder() as folder:
        (folder / "config.yaml").write_text(CONFIG)
        if "trainwright" in jobs:
            run(
                command("trainwright", 1), folder, ONE_THREAD
            )  # creates MLflow's database, outside the timing
        for number in range(arguments.rounds):
            for factor in (1, 3):
                for job in jobs:
                    costs[job, factor].append(run(command(job, factor * epochs[job]), folder, ONE_THREAD))
                    if job == "trainwright":
                        check_tracked(folder)
            print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr)
    report(jobs, epochs, costs)


def command(job: str, epochs: int) -> list[str]:
    """Return the command line of a job."""
    if not job.startswith("trainwright"):
        return [sys.executable, str(Path(__file__).with_name("peers.py")), job, str(epochs)]
    tracking = "[mlflow]" if job == "trainwright" else "[]"
    return [
        sys.executable,
        "-m",
        "trainwright",
        "train",
        "config.yaml",
        f"training.epochs={epochs}",
        f"tracking={tracking}",
    ]


def check_tracked(folder: Path) -> None:
    """Check that MLflow received all of the newest run; otherwise its cost was not fully measured."""
    newest = max((folder / "runs" / "step").iterdir(), key=lambda path: path.stat().st_mtime)
    state = json.loads((newest / "trackers" / "0-mlflow.json").read_text())
    if state["closed"] != "completed":
        raise RuntimeError(f"MLflow did not receive all of {newest}: {state}")


def slope(short: Cost, long: Cost, epochs: int) -> Slope:
    """Return the cost per step from a run of `epochs` epochs and one of three times as many."""
    steps = 2 * epochs * STEPS_PER_EPOCH
    return Slope((long.wall - short.wall) / steps * 1e6, (long.cpu - short.cpu) / steps * 1e6)


def report(jobs: list[str], epochs: dict[str, int], costs: dict[tuple[str, int], list[Cost]]) -> None:
    """Print minima (the least disturbed runs), their ratios, and the median ratios within rounds."""
    best, rounds = {}, {}
    for job in jobs:
        short, long = costs[job, 1], costs[job, 3]
        minima = [Cost(min(c.wall for c in runs), min(c.cpu for c in runs), 0.0) for runs in (short, long)]
        best[job] = slope(minima[0], minima[1], epochs[job])
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
