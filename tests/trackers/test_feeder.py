"""The feeder's promise, in this process: each (metric, step) once, whatever fails in between."""

from pathlib import Path

import numpy as np
import pytest
from file_tracker import FileParams, FileTracker, statuses, stored

from trainwright.digest import array_buffer, digest, tensor_records, write_tensors
from trainwright.engine.journal import Journal
from trainwright.errors import InputError
from trainwright.records.commit import Commit
from trainwright.records.creation import Creation
from trainwright.trackers.base import Point
from trainwright.trackers.feed.card import expanded, read_feed_inputs, without_secrets
from trainwright.trackers.feed.feeder import Feeder


class Bench:
    """A run, its journal, and a tracker outside."""

    def __init__(self, run_dir: Path, outside: Path) -> None:
        self.run_dir, self.outside = run_dir, outside
        self.connected: list[FileTracker] = []

    def journal(self, attempt: int, from_step: int) -> Journal:
        return Journal(self.run_dir / "journal", attempt, from_step)

    def feeder(self) -> Feeder:
        """A new one, as a new process would make it."""
        (self.run_dir / "trackers").mkdir(exist_ok=True)
        return Feeder(
            read_feed_inputs(self.run_dir).card, self.run_dir / "trackers" / "0-file.json", self.connect
        )

    def connect(self) -> FileTracker:
        self.connected.append(FileTracker(FileParams(folder=str(self.outside))))
        return self.connected[-1]

    def steps(self, metric: str = "train_loss") -> list[int]:
        return [step for step, _ in stored(self.outside).get(metric, [])]


@pytest.fixture
def bench(make_run, tmp_path: Path) -> Bench:
    return Bench(make_run(), tmp_path / "outside")


def write(journal: Journal, first: int, last: int) -> None:
    for step in range(first, last + 1):
        journal.values("metrics", step, {"train_loss": step / 2, "learning_rate": 0.1})
    journal.flush()


def test_what_is_written_while_it_tails_arrives_once(bench: Bench) -> None:
    journal, feeder = bench.journal(1, 0), bench.feeder()
    for first in range(1, 100, 10):
        write(journal, first, first + 9)
        feeder.forward()
        assert bench.steps() == list(range(1, first + 10))
    assert len(bench.connected) == 1


def test_metrics_evaluations_and_histograms_go_out_and_losses_do_not(bench: Bench) -> None:
    journal = bench.journal(1, 0)
    journal.losses(1, [0.1, 0.2])
    journal.values("evaluation", 2, {"val_loss": float("nan")})
    bars = {"edges": [0.0, 1.0], "counts": [6], "sum": 3.0, "sum_squares": 2.0}
    journal.values("histograms", 2, {"0.weight": bars})
    journal.event(2, "early_stop", reason="patience")
    journal.flush()
    bench.feeder().forward()
    found = stored(bench.outside)
    assert set(found) == {"val_loss", "0.weight"}
    assert found["0.weight"] == [(2, 6.0)]
    assert str(found["val_loss"]) == "[(2, nan)]"


def test_many_values_go_out_in_few_batches(bench: Bench) -> None:
    write(bench.journal(1, 0), 1, 1200)
    bench.feeder().forward()
    assert sum(bench.connected[0].batches) == 2400
    assert max(bench.connected[0].batches) <= 1001
    assert len(bench.connected[0].batches) == 3


def test_steps_that_a_resumed_attempt_repeats_are_not_sent_again(bench: Bench) -> None:
    write(bench.journal(1, 0), 1, 34)
    bench.feeder().forward()
    write(bench.journal(2, 30), 31, 50)
    bench.feeder().forward()
    assert bench.steps() == list(range(1, 51))


def test_superseded_steps_that_were_not_sent_never_are(bench: Bench) -> None:
    journal = bench.journal(1, 0)
    write(journal, 1, 30)
    journal.values("metrics", 31, {"train_loss": -1.0})
    journal.flush()
    write(bench.journal(2, 30), 31, 40)
    bench.feeder().forward()
    assert stored(bench.outside)["train_loss"] == [(step, step / 2) for step in range(1, 41)]


def test_a_crash_between_sending_and_remembering_sends_nothing_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(bench.journal(1, 0), 1, 20)
    sent = FileTracker.log

    def send_and_die(self: FileTracker, points: list[Point]) -> None:
        sent(self, points[:15])
        raise KeyboardInterrupt

    monkeypatch.setattr(FileTracker, "log", send_and_die)
    with pytest.raises(KeyboardInterrupt):
        bench.feeder().forward()
    monkeypatch.undo()
    bench.feeder().forward()
    assert bench.steps() == bench.steps("learning_rate") == list(range(1, 21))


def test_a_lost_state_sends_nothing_twice(bench: Bench) -> None:
    write(bench.journal(1, 0), 1, 20)
    bench.feeder().forward()
    (bench.run_dir / "trackers" / "0-file.json").unlink()
    bench.feeder().forward()
    assert bench.steps() == list(range(1, 21))


