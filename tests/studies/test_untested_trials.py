"""The test split of a search: only its best model is evaluated on it, once."""

from pathlib import Path
from typing import Any

import pytest

import trainwright
from small_runs import SMALL
from trainwright.cli.studies import study_summary
from trainwright.studies.tuning import tune as tuning
from trainwright.studies.tuning.tuning_view import Tuning

SEARCH: dict[str, Any] = {
    **SMALL,
    "tuning": {
        "metric": "val_loss",
        "trials": 3,
        "sampler": "random",
        "space": {"training.learning_rate": {"low": 1e-3, "high": 0.1}},
    },
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    return trainwright.tune(SEARCH, runs_dir=tmp_path_factory.mktemp("runs"))


def test_only_the_best_trial_is_evaluated_on_the_test_split(study: Tuning) -> None:
    runs_dir = study.path.parent.parent
    runs = trainwright.list_runs(runs_dir)
    assert len(runs) == 3
    assert not any(name.startswith("test_") for run in runs for name in run.metrics)
    assert all("val_loss" in run.metrics for run in runs)
    best = study.result["best"]
    alone = trainwright.train(study.best_config, runs_dir=runs_dir)
    assert best["metrics"] == {name: one for name, one in alone.metrics.items() if name.startswith("test_")}
    assert alone.result["digest"] == study.best_run.result["digest"], "what is evaluated changes no weights"
    text = "\n".join(study_summary(study))
    assert "test_accuracy" in text
    assert "only the best model is tested" in (study.path / "report.html").read_text(encoding="utf-8")


def test_a_search_that_goes_on_looks_at_the_test_split_once(
    study: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = trainwright.tune(SEARCH, runs_dir=tmp_path)
    assert first.result["best"] == {**study.result["best"], "run_id": first.best_run.id}
    monkeypatch.setattr(tuning, "predicted", lambda *_: pytest.fail("it was evaluated already"))
    again = trainwright.tune(SEARCH, runs_dir=tmp_path, resume=True)
    assert again.result["best"] == first.result["best"]


def test_a_trial_is_compared_reproduced_and_reported(study: Tuning) -> None:
    runs_dir = study.path.parent.parent
    first, second, *_ = [run for run in trainwright.list_runs(runs_dir) if not run.metrics.get("test_loss")]
    compared = trainwright.compare(first.id, second.id, runs_dir=runs_dir)
    assert {test.metric for test in compared.tests} >= {"accuracy"}, compared.untested
    assert trainwright.reproduce(first.id, runs_dir=runs_dir).verdict == "identical"
    assert "val_loss" in trainwright.report(first.id, runs_dir=runs_dir).read_text(encoding="utf-8")


def test_a_trial_is_not_taken_for_a_run_that_was_tested(study: Tuning) -> None:
    runs_dir = study.path.parent.parent
    assert "test_loss" in trainwright.train(study.best_config, runs_dir=runs_dir, reuse=True).metrics
