"""The script of a package: replicas and nginx, through which no request fails while replicas go and come.

The replicas are those of a stand-in here, which says which process of which release answers.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import trainwright
from trainwright import api
from trainwright.cli.commands import cli
from trainwright.testing.server_suite import write_wheels

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None,
        reason="nginx is not installed; apt-get install nginx-light brings it",
    ),
]
STAND_IN = """
import json, os, sys
import uvicorn

ABOUT = json.dumps({"pid": os.getpid(), "release": os.path.basename(os.getcwd()), "words": sys.argv[1:]}).encode()

LENGTH = (b"content-length", b"%d" % len(ABOUT))

async def app(scope, receive, send):
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [LENGTH]})
        await send({"type": "http.response.body", "body": ABOUT})

port = int(sys.argv[sys.argv.index("--port") + 1])
if os.path.exists("broken") and open("broken").read() in ("", str(port)):
    sys.exit(1)
uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", lifespan="off")
"""


def free_port() -> int:
    """Return a port that is free, with the four after it."""
    for port in range(18000, 30000, 10):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for one in range(port, port + 5):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", one))
            return port
    raise AssertionError("no free ports")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    write_wheels(folder / "wheels")
    given = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder / "wheels"), "PIP_CONFIG_FILE": os.devnull}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        overrides = ["training.max_steps=3", "training.threads=1"]
        config = {"data": {"type": "iris"}, "model": "lightgbm", "experiment": {"name": "iris"}}
        run = api.train(config, overrides=overrides, runs_dir=folder / "runs", quiet=True)
        return api.package(run, folder / "iris", replicas=3).path


def installed(package: Path, target: Path) -> Path:
    """Return a copy of a package in which the stand-in is installed, in place of Trainwright."""
    shutil.copytree(package, target)
    (target / ".venv" / "bin").mkdir(parents=True)
    python = target / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    sums = "sha256sum requirements.txt wheels/*"
    stamp = subprocess.run(sums, shell=True, check=True, capture_output=True, text=True, cwd=target).stdout
    (target / ".venv" / "installed").write_text(stamp)
    return target


class Script:
    """A script that runs, and what it has said."""

    def __init__(self, path: Path, port: int, *words: str, stands_in: bool = True) -> None:
        self.port = port
        stand_in = path.parent / "stand-in" / "trainwright"
        stand_in.mkdir(parents=True, exist_ok=True)
        (stand_in / "__init__.py").write_text("")
        (stand_in / "__main__.py").write_text(STAND_IN)
        given = {"PYTHON": sys.executable, "TMPDIR": str(path.parent)}
        if stands_in:
            given["PYTHONPATH"] = str(stand_in.parent)
        self.process = subprocess.Popen(
            [path / "run.sh", "--port", str(port), *words],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **given},
        )
        self.lines: list[str] = []

    def said(self, text: str) -> str:
        """Wait until the script says something."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError("".join(self.lines))

    def ask(
        self,
        connection: http.client.HTTPConnection | None = None,
        path: str = "/predict",
        body: bytes = b"{}",
        method: str = "POST",
    ) -> dict[str, Any]:
        """Return the answer to a request."""
        one = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        one.request(method, path, body=body, headers={"Content-Type": "application/json"})
        answer = one.getresponse()
        content = answer.read()
        assert answer.status in (200, 202), (answer.status, content)
        found: dict[str, Any] = json.loads(content)
        return found


@contextlib.contextmanager
def running(path: Path, *words: str, stands_in: bool = True) -> Iterator[Script]:
    """Start a script; stop it at the end, if it has not ended."""
    script = Script(path, free_port(), *words, stands_in=stands_in)
    try:
        yield script
    finally:
        if script.process.poll() is None:
            script.process.terminate()
        script.process.communicate(timeout=60)


