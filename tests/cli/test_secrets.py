"""No secret is printed or written, wherever in a config it stands."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commandline import CONFIG, Command, write_run

import trainwright
from trainwright import api
from trainwright.config import load
from trainwright.config.messages import _schema_keys
from trainwright.config.schema import RunConfig
from trainwright.errors import DataError, InputError
from trainwright.redact import redacted
from trainwright.runs.run import Run

SECRET = "hunter2-s3cr3t"
# The name of the experiment is that of a folder.
KEYS = [key for key in _schema_keys(RunConfig) if key not in ("experiment", "experiment.name")]
# Where a text may be an item, or an option that no schema knows.
MORE = [
    "data.features=[{}]",
    "data.exclude=[{}]",
    "data.params.uri={}",
    "model.params.hidden=[{}]",
    "training.optimizer.params.betas={}",
    "evaluation.metrics=[{}]",
    "tracking=[{}]",
    "tracking=[{{type: mlflow, uri: {}}}]",
    "tracking=[{{type: mlflow, nothing: {}}}]",
    "unknown.key={}",
    "extends={}",
]
FUNCTION = """\
import logging, sys, warnings
import numpy as np

def fail(uri):
    raise ValueError("cannot open " + uri)

class Broken:
    def __init__(self, uri):
        self.uri, self.reads = uri, 0

    def __len__(self):
        return 60

    def __getitem__(self, i):
        self.reads += 1
        if self.reads > 305:
            raise OSError(5, "lost", self.uri)
        return np.array([i % 7, i % 5], dtype=np.float32), i % 2

def broken(uri):
    return Broken(uri), Broken(uri)

def leave(uri):
    sys.exit("no " + uri)

def chatter(uri):
    print("out", uri)
    print("err", uri, file=sys.stderr)
    warnings.warn("about " + uri)
    logging.getLogger("mine").warning("log %s", uri)
    logging.getLogger("trainwright").warning("ours %s", uri)
    X = np.random.default_rng(0).normal(size=(60, 2))
    return X, (X[:, 0] > 0).astype(int)
"""


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The value of `${env:SECRET}`; functions that misuse it can be imported."""
    monkeypatch.setenv("SECRET", SECRET)
    (tmp_path / "chatty_data.py").write_text(FUNCTION, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "chatty_data", raising=False)
    return SECRET


@pytest.mark.slow
@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_no_message_about_a_config_shows_a_secret(
    command: Command, config: Path, secret: str, debug: list[str]
) -> None:
    leaks = []
    for change in [f"{key}={{}}" for key in KEYS] + MORE:
        word = change.format("${env:SECRET}")
        done = command("train", config, word, *debug)
        if secret in done.out + done.err:
            leaks.append((word, done.out + done.err))
    assert leaks == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        "data={{type: csv, path: '{}/rows.csv'}}",
        "data={{type: csv, path: rows.csv, target: '{}'}}",
        "data={{type: csv, path: rows.csv, target: y, exclude: ['{}']}}",
        "data={{type: csv, path: rows.csv, target: y, split: {{group: '{}'}}}}",
        "data={{type: 'chatty_data:{}'}}",
        "data={{type: '{}:load'}}",
        "data={{type: 'chatty_data:fail', params: {{uri: '{}'}}}}",
        "data={{type: 'chatty_data:fail', params: {{uri: 'https://ada:{}@host'}}}}",
        "data={{type: 'chatty_data:leave', params: {{uri: '{}'}}}}",
        "model={{type: '{}:Net'}}",
        "model={{type: mlp, init_from: '{}'}}",
        "model={{type: mlp, init_from: '{}.safetensors'}}",
    ],
)
def test_no_message_about_data_or_models_shows_a_secret(
    command: Command, config: Path, secret: str, tmp_path: Path, change: str
) -> None:
    (tmp_path / "rows.csv").write_text("a,y\n" + "1,0\n2,1\n" * 20, encoding="utf-8")
    for shape, hidden in (("${env:SECRET}", secret), ("postgresql://ada:pa55word@db/x", "pa55word")):
        for more in ([], ["--debug"], ["--json"]):
            done = command("train", config, change.format(shape), *more)
            assert done.code in (1, 2)
            assert hidden not in done.out + done.err


