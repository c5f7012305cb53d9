"""Tables of different nature, made from seeds, for `proposals.py`: what predicts, and how many rows."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

Frame = pd.DataFrame
Array = np.ndarray


def generated() -> Iterator[tuple[str, Callable[[], Frame]]]:
    """Yield the name of each table, and a function that makes it; the target is called `y`."""
    for name, (score, sizes) in NATURES.items():
        for kind in ("values", "classes"):
            for rows in sizes:
                yield f"{name}-{kind}-{rows}", lambda n=name, s=score, k=kind, r=rows: _make(n, s, k, r)


def from_sklearn() -> Iterator[tuple[str, Callable[[], Frame]]]:
    """Yield scikit-learn's own tables, which need no download."""
    from sklearn import datasets

    def make(name: str) -> Frame:
        data = getattr(datasets, f"load_{name}")(as_frame=True)
        return data.frame.rename(columns={"target": "y"})

    for name in ("iris", "wine", "breast_cancer", "diabetes", "digits"):
        yield name, lambda n=name: make(n)


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
    return hidden.assign(city=random.choice(["a", "b", None], rows)), score


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
