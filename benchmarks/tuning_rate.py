"""The time that a study takes beside training, proposing and fsync: `benchmarks/tuning_rate.py`.

`--trials` trials of a small network with five evaluations, each a full run (config, manifest, journal,
checkpoints, digest), one worker. Our overhead is what is left of the total without training, the sampler and
fsync. Training is what our own loop takes; in the last column, it is a loop by hand that builds the same
networks with the parameters that the study proposed, trains and evaluates them, and records nothing.

Beside it, studies of a function that returns at once after five reports: ours, with its log and the storage
that Optuna reads; Optuna's own on sqlite; Optuna's in memory; and Ray Tune's, on one actor used again. All by
the same sampler (TPE).

Run it where nothing was deleted in the last five minutes, say by an earlier run of this: ext4 passes over the
inodes of deleted files one by one when it creates a file, which takes up to 13 ms per trial.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from harness import machine, table, temporary_folder
from sklearn.datasets import load_iris

import trainwright
from trainwright.samplers.optuna import TpeSampler

STEPS, EVALUATIONS = 40, 5
SPACE = {
    "training.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
    "training.batch_size": [16, 32],
    "model.hidden": [[8], [16], [16, 8]],
    "model.dropout": {"low": 0.0, "high": 0.5},
}
CONFIG: dict[str, Any] = {
    "experiment": {"name": "rate"},
    "data": {"type": "iris"},
    "model": {"type": "mlp"},
    "training": {"max_steps": STEPS, "threads": 1},
    "evaluation": {"every_n_steps": STEPS // EVALUATIONS},
}


class Clock:
    """Adds up the seconds that calls of some functions take."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, owner: Any, name: str, label: str) -> None:
        """Time the calls of a function from now on."""
        call = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds[label] = self.seconds.get(label, 0.0) + time.perf_counter() - began

        setattr(owner, name, timed)


def objective(trial: optuna.Trial) -> float:
    """Return a value at once, after five reports."""
    rate = trial.suggest_float("rate", 1e-4, 1e-1, log=True)
    trial.suggest_categorical("batch", [16, 32])
    width = trial.suggest_int("width", 8, 64)
    dropout = trial.suggest_float("dropout", 0.0, 0.5)
    value = rate + width / 64 + dropout
    for step in range(EVALUATIONS):
        trial.report(value, step)
    return value