def test_a_tracker_that_has_lost_the_run_gets_everything_again(bench: Bench) -> None:
    journal = bench.journal(1, 0)
    write(journal, 1, 20)
    bench.feeder().forward()
    (bench.outside / "points.jsonl").unlink()
    write(journal, 21, 25)
    bench.feeder().forward()
    assert bench.steps() == list(range(1, 26))


def test_a_dead_tracker_is_tried_again_and_loses_nothing(bench: Bench, tmp_path: Path) -> None:
    journal, feeder = bench.journal(1, 0), bench.feeder()
    write(journal, 1, 5)
    feeder.forward()
    (tmp_path / "dead").touch()
    write(journal, 6, 10)
    with pytest.raises(ConnectionRefusedError) as caught:
        feeder.forward()
    feeder.failed(str(caught.value))
    assert bench.feeder().state.error.startswith("Connection refused")
    (tmp_path / "dead").unlink()
    feeder.forward()
    assert bench.steps() == list(range(1, 11))
    assert bench.feeder().state.error == ""


def test_the_end_brings_files_and_status(bench: Bench) -> None:
    journal, feeder = bench.journal(1, 0), bench.feeder()
    write(journal, 1, 3)
    journal.end(3, "completed")
    (bench.run_dir / "result.json").write_text("{}")
    (bench.run_dir / "best").mkdir()
    feeder.forward()
    assert statuses(bench.outside) == []
    feeder.finish(crashed=False)
    assert statuses(bench.outside) == ["completed"]
    assert {path.name for path in bench.outside.glob("artifact-*")} == {
        f"artifact-{name}" for name in ("config.yaml", "result.json", "best")
    }
    assert "hunter2" not in (bench.outside / "artifact-config.yaml").read_text()


def test_an_attempt_without_an_end_leaves_the_status_alone(bench: Bench) -> None:
    write(bench.journal(1, 0), 1, 3)
    feeder = bench.feeder()
    feeder.forward()
    feeder.finish(crashed=False)
    assert statuses(bench.outside) == []


def test_a_crashed_run_has_failed_until_it_goes_on(bench: Bench) -> None:
    write(bench.journal(1, 0), 1, 3)
    for journal, crashed in ((None, True), (bench.journal(2, 2), False)):
        if journal:
            write(journal, 3, 5)
            journal.end(5, "completed")
        feeder = bench.feeder()
        feeder.forward()
        feeder.finish(crashed=crashed)
    assert statuses(bench.outside) == ["failed", "completed"]
    assert bench.steps() == [1, 2, 3, 4, 5]


def test_an_end_that_a_resumed_attempt_supersedes_is_not_told(bench: Bench) -> None:
    journal = bench.journal(1, 0)
    write(journal, 1, 3)
    journal.end(3, "preempted")
    write(bench.journal(2, 3), 4, 5)
    feeder = bench.feeder()
    feeder.forward()
    feeder.finish(crashed=False)
    assert statuses(bench.outside) == []


def test_files_that_could_not_be_sent_are_sent_next_time(bench: Bench, tmp_path: Path) -> None:
    journal, feeder = bench.journal(1, 0), bench.feeder()
    write(journal, 1, 3)
    journal.end(3, "completed")
    feeder.forward()
    (tmp_path / "dead").touch()
    with pytest.raises(ConnectionRefusedError):
        feeder.finish(crashed=False)
    (tmp_path / "dead").unlink()
    again = bench.feeder()
    again.forward()
    again.finish(crashed=False)
    assert statuses(bench.outside) == ["completed"]
    assert bench.steps() == [1, 2, 3]


def test_where_all_is_sent_the_tracker_is_not_even_made(bench: Bench) -> None:
    journal = bench.journal(1, 0)
    write(journal, 1, 3)
    journal.end(3, "completed")
    for _ in range(2):
        feeder = bench.feeder()
        feeder.forward()
        feeder.finish(crashed=False)
    assert len(bench.connected) == 1
    assert statuses(bench.outside) == ["completed"]


def test_the_card_tells_of_the_run(make_run) -> None:
    run = read_feed_inputs(make_run({"type": "file", "params": {"folder": "${env:PLACE}"}}))
    assert run.card.params["model.params.hidden"] == "[8, 4]"
    assert run.card.params["tracking.0.params.folder"] == "${env:PLACE}"
    assert "hunter2" not in str(run.card)
    assert run.card.tags == {
        "trainwright.config_hash": "c0ffee",
        "trainwright.seed": "7",
        "trainwright.data_hash": "da7a",
    }
    assert run.trackers == [("file", {"folder": "${env:PLACE}"})]


