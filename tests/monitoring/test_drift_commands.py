"""`drift` and `monitor`: what they print, write and end with."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import trainwright
from trainwright.cli.main import main
from trainwright.errors import InputError
from trainwright.monitoring import calibration
from trainwright.monitoring.drift import compare
from trainwright.monitoring.reference import FILE
from trainwright.monitoring.sketches import Window


def rows(count: int, seed: int) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "charge": draw.gamma(4, 17, count).round(2),
            "age": draw.normal(40, 12, count).round(),
            "plan": draw.choice(["basic", "plus", "pro"], count, p=[0.5, 0.3, 0.2]),
            "since": pd.Timestamp("2024-01-01") + pd.to_timedelta(draw.integers(0, 500, count), "D"),
        }
    )
    frame.loc[draw.random(count) < 0.03, "age"] = np.nan
    odds = (frame["charge"] - 68) / 30 + (frame["plan"] == "basic")
    frame["churned"] = np.where(draw.random(count) < 1 / (1 + np.exp(-odds)), "yes", "no")
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a run, its data, and files of rows."""
    made = tmp_path_factory.mktemp("drift")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        patch.setenv("TRAINWRIGHT_RUNS", str(made / "runs"))
        patch.setattr(calibration.calibrate, "__defaults__", (0, 300))
        for name, count, seed in (("train", 1200, 0), ("same", 600, 1), ("other", 1500, 2)):
            rows(count, seed).to_csv(f"{name}.csv", index=False)
        bad = rows(600, 3).drop(columns="churned")
        bad["charge"] *= 100
        bad.loc[bad.index[::8], "plan"] = "platinum"
        bad.to_csv("bad.csv", index=False)
        for name in ("train", "other"):
            trainwright.train(_config(f"{name}.csv"), quiet=True)
        yield made


def _config(path: str) -> dict[str, Any]:
    return {
        "experiment": {"name": path.partition(".")[0], "seed": 1},
        "data": {"type": "csv", "path": path, "target": "churned"},
        "model": {"type": "lightgbm"},
        "training": {"max_steps": 20},
    }


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TRAINWRIGHT_RUNS", str(folder / "runs"))
    monkeypatch.setattr(calibration.calibrate, "__defaults__", (0, 300))
    return next(one.id for one in trainwright.list_runs() if one.experiment == "train")


