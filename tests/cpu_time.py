"""Measure the suite in seconds of CPU: on a machine that does other work too, the clock says little.

`pytest --cpu FOLDER` writes what each test took, in its process and in all that it started, one file for each
worker; `python tests/cpu_time.py FOLDER` adds it up.
"""

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")


class CpuTime:
    """The pytest plugin that measures set-up, call and teardown of each test."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
        self._path = folder / f"{worker}-{os.getpid()}.jsonl"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        return (yield from self._measure(item.nodeid))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        return (yield from self._measure(item.nodeid))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        return (yield from self._measure(item.nodeid))

    def pytest_collection_finish(self) -> None:
        self._write("imports and collection", cpu_seconds(), 0.0)

    def _measure(self, name: str) -> Iterator[None]:
        cpu, clock = cpu_seconds(), time.perf_counter()
        try:
            return (yield)
        finally:
            self._write(name, cpu_seconds() - cpu, time.perf_counter() - clock)

    def _write(self, *row: str | float) -> None:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def cpu_seconds() -> float:
    """Return what this process has taken, with all that it started, alive or not."""
    times = os.times()
    total, pending = sum(times[:4]), children(os.getpid())
    while pending:
        pid = pending.pop()
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended since
        total += sum(map(int, fields[11:15])) / TICKS  # user, system, and those of its own children
        pending += children(pid)
    return total


def children(pid: int) -> list[int]:
    """Return the processes that the threads of a process have started."""
    pids: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids += map(int, file.read_text(encoding="utf-8").split())
        except OSError:
            continue  # the thread has ended since
    return pids


def main(folder: str, most: int = 50) -> None:
    """Print the dearest files and tests, as CPU and clock."""
    tests: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for path in Path(folder).glob("*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            name, *seconds = json.loads(line)
            tests[name] = [a + b for a, b in zip(tests[name], seconds, strict=True)]
    files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name, seconds in tests.items():
        for key in (name.partition("::")[0], "in all"):
            files[key] = [a + b for a, b in zip(files[key], seconds, strict=True)]
    for table in (files, tests):
        print("    CPU   clock")
        for name, (cpu, clock) in sorted(table.items(), key=lambda row: -row[1][0])[:most]:
            print(f"{cpu:7.1f} {clock:7.1f}  {name}")


if __name__ == "__main__":
    main(sys.argv[1])
