"""Forks of each kind of state, at three steps, killed and reproduced."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import trainwright
from small_runs import SMALL, Crash, CrashAt, every_save_on_disk

NEURAL = {"max_steps": 40, "batch_size": 16, "learning_rate": 0.01, "threads": 1}
ROUNDS = {"epochs": 40, "threads": 1}
CONFIGS: dict[str, dict[str, Any]] = {
    "torch": {},
    "xgboost": {"model": {"type": "xgboost", "params": {"max_depth": 2}}, "training": ROUNDS},
    "lightgbm": {"model": {"type": "lightgbm", "params": {"num_leaves": 4}}, "training": ROUNDS},
    "sklearn": {"model": {"type": "sklearn.linear_model:SGDClassifier"}, "training": NEURAL},
}
OTHER = {
    "torch": {"training.learning_rate": 0.002, "training.batch_size": 9, "training.max_steps": 60},
    "xgboost": {"model.params.learning_rate": 0.05, "training.epochs": 60},
    "lightgbm": {"model.params.num_leaves": 3, "training.epochs": 60},
    "sklearn": {"model.params.alpha": 0.01, "training.batch_size": 9, "training.max_steps": 60},
}


@pytest.mark.parametrize("step", [35, 38, 7])
@pytest.mark.parametrize("framework", CONFIGS)
def test_a_fork_is_reproduced(framework: str, step: int, tmp_path: Path) -> None:
    """At a checkpoint that is kept, after one, and before each; in one piece, and killed on its way."""
    config = {**SMALL, "training": NEURAL, **CONFIGS[framework]}
    with every_save_on_disk():
        parent = trainwright.train(config, runs_dir=tmp_path)
    child = trainwright.fork(parent, OTHER[framework], step=step)
    assert child.manifest["initial"]["checkpoint_step"] == {35: 35, 38: 35, 7: 0}[step]
    assert trainwright.reproduce(child).verdict == "identical"
    with pytest.raises(Crash):
        trainwright.fork(parent, OTHER[framework], step=step, callbacks=[CrashAt(step + 4)])
    shutil.rmtree(parent.path)
    died = trainwright.resume("last", runs_dir=tmp_path)
    assert died.status == "completed"
    assert (died.digest, died.metrics) == (child.digest, child.metrics)
