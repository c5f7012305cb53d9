"""Predictions as files have the values that the model answers, and one header."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from trainwright.inference.written_tables import csv_text, write_predictions


@pytest.mark.parametrize("scale", [2.0**24, 1.7e9, -3e12])
def test_large_float32_keep_their_value(scale: float, tmp_path: Path) -> None:
    """Another program reads them as float64, where their shortest digits mean another number."""
    values = (scale * (1 + np.random.default_rng(0).random(500) / 100)).astype(np.float32)
    frame = pd.DataFrame({"prediction": values})
    write_predictions([frame], tmp_path / "p.csv")
    for text in ((tmp_path / "p.csv").read_text(), csv_text(frame, header=True)):
        read = np.loadtxt(io.StringIO(text), skiprows=1)
        assert read.tolist() == values.astype(np.float64).tolist()


def test_small_float32_have_their_fewest_digits() -> None:
    assert csv_text(pd.DataFrame({"prediction": np.float32([0.1, 2.5])}), header=False) == "0.1\n2.5\n"


@pytest.mark.parametrize("name", ["p.csv", "p.csv.gz", "p.jsonl", "p.xlsx", "p.parquet"])
def test_a_first_frame_without_rows_gives_no_second_header(name: str, tmp_path: Path) -> None:
    """As `--on-error skip` makes it where all rows of the first chunk are left out."""
    frame = pd.DataFrame({"prediction": np.float32([0.5, 1.5]), "label": ["a", "b"]})
    written = write_predictions([frame[:0], frame, frame[:0], frame[1:]], tmp_path / name)
    read = {"csv": pd.read_csv, "gz": pd.read_csv, "xlsx": pd.read_excel, "parquet": pd.read_parquet}
    ending = name.rpartition(".")[2]
    found = read[ending](tmp_path / name) if ending in read else pd.read_json(tmp_path / name, lines=True)
    assert found.to_dict("list") == {"prediction": [0.5, 1.5, 1.5], "label": ["a", "b", "b"]}
    assert (written.rows, list(written.columns)) == (3, ["prediction", "label"])
