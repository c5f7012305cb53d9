"""Several nodes train one run: groups of processes with a working directory and a cache of their own."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_ranks import HARD

import trainwright
from trainwright.errors import InputError
from trainwright.frameworks.torch.parallel.nodes import interface_of, own_address
from trainwright.records.run_dir import RunDir
from trainwright.runs.processes.nodes import SharedFiles
from trainwright.runs.run import Run
from trainwright.world import World


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Nodes:
    """Machines, as far as one machine can be several: each has a folder with its own cache and config."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self.url = folder, url
        self.endpoint = f"127.0.0.1:{free_port()}"
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, *words: str, count: int = 2, **variables: Sequence[str]) -> list[tuple[int, str, str]]:
        """Start a command on each node, and return exit code, stdout and stderr of each."""
        paths = os.pathsep.join(path for path in sys.path if path)
        for index in range(count):
            node = self._folder / f"node{index}"
            node.mkdir(exist_ok=True)
            (node / "config.yaml").write_text(json.dumps(HARD))
            own = {name: values[index] for name, values in variables.items()}
            cache = {"TRAINWRIGHT_CACHE": str(node / "cache"), "PYTHONPATH": paths}
            process = subprocess.Popen(
                [sys.executable, "-m", "trainwright", *words, "--runs-dir", self.url, "--quiet"],
                cwd=node,
                env=os.environ | cache | own,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            self._processes.append(process)
        said = [process.communicate(timeout=400) for process in self._processes]
        codes = [process.returncode for process in self._processes]
        self._processes = []
        return [(code, *texts) for code, texts in zip(codes, said, strict=True)]

    def train(self, *words: str, **how: Any) -> list[tuple[int, str, str]]:
        endpoint = f"distributed.rdzv_endpoint={self.endpoint}"
        return self.start("train", "config.yaml", "distributed.nnodes=2", endpoint, *words, **how)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture
def nodes(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    in_s3 = getattr(request, "param", "file") == "s3"
    url = f"{request.getfixturevalue('bucket')}/runs" if in_s3 else (tmp_path / "store").as_uri()
    made = Nodes(tmp_path, url)
    yield made
    made.close()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run in one process."""
    return trainwright.train(HARD, runs_dir=tmp_path_factory.mktemp("alone"))


def the_run(url: str) -> Run:
    """The only run in a store."""
    (run,) = trainwright.list_runs(url)
    return trainwright.get(run.id, runs_dir=url)


def same(run: Run, expected: Run) -> None:
    assert run.status == expected.status == "completed"
    assert run.digest == expected.digest
    assert run.metrics == expected.metrics


@pytest.mark.services
@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "kills"),
    [
        ("file", "kill@1@70"),
        pytest.param("s3", "", marks=pytest.mark.soak),
        pytest.param("s3", "kill@0@70 kill@1@33", marks=pytest.mark.soak),
    ],
    indirect=["nodes"],
)
def test_nodes_with_only_a_store_in_common(
    nodes: Nodes, kills: str, alone: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of a node dies: all begin again, and the other node brings the checkpoint from the store."""
    monkeypatch.setenv("FLAGS", str(tmp_path))
    monkeypatch.setenv("FAULTS", kills)
    ended = nodes.train()
    assert [code for code, _, _ in ended] == [0, 0], ended
    run = the_run(nodes.url)
    same(run, alone)
    assert run.result["attempts"] == 1 + len(kills.split())
    assert all(run.id in out for _, out, _ in ended)
    for index in range(2):  # the run that the other node would have made is gone
        assert [path.name for path in tmp_path.glob(f"node{index}/cache/*/ranks/*")] == [run.id]


@pytest.mark.services
@pytest.mark.slow
@pytest.mark.soak
def test_too_many_deaths_are_said_on_each_node(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAGS", str(tmp_path))
    monkeypatch.setenv("FAULTS", "kill@1@30")
    ended = nodes.train("distributed.max_restarts=0")
    assert [code for code, _, _ in ended] == [1, 1], ended
    errors = sorted(err for _, _, err in ended)
    assert any("process 1 of 2 ended with exit code -9 (SIGKILL), after 0 restarts" in err for err in errors)
    assert any("a process on another node has died, after 0 restarts" in err for err in errors)
    assert not any("Traceback" in err for err in errors)
    assert the_run(nodes.url).status == "failed"


@pytest.mark.services
@pytest.mark.slow
@pytest.mark.soak
def test_processes_of_a_launcher_with_only_a_store_in_common(nodes: Nodes, alone: Run) -> None:
    """As srun starts them on two machines."""
    port = str(free_port())
    ended = nodes.start(
        "train",
        "config.yaml",
        SLURM_PROCID=["0", "1"],
        SLURM_LOCALID=["0", "0"],
        SLURM_NTASKS=["2", "2"],
        MASTER_PORT=[port, port],
        GLOO_SOCKET_IFNAME=["lo", "lo"],
    )
    assert [code for code, _, _ in ended] == [0, 0], ended
    same(the_run(nodes.url), alone)


@pytest.mark.services
@pytest.mark.slow
@pytest.mark.soak
def test_a_launcher_that_starts_again(alone: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on; there is no second one."""
    monkeypatch.setenv("FLAGS", str(tmp_path))
    monkeypatch.setenv("FAULTS", "kill@1@70")
    (tmp_path / "config.yaml").write_text(json.dumps(HARD))
    words = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    paths = os.pathsep.join(path for path in sys.path if path)
    subprocess.run(
        [sys.executable, "-m", *words, "-m", "trainwright", "train", "config.yaml", "--quiet"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo"},
        timeout=400,
        check=True,
    )
    (run,) = trainwright.list_runs(tmp_path / "runs")
    same(run, alone)
    assert run.result["attempts"] == 2


@pytest.mark.services
@pytest.mark.slow
def test_nodes_that_do_not_find_each_other(nodes: Nodes, tmp_path: Path) -> None:
    """One error, after the time that the config gives; nothing is left of the run."""
    start = time.monotonic()
    ((code, _, err),) = nodes.train("distributed.rdzv_timeout=3", count=1)
    assert (code, time.monotonic() - start < 60) == (1, True)
    assert f"2 nodes did not find each other at {nodes.endpoint} within 3 s" in err
    assert "Traceback" not in err
    assert not list(tmp_path.glob("node0/cache/*/ranks/*"))


@pytest.mark.services
@pytest.mark.slow
@pytest.mark.soak
def test_an_endpoint_that_does_not_answer(nodes: Nodes) -> None:
    nodes.endpoint = "192.0.2.1:29400"  # an address that no machine has
    ((code, _, err),) = nodes.train("distributed.rdzv_timeout=3", count=1)
    assert code == 1
    assert "the node at distributed.rdzv_endpoint 192.0.2.1:29400 does not answer" in err
    nodes.endpoint = "nowhere.invalid:29400"
    ((code, _, err),) = nodes.train(count=1)
    assert code == 2
    assert "no machine has the name nowhere.invalid" in err


class Follower(World):
    """A process that gets the main one's answers from a list."""

    rank, size = 1, 2

    def __init__(self, *answers: Any) -> None:
        self._answers = iter(answers)

    def from_main(self, function: Any) -> Any:
        return next(self._answers)

    def main_only(self, function: Any) -> None:
        pass

    def gather(self, value: Any) -> list[Any]:
        return [True if isinstance(value, bool) else value, value]  # the main one sees its files


def test_a_run_directory_that_a_node_does_not_see(tmp_path: Path) -> None:
    run, world = RunDir(tmp_path / "runs" / "e" / "r"), Follower(Path("/runs"), ".token", "/runs/e/r")
    with pytest.raises(InputError) as caught:
        SharedFiles(run, world, None)
    said = str(caught.value)
    assert "process 1 does not see the run directory /runs/e/r of the main process" in said
    assert "--runs-dir s3://bucket/runs" in said


def test_a_run_directory_that_all_see(tmp_path: Path) -> None:
    run, world = RunDir(tmp_path), Follower(tmp_path.parent.parent, "token", None, None)
    (tmp_path / "token").touch()
    files = SharedFiles(run, world, None)
    files.share(lambda _: True)  # there is nothing to share
    assert files.source(tmp_path / "weights.safetensors") == tmp_path / "weights.safetensors"


def test_the_address_of_this_machine() -> None:
    assert own_address("127.0.0.1:29400") == "127.0.0.1"
    assert (interface_of("127.0.0.1"), interface_of(None)) == ("lo", None)
    with pytest.raises(
        InputError, match=r"distributed.rdzv_endpoint: no machine has the name nowhere.invalid"
    ):
        own_address("nowhere.invalid:1")
