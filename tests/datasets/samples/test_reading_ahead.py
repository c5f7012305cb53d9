"""Samples that worker processes read, and the random numbers that each sample draws."""

import json
import os
import random
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainwright
from small_runs import SMALL, assert_same, preempted, whole_and_resumed
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import SampleSplit
from trainwright.datasets.samples.objects import from_objects
from trainwright.errors import DataError, InputError, ModelError, TrainingError
from trainwright.frameworks.support.prefetcher import Prefetcher, Samples
from trainwright.frameworks.torch.data import TensorSource
from trainwright.order import SAMPLE, stream_seed

MAIN = os.getpid()


class Drawn:
    """A map-style data set whose samples are augmented with the generators of Python, NumPy and torch."""

    classes = (0, 1)

    def __init__(self, count: int = 60) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[Any, int]:
        noise = torch.rand(2).numpy() + np.float32(random.random()) + np.float32(np.random.rand())
        return np.array([i % 5, i % 2], np.float32) + noise, i % 2


class Faulty(Drawn):
    """A data set in which something happens to item 5, where a worker reads it."""

    def __init__(self, happens: Callable[[], Any]) -> None:
        super().__init__()
        self.happens = happens

    def __getitem__(self, i: int) -> tuple[Any, int]:
        if i == 5 and os.getpid() != MAIN:
            self.happens()
        return np.full(2, i, np.float32), i % 2


def split_of(dataset: Any, **settings: Any) -> SampleSplit:
    split = from_objects({"train": dataset}, DataConfig(**settings)).splits["train"]
    assert isinstance(split, SampleSplit)
    return split


@contextmanager
def reading(dataset: Any, *parts: Samples, **settings: Any) -> Iterator[Prefetcher]:
    """Has the parts read ahead."""

    def copied(batch: Any) -> Any:
        return {name: array.copy() for name, array in batch.items()}

    ahead = Prefetcher(split_of(dataset, **settings), 11, copied)
    try:
        ahead.expect(iter(parts))
        yield ahead
    finally:
        ahead.close()


def samples(*ids: int, epoch: int | None = 0) -> Samples:
    return Samples(np.array(ids, np.int64), epoch)


def by_hand(i: int, epoch: int) -> Any:
    """An item, with all generators seeded as the documentation says."""
    seed = stream_seed(11, SAMPLE, epoch + 1, i)
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
    torch.manual_seed(seed & 0xFFFFFFFF)
    return Drawn()[i][0]


def test_a_sample_draws_by_seed_epoch_and_position_alone() -> None:
    wanted = {(i, epoch): by_hand(i, epoch) for i in (3, 8, 9) for epoch in (0, 1)}
    parts = [samples(3, 8), samples(9), samples(9, 8, 3, epoch=1)]
    for workers in (0, 2):
        with reading(Drawn(), *parts, workers=workers) as ahead:
            state = random.getstate(), torch.get_rng_state()
            for one in (parts[2], parts[0], parts[1]):  # as in lockstep, not in order
                got = ahead.take(one)["features"]
                np.testing.assert_array_equal(got, [wanted[int(i), one.epoch or 0] for i in one.ids])
            assert random.getstate() == state[0]
            assert torch.equal(torch.get_rng_state(), state[1])


def test_draws_that_leave_no_trace_in_the_generators_are_noticed() -> None:
    class Forked(Drawn):
        def __getitem__(self, i: int) -> tuple[Any, int]:
            with torch.random.fork_rng(devices=[]):
                return torch.rand(3).numpy(), i % 2

    parts = [samples(3, 8), samples(8, 3, epoch=1)]
    wanted = []
    for one in parts:
        for i in one.ids.tolist():
            torch.manual_seed(stream_seed(11, SAMPLE, (one.epoch or 0) + 1, i) & 0xFFFFFFFF)
            wanted.append(torch.rand(3).numpy())
    for workers in (0, 2):
        torch.manual_seed(workers)
        with reading(Forked(), *parts, workers=workers) as ahead:
            got = np.concatenate([ahead.take(one)["features"] for one in parts])
        np.testing.assert_array_equal(got, wanted)
    assert len({(torch.manual_seed(i), split_of(Forked()).fingerprint())[1] for i in range(2)}) == 1


class Counting(Drawn):
    """A data set that returns other items each time."""

    reads = 0

    def __getitem__(self, i: int) -> tuple[Any, int]:
        Counting.reads += 1
        return np.array([self.reads, i % 2], np.float32), i % 2


