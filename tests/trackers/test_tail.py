"""Reading a journal that is still being written."""

from pathlib import Path

import pytest

from trainwright.engine.journal import Journal
from trainwright.records.journal import read
from trainwright.trackers.feed.state import START, Position, State
from trainwright.trackers.feed.tail import pending, points, tail


def steps(folder: Path, start: Position = START) -> list[int]:
    return [point.step for record, _ in tail(folder, start) for point in points(record)]


def write(journal: Journal, *steps: int) -> None:
    for step in steps:
        journal.values("metrics", step, {"train_loss": float(step)})
    journal.flush()


def test_each_look_gives_what_is_new(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 1, 0)
    position, seen = Position(), []
    for batch in ([1, 2], [], [3], [4, 5]):
        write(journal, *batch)
        found = list(tail(tmp_path, position))
        seen.append([point.step for record, _ in found for point in points(record)])
        position = found[-1][1] if found else position
    assert seen == [[1, 2], [], [3], [4, 5]]


def test_a_line_counts_when_it_is_complete(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 1, 0)
    write(journal, 1, 2)
    path = tmp_path / "0001.jsonl"
    whole = path.read_bytes()
    for cut in range(1, len(whole.splitlines()[-1]) + 1):
        path.write_bytes(whole[:-cut])
        assert steps(tmp_path) == [1]
    path.write_bytes(whole)
    assert steps(tmp_path) == [1, 2]


def test_a_damaged_line_ends_its_segment(tmp_path: Path) -> None:
    write(Journal(tmp_path, 1, 0), 1)
    with open(tmp_path / "0001.jsonl", "ab") as file:
        file.write(b'{"kind": "metr\xff\n{"kind":"metrics","time":0,"step":9,"values":{"train_loss":1}}\n')
    write(Journal(tmp_path, 2, 1), 2)
    assert steps(tmp_path) == [1, 2]


def test_superseded_records_are_left_out_as_by_the_journal_itself(tmp_path: Path) -> None:
    for attempt, (from_step, last) in enumerate([(0, 50), (30, 60), (20, 40), (40, 45)], start=1):
        write(Journal(tmp_path, attempt, from_step), *range(from_step + 1, last + 1))
    assert [record for record, _ in tail(tmp_path, START)] == list(read(tmp_path))
    assert steps(tmp_path) == list(range(1, 46))


def test_no_journal_is_an_empty_one(tmp_path: Path) -> None:
    assert steps(tmp_path / "journal") == []


def test_values_without_a_number_are_read_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 1, 0)
    journal.values("evaluation", 1, {"a": float("inf"), "b": float("-inf")})
    journal.flush()
    found = [point for record, _ in tail(tmp_path, START) for point in points(record)]
    assert [(point.metric, point.value) for point in found] == [("a", float("inf")), ("b", float("-inf"))]


def test_pending_counts_what_is_behind_position_and_marks(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 1, 0)
    journal.losses(1, [0.5] * 10)
    for step in range(1, 11):
        journal.values("metrics", step, {"train_loss": 0.5, "learning_rate": 0.1})
    journal.flush()
    assert pending(tmp_path, State()) == 20
    assert pending(tmp_path, State(marks={"train_loss": 4})) == 16
    assert (
        pending(tmp_path, State(position=Position("0001.jsonl", (tmp_path / "0001.jsonl").stat().st_size)))
        == 0
    )


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"position": 3}',
        '{"position": [3, 0]}',
        '{"position": ["", "0"]}',
        '{"position": ["", -1]}',
        '{"position": ["", 0], "marks": []}',
        '{"position": ["", 0], "marks": {"a": "1"}}',
        '{"position": ["", 0], "sent": null}',
        '{"unknown": 1, "position": ["", 0]}',
    ],
)
def test_a_state_that_cannot_be_read_is_a_new_one(tmp_path: Path, damage: str) -> None:
    (tmp_path / "0-x.json").write_text(damage)
    assert State.load(tmp_path / "0-x.json") == State()


def test_a_state_with_a_wrong_digit_is_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "0-x.json"
    State(Position("0001.jsonl", 77), {"a": 3}, 12).save(path)
    path.write_text(path.read_text().replace("77", "78"))
    assert State.load(path) == State()


def test_a_state_is_read_back(tmp_path: Path) -> None:
    state = State(Position("0002.jsonl", 77), {"a": 3}, 12, "completed", "completed", "why")
    state.save(tmp_path / "0-x.json")
    assert State.load(tmp_path / "0-x.json") == state
