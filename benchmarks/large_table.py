"""The time to the first progress line on a large table: `python benchmarks/large_table.py [lightgbm]`.

2,000,000 rows of 13 columns (numbers, whole numbers, one column of text, a target of two classes) in a
Parquet file. The script reads the file with pyarrow, makes one array of it, and lets the library bin it.
Trainwright runs `train` with its defaults until its first progress line, when it is ended: it has read,
checked, hashed and binned the same rows by then. Each job is a process, jobs take
turns, and start-up is included.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from harness import Cost, machine, median, run, table, temporary_folder

ROWS = 2_000_000
FIRST_LINE = "event=start"
CONFIG = """\
experiment: {name: large, seed: 1}
data: {path: large.parquet, target: y, split: {val: 0, test: 0}}
model: {type: LIBRARY, n_estimators: 10}
training: {threads: THREADS, device: cpu}
"""
READ = """\
import numpy
from pyarrow.parquet import ParquetFile
data = ParquetFile("large.parquet").read()
y = data.column("y").to_numpy()
names = [name for name in data.column_names if name != "y"]
x = numpy.empty((len(y), len(names)), numpy.float32)
for i, name in enumerate(names):
    column = data.column(name)
    x[:, i] = column.combine_chunks().dictionary_encode().indices if name == "city" else column
"""
SCRIPTS = {
    "lightgbm": READ
    + """
import lightgbm
options = {"num_threads": THREADS, "verbosity": -1}
lightgbm.Dataset(x, y, categorical_feature=[names.index("city")], params=options).construct()
""",
    "xgboost": READ
    + """
import xgboost
types = ["c" if name == "city" else "q" for name in names]
xgboost.QuantileDMatrix(x, y, feature_types=types, enable_categorical=True, nthread=THREADS)
""",
}


def main() -> None:
    """Make the data, run the jobs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", nargs="*", help=f"default: all of {', '.join(SCRIPTS)}")
    parser.add_argument("--rounds", type=int, default=5, help="number of runs of each job")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    print(machine())
    with temporary_folder() as folder:
        make_data(folder, arguments.rows)
        for library in arguments.libraries or list(SCRIPTS):
            for name, text in ((f"by_hand_{library}.py", SCRIPTS[library]), (f"{library}.yaml", CONFIG)):
                filled = text.replace("LIBRARY", library).replace("THREADS", str(arguments.threads))
                (folder / name).write_text(filled)
            base, mine = [], []
            for _ in range(arguments.rounds):
                base.append(run([sys.executable, f"by_hand_{library}.py"], folder))
                command = [sys.executable, "-m", "trainwright", "train", f"{library}.yaml"]
                mine.append(run_to_first_line(command, folder))
            report(library, base, mine)


def make_data(folder: Path, rows: int) -> None:
    """Write the table: 9 numbers, 2 whole numbers, a city and a target of two classes."""
    import pyarrow
    from pyarrow import parquet

    random = np.random.default_rng(0)
    columns: dict[str, np.ndarray] = {f"x{i}": random.standard_normal(rows) for i in range(9)}
    columns |= {f"k{i}": random.integers(0, 1000, rows) for i in range(2)}
    score = columns["x0"] + columns["x1"] * columns["x2"] + random.standard_normal(rows)
    columns["city"] = np.array(["Rome", "Paris", "Oslo", "Bonn"])[random.integers(0, 4, rows)]
    columns["y"] = (score > 0).astype(np.int64)
    parquet.write_table(pyarrow.table(columns), folder / "large.parquet")


def run_to_first_line(command: list[str], folder: Path) -> Cost:
    """Run a command until it prints its first progress line, and return its cost until then.

    Raises:
        RuntimeError: It ended without such a line.
    """
    started = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if FIRST_LINE in line:
            break
    wall = time.perf_counter() - started
    process.send_signal(signal.SIGKILL)
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = -signal.SIGKILL
    if not lines or FIRST_LINE not in lines[-1]:
        raise RuntimeError(f"{' '.join(command)} began no training:\n{''.join(lines)[-2000:]}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def report(title: str, base: list[Cost], mine: list[Cost]) -> None:
    """Print minima (the least disturbed runs), their ratios, and the median ratios within rounds."""
    rows = []
    for field, name in (("wall", "wall s"), ("cpu", "CPU s"), ("peak", "peak MiB")):
        by_hand, ours = [[getattr(cost, field) for cost in costs] for costs in (base, mine)]
        ratio = min(ours) / min(by_hand)
        within = median([one / other for one, other in zip(ours, by_hand, strict=True)])
        rows.append([name, f"{min(by_hand):.2f}", f"{min(ours):.2f}", f"{ratio:.2f}x", f"{within:.2f}x"])
    print(f"\n{title}\n{table(['minimum', 'by hand', 'trainwright', 'ratio', 'median ratio'], rows)}")


if __name__ == "__main__":
    main()
