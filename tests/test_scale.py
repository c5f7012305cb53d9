"""The simulation behind docs/scale.md: against closed formulas, and its requests against those of real runs."""

import importlib.util
import itertools
import math
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import trainwright
from small_runs import SMALL, every_save_on_disk
from trainwright import plugins
from trainwright.engine.interval import best_interval
from trainwright.storage import lease
from trainwright.stores.local import LocalStore
from trainwright.testing.faults import FaultyStore

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def scale() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        spec = importlib.util.spec_from_file_location("scale", FOLDER / "scale.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "scale", module)  # dataclasses look there
        spec.loader.exec_module(module)
    return module


@pytest.fixture
def instant(scale: ModuleType) -> Any:
    """A cluster whose writes take no time, as the formulas assume, and that fails often."""
    return scale.Cluster(
        ranks=8000,
        node_mtbf_hours=400.0,
        latency=0.0,
        node_rate=1e18,
        store_rate=1e18,
        requests_rate=1e18,
        hash_rate=1e18,
    )


@pytest.mark.parametrize("factor", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("connect", [0.0, 60e-6])
def test_the_simulation_agrees_with_the_formula(
    scale: ModuleType, instant: Any, factor: float, connect: float
) -> None:
    """Of Daly, for failures that come at random; a restart takes 75 s, or more than half an hour."""
    cluster = replace(instant, connect_seconds=connect)
    interval = factor * scale.daly(cluster.save_seconds, cluster.mtbf)
    usage = scale.simulate(cluster, interval, hours=2000 * cluster.mtbf / 3600, seed=1)
    assert usage.failures > 1500
    assert usage.overhead == pytest.approx(scale.expected_overhead(interval, cluster), rel=0.06)
    assert usage.commits == pytest.approx(usage.trained / interval, abs=2)


def test_the_best_interval_is_near_that_of_daly(scale: ModuleType, instant: Any) -> None:
    overheads = scale.scan(instant, failures=500, seed=2)
    assert min(overheads, key=overheads.__getitem__) in (0.7, 0.85, 1.0, 1.2, 1.4)
    assert overheads[0.25] > 1.1 * overheads[1.0] < overheads[4.0]


def test_the_formulas_are_those_of_the_product(scale: ModuleType) -> None:
    for save, mtbf in itertools.product((0.01, 1.0, 100.0), (10.0, 1e4, 1e7)):
        assert scale.daly(save, mtbf) == pytest.approx(best_interval(save, mtbf))


def test_sharded_states_are_written_by_all_that_have_a_part(scale: ModuleType) -> None:
    cluster = scale.Cluster(ranks=1024, shards=256, state_bytes=320e9, requests_rate=1e6)
    assert cluster.write_seconds == pytest.approx(5 + 10 * cluster.latency)  # 32 machines send 64 GB/s
    assert cluster.written == 512
    assert cluster.restored_bytes == 320e9
    parts = scale.replace(cluster, reads_parts=1)
    assert parts.restored_bytes == 10e9
    assert cluster.restart_seconds - parts.restart_seconds == pytest.approx(
        2 * 320e9 / 1.5e9 * (1 - 1 / 256) + 128 * (320e9 - 10e9) / 100e9
    )


def test_what_is_written_slowly_is_replaced_by_what_is_newer(scale: ModuleType) -> None:
    cluster = scale.Cluster(node_mtbf_hours=1e9, state_bytes=2e11, node_rate=2e9, hash_rate=2e9, files=1)
    usage = scale.simulate(cluster, interval=30.0, hours=1.0)
    assert usage.failures == 0
    assert usage.commits == pytest.approx(3600 / cluster.write_seconds, abs=45)
    assert usage.replaced == pytest.approx(120 - usage.commits, abs=4)


def test_the_slowest_of_many(scale: ModuleType) -> None:
    """For two, the greatest of two normal values is sigma / sqrt(pi) above their mean."""
    assert scale.slowest(1, 0.01) == pytest.approx(1, abs=1e-4)
    assert scale.slowest(2, 0.01) == pytest.approx(1 + 0.01 / math.sqrt(math.pi), abs=1e-4)
    assert scale.slowest(10_000, 0.03) > scale.slowest(100, 0.03) > 1.05


# -- the requests of a real run in a store


class Counting(FaultyStore):
    """Notes the calls of a store."""

    calls: list[tuple[str, str]]

    def _call(self, operation: str, key: str, *args: Any) -> Any:
        self.calls.append((operation, key))
        return super()._call(operation, key, *args)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    noted: list[tuple[str, str]] = []
    monkeypatch.setattr(plugins, "_replaced", {})
    monkeypatch.setattr(Counting, "calls", noted, raising=False)

    def make(root: Path | str) -> Any:
        store = LocalStore(root)
        return Counting(store) if isinstance(root, str) else store

    plugins.replace_adapter("store", "file", make)
    return noted


@pytest.mark.slow
def test_the_requests_of_a_commit(
    scale: ModuleType,
    calls: list[tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease, "_BEAT", 1e9)
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    settings = {"checkpoint.save_top_k": 0, "training.max_steps": 60}
    with every_save_on_disk():
        run = trainwright.train(SMALL, settings, runs_dir=(tmp_path / "runs").as_uri())
    (newest, *_) = sorted((run.path / "checkpoints").iterdir(), reverse=True)
    files = [path for path in newest.iterdir() if path.name not in ("state.json", "manifest.json")]
    entries = [
        index for index, (kind, key) in enumerate(calls) if kind == "put_if_absent" and key.startswith("log/")
    ]
    commits = [Counter(kind for kind, _ in calls[a:b]) for a, b in itertools.pairwise(entries[5:-2])]
    expected = Counter(scale.COMMIT) + Counter(put=len(files), delete=len(files))
    assert len(commits) >= 5
    assert set(map(str, commits)) == {str(Counter(dict(commits[0])))}
    assert commits[0] == expected


@pytest.mark.slow
def test_the_requests_of_a_heartbeat(
    scale: ModuleType,
    calls: list[tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(lease, "_BEAT", 0.01)
    trainwright.train(SMALL, runs_dir=(tmp_path / "runs").as_uri())
    beats = Counter(kind for kind, key in calls if key.startswith("alive/"))
    assert beats["put"] >= 1
    assert beats["list"] == pytest.approx(beats["put"], abs=1)
    assert beats.keys() <= {*scale.BEAT, "delete"}, "and at the end, what is left of them is deleted"


def test_the_tables_can_be_made(scale: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    words = ["scale.py", "--failures", "5", "--sizes", "1000", "10000", "--save-seconds", "4"]
    monkeypatch.setattr(sys, "argv", words)
    scale.main()
    printed = capsys.readouterr().out
    assert "save_seconds 4," in printed
    assert "10,000 processes" in printed
