"""The page: from whole, unfinished and damaged run directories."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from trainwright.digest import sha256_bytes
from trainwright.engine.journal import Journal
from trainwright.evaluation.metrics import evaluate_predictions
from trainwright.evaluation.tables import tables
from trainwright.records.result import AttemptRecord
from trainwright.records.run_dir import RunDir
from trainwright.reports import charts
from trainwright.reports.card import write_card
from trainwright.reports.html import write_report
from trainwright.reports.summary import html_table, summary_table
from trainwright.types import DataInfo, Predictions, features_spec
from written import write_record

RUN_ID = "20260101-120000-abc123"
DIGEST = "d1" * 32
CONFIG = """\
# resolved
experiment: {name: digits, seed: 1}
model:
  type: mlp
tracking:
  - type: mlflow
    params: {uri: "https://ada:hunter2@mlflow.example.com/api"}
"""
MANIFEST = {
    "run_id": RUN_ID,
    "experiment": "digits",
    "created": "2026-01-01T12:00:00+00:00",
    "working_directory": "/home/ada",
    "command": ["/usr/bin/trainwright", "train", "my config.yaml"],
    "config_hash": "c0" * 32,
    "config_sha256": sha256_bytes(CONFIG.encode()),
    "seed": 1,
    "data": {
        "hash": "da" * 32,
        "splits": {"train": {"rows": 80, "sha256": "aa" * 32}, "test": {"rows": 20, "sha256": "bb" * 32}},
        "features": [f"feature_{index}" for index in range(100)],
        "target": "kind",
        "task": "classification",
        "classes": ["cat", "dog", "eel"],
        "warnings": ["column a is constant"],
        "content_hashed": True,
    },
    "code": {
        "hash": "cc" * 32,
        "modules": {"mine.model": "ee" * 32},
        "git": {"commit": "f" * 40, "dirty": True},
    },
    "environment": {
        "python": "3.11.9",
        "threads": 2,
        "packages": {"numpy": "2.4"},
        "flags": {"OMP_NUM_THREADS": "2"},
    },
    "weights": {"initial_digest": "33" * 32, "init_from": None},
    "determinism": {"tier": "bitwise", "reason": "one device"},
}
RESULT = {
    "status": "completed",
    "steps": 100,
    "epochs": 10.0,
    "metrics": {"val_loss": 0.5, "test_loss": 0.4, "test_accuracy": 0.98765, "test_f1": "NaN"},
    "evaluated": "best",
    "best": {"step": 80, "metric": "val_loss", "value": 0.5, "digest": "be" * 32},
    "digest": DIGEST,
    "attempts": 2,
    "determinism": {"tier": "bitwise", "reason": "one device"},
    "train_seconds": 125.0,
    "samples_per_second": 1234.5,
}


def journalled(run: Path, attempt: int, first: int, last: int, status: str = "") -> None:
    RunDir(run).write_attempt(AttemptRecord(attempt=attempt, status=status or None))
    journal = Journal(run / "journal", attempt, first)
    for step in range(first + 1, last + 1):
        journal.losses(step, [2.0 / step])
        if step % 10 == 0:
            journal.values(
                "metrics", step, {"train_loss": 2.0 / step, "learning_rate": 1e-3 / step, "epoch": 0.1 * step}
            )
            journal.values("evaluation", step, {"val_loss": 2.1 / step, "val_f1": 1 - 1 / step})
    if status:
        journal.event(last, "early_stop", metric="val_loss")
        journal.end(last, status)
    journal.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "digits" / RUN_ID
    (folder / "evaluation").mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG)
    write_record(folder / "manifest.json", MANIFEST)
    write_record(folder / "result.json", RESULT)
    journalled(folder, 1, 0, 57)
    journalled(folder, 2, 40, 100, "completed")
    rng = np.random.default_rng(0)
    info = DataInfo("classification", features_spec((4,)), 3, ("cat", "dog", "eel"))
    found = Predictions(
        np.arange(60), rng.dirichlet(np.ones(3), 60).astype(np.float32), rng.integers(0, 3, 60), 30.0
    )
    write_record(
        folder / "evaluation" / "test.json", tables(evaluate_predictions([found], ["f1"], info, "test"), info)
    )
    return folder


class Page(HTMLParser):
    """Checks that tags nest, and collects what a browser would fetch or run."""

    VOID = ("meta", "br", "link", "img", "input", "hr")

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts = 0
        self.fetched: list[str] = []
        self.words: list[str] = []
        self.feed(source)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.scripts += tag == "script"
        self.fetched += [value for key, value in attrs if key in ("src", "href", "action", "data", "poster")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def page(run: Path) -> Page:
    path = write_report(run)
    assert path == run / "report.html"
    return Page(path.read_text(encoding="utf-8"))


def test_the_page_of_a_whole_run_has_all_facts(run):
    shown = page(run)
    for fact in (
        "digits",
        RUN_ID,
        "completed",
        "0.9877",
        "test accuracy",
        DIGEST,
        "be" * 32,
        "Determinism bitwise",
        "the same inputs give the same bits",
        "best model at step 80: val_loss 0.5000",
        "attempt 2 resumed from step 40",
        "early stop (metric val_loss)",
        "Validation F1",
        "Confusion matrix, test split",
        "Surest mistakes",
        "column a is constant",
        "and 20 more",
        "OMP_NUM_THREADS",
        "mine.model",
        "with uncommitted changes",
        f"trainwright reproduce {RUN_ID}",
        "trainwright train 'my config.yaml'",
        "2 min 05 s",
        "killed",
    ):
        assert fact in shown.text, fact
    assert "Problems" not in shown.text
    assert "trainwright resume" not in shown.text


def test_a_page_says_what_to_do_next(run):
    steps = page(run).text.partition("What next")[2]
    assert steps.index(f"trainwright explain {RUN_ID}") < steps.index(
        f"trainwright predict {RUN_ID} rows.csv"
    )
    command = [*MANIFEST["command"], "--runs-dir", "my runs"]
    changed = MANIFEST | {"command": command, "working_directory": str(run.parent)}
    write_record(run / "manifest.json", changed)
    text = page(run).text
    assert f"trainwright reproduce {RUN_ID} --runs-dir 'my runs'" in text
    assert f"trainwright tune --suggest {RUN_ID}/config.yaml" in text
    write_record(run / "manifest.json", MANIFEST | {"trainer": {"name": "transformers"}})
    assert "What next" not in page(run).text


def test_the_config_is_shown_as_it_was_set_and_then_whole(run):
    assert "what was set" not in page(run).text
    created = {"working_directory": "/", "time": 0.0, "settings": ["experiment.name"]}
    write_record(run / "created.json", created)
    _, short, whole = re.split("· what was set|All values", page(run).text)
    assert short.split() == ["experiment", ":", "name", ":", "digits", "model", ":", "type", ":", "mlp"]
    assert "seed: 1" in whole


def test_a_matrix_of_two_classes_has_letters_of_the_size_of_others(run):
    def scale(labels):
        head = charts.heat_map(labels, np.eye(len(labels), dtype=int).tolist(), "matrix").partition(">")[0]
        width = float(re.search(r'viewBox="0 0 ([\d.]+)', head)[1])
        return float(re.search(r"max-width:(\d+)px", head)[1]) / width

    assert scale(["no", "yes"]) == pytest.approx(scale(range(10)), rel=0.02) == pytest.approx(1.25, rel=0.02)


def test_a_run_of_another_trainer_says_why_there_are_no_tables(run):
    why = "gives its callbacks the metrics of an evaluation, but neither rows nor predictions"
    assert why not in page(run).text
    (run / "evaluation" / "test.json").unlink()
    write_record(run / "manifest.json", MANIFEST | {"trainer": {"name": "transformers"}})
    assert why in page(run).text


def test_nothing_is_fetched_and_nothing_secret_is_shown(run):
    shown = page(run)
    source = (run / "report.html").read_text(encoding="utf-8")
    assert shown.fetched == []
    assert shown.scripts == 1
    assert not re.search(r"@import|url\(|https?://(?!mlflow\.example|\*\*\*|www\.w3\.org/2000/svg)", source)
    assert "hunter2" not in source


def test_a_report_is_the_same_each_time_but_for_its_date(run):
    first, second = (re.sub(r"Made by.*", "", write_report(run).read_text()) for _ in range(2))
    assert first == second
    assert [path.name for path in run.glob(".report*")] == []


def test_a_regression_has_errors_and_no_confusion(run):
    info = DataInfo("regression", features_spec((4,)), 1, target="price")
    rng = np.random.default_rng(0)
    true = rng.normal(size=50).astype(np.float32)
    result = evaluate_predictions(
        [Predictions(np.arange(50), true[:, None] * 0.9, true, 3.0)], ["r2"], info, "test"
    )
    write_record(run / "evaluation" / "test.json", tables(result, info))
    text = page(run).text
    assert "Predicted against true price, test split" in text
    assert "Greatest errors" in text
    assert "Confusion" not in text


def test_a_run_that_was_killed(run):
    (run / "result.json").unlink()
    (run / "journal" / "0002.jsonl").unlink()
    (run / "attempts" / "0002.json").unlink()
    (run / "evaluation" / "test.json").unlink()
    text = page(run).text
    assert "crashed" in text
    assert f"trainwright resume {RUN_ID}" in text
    assert "validation F1" in text
    assert "killed, or still training" in text


def test_a_result_of_an_earlier_attempt_does_not_count(run):
    write_record(run / "result.json", RESULT | {"status": "preempted", "attempts": 1})
    (run / "journal" / "0002.jsonl").unlink()
    journalled(run, 2, 57, 70)
    assert dict(summary_table(run))["status"] == RunDir(run).status() == "crashed"
    assert DIGEST not in page(run).text


def test_a_page_of_a_run_that_trains_says_so(run):
    journalled(run, 3, 100, 110)
    owner = RunDir(run)
    owner.acquire()
    try:
        assert "running" in page(run).text
        assert dict(summary_table(run))["status"] == "running"
        # Its owner writes the report when the end of the attempt is on disk.
        owner.write_attempt(AttemptRecord(attempt=3, status="preempted"))
        assert dict(summary_table(run))["status"] == "preempted"
    finally:
        owner.release()


def test_the_status_is_that_of_the_newest_attempt(run):
    RunDir(run).write_attempt(AttemptRecord(attempt=3, status="failed"))  # before it opened its journal
    facts = dict(summary_table(run))
    assert facts["status"] == RunDir(run).status() == "failed"
    assert facts["digest"] == DIGEST


def test_a_run_whose_records_do_not_tell_its_status_is_damaged(run):
    (run / "attempts" / "0002.json").write_text("{")
    assert dict(summary_table(run))["status"] == "completed"  # the result tells
    (run / "result.json").write_text("{")
    text = page(run).text
    assert "damaged" in text
    assert "result.json: is damaged" in text
    assert "status:" in text


def test_the_parent_is_named(run):
    parent = {"run_id": "20250101-120000-abcdef", "relation": "reproduce"}
    write_record(run / "manifest.json", MANIFEST | {"parent": parent})
    assert "Its parent is run 20250101-120000-abcdef ." in page(run).text


def test_an_empty_directory_has_a_page(tmp_path):
    text = page(tmp_path).text
    assert "created" in text
    assert "The journal has no metrics yet." in text
    assert "manifest.json: missing" in text


def test_a_run_that_has_not_ended_is_resumed_before_it_is_reproduced(run):
    RunDir(run).write_attempt(AttemptRecord(attempt=3, status="failed"))
    text = page(run).text
    assert f"trainwright resume {RUN_ID}" in text
    assert "trainwright reproduce" not in text


@pytest.mark.parametrize(
    "name", ["manifest.json", "result.json", "evaluation/test.json", "journal/0001.jsonl", "config.yaml"]
)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1, 2]",
        b"\xff\xfe\x00",
        b'{"kind": 3}\n',
        b"null\n",
        b'{"metrics": [1], "data": 5, "best": "x"}',
    ],
)
def test_a_damaged_file_costs_only_what_it_says(run, name, content):
    (run / name).write_bytes(content)
    text = page(run).text
    is_torn = name.startswith("journal") and b"\n" not in content  # as by a crash: no damage
    # What an early version wrote has no checksum: the config, and tables.
    is_early = name == "config.yaml" or (name.startswith("evaluation") and content[:2] == b'{"')
    if not is_torn and not is_early:
        assert f"{name}: " in text, "nothing says that it is damaged"
    assert "train the same config as a new run" in text.lower()
    assert dict(summary_table(run))["run"] == RUN_ID


def test_a_damaged_section_is_named(run):
    broken = {"confusion": {"labels": ["a"], "matrix": [[1, 2], [3, 4]]}}
    write_record(run / "evaluation" / "test.json", broken)
    text = page(run).text
    assert "evaluations: could not be drawn, as its records are damaged" in text
    assert DIGEST in text


def test_names_from_outside_stay_text(run):
    hostile = '<script>alert("x")</script>'
    found = json.loads((run / "evaluation" / "test.json").read_text())
    found["confusion"]["labels"] = found["per_class"][0]["label"] = [hostile, "</svg><script>", "eel"]
    write_record(run / "evaluation" / "test.json", found)
    (run / "config.yaml").write_text(f"experiment: {hostile}\n{hostile}: 1\n# {hostile}\n")
    data = MANIFEST["data"] | {"target": hostile, "features": [hostile], "warnings": [hostile]}
    write_record(
        run / "manifest.json", MANIFEST | {"experiment": hostile, "data": data, "command": [hostile]}
    )
    journal = Journal(run / "journal", 3, 100)
    journal.event(100, hostile, **{hostile: hostile})
    journal.values("evaluation", 100, {f"val_{hostile}": 1.0})
    journal.close()
    shown = page(run)
    assert shown.scripts == 1
    assert hostile in shown.text
    assert "<script>" not in html_table(run)


@pytest.mark.parametrize("write", [write_report, write_card])
def test_no_name_controls_a_terminal(run, write):
    evil = "a\x1b[31mred\x1b]0;title\x07\x9b2Jb\u202egnp\x08c"
    found = json.loads((run / "evaluation" / "test.json").read_text())
    found["confusion"]["labels"] = found["per_class"][0]["label"] = [evil, evil, "eel"]
    write_record(run / "evaluation" / "test.json", found)
    data = MANIFEST["data"] | {"target": evil, "features": [evil], "warnings": [evil]}
    write_record(run / "manifest.json", MANIFEST | {"experiment": evil, "data": data})
    text = write(run).read_text()
    assert "aredbgnpc" in text
    assert not [char for char in text if not char.isprintable() and char not in "\t\n\xa0\u2009\u202f\xad"]


def test_a_million_steps_stay_small(run):
    for path in (run / "journal").iterdir():
        path.unlink()
    journal = Journal(run / "journal", 1, 0)
    rng = np.random.default_rng(0)
    for first in range(0, 1_000_000, 1000):
        journal.losses(first + 1, (2 / (1 + first / 5000) + rng.random(1000)).tolist())
        journal.values(
            "metrics",
            first + 1000,
            {"train_loss": 1.0, "learning_rate": 1 / (first + 1), "samples_per_second": float(first)},
        )
        journal.values(
            "evaluation", first + 1000, {f"val_m{index}": float(rng.random()) for index in range(8)}
        )
        journal.event(first + 1000, "skipped_batch", reason="loss spike")
    journal.close()
    path = write_report(run)
    assert path.stat().st_size < 1_000_000
    assert "and 988 more events" in path.read_text(encoding="utf-8")


def test_the_summary_has_the_result_and_the_digest(run):
    facts = dict(summary_table(run))
    assert facts["run"] == RUN_ID
    assert facts["status"] == "completed"
    assert facts["test_accuracy"] == "0.9877"
    assert facts["test_f1"] == "NaN"
    assert facts["best step"] == "80 (val_loss 0.5000)"
    assert facts["digest"] == DIGEST
    assert f"<td>{DIGEST}</td>" in html_table(run)


def test_a_report_made_before_the_journal_ends_knows_how_the_attempt_ended(run):
    path = run / "journal" / "0002.jsonl"
    path.write_text(
        "".join(line for line in path.read_text().splitlines(keepends=True) if '"end"' not in line)
    )
    assert "still training" not in page(run).text


def test_metrics_of_the_test_are_no_curve(run):
    journal = Journal(run / "journal", 3, 100)
    journal.values("evaluation", 100, {"test_accuracy": 0.5})
    journal.close()
    text = page(run).text
    assert "With one value throughout" not in text
    assert "Validation F1" in text
