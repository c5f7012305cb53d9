"""Threads and processes that the user's code starts."""

from __future__ import annotations

import sys
import threading
from multiprocessing.process import BaseProcess

from trainwright.process.observation.call_origins import called_for_user, note_thread
from trainwright.process.observation.record import current

_start_thread, _start_process = threading.Thread.start, BaseProcess.start


def start_thread(thread: threading.Thread) -> None:
    """Start a thread, and note whether the user's code starts it."""
    if current() is not None and called_for_user(sys._getframe(1)):
        note_thread(thread)
    _start_thread(thread)


def start_process(process: BaseProcess) -> None:
    """Start a process of `multiprocessing`, and note that the user's code does."""
    if (observation := current()) is not None and called_for_user(sys._getframe(1)):
        observation.unseen["another process"] = None
    _start_process(process)


def replace() -> None:
    """Replace the methods that start threads and processes."""
    threading.Thread.start = start_thread  # type: ignore[assignment,method-assign]
    BaseProcess.start = start_process  # type: ignore[assignment,method-assign]


def put_back() -> None:
    """Put the methods back."""
    threading.Thread.start = _start_thread  # type: ignore[method-assign]
    BaseProcess.start = _start_process  # type: ignore[method-assign]
