"""The block in which the user's code is observed."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from trainwright.process.observation import environment, missing_modules, os_functions, starts
from trainwright.process.observation.audit_events import hook, read_natively
from trainwright.process.observation.native_readers import wrap_readers
from trainwright.process.observation.record import Observation, current, set_current
from trainwright.process.observation.states import HashFile

_REPLACED = (environment, missing_modules, os_functions, starts)
_users = 0  # of the present observation
_is_added = False
_lock = threading.Lock()


@contextmanager
def observing(hash_file: HashFile) -> Iterator[None]:
    """Observe what is inside; within another such block, that one goes on.

    Args:
        hash_file: See `state_of`.
    """
    global _users  # noqa: PLW0603 - the process has one audit hook
    with _lock:
        _add_hook()
        if current() is None:
            set_current(Observation(hash_file))
            _users = 0
            for one in _REPLACED:
                one.replace()
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _stop()


def _stop() -> None:
    set_current(None)
    for one in _REPLACED:
        one.put_back()


def _add_hook() -> None:
    global _is_added  # noqa: PLW0603
    if not _is_added:
        _is_added = True
        sys.addaudithook(hook)
        wrap_readers(read_natively)
        os.register_at_fork(after_in_child=_stop)
