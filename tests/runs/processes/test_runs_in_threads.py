"""Runs of several threads of one process: one after the other, as random streams are those of the process."""

import logging
import os
import threading
from pathlib import Path

import pytest

import trainwright
from small_runs import SMALL
from trainwright.callbacks.base import Callback
from trainwright.runs.processes.isolation import one_at_a_time


class Steps(Callback):
    """Notes the steps of a run; the first one waits until the other one does, or trains."""

    def __init__(self, seed: int, noted: list[int], begun: threading.Event, other: threading.Event) -> None:
        self.seed, self.noted, self.begun, self.other = seed, noted, begun, other

    def on_log(self, step: int, metrics: object) -> None:
        self.noted.append(self.seed)
        if self.seed == 2:
            self.other.set()
        elif step == 3:
            self.begun.set()
            self.other.wait(60)


class Waits(logging.Handler):
    """Sets an event when a run says that it waits."""

    def __init__(self, event: threading.Event) -> None:
        super().__init__()
        self.event = event

    def emit(self, record: logging.LogRecord) -> None:
        if "waits for it" in record.getMessage():
            self.event.set()


def test_a_run_waits_for_that_of_another_thread(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trainwright")
    begun, other, noted, runs = (
        threading.Event(),
        threading.Event(),
        list[int](),
        dict[int, trainwright.Run](),
    )

    def train(seed: int) -> None:
        callback = Steps(seed, noted, begun, other)
        runs[seed] = trainwright.train(
            SMALL, {"experiment.seed": seed}, runs_dir=tmp_path, callbacks=[callback]
        )

    handler, logger = Waits(other), logging.getLogger("trainwright")
    logger.addHandler(handler)
    try:
        first = threading.Thread(target=train, args=(1,))
        first.start()
        assert begun.wait(60)
        train(2)
        first.join(60)
    finally:
        logger.removeHandler(handler)
    assert [runs[seed].status for seed in (1, 2)] == ["completed", "completed"]
    assert noted == sorted(noted), "two runs drew from the random streams of the process at once"


def test_a_callback_may_train_another_run(tmp_path: Path) -> None:
    class Nested(Callback):
        def on_log(self, step: int, metrics: object) -> None:
            if step == 3:
                inner.append(trainwright.train(SMALL, {"experiment.seed": 2}, runs_dir=tmp_path).status)

    inner, alone = list[str](), trainwright.train(SMALL, runs_dir=tmp_path)
    run = trainwright.train(SMALL, runs_dir=tmp_path, callbacks=[Nested()])
    assert (inner, run.digest) == (["completed"], alone.digest)


def test_a_forked_child_need_not_wait_for_a_thread_of_its_parent() -> None:
    begun, end = threading.Event(), threading.Event()

    def train() -> None:
        with one_at_a_time():
            begun.set()
            end.wait(60)

    training = threading.Thread(target=train)
    training.start()
    assert begun.wait(60)
    child = os.fork()
    if child == 0:
        threading.Timer(30, os._exit, (1,)).start()
        with one_at_a_time():
            os._exit(0)
    end.set()
    training.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
