"""The record of what the user's code has read so far."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

from trainwright.process.observation.paths import is_ignored
from trainwright.process.observation.states import (
    MISSING,
    THERE,
    HashFile,
    names_in,
    state_of,
    variable_state,
)
from trainwright.process.observation.unobserved import is_unobserved, unobserved

_MANY = 200  # files read from one folder: from here on, the folder is noted instead of each
# Variables that say where, for whom and beside whom a process runs.
_PLACES = {
    *("HOME", "USER", "LOGNAME", "USERNAME", "SHELL", "PATH", "PWD", "OLDPWD", "TMPDIR", "TEMP", "TMP"),
    *("TERM", "COLORTERM", "COLUMNS", "LINES", "LANG", "LANGUAGE", "HOSTNAME", "DISPLAY", "NO_COLOR"),
    *("FORCE_COLOR", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK"),
    *("GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "PYTEST_CURRENT_TEST"),
}
_BEGINNINGS = (
    "LC_",
    "OMPI_",
    "PMI_",
    "PMIX_",
    "XDG_",
    "SLURM_",
    "TORCHELASTIC_",
    "TRAINWRIGHT_",
    "KUBERNETES_",
)
_current: Observation | None = None


class Findings(NamedTuple):
    """News of one process: what it has noted since it was asked last; see `Observation`."""

    files: dict[str, str]
    variables: dict[str, str | None]
    unseen: dict[str, None]
    written: dict[str, None]  # files that the run makes for itself


class Observation:
    """The files, folders and variables that were read so far.

    `files` has the SHA-256 (hex) of each file, as it was when it was first read, by its absolute path;
    `missing`; or `there`, where only that was asked. Of a folder that was listed (its path ends with `/`), it
    has that of the names in it; of a link that was asked where it leads (`@`), that of the target; of a
    folder from which many files were read (`/*`), that of all files in it.
    `variables` has the beginning of the SHA-256 of each value, or `unset`; None for those that are named like
    credentials. `unseen` names what was used and cannot be observed.
    """

    def __init__(self, hash_file: HashFile) -> None:
        self._hash_file = hash_file
        self.files: dict[str, str] = {}
        self.variables: dict[str, str | None] = {}
        self.unseen: dict[str, None] = {}
        self.began = dict(os.environ)
        self._written: set[str] = set()
        self._read_from: dict[str, int] = {}  # folder -> files that were read there
        self._appended: dict[str, str] = {}  # file -> what it held before this process has added to it
        self._listed: dict[str, frozenset[str]] = {}  # folder -> the names in it
        self._attempts = 0
        self._told = Findings({}, {}, {}, {})

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Note what an attempt reads for this attempt alone; what is read between attempts is of all.

        Files that were read before an earlier attempt may have changed in the meantime: they are looked at
        again.
        """
        shared = (self.files, self.variables, self.unseen)
        files, variables, unseen = shared
        if self._attempts:
            files = {name: self._state(name, before) for name, before in list(files.items())}
        self._attempts += 1
        self.files, self.variables, self.unseen = dict(files), dict(variables), dict(unseen)
        self._read_from.clear()
        self._told = Findings({}, {}, {}, {})
        try:
            yield
        finally:
            self.files, self.variables, self.unseen = shared

    def news(self) -> Findings:
        """Return what was noted since the last call."""
        written = dict.fromkeys(self._written)
        now = Findings(dict(self.files), dict(self.variables), dict(self.unseen), written)
        before, self._told = self._told, now
        return Findings(
            files=_added(before.files, now.files),
            variables=_added(before.variables, now.variables),
            unseen=_added(before.unseen, now.unseen),
            written=_added(before.written, now.written),
        )

    def adopt(self, findings: Sequence[Findings]) -> None:
        """Note what other processes have read.

        What this process does not find as they did, such as a file of another machine, it cannot compare
        later: it is `unseen`.
        """
        for found in findings:
            self._written |= found.written.keys() - self.files.keys()
        for found in findings:
            self.unseen |= found.unseen
            for name, state in found.files.items():
                if name in self._written or self.files.get(name, THERE) not in (THERE, state):
                    continue
                if self._state(name, state) == state:
                    self.files[name] = state
                else:
                    self.unseen[f"{name}, which one process alone finds as it is"] = None
            for name, value in found.variables.items():
                if value == variable_state(name, self.began):
                    self.variables.setdefault(name, value)
                else:
                    self.unseen[f"the variable {name}, which differs between processes"] = None

    def changed(self) -> list[str]:
        """Return the files and folders that have changed since they were read."""
        self.renew_listings()
        read = [(name, state) for name, state in list(self.files.items()) if state != MISSING]
        return [name for name, state in read if self._state(name, state) != state]

    def note_file(self, path: str, *, writes: bool) -> None:
        """Note that a file is about to be opened."""
        if writes:
            self.note_written(path)
            return
        if path in self._appended and path not in self.files:
            self.files[path] = self._appended[path]
        if self.knows(path) or path in self._written or is_ignored(path):
            return
        folder = os.path.dirname(path)  # noqa: PTH120
        if f"{folder}/*" in self.files:
            return
        count = self._read_from[folder] = self._read_from.get(folder, 0) + 1
        if count <= _MANY:
            self.files[path] = self._state(path)
            return
        for name in [name for name in self.files if os.path.dirname(name) == folder]:  # noqa: PTH120
            del self.files[name]
        self.files[f"{folder}/*"] = self._state(f"{folder}/*")

    def knows(self, path: str) -> bool:
        """Return whether the content of a file was noted, or that it is missing."""
        return self.files.get(path, THERE) != THERE

    def note_question(self, path: str) -> None:
        """Note that it is asked whether a file or folder is there."""
        if path not in self.files and path not in self._written and not is_ignored(path):
            self.files[path] = self._state(path, THERE)

    def note_link(self, path: str) -> None:
        """Note that it is asked where a link leads."""
        if path not in self._written and not is_ignored(path):
            self.files.setdefault(f"{path}@", self._state(f"{path}@"))

    def note_folder(self, path: str) -> None:
        """Note that a folder is about to be listed."""
        name = f"{path.rstrip('/')}/"
        if name not in self.files and path not in self._written and not is_ignored(name):
            self.files[name] = self._state(name)
            with suppress(OSError):
                self._listed[name] = frozenset(names_in(name))

    def renew_listings(self) -> None:
        """Take the names of files that this process has written for those of the folders that it listed."""
        for folder, before in list(self._listed.items()):
            with unobserved(), suppress(OSError):
                now = frozenset(names_in(folder))
                if now != before and all(f"{folder}{name}" in self._written for name in now ^ before):
                    self._listed[folder], self.files[folder] = now, self._state(folder)

    def note_written(self, path: str) -> None:
        """Note that a file or folder is made, changed or removed by this process.

        One that was not there before, or that nobody has read yet, is no input: the run makes it for itself.
        """
        if path in self._written or self.files.get(path) == MISSING:
            self.files.pop(path, None)
            self._written.add(path)
        elif path not in self.files and path not in self._appended:
            self._written.add(path)

    def note_appended(self, path: str) -> None:
        """Note that this process adds to a file: what it held before is an input if the file is read."""
        if self.knows(path) or path in self._written or is_ignored(path):
            return
        if os.path.exists(path):  # noqa: PTH110
            self._appended.setdefault(path, self._state(path))
        else:
            self.note_written(path)

    def _state(self, name: str, before: str = "") -> str:
        return state_of(name, self._hash_file, before)

    def note_variable(self, name: str) -> None:
        """Note that a variable is read."""
        if name not in self.variables and name not in _PLACES and not name.startswith(_BEGINNINGS):
            self.variables[name] = variable_state(name, os.environ)


def _added(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in now.items() if name not in before or before[name] != value}


def attempt_of(observation: Observation | None) -> AbstractContextManager[None]:
    """Return `Observation.attempt`, or what does nothing where nothing is observed."""
    return nullcontext() if observation is None else observation.attempt()


def current() -> Observation | None:
    """Return the observation that is going on."""
    return _current


def noting() -> Observation | None:
    """Return the observation that is going on, unless this thread is not observed."""
    return None if _current is None or is_unobserved() else _current


def set_current(observation: Observation | None) -> None:
    """Begin an observation, or end the present one."""
    global _current  # noqa: PLW0603 - the process has one audit hook
    _current = observation