@pytest.mark.slow
def test_what_the_users_own_code_prints_shows_no_secret(secret: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        CONFIG.replace("{type: digits}", "{type: 'chatty_data:chatter', params: {uri: '${env:SECRET}'}}"),
        encoding="utf-8",
    )
    words = [sys.executable, "-m", "trainwright", "train", "c.yaml", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert secret not in done.stdout + done.stderr
    for said in ("out", "err", "about", "log", "ours"):
        assert f"{said} ${{env:SECRET}}" in done.stdout + done.stderr


@pytest.mark.slow
def test_no_file_of_a_run_holds_a_secret(
    command: Command,
    secret: str,
    tmp_path: Path,
    empty_mlflow_store: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two runs that go well with secrets in data, weights and trackers, and of one that fails."""
    runs, folder, config = tmp_path / "runs", tmp_path / secret, tmp_path / "c.yaml"
    folder.mkdir()
    (tmp_path / "mlflow.db").write_bytes(empty_mlflow_store.read_bytes())
    rows = "".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(60))
    (folder / "rows.csv").write_text(f"a,b,y\n{rows}", encoding="utf-8")
    text = CONFIG.replace("{type: digits}", "{type: csv, path: '${env:SECRET}/rows.csv', target: y}")
    tracking = f"[{{type: mlflow, uri: 'sqlite:///{tmp_path}/mlflow.db', experiment: '${{env:SECRET}}'}}]"
    config.write_text(f"{text}tracking: {tracking}\n", encoding="utf-8")
    done = command("train", config, "--runs-dir", runs, "--json")
    assert done.code == 0, done.err

    weights = next(Path(done.json["path"]).rglob("weights.safetensors"))
    (folder / "w.safetensors").write_bytes(weights.read_bytes())
    monkeypatch.setenv("WEIGHTS", str(folder))
    for function, code in (("chatter", 0), ("broken", 2)):
        data = (
            f"data={{type: 'chatty_data:{function}', target: target, "
            "params: {uri: 'https://ada:${env:SECRET}@host/x'}}"
        )
        initial = "model.init_from=${env:WEIGHTS}/w.safetensors"
        done = command("train", config, data, initial, "tracking=[]", "--runs-dir", runs)
        assert done.code == code, done.err

    files = [path for path in runs.rglob("*") if path.is_file()]
    assert len([path for path in files if path.name == "report.html"]) == 3
    assert len([path for path in files if path.parent.name == "trackers"]) >= 1
    assert [path for path in files if secret.encode() in path.read_bytes()] == []


def test_initial_weights_at_a_secret_path_are_found_again(
    secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from small_runs import SMALL

    first = trainwright.train(SMALL, {"training.max_steps": 2}, runs_dir=tmp_path / secret)
    run = trainwright.train(
        SMALL,
        {"training.max_steps": 3, "model.init_from": "${env:SECRET}/small/" + first.id},
        runs_dir=tmp_path,
    )
    assert run.manifest["init_from"] == f"{tmp_path}/${{env:SECRET}}/small/{first.id}"
    assert trainwright.reproduce(run.id, runs_dir=tmp_path).verdict == "identical"


def test_errors_in_python_hold_no_secret(secret: str) -> None:
    config = {"data": {"type": "chatty_data:fail", "params": {"uri": "${env:SECRET}"}}, "model": "mlp"}
    with pytest.raises(DataError) as caught:
        trainwright.train(config)
    assert "cannot open ${env:SECRET}" in str(caught.value)
    assert secret not in repr(caught.value)
    assert secret not in repr(caught.value.args)


def test_log_lines_in_python_hold_no_secret(secret: str, caplog: pytest.LogCaptureFixture) -> None:
    load({"model": {"type": "mlp", "params": {"key": "${env:SECRET}"}}})
    logging.getLogger("trainwright").warning("key %s", secret)
    logging.getLogger("trainwright").warning("uri", exc_info=ValueError(f"postgresql://ada:{secret}@db"))
    assert "key ${env:SECRET}" in caplog.text
    assert secret not in caplog.text


@pytest.mark.parametrize(
    ("value", "text", "shown"),
    [
        ("abc", "abc", "abc"),  # too short to be told from words
        ("abcd", "abcd, xabcd, abcd.csv", "${env:V}, xabcd, ${env:V}.csv"),
        ("abcdefgh", "xabcdefghx", "x${env:V}x"),
        ("two words here", "two\n  words here", "${env:V}"),
        ("a/b?c=d&efgh", "a%2Fb%3Fc%3Dd%26efgh", "${env:V}"),
        ('it\'s "it"', json.dumps({"k": 'it\'s "it"'}), '{"k": "${env:V}"}'),
        ("long-line-1\nlong-line-2", "only long-line-2", "only ${env:V}"),
        ("https://ada:pa55word@h/x", "for ada: pa55word", "for ada: ***"),
        ("https://h//x/y.csv", "no file https:/h/x/y.csv", "no file ${env:V}"),
        ("12345", "step=100/12345", "step=100/12345"),  # a number, so no secret
        ("12345678", "pin 12345678", "pin ${env:V}"),
    ],
)
def test_how_a_value_is_hidden(monkeypatch: pytest.MonkeyPatch, value: str, text: str, shown: str) -> None:
    monkeypatch.setenv("V", value)
    load(
        {"model": {"type": "mlp", "params": {"key": "${env:V}"}}, "data": {"type": "digits"}},
        ["model.params.key=${env:V}"],
    )
    assert redacted(text) == shown
    assert redacted(redacted(text)) == shown


def test_a_number_that_is_text_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIN", "4711")
    load({"model": "mlp", "data": {"path": "a.csv"}}, ["data.target=${env:PIN}"])
    assert redacted("no column '4711'") == "no column '${env:PIN}'"


def test_results_name_paths_as_they_are(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Programs go to `path`, although a part of it came from the environment."""
    monkeypatch.setenv("DATA", str(tmp_path))
    path = write_run(tmp_path / "runs", "20260101-000000-aaaaaa")

    def train(*_: Any, **__: Any) -> Run:
        load({"model": "mlp", "data": {"path": "${env:DATA}/rows.csv"}})
        return Run(path)

    monkeypatch.setattr(api, "train", train)
    done = command("train", "a.yaml", "--json")
    assert (done.json["path"], done.json["run_id"]) == (str(path), path.name)
    assert str(path) in command("train", "a.yaml", "-q").out


def test_passwords_in_errors(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise InputError("postgresql://ada:pa55word@db/x is down") from OSError("https://bob:pa55word@h")

    monkeypatch.setattr(api, "train", fail)
    done = command("train", "a.yaml", "--debug")
    assert "pa55word" not in done.err
    assert os.sep in done.err


@pytest.mark.slow
def test_only_its_owner_may_read_a_file_that_holds_a_secret(tmp_path: Path) -> None:
    """A search keeps configs, too."""
    secret = "sk-live-of-the-user-1234"
    (tmp_path / "rows.csv").write_text("a,y\n" + "".join(f"{i * i % 7},{i % 5}\n" for i in range(60)))
    config = {
        "data": {"type": "csv", "path": str(tmp_path / "rows.csv"), "target": "y"},
        "model": "ridge",
        "tuning": {"trials": 1, "sampler": "random", "space": {"model.params.alpha": [0.1, 1.0]}},
        "tracking": [{"type": "tensorboard", "params": {"log_dir": f"{tmp_path}/board?token={secret}"}}],
    }
    study = trainwright.tune(config, runs_dir=tmp_path / "runs")
    files = [file for file in study.path.parent.rglob("*") if file.is_file()]
    holding = [file for file in files if secret.encode() in file.read_bytes()]
    assert {file.name for file in holding} == {"search.yaml", "best.yaml", "config.yaml"}
    assert {file.stat().st_mode & 0o077 for file in holding} == {0}
