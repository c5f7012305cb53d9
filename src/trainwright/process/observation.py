"""Observe what the user's code reads while the process works on a run: files, folders, environment variables.

An audit hook (PEP 578) sees each file that Python opens, and `os.environ` notes which variables are read. A
read is the user's if a function of theirs, or a library that it calls, makes it; what Trainwright reads by
itself, and what libraries read when they are imported, is not. The traces are verifying ones: what was read
is noted with its content (Mokhov, Mitchell and Peyton Jones, "Build systems à la carte", 2018).

The hook is added once in a process, and sleeps outside of `observing`. Native code raises no event where it
opens a file: the readers of well-known libraries are wrapped (`native_readers.py`).
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

from trainwright.process.call_origins import called_by_user, called_for_user, note_thread, origin_of
from trainwright.process.module_sources import is_installed
from trainwright.process.native_readers import wrap_readers
from trainwright.redact import is_secret

MISSING, THERE = "missing", "there"  # instead of a hash
UNSET = "unset"
_MANY = 200  # files read from one folder: from here on, the folder is noted instead of each
HashFile = Callable[[str], str]
_HOME = os.path.expanduser("~")  # noqa: PTH111
# Where the system, Python and libraries keep what is theirs.
_NOT_INPUTS = tuple(
    [f"/{name}/" for name in ("proc", "sys", "usr/lib", "usr/share", "lib", "etc/ssl", "etc/pki")]
    + [f"{_HOME}/{name}" for name in (".netrc", ".aws", ".azure", ".kube", ".ssh", ".gitconfig", ".docker")]
    + [f"{_HOME}/.config/{name}/" for name in ("gcloud", "matplotlib", "wandb")]
)
_SYSTEM_FILES = {
    f"/etc/{name}" for name in ("localtime", "mime.types", "hosts", "resolv.conf", "nsswitch.conf", "passwd")
}
_CACHES = (
    "huggingface/hub",
    "huggingface/datasets",
    "torch/hub",
)  # of content, in the user's folder of caches
# Variables that say where, for whom and beside whom a process runs.
_PLACES = {
    *("HOME", "USER", "LOGNAME", "USERNAME", "SHELL", "PATH", "PWD", "OLDPWD", "TMPDIR", "TEMP", "TMP"),
    *("TERM", "COLORTERM", "COLUMNS", "LINES", "LANG", "LANGUAGE", "HOSTNAME", "DISPLAY", "NO_COLOR"),
    *("FORCE_COLOR", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK"),
    *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "PYTEST_CURRENT_TEST"),
}
_BEGINNINGS = ("LC_", "XDG_", "SLURM_", "TORCHELASTIC_", "TRAINWRIGHT_", "KUBERNETES_")
_busy = threading.local()
_current: Observation | None = None
_users = 0  # of the current observation
_is_added = False
_lock = threading.Lock()
_set: dict[
    str, tuple[str, str | None]
] = {}  # variables that the user's code has set in runs, and values before


class Observation:
    """The files, folders and variables that were read so far.

    `files` has the SHA-256 (hex) of each file, as it was when it was first read, by its absolute path;
    `missing`; or `there`, where only that was asked. Of a folder that was listed (its path ends with `/`), it
    has that of the names in it; of one from which many files were read (`/*`), that of all files in it.
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
        try:
            yield
        finally:
            self.files, self.variables, self.unseen = shared

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
        if self.knows(path) or path in self._written or _is_no_input(path):
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
        if path not in self.files and path not in self._written and not _is_no_input(path):
            self.files[path] = self._state(path, THERE)

    def note_folder(self, path: str) -> None:
        """Note that a folder is about to be listed."""
        name = f"{path.rstrip('/')}/"
        if name not in self.files and path not in self._written and not _is_no_input(name):
            self.files[name] = self._state(name)
            with suppress(OSError):
                self._listed[name] = frozenset(_names_in(name))

    def renew_listings(self) -> None:
        """Take the names of files that this process has written for those of the folders that it listed."""
        for folder, before in list(self._listed.items()):
            with unobserved(), suppress(OSError):
                now = frozenset(_names_in(folder))
                if now != before and all(f"{folder}{name}" in self._written for name in now ^ before):
                    self._listed[folder], self.files[folder] = now, self._state(folder)

    def note_written(self, path: str) -> None:
        """Note that a file or folder is made, changed or removed by this process.

        One that was not there before is no input: the run makes it for itself.
        """
        if path in self._written or self.files.get(path) == MISSING:
            self.files.pop(path, None)
            self._written.add(path)
        elif path not in self.files and path not in self._appended:
            self._written.add(path)

    def note_appended(self, path: str) -> None:
        """Note that this process adds to a file: what it held before is an input if the file is read."""
        if self.knows(path) or path in self._written or _is_no_input(path):
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


