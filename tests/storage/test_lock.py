"""The lock on a run directory: it ends with its owner, whatever the owner left behind."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.errors import CheckpointError, RunLockedError
from trainwright.records.run_dir import RunDir
from trainwright.storage.lock import Lock

# Takes the lock, forks a child that lives on, and says so; the child waits until its standard input is
# closed.
OWNER = """
import os, sys
from pathlib import Path
from trainwright.storage.lock import Lock
lock = Lock(Path(sys.argv[1]))
assert lock.acquire()
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print("forked", flush=True)
import signal
signal.pause()
"""


@pytest.mark.slow
def test_a_child_of_a_killed_owner_does_not_keep_the_lock(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"forked\n"
    lock = Lock(tmp_path / "lock")
    assert not lock.acquire()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert lock.acquire(), "the child that lives on holds the lock"
    lock.release()
    owner.stdin.close()
    owner.stdout.close()


def test_a_child_that_ends_does_not_take_the_lock_from_its_parent(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    assert lock.acquire()
    child = os.fork()
    if child == 0:
        lock.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert not Lock(tmp_path / "lock").acquire()
    lock.release()
    assert Lock(tmp_path / "lock").acquire()


def test_the_message_tells_an_owner_that_has_ended_from_one_that_lives(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.acquire()
    with pytest.raises(RunLockedError, match=rf"\(pid {os.getpid()} on .*\)"):
        RunDir(tmp_path).acquire()
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    (tmp_path / "lock").write_text(f"pid {ended.stdout.strip()} on {socket.gethostname()}\n")
    with pytest.raises(
        RunLockedError, match="which has ended: a process that it started still holds the lock"
    ):
        RunDir(tmp_path).acquire()
    run.release()


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / "lock").symlink_to(other)
    with pytest.raises(CheckpointError, match="must be a regular file"):
        RunDir(tmp_path).acquire()
    assert other.read_text() == "precious"
