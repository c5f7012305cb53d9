"""Epochs without their last, smaller batch, and cadences in epochs, in each framework of minibatches."""

from pathlib import Path
from typing import Any

import pytest

import trainwright
from late import keras_in_one_thread
from small_runs import SMALL, assert_same, checkpoints, whole_and_resumed
from trainwright.errors import ConfigError
from trainwright.records.journal import evaluations, losses, read

# 120 training rows: 7 whole batches of 16, and 8 rows that are left out.
OVERRIDES: dict[str, Any] = {
    "training.epochs": 4,
    "training.max_steps": None,
    "training.drop_last": True,
    "evaluation.every_n_steps": None,
    "evaluation.every_n_epochs": 3,
    "checkpoint.every_n_steps": None,
    "checkpoint.every_n_epochs": 1,
    "checkpoint.keep_last": 9,
    "checkpoint.save_top_k": 0,
}
MODELS: dict[str, dict[str, Any]] = {
    "torch": {},
    "virtual ranks": {"distributed.virtual.data": 4},
    "sklearn": {"model": {"type": "sklearn_mlp"}},
    "keras": {"model": {"type": "keras_mlp", "params": {"hidden": [8]}}},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_resumed_run_has_the_steps_and_the_bits_of_the_whole_one(name: str, tmp_path: Path) -> None:
    if name == "keras":
        keras_in_one_thread()
    whole, resumed = whole_and_resumed(tmp_path, {**OVERRIDES, **MODELS[name]}, at=17)
    assert_same(resumed, whole)
    assert (whole.result["steps"], whole.result["epochs"]) == (28, 4.0)
    records = list(read(whole.path / "journal"))
    assert list(losses(records)) == list(range(1, 29))
    assert sorted({step for step, _ in evaluations(records)}) == [21, 28]
    assert [int(folder.name.split("-")[1]) for folder in checkpoints(whole)] == [7, 14, 21, 28]


def test_a_fork_within_an_epoch_repeats_the_bits(tmp_path: Path) -> None:
    run = trainwright.train(SMALL, OVERRIDES, runs_dir=tmp_path)
    assert trainwright.fork(run, step=10).digest == run.digest
    # From step 10 on, 48 rows of the second epoch are consumed: 72 are left.
    other = trainwright.fork(run, {"training.batch_size": 20}, step=10)
    assert other.result["steps"] == 10 + 72 // 20 + 2 * (120 // 20)
    kept = trainwright.fork(run, {"training.drop_last": False}, step=10)
    assert kept.result["steps"] == 10 + -(-72 // 16) + 2 * -(-120 // 16)


def test_it_has_no_effect_where_steps_use_all_rows() -> None:
    config = {"data": "iris", "model": "xgboost", "training": {"drop_last": True}}
    assert any("training.drop_last has no effect" in line for line in trainwright.check(config).unused)


def test_two_cadences_of_evaluations_are_refused() -> None:
    config = {"data": "iris", "model": "mlp", "evaluation": {"every_n_steps": 5, "every_n_epochs": 2}}
    with pytest.raises(ConfigError, match="both every_n_steps and every_n_epochs are given"):
        trainwright.check(config)
