"""How soon the command line answers, and what it imports for that: `python benchmarks/startup.py`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from harness import machine, median, run, table, workplace

HEAVY = {"torch", "tensorflow", "keras", "sklearn", "xgboost", "lightgbm", "transformers", "lightning", "mlflow", "pandas",
         "pyarrow", "scipy", "matplotlib", "jax"}  # fmt: skip
CONFIG = """\
experiment: {name: digits-mlp, seed: 42}
data: {type: digits, split: {val: 0.1, test: 0.1, stratify: true}}
model: {type: mlp, hidden: [256, 128], dropout: 0.1}
training: {epochs: 20, batch_size: 64, scheduler: {type: cosine, warmup_steps: 50}}
tracking: [mlflow]
"""
COMMAND = [sys.executable, "-m", "trainyard"]
JOBS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "trainyard --help": [*COMMAND, "--help"],
    "trainyard config check": [*COMMAND, "config", "check", "config.yaml"],
    "import torch": [sys.executable, "-c", "import torch"],
    "import lightning": [sys.executable, "-c", "import lightning"],
    "from transformers import Trainer": [sys.executable, "-c", "from transformers import Trainer"],
}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=10)
    given = options.parse_args()
    print(machine())
    times: dict[str, list[float]] = {name: [] for name in JOBS}
    with workplace() as folder:
        (folder / "config.yaml").write_text(CONFIG)
        for number in range(given.rounds + 1):
            for name, command in JOBS.items():
                wall = run(command, folder).wall
                if number:  # the first round reads the files into memory
                    times[name].append(wall)
        heavy = {name: imported(JOBS[name], folder) & HEAVY for name in JOBS if name.startswith("trainyard")}
    rows = [[name, f"{min(some):.3f}", f"{median(some):.3f}"] for name, some in times.items()]
    print(table(["", "least s", "median s"], rows))
    for name, found in heavy.items():
        print(f"{name} imports {', '.join(sorted(found)) or 'no ML framework'}")
    return 1 if any(heavy.values()) else 0


def imported(command: list[str], folder: Path) -> set[str]:
    """The top-level packages that a Python command imports, as the interpreter itself reports them."""
    ended = subprocess.run(
        [command[0], "-X", "importtime", *command[1:]], cwd=folder, capture_output=True, text=True, check=True
    )
    return {
        line.rpartition("|")[2].strip().split(".")[0] for line in ended.stderr.splitlines() if "|" in line
    }


if __name__ == "__main__":
    sys.exit(main())
