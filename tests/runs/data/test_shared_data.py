"""Data that the runs of a study share: read once, the same as read alone, and read again if they change."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainwright
from trainwright.config import load as load_config
from trainwright.datasets.base import ArraySplit, DataBundle
from trainwright.datasets.csv import CsvDataset
from trainwright.datasets.samples.bundle_files import BundleFile, packed, write
from trainwright.datasets.samples.cache import LIMIT
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import read_trials
from trainwright.runs.catalog import Catalog
from trainwright.runs.data.identity import data_inputs
from trainwright.runs.data.shared import sharing_data
from trainwright.runs.wiring import load_data

ROWS = 90


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    write_table()


def write_table(seed: int = 0) -> None:
    """Write a table with numbers, gaps, categories, dates and identifiers."""
    rng = np.random.default_rng(seed)
    lines = ["customer_id,size,colour,seen,weight,bought"]
    for row in range(ROWS):
        size = "" if row % 11 == 0 else f"{rng.normal():.4f}"
        colour = rng.choice(["red", "green", ""])
        lines.append(
            f"k{row},{size},{colour},2026-01-{1 + row % 28:02d},{1 + row % 3},{'yes' if row % 2 else 'no'}"
        )
    Path("table.csv").write_text("\n".join(lines) + "\n")


def config(**data: Any) -> dict[str, Any]:
    table = {
        "type": "csv",
        "path": "table.csv",
        "target": "bought",
        "impute": "median",
        "weight": "weight",
        **data,
    }
    return {
        "experiment": {"name": "shared"},
        "data": table,
        "model": {"type": "mlp", "hidden": [4]},
        "training": {"max_steps": 4, "threads": 1},
        "evaluation": {"every_n_steps": 2},
    }


def loaded(**data: Any) -> DataBundle:
    resolved = load_config(config(**data), (), Catalog())
    return load_data(resolved.config)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the tables that are read."""
    paths: list[str] = []
    read = CsvDataset.read

    def noted(dataset: CsvDataset, path: str, text: Any = ()) -> Any:
        paths.append(path)
        return read(dataset, path, text)

    monkeypatch.setattr(CsvDataset, "read", noted)
    return paths


def arrays_of(bundle: DataBundle) -> dict[str, Any]:
    """Return all arrays of a bundle, by name."""
    found: dict[str, Any] = {}
    for name, split in bundle.splits.items():
        assert isinstance(split, ArraySplit)
        found |= {f"{name} {key}": array for key, array in split.arrays.items()}
    found |= {f"rows {name}": rows for name, rows in bundle.rows.items()}
    found |= {f"ids {name}": one.values for name, one in bundle.identifiers.items()}
    return found | ({} if bundle.sampling is None else {"sampling": bundle.sampling})


def assert_same(first: DataBundle, then: DataBundle) -> None:
    """Assert that two bundles are equal in all that they hold."""
    before, now = arrays_of(first), arrays_of(then)
    assert list(before) == list(now)
    for name, array in before.items():
        assert (array.dtype, array.shape, array.tolist()) == (
            now[name].dtype,
            now[name].shape,
            now[name].tolist(),
        )
    assert first.info == then.info
    assert (first.preparation is None) == (then.preparation is None)
    if first.preparation is not None and then.preparation is not None:
        assert first.preparation.to_json() == then.preparation.to_json()
    for name in ("columns", "content_hashed", "skips", "unrepeatable", "files"):
        assert getattr(first, name) == getattr(then, name), name
    for name in ("warnings", "skipped"):
        assert [*getattr(first, name)] == [*getattr(then, name)], name


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"encode": "target", "standardize": True},
        {"target": "size", "missing_target": "drop", "sampling": None},
        {"target": "colour", "sampling": "balanced", "missing_target": "drop"},
    ],
)
def test_shared_data_are_those_that_a_run_reads_alone(data: Mapping[str, Any], reads: list[str]) -> None:
    alone = loaded(**data)
    reads.clear()
    with sharing_data():
        first = loaded(**data)
        assert_same(alone, first)
        assert_same(alone, loaded(**data))
    with sharing_data():  # as another process
        assert_same(alone, loaded(**data))
    assert len(reads) == 1
    assert data_inputs(first) == data_inputs(alone)


