"""Tables as people have them: eight kinds of mess, made from a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

from trainwright.types import Array


class Messy(NamedTuple):
    """A table as it is written to a file, and the column to predict."""

    frame: pd.DataFrame
    target: str = "y"


def _numbers(random: np.random.Generator, rows: int, columns: int) -> Array:
    return random.standard_normal((rows, columns))


def _frame(values: Array) -> pd.DataFrame:
    return pd.DataFrame(values, columns=[f"x{i}" for i in range(values.shape[1])])


def _classes(random: np.random.Generator, score: Array) -> Array:
    """Return "yes" or "no" by a noisy score."""
    return np.where(score + 0.5 * random.standard_normal(len(score)) > 0, "yes", "no")


def blank_targets(rows: int = 400, seed: int = 0) -> Messy:
    """Return a table in which a tenth of the targets, and some of the numbers, are missing."""
    random = np.random.default_rng(seed)
    frame = _frame(_numbers(random, rows, 5))
    y = pd.Series(_classes(random, frame.x0 + frame.x1 * frame.x2), dtype=object)
    y[random.random(rows) < 0.1] = None
    frame.loc[random.random(rows) < 0.2, "x1"] = np.nan
    return Messy(frame.assign(y=y))


def mixed_dates(rows: int = 400, seed: int = 0) -> Messy:
    """Return a table with a date written in three ways, and with words among the numbers."""
    random = np.random.default_rng(seed)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(random.integers(0, 1500, rows), unit="D")
    forms = np.array(["%Y-%m-%d", "%d/%m/%Y", "%b %d, %Y"])[random.integers(0, 3, rows)]
    frame = _frame(_numbers(random, rows, 4))
    y = frame.x0 + np.sin(days.dayofyear / 58) + 0.3 * random.standard_normal(rows)
    text = pd.Series(frame.x1.round(3).astype(str))
    text[random.random(rows) < 0.03] = "unknown"
    when = [day.strftime(form) for day, form in zip(days, forms, strict=True)]
    return Messy(frame.assign(signup=when, x1=text, y=y))


def currency(rows: int = 400, seed: int = 0) -> Messy:
    """Return a table of prices such as "$60,425", shares in per cent, and gaps written as dashes."""
    random = np.random.default_rng(seed)
    income = random.lognormal(10.5, 0.6, rows)
    share = random.integers(0, 100, rows)
    region = random.choice(["north", "south", "east", "west"], rows)
    effect = pd.Series(region).map({"north": 0.0, "south": 0.3, "east": 0.5, "west": -0.2})
    y = np.log(income) + share / 50 + effect + 0.2 * random.standard_normal(rows)
    texts = pd.Series([f"${value:,.0f}" for value in income])
    texts[random.random(rows) < 0.05] = "-"
    return Messy(
        pd.DataFrame({"income": texts, "share": [f"{n} %" for n in share], "region": region, "y": y})
    )


def identifiers(rows: int = 400, seed: int = 0) -> Messy:
    """Return a table with four columns that identify rows, a constant, an empty and a doubled column name."""
    random = np.random.default_rng(seed)
    frame = _frame(_numbers(random, rows, 4))
    ids = {
        "Unnamed: 0": np.arange(rows),
        "customer_id": random.permutation(10 * rows)[:rows],
        "uuid": [random.bytes(8).hex() for _ in range(rows)],
        "email": [f"user{i}@example.com" for i in random.permutation(rows)],
        "country": "DE",
        "notes": None,
    }
    return Messy(frame.assign(**ids, y=_classes(random, frame.x0 - frame.x2)))


def many_categories(rows: int = 2000, categories: int = 5000, seed: int = 0) -> Messy:
    """Return a table with a column of up to 5,000 categories, most of them rare, and one with 60."""
    random = np.random.default_rng(seed)
    effects, few = random.standard_normal(categories), random.standard_normal(60)
    code = np.minimum((random.pareto(0.5, rows) * 3).astype(int), categories - 1)
    shop, x = random.integers(0, 60, rows), random.standard_normal(rows)
    y = effects[code] + few[shop] + x + 0.5 * random.standard_normal(rows)
    return Messy(
        pd.DataFrame({"city": [f"c{i}" for i in code], "shop": [f"s{i}" for i in shop], "x": x, "y": y})
    )


def rare_positives(rows: int = 4000, seed: int = 0) -> Messy:
    """Return a table in which 0.5 % of the rows are positive."""
    random = np.random.default_rng(seed)
    frame = _frame(_numbers(random, rows, 8))
    score = 2 * frame.x0 + frame.x1 * frame.x2 + random.standard_normal(rows)
    return Messy(frame.assign(fraud=(score > np.quantile(score, 0.995)).astype(int)), "fraud")


def one_hot(rows: int = 400, columns: int = 1121, seed: int = 0) -> Messy:
    """Return a table of 1,121 columns of 0 and 1, in groups of which one is 1."""
    random = np.random.default_rng(seed)
    sizes = [40] * (columns // 40) + ([columns % 40] if columns % 40 else [])
    groups = [np.eye(size, dtype=int)[random.integers(0, size, rows)] for size in sizes]
    values = np.hstack(groups)
    y = values[:, :40] @ random.standard_normal(40) + 0.3 * random.standard_normal(rows)
    frame = pd.DataFrame(values, columns=[f"level [{i}]" for i in range(values.shape[1])])
    return Messy(frame.assign(y=y))


def visits(rows: int = 600, seed: int = 0) -> Messy:
    """Return rows of patients over time, some of them twice; the target drifts and depends on the patient."""
    random = np.random.default_rng(seed)
    patient = random.integers(0, rows // 8, rows)
    level = random.standard_normal(rows // 8)
    when = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.sort(random.integers(0, 700, rows)), unit="D")
    frame = _frame(_numbers(random, rows, 3))
    y = np.digitize(frame.x0 + level[patient] + np.arange(rows) / rows, [-0.7, 0.7])
    frame = frame.assign(patient_id=[f"P{i:03}" for i in patient], visit_date=when.strftime("%Y-%m-%d"), y=y)
    return Messy(pd.concat([frame, frame.sample(rows // 20, random_state=seed)], ignore_index=True))


TABLES: dict[str, Callable[[], Messy]] = {
    "blank_targets": blank_targets,
    "mixed_dates": mixed_dates,
    "currency": currency,
    "identifiers": identifiers,
    "many_categories": many_categories,
    "rare_positives": rare_positives,
    "one_hot": one_hot,
    "visits": visits,
}
