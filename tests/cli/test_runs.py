import json
import re
import time
from pathlib import Path

import pytest
from commandline import CONFIG, Command, write_run

from trainwright import api
from trainwright.records.run_dir import RunDir
from trainwright.storage.index import facts
from trainwright.storage.lease import Lease
from trainwright.storage.log import Log
from trainwright.stores.local import LocalStore
from trainwright.trackers.feed import SyncReport
from written import write_record

A, B, FAILED = "20260101-000000-aaaaaa", "20260102-000000-bbbbbb", "20260103-000000-cccccc"


def test_list(command: Command, runs_dir: Path) -> None:
    done = command("runs", "list", "--runs-dir", runs_dir)
    head, *rows = done.out.splitlines()
    assert head.split() == ["run", "experiment", "status", "steps", "model", "data", "duration", "result"]
    assert [row.split()[:4] for row in rows] == [
        [FAILED, "digits", "failed", "45"],
        [B, "digits", "completed", "45"],
        [A, "digits", "completed", "45"],
    ]
    assert "test_accuracy 0.95" in rows[1]


def test_list_says_what_was_trained_and_how_long(command: Command, tmp_path: Path) -> None:
    config = CONFIG.replace("{type: digits}", "\n  type: csv\n  path: in/rows.csv").replace("data: ", "data:")
    path = write_run(tmp_path, A, config=config)
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    manifest["computation"] = {"model.type": "mlp", "data.type": "csv"}
    write_record(path / "manifest.json", manifest)
    gpu = {"environment": {"framework": {"device": "cuda NVIDIA H100"}}, "processes": 4}
    for number, (start, end) in enumerate(((1000.0, 4600.0), (9000.0, 12600.0), (20000.0, None)), start=1):
        status = "completed" if end else None
        record = {"attempt": number, "started": start, "ended": end, "status": status, **gpu}
        write_record(path / "attempts" / f"{number:04}.json", record)
    runs = ("--runs-dir", tmp_path)
    (run,) = command("runs", "list", "--json", "--gpu-price", 2.5, *runs).json
    assert [run["model"], run["data"]] == ["mlp", "rows.csv"]
    assert [run["duration"], run["gpu_hours"], run["cost"]] == [7200, 8, 20]
    columns = "model, data,duration,gpu_hours,val_loss"
    head, row = command("runs", "list", "--columns", columns, *runs).out.splitlines()
    assert head.split() == ["model", "data", "duration", "GPU", "hours", "val_loss"]
    assert row.split() == ["mlp", "rows.csv", "2", "h", "00", "min", "8", "0.5"]
    assert "cost" not in command("runs", "list", *runs).out.splitlines()[0]


def test_gpu_hours_of_an_attempt_whose_device_is_not_recorded_yet(tmp_path: Path) -> None:
    """A running one has that of the manifest; one that ended in its start-up has computed nothing."""
    path = write_run(tmp_path, A)
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    manifest["environment"] = {"framework": {"device": "cuda NVIDIA H100"}}
    write_record(path / "manifest.json", manifest)
    ended = {"attempt": 1, "started": 1000.0, "ended": 4600.0, "status": "failed"}
    now = {"attempt": 2, "started": time.time() - 7200}
    for record in (ended, now):
        write_record(path / "attempts" / f"{record['attempt']:04}.json", record)
    run = RunDir(path)
    run.acquire()
    try:
        found = facts(run)
    finally:
        run.release()
    assert found["gpu_hours"] == pytest.approx(2, abs=0.1)
    assert found["duration"] == pytest.approx(3 * 3600, abs=360)


def test_list_sorts_and_chooses(command: Command, runs_dir: Path) -> None:
    runs = ("--runs-dir", runs_dir, "--columns", "run")
    assert command("runs", "list", "--sort", "-test_accuracy", *runs).out.split()[1] == B
    chosen = command("runs", "list", "--filter", "test_accuracy < 0.93 and status = completed", *runs)
    assert chosen.out.split()[1:] == [A]
    assert command("runs", "list", "--filter", "steps > 100", *runs).out == "no runs\n"
    done = command("runs", "list", "--filter", "acuracy > 1", *runs)
    assert (done.code, done.out) == (2, "")
    assert "no run has a value 'acuracy'" in done.err
    assert command("runs", "list", "--columns", "stats", "--runs-dir", runs_dir).code == 2


def test_list_has_the_steps_of_runs_without_a_result(command: Command, runs_dir: Path) -> None:
    path = write_run(runs_dir, "20260104-000000-dddddd")
    (path / "result.json").unlink()
    (path / "attempts" / "0001.json").write_text("{}", encoding="utf-8")
    names = [f"step-{step:09}-a0001" for step in (5, 12)]
    Lease(Log(LocalStore(path)), 1, 1).commit(names, [])
    rows = command("runs", "list", "--columns", "status,steps", "--runs-dir", runs_dir).out.splitlines()
    assert rows[1].split() == ["crashed", "12"]


