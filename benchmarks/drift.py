"""False alarms and finds of drift: `python benchmarks/drift.py [--peer PYTHON]`.

Tables of 20 columns: normal ones that go together, skewed ones, counts, categories (few, and a long tail of
them) and one with missing values. Each training set has 20 windows of each size. PYTHON is an interpreter
with `evidently` and pandas 2: it judges the same windows by its `DataDriftPreset` with the defaults.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from harness import machine, table, temporary_folder

from trainwright.monitoring.drift import compare
from trainwright.monitoring.reference import Reference
from trainwright.monitoring.sketches import Window

SIZES = (200, 500, 2000, 20_000)
PER_SET = 20
Columns = dict[str, np.ndarray]
_PEER = """
import json, sys, warnings
warnings.filterwarnings("ignore")
import pandas as pd
from evidently import Report
from evidently.presets import DataDriftPreset
for line in open(sys.argv[1]):
    train, window = (pd.read_csv(path) for path in json.loads(line))
    metrics = Report([DataDriftPreset()]).run(window, train).dict()["metrics"]
    count = metrics[0]["value"]
    named = []
    for one in metrics[1:]:
        distance = "distance" in one["config"]["method"]
        far = float(one["value"]) >= one["config"]["threshold"]
        near = float(one["value"]) < one["config"]["threshold"]
        if far if distance else near:
            named.append(one["config"]["column"])
    print(json.dumps({"named": named, "whole": count["share"] >= 0.5}), flush=True)