def test_what_a_run_changes_in_its_arrays_no_other_sees() -> None:
    with sharing_data():
        first = loaded()
        before = {name: np.array(array) for name, array in arrays_of(first).items()}
        for array in arrays_of(first).values():
            array[:] = array[0]
        after = arrays_of(loaded())
    assert all(array.tolist() == before[name].tolist() for name, array in after.items())
    assert any((array != before[name]).any() for name, array in arrays_of(first).items())


def test_a_file_that_changes_is_read_again(reads: list[str]) -> None:
    with sharing_data():
        before = loaded().once(data_inputs).hash
        table = Path("table.csv")
        status = table.stat()
        table.write_text(table.read_text().replace(",2026-", ",2025-").replace(",1,", ",2,"))
        os.utime(table, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert (table.stat().st_size, table.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
        now = loaded()
        assert now.once(data_inputs).hash != before
        assert_same(now, loaded())
        write_table()
        assert loaded().once(data_inputs).hash == before, "it is as it was: found again"
    assert len(reads) == 2


def test_data_of_another_preparation_are_others(reads: list[str]) -> None:
    with sharing_data():
        assert loaded().info.input_shape != loaded(exclude=["size"]).info.input_shape
        assert data_inputs(loaded(split={"seed": 1})).hash != data_inputs(loaded()).hash
    assert len(reads) == 3


def test_what_is_computed_of_shared_data_alone_is_computed_once() -> None:
    calls = []

    def counted(bundle: DataBundle) -> int:
        calls.append(bundle)
        return len(bundle.splits["train"])

    with sharing_data():
        assert loaded().once(counted) == loaded().once(counted)
        assert loaded(exclude=["size"]).once(counted)
    assert len(calls) == 2


@pytest.mark.parametrize("why", ["no room", "no folder"])
def test_data_that_the_cache_cannot_hold_are_kept_in_memory(
    why: str, tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "no room":
        monkeypatch.setenv(LIMIT, "0.0000001")
    else:
        (tmp_path / "file").touch()
        monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "file"))
    with sharing_data():
        first = loaded()
        first.splits["train"].arrays["features"][:] = 0  # type: ignore[attr-defined]
        assert loaded().splits["train"].arrays["features"].any()  # type: ignore[attr-defined]
    assert len(reads) == 1


def test_objects_that_no_file_can_hold_are_not_packed() -> None:
    bundle = loaded()
    values = next(iter(bundle.identifiers.values())).values
    assert packed(bundle) is not None
    values[0] = 3.5  # a text and a number
    assert packed(bundle) is None


def test_a_file_of_data_lasts_longer_than_its_name(tmp_path: Path) -> None:
    bundle = loaded()
    data = packed(bundle)
    assert data is not None
    write(tmp_path / "data", data)
    file = BundleFile(tmp_path / "data")
    (tmp_path / "data").unlink()
    assert_same(bundle, file.bundle())


def test_a_search_reads_its_data_once_and_its_trials_are_runs_as_any_other(
    tmp_path: Path, reads: list[str]
) -> None:
    space = {"training.learning_rate": [0.01, 0.1], "data.standardize": [True, False]}
    tuning = {"metric": "val_loss", "sampler": "grid", "space": space}
    study = trainwright.tune({**config(), "tuning": tuning}, runs_dir=tmp_path / "runs")
    assert len(reads) == 2, "once for each preparation"
    for trial in read_trials(study.path):
        run = RunDir(study.path.parent / trial.run_id)
        alone = trainwright.train(run.config_file, runs_dir=tmp_path / "alone", reuse=False)
        assert trial.ending is not None
        assert trial.ending.digest == alone.digest
        assert run.require_manifest().data == RunDir(alone.path).require_manifest().data
        for name in ("data.json", "evaluation/val.json", "evaluation/data.json"):
            assert (run.path / name).read_bytes() == (alone.path / name).read_bytes(), name
