"""The noise of the rows, which is all that two single runs tell."""

from pathlib import Path
from typing import Any

import pytest

import trainwright
from trainwright.studies.why.why import Why

RIDGE: dict[str, Any] = {
    "experiment": {"name": "rows"},
    "data": {"type": "diabetes"},
    "model": {"type": "sgd_regressor"},
    "training": {"threads": 1},
}


def asked(tmp_path: Path, **changes: Any) -> Why:
    runs = [
        trainwright.train(RIDGE, overrides, runs_dir=tmp_path)
        for overrides in ({}, {"model.params.alpha": 10.0, **changes})
    ]
    return trainwright.why(*[run.id for run in runs], metric="test_mae", max_runs=1, runs_dir=tmp_path)


def test_it_says_how_sure_the_rows_are(tmp_path: Path) -> None:
    study = asked(tmp_path)
    rows = study.result["rows"]
    before, after = study.result["before"], study.result["after"]
    assert (rows["metric"], rows["split"]) == ("mae", "test")
    assert rows["effect"] == pytest.approx(after - before, rel=1e-6)
    assert rows["low"] <= rows["effect"] <= rows["high"]
    assert study.answer is not None
    assert f"only their {rows['pairs']} test rows tell of noise" in study.answer
    assert "What another seed would change is not known." in study.answer
    assert "95% interval" in (study.path / "report.html").read_text(encoding="utf-8")


def test_the_rows_have_a_noise_of_their_own_where_seeds_change_nothing(tmp_path: Path) -> None:
    config = RIDGE | {"model": {"type": "ridge"}}
    runs = [
        trainwright.train(config, {"model.params.alpha": alpha}, runs_dir=tmp_path) for alpha in (1.0, 1.05)
    ]
    study = trainwright.why(*[run.id for run in runs], metric="test_mae", runs_dir=tmp_path)
    assert study.answer is not None
    assert "seeds change nothing here. The " in study.answer
    assert "test rows have a noise of their own: by a paired" in study.answer
    assert not study.result["rows"]["significant"]
    assert "within the noise of these rows. On other rows, the metric might not move." in study.answer


def test_it_says_that_it_cannot_tell(tmp_path: Path) -> None:
    study = asked(tmp_path, **{"data.split.seed": 5})
    assert "cannot be told whether this is noise" in str(study.answer)
    assert "untested" in study.result["rows"]