def test_list_as_json(command: Command, runs_dir: Path) -> None:
    found = command("runs", "list", "--runs-dir", runs_dir, "--json").json
    assert [run["run_id"] for run in found] == [FAILED, B, A]
    assert found[2]["metrics"] == {"val_loss": 0.5, "test_accuracy": 0.9}
    assert found[2]["report"] is None


def test_list_of_one_experiment(command: Command, runs_dir: Path) -> None:
    assert command("runs", "list", "--runs-dir", runs_dir, "--experiment", "other").out == "no runs\n"
    assert command("runs", "list", "--runs-dir", runs_dir, "--experiment", "other", "--json").json == []


def test_a_damaged_run_does_not_hide_the_others(command: Command, runs_dir: Path) -> None:
    (runs_dir / "digits" / A / "result.json").write_text("{", encoding="utf-8")
    done = command("runs", "list", "--runs-dir", runs_dir)
    assert done.code == 0
    assert [line.split()[2] for line in done.out.splitlines()[1:]] == ["failed", "completed", "damaged"]


@pytest.mark.parametrize("card", [(), ("--card",)])
def test_a_report_of_a_damaged_run_replaces_no_fuller_one(
    card: tuple[str, ...], command: Command, runs_dir: Path, tmp_path: Path
) -> None:
    page = runs_dir / "digits" / A / ("model-card.md" if card else "report.html")
    report = ("report", A, *card, "--runs-dir", runs_dir)
    assert command(*report).code == 0
    whole = page.read_bytes()
    (page.parent / "result.json").write_text("{", encoding="utf-8")
    refused = command(*report)
    assert (refused.code, len(refused.err.splitlines())) == (1, 1)
    assert "result.json: is damaged" in refused.err
    assert f"{page} is kept" in refused.err
    assert page.read_bytes() == whole
    assert command(*report, "--output", tmp_path / "other").code == 0
    page.unlink()
    assert command(*report).code == 0


@pytest.mark.parametrize("name", ["manifest.json", "result.json"])
def test_a_run_of_another_format_is_refused_in_one_line(
    name: str, command: Command, runs_dir: Path, tmp_path: Path
) -> None:
    path = runs_dir / "digits" / A
    write_record(path / name, json.loads((path / name).read_text(encoding="utf-8")) | {"format": 1})
    (tmp_path / "rows.csv").write_text("a\n1\n", encoding="utf-8")
    rows = tmp_path / "rows.csv"
    for words in (
        ["runs", "show"],
        ["report"],
        ["report", B],
        ["evaluate"],
        ["predict"],
        ["resume"],
        ["fork"],
    ):
        done = command(*words, path, *([rows] if words == ["predict"] else []), "--runs-dir", runs_dir)
        assert (done.code, done.out) == (2, ""), words
        (line,) = done.err.splitlines()
        assert f"{name} was written by another version of Trainwright" in line
    listed = command("runs", "list", "--runs-dir", runs_dir)
    assert [line.split()[2] for line in listed.out.splitlines()[1:]] == [
        "failed",
        "completed",
        "other-version",
    ]


def test_show(command: Command, runs_dir: Path) -> None:
    done = command("runs", "show", A, "--runs-dir", runs_dir)
    assert "test_accuracy" in done.out
    assert str(runs_dir / "digits" / A) in done.out
    shown = command("runs", "show", A[:10], "--runs-dir", runs_dir, "--json").json
    assert (shown["run_id"], shown["digest"], shown["manifest"]["environment"]["python"]) == (
        A,
        "d1",
        "3.11.7",
    )


def test_show_says_why_a_run_failed(command: Command, runs_dir: Path) -> None:
    path = next(runs_dir.glob(f"*/{FAILED}/result.json"))
    content = json.loads(path.read_text(encoding="utf-8"))
    write_record(path, content | {"error": "the loss is NaN\n  at step 3"})
    rows = command("runs", "show", FAILED, "--runs-dir", runs_dir).out.splitlines()
    assert ["error", "the", "loss", "is", "NaN"] in [row.split() for row in rows]


def test_show_of_no_run(command: Command, runs_dir: Path) -> None:
    done = command("runs", "show", "nothing", "--runs-dir", runs_dir)
    assert done.code == 2
    assert FAILED in done.err


def test_compare(command: Command, runs_dir: Path) -> None:
    manifest = runs_dir / "digits" / B / "manifest.json"
    changed = json.loads(manifest.read_text(encoding="utf-8"))
    changed["environment"]["imported"]["numpy"] = "2.1"
    write_record(manifest, changed)
    found = command("runs", "compare", A, B, "--runs-dir", runs_dir, "--json").json
    assert [(item["what"], item["before"], item["now"]) for item in found["config"]] == [
        ("model.params.hidden", [32], [64])
    ]
    assert [(item["input"], item["what"], item["now"]) for item in found["inputs"]] == [
        ("environment", "package numpy", "2.1")
    ]
    numbers = {item["name"]: item for item in found["numbers"]}
    assert numbers["test_accuracy"]["delta"] == pytest.approx(0.05)
    assert numbers["val_loss"]["delta"] == 0
    assert found["same_digest"] is False
    text = command("runs", "compare", A, B, "--runs-dir", runs_dir).out
    for part in ("model.params.hidden", "package numpy", "0.95", "delta", "digests: different"):
        assert part in text


