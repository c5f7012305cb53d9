"""Training samples that are drawn with replacement, by weights."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import trainwright
from small_runs import SMALL, assert_same, whole_and_resumed
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import Draw, SampleSplit
from trainwright.datasets.samples.objects import from_objects
from trainwright.errors import DataError, InputError, ModelError
from trainwright.order import EPOCH, SAMPLE, WeightedDraws, stream_seed
from trainwright.records.journal import losses, read


class Numbers:
    """A map-style data set: item i has a target from i to i + 1, drawn at random, and counts by `i % 4`."""

    def __init__(self, count: int = 60) -> None:
        self.often = np.arange(count) % 4

    def __len__(self) -> int:
        return len(self.often)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        return np.ones(1, np.float32), np.float32(i + np.random.rand())


class Zero(torch.nn.Module):
    """Predicts 0, so that the loss of a step is the mean square of its targets."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.zeros(1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.factor * features


class Drawn:
    """A map-style data set of a few of class 1, whose samples are augmented."""

    targets = tuple(int(i % 10 == 0) for i in range(60))

    def __len__(self) -> int:
        return 60

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return np.array([i % 5, random.random()], np.float32), self.targets[i]


def settings(**sampling: Any) -> dict[str, Any]:
    return {
        "data": {"sampling": sampling},
        "training": {"max_steps": 12, "batch_size": 8, "learning_rate": 1e-30, "threads": 1},
        "logging": {"every_n_steps": 1},
    }


def test_the_loss_of_each_step_is_that_of_the_drawn_samples(tmp_path: Path) -> None:
    config = settings(weight="often", num_samples=20)
    run = trainwright.train(config, model=Zero(), data={"train": Numbers()}, runs_dir=tmp_path)
    draws = WeightedDraws((np.arange(60) % 4).astype(float))
    wanted = {}
    for step in range(12):  # 3 steps in an epoch of 20 draws
        epoch, first = step // 3, step % 3 * 8
        ids = draws.at(stream_seed(0, EPOCH, epoch), first, min(first + 8, 20))
        assert (ids % 4).all()
        seeds = [stream_seed(0, SAMPLE, epoch + 1, i, first + at) for at, i in enumerate(ids.tolist())]
        shares = [np.random.RandomState([seed & 0xFFFFFFFF, seed >> 32]).rand() for seed in seeds]
        wanted[step + 1] = pytest.approx(float(((ids + shares) ** 2).mean()), rel=1e-5)
    assert losses(read(run.path / "journal")) == wanted
    assert run.result["epochs"] == 4


def test_balanced_draws_each_class_as_often() -> None:
    split = from_objects({"train": Drawn()}, DataConfig(**settings(weight="balanced")["data"]))
    assert split.sampling is not None
    counts = np.bincount(Drawn.targets)
    np.testing.assert_array_equal(split.sampling, [1 / counts[one] for one in Drawn.targets])


def test_a_sample_that_is_drawn_twice_is_augmented_in_two_ways() -> None:
    split = from_objects({"train": Drawn()}).splits["train"]
    assert isinstance(split, SampleSplit)
    ids = np.array([7, 3, 7])
    wanted = []
    for number, i in zip((20, 21, 22), ids.tolist(), strict=True):
        seed = stream_seed(5, SAMPLE, 3, i, number)
        random.seed(seed)
        wanted.append(np.float32(random.random()))
    got = split.read(ids, Draw(5, 2, np.array([20, 21, 22])))["features"][:, 1]
    assert got.tolist() == wanted
    assert len(set(wanted)) == 3


def test_a_resume_within_an_epoch_comes_to_the_same_bits(tmp_path: Path) -> None:
    whole, resumed = whole_and_resumed(tmp_path, {"data.sampling": "balanced"})
    assert_same(resumed, whole)
    other = trainwright.train(SMALL, {"training.max_steps": 1}, runs_dir=tmp_path / "other")
    assert other.digest != whole.digest


@pytest.mark.soak
def test_workers_parts_and_a_resume_change_no_bit(tmp_path: Path) -> None:
    config = {"data": {"sampling": "balanced"}, "training.microbatch_size": 5, "distributed.virtual.data": 2}
    data = {"train": Drawn(), "val": Drawn()}
    workers = {**config, "data": {"sampling": "balanced", "workers": 2}}
    without_data = {key: value for key, value in SMALL.items() if key != "data"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("small_runs.SMALL", without_data)
        whole, resumed = whole_and_resumed(tmp_path, workers, data=data)
    assert_same(resumed, whole)
    plain = trainwright.train(without_data, config, data=data, runs_dir=tmp_path / "plain")
    assert plain.digest == whole.digest


def table(**columns: Any) -> pd.DataFrame:
    rows = np.arange(80)
    return pd.DataFrame({"x": rows % 7, "y": rows % 2, "w": rows.astype(float), **columns})


def drawn_from(data: Any, **sampling: Any) -> Any:
    return from_objects(data, DataConfig(target="y", sampling=sampling))


def test_a_column_of_weights_is_no_feature_and_is_divided_with_the_rows() -> None:
    bundle = drawn_from(table(), weight="w")
    assert list(bundle.info.feature_names) == ["x"]
    np.testing.assert_array_equal(bundle.sampling, bundle.rows["train"])
    arrays = {"x": np.zeros((80, 2, 3), np.float32), "y": np.arange(80) % 2, "w": np.arange(80)}
    bundle = drawn_from(arrays, weight="w")
    assert list(bundle.info.inputs) == ["x"]
    np.testing.assert_array_equal(bundle.sampling, bundle.rows["train"])


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    for column, message in (
        (np.full(80, -1.0), "is negative"),
        (np.zeros(80), "is 0 in all 64 training rows"),
        (["a"] * 80, "holds text values"),
    ):
        with pytest.raises(DataError, match=message):
            drawn_from(table(w=column), weight="w")
    with pytest.raises(DataError, match=r"data\.sampling\.weight: there is no column 'v'"):
        drawn_from(table(), weight="v")
    with pytest.raises(DataError, match=r"the train dataset has no 'v'"):
        from_objects({"train": Drawn()}, DataConfig(**settings(weight="v")["data"]))
    whole = {"data": {"type": "iris", "sampling": "balanced"}, "model": "random_forest"}
    with pytest.raises(ModelError, match=r"data\.sampling: a step of random_forest uses all training rows"):
        trainwright.train(whole, runs_dir=tmp_path)
    values = {"data": {"type": "diabetes", "sampling": "balanced"}, "model": "mlp"}
    with pytest.raises(
        InputError, match=r"balanced draws each class as often, but these data \(regression\)"
    ):
        trainwright.train(values, runs_dir=tmp_path)
    few = {"data": {"type": "iris", "sampling": {"weight": "balanced", "num_samples": 4}}, "model": "mlp"}
    with pytest.raises(InputError, match=r"num_samples: 4 given, but training\.batch_size is 32"):
        trainwright.train(few, runs_dir=tmp_path)


@pytest.mark.soak
def test_a_fork_that_draws_otherwise_begins_an_epoch(tmp_path: Path) -> None:
    run = trainwright.train(SMALL, {"training.max_steps": 12}, runs_dir=tmp_path)
    overrides = {"data.sampling": {"weight": "balanced", "num_samples": 40}, "training.max_steps": 16}
    fork = trainwright.fork(run, overrides=overrides, step=10)
    assert fork.status == "completed"
    assert fork.result["epochs"] == 2  # 6 steps, of which each epoch has 3