"""


def rows(count: int, draw: np.random.Generator) -> Columns:
    """Return rows of 20 columns."""
    common = draw.normal(size=count)
    made: Columns = {f"normal{i}": common / 2 + draw.normal(size=count) for i in range(8)}
    made |= {f"skewed{i}": draw.gamma(2, 30, count) for i in range(4)}
    made |= {"visits": draw.poisson(3, count), "flag": draw.integers(0, 2, count)}
    made |= {f"plan{i}": _names(draw.integers(0, 5, count)) for i in range(3)}
    made["city"] = _names(np.minimum(draw.zipf(1.5, count), 5000))
    made["age"] = np.where(draw.random(count) < 0.1, np.nan, draw.normal(40, 12, count))
    made["label"] = _names((common + draw.logistic(size=count) > 1).astype(int))
    return made


def _names(codes: np.ndarray) -> np.ndarray:
    return np.array([f"k{code}" for code in codes.tolist()], object)


def shifted(made: Columns) -> Columns:
    """Shift one column by one standard deviation."""
    return {**made, "normal3": made["normal3"] + np.sqrt(1.25)}


def other_labels(made: Columns) -> Columns:
    """Give a fifth of the rows the rare label."""
    every = np.arange(len(made["label"])) % 5 == 0
    return {**made, "label": np.where(every, "k1", made["label"]).astype(object)}


def unseen(made: Columns) -> Columns:
    """Give 2 percent of the rows a category that no training row has."""
    every = np.arange(len(made["plan1"])) % 50 == 0
    return {**made, "plan1": np.where(every, "platinum", made["plan1"]).astype(object)}


def other_unit(made: Columns) -> Columns:
    """Make one column 100 times larger."""
    return {**made, "skewed2": made["skewed2"] * 100}


def some_in_other_unit(made: Columns) -> Columns:
    """Make 2 percent of one column 100 times larger."""
    every = np.arange(len(made["skewed2"])) % 50 == 0
    return {**made, "skewed2": np.where(every, made["skewed2"] * 100, made["skewed2"])}


def missing(made: Columns) -> Columns:
    """Empty 5 percent of one column."""
    every = np.arange(len(made["normal1"])) % 20 == 0
    return {**made, "normal1": np.where(every, np.nan, made["normal1"])}


CHANGES: dict[str, tuple[Callable[[Columns], Columns], str]] = {
    "one standard deviation": (shifted, "normal3"),
    "a fifth of the labels": (other_labels, "label"),
    "2% unseen categories": (unseen, "plan1"),
    "x 100": (other_unit, "skewed2"),
    "x 100 in 2% of the rows": (some_in_other_unit, "skewed2"),
    "5% missing": (missing, "normal1"),
}


class Peer:
    """Judges windows by Evidently in another process."""

    def __init__(self, python: str, folder: Path) -> None:
        self._python, self._folder, self._pairs = python, folder, list[list[str]]()

    def add(self, train: Path, made: Columns) -> None:
        """Note a window."""
        path = self._folder / f"window{len(self._pairs)}.csv"
        pd.DataFrame(made).to_csv(path, index=False)
        self._pairs.append([str(train), str(path)])

    def judged(self) -> list[dict[str, object]]:
        """Return the columns that drifted in each window, and whether the whole did."""
        lines = self._folder / "pairs.jsonl"
        lines.write_text("\n".join(map(json.dumps, self._pairs)))
        command = [self._python, "-c", _PEER, str(lines)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        self._pairs.clear()
        return [json.loads(line) for line in done.stdout.splitlines()]


def named(reference: Reference, made: Columns, rate: float) -> set[str]:
    """Return the columns of a window that drifted."""
    window = Window(reference)
    window.add(made, {})
    return {column.name for column in compare(window, rate).drifted}


def alarms(sets: int, train_rows: int, rate: float, peer: Peer | None, folder: Path) -> list[list[str]]:
    """Return the rates of alarms for windows without drift."""
    ours: dict[int, list[bool]] = {size: [] for size in SIZES}
    sizes: list[int] = []  # of the windows that the peer judges
    for number in range(sets):
        draw = np.random.default_rng(1000 + number)
        train = rows(train_rows, draw)
        reference = Reference.of("run", train, {}, seed=number)
        path = folder / f"train{number}.csv"
        pd.DataFrame(train).to_csv(path, index=False)
        for size in SIZES:
            for i in range(PER_SET):
                made = rows(size, draw)
                ours[size].append(bool(named(reference, made, rate)))
                if peer is not None and i == 0:
                    peer.add(path, made)
                    sizes.append(size)
    judged = peer.judged() if peer is not None else []
    made_rows = []
    for size in SIZES:
        line = [f"{train_rows:,}", f"{size:,}", f"{len(ours[size])}", f"{np.mean(ours[size]):.2%}"]
        if peer is not None:
            theirs = [one for one, of in zip(judged, sizes, strict=True) if of == size]
            some = np.mean([bool(one["named"]) for one in theirs])
            whole = np.mean([bool(one["whole"]) for one in theirs])
            line += [f"{some:.0%} of {len(theirs)}", f"{whole:.0%}"]
        made_rows.append(line)
    return made_rows


def finds(count: int, rate: float, peer: Peer | None, folder: Path) -> list[list[str]]:
    """Return how often changes are found in 500 rows, and their column named."""
    draw = np.random.default_rng(5)
    train = rows(2000, draw)
    reference = Reference.of("run", train, {})
    path = folder / "train.csv"
    pd.DataFrame(train).to_csv(path, index=False)
    lines = []
    for name, (change, column) in CHANGES.items():
        windows = [change(rows(500, draw)) for _ in range(count)]
        found = [named(reference, made, rate) for made in windows]
        line = [name, f"{np.mean([column in one for one in found]):.1%}"]
        line.append(f"{np.mean([one == {column} for one in found]):.1%}")
        if peer is not None:
            for made in windows[:5]:
                peer.add(path, made)
            line.append(f"{np.mean([column in list(one['named']) for one in peer.judged()]):.0%}")  # type: ignore[call-overload]
        lines.append(line)
    return lines


def costs() -> list[list[str]]:
    """Return the times of calibrating, of counting a request, and of a comparison."""
    draw = np.random.default_rng(9)
    lines = []
    for count in (2000, 100_000):
        train = rows(count, draw)
        started = time.perf_counter()
        reference = Reference.of("run", train, {})
        lines.append(
            [f"reference of {count:,} rows, thresholds included", f"{time.perf_counter() - started:.1f} s"]
        )
    window, made = Window(reference), rows(64, draw)
    spent = []
    for _ in range(2000):
        started = time.perf_counter()
        window.add(made, {}, 0.001)
        spent.append(time.perf_counter() - started)
    lines.append(["a request of 64 rows counted: mean", f"{np.mean(spent) * 1e3:.2f} ms"])
    lines.append(["the same: median", f"{np.median(spent) * 1e3:.2f} ms"])
    started = time.perf_counter()
    compare(window)
    lines.append(["comparison", f"{(time.perf_counter() - started) * 1e3:.1f} ms"])
    lines.append(["window as JSON", f"{len(json.dumps(window.to_json())) / 1e3:.0f} KB"])
    return lines


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("--sets", type=int, default=25, help="training sets; each has 20 windows of a size")
    parser.add_argument("--rate", type=float, default=0.01)
    arguments = parser.parse_args()
    print(machine())
    with temporary_folder() as folder:
        peer = Peer(arguments.peer, folder) if arguments.peer else None
        theirs = ["Evidently: a column", "the whole"] if peer else []
        some = alarms(arguments.sets, 2000, arguments.rate, peer, folder)
        some += alarms(max(1, arguments.sets // 5), 20_000, arguments.rate, None, folder)
        some = [line + [""] * (4 + len(theirs) - len(line)) for line in some]
        print(table(["training rows", "rows", "windows", "alarms", *theirs], some))
        sys.stdout.flush()
        header = ["change, in 500 rows", "found", "alone", *(["Evidently"] if peer else [])]
        print(table(header, finds(200, arguments.rate, peer, folder)))
        print(table(["cost", ""], costs()))


if __name__ == "__main__":
    main()