def main() -> None:
    """Measure the studies and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--functions-only", action="store_true", help="leave the studies of runs out")
    arguments = parser.parse_args()
    logging.getLogger("trainwright").setLevel(logging.ERROR)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    print(machine(), flush=True)
    clock = Clock()
    clock.watch(TpeSampler, "propose", "sampler")
    clock.watch(TpeSampler, "ask", "ask")
    for name in ("fsync", "fdatasync"):
        clock.watch(os, name, "fsync")
    rows = []
    with temporary_folder() as folder:
        os.chdir(folder)
        if not arguments.functions_only:
            rows.append(_of_runs(arguments.trials, clock))
        for name, make in FUNCTIONS.items():
            rows.append(_of_functions(name, make, arguments.trials, clock))
    head = ["study", "trials", "total s", "training", "sampler", "fsync", "overhead, ms per trial"]
    head.append("against the loop by hand")
    print(table(head, rows))


def _of_runs(trials: int, clock: Clock) -> list[str]:
    """Measure a study whose trials are runs; the first trial, with the imports, is left out."""
    tuning = {"metric": "val_loss", "horizon": 1, "space": SPACE}
    trainwright.tune({**CONFIG, "tuning": {**tuning, "trials": 1}})
    clock.seconds.clear()
    began = time.perf_counter()
    study = trainwright.tune({**CONFIG, "tuning": {**tuning, "trials": trials}}, resume=True)
    total = time.perf_counter() - began
    lines = (study.path / "trials.jsonl").read_text().splitlines()
    ends = [json.loads(line)["end"]["seconds"] for line in lines if '"end"' in line][1:]
    own = {"sampler": clock.seconds.get("sampler", 0.0), "fsync": clock.seconds.get("fsync", 0.0)}
    begins = [json.loads(line)["params"] for line in lines if '"params"' in line][1:]
    row = _row("ours, each trial a run", trials - 1, total, sum(ends), own)
    by_hand = _trained_by_hand(begins)
    left = total - by_hand - sum(own.values())
    return [*row[:-1], f"{1000 * left / max(1, trials - 1):.1f} (by hand: {by_hand:.2f} s)"]


def _trained_by_hand(trials: Sequence[Mapping[str, Any]]) -> float:
    """Return the seconds that a loop by hand takes for the networks of some trials."""
    torch.set_num_threads(1)
    iris = load_iris()
    order = np.random.default_rng(0).permutation(len(iris.target))
    x = torch.from_numpy(((iris.data - iris.data.mean(0)) / iris.data.std(0)).astype(np.float32)[order])
    y = torch.from_numpy(iris.target[order])
    train, val, test = slice(0, 120), slice(120, 135), slice(135, 150)
    _by_hand(x, y, (train, val, test), trials[0])
    began = time.perf_counter()
    for params in trials:
        _by_hand(x, y, (train, val, test), params)
    return time.perf_counter() - began


def _by_hand(
    x: torch.Tensor, y: torch.Tensor, splits: tuple[slice, slice, slice], params: Mapping[str, Any]
) -> list[tuple[float, ...]]:
    """Train a network for STEPS steps with AdamW; evaluate it, and its best weights on the three splits."""
    train, val, test = splits
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    width = x.shape[1]
    for units in params["model.hidden"]:
        layers += [
            torch.nn.Linear(width, units),
            torch.nn.ReLU(),
            torch.nn.Dropout(params["model.dropout"]),
        ]
        width = units
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 3))
    rate, batch = params["training.learning_rate"], params["training.batch_size"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)
    loss_of = torch.nn.functional.cross_entropy

    def evaluated(split: slice) -> tuple[float, ...]:
        model.eval()
        with torch.no_grad():
            logits = model(x[split])
            guess = logits.argmax(1).numpy()
            loss = float(loss_of(logits, y[split]))
        model.train()
        counts = np.bincount(3 * y[split].numpy() + guess, minlength=9).reshape(3, 3)  # [true, predicted]
        hits = counts.diagonal()
        f1 = 2 * hits / np.maximum(counts.sum(0) + counts.sum(1), 1)
        return loss, float(hits.sum() / counts.sum()), float(f1.mean())

    best, kept = float("inf"), model.state_dict()
    step = 0
    while step < STEPS:
        for ids in torch.randperm(120).split(batch):
            loss = loss_of(model(x[train][ids]), y[train][ids])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % (STEPS // EVALUATIONS) == 0 and (value := evaluated(val)[0]) < best:
                best = value
                kept = {name: one.clone() for name, one in model.state_dict().items()}
            if step == STEPS:
                break
    model.load_state_dict(kept)
    return [evaluated(split) for split in (val, test, train)]


def _of_ours(trials: int) -> None:
    trainwright.tune(objective, {"tuning.trials": trials}, runs_dir="functions")


def _of_optuna(trials: int) -> None:
    study = optuna.create_study(storage=f"sqlite:///{Path.cwd()}/theirs.db")
    study.optimize(objective, n_trials=trials)


def _in_memory(trials: int) -> None:
    optuna.create_study().optimize(objective, n_trials=trials)


def _of_ray(trials: int) -> None:
    from ray import tune
    from ray.tune.search.optuna import OptunaSearch

    def report(config: dict[str, Any]) -> None:
        value = config["rate"] + config["width"] / 64 + config["dropout"] + config["batch"]
        for _ in range(EVALUATIONS):
            tune.report({"value": value})

    space = {
        "rate": tune.loguniform(1e-4, 1e-1),
        "batch": tune.choice([16, 32]),
        "width": tune.randint(8, 65),
        "dropout": tune.uniform(0.0, 0.5),
    }
    settings = tune.TuneConfig(
        metric="value",
        mode="min",
        search_alg=OptunaSearch(),
        num_samples=trials,
        max_concurrent_trials=1,
        reuse_actors=True,
    )
    tune.Tuner(
        report,
        param_space=space,
        tune_config=settings,
        run_config=tune.RunConfig(storage_path=str(Path.cwd() / "ray"), verbose=0),
    ).fit()


FUNCTIONS: dict[str, Callable[[int], None]] = {
    "ours, a function": _of_ours,
    "Optuna on sqlite, a function": _of_optuna,
    "Optuna in memory, a function": _in_memory,
    "Ray Tune, a function": _of_ray,
}


def _of_functions(name: str, make: Callable[[int], None], trials: int, clock: Clock) -> list[str]:
    make(1)
    clock.seconds.clear()
    began = time.perf_counter()
    make(trials)
    total = time.perf_counter() - began
    own = {"sampler": clock.seconds.get("ask", 0.0), "fsync": clock.seconds.get("fsync", 0.0)}
    return _row(name, trials, total, 0.0, own)


def _row(name: str, trials: int, total: float, training: float, own: dict[str, float]) -> list[str]:
    left = total - training - sum(own.values())
    seconds = [total, training, own["sampler"], own["fsync"]]
    overhead = f"{1000 * left / max(1, trials):.1f}"
    return [name, str(trials), *(f"{value:.2f}" for value in seconds), overhead, ""]


if __name__ == "__main__":
    main()
