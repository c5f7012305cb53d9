"""SIGTERM and SIGINT in every phase.

A commit, the right exit code, and a resume that ends with the same bits.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import trainwright
import warm_commands
from small_runs import SMALL, SignalAt, assert_same
from trainwright import plugins
from trainwright.callbacks.base import Callback
from trainwright.config import load
from trainwright.engine.loop import Loop
from trainwright.engine.signals import Signals, Stopped
from trainwright.engine.writer import Writer
from trainwright.records.journal import SegmentReader, segments
from trainwright.records.listing import all_runs
from trainwright.records.run_dir import RunDir
from trainwright.runs import attempt, startup
from trainwright.runs.catalog import Catalog
from trainwright.runs.run import Run
from trainwright.runs.wiring import run_checkpoints
from trainwright.testing import victim

SIGNALS = [(signal.SIGTERM, 75, "preempted"), (signal.SIGINT, 130, "interrupted")]
# (phase, how often it is passed unharmed, the steps at which the run may stand then)
PHASES = [
    ("start-up", 1, ()),
    ("step", 1, (1, 2)),
    ("step", 10, (10, 11)),
    ("step", 14, (14, 15)),  # the step of an evaluation
    ("step", 30, (30,)),  # the last step
    ("evaluation", 1, (7,)),
    ("evaluation", 3, (21,)),
    ("write", 1, range(5, 31)),
    ("write", 6, range(5, 31)),
    ("commit", 2, range(5, 31)),
    ("final-evaluation", 1, (30,)),
    ("final-evaluation", 2, (30,)),
]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "small.yaml"
    path.write_text(load(SMALL, adapters=Catalog()).dump())
    return path


@pytest.fixture(scope="module")
def whole(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trainwright.train(config, runs_dir=tmp_path_factory.mktemp("whole"))


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`victim.arm` in this process, undone at the end of the test."""
    framework = plugins.adapter("framework", "torch")
    patched = [(startup, "build"), (attempt, "evaluate_outcome"), (Writer, "submit")]
    monkeypatch.setattr(framework, "learner", staticmethod(framework.learner))
    monkeypatch.setattr(plugins, "_replaced", {})
    for owner, name in patched:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    return lambda phase, count, signum: victim.arm(phase, count, framework, signum)


def command(*words: str) -> int:
    from trainwright.cli.main import main

    return main([*words, "--quiet"])


def first_commit(run: RunDir) -> tuple[int, int]:
    """(step, settled) of the newest commit."""
    commit, complaints = run_checkpoints(run).resume.newest()
    assert commit is not None
    assert complaints == []
    return commit.step, run_checkpoints(run).resume.state(commit)["settled"]


