"""Processes that start fast: forks of one process that has already imported a framework.

A test that kills twenty processes would otherwise import the framework forty times. A fork can be killed like
any other process; the tests compare its bits with those of a process that was started anew.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from trainyard.registry import plugins
from trainyard.reports.templates import template
from trainyard.runs.inputs import imported_packages


class WarmProcesses:
    """Run `MODULE.main(*words)` in forks of one process, which imports `imports` first.

    It also imports what the forks that ended by themselves had imported, so that later forks need not. The
    user's own modules are imported only by the forks.
    """

    def __init__(self, module: str, imports: Sequence[str]) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", __name__, module, *imports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run one process in `folder` to its end; return its exit code (-9: killed) and its output."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with tempfile.TemporaryDirectory() as output_folder:
            outputs = [str(Path(output_folder) / name) for name in ("stdout", "stderr", "modules")]
            self._server.stdin.write(json.dumps([words, str(folder), outputs]) + "\n")
            self._server.stdin.flush()
            answer = self._server.stdout.readline()
            assert answer, "the forking process has ended"
            printed = [Path(output).read_text(encoding="utf-8") for output in outputs[:2]]
        return subprocess.CompletedProcess(words, int(answer), *printed)

    def close(self) -> None:
        """End the forking process."""
        self._server.communicate(timeout=60)


@functools.cache
def shared(module: str, *imports: str) -> WarmProcesses:
    """Return the `WarmProcesses` that all tests of this process share; it ends with the process."""
    processes = WarmProcesses(module, imports)
    atexit.register(processes.close)
    return processes


def prepare() -> None:
    """Compute what each run computes once in its process, and what is the same in all forks."""
    plugins()
    imported_packages()
    template("report.html.j2")


def serve(main: Callable[..., object]) -> None:
    """Fork for each line on stdin; answer with the exit code."""
    for line in sys.stdin:
        words, folder, outputs = json.loads(line)
        if (pid := os.fork()) == 0:
            _run(main, words, folder, outputs)
        _, status = os.waitpid(pid, 0)
        _import_installed(Path(outputs[-1]))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _run(main: Callable[..., object], words: Sequence[str], folder: str, outputs: Sequence[str]) -> None:
    """Run `main` in the forked child: redirect its output, change to its folder, and exit with its code."""
    code = 1
    try:
        for fd, output in enumerate([os.devnull, *outputs[:2]]):
            os.dup2(os.open(output, os.O_RDWR | os.O_CREAT), fd)
        os.chdir(folder)
        if not sys.flags.safe_path:
            sys.path[0] = folder  # as for `python -m` there; it was where the server was started
        main(*words)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
            installed = [name for name, module in list(sys.modules.items()) if _is_installed(module)]
            Path(outputs[-1]).write_text("\n".join(installed), encoding="utf-8")
        os._exit(code)


def _is_installed(module: object) -> bool:
    """Return whether a module is Trainyard's own, or part of Python or of an installed package."""
    file = getattr(module, "__file__", None) or ""
    return file.startswith((sys.prefix, sys.base_prefix, str(Path(__file__).parents[1])))


def _import_installed(names: Path) -> None:
    """Import the modules whose names are in a file; none if a fork was killed before it wrote them."""
    for name in names.read_text(encoding="utf-8").split() if names.exists() else []:
        if name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


if __name__ == "__main__":
    for imported in sys.argv[2:]:
        importlib.import_module(imported)
    prepare()
    serve(importlib.import_module(sys.argv[1]).main)
