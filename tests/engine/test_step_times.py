"""Step times of several processes: what is journalled, and who is named as a straggler, and how often."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from trainwright.engine import step_times
from trainwright.engine.journal import Journal
from trainwright.engine.recorder import Recorder
from trainwright.engine.step_times import StepClock, StepTimes, Stragglers
from trainwright.world import Mesh, World


@pytest.fixture
def stragglers(tmp_path: Path) -> Stragglers:
    return Stragglers(Recorder(Journal(tmp_path, 1, 0), ()), World())


def window(*medians: float, steps: int = 100) -> list[StepTimes]:
    """The times of one window, by rank; two processes share a machine."""
    return [StepTimes(f"node-{rank // 2}", steps, median, 2 * median) for rank, median in enumerate(medians)]


def events(stragglers: Stragglers, folder: Path, name: str) -> list[dict[str, Any]]:
    stragglers._recorder.journal.flush()
    lines = map(json.loads, (folder / "0001.jsonl").read_text().splitlines())
    return [line["detail"] | {"step": line["step"]} for line in lines if line.get("name") == name]


def test_the_times_are_journalled_by_rank(tmp_path: Path, stragglers: Stragglers) -> None:
    stragglers.record(7, window(0.1, 0.1, 0.123456, 0.1, 0.1))
    assert events(stragglers, tmp_path, "step_times") == [
        {
            "step": 7,
            "steps": 100,
            "hosts": [["node-0", 2], ["node-1", 2], ["node-2", 1]],
            "stages": 1,
            "medians": [0.1, 0.1, 0.1235, 0.1, 0.1],
            "longest": [0.2, 0.2, 0.2469, 0.2, 0.2],
        }
    ]
    assert events(stragglers, tmp_path, "straggler") == []


@pytest.mark.parametrize(
    ("medians", "named"),
    [
        ((1.0, 1.31), [1]),
        ((1.0, 1.3), []),
        ((1.4, 1.0, 1.0, 1.0), [0]),
        ((1.0, 2.0, 3.0, 1.0, 1.0), [2, 1]),
        ((2.0, 2.0, 2.0, 2.0), []),
        ((0.0, 0.0), []),
    ],
)
def test_who_is_a_straggler(
    medians: Sequence[float], named: list[int], tmp_path: Path, stragglers: Stragglers
) -> None:
    stragglers.record(7, window(*medians))
    assert [event["rank"] for event in events(stragglers, tmp_path, "straggler")] == named


def test_stages_of_a_pipeline_are_not_compared_with_each_other(
    tmp_path: Path, stragglers: Stragglers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stragglers._world, "mesh", Mesh(pipeline=2, data=2), raising=False)
    stragglers.record(7, window(1.0, 1.0, 2.0, 2.7))
    (named,) = events(stragglers, tmp_path, "straggler")
    assert (named["rank"], named["factor"]) == (3, 1.35)
    assert events(stragglers, tmp_path, "step_times")[0]["stages"] == 2


def test_a_warning_says_who_and_how_much(
    tmp_path: Path, stragglers: Stragglers, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "trainwright"):
        stragglers.record(9, window(0.1, 0.1, 0.1, 0.25))
    assert caplog.messages == [
        "process 3 on node-1 slows down all others: its steps take 2.5 times as long as the median "
        "(0.25 s, not 0.1 s)"
    ]
    assert events(stragglers, tmp_path, "straggler") == [
        {"step": 9, "rank": 3, "host": "node-1", "factor": 2.5, "seconds": 0.25, "median": 0.1}
    ]


def test_one_is_named_again_only_if_it_changes(tmp_path: Path, stragglers: Stragglers) -> None:
    factors = [2.0, 2.1, 1.7, 3.2, 3.0, 1.2, 3.1, 1.0, 1.6, 1.5]
    for step, factor in enumerate(factors):
        stragglers.record(step, window(1.0, 1.0, factor))
    named = [(event["step"], event["factor"]) for event in events(stragglers, tmp_path, "straggler")]
    assert named == [(0, 2.0), (3, 3.2), (8, 1.6)]


@pytest.mark.parametrize(
    ("factors", "named"),
    [([2.0, 1.15, 2.0], [0]), ([2.0, 1.1, 2.0], [0, 2]), ([2.0, 3.0, 3.1], [0, 2])],
)
def test_one_that_was_normal_again_is_named_again(
    factors: list[float], named: list[int], tmp_path: Path, stragglers: Stragglers
) -> None:
    for step, factor in enumerate(factors):
        stragglers.record(step, window(1.0, 1.0, factor))
    assert [event["step"] for event in events(stragglers, tmp_path, "straggler")] == named


def test_few_steps_are_no_evidence(tmp_path: Path, stragglers: Stragglers) -> None:
    stragglers.record(7, window(1.0, 9.0, steps=19))
    assert events(stragglers, tmp_path, "straggler") == []
    assert len(events(stragglers, tmp_path, "step_times")) == 1
    stragglers.record(8, window(1.0, 9.0, steps=0))
    assert len(events(stragglers, tmp_path, "step_times")) == 1
    stragglers.record(9, window(1.0, 9.0, steps=20))
    assert [event["rank"] for event in events(stragglers, tmp_path, "straggler")] == [1]


def test_one_process_has_nobody_to_wait_for_it(tmp_path: Path, stragglers: Stragglers) -> None:
    stragglers.record(7, window(0.5))
    assert [event["medians"] for event in events(stragglers, tmp_path, "step_times")] == [[0.5]]
    assert events(stragglers, tmp_path, "straggler") == []


def test_of_many_the_slowest_are_named(tmp_path: Path, stragglers: Stragglers) -> None:
    stragglers.record(7, window(*[1.0] * 30, *(2.0 + rank for rank in range(20))))
    named = [event["rank"] for event in events(stragglers, tmp_path, "straggler")]
    assert named == list(range(49, 41, -1))


def test_the_clock_leaves_out_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(step_times.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(step_times.socket, "gethostname", lambda: "here")
    clock = StepClock()
    clock.add([])
    clock.add([50.0, 1.0, 4.0])
    clock.add([2.0])
    now[0] += 59
    assert not clock.is_due(2)
    now[0] += 1
    assert clock.is_due(600)
    assert not clock.is_due(601)
    assert clock.take() == StepTimes("here", 3, 2.0, 4.0)
    assert not clock.is_due(2)
    assert clock.take() == StepTimes("here", 0, 0.0, 0.0)
