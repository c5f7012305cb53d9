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
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwright import plugins
from trainwright.reports.templates import template
from trainwright.runs.environment import imported_packages


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
        with self.started(*words, folder=folder) as process:
            return process.end()

    @contextlib.contextmanager
    def started(self, *words: str, folder: Path) -> Iterator[WarmProcess]:
        """Start one process in `folder`; at the end of the context, it is killed if it still runs."""
        environment = {**os.environ, **self._environment}
        with tempfile.TemporaryDirectory() as output_folder:
            outputs = [str(Path(output_folder) / name) for name in ("stdout", "stderr", "modules")]
            for output in outputs[:2]:
                Path(output).touch()  # `until_printed` may come first
            pid = self._server.request("run", self._module, words, str(folder), environment, outputs)
            process = WarmProcess(self._server, pid, words, outputs[:2])
            try:
                yield process
            finally:
                process.kill()


class WarmProcess:
    """A process that runs; its server starts no other one meanwhile."""

    def __init__(self, server: _Server, pid: int, words: Sequence[str], outputs: Sequence[str]) -> None:
        self.pid = pid
        self._server, self._words, self._outputs = server, words, outputs
        self._status: int | None = None

    def until_printed(self, text: str) -> None:
        """Wait until the process has printed a text."""
        while text not in Path(self._outputs[0]).read_text(encoding="utf-8"):
            if self.has_ended():
                raise AssertionError(f"it has ended without {text!r}: {self.end()}")

    def has_ended(self) -> bool:
        """Return whether it has ended or stopped, after a moment."""
        return self._server.has_answer(0.02)

    def send_signal(self, signum: int) -> None:
        """Send the process a signal."""
        os.kill(self.pid, signum)

    def until_stopped(self) -> None:
        """Wait until the process has stopped, as by SIGSTOP."""
        self._status = self._server.answer()
        assert os.WIFSTOPPED(self._status), self.end()

    def end(self) -> subprocess.CompletedProcess[str]:
        """Wait for the end; return the exit code and the output."""
        while self._status is None or os.WIFSTOPPED(self._status):
            self._status = self._server.answer()
        printed = [Path(output).read_text(encoding="utf-8") for output in self._outputs]
        return subprocess.CompletedProcess(self._words, os.waitstatus_to_exitcode(self._status), *printed)

    def kill(self) -> None:
        """Kill the process if it has not ended."""
        if self._status is None or os.WIFSTOPPED(self._status):
            with contextlib.suppress(ProcessLookupError):
                self.send_signal(signal.SIGKILL)
            self.end()


class _Server:
    """A process that forks. `start` starts it; it is given the path of a socket to connect to."""

    def __init__(self, start: Callable[[str], object]) -> None:
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path := f"{folder}/channel")
            listener.listen()
            listener.settimeout(240)
            start(path)
            self._channel, _ = listener.accept()

    def request(self, *words: Any) -> int:
        """Send a request, see `_serve`, and return the process id of the fork."""
        self._channel.sendall(f"{json.dumps(words)}\n".encode())
        return self.answer()

    def answer(self) -> int:
        """Return the next status of the process that runs."""
        answer = b""
        while not answer.endswith(b"\n"):  # nothing is read ahead: `has_answer` must see it
            received = self._channel.recv(1)
            assert received, "the forking process has ended"
            answer += received
        return int(answer)

    def has_answer(self, seconds: float) -> bool:
        """Return whether there is a status to be read, after some seconds at most."""
        return bool(select.select([self._channel], [], [], seconds)[0])

    def close(self) -> None:
        """Let the process end, and wait until its servers have."""
        self._channel.shutdown(socket.SHUT_WR)
        self._channel.recv(1)


@functools.cache
def _server(imports: tuple[str, ...], number: int) -> _Server:  # noqa: ARG001 - the number tells servers apart
    """Return the server that all tests of this process share; it ends with the process.

    It is a fork of the server that has imported all modules but the last: no module is imported twice.
    """
    if imports:
        parent, environment = _server(imports[:-1], 0), dict(os.environ)
        server = _Server(lambda path: parent.request("serve", imports[-1], environment, path))
    else:
        server = _Server(_start)
    atexit.register(server.close)
    return server


def _start(path: str) -> None:
    """Start the process that all others are forks of."""
    process = subprocess.Popen([sys.executable, "-m", __name__, path])
    atexit.register(process.wait, timeout=60)


def prepare() -> None:
    """Compute what each run computes once in its process, and what is the same in all forks."""
    plugins.installed()
    imported_packages()
    template("report.html.j2")


def _serve(path: str, inherited: set[str], module: str = "trainwright.api") -> None:
    """Import a module, and answer requests until the socket is closed.

    The server also imports what the forks that ended by themselves had imported, so that later forks need
    not. The user's own modules are imported only by the forks.

    Args:
        path: The socket.
        inherited: The variables that a fork loses if the environment of its caller has them no more; it keeps
            those that libraries set when they were imported.
        module: The module.
    """
    with socket.socket(socket.AF_UNIX) as channel, channel.makefile("rw", encoding="utf-8") as messages:
        channel.connect(path)
        importlib.import_module(module)
        for message in messages:
            kind, *request = json.loads(message)
            for answer in (_fork_server if kind == "serve" else _fork_run)(request, inherited):
                messages.write(f"{answer}\n")
                messages.flush()
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()  # what they took counts as taken by the tests
        channel.shutdown(socket.SHUT_RDWR)  # forks may have it, too


def _fork_server(request: Sequence[Any], inherited: set[str]) -> Iterator[int]:
    """Fork a server that imports a further module; yield its process id."""
    module, environment, path = request
    if (pid := os.fork()) == 0:
        try:
            _enter(environment, inherited)
            _serve(path, set(environment), module)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    yield pid


def _fork_run(request: Sequence[Any], inherited: set[str]) -> Iterator[int]:
    """Run a module's `main` in a fork; yield its process id, and each status until it has ended."""
    module, words, folder, environment, outputs = request
    if (pid := os.fork()) == 0:
        _enter(environment, inherited)
        _run(module, words, folder, outputs)
    yield pid
    while os.WIFSTOPPED(status := os.waitpid(pid, os.WUNTRACED)[1]):
        yield status
    _import_installed(Path(outputs[-1]))
    yield status


def _enter(environment: Mapping[str, str], inherited: set[str]) -> None:
    """Take over the environment of the caller."""
    for name in inherited - set(environment):
        os.environ.pop(name, None)
    os.environ.update(environment)


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
    """Return whether a module is Trainwright's own, or part of Python or of an installed package."""
    file = getattr(module, "__file__", None) or ""
    return file.startswith((sys.prefix, sys.base_prefix, str(Path(__file__).parents[1])))


def _import_installed(names: Path) -> None:
    """Import the modules whose names are in a file; none if a fork was killed before it wrote them."""
    for name in names.read_text(encoding="utf-8").split() if names.exists() else []:
        if name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


if __name__ == "__main__":
    prepare()
    _serve(sys.argv[1], set(os.environ))