def test_samples_that_are_other_ones_each_time_lower_the_tier(tmp_path: Path) -> None:
    reason = "the train dataset returns different items when it is read again"
    config = {"model": {"type": "mlp", "hidden": [2]}, "training": {"max_steps": 1, "threads": 1}}
    run = trainwright.train(config, data=(Counting(), Drawn()), runs_dir=tmp_path)
    manifest = json.loads((run.path / "manifest.json").read_text())
    assert manifest["determinism"] == {"tier": "statistical", "reason": reason}
    with pytest.raises(InputError, match=f"bitwise was requested, but this run gives statistical: {reason}"):
        trainwright.train(
            config, {"training.determinism": "bitwise"}, data=(Counting(), Drawn()), runs_dir=tmp_path
        )


def test_a_data_set_that_reads_several_at_once_draws_the_same() -> None:
    class AtOnce(Drawn):
        def __getitems__(self, ids: list[int]) -> list[Any]:
            return [self[i] for i in ids]

    with reading(AtOnce()) as ahead:
        np.testing.assert_array_equal(ahead.take(samples(4, 7))["features"], [by_hand(4, 0), by_hand(7, 0)])


def test_what_was_not_expected_is_read_all_the_same_and_batches_of_any_size_arrive() -> None:
    class Wide(Drawn):
        def __getitem__(self, i: int) -> tuple[Any, int]:
            return np.full((1 + 3000 * (i > 3),), i, np.float32), i % 2

    parts = [samples(0, 1), samples(4, 5, 6), samples(2, 3)]
    with reading(Wide(), *parts, workers=1) as ahead:
        assert ahead.take(samples(7))["features"].shape == (1, 3001)
        for one in parts:
            got = ahead.take(one)["features"]
            assert got.shape == (len(one.ids), 1 if one.ids[0] < 4 else 3001)
            assert (got == one.ids[:, None]).all()


@pytest.mark.timeout(60)
def test_large_requests_and_answers_that_no_slot_holds_pass_each_other() -> None:
    class Padded(Drawn):
        """Items that are longer in a batch than alone."""

        def __getitems__(self, ids: list[int]) -> list[Any]:
            return [(np.full(1 if len(ids) == 1 else 8, ids[0], np.float32), 0)] * len(ids)

        def __getitem__(self, i: int) -> tuple[Any, int]:
            return self.__getitems__([i])[0]

    parts = [samples(*[first] * 30_000) for first in (3, 5)]  # 240 kB of ids, 960 kB of samples
    with reading(Padded(), *parts, workers=1, prefetch=2) as ahead:
        for one in parts:
            features = ahead.take(one)["features"]
            assert features.shape == (30_000, 8)
            assert (features == one.ids[0]).all()


