"""Train a model, train it again and kill that with SIGKILL, resume it, and see that nothing can tell the two apart.

Run by `make quickstart`, or by hand with `python examples/quickstart.py`. Everything that it does, it does through
the command line, as processes of its own: what is killed here is a real training. The exit code is 1 if the digests
differ, or if the test accuracy stays below 0.97.
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

import trainyard

ROOT = Path(__file__).resolve().parent.parent
CONFIG = "examples/digits.yaml"
EXPERIMENT = "digits-mlp"
SAMPLE = Path(".quickstart/digits.csv")
KILL_AFTER_STEP = 200  # of 690; a checkpoint is committed every 100
WANTED_ACCURACY = 0.97

console = Console(highlight=False, soft_wrap=True)


def main() -> int:
    came_from = Path.cwd()
    os.chdir(
        ROOT
    )  # the runs go to `runs`, and MLflow's store to `mlflow.db`, where the commands below look for them
    os.environ.pop("MLFLOW_TRACKING_URI", None)

    console.print("About 30 seconds on two slow cores; nothing is downloaded from here on.")
    _title("1  Train it in one go")
    whole = _result("train", CONFIG)
    _title("2  Train it again, and kill it")
    killed = _train_and_kill()
    _title("3  Resume what was killed")
    resumed = _result("resume", killed.id)
    console.print(f"went on from step {_resumed_from(killed)}, and came to step {resumed['steps']}")

    same = whole["digest"] == resumed["digest"]
    accuracy = whole["metrics"]["test_accuracy"]
    _show_results(whole, resumed, same)
    _write_sample()
    _show_next(whole, resumed, came_from)
    if not same:
        console.print("\nThe digests differ: this is a bug of Trainyard; please report it.", style="bold red")
    if accuracy < WANTED_ACCURACY:
        console.print(
            f"\nThe test accuracy is {accuracy:.4f}; {WANTED_ACCURACY} was expected.", style="bold red"
        )
    return 0 if same and accuracy >= WANTED_ACCURACY else 1


def _program(name: str) -> str:
    """A program of this environment, as one types it in the repository's folder."""
    path = Path(sys.executable).parent / name
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def _command(*words: str) -> list[str]:
    """A training command that leaves stdout to its result: a bar on stderr where that is a terminal, else no progress."""
    console.print(f"$ {shlex.join([_program('trainyard'), *words])}", style="cyan")
    return [_program("trainyard"), *words, "--json", *([] if sys.stderr.isatty() else ["--quiet"])]


def _result(*words: str) -> dict[str, Any]:
    done = subprocess.run(_command(*words), stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise SystemExit(f"`trainyard {shlex.join(words)}` ended with exit code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _train_and_kill() -> trainyard.Run:
    """Starts a training, and ends it by SIGKILL as soon as it has committed a checkpoint in the middle."""
    others = {run.path for run in trainyard.list_runs(experiment=EXPERIMENT)}
    victim = subprocess.Popen(_command("train", CONFIG), stdout=subprocess.DEVNULL)
    while victim.poll() is None:
        for run in trainyard.list_runs(experiment=EXPERIMENT):
            if run.path not in others and (step := _last_commit(run)) >= KILL_AFTER_STEP:
                victim.kill()
                victim.wait()
                if run.status != "crashed":
                    raise SystemExit(
                        f"run {run.id} is {run.status}: it was over before the kill landed; run this again"
                    )
                console.print(
                    f"\nkilled by SIGKILL, with step {step} the last on disk; the run is {run.status}"
                )
                return run
        time.sleep(0.002)
    raise SystemExit(
        f"the training that was to be killed ended by itself, with exit code {victim.returncode}"
    )


def _last_commit(run: trainyard.Run) -> int:
    """The step of the newest checkpoint that is committed; 0 if there is none."""
    manifests = run.path.glob("checkpoints/step-*/manifest.json")
    return max((int(path.parent.name.split("-")[1]) for path in manifests), default=0)


def _resumed_from(run: trainyard.Run) -> int:
    """The first line of an attempt's journal says from which step it went on."""
    segments = sorted((run.path / "journal").glob("*.jsonl"))
    with open(segments[-1], encoding="utf-8") as journal:
        return int(json.loads(journal.readline())["from_step"])


def _show_results(whole: dict[str, Any], resumed: dict[str, Any], same: bool) -> None:
    _title("What came out")
    table = Table("", "in one go", "killed and resumed", box=None, pad_edge=False, header_style="bold")
    for key in ("run_id", "steps", "attempts"):
        table.add_row(key.replace("_id", ""), str(whole[key]), str(resumed[key]))
    for key in ("val_accuracy", "test_accuracy", "test_f1", "test_loss"):
        table.add_row(key, *(f"{one['metrics'][key]:.6f}" for one in (whole, resumed)))
    table.add_row("training time", *(f"{one['train_seconds']:.1f} s" for one in (whole, resumed)))
    console.print(table)
    console.print("\nSHA-256 of the final weights")
    console.print(f"  in one go  {whole['digest']}")
    console.print(f"  resumed    {resumed['digest']}")
    console.print("  equal" if same else "  NOT EQUAL", style="bold green" if same else "bold red")


def _write_sample() -> None:
    """Ten rows of the data set, as a file to predict from."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    SAMPLE.parent.mkdir(exist_ok=True)
    with open(SAMPLE, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(digits.feature_names)
        writer.writerows(digits.data[:10].tolist())


def _show_next(whole: dict[str, Any], resumed: dict[str, Any], came_from: Path) -> None:
    _title("See it")
    console.print(f"report  {Path(resumed['report']).as_uri()}")
    console.print(f"MLflow  {_program('mlflow')} ui --workers 1 --backend-store-uri sqlite:///mlflow.db")
    _title("Next")
    if came_from != ROOT:
        console.print(f"cd {shlex.quote(str(ROOT))}")
    for words, meaning in (
        (["reproduce", resumed["run_id"]], "train it a third time, and prove it"),
        (["predict", resumed["run_id"], str(SAMPLE)], "ten digits, with probabilities"),
        (["runs", "compare", whole["run_id"], resumed["run_id"]], "in what the two runs differ"),
    ):
        console.print(f"[dim]# {meaning}[/]\n{shlex.join([_program('trainyard'), *words])}")


def _title(text: str) -> None:
    console.print(f"\n{text}", style="bold")


if __name__ == "__main__":
    sys.exit(main())
