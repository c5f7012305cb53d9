"""The contract suite of trackers: each value arrives once, even if a process dies in between.

    class TestMine(TrackerSuite):
        def make(self, root: Path) -> Tracker:
            return MineTracker(MineTracker.Params(url=...))

        def points(self, root: Path, run: RunCard) -> Stored:
            return {...}            # read from the tracker's server or files, not through the adapter

The contract is in `trackers/base.py`. A new tracker object with the same `root` stands in for a process that
died: the adapter must keep no state in memory that a new object would lack.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from trainwright.trackers.base import Histogram, Point, RunCard, Tracker

Stored: TypeAlias = Mapping[str, Sequence[tuple[int, float]]]

NOW = 1_700_000_000.0


def card(run_dir: Path, run_id: str = "20260101-120000-abc123") -> RunCard:
    """Return a run with more params, and longer ones, than many trackers take in one call."""
    params = {f"model.params.p{index}": str(index) for index in range(150)} | {
        "training.loss": "x" * 9000,
        "data.path": "null",
    }
    tags = {"trainwright.config_hash": "c0ffee", "trainwright.git_commit": "0123abc"}
    return RunCard(run_id, "suite", run_dir, params, tags)


def line(metric: str, first: int, last: int) -> list[Point]:
    """Return points of one metric at the steps `first` to `last`; the value is half the step."""
    return [Point(metric, step, step / 2, NOW + step) for step in range(first, last + 1)]


class TrackerSuite:
    """Tests of the contract; subclass it in a test module of the adapter."""

    def make(self, root: Path) -> Tracker:
        """Return a new tracker object that keeps its data in `root`, a folder that is empty at first."""
        raise NotImplementedError

    def points(self, root: Path, run: RunCard) -> Stored:
        """Return what the tracker holds: (step, value) by metric, sorted by step, with duplicates.

        Infinite values may have become very large ones; NaN must stay NaN.
        """
        raise NotImplementedError

    def histograms(self, root: Path, run: RunCard) -> Mapping[str, Sequence[tuple[int, Sequence[float]]]]:
        """Return (step, counts) by histogram; needed if the adapter wants histograms."""
        raise NotImplementedError

    def texts(self, root: Path, run: RunCard) -> Mapping[str, str]:
        """Return the params and tags that the tracker holds."""
        raise NotImplementedError

    def artifact(self, root: Path, run: RunCard, name: str) -> bytes | None:
        """Return the content of a file that was sent, or None; needed if `keeps_artifacts`."""
        raise NotImplementedError

    keeps_artifacts = True

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """Make an empty folder."""
        folder = tmp_path / "root"
        folder.mkdir()
        return folder

    @pytest.fixture
    def run(self, tmp_path: Path) -> RunCard:
        """Describe a run whose directory is empty."""
        folder = tmp_path / "run"
        folder.mkdir()
        return card(folder)

    def test_a_new_run_holds_nothing(self, root: Path, run: RunCard) -> None:
        """`open` reports no metrics for a new run."""
        assert dict(self.make(root).open(run)) == {}

    def test_points_arrive_as_they_were_sent(self, root: Path, run: RunCard) -> None:
        """The tracker holds the steps and values that were logged."""
        tracker = self.make(root)
        tracker.open(run)
        tracker.log([*line("train_loss", 1, 3), *line("val_f1", 2, 2)])
        assert self.points(root, run) == {"train_loss": [(1, 0.5), (2, 1.0), (3, 1.5)], "val_f1": [(2, 1.0)]}

    def test_points_are_there_when_log_returns(self, root: Path, run: RunCard) -> None:
        """`log` returns only when the points are stored."""
        tracker = self.make(root)
        tracker.open(run)
        for last in (1, 2):
            tracker.log(line("train_loss", last, last))
            assert len(self.points(root, run)["train_loss"]) == last

    def test_a_batch_may_be_large(self, root: Path, run: RunCard) -> None:
        """2500 points in one call arrive."""
        tracker = self.make(root)
        tracker.open(run)
        tracker.log(line("train_loss", 1, 2500))
        assert [step for step, _ in self.points(root, run)["train_loss"]] == list(range(1, 2501))

    def test_nan_and_infinity_are_accepted(self, root: Path, run: RunCard) -> None:
        """NaN and infinite values are stored."""
        tracker = self.make(root)
        tracker.open(run)
        tracker.log(
            [
                Point("loss", step, value, NOW)
                for step, value in enumerate([math.nan, math.inf, -math.inf, 1.0])
            ]
        )
        values = [value for _, value in self.points(root, run)["loss"]]
        assert math.isnan(values[0])
        assert values[1] > 1e300
        assert values[2] < -1e300
        assert values[3] == 1.0
        assert self.make(root).open(run) == {"loss": 3}

    @pytest.mark.parametrize("name", ["top 5 (val)", "f1@10", "group/loss", "précision", "_x41_"])
    def test_any_metric_name_is_accepted_and_reported(self, root: Path, run: RunCard, name: str) -> None:
        """`open` reports unusual metric names unchanged."""
        tracker = self.make(root)
        tracker.open(run)
        tracker.log(line(name, 1, 2))
        assert self.make(root).open(run) == {name: 2}

    def test_open_finds_the_run_again(self, root: Path, run: RunCard) -> None:
        """A new tracker object continues the same run."""
        first = self.make(root)
        first.open(run)
        first.log([*line("train_loss", 1, 30), *line("val_loss", 0, 20)])
        second = self.make(root)
        assert second.open(run) == {"train_loss": 30, "val_loss": 20}
        second.log(line("train_loss", 31, 40))
        assert len(self.points(root, run)["train_loss"]) == 40

    def test_open_may_be_repeated(self, root: Path, run: RunCard) -> None:
        """A second `open` neither loses nor repeats points."""
        tracker = self.make(root)
        tracker.open(run)
        tracker.log(line("train_loss", 1, 3))
        assert tracker.open(run) == {"train_loss": 3}
        tracker.log(line("train_loss", 4, 4))
        assert len(self.points(root, run)["train_loss"]) == 4

    def test_nothing_is_sent_twice_after_a_crash_between_sending_and_remembering(
        self, root: Path, run: RunCard
    ) -> None:
        """`open` says what arrived before a crash."""
        sent = line("train_loss", 1, 100)
        first = self.make(root)
        first.open(run)
        first.log(sent[:60])
        second = self.make(root)
        held = second.open(run)
        second.log([point for point in sent if point.step > held.get(point.metric, -1)])
        assert [step for step, _ in self.points(root, run)["train_loss"]] == list(range(1, 101))

    def test_runs_are_kept_apart(self, root: Path, run: RunCard, tmp_path: Path) -> None:
        """Runs with other ids have points of their own."""
        (tmp_path / "other").mkdir()
        other = card(tmp_path / "other", run_id="20260101-120000-def456")
        for each, last in ((run, 5), (other, 7)):
            tracker = self.make(root)
            assert dict(tracker.open(each)) == {}
            tracker.log(line("train_loss", 1, last))
        assert (len(self.points(root, run)["train_loss"]), len(self.points(root, other)["train_loss"])) == (
            5,
            7,
        )

    def test_params_and_tags_are_there(self, root: Path, run: RunCard) -> None:
        """Params and tags are stored; long ones may be cut."""
        self.make(root).open(run)
        texts = self.texts(root, run)
        assert texts["model.params.p149"] == "149"
        assert texts["training.loss"].startswith("xxxx")
        assert texts["trainwright.config_hash"] == "c0ffee"
        assert texts["trainwright.run_id"] == run.run_id

    def test_changed_params_do_not_keep_a_run_from_being_opened(self, root: Path, run: RunCard) -> None:
        """A run opens with changed params, too."""
        self.make(root).open(run)
        changed = run._replace(params={**run.params, "model.params.p0": "changed", "model.params.new": "1"})
        assert dict(self.make(root).open(changed)) == {}

    @pytest.mark.parametrize("status", ["completed", "stopped", "failed", "preempted"])
    def test_a_closed_run_may_be_opened_again(self, root: Path, run: RunCard, status: str) -> None:
        """A closed run continues after another `open`."""
        first = self.make(root)
        first.open(run)
        first.log(line("train_loss", 1, 3))
        first.close(status)
        second = self.make(root)
        assert second.open(run) == {"train_loss": 3}
        second.log(line("train_loss", 4, 4))
        second.close("completed")
        assert len(self.points(root, run)["train_loss"]) == 4

    def test_an_artifact_sent_again_replaces(self, root: Path, run: RunCard) -> None:
        """A file that is sent again replaces the earlier one."""
        tracker = self.make(root)
        tracker.open(run)
        file = run.run_dir / "made.html"
        for content in (b"first", b"second"):
            file.write_bytes(content)
            tracker.log_artifact(file, "report.html")
        self._skip_without_artifacts()
        assert self.artifact(root, run, "report.html") == b"second"

    def test_a_folder_sent_again_replaces(self, root: Path, run: RunCard) -> None:
        """A folder that is sent again replaces the earlier one."""
        tracker = self.make(root)
        tracker.open(run)
        folder = run.run_dir / "models"
        (folder / "deep").mkdir(parents=True)
        for old, new in ((None, "step-1"), ("step-1", "step-2")):
            if old:
                (folder / "deep" / old).unlink()
            (folder / "deep" / new).write_bytes(new.encode())
            tracker.log_artifact(folder, "best")
        self._skip_without_artifacts()
        assert self.artifact(root, run, "best/deep/step-2") == b"step-2"
        assert self.artifact(root, run, "best/deep/step-1") is None

    def test_histograms_arrive_where_they_are_wanted(self, root: Path, run: RunCard) -> None:
        """Histograms are stored if the tracker wants them."""
        tracker = self.make(root)
        tracker.open(run)
        if not tracker.wants_histograms:
            pytest.skip("this tracker has no histograms")
        histogram = Histogram("0.weight", 5, NOW, [-1.0, 0.0, 1.0, 2.0], [3, 0, 4], 5.5, 9.0)
        tracker.log_histograms([histogram, histogram._replace(step=10)])
        assert self.make(root).open(run) == {"0.weight": 10}
        assert [(step, list(counts)) for step, counts in self.histograms(root, run)["0.weight"]] == [
            (5, [3, 0, 4]),
            (10, [3, 0, 4]),
        ]

    def _skip_without_artifacts(self) -> None:
        if not self.keeps_artifacts:
            pytest.skip("this tracker keeps no artifacts: they are sent without an error, and that is all")