@pytest.mark.parametrize(("signum", "code", "status"), SIGNALS, ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize(("phase", "count", "steps"), PHASES, ids=str)
def test_a_signal_in_any_phase_commits_and_the_resume_gives_the_same_bits(
    signum: signal.Signals, code: int, status: str, phase: str, count: int, steps: Any,
    config: Path, whole: Run, tmp_path: Path, arm: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with monkeypatch.context():
        arm(phase, count, signum)
        assert command("train", str(config), "--runs-dir", str(tmp_path)) == code
    (found,) = all_runs(tmp_path)
    run = Run(found)
    assert run.status == status
    if phase == "start-up":
        assert not (run.path / "journal").exists()
    else:
        step, settled = first_commit(found)
        assert run.result["steps"] == step
        assert step in steps
        assert run.result["metrics"] == {}, "it looks complete"
        if phase == "evaluation":
            assert settled < step, "an evaluation that was cut short counts as done"
        assert list(SegmentReader(segments(found.journal)[-1]))[-1]["status"] == status

    monkeypatch.undo()
    assert command("resume", str(run.path)) == 0
    assert_same(run, whole)
    assert run.result["attempts"] == 2


def test_what_an_interrupted_evaluation_owes_is_paid_first(config: Path, tmp_path: Path, arm: Any) -> None:
    arm("evaluation", 2, signal.SIGTERM)
    command("train", str(config), "--runs-dir", str(tmp_path))
    (run,) = all_runs(tmp_path)
    assert first_commit(run) == (14, 13)
    arm("step", 1, signal.SIGTERM)
    assert command("resume", str(run.path)) == 75
    records = list(SegmentReader(segments(run.journal)[-1]))
    assert records[0]["from_step"] == 14
    assert (records[1]["kind"], records[1]["step"]) == ("evaluation", 14), "it went on before it evaluated"


def test_what_it_owes_is_logged_with_the_norm_of_its_last_step(
    tmp_path: Path, arm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = {"training.log_grad_norm": True, "logging.every_n_steps": 7}
    whole = trainwright.train(SMALL, overrides, runs_dir=tmp_path / "whole")
    with monkeypatch.context():
        arm("evaluation", 2, signal.SIGTERM)
        cut = trainwright.train(SMALL, overrides, runs_dir=tmp_path / "cut")
    monkeypatch.undo()
    assert cut.status == "preempted"
    assert norms(trainwright.resume(cut)) == norms(whole)


def norms(run: Run) -> list[tuple[int, Any]]:
    return [(row["step"], row.get("grad_norm")) for row in run.history() if "train_loss" in row]


class SignalAtLine:
    """A trace function that sends SIGTERM before the `count`th line of the loop that is run after some steps."""

    def __init__(self, steps: int, count: int) -> None:
        self._steps = steps
        self._left = count

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if frame.f_code is Loop.run.__code__ else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and frame.f_locals["self"].state.step >= self._steps:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGTERM)
        return self._line


@pytest.fixture(scope="module")
def seldom_logged(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trainwright.train(SMALL, {"logging.every_n_steps": 10}, runs_dir=tmp_path_factory.mktemp("seldom"))


@pytest.mark.parametrize("line", range(1, 8))
def test_a_signal_between_any_two_lines_of_the_loop_loses_nothing(
    line: int, seldom_logged: Run, tmp_path: Path
) -> None:
    before = sys.gettrace()
    sys.settrace(SignalAtLine(3, line))
    try:
        run = trainwright.train(SMALL, {"logging.every_n_steps": 10}, runs_dir=tmp_path)
    finally:
        sys.settrace(before)
    assert run.status == "preempted"
    assert 3 <= run.result["steps"] <= 5
    assert_same(trainwright.resume(run), seldom_logged)


def test_a_signal_in_the_start_up_of_a_resume_leaves_the_commit(
    config: Path, whole: Run, tmp_path: Path, arm: Any
) -> None:
    arm("step", 10, signal.SIGTERM)
    command("train", str(config), "--runs-dir", str(tmp_path))
    (run,) = all_runs(tmp_path)
    before = first_commit(run)
    arm("start-up", 1, signal.SIGINT)
    assert command("resume", str(run.path)) == 130
    assert first_commit(run) == before
    assert Run(run).status == "interrupted"
    assert command("resume", str(run.path)) == 0
    assert_same(Run(run), whole)


def test_after_the_result_there_is_nothing_to_stop(
    config: Path, whole: Run, tmp_path: Path, arm: Any
) -> None:
    arm("end", 1, signal.SIGTERM)
    assert command("train", str(config), "--runs-dir", str(tmp_path)) == 0
    assert_same(trainwright.get("last", runs_dir=tmp_path), whole)


def test_a_signal_at_each_step_still_ends_with_the_same_bits(whole: Run, tmp_path: Path) -> None:
    run = trainwright.train(SMALL, runs_dir=tmp_path, callbacks=[SignalAt(1)])
    for step in range(2, 12):
        run = trainwright.resume(run, callbacks=[SignalAt(step)])
        assert run.result["steps"] == step
    assert_same(trainwright.resume(run), whole)


# -- real processes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "phase", "count", "code"),
    [
        ("SIGTERM", "start-up", 1, 75),
        ("SIGINT", "evaluation", 2, 130),
        ("SIGTERM", "commit", 2, 75),
        ("SIGINT", "start-up", 1, 130),
    ],
)
def test_the_exit_code_of_a_process(
    name: str, phase: str, count: int, code: int, config: Path, whole: Run, tmp_path: Path
) -> None:
    words = ("train", config, "--runs-dir", tmp_path, "--json")
    done = warm_commands.command(*words, folder=tmp_path, killed=(name, phase, count))
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    (found,) = all_runs(tmp_path)
    if phase == "start-up":
        assert "nothing is lost" in done.stderr
    else:
        assert json.loads(done.stdout)["status"] == found.status()
    assert_same(trainwright.resume(found.path), whole)


def endless(folder: Path) -> list[str]:
    """Settings of very many steps, on data in a folder."""
    cadences = [f"{section}.every_n_steps=500" for section in ("evaluation", "checkpoint", "logging")]
    draw = np.random.default_rng(0)  # iris would import scikit-learn first
    np.savez(folder / "rows.npz", X=draw.normal(size=(160, 4)), y=draw.integers(0, 3, 160))
    return ["data.type=npz", "data.path=rows.npz", "training.max_steps=1000000", *cadences]


def begin(config: Path, runs: Path) -> "subprocess.Popen[str]":
    """A training process that has made its first steps, of very many."""
    words = [sys.executable, "-m", "trainwright", "train", str(config), "--runs-dir", str(runs)]
    words += endless(runs)
    process = subprocess.Popen(words, cwd=runs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "train_loss=" in line or "val_loss=" in line:
            return process
    raise AssertionError(process.communicate()[1])


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code", "status"), SIGNALS, ids=lambda value: getattr(value, "name", ""))
def test_a_signal_from_outside_commits_and_says_how_to_resume(
    signum: signal.Signals, code: int, status: str, config: Path, tmp_path: Path
) -> None:
    process = begin(config, tmp_path)
    process.send_signal(signum)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    assert "Traceback" not in err
    (run,) = all_runs(tmp_path)
    assert run.status() == status
    assert first_commit(run)[0] == run.require_result().steps > 0
    assert f"trainwright resume {run.id}" in out


@pytest.mark.slow
def test_a_second_process_is_refused_and_told_who_owns_the_run(config: Path, tmp_path: Path) -> None:
    words = ["train", config, "--runs-dir", tmp_path, *endless(tmp_path)]
    with warm_commands.started(*words, folder=tmp_path) as process:
        process.until_printed("train_loss=")
        (run,) = all_runs(tmp_path)
        journal = (run.journal / "0001.jsonl").stat().st_ino
        second = warm_commands.command("resume", run.path, folder=tmp_path)
        assert second.returncode == 2
        assert f"pid {process.pid} " in second.stderr
        assert "Traceback" not in second.stderr
        assert [path.name for path in segments(run.journal)] == ["0001.jsonl"]
        assert (run.journal / "0001.jsonl").stat().st_ino == journal
        assert len(run.attempts()) == 1
        assert run.status() == "running"
        process.send_signal(signal.SIGTERM)
        assert process.end().returncode == 75, "the refused process harmed the first one"


# -- the handlers


def test_a_second_ctrl_c_ends_at_once() -> None:
    code = (
        "import os, signal\n"
        "from trainwright.engine.signals import Signals\n"
        "with Signals() as signals:\n"
        "    signals.wake = lambda: None\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    assert signals.status == 'interrupted'\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still here', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('too late', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "still here\n")


def test_a_signal_before_there_is_a_loop_stops_where_it_lands() -> None:
    with Signals() as signals, pytest.raises(Stopped) as stopped:
        os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.value.status == signals.status == "preempted"
    assert not isinstance(stopped.value, Exception), "code on the way may take it for an error"


def test_the_handlers_that_were_there_come_back() -> None:
    def mine(*_: object) -> None:
        return None

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with Signals():
            assert signal.getsignal(signal.SIGTERM) is not mine
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_training_in_another_thread_leaves_signals_alone(whole: Run, tmp_path: Path) -> None:
    seen: list[Any] = []

    class Look(Callback):
        def on_end(self, status: str, metrics: Any) -> None:
            seen.append((status, signal.getsignal(signal.SIGTERM)))

    def work() -> None:
        trainwright.train(SMALL, runs_dir=tmp_path, callbacks=[Look()])

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(120)
    assert seen == [("completed", before)]
    assert trainwright.get("last", runs_dir=tmp_path).digest == whole.digest


def test_a_signal_during_a_step_wakes_the_loop() -> None:
    woken: list[str] = []
    with Signals() as signals:
        signals.wake = lambda: woken.append("loop")
        os.kill(os.getpid(), signal.SIGTERM)
        assert (signals.status, woken) == ("preempted", ["loop"])
        os.kill(os.getpid(), signal.SIGTERM)  # nothing more to ask for
        assert woken == ["loop"]
    assert str(Stopped("preempted")) == "preempted"


def test_a_second_ctrl_c_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    with Signals() as signals:
        signals.wake = lambda: None
        for signum, codes in ((signal.SIGINT, []), (signal.SIGTERM, []), (signal.SIGINT, [130])):
            os.kill(os.getpid(), signum)
            assert ended == codes
        assert signals.status == "interrupted"


def test_a_forked_child_has_the_handlers_from_before() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with Signals():
        child = os.fork()
        if child == 0:
            now = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
            os._exit(0 if now == before else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert signal.getsignal(signal.SIGTERM) not in before