def test_variables_are_filled_in_and_hidden_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cr3t")
    options = {"uri": "http://u:${env:TOKEN}@host", "more": ["${env:TOKEN}", 3]}
    assert expanded(options) == {"uri": "http://u:s3cr3t@host", "more": ["s3cr3t", 3]}
    shown = without_secrets("401 for s3cr3t at http://me:hunter2@host", options)
    assert shown.startswith("401 for ${env:TOKEN} at http://")
    assert "hunter2" not in shown


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(
            (name, content)
            for name in ("config.yaml", "manifest.json")
            for content in ("", "[]", "3", "[" * 10_000)
        ),
        ("config.yaml", "tracking: 3"),
        ("config.yaml", "tracking: [{}]"),
    ],
)
def test_a_damaged_config_or_manifest_is_an_input_error(make_run, name: str, content: str) -> None:
    run = make_run({"type": "file"})
    (run / name).write_text(content)
    with pytest.raises(InputError, match="missing or damaged"):
        read_feed_inputs(run)


def test_a_check_sends_what_a_tracker_has_lost(bench: Bench) -> None:
    journal = bench.journal(1, 0)
    write(journal, 1, 3)
    journal.end(3, "completed")
    for check in (False, True, True):
        feeder = bench.feeder()
        feeder.forward(check=check)
        feeder.finish(crashed=False)
        assert bench.steps() == [1, 2, 3]
        if len(bench.connected) < 3:
            (bench.outside / "points.jsonl").unlink()
    assert statuses(bench.outside) == ["completed"] * 3


def test_a_check_keeps_the_status_of_a_crashed_run(bench: Bench) -> None:
    write(bench.journal(1, 0), 1, 3)
    for crashed in (True, False):
        feeder = bench.feeder()
        feeder.forward(check=not crashed)
        feeder.finish(crashed=crashed)
    assert statuses(bench.outside) == ["failed", "failed"]


def test_a_position_inside_a_line_loses_nothing(bench: Bench) -> None:
    journal = bench.journal(1, 0)
    write(journal, 1, 20)
    bench.feeder().forward()
    write(journal, 21, 25)
    feeder = bench.feeder()
    feeder.state.position = feeder.state.position._replace(offset=feeder.state.position.offset + 3)
    feeder.forward()
    assert bench.steps() == list(range(1, 26))


class ModelFileTracker(FileTracker):
    """Takes models, too; the first of the answers is raised, if it is an error."""

    wants_model = True

    def __init__(self, params: FileParams, answers: list[Exception | None], got: list[str]) -> None:
        super().__init__(params)
        self._answers, self._got = answers, got

    def log_model(self, folder: Path, digest: str) -> None:
        if error := self._answers.pop(0):
            raise error
        self._got += [digest, *sorted(path.name for path in (folder / "run").iterdir())]


def ended_with_model(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, answers: list[Exception | None]
) -> list[str]:
    """Ends a run, whose model the tracker answers like this; returns what it got."""
    got: list[str] = []
    step = bench.run_dir / "checkpoints" / "step-000000003-a0001"
    step.mkdir(parents=True)
    weights = write_tensors(step / "weights.safetensors", [array_buffer("x", np.ones(2))])
    (step / "manifest.json").write_bytes(Commit(step.name, 3, 1, [weights]).manifest())
    (bench.run_dir / "data.json").write_text("{}")
    monkeypatch.setattr(
        bench, "connect", lambda: ModelFileTracker(FileParams(folder=str(bench.outside)), answers, got)
    )
    journal = bench.journal(1, 0)
    write(journal, 1, 3)
    journal.end(3, "completed")
    return got


def test_a_model_that_fails_costs_neither_metrics_nor_status_and_is_sent_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = ended_with_model(bench, monkeypatch, [ConnectionRefusedError("no"), None])
    feeder = bench.feeder()
    feeder.forward()
    with pytest.raises(ConnectionRefusedError):
        feeder.finish(crashed=False)
    assert (bench.steps(), statuses(bench.outside)) == ([1, 2, 3], ["completed"])
    feeder.failed("no")
    feeder.forward()
    feeder.finish(crashed=False)
    of_weights = digest(tensor_records([array_buffer("weights.x", np.ones(2))]))
    assert got == [of_weights, "best", "config.yaml", "data.json", "manifest.json", "result.json"]
    assert bench.steps() == [1, 2, 3]
    assert list((bench.run_dir / "trackers").glob(".model-*")) == []


def test_a_model_that_cannot_be_taken_along_is_no_failure(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended_with_model(bench, monkeypatch, [InputError("its predictions need targets")])
    feeder = bench.feeder()
    feeder.forward()
    feeder.finish(crashed=False)
    assert (statuses(bench.outside), feeder.state.error) == (["completed"], "")


def test_only_what_the_user_set_is_a_parameter(bench: Bench) -> None:
    everything = read_feed_inputs(bench.run_dir).card.params
    assert everything.keys() == {"model.type", "model.params.hidden", "data.path", "tracking"}
    Creation(settings=["data.path"]).save(bench.run_dir / Creation.FILE)
    assert read_feed_inputs(bench.run_dir).card.params.keys() == {"model.type", "data.path"}
