"""Predictions for many files: each as `predict_file` writes it, and continued where a process was killed."""

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import trainwright
from trainwright.api.batches import Batch, BatchProgress
from trainwright.errors import DataError, InputError, RunLockedError, WorldError
from trainwright.inference import predictor
from trainwright.inference.batches import RECORD, batch_files

# The same call in a process of its own, which kills itself at a call of `watch`: `CHILD RUN FOLDER CALL`.
CHILD = """
import os, signal, sys
import trainwright
from trainwright.inference import predictor
predictor._CHUNK_ROWS = 16  # several chunks in a file
run, folder, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
calls = 0
def watch(progress):
    global calls
    calls += 1
    if calls == at:
        os.kill(os.getpid(), signal.SIGKILL)
trainwright.predict_files(run, folder + "/data", folder + "/out", watch=watch, keep=["id"])
"""


def table(rows: int, seed: int) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    color, size = draw.choice(["red", "green", "blue"], rows), draw.normal(10, 3, rows).round(2)
    label = np.where((color == "red") ^ (size > 10), "yes", "no")
    return pd.DataFrame({"id": [f"{i:04}" for i in range(rows)], "color": color, "size": size, "y": label})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("run")
    table(150, 0).to_csv(folder / "rows.csv", index=False)
    config = {
        "experiment": {"name": "batch"},
        "data": {"type": "csv", "path": str(folder / "rows.csv"), "target": "y", "exclude": ["id"]},
        "model": {"type": "lightgbm", "params": {"num_leaves": 4}},
        "training": {"max_steps": 5, "threads": 1},
        "tracking": [],
    }
    return str(trainwright.train(config, runs_dir=folder / "runs", quiet=True).path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Files of several kinds, two of them with one name in two folders."""
    folder = tmp_path / "data"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
    table(40, 1).to_parquet(folder / "a" / "one.parquet")
    table(50, 2).to_parquet(folder / "b" / "one.parquet")
    table(30, 3).to_csv(folder / "b" / "two.csv.gz", index=False)
    table(20, 4).to_json(folder / "three.jsonl", orient="records", lines=True)
    (folder / "_notes.csv").write_text("none of them")
    (folder / "notes.md").write_text("none of them")
    return folder


OUTPUTS = ["a/one.parquet", "b/one.parquet", "b/two.csv.gz", "three.jsonl"]


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder but for the record, by their paths in it."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != RECORD)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_each_file_gets_what_predict_file_writes(run: str, data: Path, tmp_path: Path) -> None:
    seen: list[BatchProgress] = []
    batch = trainwright.predict_files(run, data, tmp_path / "out", keep=["id"], watch=seen.append)
    assert batch == Batch(4, 0, 140, 0, batch.unusual, {})
    found = contents(tmp_path / "out")
    assert list(found) == OUTPUTS
    for name, content in found.items():
        (alone := tmp_path / "alone" / name).parent.mkdir(parents=True, exist_ok=True)
        trainwright.predict_file(run, data / name, alone, keep=["id"])
        assert alone.read_bytes() == content
    assert (seen[-1].files, seen[-1].total, seen[-1].rows, seen[-1].seconds_left) == (4, 4, 140, 0)
    assert [one.rows for one in seen] == sorted(one.rows for one in seen)


def test_files_by_name_by_pattern_and_of_a_folder_have_the_same_places(data: Path, tmp_path: Path) -> None:
    given = [
        [str(data)],
        [f"{data}/**/*.parquet", f"{data}/b/*.gz", str(data / "three.jsonl")],
        [str(data / "three.jsonl"), *(str(data / name) for name in OUTPUTS[:3])],
    ]
    for paths in given:
        files = batch_files(paths, tmp_path / "out", None)
        assert sorted(one.output for one in files) == OUTPUTS
        assert all(one.source == str(data / one.output) for one in files)
    assert [one.output for one in batch_files([f"{data}/b/*"], tmp_path / "out", "csv.gz")] == [
        "one.csv.gz",
        "two.csv.gz",
    ]
    assert batch_files(["s3://b/x/a.pq", "s3://b/x/y/c.tsv.zst"], Path("o"), None) == [
        ("s3://b/x/a.pq", "a.parquet"),
        ("s3://b/x/y/c.tsv.zst", "y/c.csv.zst"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("at", [2, 7])  # in the first file, and in the second
def test_a_kill_loses_no_file_that_was_finished(
    run: str, data: Path, tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictor, "_CHUNK_ROWS", 16)
    trainwright.predict_files(run, data, tmp_path / "whole", keep=["id"])
    words = [sys.executable, "-c", CHILD, run, str(tmp_path)]
    killed = subprocess.run([*words, str(at)], env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)
    assert killed.returncode == -signal.SIGKILL
    lines = (tmp_path / "out" / RECORD).read_text().splitlines()
    finished = {json.loads(line)["output"] for line in lines[1:]}
    times = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in finished}
    batch = trainwright.predict_files(run, data, tmp_path / "out", keep=["id"])
    assert (batch.files, batch.kept, batch.rows) == (4, len(finished), 140)
    assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in finished} == times
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_only_what_is_new_or_has_changed_is_predicted_again(run: str, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    trainwright.predict_files(run, data, out)
    assert trainwright.predict_files(run, data, out).kept == 4
    before = (data / "three.jsonl").stat()
    text = (data / "three.jsonl").read_text()
    (data / "three.jsonl").write_text(text.replace("red", "RED"))  # of the same size, and at the same time
    os.utime(data / "three.jsonl", ns=(before.st_atime_ns, before.st_mtime_ns))
    table(10, 5).to_parquet(data / "new.parquet")
    (out / OUTPUTS[0]).unlink()
    (out / OUTPUTS[1]).write_bytes(b"cut off")
    batch = trainwright.predict_files(run, data, out)
    assert (batch.files, batch.kept) == (5, 1)
    trainwright.predict_files(run, data, tmp_path / "fresh")
    assert contents(out) == contents(tmp_path / "fresh")


def test_a_record_that_was_cut_off_is_read_as_far_as_it_is_whole(
    run: str, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    trainwright.predict_files(run, data, out)
    whole, record = contents(out), out / RECORD
    record.write_bytes(record.read_bytes()[:-7])
    assert trainwright.predict_files(run, data, out).kept == 3
    assert trainwright.predict_files(run, data, out).kept == 4
    assert contents(out) == whole


def test_other_options_and_other_folders_are_refused(run: str, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    trainwright.predict_files(run, data / "a", out, to="csv")
    with pytest.raises(InputError, match=r"made with other options \(proba\): choose another folder, or"):
        trainwright.predict_files(run, data / "a", out, to="csv", proba=False)
    with pytest.raises(InputError, match=r"other options \(to\)"):
        trainwright.predict_files(run, data / "a", out)
    trainwright.predict_files(run, data / "b", out, proba=False, force=True)
    assert list(contents(out)) == ["one.parquet", "two.csv.gz"]  # without what was predicted before
    lines = (out / RECORD).read_text().replace(Path(run).name, "20260101-000000-aaaaaa")
    (out / RECORD).write_text(lines)
    with pytest.raises(InputError, match="holds predictions of run 20260101-000000-aaaaaa"):
        trainwright.predict_files(run, data / "b", out, proba=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty, and holds no predictions"):
        trainwright.predict_files(run, data, tmp_path / "mine")
    assert list(contents(tmp_path / "mine")) == ["letter.txt"]
    assert not (tmp_path / "mine" / RECORD).exists()
    trainwright.predict_files(run, data, tmp_path / "mine", force=True)
    assert (tmp_path / "mine" / "letter.txt").read_text() == "mine"


def test_a_record_removes_nothing_outside_of_its_folder(run: str, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    trainwright.predict_files(run, data / "a", out)
    (tmp_path / "precious.parquet").write_bytes(b"")
    record = out / RECORD
    record.write_text(record.read_text().replace('"one.parquet"', '"../precious.parquet"'))
    trainwright.predict_files(run, data / "a", out, force=True)
    assert (tmp_path / "precious.parquet").exists()


@pytest.mark.parametrize(
    ("given", "output", "message"),
    [
        (["data/*.tsv"], "out", "there is no file of this pattern"),
        (["data/none.csv"], "out", None),  # named when it is read
        (["empty"], "out", "no file below it is a table"),
        (["data/a/one.parquet", "data/a/one.pq"], "out", "would both be predicted into out/one.parquet"),
        (["data"], "data/out", "choose one outside of them"),
        (["data/**/*.parquet"], "data", "choose one outside of them"),
        (["data/a/*.parquet"], "data/a", "choose one outside of them"),
        (["data/a/one.parquet", "s3://b/x.csv"], "out", "no folder in common"),
    ],
)
def test_inputs_that_make_no_batch(
    given: list[str],
    output: str,
    message: str | None,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(data.parent)
    (tmp_path / "empty").mkdir()
    if message is None:
        assert batch_files(given, Path(output), None) == [("data/none.csv", "none.csv")]
        return
    with pytest.raises(InputError, match=message):
        batch_files(given, Path(output), None)


def test_a_file_that_cannot_be_read_stops_no_other(
    run: str, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (data / "b" / "bad.parquet").write_bytes(b"PAR1 no")
    messy = table(20, 6).astype({"size": object})
    messy.loc[3, "size"] = "huge"
    messy.to_csv(data / "messy.csv", index=False)
    batch = trainwright.predict_files(run, data, tmp_path / "out")
    assert (batch.files, batch.rows, batch.failed) == (5, 160, 1)
    assert [*batch.errors] == [str(data / "b" / "bad.parquet")]
    assert "1 of 160 rows without a prediction; " in caplog.text
    with pytest.raises(DataError, match=r"bad\.parquet"):
        trainwright.predict_files(run, data, tmp_path / "stop", on_error="stop")
    assert list(contents(tmp_path / "stop")) == ["a/one.parquet"]  # before it
    (data / "b" / "bad.parquet").unlink()
    assert trainwright.predict_files(run, data, tmp_path / "out").kept == 5
    with pytest.raises(InputError, match="no column 'name' to keep"):
        trainwright.predict_files(run, data, tmp_path / "kept", keep=["name"])


def test_a_file_that_changes_while_it_is_read_has_no_predictions(
    run: str, data: Path, tmp_path: Path
) -> None:
    path = data / "a" / "one.parquet"

    def change(progress: BatchProgress) -> None:
        if not progress.files:
            os.utime(path, ns=(0, 0))

    batch = trainwright.predict_files(run, path, tmp_path / "out", watch=change)
    assert "has changed while it was read" in batch.errors[str(path)]
    assert contents(tmp_path / "out") == {}


def test_one_process_at_a_time_writes_into_a_folder(run: str, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def again(_: BatchProgress) -> None:
        with pytest.raises(RunLockedError, match="another process is writing predictions into"):
            trainwright.predict_files(run, data, out)

    assert trainwright.predict_files(run, data / "a", out, watch=again).files == 1


def test_columns_that_folders_name_are_there(tmp_path: Path) -> None:
    frames = []
    for year in (2024, 2025):
        (folder := tmp_path / "data" / f"year={year}").mkdir(parents=True)
        frame = table(60, year).drop(columns="id")
        frame["y"] = frame["size"] * (year - 2023)
        frame.to_parquet(folder / "rows.parquet")
        frames.append(frame)
    config = {
        "experiment": {"name": "years"},
        "data": {"type": "parquet", "path": str(tmp_path / "data"), "target": "y"},
        "model": {"type": "linear", "framework": "sklearn"},
        "tracking": [],
    }
    years = trainwright.train(config, runs_dir=tmp_path / "runs", quiet=True)
    trainwright.predict_files(years, tmp_path / "data", tmp_path / "out", keep=["year"])
    together = trainwright.predict(years, tmp_path / "data", keep=["year"])
    apart = [pd.read_parquet(tmp_path / "out" / f"year={year}" / "rows.parquet") for year in (2024, 2025)]
    pd.testing.assert_frame_equal(pd.concat(apart, ignore_index=True), together, check_dtype=False)


@pytest.mark.services
def test_several_processes_write_the_same_bytes(run: str, data: Path, tmp_path: Path) -> None:
    one = trainwright.predict_files(run, data, tmp_path / "one", keep=["id"])
    (data / "b" / "bad.parquet").write_bytes(b"PAR1 no")
    two = trainwright.predict_files(run, data, tmp_path / "two", keep=["id"], processes=2)
    assert two[:5] == one[:5]
    assert [*two.errors] == [str(data / "b" / "bad.parquet")]
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def children() -> list[int]:
    """The child processes of this one."""
    tasks = Path("/proc/self/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


@pytest.mark.services
def test_a_process_that_is_killed_ends_the_command(run: str, data: Path, tmp_path: Path) -> None:
    before = {*children()}

    def kill(progress: BatchProgress) -> None:
        if progress.files == 1:
            os.kill(next(pid for pid in children() if pid not in before), signal.SIGKILL)

    out = tmp_path / "out"
    for i in range(20):  # so that some are left for both
        table(40, i).to_csv(data / f"{i}.csv", index=False)
    with pytest.raises(WorldError, match=r"has ended.* by SIGKILL; what is finished stays"):
        trainwright.predict_files(run, data, out, processes=2, watch=kill)
    assert {*children()} == before
    batch = trainwright.predict_files(run, data, out)
    assert (batch.files, batch.kept > 0) == (24, True)
    trainwright.predict_files(run, data, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.services
def test_processes_end_with_the_one_that_started_them(run: str, data: Path, tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        import trainwright
        def watch(progress):
            tasks = Path("/proc/self/task").iterdir()
            print(*(one for task in tasks for one in (task / "children").read_text().split()), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        trainwright.predict_files(*sys.argv[1:], processes=2, watch=watch)
    """)
    words = [sys.executable, "-c", code, run, str(data), str(tmp_path / "out")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        pids = killed.stdout.read().split()
    assert len(pids) == 2
    for pid in map(int, pids):
        with suppress(ProcessLookupError):
            assert select.select([os.pidfd_open(pid)], [], [], 60)[0]
    assert trainwright.predict_files(run, data, tmp_path / "out").files == 4
