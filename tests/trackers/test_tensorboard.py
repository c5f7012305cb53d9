"""TensorBoard's adapter, read back with TensorBoard's own loader."""

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainwright.errors import TrackerError
from trainwright.testing.tracker_suite import Stored, TrackerSuite, card, line
from trainwright.trackers.base import RunCard
from trainwright.trackers.tensorboard import TensorboardParams, TensorboardTracker

pytest.importorskip("tensorboard")


def values(folder: Path) -> Iterator[tuple[int, Any]]:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    for path in sorted(folder.glob("*tfevents*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                yield event.step, value


class TestTensorboard(TrackerSuite):
    keeps_artifacts = False

    def make(self, root: Path) -> TensorboardTracker:
        return TensorboardTracker(TensorboardParams())

    def points(self, root: Path, run: RunCard) -> Stored:
        found = defaultdict(list)
        for step, value in values(run.run_dir / "tensorboard"):
            if value.HasField("simple_value"):
                found[value.tag].append((step, value.simple_value))
        return found

    def histograms(self, root: Path, run: RunCard) -> dict[str, list[tuple[int, list[float]]]]:
        found = defaultdict(list)
        for step, value in values(run.run_dir / "tensorboard"):
            if value.HasField("histo"):
                found[value.tag].append((step, list(value.histo.bucket)))
        return found

    def texts(self, root: Path, run: RunCard) -> dict[str, str]:
        tables = [
            value.tensor.string_val[0].decode()
            for _, value in values(run.run_dir / "tensorboard")
            if value.HasField("tensor")
        ]
        assert len(tables) == 1
        rows = [row.strip("| ").split(" | ") for row in tables[0].splitlines()[2:]]
        return {row[0].removeprefix("tag: "): row[1] for row in rows}


@pytest.fixture
def run(tmp_path: Path) -> RunCard:
    return card(tmp_path)


def test_tensorboard_shows_what_was_written(run: RunCard, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = TensorboardTracker(TensorboardParams())
    for last in (10, 20):  # two processes: two files
        tracker.open(run)
        tracker.log(line("loss", last - 9, last))
    shown = EventAccumulator(str(tmp_path / "tensorboard"))
    shown.Reload()
    assert [event.step for event in shown.Scalars("loss")] == list(range(1, 21))


def test_a_log_dir_holds_a_folder_for_each_run(run: RunCard, tmp_path: Path) -> None:
    TensorboardTracker(TensorboardParams(log_dir=str(tmp_path / "logs"))).open(run)
    assert [path.name for path in (tmp_path / "logs").iterdir()] == [run.run_id]


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_record_is_sent_again(run: RunCard, tmp_path: Path, cut: int) -> None:
    tracker = TensorboardTracker(TensorboardParams())
    tracker.open(run)
    tracker.log(line("loss", 1, 3))
    (path,) = (tmp_path / "tensorboard").iterdir()
    os.truncate(path, path.stat().st_size - cut)
    second = TensorboardTracker(TensorboardParams())
    assert second.open(run) == {"loss": 2}
    second.log(line("loss", 3, 3))
    assert [step for step, value in values(tmp_path / "tensorboard") if value.tag == "loss"] == [1, 2, 3]


def test_a_batch_that_fits_on_the_disk_in_part_is_taken_back(
    run: RunCard, tmp_path: Path, full_after: Any
) -> None:
    tracker = TensorboardTracker(TensorboardParams())
    tracker.open(run)
    tracker.log(line("loss", 1, 3))
    with full_after(200), pytest.raises(TrackerError, match="File too large"):
        tracker.log(line("loss", 4, 40))
    assert tracker.open(run) == {"loss": 3}
    tracker.log(line("loss", 4, 40))
    assert [step for step, value in values(tmp_path / "tensorboard") if value.tag == "loss"] == list(
        range(1, 41)
    )


@pytest.fixture
def full_after(tmp_path: Path) -> Any:
    """A disk that takes so many bytes more, played by a limit on the size of files."""
    import contextlib
    import resource
    import signal

    @contextlib.contextmanager
    def limited(more: int) -> Iterator[None]:
        size = max(path.stat().st_size for path in (tmp_path / "tensorboard").iterdir())
        before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + more, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
            signal.signal(signal.SIGXFSZ, ignored)

    return limited


def test_a_folder_that_cannot_be_made_is_an_error(run: RunCard, tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("a file is in the way")
    with pytest.raises(TrackerError, match=r"TensorBoard in .*tensorboard"):
        TensorboardTracker(TensorboardParams()).open(run)


def test_tensorflow_is_not_imported(run: RunCard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    tracker = TensorboardTracker(TensorboardParams())
    tracker.open(run)
    tracker.log(line("loss", 1, 3))
    tracker.close("completed")
