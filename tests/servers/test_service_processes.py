"""The command `serve` and its processes: signals, killed replicas, load."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

import trainwright
from customers import NEW, config, write_customers
from trainwright.runs.run import Run

pytestmark = pytest.mark.services
BODY = json.dumps(NEW).encode()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("served")
    table = write_customers(folder / "customers.csv")
    return trainwright.train(config(table, "lightgbm"), runs_dir=folder / "runs", quiet=True)


@contextmanager
def served(run: Run, *options: object) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start the command, and yield its address and its process."""
    words = [sys.executable, "-m", "trainwright", "serve", run.path, "--port", 0, *options]
    process = subprocess.Popen(
        [*map(str, words)], stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + process.stderr.read()
        address = found[0]
        while True:
            try:
                with urllib.request.urlopen(f"{address}/ready", timeout=5):
                    break
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                assert process.poll() is None, process.stderr.read()
        yield address, process
    finally:
        process.terminate()
        process.wait(30)


def predicted(address: str) -> list[Any]:
    request = urllib.request.Request(f"{address}/predict", BODY, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        found: list[Any] = json.load(response)["predictions"]
    return found


def children(process: subprocess.Popen[str], count: int) -> list[psutil.Process]:
    """The processes of the replicas, once there are so many."""
    while True:
        found = [
            one
            for one in psutil.Process(process.pid).children()
            if one.status() != psutil.STATUS_ZOMBIE and "spawn_main" in " ".join(one.cmdline())
        ]
        if len(found) == count:
            return found


class Load:
    """Threads that send requests one after the other until they are stopped, or the server is gone."""

    def __init__(self, address: str, threads: int = 4) -> None:
        self._address, self._stopped = address, threading.Event()
        self.answers: list[Any] = []
        self.errors: list[Exception] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.answers.append(predicted(self._address))
            except urllib.error.URLError as error:
                if isinstance(error.reason, ConnectionRefusedError):
                    return  # it does not listen any more: nothing was sent
                self.errors.append(error)
            except OSError as error:
                self.errors.append(error)

    def wait_for(self, count: int) -> None:
        wanted = len(self.answers) + count
        while len(self.answers) < wanted and not self.errors and any(t.is_alive() for t in self._threads):
            self._stopped.wait(0.01)

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


def test_a_signal_ends_it_without_a_lost_request(run: Run) -> None:
    with served(run) as (address, process):
        load = Load(address)
        load.wait_for(100)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        load.stop()
        assert not load.errors
        assert {json.dumps(one) for one in load.answers} == {json.dumps(load.answers[0])}


def test_a_killed_replica_is_replaced(run: Run) -> None:
    with served(run, "--workers", 2) as (address, process):
        replicas = children(process, 2)
        replicas[0].kill()
        answers = 0
        while answers < 50:  # the other one answers meanwhile
            try:
                predicted(address)
                answers += 1
            except (ConnectionError, urllib.error.URLError):
                continue  # its connections end with it
        assert replicas[0] not in children(process, 2)
        with urllib.request.urlopen(f"{address}/metrics") as response:  # those of both
            lines = response.read().decode().splitlines()
        count = 'trainwright_requests_total{code="200",route="/predict"} '
        total = sum(float(line.removeprefix(count)) for line in lines if line.startswith(count))
        assert total >= answers


def test_a_slow_client_holds_nobody_up(run: Run) -> None:
    with served(run) as (address, _):
        host, port = address.removeprefix("http://").split(":")
        slow = [socket.create_connection((host, int(port))) for _ in range(20)]
        for one in slow:
            one.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n[")
        assert len(predicted(address)) == len(NEW)
        for one in slow:
            one.close()
        assert len(predicted(address)) == len(NEW)


@pytest.mark.parametrize("flooded", ["headers", "a header"])
def test_a_flood_of_headers_ends_its_connection_alone(run: Run, flooded: str) -> None:
    with served(run) as (address, process):
        host, port = address.removeprefix("http://").split(":")
        before = psutil.Process(process.pid).memory_info().rss
        with socket.create_connection((host, int(port))) as flood:
            flood.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\n")
            try:
                for _ in range(1000 if flooded == "a header" else 0):
                    flood.sendall(b"x" * 10_000)
                for i in range(200_000):
                    flood.sendall(b"x-%d: " % i + b"y" * 100 + b"\r\n")
                flood.sendall(b"\r\n")
                answer = flood.recv(100)
            except OSError:
                answer = b""
        assert answer.startswith(b"HTTP/1.1 431 ") or not answer
        assert psutil.Process(process.pid).memory_info().rss < before + (100 << 20)
        assert len(predicted(address)) == len(NEW)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "there is no key"),
        (["--key-file", "nothing.txt"], "cannot be read"),
        (["--split", "x"], "give RUN=SHARE"),
        (["--split", "x=0.6", "--split", "y=0.5"], "leave some"),
        (["--shadow", "nothing"], "nothing"),
    ],
)
def test_bad_options_are_said(run: Run, options: list[str], words: str) -> None:
    command = [sys.executable, "-m", "trainwright", "serve", str(run.path), "--port", "0", *options]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 2
    assert words in found.stderr
    assert "Traceback" not in found.stderr


def test_a_port_that_is_taken_is_said(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "trainwright", "serve", str(run.path), "--port", str(port)]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 2
    assert "give another --port" in found.stderr


def test_a_body_that_does_not_come_ends_its_request(run: Run) -> None:
    with served(run, "--timeout", 1) as (address, _):
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n[")
            assert b" 408 " in slow.recv(1000)
