"""Train a model, train it again but kill the process, resume that run, and compare the weights.

Run it with `make quickstart` or `python examples/quickstart.py`. Every training is a `trainwright` command in
its own process, so the one that is killed is a real training. The exit code is 1 if the digests differ, or if
the test accuracy is below 0.97.
"""

from __future__ import annotations

import csv
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import trainwright
from trainwright.records.checkpoint_names import checkpoint_names
from trainwright.records.run_dir import RunDir

ROOT = Path(__file__).resolve().parent.parent
CONFIG = "examples/digits.yaml"
EXPERIMENT = "digits-mlp"
SAMPLE = Path(".quickstart/digits.csv")
KILL_AFTER_STEP = 200  # of 690; a checkpoint is committed every 100
MIN_ACCURACY = 0.97

console = Console(highlight=False, soft_wrap=True)


def main() -> int:
    """Run all parts and return the exit code."""
    started_in = Path.cwd()
    os.chdir(ROOT)  # so that `runs` and `mlflow.db` are where the commands below expect them
    os.environ.pop("MLFLOW_TRACKING_URI", None)

    console.print("This takes about 30 seconds on two slow cores; nothing is downloaded.")
    _title("1  Train without interruption")
    uninterrupted = _result("train", CONFIG)
    _title("2  Train again, and kill the process")
    killed = _train_and_kill()
    _title("3  Resume the killed run")
    resumed = _result("resume", killed.id)
    console.print(f"resumed from step {_resumed_from(killed)}, ended at step {resumed['steps']}")

    same = uninterrupted["digest"] == resumed["digest"]
    accuracy = uninterrupted["metrics"]["test_accuracy"]
    _show_results(uninterrupted, resumed, same)
    _write_sample()
    _show_next(uninterrupted, resumed, started_in)
    if not same:
        console.print(
            "\nThe digests differ. This is a bug in Trainwright; please report it.", style="bold red"
        )
    if accuracy < MIN_ACCURACY:
        console.print(
            f"\nThe test accuracy is {accuracy:.4f}; at least {MIN_ACCURACY} was expected.", style="bold red"
        )
    return 0 if same and accuracy >= MIN_ACCURACY else 1


def _program(name: str) -> str:
    """Return the path of a program of this environment, relative to the repository if it is inside."""
    path = Path(sys.executable).parent / name
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def _command(*words: str) -> list[str]:
    """Print a training command; return it with JSON on stdout, and progress only on a terminal."""
    console.print(f"$ {shlex.join([_program('trainwright'), *words])}", style="cyan")
    return [_program("trainwright"), *words, "--json", *([] if sys.stderr.isatty() else ["--quiet"])]


def _result(*words: str) -> dict[str, Any]:
    """Run a training command and return its result."""
    process = subprocess.run(_command(*words), stdout=subprocess.PIPE, check=False)
    if process.returncode != 0:
        raise SystemExit(f"`trainwright {shlex.join(words)}` ended with exit code {process.returncode}")
    result: dict[str, Any] = json.loads(process.stdout)
    return result


def _train_and_kill() -> trainwright.Run:
    """Start a training, kill it with SIGKILL once it has committed a checkpoint, and return the run."""
    others = {run.path for run in trainwright.list_runs(experiment=EXPERIMENT)}
    victim = subprocess.Popen(_command("train", CONFIG), stdout=subprocess.DEVNULL)
    while victim.poll() is None:
        for run in trainwright.list_runs(experiment=EXPERIMENT):
            if run.path not in others and (step := _last_commit(run)) >= KILL_AFTER_STEP:
                victim.kill()
                victim.wait()
                step = _last_commit(run)  # it may have committed another one in the meantime
                if run.status != "crashed":
                    raise SystemExit(
                        f"run {run.id} is {run.status}: it ended before it was killed; run this script again"
                    )
                console.print(
                    f"\nkilled by SIGKILL; the newest checkpoint is of step {step}; the run is {run.status}"
                )
                return run
        time.sleep(0.002)
    raise SystemExit(f"the training ended before it could be killed, with exit code {victim.returncode}")


def _last_commit(run: trainwright.Run) -> int:
    """Return the step of the newest committed checkpoint, or 0 if there is none.

    A checkpoint is committed when the log of the run names it: a folder of files may not have come so far.
    """
    names = checkpoint_names(RunDir(run.path))
    return max((int(name.split("-")[1]) for name in names), default=0)


def _resumed_from(run: trainwright.Run) -> int:
    """Return the step from which the last attempt started, from the first line of its journal."""
    segments = sorted((run.path / "journal").glob("*.jsonl"))
    with open(segments[-1], encoding="utf-8") as journal:
        return int(json.loads(journal.readline())["from_step"])


def _show_results(uninterrupted: dict[str, Any], resumed: dict[str, Any], same: bool) -> None:
    _title("Results")
    table = Table("", "uninterrupted", "killed and resumed", box=None, pad_edge=False, header_style="bold")
    for key in ("run_id", "steps", "attempts"):
        table.add_row(key.replace("_id", ""), str(uninterrupted[key]), str(resumed[key]))
    for key in ("val_accuracy", "test_accuracy", "test_f1", "test_loss"):
        table.add_row(key, *(f"{one['metrics'][key]:.6f}" for one in (uninterrupted, resumed)))
    table.add_row("training time", *(f"{one['train_seconds']:.1f} s" for one in (uninterrupted, resumed)))
    console.print(table)
    console.print("\nSHA-256 of the final weights")
    console.print(f"  uninterrupted  {uninterrupted['digest']}")
    console.print(f"  resumed        {resumed['digest']}")
    console.print("  equal" if same else "  NOT EQUAL", style="bold green" if same else "bold red")


def _write_sample() -> None:
    """Write ten rows of the data set to a file to predict from."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    SAMPLE.parent.mkdir(exist_ok=True)
    with open(SAMPLE, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(digits.feature_names)
        writer.writerows(digits.data[:10].tolist())


def _show_next(uninterrupted: dict[str, Any], resumed: dict[str, Any], started_in: Path) -> None:
    _title("Look at the runs")
    console.print(f"report  {Path(resumed['report']).as_uri()}")
    console.print(f"MLflow  {_program('mlflow')} ui --workers 1 --backend-store-uri sqlite:///mlflow.db")
    _title("Next")
    if started_in != ROOT:
        console.print(f"cd {shlex.quote(str(ROOT))}")
    for words, meaning in (
        (["reproduce", resumed["run_id"]], "train a third time, as proof"),
        (["predict", resumed["run_id"], str(SAMPLE)], "predict ten digits, with probabilities"),
        (
            ["runs", "compare", uninterrupted["run_id"], resumed["run_id"]],
            "show the differences between the two runs",
        ),
    ):
        console.print(f"[dim]# {meaning}[/]\n{shlex.join([_program('trainwright'), *words])}")


def _title(text: str) -> None:
    console.print(f"\n{text}", style="bold")


if __name__ == "__main__":
    sys.exit(main())
