"""Files as people have them, from `init` to `evaluate`: each works, or ends with a short error."""

import csv
import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import trainwright
from trainwright.errors import InputError

pytest.importorskip("openpyxl")
ROWS = 120
DRAW = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "client": [f"K{i:04}" for i in range(ROWS)],
        "age": DRAW.integers(18, 80, ROWS),
        "amount": DRAW.normal(5000, 2000, ROWS).clip(1).round(2),
        "city": DRAW.choice(["Köln", "Düsseldorf", "Bonn"], ROWS),
        "discount": DRAW.integers(0, 30, ROWS),
        "day": pd.date_range("2023-01-01", periods=ROWS).strftime("%d.%m.%Y"),
        "bought": np.where(np.arange(ROWS) % 2, "yes", "no"),
    }
)
GERMAN = FRAME.assign(
    amount=[f"{one:,.2f}".replace(",", "_").replace(".", ",").replace("_", ".") for one in FRAME["amount"]],
    discount=[f"{one} %" for one in FRAME["discount"]],
)
LINES = FRAME.to_csv(index=False).splitlines()


def text(lines: list[str]) -> Callable[[Path], object]:
    return lambda path: path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def parquet(path: Path) -> None:
    path.mkdir()
    FRAME[:60].to_parquet(path / "a.parquet", index=False)
    other = FRAME[60:][["bought", "city", "discount", "amount", "age", "client", "day"]]
    other.astype({"age": float}).to_parquet(path / "b.parquet", index=False)


def titled(path: Path) -> None:
    with pd.ExcelWriter(path) as book:
        FRAME.to_excel(book, sheet_name="Sales", index=False, startrow=2)
        book.sheets["Sales"]["A1"] = "Sales of 2023"
        pd.DataFrame({"by": ["Ada"]}).to_excel(book, sheet_name="Notes", index=False)


def hive(path: Path) -> None:
    for year, rows in ((2023, FRAME[:60]), (2024, FRAME[60:])):
        (path / f"year={year}").mkdir(parents=True)
        rows.to_csv(path / f"year={year}" / "part.csv", index=False)


WORKS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a mark, semicolons and decimal commas": (
        "a.csv",
        lambda path: GERMAN.to_csv(path, sep=";", index=False, encoding="utf-8-sig"),
    ),
    "cp1252": ("a.csv", lambda path: GERMAN.to_csv(path, sep=";", index=False, encoding="cp1252")),
    "UTF-16": ("a.csv", lambda path: FRAME.to_csv(path, index=False, encoding="utf-16")),
    "gzip": ("a.csv.gz", lambda path: path.write_bytes(gzip.compress("\n".join(LINES).encode()))),
    "two Parquet files": ("parts", parquet),
    "the same name twice": ("a.csv", text([LINES[0].replace("city", "age"), *LINES[1:]])),
    "a trailing delimiter": ("a.csv", text([f"{line}," for line in LINES])),
    "quotes with newlines": (
        "a.csv",
        lambda path: FRAME.assign(note='says "yes",\nand goes').to_csv(
            path, index=False, quoting=csv.QUOTE_ALL
        ),
    ),
    "thousands and percent": (
        "a.csv",
        lambda path: FRAME.assign(
            amount=[f"{one:,.2f}" for one in FRAME["amount"]],
            discount=[f"{one / 100:.1%}" for one in FRAME["discount"]],
        ).to_csv(path, index=False),
    ),
    "Excel with a title and two sheets": ("a.xlsx", titled),
    "JSON Lines": ("a.jsonl", lambda path: FRAME.to_json(path, orient="records", lines=True)),
    "partitions": ("parts", hive),
    "tabs": ("a.txt", lambda path: FRAME.to_csv(path, index=False, sep="\t")),
    "old Macintosh": ("a.csv", lambda path: path.write_bytes("\r".join(LINES).encode())),
}
BROKEN: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "empty": ("a.csv", lambda path: path.touch(), "is empty"),
    "a header alone": ("a.csv", text(LINES[:1]), "there are columns, but no rows"),
    "a trailing delimiter in rows": ("a.csv", text([LINES[0], *(f"{line}," for line in LINES[1:])]), "has 8 cells, the header 7"),
    "an open quote": ("a.csv", text([*LINES[:50], f'"{LINES[50]}', *LINES[51:]]), "never closed"),
    "no text": ("a.csv", lambda path: path.write_bytes(bytes(range(256)) * 9), "a.csv"),
    "lines above the header": ("a.csv", text(["# exported", "", *LINES]), "has 7 cells, the header 1"),
    "no workbook": ("a.xlsx", text(LINES), "cannot be read as an Excel workbook"),
    "no JSON": ("a.jsonl", text(LINES), "line 1 is not JSON"),
    "an empty folder": ("parts", lambda path: path.mkdir(), "parts"),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKS)
def test_it_works(name: str, tmp_path: Path) -> None:
    file, write = WORKS[name]
    path = tmp_path / file
    write(path)
    config = tmp_path / "config.yaml"
    config.write_text(trainwright.init(path, "bought", model="logistic_regression"), encoding="utf-8")
    run = trainwright.train(config, {"training.threads": 1}, runs_dir=tmp_path / "runs")
    assert len(trainwright.predict(run, path, on_error="stop")) == ROWS
    assert 0 <= trainwright.evaluate(run, data=path)["test_accuracy"] <= 1


@pytest.mark.parametrize("name", BROKEN)
def test_it_ends_with_a_short_error(name: str, tmp_path: Path) -> None:
    file, write, says = BROKEN[name]
    path = tmp_path / file
    write(path)
    with pytest.raises(InputError) as caught:
        trainwright.init(path, "bought", model="logistic_regression")
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 4
    assert caught.value.exit_code == 2
