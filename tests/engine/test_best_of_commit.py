"""A checkpoint is whole only with the best models that it needs."""

from pathlib import Path

import pytest
from scripted import Weights, checkpoints_of

from small_runs import flip
from trainwright.engine.checkpoint import Checkpoints, RunCheckpoints
from trainwright.storage.lease import Lease
from trainwright.storage.log import Log, committed
from trainwright.stores.local import LocalStore


@pytest.mark.parametrize("damage", ["flipped", "gone", "none"])
def test_a_checkpoint_with_a_damaged_best_model_is_passed_over(damage: str, tmp_path: Path) -> None:
    checkpoints = checkpoints_of(tmp_path)
    for step, best in ((10, 7), (20, 14)):
        checkpoints.best.commit(best, Weights(best))
        checkpoints.resume.commit(step, Weights(step), {"step": step}, frozenset({best}))
    folder = tmp_path / "best" / "step-000000014-a0001"
    if damage == "flipped":
        flip(folder / "weights.safetensors")
    elif damage == "gone":
        checkpoints.best.delete(folder.name)
    commit, complaints = checkpoints.newest()
    if damage == "none":
        assert (commit.step, set(commit.best), complaints) == (20, {14}, [])
    else:
        assert (commit.step, set(commit.best), len(complaints)) == (10, {7}, 1)
        assert "step-000000020-a0001" in complaints[0]
        assert "best model of step 14" in complaints[0]


def test_a_best_model_that_lost_its_manifest_is_not_named_in_the_log(tmp_path: Path) -> None:
    """A kill leaves such a one, in the middle of its deletion: the newest entry of the log has it still."""
    store = LocalStore(tmp_path)
    checkpoints = checkpoints_of(tmp_path)
    names = [checkpoints.best.commit(step, Weights(step)).name for step in (7, 14)]
    store.delete(f"best/{names[0]}/manifest.json")
    assert list((tmp_path / "best" / names[0]).iterdir())
    lease = Lease(Log(store), 0, 1)
    lease.take([], names)
    best = Checkpoints(store, "best", 1, committed=names)
    RunCheckpoints(checkpoints.resume, best, lease).publish(["step-000000020-a0001"])
    assert committed(store, "best") == {names[1]}
    assert committed(store, "checkpoints") == {"step-000000020-a0001"}
    lease.release()


def test_where_no_checkpoint_is_whole_all_are_named(tmp_path: Path) -> None:
    checkpoints = checkpoints_of(tmp_path)
    for step in (10, 20):
        checkpoints.resume.commit(step, Weights(step), {"step": step}, frozenset({7}))
    commit, complaints = checkpoints.newest()
    assert commit is None
    assert [complaint.split()[1] for complaint in complaints] == [
        "step-000000020-a0001",
        "step-000000010-a0001",
    ]
