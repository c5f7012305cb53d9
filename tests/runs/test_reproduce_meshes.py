"""A run is repeated on another mesh of processes: identical where it is exact, and never silently otherwise."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest

import trainwright
from small_runs import SMALL
from trainwright.cli.main import main
from trainwright.cli.proof import verdict_lines
from trainwright.errors import ConfigError, InputError
from trainwright.records.manifest import DeterminismRecord
from trainwright.runs.run import Run


def trained(runs: Path, **distributed: Any) -> Run:
    return trainwright.train({**SMALL, "distributed": distributed}, runs_dir=runs, quiet=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run of one process, which has two virtual ranks."""
    return trained(tmp_path_factory.mktemp("alone"), virtual={"data": 2}, max_restarts=0)


@pytest.mark.services
def test_a_run_is_identical_on_more_processes_and_on_fewer(alone: Run) -> None:
    more = trainwright.reproduce(alone, {"distributed.nproc": 2, "distributed.strategy": "fsdp"}, quiet=True)
    assert more.verdict == "identical"
    assert [dict(one) for one in more.meshes] == [
        {"pipeline": 1, "data": 1, "shard": size, "tensor": 1} for size in (1, 2)
    ]
    assert "  mesh: one process; of the repetition: shard 2" in verdict_lines(more)
    several = trainwright.get(more.repetition, runs_dir=alone.path.parent.parent)
    fewer = trainwright.reproduce(several, ["distributed.nproc=1"], quiet=True)
    assert (fewer.verdict, fewer.processes) == ("identical", ([2], [1]))


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ("training.threads=2", InputError, "training.threads: reproduce keeps the run's config, but for its"),
        ("distributed.virtual.data=4", InputError, "virtual.data: the bits depend on it, so reproduce keeps"),
        ("distributed.nproc=4", ConfigError, "4 does not divide the 2 virtual ranks of the batch; allowed"),
        ("distributed.nprocs=2", ConfigError, "nprocs"),
    ],
)
def test_what_is_no_mesh_of_the_run_is_refused(
    words: str, error: type[InputError], message: str, alone: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(alone.path.parent.iterdir())
    with pytest.raises(error, match=message):
        trainwright.reproduce(alone, [words])
    assert main(["reproduce", str(alone.path), words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert sorted(alone.path.parent.iterdir()) == before, "no run is left"


def test_another_mesh_of_an_inexact_run_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = trained(tmp_path, virtual={"data": 2}, exact=False)
    with caplog.at_level(logging.WARNING, "trainwright"):
        found = trainwright.reproduce(run, quiet=True)
        assert "another one is not expected" not in caplog.text
        trainwright.reproduce(run, ["distributed.nproc=1"], quiet=True)
        assert f"the bits of run {run.id} are those of its mesh, and another one is not" in caplog.text
    assert found.determinism.tier == "order"
    different = dataclasses.replace(found, verdict="different")
    assert f"  determinism: order: {found.determinism.reason}" in verdict_lines(different)
    assert "exact is false" in found.determinism.reason
    exact = dataclasses.replace(different, determinism=DeterminismRecord(tier="bitwise", reason=""))
    assert not any("determinism" in line for line in verdict_lines(exact))


def test_more_processes_than_processors_are_told_of_other_meshes(
    alone: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainwright.runs.processes.placement.processors", lambda: 0)
    with caplog.at_level(logging.INFO, "trainwright"):
        trainwright.reproduce(alone, quiet=True)
    assert f"trainwright reproduce {alone.id} distributed.nproc=1" in caplog.text