@pytest.mark.parametrize("how", ["dies", "hangs", "raises"])
def test_a_worker_that_dies_or_hangs_is_named_with_its_sample(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    def raises() -> None:
        raise ValueError("bad block")

    happens: dict[str, Callable[[], Any]] = {
        "dies": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "hangs": threading.Event().wait,
        "raises": raises,
    }
    messages = {
        "dies": r"data worker 0 \(pid \d+\) was killed by SIGKILL while it read item 5 of the train dataset",
        "hangs": r"hangs: it has read item 5 of the train dataset for \d+ s \(data.timeout: 1\), in File "
        r'".*threading.py", line \d+ in wait; resume',
        "raises": "the train dataset: item 5 cannot be read: ValueError: bad block",
    }
    kind = DataError if how == "raises" else TrainingError
    parts = [samples(1, 2), samples(4, 5, 6)]
    with reading(Faulty(happens[how]), *parts, workers=1, timeout=1.0) as ahead:
        assert ahead.take(parts[0])["features"][:, 0].tolist() == [1, 2]
        with pytest.raises(kind, match=messages[how]) as caught:
            ahead.take(parts[1])
    if how == "hangs":
        assert "test_reading_ahead.py" in caplog.text  # the whole stack
    if how == "raises":
        assert any("test_reading_ahead.py" in note for note in caught.value.__notes__)


def test_a_slow_sample_is_no_hang_while_others_come() -> None:
    class Slow(Drawn):
        def __getitem__(self, i: int) -> tuple[Any, int]:
            if os.getpid() != MAIN:
                threading.Event().wait(0.5)
            return np.full(2, i, np.float32), i % 2

    one = samples(0, 1, 2, 3)
    with reading(Slow(), one, workers=1, timeout=1.0) as ahead:
        assert ahead.take(one)["features"][:, 0].tolist() == [0, 1, 2, 3]


def test_workers_end_with_their_reader() -> None:
    class Writing(Drawn):
        def __getitem__(self, i: int) -> tuple[Any, int]:
            return np.array([os.getpid(), 0], np.float64), i % 2

    one, two = samples(0), samples(1)
    with reading(Writing(), one, two, workers=2) as ahead:
        pids = {int(ahead.take(each)["features"][0, 0]) for each in (one, two)}
    assert len(pids) == 2
    assert MAIN not in pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_end_with_the_process_that_trains() -> None:
    class Telling(Drawn):
        def __getitem__(self, i: int) -> tuple[Any, int]:
            return np.array([os.getpid(), 0], np.float64), i % 2

    ours, theirs = os.pipe()
    if not (child := os.fork()):
        one = samples(0)
        with reading(Telling(), one, workers=1) as ahead:
            os.write(theirs, str(int(ahead.take(one)["features"][0, 0])).encode())
            signal.pause()
    worker = os.pidfd_open(int(os.read(ours, 20)))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert select.select([worker], [], [], 30)[0], "it lives"
    for file in (ours, theirs, worker):
        os.close(file)


def padded_together(samples: list[Any]) -> dict[str, Any]:
    """Collate: pad to the longest sample of the batch."""
    longest = max(len(features) for features, _ in samples)
    padded = np.zeros((len(samples), longest), np.float32)
    for row, (features, _) in zip(padded, samples, strict=True):
        row[: len(features)] = features
    return {"padded": padded + np.float32(random.random()), "target": [target for _, target in samples]}


def test_collate_makes_batches_of_the_samples() -> None:
    class Ragged(Drawn):
        def __getitem__(self, i: int) -> tuple[Any, int]:
            return np.full(1 + i % 3, i, np.float32), i % 2

    with reading(Ragged(), collate="test_reading_ahead:padded_together") as ahead:
        batch = ahead.take(samples(1, 5, 4))
    random.seed(stream_seed(11, SAMPLE, 1, 1))
    drawn = np.float32(random.random())
    np.testing.assert_array_equal(
        batch["padded"], np.array([[1, 1, 0], [5, 5, 5], [4, 4, 0]], np.float32) + drawn
    )
    assert batch["target"].tolist() == [1, 1, 0]
    with pytest.raises(DataError, match=r"data\.collate: 'test_reading_ahead:MAIN' is int; name a function"):
        split_of(Ragged(), collate="test_reading_ahead:MAIN")


@pytest.mark.slow
def test_the_number_of_workers_changes_no_bit_and_a_resume_is_exact(tmp_path: Path) -> None:
    data = {"train": Drawn(), "val": Drawn(20)}
    whole, resumed = whole_and_resumed(tmp_path, {"data": {"workers": 2}}, data=data)
    assert_same(resumed, whole)
    alone = trainwright.train(SMALL, {"data": {"workers": 0}}, data=data, runs_dir=tmp_path)
    assert_same(alone, whole)


@pytest.mark.parametrize("again", ["resume", "train"])
def test_a_run_may_go_on_without_workers(again: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"training.max_steps": 6, "evaluation.every_n_steps": None, "data": {"workers": 1}}
    run = preempted(tmp_path, short, at=3, data={"train": Drawn()})
    without = short | {"data": {"workers": 0, "timeout": 9.0}}
    monkeypatch.setattr(Prefetcher, "_started", None)  # which starts workers
    if again == "resume":
        run = trainwright.resume(run, {"data.workers": 0, "data.timeout": 9.0}, data={"train": Drawn()})
    else:
        run = trainwright.train(SMALL, without, runs_dir=tmp_path, resume=True, data={"train": Drawn()})
    assert (run.status, run.result["determinism"]["tier"]) == ("completed", "bitwise")


def test_text_for_a_model_of_torch_is_refused_by_its_name() -> None:
    class Named(Drawn):
        def __getitem__(self, i: int) -> Any:
            return {"features": np.ones(2, np.float32), "name": f"row {i}", "target": i % 2}

    with reading(Named()) as ahead, pytest.raises(DataError, match=r"name given as <U5, shape \(2,\)"):
        TensorSource(ahead._split, torch.device("cpu")).take(np.arange(2))


def test_settings_that_have_no_effect_are_said_or_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one_step, rows = {"training.max_steps": 1, "data.type": ""}, (np.ones((20, 2)), np.arange(20) % 2)
    trainwright.train(SMALL, {**one_step, "data.workers": 2}, data=rows, runs_dir=tmp_path)
    assert "data.workers: 2 has no effect, as the rows are in memory" in caplog.text
    with pytest.raises(DataError, match=r"data\.collate is for map-style data sets"):
        trainwright.train(
            SMALL,
            {**one_step, "data.collate": "test_reading_ahead:padded_together"},
            data=rows,
            runs_dir=tmp_path,
        )
    forest = {"data": {"workers": 2}, "model": {"type": "random_forest"}}
    with pytest.raises(
        ModelError, match=r"data\.workers: 2 given, but random_forest reads its samples itself"
    ):
        trainwright.train(forest, data={"train": Drawn()}, runs_dir=tmp_path)
