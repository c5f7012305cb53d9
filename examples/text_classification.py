"""Classify texts: tell from a docstring which package of Python's standard library it is from.

Run it with `python examples/text_classification.py`; it downloads nothing, and takes a minute or two on 2
cores. It needs the extras `torch`, `tabular` and `text`.
"""

from __future__ import annotations

import argparse
import ast
import csv
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trainwright

PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "xml")
QUESTIONS = [
    "Wait for the future to be done.",
    "Return the header of a message.",
    "Fail if the two are equal.",
]


def main() -> None:
    """Write the table of docstrings, train, and ask the model about texts that no package has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, default=Path("docstrings.csv"))
    parser.add_argument("overrides", nargs="*", help="as for `trainwright train`: training.epochs=3")
    given = parser.parse_args()
    rows = write_table(given.table)
    run = trainwright.train(config(given.table), given.overrides)
    accuracy = run.metrics["test_accuracy"]
    print(f"{rows} docstrings; {accuracy:.3f} of those that it has not seen are put into the right package")
    answers = trainwright.load(run).predict(QUESTIONS)["prediction"]
    for question, package in zip(QUESTIONS, answers, strict=True):
        print(f"{question} -> {package}")


def docstrings(package: str) -> Iterator[str]:
    """Yield the docstrings in the sources of a package."""
    for path in sorted(Path(sysconfig.get_path("stdlib"), package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if text := ast.get_docstring(node):
                yield text


def write_table(path: Path) -> int:
    """Write each docstring with its package; return their number."""
    rows = [[text, package] for package in PACKAGES for text in dict.fromkeys(docstrings(package))]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["docstring", "package"], *rows])
    return len(rows)


def config(table: Path) -> dict[str, Any]:
    """Return the config: what a YAML file would hold."""
    return {
        "experiment": {"name": "docstrings", "seed": 1},
        "data": {
            "type": "text_table",
            "path": str(table),
            "text": "docstring",
            "target": "package",
            "max_length": 64,  # tokens
            "tokenizer": "bpe",
            "vocab_size": 2048,
        },
        "model": {"type": "text_transformer", "hidden_size": 64, "num_layers": 2, "dropout": 0.2},
        "training": {
            "epochs": 6,
            "batch_size": 32,
            "learning_rate": 0.002,
            "scheduler": {"type": "cosine", "warmup_ratio": 0.1},
            "class_weights": "balanced",
        },
        "checkpoint": {"metric": "val_accuracy"},
    }


if __name__ == "__main__":
    main()