def children_of(process: int) -> list[int]:
    """Return the replicas that a script has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == process and b"serve" in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


class Load:
    """Clients that ask all the time; each keeps its connection."""

    def __init__(self, script: Script, body: bytes = b"{}") -> None:
        self.script = script
        self.body = body
        self.ended = threading.Event()
        self.errors: list[BaseException] = []
        self.answers = 0
        self.seen: set[tuple[object, object]] = set()
        self.changed = threading.Condition()
        self.threads = [threading.Thread(target=self._ask) for _ in range(6)]

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.script.port, timeout=30)
        while not self.ended.is_set():
            try:
                found = self.script.ask(connection, body=self.body)
            except BaseException as error:
                self.errors.append(error)
                return
            with self.changed:
                self.answers += 1
                self.seen.add((found.get("release"), found.get("pid")))
                self.changed.notify_all()

    def wait(self, count: int) -> None:
        """Wait until so many more requests are answered."""
        with self.changed:
            goal = self.answers + count
            assert self.changed.wait_for(lambda: self.answers >= goal or self.errors, timeout=60)
        assert self.errors == [], self.script.lines

    def pids(self, release: str) -> set[object]:
        return {pid for name, pid in self.seen if name == release}

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join()


def test_no_request_fails_while_replicas_are_killed_and_replaced(package: Path, tmp_path: Path) -> None:
    first, second = installed(package, tmp_path / "first"), installed(package, tmp_path / "second")
    current = tmp_path / "current"
    current.symlink_to("first")
    with running(current) as script:
        script.said("with 3 replicas")
        with Load(script) as load:
            load.wait(300)
            before = load.pids("first")
            assert len(before) == 3
            killed = min(before, key=str)
            os.kill(int(str(killed)), signal.SIGKILL)
            script.said("has ended, and starts again")
            with load.changed:
                assert load.changed.wait_for(lambda: load.pids("first") - before or load.errors, timeout=60)
            current.unlink()
            current.symlink_to("second")
            script.process.send_signal(signal.SIGHUP)
            script.said(f"all replicas are those of {second}")
            with load.changed:
                load.seen.clear()
            load.wait(300)
            assert load.pids("first") == set()
            assert len(load.pids("second")) == 3
            # A release of which a replica does not start changes nothing, though another one has started.
            (first / "broken").write_text(str(script.port + 2))
            current.unlink()
            current.symlink_to("first")
            script.process.send_signal(signal.SIGHUP)
            script.said(f"replica 2 of {first} does not start: the old release goes on")
            script.said(f"all replicas are those of {second} again")
            with load.changed:
                load.seen.clear()
            load.wait(300)
            assert load.pids("first") == set()
        assert load.errors == []
        left = {int(str(pid)) for pid in load.pids("second")}
        script.process.send_signal(signal.SIGTERM)
        script.said("stopped")
        assert script.process.wait(timeout=60) == 0
        assert [pid for pid in left if Path(f"/proc/{pid}").exists()] == []
        assert list(tmp_path.glob("iris.*")) == []
        with pytest.raises(ConnectionRefusedError):
            script.ask()


@pytest.mark.skipif("serve" not in cli.list_commands(click.Context(cli)), reason="there is no server yet")
def test_the_model_answers_while_a_replica_is_killed(package: Path, tmp_path: Path) -> None:
    """The server is the real one here."""
    path = installed(package, tmp_path / "iris")
    row = {f"{part} {side} (cm)": 1.5 for part in ("sepal", "petal") for side in ("length", "width")}
    own = trainwright.load(path / "model").predict_proba({name: [value] for name, value in row.items()})
    body = json.dumps({"rows": [row]}).encode()
    with running(path, "--replicas", "2", stands_in=False) as script:
        script.said("with 2 replicas")
        (found,) = script.ask(body=body)["predictions"]
        assert [found[f"probability_{i}"] for i in range(3)] == pytest.approx(own[0].tolist(), abs=1e-6)
        with Load(script, body) as load:
            load.wait(200)
            first, _ = children_of(script.process.pid)
            os.kill(first, signal.SIGKILL)
            script.said("has ended, and starts again")
            load.wait(200)
        assert load.errors == []
        # Replicas share what they predicted: labels come to any of them.
        ids = [script.ask(body=body)["id"] for _ in range(6)]
        for name in ids:
            script.ask(path="/feedback", body=json.dumps({"id": name, "label": 0}).encode())
        deadline = time.monotonic() + 60
        while (used := script.ask(path="/quality", method="GET")["models"][0]["used"]) < len(ids):
            assert time.monotonic() < deadline, f"{used} of {len(ids)} labels are used"


def test_replicas_are_started_as_the_package_says(package: Path, tmp_path: Path) -> None:
    path, key = installed(package, tmp_path / "iris"), tmp_path / "the key"
    key.write_text("secret-key")
    with running(path, "--replicas", "1", "--key-file", str(key)) as script:
        script.said("with 1 replicas")
        words = script.ask()["words"]
        ports = ["--port", str(script.port + 1)]
        state = words[words.index("--state") + 1]
        own = [*ports, "--state", state, "--key-file", str(key)]
        assert words == ["serve", "model", "--host", "127.0.0.1", *own]
        assert Path(state).is_dir()
        with pytest.raises(AssertionError, match="404"):  # each replica has its own
            script.ask(path="/metrics")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "lets other machines in: give --key-file"),
        (["--replicas", "0"], "give a number from 1 to 99"),
        (["--port", "65534"], "it is no port, or too high"),
        (["--key-file", "none"], "none cannot be read"),
        (["--what"], "unknown option: --what"),
        (["--port"], "--port needs a number"),
    ],
)
def test_wrong_options_are_refused(package: Path, words: list[str], said: str) -> None:
    done = subprocess.run([package / "run.sh", *words], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_replica_that_does_not_start_ends_the_script(package: Path, tmp_path: Path) -> None:
    path = installed(package, tmp_path / "iris")
    (path / "broken").write_text("")
    with running(path) as script:
        script.said("does not start")
        script.said("stopped")
        assert script.process.wait(timeout=60) == 1