def variable_state(name: str, variables: Mapping[str, str]) -> str | None:
    """Return what is noted of a variable; see `Observation`."""
    if is_secret(name.lower(), "x"):
        return None
    value = variables.get(name)
    if name in _set and _set[name][0] == value:
        value = _set[name][1]
    return (
        UNSET
        if value is None
        else hashlib.sha256(f"{name}={value}".encode(errors="replace")).hexdigest()[:16]
    )


def state_of(name: str, hash_file: HashFile, before: str = "") -> str:
    """Return what is noted of a file or folder as it is now; see `Observation.files`.

    Args:
        name: Its path.
        hash_file: Returns the SHA-256 (hex) of a file; raises OSError where it cannot be read.
        before: What was noted of it before.
    """
    with unobserved():
        try:
            if before == THERE:
                return THERE if os.path.lexists(name) else MISSING
            if name.endswith("/*"):
                return _content_of(name[:-2], hash_file)
            if name.endswith("/"):
                return hashlib.sha256("\0".join(_names_in(name)).encode(errors="surrogateescape")).hexdigest()
            return hash_file(name)
        except (FileNotFoundError, NotADirectoryError):
            return MISSING
        except OSError as error:
            return f"cannot be read: {error.strerror or error}"


def attempt_of(observation: Observation | None) -> AbstractContextManager[None]:
    """Return `Observation.attempt`, or what does nothing where nothing is observed."""
    return nullcontext() if observation is None else observation.attempt()


def current() -> Observation | None:
    """Return the observation that is going on."""
    return _current


@contextmanager
def observing(hash_file: HashFile) -> Iterator[None]:
    """Observe what is inside; within another such block, that one goes on.

    Args:
        hash_file: See `state_of`.
    """
    global _current, _users  # noqa: PLW0603 - the process has one audit hook
    with _lock:
        _add_hook()
        if _current is None:
            _current, _users = Observation(hash_file), 0
            os.environ.__class__, os.environb.__class__, os.stat = _Recording, _Recording, _stat
            BaseProcess.start = _start_process  # type: ignore[assignment,method-assign]
            threading.Thread.start = _start_thread  # type: ignore[assignment,method-assign]
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _stop()


def _stop() -> None:
    global _current  # noqa: PLW0603
    _current = None
    os.environ.__class__, os.environb.__class__, os.stat = _Environ, _Environ, _stat_of_python
    BaseProcess.start = _start_process_of_python  # type: ignore[method-assign]
    threading.Thread.start = _start_of_python  # type: ignore[method-assign]


def _add_hook() -> None:
    global _is_added  # noqa: PLW0603
    if not _is_added:
        _is_added = True
        sys.addaudithook(_hook)
        for supporting in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            supporting.add(_stat)
        wrap_readers(_read_natively)
        os.register_at_fork(after_in_child=_stop)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    """Note an event of the interpreter; see PEP 578 and Python's table of audit events."""
    observation = _current
    if observation is None or (note := _NOTES.get(event)) is None or _is_busy():
        return
    with unobserved(), suppress(Exception):  # the user's code must not fail of it
        note(observation, arguments, sys._getframe(1))


def _is_busy() -> bool:
    """Return whether this thread notes something, or is not to be observed."""
    return getattr(_busy, "is_set", False)


@contextmanager
def unobserved() -> Iterator[None]:
    """Note nothing of what this thread does."""
    before = _is_busy()
    _busy.is_set = True
    try:
        yield
    finally:
        _busy.is_set = before


