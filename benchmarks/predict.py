"""Memory and speed of `trainwright predict` for files larger than the memory: `python benchmarks/predict.py`.

A small model is trained on a table of numbers, categories and dates, and predicts for files of the same
columns, each three times as large as the one before: what it needs must not grow with them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from harness import ONE_THREAD, Cost, machine, run, table, temporary_folder
from resume import COMMAND

CONFIG = """\
experiment: {name: predict, seed: 1}
data: {type: csv, path: train.csv, target: y, exclude: [id]}
model: {type: MODEL}
training: {max_steps: 20, threads: 1}
tracking: []
"""


def main() -> None:
    """Make the files, predict and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lightgbm")
    parser.add_argument("--mb", type=int, default=3000, help="the size of the largest file")
    parser.add_argument("--sizes", type=int, default=3)
    arguments = parser.parse_args()
    print(machine())
    rows = []
    with temporary_folder() as folder:
        (folder / "config.yaml").write_text(CONFIG.replace("MODEL", arguments.model))
        write(folder / "train.csv", 1)
        run([*COMMAND, "train", "config.yaml"], folder, ONE_THREAD)
        for size in sorted(arguments.mb // 3**i for i in range(arguments.sizes)):
            write(folder / "rows.csv", size)
            for suffix in ("csv", "parquet"):
                cost = predicted(folder, f"out.{suffix}")
                speed = f"{size / cost.wall:.0f}"
                rows.append([f"{size} MB to {suffix}", f"{cost.wall:.1f}", f"{cost.peak:.0f}", speed])
    print(table(["file", "s", "peak MiB", "MB/s"], rows))


def write(path: Path, megabytes: int) -> None:
    """Write a table of about this size."""
    import numpy as np
    import pandas as pd

    draw, rows = np.random.default_rng(0), 50_000
    numbers = {f"x{i}": draw.standard_normal(rows).round(6) for i in range(12)}
    words = {f"c{i}": draw.choice([f"word {j}" for j in range(50)], rows) for i in range(4)}
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(draw.integers(0, 2000, rows), unit="D")
    frame = pd.DataFrame({"id": range(rows), **numbers, **words, "day": days.strftime("%Y-%m-%d")})
    text = frame.assign(y=(frame["x0"] + frame["x1"] > 0).astype(int)).to_csv(index=False)
    header, _, body = text.partition("\n")
    with path.open("w", encoding="utf-8") as file:
        file.write(f"{header}\n")
        for _ in range(max(1, megabytes * 1_000_000 // len(body))):
            file.write(body)


def predicted(folder: Path, output: str) -> Cost:
    """Return the cost of the command."""
    words = ["predict", "last", "rows.csv", "--keep", "id", "-o", output, "--force"]
    return run([*COMMAND, *words], folder, ONE_THREAD)


if __name__ == "__main__":
    main()
