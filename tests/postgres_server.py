"""PostgreSQL on loopback, which can be killed and started again.

Its programs are those of Debian's package `postgresql`, those of pgserver from PyPI, or in the folder that
`POSTGRESQL` names. The server refuses to run as root: root's tests start it as another user.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_START = 100.0  # seconds


def postgresql() -> Path | None:
    """The folder of the server's programs, or None."""
    if named := os.environ.get("POSTGRESQL"):
        return Path(named)
    if debian := sorted(Path("/usr/lib/postgresql").glob("[0-9]*/bin/initdb")):
        return debian[-1].parent
    wheel = find_spec("pgserver")
    return Path(wheel.origin).parent / "pginstall" / "bin" if wheel and wheel.origin else None


def other_user() -> str:
    """The user as whom root starts the server: Debian's package makes one for it."""
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("postgres").pw_name
    return "nobody"


class PostgresServer:
    """A server with the user `trainwright`, who has the password `open sesame`."""

    PASSWORD = "open sesame"

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs, self._folder, self._data = programs, folder, folder / "data"
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._user = {
                "user": other_user(),
                "group": pwd.getpwnam(other_user()).pw_gid,
                "extra_groups": [],
            }
            for path in folder.parents:  # pytest's folders are for their owner alone
                path.chmod(path.stat().st_mode | 0o011)
            shutil.chown(folder, other_user())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        secret = folder / "password"
        secret.write_text(self.PASSWORD)
        options = [
            "-A",
            "scram-sha-256",
            "-U",
            "trainwright",
            "--pwfile",
            secret,
            "--no-sync",
            "-D",
            self._data,
        ]
        command = [str(word) for word in (programs / "initdb", *options)]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, **self._user)
        self.start()

    def url(self, password: str = "open%20sesame") -> str:
        return f"postgresql://trainwright:{password}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        own = ["-h", "127.0.0.1", "-p", self.port, "-k", self._folder, "-c", "fsync=off"]
        command = [str(word) for word in (self._programs / "postgres", "-D", self._data, *own)]
        self._process = subprocess.Popen(command, cwd=self._folder, stderr=subprocess.PIPE, **self._user)
        assert self._process.stderr is not None
        timer = threading.Timer(_START, self._process.kill)  # then its output ends
        timer.start()
        assert any(b"ready to accept connections" in line for line in self._process.stderr), (
            "it does not start"
        )
        timer.cancel()
        threading.Thread(target=self._process.stderr.read, daemon=True).start()  # or the pipe would be full

    def kill(self) -> None:
        """Kill the server at once; `start` recovers it."""
        main = self._process.pid
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        self._process.kill()
        self._process.wait(30)
        while not all(map(_is_dead, children)):  # they notice it by themselves
            time.sleep(0.01)

    def close(self) -> None:
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(30)


def _is_dead(process: str) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True
