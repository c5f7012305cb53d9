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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainyard.registry import plugins
from trainyard.reports.templates import template
from trainyard.runs.inputs import imported_packages


class WarmProcesses:
    """Run `MODULE.main(*words)` in forks of one process, which imports `imports` first.

    All that import the same have their forks of the same process, one after the other; those of another
    `number` have them of another. A fork has the environment of the caller, changed by `environment`.
    """

    def __init__(
        self,
        module: str,
        imports: Sequence[str],
        environment: Mapping[str, str] | None = None,
        number: int = 0,
    ) -> None:
        self._module = module
        self._environment = dict(environment or {})
        self._server = _server(tuple(imports), number)

    def run(self, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run one process in `folder` to its end; return its exit code (-9: killed) and its output."""
        environment = {**os.environ, **self._environment}
        with tempfile.TemporaryDirectory() as output_folder:
            outputs = [str(Path(output_folder) / name) for name in ("stdout", "stderr", "modules")]
            code = self._server.fork([self._module, words, str(folder), environment, outputs])
            printed = [Path(output).read_text(encoding="utf-8") for output in outputs[:2]]
        return subprocess.CompletedProcess(words, code, *printed)


class _Server:
    """The process that is forked.

    It also imports what the forks that ended by themselves had imported, so that later forks need not. The
    user's own modules are imported only by the forks.
    """

    def __init__(self, imports: Sequence[str]) -> None:
        command = [sys.executable, "-m", __name__, *imports]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def fork(self, request: Sequence[Any]) -> int:
        """Fork, wait for the end of the fork, and return its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the forking process has ended"
        return int(answer)

    def close(self) -> None:
        self._process.communicate(timeout=60)


@functools.cache
def _server(imports: tuple[str, ...], number: int) -> _Server:  # noqa: ARG001 - the number tells servers apart
    """Return the server that all tests of this process share; it ends with the process."""
    server = _Server(imports)
    atexit.register(server.close)
    return server


def prepare() -> None:
    """Compute what each run computes once in its process, and what is the same in all forks."""
    plugins()
    imported_packages()
    template("report.html.j2")


def serve() -> None:
    """Fork for each line on stdin; answer with the exit code."""
    inherited = set(os.environ)
    for line in sys.stdin:
        module, words, folder, environment, outputs = json.loads(line)
        if (pid := os.fork()) == 0:
            for name in inherited - set(environment):
                os.environ.pop(name, None)
            os.environ.update(environment)
            _run(module, words, folder, outputs)
        _, status = os.waitpid(pid, 0)
        _import_installed(Path(outputs[-1]))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _run(module: str, words: Sequence[str], folder: str, outputs: Sequence[str]) -> None:
    """Run `main` in the forked child: redirect its output, change to its folder, and exit with its code."""
    code = 1
    try:
        for fd, output in enumerate([os.devnull, *outputs[:2]]):
            os.dup2(os.open(output, os.O_RDWR | os.O_CREAT), fd)
        os.chdir(folder)
        if not sys.flags.safe_path:
            sys.path[0] = folder  # as for `python -m` there; it was where the server was started
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[1:1] = [path for path in paths if path and path not in sys.path]
        importlib.import_module(module).main(*words)
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
    for imported in sys.argv[1:]:
        importlib.import_module(imported)
    importlib.import_module("trainyard.api")
    prepare()
    serve()
