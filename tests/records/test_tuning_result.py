"""The result of a search: read as a record, written with the fields that were set."""

import pytest

from trainwright.errors import CheckpointError
from trainwright.records.tuning_result import BestTrial, TuningResult

PLAIN = {
    "metric": "val_rmse",
    "mode": "min",
    "trials": 2,
    "counts": {"completed": 1, "pruned": 1, "failed": 0},
    "best": {"trial": 1, "run_id": "a", "value": 0.5, "step": 9, "params": {"model.hidden": [8, 4]}},
    "digest": "d",
    "train_seconds": 1.5,
}


def test_what_was_set_is_written() -> None:
    best = BestTrial(trial=1, run_id="a", value=0.5, step=9, params={"model.hidden": [8, 4]})
    counts = {"completed": 1, "pruned": 1, "failed": 0}
    result = TuningResult(
        metric="val_rmse", mode="min", trials=2, counts=counts, best=best, digest="d", train_seconds=1.5
    )
    assert result.written() == PLAIN
    assert list(result.written()) == list(PLAIN)


def test_a_file_is_read_with_what_it_lacks_and_what_is_not_known() -> None:
    result = TuningResult.of(PLAIN | {"status": "completed", "later": 1})
    assert result.best is not None
    assert (result.best.value, result.best.digest, result.front, result.order) == (0.5, None, None, "horizon")
    assert TuningResult.of({}).best is None, "before the end"


def test_a_damaged_file_is_named_by_its_key() -> None:
    with pytest.raises(CheckpointError, match=r"damaged: best\.trial"):
        TuningResult.of(PLAIN | {"best": {"value": 1.0}})
