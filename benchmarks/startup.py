"""The start-up time of the command line, and the packages that it imports: `python benchmarks/startup.py`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from harness import machine, median, run, table, temporary_folder

HEAVY = {
    *(
        "torch",
        "tensorflow",
        "keras",
        "sklearn",
        "xgboost",
        "lightgbm",
        "transformers",
        "lightning",
        "mlflow",
    ),
    *("pandas", "pyarrow", "scipy", "matplotlib", "jax"),
}
CONFIG = """\
experiment: {name: digits-mlp, seed: 42}
data: {type: digits, split: {val: 0.1, test: 0.1, stratify: true}}
model: {type: mlp, hidden: [256, 128], dropout: 0.1}
training: {epochs: 20, batch_size: 64, scheduler: {type: cosine, warmup_steps: 50}}
tracking: [mlflow]
"""
COMMAND = [sys.executable, "-m", "trainwright"]
JOBS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "trainwright --help": [*COMMAND, "--help"],
    "trainwright config check": [*COMMAND, "config", "check", "config.yaml"],
    "import torch": [sys.executable, "-c", "import torch"],
    "import lightning": [sys.executable, "-c", "import lightning"],
    "from transformers import Trainer": [sys.executable, "-c", "from transformers import Trainer"],
}


def main() -> int:
    """Time the commands and print the table; return 1 if Trainwright imports a heavy package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    print(machine())
    times: dict[str, list[float]] = {name: [] for name in JOBS}
    with temporary_folder() as folder:
        (folder / "config.yaml").write_text(CONFIG)
        for number in range(arguments.rounds + 1):
            for name, command in JOBS.items():
                wall = run(command, folder).wall
                if number:  # the first round fills the file cache and is not counted
                    times[name].append(wall)
        heavy = {
            name: imported(JOBS[name], folder) & HEAVY for name in JOBS if name.startswith("trainwright")
        }
    rows = [[name, f"{min(walls):.3f}", f"{median(walls):.3f}"] for name, walls in times.items()]
    print(table(["", "minimum s", "median s"], rows))
    for name, packages in heavy.items():
        print(f"{name} imports {', '.join(sorted(packages)) or 'no ML framework'}")
    return 1 if any(heavy.values()) else 0


def imported(command: list[str], folder: Path) -> set[str]:
    """Return the top-level packages that a Python command imports, as `-X importtime` reports them."""
    process = subprocess.run(
        [command[0], "-X", "importtime", *command[1:]], cwd=folder, capture_output=True, text=True, check=True
    )
    return {
        line.rpartition("|")[2].strip().split(".")[0] for line in process.stderr.splitlines() if "|" in line
    }


if __name__ == "__main__":
    sys.exit(main())
