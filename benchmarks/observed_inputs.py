"""The cost of observing what the user's code reads: the step of a small MLP, with and without it."""

from __future__ import annotations

import contextlib
import tempfile
from typing import Any
from unittest import mock

import trainwright
from trainwright.process.observation.observing import observing
from trainwright.runs import attempt, workdir

STEPS, ROUNDS = 3000, 6
CONFIG: dict[str, Any] = {
    "experiment": "cost",
    "data": {"type": "digits"},
    "model": {"type": "mlp", "hidden": [32]},
    "training": {"max_steps": STEPS, "batch_size": 32, "threads": 1},
    "evaluation": {"every_n_steps": STEPS},
    "checkpoint": {"every_n_steps": STEPS},
    "logging": {"every_n_steps": STEPS},
}


def main() -> None:
    """Train in turns, and print the fastest step of each."""
    ways: dict[str, Any] = {"observed": observing, "not observed": lambda _: contextlib.nullcontext()}
    microseconds: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for name, way in ways.items():
                with (
                    mock.patch.object(workdir, "observing", way),
                    mock.patch.object(attempt, "observing", way),
                ):
                    run = trainwright.train(CONFIG, quiet=True, runs_dir=folder)
                microseconds[name].append(run.result["train_seconds"] / STEPS * 1e6)
    for name, times in microseconds.items():
        print(f"{name}: {min(times):.0f} us a step")


if __name__ == "__main__":
    main()