def test_compare_of_a_run_with_itself(command: Command, runs_dir: Path) -> None:
    text = command("runs", "compare", A, A, "--runs-dir", runs_dir).out
    assert text == "inputs: no differences\n\nresults: no differences\n\ndigests: the same\n"
    text = command("runs", "compare", A, A, "--all", "--runs-dir", runs_dir).out
    for part in ("config: no differences", "other inputs: no differences", "val_loss", "digests: the same"):
        assert part in text


def test_compare_shows_only_what_differs(command: Command, runs_dir: Path) -> None:
    text = command("runs", "compare", A, B, "--runs-dir", runs_dir).out
    assert "val_loss" not in text
    assert "other inputs" not in text
    assert text.startswith("config:\n")
    assert "val_loss" in command("runs", "compare", A, B, "--all", "--runs-dir", runs_dir).out


def test_compare_says_in_words_what_runs_start_from(command: Command, runs_dir: Path) -> None:
    path = runs_dir / "digits" / B / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    state = {"run_id": A, "relation": "fork", "step": 300, "state_digest": "ab" * 32, "replays": "cd" * 32}
    write_record(path, manifest | {"initial": state})
    words = ("runs", "compare", A, B, "--runs-dir", runs_dir)
    text = command(*words).out
    assert re.search(r"starts from +the beginning +another run, step 300\n", text)
    assert "initial state" not in text
    assert "weights: initial state, state_digest" in command(*words, "--all").out


def test_compare_several(command: Command, runs_dir: Path) -> None:
    lines = command("runs", "compare", A, B, FAILED, "--runs-dir", runs_dir).out.splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["key", A, B, FAILED],
        ["model.params.hidden", "[32]", "[64]", "[32]"],
    ]
    assert ["test_accuracy", "0.9", "0.95", "0.9"] in [line.split() for line in lines]
    documents = command("runs", "compare", A, B, FAILED, "--runs-dir", runs_dir, "--json").json
    assert [document["runs"] for document in documents] == [[A, B], [A, FAILED]]


def test_compare_with_a_run_that_recorded_nothing(command: Command, runs_dir: Path) -> None:
    for name in ("manifest.json", "result.json"):
        (runs_dir / "digits" / B / name).unlink()
    text = command("runs", "compare", A, B, "--runs-dir", runs_dir).out
    assert "other inputs: not known" in text
    assert "digests: not there yet" in text
    assert command("runs", "compare", A, B, "--runs-dir", runs_dir, "--json").json["inputs"] is None


def test_compare_hides_secrets(command: Command, tmp_path: Path) -> None:
    config = CONFIG + "tracking: [{type: mlflow, uri: 'http://me:PASSWORD@host'}]\n"
    write_run(tmp_path, A, config=config.replace("PASSWORD", "one"))
    write_run(tmp_path, B, config=config.replace("PASSWORD", "two"))
    done = command("runs", "compare", A, B, "--runs-dir", tmp_path)
    assert "tracking.0" in done.out
    assert "me:one" not in done.out
    assert "me:two" not in done.out


@pytest.mark.parametrize(("left", "error", "code"), [(0, "", 0), (7, "connection refused", 1)])
def test_sync(
    command: Command, runs_dir: Path, monkeypatch: pytest.MonkeyPatch, left: int, error: str, code: int
) -> None:
    monkeypatch.setattr(api, "sync", lambda *_, **__: [SyncReport("mlflow", 12, left, error)])
    done = command("runs", "sync", A, "--runs-dir", runs_dir, "--json")
    assert (done.code, done.json) == (
        code,
        [{"tracker": "mlflow", "sent": 12, "pending": left, "error": error}],
    )
    assert (error or "complete") in command("runs", "sync", A, "--runs-dir", runs_dir).out


def test_show_says_what_takes_the_space(command: Command, runs_dir: Path) -> None:
    folder = runs_dir / "digits" / A / "checkpoints" / "step-000000045-a0001"
    folder.mkdir(parents=True)
    (folder / "weights.safetensors").write_bytes(bytes(3 << 20))
    (row,) = [
        line for line in command("runs", "show", A, "--runs-dir", runs_dir).out.splitlines() if "MiB" in line
    ]
    assert row.split()[0] == "size"
    assert "3.0 MiB: checkpoints 3.0 MiB, other " in row
    sizes = command("runs", "show", A, "--runs-dir", runs_dir, "--json").json["bytes"]
    assert (sizes["checkpoints"], sizes["evaluation"]) == (3 << 20, 0)
