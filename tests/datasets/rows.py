"""Rows for the tests: a number, an integer, a category, a boolean, and a target of two classes."""

import random
from typing import Any

from pydantic import BaseModel

from trainwright.config.schema import DataConfig
from trainwright.datasets.base import PLAIN


def people(count: int = 120, seed: int = 0) -> list[dict[str, Any]]:
    """The target depends on all columns, and on chance, so that no column gives it away."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        row: dict[str, Any] = {
            "height": round(draw.gauss(170, 10), 3),
            "children": draw.randrange(4),
            "city": draw.choice(["Rome", "Paris", "Oslo"]),
            "member": draw.random() < 0.5,
        }
        score = (
            (row["height"] - 170) / 10
            + row["children"] / 4
            + (row["city"] == "Rome")
            + row["member"]
            + draw.gauss(0, 1)
        )
        rows.append(row | {"bought": "yes" if score > 1.2 else "no"})
    return rows


def csv_text(rows: list[dict[str, Any]], delimiter: str = ",") -> str:
    lines = [delimiter.join(rows[0])]
    lines += [delimiter.join("" if value is None else str(value) for value in row.values()) for row in rows]
    return "\n".join(lines) + "\n"


def config(**settings: Any) -> DataConfig:
    return DataConfig.model_validate({"target": "bought", **settings})


def load(cls: Any, settings: DataConfig, **params: Any) -> Any:
    options: BaseModel = cls.Params(**params)
    return cls(settings, options).load(PLAIN)
