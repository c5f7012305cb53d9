"""Coverage of prediction intervals on five regressions: `python benchmarks/intervals.py`.

Each table has 20,000 rows: a fifth calibrates the intervals, half tests them. The radius is also computed by
hand, from the validation rows' residuals.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable

import numpy as np
import pandas as pd
from harness import machine, table, temporary_folder
from sklearn import datasets

import trainwright

ROWS = 20_000
Made = tuple[np.ndarray, np.ndarray]


def heteroscedastic(draw: np.random.Generator) -> Made:
    """Return a sine whose noise grows with its argument."""
    x = draw.uniform(0, 6, (ROWS, 3))
    return x, np.sin(x[:, 0]) + 0.3 * x[:, 0] * draw.standard_normal(ROWS)


def prices(draw: np.random.Generator) -> Made:
    """Return amounts with a long tail, whose errors are shares of them."""
    x = draw.standard_normal((ROWS, 5))
    return x, np.exp(10 + x @ [0.5, 0.3, 0.2, 0, 0] + 0.4 * draw.standard_normal(ROWS))


TABLES: dict[str, Callable[[np.random.Generator], Made]] = {
    "friedman1": lambda draw: datasets.make_friedman1(
        ROWS, noise=1.0, random_state=int(draw.integers(1 << 30))
    ),
    "friedman2": lambda draw: datasets.make_friedman2(
        ROWS, noise=100.0, random_state=int(draw.integers(1 << 30))
    ),
    "friedman3": lambda draw: datasets.make_friedman3(
        ROWS, noise=0.2, random_state=int(draw.integers(1 << 30))
    ),
    "heteroscedastic": heteroscedastic,
    "prices (log1p)": prices,
}


def main() -> None:
    """Train on each table and print a table of the coverage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lightgbm")
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    logging.getLogger("trainwright").setLevel(logging.WARNING)
    print(machine())
    rows = []
    for name, make in TABLES.items():
        rows += coverage(name, *make(np.random.default_rng(7)), arguments)
    print(table(["regression", "level", "covered", "radius / by hand"], rows))


def coverage(name: str, x: np.ndarray, y: np.ndarray, arguments: argparse.Namespace) -> list[list[str]]:
    """Return rows of the printed table: of each level, the share of test targets inside the intervals."""
    transform = "log1p" if "log1p" in name else None
    config = {
        "experiment": {"name": "intervals"},
        "data": {"type": "csv", "path": "rows.csv", "target": "y", "target_transform": transform}
        | {"split": {"val": 0.2, "test": 0.5}},
        "model": {"type": arguments.model},
        "training": {"max_steps": arguments.steps, "threads": 1},
        "tracking": [],
    }
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])]).assign(y=y)
    lines = []
    with temporary_folder() as folder:
        frame.to_csv(folder / "rows.csv", index=False)
        predictor = trainwright.load(
            trainwright.train(config, {"data.path": str(folder / "rows.csv")}, runs_dir=folder / "runs")
        )
        positions = predictor.load_data().rows
        scale = np.log1p if transform else np.asarray
        residuals = np.abs(scale(frame["y"]) - scale(predictor.predict(frame)["prediction"]))[
            positions["val"]
        ]
        test = frame.iloc[positions["test"]]
        for level in (0.8, 0.9, 0.95):
            found = predictor.predict_interval(test, level)
            inside = (found["lower"] <= test["y"]) & (test["y"] <= found["upper"])
            rank = int(np.ceil((len(residuals) + 1) * level))
            radius = predictor.intervals(level).radius[0] / np.sort(residuals)[rank - 1]
            lines.append([name, f"{level:g}", f"{inside.mean():.3f}", f"{radius:.6f}"])
    return lines


if __name__ == "__main__":
    main()
