"""`predict` and `evaluate` on files with bad rows, unusual values and other formats than in training."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commandline import Command

import trainwright
from trainwright.datasets.tables import chunks as chunks_module
from trainwright.errors import DataError, InputError
from trainwright.inference import predictor as predictor_module

ROWS = 90
FRAME = pd.DataFrame(
    {
        "id": [f"r{i}" for i in range(ROWS)],
        "age": [20 + i * 37 % 61 for i in range(ROWS)],
        "day": [f"2024-{1 + i % 12:02}-{1 + i % 28:02}" for i in range(ROWS)],
        "city": [["Rome", "Oslo", "Bonn"][i % 3] for i in range(ROWS)],
        "size": [i * 29 % 47 / 4 for i in range(ROWS)],
        "sold": [["yes", "no"][int(i * 37 % 61 > 30)] for i in range(ROWS)],
    }
)
CONFIG: dict[str, Any] = {
    "experiment": {"name": "messy"},
    "data": {"target": "sold", "features": ["age", "day", "city", "size"]},
    "model": {"type": "mlp", "params": {"hidden": [4]}},
    "training": {"max_steps": 20, "batch_size": 16, "threads": 1},
}


class Trained:
    """A run, and the folder that it is in."""

    def __init__(self, folder: Path) -> None:
        FRAME.to_csv(folder / "train.csv", index=False)
        config = {**CONFIG, "data": {**CONFIG["data"], "path": str(folder / "train.csv")}}
        self.run = trainwright.train(config, runs_dir=folder / "runs")

    def words(self, *words: Any) -> list[Any]:
        return ["predict", self.run.path, *words]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"))


def messy(folder: Path, rows: int = 8) -> Path:
    """The first rows, of which three are bad."""
    frame = FRAME[:rows].drop(columns="sold").astype(object)
    frame.loc[2, "age"] = "abc"
    frame.loc[4, "day"] = "yesterday"
    lines = frame.to_csv(index=False).splitlines()
    lines[6] = ",".join(lines[6].split(",")[:3])
    file = folder / "new.csv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


ERRORS = [
    "column 'age' holds numbers, but 'abc'",
    "column 'day' holds times, but 'yesterday'",
    "3 cells, where the header has 5",
]


@pytest.mark.parametrize("block", [False, True])
def test_bad_rows_have_no_prediction_and_an_error(
    command: Command, trained: Trained, tmp_path: Path, block: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if block:
        monkeypatch.setattr(chunks_module, "WHOLE_BYTES", 0)
    file, output = messy(tmp_path), tmp_path / "out.csv"
    done = command(*trained.words(file, "-o", output, "--keep", "id,age", "--json"))
    assert (done.code, done.json["rows"], done.json["failed"]) == (0, 8, 3), done.err
    out = pd.read_csv(output)
    assert list(out.columns) == ["id", "age", "prediction", "probability_no", "probability_yes", "error"]
    assert out["id"].tolist() == FRAME["id"][:8].tolist()
    assert out["age"].tolist()[2] == "abc"
    assert out["error"].dropna().tolist() == ERRORS
    assert out.loc[[2, 4, 5], "prediction"].isna().all()
    assert "3 of 8 rows cannot be predicted, and are without a prediction: row 3: column 'age'" in done.err
    whole = trainwright.predict(trained.run, trained.run.path.parents[2] / "train.csv")
    good = [0, 1, 3, 6, 7]
    assert out["prediction"][good].tolist() == whole["prediction"][good].tolist()


def test_bad_rows_are_left_out_or_end_it(command: Command, trained: Trained, tmp_path: Path) -> None:
    file, output = messy(tmp_path), tmp_path / "out.parquet"
    done = command(*trained.words(file, "-o", output, "--keep", "id", "--on-error", "skip"))
    assert done.code == 0
    out = pd.read_parquet(output)
    assert (len(out), "error" in out) == (5, False)
    assert out["id"].tolist() == [f"r{i}" for i in (0, 1, 3, 6, 7)]
    assert "3 of 8 rows cannot be predicted, and are left out" in done.err
    done = command(*trained.words(file, "-o", tmp_path / "other.csv", "--on-error", "stop"))
    assert done.code == 2
    assert "row 6" in done.err
    assert not (tmp_path / "other.csv").exists()


def test_the_column_of_errors_is_there_if_it_is_asked_for_or_needed(
    command: Command, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, output = trained.run.path.parents[2] / "train.csv", tmp_path / "out.csv"
    assert "error" not in command(*trained.words(good)).out.splitlines()[0]
    done = command(*trained.words(good, "--on-error", "null"))
    assert done.out.splitlines()[0].endswith(",error")
    monkeypatch.setattr(predictor_module.Predictor, "chunk_rows", 2)  # the first error is in the second chunk
    command(*trained.words(messy(tmp_path), "-o", output))
    assert pd.read_csv(output)["error"].dropna().tolist() == ERRORS
    done = command(*trained.words(messy(tmp_path)))
    assert (len(done.out.splitlines()), "error" in done.out) == (9, False)
    assert "3 of 8 rows" in done.err
    frame = trainwright.predict(trained.run, messy(tmp_path))
    assert frame["error"].dropna().tolist() == ERRORS


def test_a_file_of_bad_rows_alone(command: Command, trained: Trained, tmp_path: Path) -> None:
    frame = FRAME[:5].astype(object).assign(age="abc")
    frame.to_csv(tmp_path / "bad.csv", index=False)
    for on_error, rows in ((["--on-error", "skip"], 0), (["--on-error", "null"], 5), ([], 5)):
        done = command(
            *trained.words(tmp_path / "bad.csv", "-o", tmp_path / "o.csv", "--force", "--json", *on_error)
        )
        assert (done.code, done.json["failed"]) == (1, 5)
        assert len(pd.read_csv(tmp_path / "o.csv")) == rows
        assert command(*trained.words(tmp_path / "bad.csv", *on_error)).code == 1
    lacking = FRAME.drop(columns="age")
    lacking.to_csv(tmp_path / "lacking.csv", index=False)
    done = command(*trained.words(tmp_path / "lacking.csv"))
    assert done.code == 2
    assert "there is no column 'age'" in done.err


def test_bad_rows_from_python(trained: Trained) -> None:
    model, frame = trainwright.load(trained.run), FRAME[:6].astype(object)
    frame.loc[1, "age"] = "abc"
    with pytest.raises(DataError, match="'abc'"):
        model.predict(frame)
    found = model.predict(frame, on_error="null")
    assert found["error"].tolist() == [None, "column 'age' holds numbers, but 'abc'", None, None, None, None]
    assert found["prediction"].isna().tolist() == [False, True, False, False, False, False]
    assert model.predict(frame, on_error="skip").index.tolist() == [0, 2, 3, 4, 5]
    assert "error" not in model.predict(FRAME, on_error="null")
    with pytest.raises(InputError, match="give null, skip or stop"):
        model.predict(frame, on_error="ignore")  # type: ignore[arg-type]


def test_missing_values_that_the_model_does_not_take(trained: Trained, tmp_path: Path) -> None:
    frame = FRAME[:6].copy()
    frame.loc[3, "size"] = np.nan
    frame.loc[5, "city"] = None
    frame.to_csv(tmp_path / "gaps.csv", index=False)
    found = trainwright.predict(trained.run, tmp_path / "gaps.csv")
    assert found["prediction"].isna().tolist() == [False, False, False, True, False, True]
    assert [text.split("'")[1] for text in found["error"].dropna()] == ["size", "city"]


def test_evaluation_of_bad_rows(command: Command, trained: Trained, tmp_path: Path) -> None:
    frame = FRAME[:20].astype(object)
    frame.loc[2, "age"] = "abc"
    frame.loc[4, "sold"] = "perhaps"
    lines = frame.to_csv(index=False).splitlines()
    lines[8] += ",more"
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = command("evaluate", trained.run.path, tmp_path / "rows.csv")
    assert done.code == 2
    done = command("evaluate", trained.run.path, tmp_path / "rows.csv", "--on-error", "skip", "--json")
    assert done.code == 0, done.err
    assert "1 of 20 rows cannot be read" in done.err
    assert "2 of 19 rows cannot be evaluated, and are left out" in done.err
    FRAME[:20].drop(index=[2, 4, 7]).to_csv(tmp_path / "good.csv", index=False)
    good = command("evaluate", trained.run.path, tmp_path / "good.csv", "--json")
    assert good.json["metrics"] == done.json["metrics"]


def test_values_outside_of_the_training_rows_are_counted(
    command: Command, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = FRAME[:10].copy()
    frame.loc[[1, 2], "age"] = [190, -3]
    frame.loc[2, "day"] = "2031-05-01"
    frame.loc[[7, 8], "city"] = ["Paris", "Lima"]
    frame.to_csv(tmp_path / "new.csv", index=False)
    low, high = trained_range(trained, "age")
    assert (low, high) == (FRAME["age"].min(), FRAME["age"].max()) or low >= 20
    for rows in (100, 3):
        monkeypatch.setattr(predictor_module.Predictor, "chunk_rows", rows)
        done = command(*trained.words(tmp_path / "new.csv", "-o", tmp_path / "o.csv", "--force", "--json"))
        unusual = done.json["unusual"]
        assert (unusual["rows"], unusual["never_seen"]) == (10, 2)
        assert unusual["columns"]["age"]["found"] == [-3, 190]
        assert unusual["columns"]["city"]["values"] == ["Paris", "Lima"]
        assert "of 10 rows have a value outside the range seen in training: age (min " in done.err
        assert "up to 190)" in done.err
        assert "up to 2031-05-01" in done.err
        said = "2 of 10 rows have a category never seen in training: city ('Paris', 'Lima'), taken as no "
        assert said in done.err
        assert "no training row has" not in done.err
    done = command(*trained.words(trained.run.path.parents[2] / "train.csv", "-o", tmp_path / "p.csv"))
    assert "never seen" not in done.err


def trained_range(trained: Trained, name: str) -> list[Any]:
    found: list[Any] = json.loads((trained.run.path / "data.json").read_text())["ranges"][name]
    return found


def test_bad_lines_of_json_are_bad_rows(command: Command, trained: Trained, tmp_path: Path) -> None:
    lines = FRAME[:8].drop(columns="sold").to_json(orient="records", lines=True).splitlines()
    lines[1] = lines[1].replace('"Oslo"', '{"name": "Oslo"}')
    lines[3] = lines[3][:20]
    lines[4] = '{"age": ' + "9" * 5000 + "}"
    lines[5] = "[" * 100_000
    file = tmp_path / "new.jsonl"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = command(*trained.words(file, "-o", tmp_path / "o.csv", "--keep", "id"))
    assert done.code == 0, done.err
    table = pd.read_csv(tmp_path / "o.csv")
    assert table["error"].isna().tolist() == [True, False, True, False, False, False, True, True]
    assert (table["prediction"].isna() == table["error"].notna()).all()
    assert table["error"][1] == "column 'city' holds a mapping"
    assert table["error"][3].startswith("line 4 is not JSON: ")
    assert table["error"][4] == "line 5 is not JSON: a number has thousands of digits"
    assert table["error"][5] == "line 6 is not JSON: it is nested too deeply"
    alone = command(*trained.words(file, "-o", tmp_path / "s.csv", "--on-error", "stop"))
    assert alone.code == 2


def test_a_pattern_that_the_shell_has_expanded(command: Command, trained: Trained) -> None:
    done = command(*trained.words("part-0.parquet", "part-1.parquet", "part-2.parquet"))
    assert done.code == 2
    assert "Quote a pattern of files" in done.err


def test_one_bad_cell_is_not_counted_as_a_column_of_text(
    command: Command, trained: Trained, tmp_path: Path
) -> None:
    frame = FRAME[:8].astype(object)
    frame.loc[2, "age"] = "abc"
    frame.to_csv(tmp_path / "new.csv", index=False)
    done = command(*trained.words(tmp_path / "new.csv", "-o", tmp_path / "o.csv"))
    assert "hold text" not in done.err
    assert "column 'age' holds numbers, but 'abc'" in done.err


def test_a_decimal_point_where_a_comma_was_trained_on(command: Command, tmp_path: Path) -> None:
    rows = [f"{i * 29 % 47},{i % 4};{['yes', 'no'][i % 2]}" for i in range(60)]
    (tmp_path / "train.csv").write_text("\n".join(["size;sold", *rows]))
    data = {"path": str(tmp_path / "train.csv"), "target": "sold", "params": {"delimiter": ";"}}
    run = trainwright.train({**CONFIG, "data": data}, runs_dir=tmp_path / "runs")
    (tmp_path / "new.csv").write_text("size;x\n100.5;1\n7,25;2\n")
    done = command("predict", run.path, tmp_path / "new.csv")
    assert (
        "column 'size' holds numbers with a decimal comma (with a point: --decimal .), but '100" in done.err
    )


@pytest.mark.parametrize(
    "name", ["o.csv.gz", "o.csv.xz", "o.csv.bz2", "o.csv.zst", "o.jsonl", "o.jsonl.gz", "o.xlsx"]
)
def test_predictions_in_other_formats(trained: Trained, tmp_path: Path, name: str) -> None:
    file, output = messy(tmp_path), tmp_path / name
    expected = trainwright.predict(trained.run, file, keep=["id"])
    written = trainwright.predict_file(trained.run, file, output, keep=["id"])
    assert (written.rows, written.failed) == (8, 3)
    if name == "o.xlsx":
        read = pd.read_excel(output)
    elif "jsonl" in name:
        read = pd.read_json(output, lines=True)
    elif name.endswith(".zst"):
        import pyarrow.csv

        read = pyarrow.csv.read_csv(output).to_pandas()
    else:
        read = pd.read_csv(output)
    assert list(read.columns) == list(expected.columns)
    np.testing.assert_allclose(read["probability_yes"], expected["probability_yes"], rtol=1e-6)
    assert read["error"].replace("", None).dropna().tolist() == ERRORS


@pytest.mark.parametrize("name", ["new.tsv", "new.csv", "new.jsonl", "new.xlsx", "new.csv.gz", "new.parquet"])
def test_other_formats_than_in_training(trained: Trained, tmp_path: Path, name: str) -> None:
    rows, file = FRAME[:9].drop(columns="sold"), tmp_path / name
    match name:
        case "new.tsv" | "new.csv":
            rows.to_csv(file, index=False, sep="\t" if name == "new.tsv" else ";")
        case "new.jsonl":
            rows.to_json(file, orient="records", lines=True)
        case "new.xlsx":
            rows.to_excel(file, index=False)
        case "new.parquet":
            rows.to_parquet(file)
        case _:
            rows.to_csv(file, index=False)
    expected = trainwright.load(trained.run).predict(FRAME[:9])
    pd.testing.assert_frame_equal(trainwright.predict(trained.run, file), expected)


def test_options_of_reading(command: Command, trained: Trained, tmp_path: Path) -> None:
    file = tmp_path / "new.csv"
    rows = FRAME[:9].assign(size=[f"1.{i}00,50" for i in range(9)], city="Köln")
    rows.to_csv(file, index=False, sep="|", encoding="cp1252")
    done = command(
        *trained.words(
            file,
            "--delimiter",
            "|",
            "--encoding",
            "cp1252",
            "--decimal",
            ",",
            "-o",
            tmp_path / "o.csv",
            "--json",
        )
    )
    assert done.code == 0, done.err
    assert done.json["unusual"]["columns"]["size"]["found"] == [1000.5, 1800.5]
    assert done.json["unusual"]["columns"]["city"]["values"] == ["Köln"]
    with pytest.raises(InputError, match="no option 'sep' of reading a file; there are: decimal, delimiter"):
        trainwright.predict(trained.run, file, params={"sep": "|"})
    done = command(*trained.words(file, "--decimal", ";"))
    assert done.code == 2
