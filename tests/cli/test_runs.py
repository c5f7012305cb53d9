import json
from pathlib import Path

import pytest
from commandline import CONFIG, Command, write_run

from trainyard import api
from trainyard.trackers.feed import SyncReport

A, B, FAILED = "20260101-000000-aaaaaa", "20260102-000000-bbbbbb", "20260103-000000-cccccc"


def test_list(command: Command, runs_dir: Path) -> None:
    done = command("runs", "list", "--runs-dir", runs_dir)
    head, *rows = done.out.splitlines()
    assert head.split() == ["run", "experiment", "status", "steps", "result"]
    assert [row.split()[:4] for row in rows] == [
        [FAILED, "digits", "failed", "45"],
        [B, "digits", "completed", "45"],
        [A, "digits", "completed", "45"],
    ]
    assert "test_accuracy 0.95" in rows[1]


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
    path.write_text(json.dumps(content | {"error": "the loss is NaN\n  at step 3"}), encoding="utf-8")
    rows = command("runs", "show", FAILED, "--runs-dir", runs_dir).out.splitlines()
    assert ["error", "the", "loss", "is", "NaN"] in [row.split() for row in rows]


def test_show_of_no_run(command: Command, runs_dir: Path) -> None:
    done = command("runs", "show", "nothing", "--runs-dir", runs_dir)
    assert done.code == 2
    assert FAILED in done.err


def test_compare(command: Command, runs_dir: Path) -> None:
    manifest = runs_dir / "digits" / B / "manifest.json"
    changed = json.loads(manifest.read_text(encoding="utf-8"))
    changed["environment"]["packages"]["numpy"] = "2.1"
    manifest.write_text(json.dumps(changed), encoding="utf-8")
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
    assert "config: no differences" in text
    assert "digests: the same" in text


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


def test_clean_deletes_nothing_until_it_is_told_to(command: Command, runs_dir: Path) -> None:
    done = command("runs", "clean", "--runs-dir", runs_dir)
    assert FAILED in done.out
    assert A not in done.out
    assert "add --yes" in done.out
    assert (runs_dir / "digits" / FAILED).exists()


def test_clean(command: Command, runs_dir: Path) -> None:
    size = sum(path.stat().st_size for path in (runs_dir / "digits" / FAILED).rglob("*") if path.is_file())
    found = command("runs", "clean", "--runs-dir", runs_dir, "--yes", "--json").json
    assert (found["deleted"], found["bytes"], [run["run_id"] for run in found["runs"]]) == (
        True,
        size,
        [FAILED],
    )
    assert sorted(path.name for path in (runs_dir / "digits").iterdir()) == [A, B]


def test_clean_says_how_many_runs(command: Command, runs_dir: Path) -> None:
    assert "would delete 1 run, " in command("runs", "clean", "--runs-dir", runs_dir).out
    both = command("runs", "clean", "--runs-dir", runs_dir, "--status", "completed", "--yes").out
    assert "deleted 2 runs, " in both


def test_clean_by_status(command: Command, runs_dir: Path) -> None:
    command("runs", "clean", "--runs-dir", runs_dir, "--status", "completed", "--yes")
    assert [path.name for path in (runs_dir / "digits").iterdir()] == [FAILED]


def test_clean_keeps_what_can_be_resumed(command: Command, runs_dir: Path) -> None:
    commit = runs_dir / "digits" / FAILED / "checkpoints" / "step-000005"
    commit.mkdir(parents=True)
    (commit / "manifest.json").write_text("{}", encoding="utf-8")
    assert command("runs", "clean", "--runs-dir", runs_dir, "--yes", "--json").json["runs"] == []
    named = command("runs", "clean", "--runs-dir", runs_dir, "--status", "failed", "--yes", "--json").json
    assert [run["run_id"] for run in named["runs"]] == [FAILED]


def test_clean_passes_a_damaged_run_over(command: Command, runs_dir: Path) -> None:
    (runs_dir / "digits" / A / "attempts" / "0001.json").write_text("{", encoding="utf-8")
    done = command("runs", "clean", "--runs-dir", runs_dir, "--yes")
    assert done.code == 0
    assert f"run {A} is skipped" in done.err
    assert sorted(path.name for path in (runs_dir / "digits").iterdir()) == [A, B]


def test_clean_counts_only_what_it_deleted(
    command: Command, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may be taken up between the look and the deletion."""
    clean = api.clean
    monkeypatch.setattr(
        api, "clean", lambda *words, dry_run=True, **more: clean(*words, **more) if dry_run else []
    )
    found = command("runs", "clean", "--runs-dir", runs_dir, "--yes", "--json").json
    assert (found["bytes"], found["runs"]) == (0, [])


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
