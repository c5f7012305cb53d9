"""Samples that hang while the process reads them itself."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainwright
from trainwright.datasets.base import Reading
from trainwright.datasets.samples.items import Items
from trainwright.errors import DataError


@pytest.fixture(autouse=True)
def no_timer() -> Iterator[None]:
    """Without the timer by which pytest ends tests, which would be left alone."""
    rest, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, rest, interval)


class Waits:
    """Waits for ever for one of its items, and catches every exception meanwhile."""

    num_classes = 2

    def __init__(self, item: int) -> None:
        self.item = item

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> tuple[Any, int]:
        if i == self.item:
            try:
                threading.Event().wait()
            except Exception:
                return self[0]
        return np.float32([i, i % 3]), i % 2


@pytest.mark.parametrize("on_corrupt", ["error", "skip"])
def test_a_sample_that_hangs_at_the_start_ends_the_run_and_is_named(
    on_corrupt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no corrupt sample either, which might be left out: the next one may hang, too."""
    monkeypatch.chdir(tmp_path)
    config = {"data": {"timeout": 0.05, "on_corrupt": on_corrupt}, "model": "mlp"}
    with pytest.raises(DataError, match=r"train dataset: item 7 hangs: .* 0\.05 s .*, at \S+:\d+; resume"):
        trainwright.train(config, data={"train": Waits(7), "val": Waits(-1)})
    assert trainwright.list_runs() == []


def items(seconds: float = 0.05) -> Items:
    return Items(Waits(7), Reading("the train dataset", timeout=seconds), "target")


def test_each_sample_has_the_whole_time_and_the_timer_is_put_back() -> None:
    handler = signal.getsignal(signal.SIGALRM)
    assert len(items(1.0).take(np.arange(7))["features"]) == 7
    with pytest.raises(DataError, match="item 7 hangs"):
        items().take(np.arange(5, 9))
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is handler


def test_a_timer_of_somebody_else_is_left_alone() -> None:
    rung = threading.Event()
    before = signal.signal(signal.SIGALRM, lambda *_: rung.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 30.0)
        items().take(np.arange(7))
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 10
        assert not rung.is_set()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_other_threads_read_without_a_timer() -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(len(items().take(np.arange(7))["features"])))
    thread.start()
    thread.join()
    assert found == [7]


class Replaces(Waits):
    """Gives another item for one that cannot be read, whatever the reason."""

    def __getitem__(self, i: int) -> tuple[Any, int]:
        try:
            return super().__getitem__(i)
        except:  # noqa: E722 - the user's habit
            return super().__getitem__(0)


@pytest.mark.parametrize("ids", [[6, 7, 8], [7]])
def test_a_sample_that_stands_in_for_one_that_hangs_is_not_taken(ids: list[int]) -> None:
    reading = Reading("the train dataset", timeout=0.05)
    with pytest.raises(DataError, match="item 7 hangs"):
        Items(Replaces(7), reading, "target").take(np.array(ids))


class Limits(Waits):
    """Has a limit of its own to the time of an item, by the same signal."""

    def __init__(self, item: int) -> None:
        super().__init__(item)
        signal.signal(signal.SIGALRM, self.expired)

    def expired(self, *_: Any) -> None:
        raise TimeoutError("its own limit")

    def __getitem__(self, i: int) -> tuple[Any, int]:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        try:
            return super().__getitem__(i)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def test_a_data_set_keeps_a_limit_of_its_own() -> None:
    taken = Items(Limits(7), Reading("the train dataset", timeout=5), "target").take(np.array([7]))
    assert taken["features"].tolist() == [[0, 0]]
