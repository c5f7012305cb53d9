"""A process that is really slow is named; and what a save costs in several processes is decided on."""

import socket
from pathlib import Path
from typing import Any

import pytest
import torch

import trainwright
from trainwright.frameworks.torch.parallel.stopwatch import Stopwatch
from trainwright.records.journal import losses, read

CONFIG: dict[str, Any] = {
    "experiment": {"name": "slow", "seed": 5},
    "data": {"type": "digits"},
    "model": {"type": "faulty_models:Net", "params": {"width": 64}},
    "training": {"max_steps": 24, "batch_size": 32, "threads": 1},
    "evaluation": {"every_n_steps": 24, "batch_size": 256},
    "checkpoint": {"every_n_minutes": "auto", "every_n_steps": 8},
    "distributed": {"virtual": {"data": 2}},
}


@pytest.mark.slow
def test_a_slow_process_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A step takes 0.1 s more in process 1, and process 0 waits for it: that does not count as its own time."""
    monkeypatch.setenv("FLAGS", str(tmp_path))
    monkeypatch.setenv("FAULTS", "slow@1@1")
    run = trainwright.train(CONFIG, {"distributed.nproc": 2}, runs_dir=tmp_path / "runs")
    host = socket.gethostname()
    records = [record for record in read(run.path / "journal") if record["kind"] == "event"]
    (named,) = [record["detail"] for record in records if record["name"] == "straggler"]
    assert (named["rank"], named["host"]) == (1, host)
    assert named["factor"] == pytest.approx(named["seconds"] / named["median"], rel=1e-2)
    assert named["factor"] > 2
    (times,) = [record["detail"] for record in records if record["name"] == "step_times"]
    assert (times["steps"], times["hosts"]) == (23, [[host, 2]])
    fast, slow = times["medians"]
    assert slow > 0.1 > fast
    assert all(longest >= median for longest, median in zip(times["longest"], times["medians"], strict=True))
    assert f"process 1 on {host} slows down all others" in capfd.readouterr().err
    report = (run.path / "report.html").read_text()
    assert "a straggler" in report
    assert f"straggler (rank 1, host {host}" in report
    (interval,) = run.decisions
    assert (interval["kind"], interval["detail"]["processes"]) == ("checkpoint_interval", 2)
    assert interval["detail"]["mtbf_hours"] == 5000
    monkeypatch.setenv("FAULTS", "")
    alone = trainwright.train(CONFIG, runs_dir=tmp_path / "alone")
    assert run.digest == alone.digest
    assert losses(read(run.path / "journal")) == losses(read(alone.path / "journal"))
    assert not [one for one in read(alone.path / "journal") if one.get("name") == "step_times"]


VIRTUAL = {"data": 2, "tensor": 2, "pipeline": 2}
PLAN = {"colwise": ["blocks.*.1.0"], "rowwise": ["blocks.*.1.3"]}
MESHES: list[dict[str, Any]] = [
    {"nproc": 2, "strategy": "fsdp"},
    {"nproc": 2, "tensor": 2},
    {"nproc": 4, "pipeline": 2},
]


def slowed(slow: str, mesh: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Train on a mesh, with slow processes; return who was named, the times by rank, and the report."""
    monkeypatch.setenv("FLAGS", str(folder))
    monkeypatch.setenv("FAULTS", " ".join(f"slow@{rank}@1" for rank in slow.split()))
    settings = {
        "model": {"type": "staged_net:Net"},
        "distributed": {"virtual": VIRTUAL, "plan": PLAN, **mesh},
    }
    run = trainwright.train(CONFIG | settings, runs_dir=folder / "runs")
    events = [one for one in read(run.path / "journal") if one["kind"] == "event"]
    (times,) = [one["detail"]["medians"] for one in events if one["name"] == "step_times"]
    named = [one["detail"]["rank"] for one in events if one["name"] == "straggler"]
    return named, times, (run.path / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_slow_process_is_named_where_passes_wait_for_it(
    mesh: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, times, report = slowed("1", mesh, tmp_path, monkeypatch)
    assert named == [1]
    assert times[1] > 0.1 > max(times[:1] + times[2:])
    assert report.count("a straggler") == 1


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.parametrize(("slow", "stragglers"), [("2 3", []), ("0 2 3", [0])])
def test_a_stage_that_takes_longer_has_no_stragglers(
    slow: str, stragglers: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes have each stage; both of the last one take long."""
    named, times, report = slowed(slow, {"nproc": 4, "pipeline": 2}, tmp_path, monkeypatch)
    assert min(times[2:]) > 0.1 > times[1]
    assert named == stragglers
    assert report.count("a straggler") == len(stragglers)
    assert ">stage<" in report


@pytest.mark.slow
@pytest.mark.soak
def test_a_process_that_is_killed_keeps_the_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All begin again, with the decision on how often to save; the second attempt decides nothing."""
    monkeypatch.setenv("FLAGS", str(tmp_path))
    monkeypatch.setenv("FAULTS", "slow@1@1 kill@1@21")
    run = trainwright.train(CONFIG, {"distributed.nproc": 2}, runs_dir=tmp_path / "runs")
    assert run.result["attempts"] == 2
    assert [one["kind"] for one in run.decisions] == ["checkpoint_interval"]
    assert '"name":"checkpoint_interval"' in (run.path / "journal" / "0001.jsonl").read_text()
    assert '"name":"checkpoint_interval"' not in (run.path / "journal" / "0002.jsonl").read_text()
    monkeypatch.setenv("FAULTS", "")
    assert run.digest == trainwright.train(CONFIG, runs_dir=tmp_path / "alone").digest


NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_CUDA])])
def test_a_stopwatch_measures_what_is_computed_between_its_marks(device: str) -> None:
    stopwatch, matrix = Stopwatch(torch.device(device)), torch.ones(512, 512, device=device)
    for times in (1, 1, 60):  # what is called for the first time on a GPU loads its kernels
        stopwatch.mark()
        for _ in range(times):
            matrix = (matrix @ matrix).clamp(0, 1)
        stopwatch.mark()
    _, few, many = stopwatch.take()
    assert 0 < few < many
    assert list(stopwatch.take()) == []