def test_rows_like_the_training_rows_do_not_drift(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drift", run, "same.csv"]) == 0
    out = capsys.readouterr().out
    assert f"training rows of run {run}, at a false-alarm rate of 0.01" in out
    assert "600 rows: no drift" in out
    assert "churned (target)" in out


def test_a_drift_is_named_and_ends_with_3(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drift", run, "bad.csv", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["drifted"] is True
    (window,) = found["windows"]
    assert window["verdict"] == "drift"
    assert {"charge", "plan"} <= {one["name"] for one in window["columns"] if one["drifted"]}
    assert any(line.startswith("charge: 100 times larger: median 6,") for line in window["lines"])
    assert "plan: 12% of rows hold 'platinum', which no training row has" in window["lines"]


def test_windows_are_compared_one_by_one(run: str) -> None:
    frame = pd.concat([pd.read_csv("same.csv").drop(columns="churned"), pd.read_csv("bad.csv")])
    frame.to_csv("both.csv", index=False)
    found = trainwright.drift(run, "both.csv", window=300)
    assert [one.verdict for one in found.windows] == ["no drift", "no drift", "drift", "drift"]
    assert [one.rows for one in found.windows] == [300] * 4
    assert found.lines[0] == "rows 1 to 300: no drift"


def test_rows_in_memory_are_those_of_the_file(run: str) -> None:
    file, memory = trainwright.drift(run, "bad.csv"), trainwright.drift(run, pd.read_csv("bad.csv"))
    for one, other in zip(file.windows[0].columns, memory.windows[0].columns, strict=True):
        assert one.name == other.name
        assert one.score == pytest.approx(other.score)


def test_rows_in_memory_and_of_another_run_have_windows_of_a_size(run: str) -> None:
    report = trainwright.drift(run, pd.read_csv("same.csv"), window=250)
    assert [one.rows for one in report.windows] == [250, 250, 100]
    assert report.to_json() == trainwright.drift(run, "same.csv", window=250).to_json()
    other = next(one.id for one in trainwright.list_runs() if one.experiment == "other")
    found = trainwright.drift(run, against=other, window=500).windows
    assert [one.rows for one in found][:-1] == [500] * (len(found) - 1)
    assert len(found) > 1


def test_training_rows_of_another_run(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    other = next(one.id for one in trainwright.list_runs() if one.experiment == "other")
    assert main(["drift", run, "--against", other]) == 0
    assert "1,200 rows: no drift" in capsys.readouterr().out


def test_rows_that_cannot_be_read_are_left_out(run: str, caplog: pytest.LogCaptureFixture) -> None:
    lines = Path("same.csv").read_text().splitlines()
    lines[5] = "not a number," + lines[5].partition(",")[2]
    Path("broken.csv").write_text("\n".join(lines) + "\n")
    found = trainwright.drift(run, "broken.csv")
    assert found.windows[0].rows == 599
    assert "1 of 600 rows cannot be predicted" in caplog.text


def test_the_reference_is_kept_and_needs_no_data(run: str) -> None:
    before = trainwright.drift(run, "bad.csv").to_json()
    kept = trainwright.get(run).path / FILE
    assert kept.is_file()
    Path("train.csv").rename("gone.csv")
    try:
        assert trainwright.drift(run, "bad.csv").to_json() == before
        content = kept.read_bytes()
        kept.unlink()
        with pytest.raises(InputError, match=r"training rows of run .* cannot be read any more"):
            trainwright.drift(run, "bad.csv")
        rows(1200, 9).to_csv("train.csv", index=False)
        with pytest.raises(InputError, match="the data have changed"):
            trainwright.drift(run, "bad.csv")
        kept.write_bytes(content)
    finally:
        Path("gone.csv").rename("train.csv")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give either rows or another run"),
        (["same.csv", "--against", "last"], "give either rows or another run"),
        (["same.csv", "--alarm-rate", "0"], "alarm rate"),
        (["nothing.csv"], "nothing.csv"),
    ],
)
def test_mistakes(words: list[str], said: str, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drift", run, *words]) == 2
    assert said in capsys.readouterr().err


def parsed(page: Path) -> str:
    """The text of a page, whose charts are well-formed and which loads nothing."""
    content = page.read_text()
    for chart in content.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + chart.partition("</svg>")[0] + "</svg>")
    assert "http://" not in content.replace("http://www.w3.org", "")
    assert " src=" not in content
    return content


def test_a_page_of_a_log(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A log in Parquet: rows, predictions, times."""
    frame = pd.concat([rows(1000, 5), rows(500, 6).assign(charge=lambda one: one["charge"] * 100)])
    frame = frame.drop(columns="churned").reset_index(drop=True)
    predicted = trainwright.load(run).predict(frame)
    log = frame.join(predicted).assign(
        _time=pd.date_range("2026-01-01", periods=1500, freq="min"), _seconds=0.004, _request_id="r"
    )
    Path("log").mkdir()
    log[:700].to_parquet("log/a.parquet")
    log[700:].to_parquet("log/b.parquet")
    assert main(["monitor", "log", "--run", run, "--window", "500", "-o", "log.html"]) == 0
    assert "wrote " in capsys.readouterr().out
    page = parsed(Path("log.html"))
    assert "charge: 100 times larger" in page
    assert "1 of 3 windows have drifted" in page
    assert "2026-01-01 16:40 to 2026-01-02 00:59 UTC" in page
    assert "4.000 ms" in page
    assert main(["monitor", "log", "-o", "log.html"]) == 2
    assert "--run RUN" in capsys.readouterr().err


class Service(BaseHTTPRequestHandler):
    """Answers like a service with a key."""

    document = b""

    def do_GET(self) -> None:
        if self.path == "/elsewhere/drift":
            self.send_response(302)
            self.send_header("Location", "/drift")
            self.end_headers()
        elif self.path != "/drift" or self.headers.get("Authorization") != "Bearer secret":
            self.send_error(401)
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.document)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_page_of_a_service(run: str, service: str, capsys: pytest.CaptureFixture[str]) -> None:
    window = Window(trainwright.reference(run))
    predictor = trainwright.load(run)
    frame = pd.read_csv("bad.csv", parse_dates=["since"])
    window.add(predictor.watched(frame), predictor.table(predictor.outputs(frame)), 0.2, at=0.0)
    document = compare(window).to_json()
    hostile = [{**document["columns"][0], "name": "<script>alert(1)</script>\ud800"}, *document["columns"]]
    Service.document = json.dumps({**document, "columns": hostile}).encode()
    Path("key").write_text("secret\n")
    assert main(["monitor", service, "--key-file", "key", "-o", "live.html"]) == 0
    page = parsed(Path("live.html"))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert "200.0 ms" in page
    capsys.readouterr()
    assert main(["monitor", service]) == 2
    assert "401" in capsys.readouterr().err
    assert main(["monitor", f"{service}/elsewhere", "--key-file", "key"]) == 2
    assert "302" in capsys.readouterr().err
    Service.document = b'{"rows": 3}'
    assert main(["monitor", service, "--key-file", "key"]) == 2
    assert "no document of drift" in capsys.readouterr().err


def test_alert_rules_are_written(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["monitor", "--alerts", "alerts.yml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"alerts": "alerts.yml"}
    assert "TrainwrightDrift" in Path("alerts.yml").read_text()
    assert main(["monitor"]) == 2


def test_an_exported_model_brings_its_reference(run: str, tmp_path: Path) -> None:
    trainwright.reference(run)
    for name, form in (("model.onnx", "onnx"), ("folder", "native")):
        path = trainwright.export(run, tmp_path / name, form)
        own, exported = trainwright.drift(run, "bad.csv"), trainwright.drift(path, "bad.csv")
        assert exported.run == run
        assert exported.lines == own.lines
        (tmp_path / f"{name}.reference.json").unlink()
        with pytest.raises(InputError, match=r"exported without the reference"):
            trainwright.drift(path, "bad.csv")