def _opened(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:
    path, _, flags = arguments
    if isinstance(path, int):
        return
    name = _absolute(path)
    access = flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
    if access != os.O_RDONLY and flags & os.O_TRUNC:
        observation.note_file(name, writes=True)
        return
    if observation.knows(name):
        return
    if access != os.O_WRONLY and called_for_user(frame):
        observation.note_file(_source_of(name), writes=False)
    if access == os.O_WRONLY:
        observation.note_appended(name)
    elif access == os.O_RDWR:
        observation.note_file(name, writes=True)


def _read_natively(path: str) -> None:
    """Note a file that a function of a library is about to read."""
    if (observation := _current) is not None and not _is_busy():
        with unobserved(), suppress(Exception):
            if called_for_user(sys._getframe(2)):  # beyond this function and the wrapper
                observation.note_file(_absolute(path), writes=False)


def _listed(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:
    path = arguments[0]
    if not isinstance(path, int) and origin_of(frame) != "import" and called_for_user(frame):
        observation.note_folder(_absolute("." if path is None else path))


def _loaded(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:
    """Note a library or a database: a file, if it is named by its path."""
    name = os.fsdecode(arguments[0]).removeprefix("file:").partition("?")[0] if arguments[0] else ""
    if (os.sep in name or Path(name).is_file()) and called_for_user(frame):
        observation.note_file(_absolute(name), writes=False)


def _called_natively(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:
    """Note a library that is opened to call its functions, which may do anything."""
    if called_by_user(frame):
        observation.unseen[f"native code ({arguments[0] or 'of the C library'})"] = None
    _loaded(observation, arguments, frame)


def _forked(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:  # noqa: ARG001
    if called_for_user(frame):
        observation.unseen["another process"] = None


def _made_folder(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:  # noqa: ARG001
    if not os.path.lexists(name := _absolute(arguments[0])):
        observation.note_written(name)


def _imported(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:
    """Note an extension module that is loaded."""
    if arguments[1] and called_for_user(frame):
        observation.note_file(_absolute(arguments[1]), writes=False)


def _started(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:
    """Note another program that is started; not where Python asks the system about itself."""
    first = arguments[0] if not isinstance(arguments[0], list | tuple) else arguments[0][0]
    if not isinstance(first, str | bytes | os.PathLike):
        first = next(iter(arguments[1]), "") if isinstance(arguments[1], list | tuple) else arguments[1]
    if _asker(frame) not in ("platform", "ctypes.util", "uuid") and called_for_user(frame):
        program = os.fsdecode(first).split(" ")[0]
        observation.unseen[f"the program {os.path.basename(program)}"] = None  # noqa: PTH119


def _connected(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:
    address = arguments[1]
    if not called_for_user(frame):
        return
    if isinstance(address, tuple):
        observation.unseen[f"the network ({address[0]})"] = None
    else:
        observation.unseen[f"another process (socket {os.fsdecode(address)})"] = None


def _changed_on_disk(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:  # noqa: ARG001
    for path in arguments[:2]:
        if isinstance(path, str | bytes | os.PathLike):
            observation.note_written(_absolute(path))


_NOTES: Mapping[str, Callable[[Observation, tuple[Any, ...], FrameType], None]] = {
    "open": _opened,
    "os.listdir": _listed,
    "os.scandir": _listed,
    "ctypes.dlopen": _called_natively,
    "sqlite3.connect": _loaded,
    "import": _imported,
    "subprocess.Popen": _started,
    "os.system": _started,
    "os.exec": _started,
    "os.spawn": _started,
    "os.posix_spawn": _started,
    "pty.spawn": _started,
    "socket.connect": _connected,
    "socket.sendto": _connected,
    "os.rename": _changed_on_disk,
    "os.remove": _changed_on_disk,
    "os.mkdir": _made_folder,
    "os.fork": _forked,
}


def _asker(frame: FrameType | None) -> str:
    """Return the first module of Python's library, from inside, that is not the one that starts programs."""
    while frame is not None and origin_of(frame) == "python":
        name = str(frame.f_globals.get("__name__"))
        if name not in ("subprocess", "os"):
            return name
        frame = frame.f_back
    return ""


def _absolute(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - it resolves no links


def _source_of(path: str) -> str:
    """Return the source of a file with bytecode, if it is there."""
    if path.endswith(".pyc") and f"{os.sep}__pycache__{os.sep}" in path:
        folder, name = Path(path).parent.parent, Path(path).name.partition(".")[0]
        if (source := folder / f"{name}.py").exists():
            return str(source)
    return path


def _is_no_input(path: str) -> bool:
    """Return whether a path belongs to the system, to Python, to a library, or is neither file nor folder."""
    if path.startswith(_NOT_INPUTS) or path in _SYSTEM_FILES or is_installed(path):
        return True
    caches = os.environ.get("XDG_CACHE_HOME") or f"{_HOME}/.cache"
    if path.startswith(f"{caches}/") and not path.startswith(tuple(f"{caches}/{one}/" for one in _CACHES)):
        return True
    with suppress(OSError):
        mode = os.stat(path).st_mode  # noqa: PTH116
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    return False


def _names_in(folder: str) -> list[str]:
    """Return the names in a folder, sorted, without hidden ones and caches of bytecode."""
    return sorted(name for name in os.listdir(folder) if not name.startswith((".", "__pycache__")))  # noqa: PTH208


def _content_of(folder: str, hash_file: HashFile) -> str:
    """Return the SHA-256 of the names and contents of the files in a folder."""
    whole = hashlib.sha256()
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            if entry.is_file():
                whole.update(f"{entry.name}\0{hash_file(entry.path)}\n".encode(errors="surrogateescape"))
    return whole.hexdigest()


_stat_of_python = os.stat
_EXISTENCE = ("exists", "isfile", "isdir", "is_file", "is_dir", "is_mount", "samefile")  # functions of Python


def _stat(path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
    """Return what `os.stat` returns, and note that the user's code has asked."""
    observation = _current
    frame = sys._getframe(1)
    if observation is not None and not isinstance(path, int) and not _is_busy() and called_by_user(frame):
        with unobserved(), suppress(Exception):
            name = _absolute(path)
            if frame.f_code.co_name in _EXISTENCE or os.path.isdir(name):  # noqa: PTH112
                observation.note_question(name)
            else:  # its size, or its age
                observation.note_file(name, writes=False)
    return _stat_of_python(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)


_start_of_python = threading.Thread.start


def _start_thread(thread: threading.Thread) -> None:
    """Start a thread, and note whether the user's code starts it."""
    if _current is not None and called_for_user(sys._getframe(1)):
        note_thread(thread)
    _start_of_python(thread)


_start_process_of_python = BaseProcess.start


def _start_process(process: BaseProcess) -> None:
    """Start a process of `multiprocessing`, and note that the user's code does."""
    if (observation := _current) is not None and called_for_user(sys._getframe(1)):
        observation.unseen["another process"] = None
    _start_process_of_python(process)


_Environ: type = type(os.environ)


class _Recording(_Environ):  # type: ignore[misc]
    """The environment variables; those that the user's code reads are noted."""

    def __getitem__(self, key: Any) -> Any:
        """Return a value, and note its name."""
        if (observation := _current) is not None and not _is_busy() and called_by_user(sys._getframe(1)):
            observation.note_variable(os.fsdecode(key))
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set a value, and note that the user's code does."""
        if _current is not None and not _is_busy() and called_for_user(sys._getframe(1)):
            name = os.fsdecode(key)
            first = _set[name][1] if name in _set else self._data_of(key)
            _set[name] = os.fsdecode(value), first
        super().__setitem__(key, value)

    def _data_of(self, key: Any) -> str | None:
        """Return the present value; None without one."""
        with unobserved(), suppress(KeyError):
            return os.fsdecode(super().__getitem__(key))
        return None

    def __iter__(self) -> Iterator[Any]:
        """Yield all names: which of the values are used then cannot be seen."""
        if (observation := _current) is not None and not _is_busy() and called_by_user(sys._getframe(1)):
            observation.unseen["all environment variables"] = None
        return iter(super().__iter__())
