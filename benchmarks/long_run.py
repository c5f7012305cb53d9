"""What looking at, reporting on and resuming a long run costs: `python benchmarks/long_run.py`.

A small run is trained for a moment and stopped. Its journal is then replaced by that of a run of two million
steps with several attempts, each of which repeats the end of the one before, and its checkpoint is committed
again as that of the last steps. `resume` therefore trains only ten steps: everything else that it takes comes
from the length of the run. The same for a run of ten thousand steps shows what start-up and imports take.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from pathlib import Path

from harness import ONE_THREAD, Cost, machine, median, run, table, temporary_folder
from resume import COMMAND, start

from trainwright.digest import FileRecord
from trainwright.engine.journal import Journal
from trainwright.engine.state import RunState
from trainwright.records.listing import find_run
from trainwright.records.run_dir import RunDir
from trainwright.reports.journal import SegmentSummary
from trainwright.runs.leasing import take_lease
from trainwright.runs.wiring import run_checkpoints
from trainwright.types import Evaluation

CONFIG = """\
experiment: {name: long, seed: 1}
data: {type: digits, split: {val: 0.1, test: 0.1}}
model: {type: mlp, hidden: [16]}
training: {max_steps: STEPS, batch_size: 32, threads: 1}
evaluation: {every_n_steps: 100}
checkpoint: {every_n_minutes: null, save_top_k: 0}  # a history that is made up has no best models
"""
ATTEMPTS = 5
REPEATED = 2000  # steps at the end of an attempt that the next one repeats
LOG_EVERY, EVALUATE_EVERY, EVENT_EVERY = 10, 100, 5000
LEFT = 10  # steps that a resume still has to train


def main() -> None:
    """Time each command for a short and for a long run, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, nargs="+", default=[10_000, 2_000_000])
    options = parser.parse_args()
    print(machine())
    rows = []
    with temporary_folder() as folder:
        for steps in options.steps:
            run_dir = make_run(folder, steps)
            size = sum(path.stat().st_size for path in run_dir.journal.iterdir()) / 2**20
            print(f"{steps} steps: {size:.0f} MiB of journal", file=sys.stderr)
            for command, costs in timed(folder, run_dir, options.rounds).items():
                least = min(cost.wall for cost in costs)
                peak = median([cost.peak for cost in costs])
                cpu = min(cost.cpu for cost in costs)
                rows.append([f"{command}, {steps} steps", f"{least:.2f}", f"{cpu:.2f}", f"{peak:.0f}"])
    print(table(["command", "least s", "CPU s", "peak MiB"], rows))


def timed(folder: Path, run_dir: RunDir, rounds: int) -> dict[str, list[Cost]]:
    """Run each command several times on fresh copies of the run: as it was trained, and without summaries."""
    costs: dict[str, list[Cost]] = {}
    for number in range(rounds):
        for verb in ("runs show", "report", "resume"):
            for kind in ("as trained", "no summaries"):
                copy = run_dir.path.with_name(f"{run_dir.id}-{number}")
                shutil.copytree(run_dir.path, copy)
                if kind == "no summaries":
                    for summary in (copy / "journal").glob("*.summary"):
                        summary.unlink()
                cost = run([*COMMAND, *verb.split(), str(copy)], folder, ONE_THREAD)
                costs.setdefault(f"{verb}, {kind}", []).append(cost)
                shutil.rmtree(copy)
    return costs


def make_run(folder: Path, steps: int) -> RunDir:
    """Make a run of `steps` steps that was preempted ten steps before its end."""
    config = folder / f"config-{steps}.yaml"
    config.write_text(CONFIG.replace("STEPS", str(steps)))
    start([*COMMAND, "train", str(config)], folder, 10)
    run_dir = find_run("last", folder / "runs")
    write_journal(run_dir.journal, steps - LEFT)
    commit_last(run_dir, steps - LEFT)
    return run_dir


def write_journal(folder: Path, steps: int, attempts: int = ATTEMPTS) -> None:
    """Replace the journal by one of several attempts that reach `steps`."""
    shutil.rmtree(folder, ignore_errors=True)
    draw = random.Random(1)
    for attempt in range(1, attempts + 1):
        first = max(0, (attempt - 1) * steps // attempts - REPEATED) // LOG_EVERY * LOG_EVERY
        last = steps if attempt == attempts else attempt * steps // attempts
        journal = Journal(folder, attempt, first, SegmentSummary)
        for step in range(first, last, LOG_EVERY):
            write_records(journal, step, min(last, step + LOG_EVERY), draw)
            journal.flush()
        if attempt == attempts:
            journal.end(last, "preempted")
        journal.close()


def write_records(journal: Journal, before: int, step: int, draw: random.Random) -> None:
    """Write what a run journals between two logged steps."""
    losses = [2.0 / (1 + at / 50_000) + draw.random() for at in range(before, step)]
    journal.losses(before + 1, losses)
    if step % EVALUATE_EVERY == 0:
        journal.values("evaluation", step, {"val_loss": draw.random(), "val_accuracy": draw.random()})
    metrics = {"train_loss": sum(losses) / len(losses), "learning_rate": 1e-3 * draw.random()}
    journal.values(
        "metrics", step, {**metrics, "epoch": step / 45, "samples_per_second": 1e5 * draw.random()}
    )
    if step % EVENT_EVERY == 0:
        journal.event(step, "best", metric="val_loss", value=draw.random())


class _Copied:
    """The files of a checkpoint, to be committed again as another step's."""

    def __init__(self, source: Path, files: list[FileRecord]) -> None:
        self._source, self._files = source, files

    def write(self, folder: Path) -> list[FileRecord]:
        for file in self._files:
            shutil.copy(self._source / file.name, folder / file.name)
        return list(self._files)

    def release(self) -> None:
        """Nothing is held."""


def commit_last(run_dir: RunDir, step: int) -> None:
    """Commit the run's only checkpoint again, as that of `step` with its history of evaluations."""
    lease = take_lease(run_dir)
    checkpoints = run_checkpoints(run_dir, lease=lease)
    newest, _ = checkpoints.resume.newest()
    assert newest is not None
    state = RunState.from_json(checkpoints.resume.state(newest))
    state.step = state.settled = step
    draw = random.Random(2)
    state.evaluations = [
        Evaluation(at, {"val_loss": 1 + draw.random(), "val_accuracy": draw.random()})
        for at in range(EVALUATE_EVERY, step + 1, EVALUATE_EVERY)
    ]
    began = time.perf_counter()
    document = state.to_json()
    taken = time.perf_counter() - began
    size = len(json.dumps(document)) / 2**20
    print(
        f"state of {len(state.evaluations)} evaluations: {taken * 1e3:.1f} ms, {size:.1f} MiB",
        file=sys.stderr,
    )
    folder = checkpoints.resume.folder(newest)
    files = [file for file in newest.files if file.name != "state.json"]
    commit = checkpoints.resume.commit(step, _Copied(folder, files), document)
    checkpoints.publish([commit.name])
    checkpoints.resume.delete(newest.name)
    lease.end("preempted")
    lease.release()


if __name__ == "__main__":
    main()
