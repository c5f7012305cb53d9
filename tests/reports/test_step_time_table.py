"""Step times of processes: from the journal to the table of the report, whatever is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainwright.engine.journal import Journal
from trainwright.reports import journal, segment_cache
from trainwright.reports.html import write_report
from trainwright.reports.journal import read_history
from trainwright.reports.pages import processes
from trainwright.reports.rundir import RunFiles
from trainwright.reports.step_times import StepTimesTotal, joined, of_window

WINDOW: dict[str, Any] = {
    "steps": 10,
    "hosts": [["a", 2], ["b", 1]],
    "stages": 1,
    "medians": [0.1, 0.2, 0.4],
    "longest": [1.0, 2.0, 4.0],
}
LATER = WINDOW | {"steps": 30, "medians": [0.5, 0.2, 0.4], "longest": [0.5, 3.0, 0.5]}


def test_windows_add_up_by_their_steps() -> None:
    both = joined(of_window(WINDOW), of_window(LATER))
    assert both is not None
    assert (both.steps, both.hosts) == (40, [["a", 2], ["b", 1]])
    assert both.sums == pytest.approx([16.0, 8.0, 16.0])
    assert both.longest == [1.0, 3.0, 4.0]
    assert joined(None, of_window(WINDOW)) == joined(of_window(WINDOW), None) == of_window(WINDOW)


@pytest.mark.parametrize(
    "value", [None, True, -1, 1.5, "x", [], {}, [[]], [None], 10**400, [10**400], ["NaN"]]
)
@pytest.mark.parametrize("key", WINDOW)
def test_what_is_damaged_is_left_out_or_shown(key: str, value: Any) -> None:
    of_window(WINDOW | {key: value})
    of_window({name: one for name, one in WINDOW.items() if name != key})
    assert of_window(WINDOW | {"hosts": [["a", -1], ["b", 4]]}) is None
    assert of_window(WINDOW | {"medians": [0.1, 0.2]}) is None
    assert of_window(WINDOW | {"stages": 2}) is None


@pytest.mark.parametrize("is_cached", [False, True])
def test_the_newest_attempt_of_several_processes_counts(
    is_cached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_cached:
        monkeypatch.setattr(journal, "CACHED_FROM", 1)
    for attempt, windows in enumerate([[LATER], [WINDOW, LATER], []], start=1):
        segment = Journal(tmp_path / "journal", attempt, 0)
        for step, window in enumerate(windows):
            segment.event(step, "step_times", **window)
        segment.end(9, "preempted")
        segment.close()
    first, again = (read_history(tmp_path / "journal") for _ in range(2))
    assert first.step_times == again.step_times == joined(of_window(WINDOW), of_window(LATER))
    assert first.events == []
    assert (segment_cache.load(tmp_path / "journal" / "0002.jsonl") is not None) == is_cached


def shown(times: StepTimesTotal | None) -> Any:
    run = RunFiles(Path("run"), "completed")
    run.__dict__["history"] = journal.History(step_times=times)
    return processes(run)


def test_the_table_names_the_slow_ones() -> None:
    table = shown(of_window(WINDOW))
    assert [row["rank"] for row in table["rows"]] == [0, 1, 2]
    assert table["rows"][2] == {
        "rank": 2,
        "host": "b",
        "stage": 0,
        "median": "400 ms",
        "longest": "4 s",
        "factor": "2.00",
        "slow": True,
    }
    assert [row["slow"] for row in table["rows"]] == [False, False, True]
    assert (table["count"], table["steps"], table["middles"]) == (3, 10, ["200 ms"])


def test_of_many_processes_the_slowest_are_shown() -> None:
    medians = [0.1 + 0.001 * (rank * 7 % 40) for rank in range(40)]
    table = shown(StepTimesTotal([["a", 40]], 1, 10, [10 * median for median in medians], medians))
    slowest = sorted(range(40), key=lambda rank: -medians[rank])[:16]
    assert [row["rank"] for row in table["rows"]] == sorted(slowest)


def test_a_process_is_compared_with_those_of_its_stage() -> None:
    """Medians of 1 and 2 s, by stage; the slowest of all is a normal one."""
    table = shown(StepTimesTotal([["a", 6]], 2, 1, [1.0, 1.0, 1.4, 2.0, 2.1, 2.0], 6 * [3.0]))
    assert [row["stage"] for row in table["rows"]] == [0, 0, 0, 1, 1, 1]
    assert [row["slow"] for row in table["rows"]] == [False, False, True, False, False, False]
    assert [row["factor"] for row in table["rows"]] == ["1.00", "1.00", "1.40", "1.00", "1.05", "1.00"]
    assert table["middles"] == ["1 s", "2 s"]


def test_one_process_has_no_table(tmp_path: Path) -> None:
    assert shown(None) is None
    assert shown(StepTimesTotal([["a", 1]], 1, 10, [1.0], [0.2])) is None
    segment = Journal(tmp_path / "journal", 1, 0)
    segment.event(5, "step_times", **WINDOW)
    segment.close()
    assert "<h2>Processes" in write_report(tmp_path).read_text()
