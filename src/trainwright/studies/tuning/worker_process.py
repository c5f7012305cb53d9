"""A process that trains for a study: jobs go to it, and messages come back, as lines of JSON in pipes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass
class WorkerProcess:
    """A worker process, and the pipe of its messages.

    Attributes:
        process: The process; it ends when its stdin is closed.
        messages: The file descriptor of the pipe; it can be read when there is a message, or the end.
    """

    process: subprocess.Popen[bytes]
    messages: int
    _text: bytes = b""

    @staticmethod
    def start(
        command: Literal["do-jobs", "serve-jobs"],
        log_level: int,
        *,
        stdout: int = subprocess.DEVNULL,
        directory: str | None = None,
        path: Sequence[str] | None = None,
        environment: dict[str, str] | None = None,
    ) -> WorkerProcess:
        """Start a process.

        Args:
            command: What it executes: the hidden command of `trainwright`.
            log_level: The level of its log, on stderr.
            stdout: Where the output of the user's code goes, as `subprocess` takes it.
            directory: Its working directory; default: this one.
            path: The `sys.path` from which it may import, too; default: that of this process.
            environment: Variables that are added to those of this process.
        """
        messages, own = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "trainwright", command, str(own), str(os.getpid()), str(log_level)],
                stdin=subprocess.PIPE,
                stdout=stdout,
                pass_fds=(own,),
                cwd=directory,
                env=os.environ | (environment or {}),
                start_new_session=True,  # Ctrl-C is for this process, which passes it on
            )
        finally:
            os.close(own)
        worker = WorkerProcess(process, messages)
        worker.send(list(sys.path if path is None else path))
        return worker

    def send(self, message: Any) -> None:
        """Send a message; a process that has died is noticed when the next one is read."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def read(self) -> dict[str, Any] | None:
        """Wait for a part of a message; return the message if it is whole. Empty: the process has died."""
        if b"\n" not in self._text:
            data = os.read(self.messages, 1 << 16)
            if not data:
                return {}
            self._text += data
        line, end, rest = self._text.partition(b"\n")
        if not end:
            return None
        self._text = rest
        message: dict[str, Any] = json.loads(line)
        return message

    def read_whole(self) -> dict[str, Any]:
        """Wait for the next message, and return it; empty: the process has died."""
        while (message := self.read()) is None:
            pass
        return message

    def terminate(self) -> None:
        """Ask the process to save and stop what it trains."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)

    def end(self) -> str:
        """Close the pipes, wait for the end of the process, and return in words how it has ended."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        code = self.process.wait()
        os.close(self.messages)
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def received() -> Iterator[Any]:
    """Import from where the process that started this one does, and yield what it sends on stdin."""
    lines = iter(sys.stdin.buffer.readline, b"")
    sys.path[:0] = [path for path in json.loads(next(lines, b"[]")) if path not in sys.path]
    yield from map(json.loads, lines)
