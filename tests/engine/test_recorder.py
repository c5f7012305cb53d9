"""The recorder: first the journal, then every callback, each with what it is promised."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainwright.callbacks.base import Callback
from trainwright.engine.journal import Journal
from trainwright.engine.recorder import Recorder
from trainwright.records.decision import Decision


class Listener(Callback):
    """Writes down what it is told, and how many lines the journal had then."""

    def __init__(self, journal: Journal, path: Path) -> None:
        self.told: list[tuple[Any, ...]] = []
        self._journal, self._path = journal, path

    def _hear(self, *words: Any) -> None:
        self._journal.flush()
        self.told.append((*words, len(self._path.read_text().splitlines())))

    def on_start(self, run: Any) -> None:
        self._hear("start", run)

    def on_log(self, step: int, metrics: Any) -> None:
        self._hear("log", step, metrics)

    def on_evaluation(self, step: int, metrics: Any) -> None:
        self._hear("evaluation", step, metrics)

    def on_event(self, step: int, name: str, detail: Any) -> None:
        self._hear("event", step, name, detail)

    def on_checkpoint(self, step: int) -> None:
        self._hear("checkpoint", step)

    def on_end(self, status: str, metrics: Any) -> None:
        self._hear("end", status, metrics)


@pytest.fixture
def listening(tmp_path: Path) -> tuple[Recorder, Listener, Path]:
    journal = Journal(tmp_path, 1, 0)
    path = tmp_path / "0001.jsonl"
    listener = Listener(journal, path)
    return Recorder(journal, [listener]), listener, path


def written(path: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(record.pop("time") > 0 for record in records)
    return records[1:]


def test_all_is_journalled_and_then_told(listening: tuple[Recorder, Listener, Path]) -> None:
    recorder, listener, path = listening
    recorder.started("run")  # type: ignore[arg-type]
    recorder.losses(1, [0.5, 0.25])
    recorder.logged(2, {"train_loss": 0.375})
    recorder.evaluated(2, {"val_loss": 0.4})
    recorder.event(2, "best", metric="val_loss")
    recorder.saving(2)
    recorder.histograms(2, {"w": [1, 2]})
    recorder.resources(2, {"memory": 7.0})
    recorder.final(2, {"val_loss": 0.4, "test_loss": 0.3})
    recorder.ended(2, "completed", {"test_loss": 0.3})
    assert listener.told == [
        ("start", "run", 1),
        ("log", 2, {"train_loss": 0.375}, 3),
        ("evaluation", 2, {"val_loss": 0.4}, 4),
        ("event", 2, "best", {"metric": "val_loss"}, 5),
        ("checkpoint", 2, 5),
        ("end", "completed", {"test_loss": 0.3}, 9),
    ]
    assert written(path) == [
        {"kind": "losses", "first": 1, "values": [0.5, 0.25]},
        {"kind": "metrics", "step": 2, "values": {"train_loss": 0.375}},
        {"kind": "evaluation", "step": 2, "values": {"val_loss": 0.4}},
        {"kind": "event", "step": 2, "name": "best", "detail": {"metric": "val_loss"}},
        {"kind": "histograms", "step": 2, "values": {"w": [1, 2]}},
        {"kind": "metrics", "step": 2, "values": {"system_memory": 7.0}},
        {"kind": "evaluation", "step": 2, "values": {"test_loss": 0.3}},
        {"kind": "end", "step": 2, "status": "completed"},
    ]


def test_decisions_are_told_as_events(listening: tuple[Recorder, Listener, Path]) -> None:
    """A verdict to go on is none: it changes nothing."""
    recorder, listener, path = listening
    recorder.decided(Decision(3, "keep"))
    recorder.decided(Decision(5, "time_limit", {"max_minutes": 2.0}))
    assert listener.told == [("event", 5, "time_limit", {"max_minutes": 2.0}, 3)]
    assert written(path) == [
        {"kind": "decision", "step": 3, "name": "keep", "detail": {}},
        {"kind": "decision", "step": 5, "name": "time_limit", "detail": {"max_minutes": 2.0}},
    ]


def test_a_callback_that_raises_is_left_out_and_the_others_are_told(
    listening: tuple[Recorder, Listener, Path], caplog: pytest.LogCaptureFixture
) -> None:
    recorder, listener, _ = listening

    class Bad(Callback):
        calls = 0

        def on_log(self, step: int, metrics: Any) -> None:
            self.calls += 1
            raise ValueError("oops")

    bad, late = Bad(), Listener(listener._journal, listener._path)
    recorder.add(bad)
    recorder.add(late)
    for step in (1, 2):
        recorder.logged(step, {})
    assert bad.calls == 1
    assert [told[1] for told in listener.told] == [told[1] for told in late.told] == [1, 2]
    assert "callback Bad failed" in caplog.text
    assert "oops" in caplog.text


def test_a_callback_knows_the_last_step_at_the_end(listening: tuple[Recorder, Listener, Path]) -> None:
    recorder, listener, _ = listening
    recorder.ended(7, "interrupted", {})
    assert listener.last_step == 7
