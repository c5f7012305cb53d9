"""`cross-validate`, `benchmark` and `runs compare` on the command line."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from trainwright.cli.main import main

CONFIG = """\
data: {type: iris, split: {test: 0.3}}
model: {type: toy, noise: 0.1}
training: {epochs: 3, batch_size: 16, learning_rate: 0.1, threads: 1}
"""


class Outcome(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Outcome]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `trainwright WORDS`."""

    def run(*words: object) -> Outcome:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a config to work in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "iris.yaml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


def test_cross_validate_prints_its_folds_and_their_mean(command: Command, place: Path) -> None:
    done = command("cross-validate", "iris.yaml", "training.epochs=2", "--folds", "3")
    assert done.code == 0
    lines = re.findall(
        r"^trainwright event=run fold=(\d) run_id=\S+ status=completed .*test_accuracy=\S+",
        done.out,
        re.MULTILINE,
    )
    assert lines == ["0", "1", "2"]
    assert re.search(r"^test_accuracy +0\.\d+ +0\.\d+ +-?\d\.\d+ to \d\.\d+$", done.out, re.MULTILINE)
    (folder,) = (place / "runs" / "iris").glob("cv-*")
    assert f"report       {folder / 'report.html'}" in done.out
    assert f"out of fold  {folder / 'out_of_fold.csv'}" in done.out
    assert "data.split.test is not used" in done.err


def test_cross_validate_prints_one_document(command: Command, place: Path) -> None:
    done = command("cross-validate", "iris.yaml", "--folds", "2", "--json", "--runs-dir", "elsewhere")
    assert (done.code, done.json["status"], len(done.json["folds"])) == (0, "completed", 2)
    assert Path(done.json["path"], "study.json").exists()
    assert Path(done.json["path"]).parent == place / "elsewhere" / "iris"
    assert "event=run fold=1" in done.err
    quiet = command("cross-validate", "iris.yaml", "--folds", "2", "-q")
    assert "event=run" not in quiet.out + quiet.err


def test_benchmark_prints_and_writes_its_table(command: Command, place: Path) -> None:
    done = command(
        "benchmark", "iris.yaml", "--models", "toy,mlp", "--param", "mlp.hidden=[4]", "--param", "toy.noise=0"
    )
    assert done.code == 0, done.err
    table = done.out[done.out.index("rank ") :].splitlines()
    assert [line.split()[0] for line in table[:3]] == ["rank", "1", "2"]
    assert {line.split()[1] for line in table[1:3]} == {"toy", "mlp"}
    (written,) = (place / "runs" / "iris").glob("benchmark-*/table.md")
    assert {"toy", "mlp"} <= set(written.read_text(encoding="utf-8").split())


def test_a_model_that_fails_is_the_exit_code(command: Command, place: Path) -> None:
    done = command("benchmark", "iris.yaml", "--models", "toy,absent_package:Model", "--json")
    assert done.code == 1
    assert [(row["model"], row["rank"]) for row in done.json["models"]] == [
        ("toy", 1),
        ("absent_package:Model", None),
    ]
    assert "event=run model=absent_package:Model status=failed" in done.err
    assert (
        "absent_package:Model: "
        in command("benchmark", "iris.yaml", "--models", "toy,absent_package:Model", "-q").out
    )


@pytest.mark.parametrize("param", ["noise=1", "mlp.hidden=[4]", "toy.noise", "toy.noise=[1"])
def test_params_that_cannot_be_read_are_refused(command: Command, place: Path, param: str) -> None:
    done = command("benchmark", "iris.yaml", "--models", "toy", "--param", param)
    assert done.code == 2
    assert f"--param {param}: " in done.err


def test_wrong_words_start_no_study(command: Command, place: Path) -> None:
    assert command("cross-validate", "iris.yaml", "--folds", "1").code == 2
    assert command("cross-validate", "nothing.yaml").code == 2
    assert command("benchmark", "iris.yaml").code == 2
    done = command("benchmark", "iris.yaml", "--models", "toi,mlq")
    assert done.code == 2
    assert "toi" in done.err
    assert "mlq" in done.err
    assert not (place / "runs").exists()


def test_compare_prints_a_test_of_significance(command: Command, place: Path) -> None:
    ids = [
        command("train", "iris.yaml", f"experiment.seed={seed}", "--json").json["run_id"] for seed in (1, 2)
    ]
    shown = command("runs", "compare", *ids)
    assert shown.code == 0
    assert "significance, on the same test rows:" in shown.out
    assert re.search(
        r"^  accuracy +-?[\d.]+ +-?[\d.]+ to [\d.]+ +[\d.]+ +exact McNemar +45$", shown.out, re.MULTILINE
    )
    document = command("runs", "compare", *ids, "--json").json
    assert [test["metric"] for test in document["tests"]] == ["accuracy", "f1"]
    assert document["untested"] is None
    assert document["simpler"] is None  # both have as many weights
    same = command("runs", "compare", ids[0], ids[0])
    assert "results: no differences" in same.out
    every = command("runs", "compare", "--all", ids[0], ids[0])
    assert "significance, on the same test rows: no test: the models are the same" in every.out


def test_of_equal_models_the_simpler_one_is_recommended(command: Command, place: Path) -> None:
    network = CONFIG.replace("{type: toy, noise: 0.1}", "{type: mlp, hidden: [8]}").replace(
        "epochs: 3", "epochs: 9"
    )
    (place / "network.yaml").write_text(network.replace("0.1, threads", "0.03, threads"), encoding="utf-8")
    larger, smaller = (
        command("train", "network.yaml", f"model.hidden=[{width}]", "--json").json["run_id"]
        for width in (64, 8)
    )
    shown = command("runs", "compare", larger, smaller)
    said = f"equal within the noise of these rows: use the simpler one, {smaller} (its weights have"
    assert said in shown.out
    assert command("runs", "compare", larger, smaller, "--json").json["simpler"] == smaller


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_stopped_by_a_signal_and_resumed(
    command: Command, place: Path, signum: signal.Signals, code: int
) -> None:
    words = [
        "cross-validate",
        "iris.yaml",
        "training.epochs=200",
        "logging.every_n_steps=1000",
        "--folds",
        "2",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "trainwright", *words], cwd=place, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert "fold=0" in process.stdout.readline()
    process.send_signal(signum)
    shown = process.communicate(timeout=60)[0]
    assert process.returncode == code
    assert f"continue with: trainwright {' '.join(words)} --resume" in shown
    done = command(*words, "--resume", "--json")
    assert (done.code, done.json["status"]) == (0, "completed")
    assert len(list((place / "runs" / "iris").glob("cv-*"))) == 1
