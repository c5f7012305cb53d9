"""A small table as people have them: integers, missing values, categories, dates, and a target of words."""

import csv
import random
from pathlib import Path
from typing import Any

CITIES = ("Bern", "Lima", "Oslo")
NEW: list[dict[str, Any]] = [  # raw rows to predict: missing values, and a city that no training row has
    {"age": 31, "income": 52000.0, "city": "Oslo", "joined": "2021-03-04", "seats": 2},
    {"age": 55, "income": None, "city": "Atlantis", "joined": "2024-11-30", "seats": 3},
    {"age": 19, "income": 18000.5, "city": None, "joined": "2023-07-15", "seats": 1},
]


def write_customers(path: Path, rows: int = 160) -> Path:
    """Write the table as CSV."""
    draw = random.Random(5)
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["age", "income", "city", "joined", "seats", "plan", "spent"])
        for _ in range(rows):
            age, income, city = draw.randint(18, 70), draw.uniform(1e4, 9e4), draw.choice(CITIES)
            seats = draw.randint(1, 5)
            date = f"20{draw.randint(18, 25)}-{draw.randint(1, 12):02d}-{draw.randint(1, 28):02d}"
            plan = "gold" if income + 900 * age + 9000 * seats > 1.1e5 + 2e4 * (city == "Lima") else "basic"
            spent = round(income / 100 + 30 * seats + 40 * (city == "Oslo"), 2)
            shown = "" if draw.random() < 0.1 else f"{income:.2f}"
            table.writerow([age, shown, "" if draw.random() < 0.05 else city, date, seats, plan, spent])
    return path


def config(table: Path, model: str, *, target: str = "plan", **more: Any) -> dict[str, Any]:
    """Return a config that trains a small model on the table."""
    other = "spent" if target == "plan" else "plan"
    trees = {"n_estimators": 12, "max_depth": 3}
    return {
        "experiment": {"name": "customers"},
        "data": {"path": str(table), "target": target, "exclude": [other], "split": {"test": 0.2}},
        "model": {"type": model, "params": trees},
        "training": {"threads": 1},
        **more,
    }
