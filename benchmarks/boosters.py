"""The cost of training boosted trees, against the shortest script: `python benchmarks/boosters.py [xgboost]`.

100,000 rows of 50 features, 300 rounds, rows and features sampled. Trainyard runs with the defaults of its
command line (journal, progress lines, digest, report) and a checkpoint every 100 rounds. The script reads the
same file, trains, and writes the model. One comparison has no validation rows; in the other, both evaluate
10,000 rows after each round, the script with one metric, Trainyard with three. Each job is a process, jobs
take turns, and start-up is included.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from harness import Cost, machine, median, run, table, temporary_folder

ROWS, VAL, FEATURES = 100_000, 10_000, 50
CONFIG = """\
experiment: {name: boosters, seed: 1}
data: {path: FILE, split: {val: 0, test: 0}}
model: MODEL
training: {threads: THREADS, device: cpu}
checkpoint: {every_n_steps: 100, every_n_minutes: null}
"""


class Library(NamedTuple):
    """The same training as the `model` section of a config and as scripts, without and with validation."""

    model: str
    script: str
    script_val: str


LIBRARIES = {
    "xgboost": Library(
        "{type: xgboost, n_estimators: ROUNDS, learning_rate: 0.1, subsample: 0.8, colsample_bytree: 0.8}",
        """\
import numpy, xgboost
data = numpy.load("FILE")
train = xgboost.QuantileDMatrix(data["X_train"], data["y_train"], nthread=THREADS)
options = {"objective": "binary:logistic", "learning_rate": 0.1, "subsample": 0.8, "colsample_bytree": 0.8,
           "nthread": THREADS}
xgboost.train(options, train, ROUNDS).save_model("model.ubj")
""",
        """\
import numpy, xgboost
data = numpy.load("FILE")
train = xgboost.QuantileDMatrix(data["X_train"], data["y_train"], nthread=THREADS)
val = xgboost.DMatrix(data["X_val"], data["y_val"], nthread=THREADS)
options = {"objective": "binary:logistic", "learning_rate": 0.1, "subsample": 0.8, "colsample_bytree": 0.8,
           "nthread": THREADS}
xgboost.train(options, train, ROUNDS, [(val, "val")], verbose_eval=False).save_model("model.ubj")
""",
    ),
    "lightgbm": Library(
        "{type: lightgbm, n_estimators: ROUNDS, learning_rate: 0.1, subsample: 0.8, colsample_bytree: 0.8}",
        """\
import lightgbm, numpy
data = numpy.load("FILE")
options = {"objective": "binary", "learning_rate": 0.1, "bagging_fraction": 0.8, "bagging_freq": 1,
           "feature_fraction": 0.8, "num_threads": THREADS, "verbosity": -1}
train = lightgbm.Dataset(data["X_train"], data["y_train"])
lightgbm.train(options, train, ROUNDS).save_model("model.txt")
""",
        """\
import lightgbm, numpy
data = numpy.load("FILE")
options = {"objective": "binary", "learning_rate": 0.1, "bagging_fraction": 0.8, "bagging_freq": 1,
           "feature_fraction": 0.8, "num_threads": THREADS, "verbosity": -1}
train = lightgbm.Dataset(data["X_train"], data["y_train"])
val = train.create_valid(data["X_val"], data["y_val"])
lightgbm.train(options, train, ROUNDS, [val]).save_model("model.txt")
""",
    ),
}
FILES = {"bare": "bare.npz", "validated": "validated.npz"}


def main() -> None:
    """Run the jobs in interleaved rounds and print a table for each comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", nargs="*", help=f"default: all of {', '.join(LIBRARIES)}")
    parser.add_argument("--rounds", type=int, default=5, help="number of runs of each job")
    parser.add_argument("--trees", type=int, default=300, help="boosting rounds")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    libraries = arguments.libraries or list(LIBRARIES)
    print(machine())
    with temporary_folder() as folder:
        make_data(folder)
        jobs = {
            (library, data, side): command
            for library in libraries
            for data in FILES
            for side, command in commands(
                LIBRARIES[library], data, folder, arguments.trees, arguments.threads
            ).items()
        }
        costs: dict[tuple[str, str, str], list[Cost]] = {job: [] for job in jobs}
        for number in range(arguments.rounds):
            for job, command in jobs.items():
                costs[job].append(run(command, folder))
            print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr)
    for library in libraries:
        for data in FILES:
            report(f"{library}, {data}", costs[library, data, "by hand"], costs[library, data, "trainyard"])


def make_data(folder: Path) -> None:
    """Write data of two classes, (rows, 50) float32; by a linear term, a sine and noise."""
    random = np.random.default_rng(0)
    x = random.standard_normal((ROWS + VAL, FEATURES), dtype=np.float32)
    score = (
        x @ random.standard_normal(FEATURES) + 3 * np.sin(3 * x[:, 0]) + 3 * random.standard_normal(len(x))
    )
    y = (score > 0).astype(np.int64)
    train = {"X_train": x[:ROWS], "y_train": y[:ROWS]}
    np.savez(folder / FILES["bare"], **train)
    np.savez(folder / FILES["validated"], **train, X_val=x[ROWS:], y_val=y[ROWS:])


def commands(library: Library, data: str, folder: Path, trees: int, threads: int) -> dict[str, list[str]]:
    """Write the config and the script of a comparison, and return the two commands."""

    def fill(text: str) -> str:
        return (
            text.replace("FILE", FILES[data]).replace("ROUNDS", str(trees)).replace("THREADS", str(threads))
        )

    name = f"{library.model.split()[1].strip(',')}-{data}"
    (folder / f"{name}.yaml").write_text(fill(CONFIG.replace("MODEL", library.model)))
    (folder / f"{name}.py").write_text(fill(library.script if data == "bare" else library.script_val))
    trainyard = [sys.executable, "-m", "trainyard", "train", f"{name}.yaml"]
    return {"by hand": [sys.executable, f"{name}.py"], "trainyard": trainyard}


def report(title: str, base: list[Cost], mine: list[Cost]) -> None:
    """Print minima (the least disturbed runs), their ratios, and the median ratios within rounds."""
    rows = []
    for field in Cost._fields:
        by_hand, ours = [getattr(cost, field) for cost in base], [getattr(cost, field) for cost in mine]
        ratios = [one / other for one, other in zip(ours, by_hand, strict=True)]
        ratio = min(ours) / min(by_hand)
        name = {"wall": "wall s", "cpu": "CPU s", "peak": "peak MiB"}[field]
        rows.append(
            [name, f"{min(by_hand):.2f}", f"{min(ours):.2f}", f"{ratio:.3f}x", f"{median(ratios):.3f}x"]
        )
    print(f"\n{title}\n{table(['minimum', 'by hand', 'trainyard', 'ratio', 'median ratio'], rows)}")


if __name__ == "__main__":
    main()
