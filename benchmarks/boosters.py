"""The cost of training boosted trees, against the shortest script: `python benchmarks/boosters.py [xgboost]`.

300 rounds on several shapes of data, rows and features sampled: 100,000 rows of 50 features, also with 10,000
rows that both evaluate after each round (the script with one metric, Trainwright with three) and with trees
of 511 leaves; wide data (5,000 rows of 2,000 features) and long data (1,000,000 rows of 10). Trainwright runs
with the defaults of its command line (journal, progress lines, digest, report) and a checkpoint every 100
rounds. The script reads the same file, trains, and writes the model. XGBoost gets our seeds, since other
samples make other trees, which take up to a tenth more or less. Each job is a process, jobs take turns, and
start-up is included.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from harness import Cost, machine, median, run, table, temporary_folder


class Shape(NamedTuple):
    """A comparison: the size of the data, and of the trees (0: the default of the library)."""

    rows: int = 100_000
    features: int = 50
    val: int = 0
    leaves: int = 0


SHAPES = {
    "bare": Shape(),
    "validated": Shape(val=10_000),
    "wide": Shape(rows=5_000, features=2_000),
    "long": Shape(rows=1_000_000, features=10),
    "leaves": Shape(leaves=511),
}
CONFIG = """\
experiment: {name: boosters, seed: 1}
data: {path: FILE, split: {val: 0, test: 0}}
model: MODEL
training: {threads: THREADS, device: cpu}
checkpoint: {every_n_steps: 100, every_n_minutes: null}
"""


class Library(NamedTuple):
    """The same training as the `model` section of a config and as scripts, without and with validation.

    `leaves` are the options that limit the leaves of a tree.
    """

    model: str
    leaves: dict[str, str | int]
    script: str
    script_val: str


LIBRARIES = {
    "xgboost": Library(
        "{type: xgboost, n_estimators: ROUNDS, learning_rate: 0.1, subsample: 0.8, colsample_bytree: 0.8"
        "MORE}",
        {"max_leaves": 0, "max_depth": 0, "grow_policy": "lossguide"},
        """\
import numpy, xgboost
data = numpy.load("FILE")
train = xgboost.QuantileDMatrix(data["X_train"], data["y_train"], nthread=THREADS)
options = {"objective": "binary:logistic", "learning_rate": 0.1, "subsample": 0.8, "colsample_bytree": 0.8,
           "nthread": THREADS, "seed": 1, "seed_per_iteration": True} | OPTIONS
xgboost.train(options, train, ROUNDS).save_model("model.ubj")
""",
        """\
import numpy, xgboost
data = numpy.load("FILE")
train = xgboost.QuantileDMatrix(data["X_train"], data["y_train"], nthread=THREADS)
val = xgboost.DMatrix(data["X_val"], data["y_val"], nthread=THREADS)
options = {"objective": "binary:logistic", "learning_rate": 0.1, "subsample": 0.8, "colsample_bytree": 0.8,
           "nthread": THREADS, "seed": 1, "seed_per_iteration": True} | OPTIONS
xgboost.train(options, train, ROUNDS, [(val, "val")], verbose_eval=False).save_model("model.ubj")
""",
    ),
    "lightgbm": Library(
        "{type: lightgbm, n_estimators: ROUNDS, learning_rate: 0.1, subsample: 0.8, subsample_freq: 1, "
        "colsample_bytree: 0.8MORE}",
        {"num_leaves": 0},
        """\
import lightgbm, numpy
data = numpy.load("FILE")
options = {"objective": "binary", "learning_rate": 0.1, "bagging_fraction": 0.8, "bagging_freq": 1,
           "feature_fraction": 0.8, "num_threads": THREADS, "verbosity": -1} | OPTIONS
train = lightgbm.Dataset(data["X_train"], data["y_train"])
lightgbm.train(options, train, ROUNDS).save_model("model.txt")
""",
        """\
import lightgbm, numpy
data = numpy.load("FILE")
options = {"objective": "binary", "learning_rate": 0.1, "bagging_fraction": 0.8, "bagging_freq": 1,
           "feature_fraction": 0.8, "num_threads": THREADS, "verbosity": -1} | OPTIONS
train = lightgbm.Dataset(data["X_train"], data["y_train"])
val = train.create_valid(data["X_val"], data["y_val"])
lightgbm.train(options, train, ROUNDS, [val]).save_model("model.txt")
""",
    ),
}


def main() -> None:
    """Run the jobs in interleaved rounds and print a table for each comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", nargs="*", help=f"default: all of {', '.join(LIBRARIES)}")
    parser.add_argument(
        "--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), help="the comparisons; default: all"
    )
    parser.add_argument("--rounds", type=int, default=5, help="number of runs of each job")
    parser.add_argument("--trees", type=int, default=300, help="boosting rounds")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    libraries = arguments.libraries or list(LIBRARIES)
    print(machine())
    with temporary_folder() as folder:
        for name in arguments.shapes:
            make_data(folder / f"{name}.npz", SHAPES[name])
        jobs = {
            (library, shape, side): command
            for library in libraries
            for shape in arguments.shapes
            for side, command in commands(
                LIBRARIES[library], shape, folder, arguments.trees, arguments.threads
            ).items()
        }
        costs: dict[tuple[str, str, str], list[Cost]] = {job: [] for job in jobs}
        for number in range(arguments.rounds):
            for job, command in jobs.items():
                costs[job].append(run(command, folder))
            print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr)
    for library in libraries:
        for shape in arguments.shapes:
            report(
                f"{library}, {shape}", costs[library, shape, "by hand"], costs[library, shape, "trainwright"]
            )


def make_data(path: Path, shape: Shape) -> None:
    """Write data of two classes, (rows, features) float32; by a linear term, a sine and noise."""
    random = np.random.default_rng(0)
    x = random.standard_normal((shape.rows + shape.val, shape.features), dtype=np.float32)
    weights = random.standard_normal(shape.features) * np.sqrt(50 / shape.features)
    score = x @ weights + 3 * np.sin(3 * x[:, 0]) + 3 * random.standard_normal(len(x))
    y = (score > 0).astype(np.int64)
    parts = {"X_train": x[: shape.rows], "y_train": y[: shape.rows]}
    if shape.val:
        parts |= {"X_val": x[shape.rows :], "y_val": y[shape.rows :]}
    np.savez(path, **parts)


def commands(library: Library, name: str, folder: Path, trees: int, threads: int) -> dict[str, list[str]]:
    """Write the config and the script of a comparison, and return the two commands."""
    shape = SHAPES[name]
    options = {key: shape.leaves if "leaves" in key else value for key, value in library.leaves.items()}
    options = options if shape.leaves else {}

    def fill(text: str) -> str:
        values = {"FILE": f"{name}.npz", "ROUNDS": trees, "THREADS": threads, "OPTIONS": options}
        values["MORE"] = "".join(f", {key}: {value}" for key, value in options.items())
        for word, value in values.items():
            text = text.replace(word, str(value))
        return text

    stem = f"{library.model.split()[1].strip(',')}-{name}"
    (folder / f"{stem}.yaml").write_text(fill(CONFIG.replace("MODEL", library.model)))
    (folder / f"{stem}.py").write_text(fill(library.script_val if shape.val else library.script))
    trainwright = [sys.executable, "-m", "trainwright", "train", f"{stem}.yaml"]
    return {"by hand": [sys.executable, f"{stem}.py"], "trainwright": trainwright}


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
    print(f"\n{title}\n{table(['minimum', 'by hand', 'trainwright', 'ratio', 'median ratio'], rows)}")


if __name__ == "__main__":
    main()
