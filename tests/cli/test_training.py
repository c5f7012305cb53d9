"""From a config to a proof, through the command line alone."""

import dataclasses
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commandline import CONFIG, Command

from trainwright import api
from trainwright.cli.main import main
from trainwright.records.manifest import Difference
from trainwright.runs.reproduce import FirstTensor, Reproduction

DIFFERENT = Reproduction(
    "different",
    "r1",
    "r2",
    ("d1", "d2"),
    (45, 45),
    [Difference("environment", "packages numpy", "2.0", "2.1")],
    12,
    (0.5, 0.25),
    FirstTensor("model.0.weight", "aa", "bb"),
)


def test_reproduce_says_what_differs(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "reproduce", lambda *_, **__: DIFFERENT)
    done = command("reproduce", "r1")
    assert done.code == 3
    first, verdict, *rest = done.out.splitlines()
    assert first == "input differs: environment: packages numpy was 2.0, is 2.1"
    assert verdict.startswith("different: ")
    assert "  first step that differs: 12 (loss 0.5, then 0.25)" in rest
    assert "  first tensor that differs: model.0.weight (aa, then bb)" in rest


def test_reproduce_says_that_tensors_were_not_compared(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "optimizer and other state not compared: run r1: the final checkpoint cannot be read"
    for verdict, line in (("incomplete", f"weights identical; {why}"), ("different", f"  {why}")):
        answer = dataclasses.replace(DIFFERENT, verdict=verdict, tensor=None, uncompared=[why])
        monkeypatch.setattr(api, "reproduce", lambda *_, answer=answer, **__: answer)
        done = command("reproduce", "r1")
        assert line in done.out.splitlines()
        document = command("reproduce", "r1", "--json").json
        assert (document["uncompared"], document["complete"], done.code) == ([why], False, 3)


def test_reproduce_as_json(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "reproduce", lambda *_, **__: DIFFERENT)
    done = command("reproduce", "r1", "--json")
    assert (done.code, done.json["verdict"], done.json["first_step"]) == (3, "different", 12)


def test_predict_wants_a_file_that_it_can_write(command: Command) -> None:
    done = command("predict", "last", "rows.csv", "-o", "out.feather")
    assert done.code == 2
    assert ".csv, .csv.gz, .parquet, .jsonl or .xlsx" in done.err


def test_evaluate_takes_a_split_or_a_file(command: Command) -> None:
    done = command("evaluate", "last", "--split", "val", "--data", "rows.csv")
    assert done.code == 2
    assert "give one of them" in done.err
    done = command("evaluate", "last", "rows.csv", "--split", "val")
    assert (done.code, "--data other rows" in done.err) == (2, True)
    done = command("evaluate", "last", "rows.csv", "--data", "rows.csv")
    assert (done.code, "FILE and --data are the same" in done.err) == (2, True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a completed run in `runs`, and its data as a file."""
    folder = tmp_path_factory.mktemp("trained")
    rows = [f"{i % 7},{i % 11},{'yes' if i % 7 > 3 else 'no'}" for i in range(200)]
    (folder / "rows.csv").write_text("\n".join(["a,b,y", *rows]) + "\n", encoding="utf-8")
    config = CONFIG.replace("{type: digits}", f"{{type: csv, path: '{folder}/rows.csv', target: y}}")
    (folder / "rows.yaml").write_text(config, encoding="utf-8")
    assert (
        main(
            [
                "train",
                str(folder / "rows.yaml"),
                "training.batch_size=16",
                "--runs-dir",
                str(folder / "runs"),
                "-q",
            ]
        )
        == 0
    )
    return folder


@pytest.mark.slow
def test_train_shows_progress_and_results(command: Command, config: Path, tmp_path: Path) -> None:
    done = command("train", config, "--runs-dir", tmp_path / "runs")
    assert done.code == 0, done.err
    assert re.search(r"^trainwright step=10/45 train_loss=\S+ ", done.out, re.MULTILINE)
    assert re.search(r"^trainwright step=45/45 val_loss=\S+ val_accuracy=\S+", done.out, re.MULTILINE)
    assert re.search(r"^digest +[0-9a-f]{64}$", done.out, re.MULTILINE)
    (run,) = (tmp_path / "runs" / "digits").iterdir()
    next_commands = re.findall(r"^  trainwright (.+)$", done.out, re.MULTILINE)
    assert f"reproduce {run.name} --runs-dir {tmp_path / 'runs'}" in next_commands


@pytest.mark.slow
def test_train_as_json(command: Command, config: Path, tmp_path: Path) -> None:
    done = command("train", config, "--runs-dir", tmp_path / "runs", "--json")
    assert (done.code, done.json["status"], done.json["steps"]) == (0, "completed", 45)
    assert Path(done.json["path"], "result.json").exists()
    assert "trainwright event=end step=45/45 status=completed" in done.err


@pytest.mark.slow
def test_what_one_does_with_a_run(command: Command, trained: Path, tmp_path: Path) -> None:
    runs = ("--runs-dir", trained / "runs")
    run = command("runs", "show", "last", *runs, "--json").json
    assert run["status"] == "completed"
    metrics = command("evaluate", "last", *runs, "--json").json["metrics"]
    assert metrics == {name: value for name, value in run["metrics"].items() if name.startswith("test_")}
    assert "val_accuracy" in command("evaluate", "last", "--split", "val", *runs).out
    own = command("evaluate", "last", "--data", trained / "rows.csv", *runs)
    assert "test_loss" in own.out
    assert command("evaluate", "last", trained / "rows.csv", *runs).out == own.out
    assert "was trained on, so these metrics flatter its model" in own.err
    others = shutil.copy(trained / "rows.csv", tmp_path / "others.csv")
    assert "trained on" not in command("evaluate", "last", "--data", others, *runs).err
    report = Path(run["path"]) / "report.html"
    report.unlink()
    assert command("report", "last", *runs).out == f"{report}\n"
    assert report.exists()
    copy = trained / "page.html"
    assert command("report", "last", "-o", copy, *runs).out == f"{copy}\n"
    assert copy.read_text().splitlines()[:9] == report.read_text().splitlines()[:9]
    pages = trained / "pages.html", trained / "CARD.md"
    assert command("report", "last", "last", "-o", pages[0], *runs).out == f"{pages[0]}\n"
    assert command("report", "last", "--card", "-o", pages[1], *runs).out == f"{pages[1]}\n"
    assert all(page.exists() for page in pages)
    refused = command("report", "last", "last", "--card", *runs)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "diagnosis" in command("report", "last", *runs, "--json").json


@pytest.mark.slow
def test_export_says_the_format(command: Command, trained: Path, tmp_path: Path) -> None:
    runs = ("--runs-dir", trained / "runs")
    done = command("export", "last", tmp_path / "model.pkl", *runs)
    assert (done.code, list(tmp_path.iterdir())) == (2, [])
    assert "--format mlflow: a folder that MLflow loads and serves" in done.err
    path = tmp_path / "model.safetensors"
    said = command("export", "last", path, *runs).out
    assert said.startswith(f"{path} (safetensors, {path.stat().st_size:,} bytes)\ncompared with the run: ")
    document = command("export", "last", path, *runs, "--force", "--json").json
    assert (document["path"], document["format"]) == (str(path), "safetensors")
    assert document["certificate"]["files"][path.name]["bytes"] == path.stat().st_size
    folder = tmp_path / "model"
    done = command("export", "last", folder, *runs, "--max-shard-size", "0.2KB")
    assert (done.code, done.out[: len(str(folder)) + 13]) == (0, f"{folder} (safetensors")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    begun = ("train", trained / "rows.yaml", f"model.init_from={folder / 'model.safetensors.index.json'}")
    assert command(*begun, "training.epochs=1", "--runs-dir", tmp_path / "runs").code == 0
    refused = command("export", "last", tmp_path / "other", *runs, "--max-shard-size", "much")
    assert "'much' is not a size; write, for example, 5GB or 500MiB" in refused.err
    refused = command(
        "export", "last", tmp_path / "m", *runs, "--format", "mlflow", "--max-shard-size", "1GB"
    )
    assert "max_shard_size is for models of PyTorch" in refused.err


@pytest.mark.slow
def test_predict(command: Command, trained: Path) -> None:
    runs = ("--runs-dir", trained / "runs")
    head, *rows = command("predict", "last", trained / "rows.csv", *runs).out.splitlines()
    assert head == "prediction,probability_no,probability_yes"
    assert len(rows) == 200
    documents = command("predict", "last", trained / "rows.csv", *runs, "--json").json
    assert [row.split(",")[0] for row in rows] == [document["prediction"] for document in documents]
    for name in ("out.csv", "out.parquet"):
        done = command("predict", "last", trained / "rows.csv", "-o", trained / name, *runs)
        assert done.out == f"200 predictions: {trained / name}\n"
    assert (trained / "out.csv").read_text(encoding="utf-8").splitlines()[1:] == rows
    assert (trained / "out.parquet").read_bytes()[:4] == b"PAR1"


@pytest.mark.slow
def test_reproduce_is_identical(command: Command, trained: Path) -> None:
    runs = ("--runs-dir", trained / "runs")
    first = command("runs", "show", "last", *runs, "--json").json["run_id"]
    done = command("reproduce", first, *runs, "--quiet")
    assert done.code == 0, done.err
    assert done.out.startswith("identical: ")
    found = command("runs", "compare", first, "last", *runs, "--json").json
    assert found["runs"][0] != found["runs"][1]
    assert (found["same_digest"], found["config"]) == (True, [])


def stopped(words: list[str], folder: Path, signum: signal.Signals) -> tuple[int, str]:
    """Sends the signal when the first evaluation is shown; the exit code and all that was printed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "trainwright", *words], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    shown = []
    for line in process.stdout:
        shown.append(line)
        if " val_loss=" in line:
            process.send_signal(signum)
            break
    shown.append(process.communicate(timeout=60)[0])
    return process.returncode, "".join(shown)


@pytest.mark.slow
def test_stopped_by_a_signal_and_resumed_and_stopped_again(config: Path, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", X=draw.normal(size=(1600, 4)), y=draw.integers(0, 3, 1600))
    words = ["train", str(config), "data.type=npz", "data.path=rows.npz", "training.epochs=100000"]
    code, shown = stopped(words, tmp_path, signal.SIGTERM)
    assert code == 75
    (run,) = (tmp_path / "runs" / "digits").iterdir()
    assert shown.endswith(f"resume with: trainwright resume {run.name}\n")
    step = re.findall(r"^trainwright event=end step=(\d+)/4000000 status=preempted$", shown, re.MULTILINE)
    code, shown = stopped(["resume", run.name], tmp_path, signal.SIGINT)
    assert code == 130
    assert f"event=start step={step[0]}/4000000 run={run.name} experiment=digits attempt=2" in shown
    assert "status=interrupted" in shown
