"""`predict` of many files into a folder, as a command."""

import os
from pathlib import Path

import pandas as pd
import pytest
from commandline import Command

import trainwright


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs, and four files to predict."""
    folder = tmp_path_factory.mktemp("batch")
    frame = pd.DataFrame(
        {"id": range(120), "x": [i % 17 for i in range(120)], "z": [i % 5 for i in range(120)]}
    )
    frame.assign(y=["yes" if i % 3 else "no" for i in range(120)]).to_csv(folder / "rows.csv", index=False)
    config = {
        "experiment": {"name": "batch"},
        "data": {"type": "csv", "path": str(folder / "rows.csv"), "target": "y", "exclude": ["id"]},
        "model": {"type": "lightgbm", "params": {"num_leaves": 4}},
        "training": {"max_steps": 2, "threads": 1},
        "tracking": [],
    }
    trainwright.train(config, runs_dir=folder / "runs", quiet=True)
    (folder / "data").mkdir()
    for i in range(4):
        frame[i * 30 : i * 30 + 30].to_parquet(folder / "data" / f"{i}.parquet")
    return folder


@pytest.fixture
def predict(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Run `predict last` with words, in a folder of its own in which there is `data`."""
    monkeypatch.chdir(tmp_path)
    Path("data").symlink_to(folder / "data")
    return lambda *words: command("predict", "last", *words, "--runs-dir", folder / "runs")


def test_a_list_a_pattern_and_a_folder_are_predicted_alike(predict: Command) -> None:
    files = [f"data/{i}.parquet" for i in range(4)]
    done = predict(*files, "-o", "listed/", "--keep", "id", "--to", "csv")
    assert (done.code, done.out) == (0, "120 predictions of 4 files: listed/\n")
    lines = done.err.splitlines()
    assert lines[-1].startswith("trainwright event=predict files=4/4 rows=120 rows_per_second=")
    predict("data/*.parquet", "-o", "matched", "--keep", "id", "--to", "csv")
    predict("data", "-o", "below", "--keep", "id", "--to", "csv", "--quiet")
    listed, matched, below = (
        [path.read_bytes() for path in sorted(Path(name).glob("*.csv"))]
        for name in ("listed", "matched", "below")
    )
    assert listed == matched == below
    whole = b"".join(text if i == 0 else text.partition(b"\n")[2] for i, text in enumerate(listed))
    assert predict("data/*.parquet", "--keep", "id").out.encode() == whole  # one table, without a folder
    again = predict(*files, "-o", "listed", "--keep", "id", "--to", "csv", "--json")
    assert {key: again.json[key] for key in ("files", "kept", "rows", "failed", "errors", "output")} == {
        "files": 4, "kept": 4, "rows": 120, "failed": 0, "errors": {}, "output": "listed",
    }  # fmt: skip


def test_what_was_not_predicted_is_the_exit_code(predict: Command, folder: Path) -> None:
    os.mkfifo("pipe.parquet")
    done = predict(folder / "data" / "0.parquet", "pipe.parquet", "-o", "out", "-q")
    assert done.code == 1
    assert "not predicted: pipe.parquet is a pipe (FIFO)" in done.err
    assert done.out.startswith("30 predictions of 1 files")
    stopped = predict("pipe.parquet", "-o", "stopped", "--on-error", "stop")
    assert (stopped.code, stopped.out) == (2, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing argument 'FILE'"),
        (
            ["data/0.parquet", "data/1.parquet"],
            "2 files given: give a folder for the predictions of each, -o",
        ),
        (["data/0.parquet", "data/1.parquet", "-o", "out.csv"], "2 files given: give a folder"),
        (
            ["data/0.parquet", "-o", "out.csv", "--to", "csv"],
            "are for several files, and a folder: -o FOLDER",
        ),
        (["data/0.parquet", "--processes", "2"], "are for several files, and a folder: -o FOLDER"),
        (
            ["data/*.parquet", "-o", "out", "distributed.nproc=2"],
            "several files are predicted by --processes N",
        ),
        (["data/*.csv", "-o", "out"], "there is no file of this pattern"),
        (["data", "-o", "out", "--to", "orc"], "written as csv, csv.gz, parquet, jsonl, xlsx"),
        (["data", "-o", "data/out"], "choose one outside of them"),
    ],
)
def test_mistakes(predict: Command, words: list[str], message: str) -> None:
    done = predict(*words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert not Path("out").exists()


def test_another_options_folder_is_refused_until_forced(predict: Command) -> None:
    assert predict("data/*.parquet", "-o", "out").code == 0
    done = predict("data/*.parquet", "-o", "out", "--no-proba")
    assert done.code == 2
    assert "choose another folder, or replace them with --force" in done.err
    assert predict("data/*.parquet", "-o", "out", "--no-proba", "--force").code == 0
    assert list(pd.read_parquet("out/0.parquet")) == ["prediction"]
