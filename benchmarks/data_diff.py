"""The time and memory to find one edited cell: `python benchmarks/data_diff.py [csv] [parquet]`.

2,000,000 rows of 10 columns (a shuffled key, whole numbers, numbers, texts, dates, booleans, a column with
gaps, a column of different texts), and the same with one cell edited. `trainwright data diff` finds the key,
the cell, and the shift of each column. By hand: pandas reads both files, aligns them by the key, which it
is told, and compares the columns. Each job is a process, jobs take turns, and start-up is included.
"""

from __future__ import annotations

import argparse
import sys
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from harness import Cost, machine, run, table, temporary_folder

ROWS = 2_000_000
BY_HAND = """\
import pandas as pd
first, second = (pd.read_ENDING(f"{name}.ENDING").set_index("customer_id") for name in "ab")
second = second.reindex(first.index)
for name in first:
    differs = (first[name] != second[name]) & ~(first[name].isna() & second[name].isna())
    if differs.any():
        print(name, first[name][differs], second[name][differs])
"""


def main() -> None:
    """Make the tables, run the jobs and print what they cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("endings", nargs="*", help="default: csv parquet")
    parser.add_argument("--rounds", type=int, default=3, help="number of runs of each job")
    parser.add_argument("--rows", type=int, default=ROWS)
    arguments = parser.parse_args()
    print(machine())
    rows = []
    with temporary_folder() as folder:
        # In a process of its own: what it holds would count as the peak of the jobs.
        maker = get_context("spawn").Process(target=make_data, args=(folder, arguments.rows))
        maker.start()
        maker.join()
        for ending in arguments.endings or ["csv", "parquet"]:
            (folder / f"by_hand_{ending}.py").write_text(BY_HAND.replace("ENDING", ending))
            jobs = {
                "trainwright": ["-m", "trainwright", "data", "diff", f"a.{ending}", f"b.{ending}"],
                "pandas by hand": [f"by_hand_{ending}.py"],
            }
            costs: dict[str, list[Cost]] = {name: [] for name in jobs}
            for _ in range(arguments.rounds):
                for name, words in jobs.items():
                    costs[name].append(run([sys.executable, *words], folder))
            for name, of_job in costs.items():
                least = [min(getattr(cost, field) for cost in of_job) for field in ("wall", "cpu", "peak")]
                rows.append([ending, name, *(f"{value:.1f}" for value in least)])
    print(table(["file", "", "wall s", "CPU s", "peak MiB"], rows))


def make_data(folder: Path, rows: int) -> None:
    """Write the two tables in both formats."""
    import pyarrow
    from pyarrow import csv, parquet

    random = np.random.default_rng(0)
    keys = random.permutation(rows) + 10_000_000
    days = random.integers(0, 2000, rows).astype("timedelta64[D]")
    columns = {
        "customer_id": keys,
        "age": random.integers(18, 90, rows),
        "charge": np.round(random.gamma(2, 30, rows), 2),
        "balance": random.normal(0, 1000, rows),
        "city": np.array([f"city {i}" for i in range(500)])[random.integers(0, 500, rows)],
        "plan": np.array(["free", "basic", "pro"])[random.integers(0, 3, rows)],
        "signup": np.datetime64("2020-01-01") + days,
        "active": random.random(rows) < 0.5,
        "visits": pyarrow.array(random.poisson(3, rows), mask=random.random(rows) < 0.05),
        "email": [f"user{key}@example.org" for key in keys],
    }
    charge = columns["charge"].copy()
    charge[rows * 5 // 8] += 1
    for name, charges in (("a", columns["charge"]), ("b", charge)):
        written = pyarrow.table({**columns, "charge": charges})
        csv.write_csv(written, folder / f"{name}.csv")
        parquet.write_table(written, folder / f"{name}.parquet")


if __name__ == "__main__":
    main()
