"""Runs whose data are in a store: the bits of local data, also where a run goes on with nothing but the URL."""

from pathlib import Path
from typing import Any

import pytest

import trainwright
from small_runs import SMALL, assert_same, preempted
from trainwright.errors import ChangedInputsError
from trainwright.storage.urls import open_store


@pytest.fixture
def iris(tmp_path: Path) -> Path:
    from sklearn.datasets import load_iris

    file = tmp_path / "iris.csv"
    load_iris(as_frame=True).frame.to_csv(file, index=False)
    return file


@pytest.mark.slow
@pytest.mark.parametrize("service", ["bucket", "gs_bucket", "az_container"])
def test_a_run_and_its_data_in_a_store_are_resumed_from_the_url_alone(
    service: str, request: Any, iris: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = request.getfixturevalue(service)
    open_store(url).put("data/iris.csv", iris)
    data = {"data.type": "csv", "data.path": f"{url}/data/iris.csv"}
    whole = trainwright.train(SMALL, data | {"data.path": str(iris)}, runs_dir=tmp_path / "whole")
    iris.unlink()
    run = preempted(f"{url}/runs", data)  # type: ignore[arg-type]
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "elsewhere"))
    resumed = trainwright.resume(f"{url}/runs/{run.experiment}/{run.id}")
    assert_same(resumed, whole)
    assert (tmp_path / "elsewhere" / "data").is_dir()
    url_of_rows = f"{url}/data/iris.csv"
    assert len(trainwright.predict(resumed, url_of_rows)) == 150
    assert trainwright.evaluate(resumed, data=url_of_rows)["test_accuracy"] > 0.5


@pytest.mark.slow
def test_data_that_changed_in_the_store_are_changed_data(bucket: str, iris: Path, tmp_path: Path) -> None:
    open_store(bucket).put("data/iris.csv", iris)
    run = preempted(tmp_path / "runs", {"data.type": "csv", "data.path": f"{bucket}/data/iris.csv"})
    iris.write_text(iris.read_text().replace("5.1,3.5", "5.2,3.5", 1))
    open_store(bucket).put("data/iris.csv", iris)
    with pytest.raises(ChangedInputsError, match="data"):
        trainwright.resume(run)
