"""The audit events of the interpreter (PEP 578) that tell what is read, started or connected."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

from trainwright.process.observation.call_origins import (
    called_by_user,
    called_for_user,
    functions_of_python,
    origin_of,
)
from trainwright.process.observation.paths import absolute, kind_of
from trainwright.process.observation.record import Observation, noting
from trainwright.process.observation.states import MISSING
from trainwright.process.observation.unobserved import unobserved

# Commands that only say which state of the project this is: the code is an input anyway.
_GIT_QUESTIONS = ("rev-parse", "describe", "status", "symbolic-ref", "log", "diff")


def hook(event: str, arguments: tuple[Any, ...]) -> None:
    """Note an event of the interpreter; see PEP 578 and Python's table of audit events."""
    if (note := _NOTES.get(event)) is None or (observation := noting()) is None:
        return
    with unobserved(), suppress(Exception):  # the user's code must not fail of it
        note(observation, arguments, sys._getframe(1))


def opened(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:
    """Note a file that is opened: by its path, mode and flags."""
    path, _, flags = arguments
    if isinstance(path, int):
        return
    name = absolute(path)
    access = flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
    if access != os.O_RDONLY and flags & os.O_TRUNC:
        observation.note_file(name, writes=True)
        return
    if observation.knows(name) and observation.files.get(name) != MISSING:
        return
    if access != os.O_WRONLY and called_for_user(frame):
        kind = kind_of(name)
        if kind == "pipe":
            observation.unseen[f"another process (pipe {name})"] = None
        elif kind == "file":
            observation.note_file(_source_of(name), writes=False)
    if access == os.O_WRONLY:
        observation.note_appended(name)
    elif access == os.O_RDWR:
        observation.note_file(name, writes=True)


def read_natively(path: str, *, writes: bool) -> None:
    """Note a file that a function of a library is about to read or write."""
    if (observation := noting()) is not None:
        with unobserved(), suppress(Exception):
            if writes or called_for_user(sys._getframe(2)):  # beyond this function and the wrapper
                observation.note_file(absolute(path), writes=writes)


def _listed(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:
    path = "." if arguments[0] is None else arguments[0]
    is_removed = "rmtree" in functions_of_python(frame)
    if not is_removed and origin_of(frame) != "import" and called_for_user(frame):
        observation.note_folder(absolute(path))


def _mapped(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:  # noqa: ARG001
    """Note shared memory of another process."""
    if frame.f_globals.get("__name__") != "multiprocessing.shared_memory" or not called_for_user(frame):
        return
    if not frame.f_locals.get("create"):
        observation.unseen[f"another process (shared memory {frame.f_locals.get('name')})"] = None


def _loaded(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:
    """Note a library or a database: a file, if it is named by its path."""
    name = os.fsdecode(arguments[0]).removeprefix("file:").partition("?")[0] if arguments[0] else ""
    if (os.sep in name or Path(name).is_file()) and called_for_user(frame):
        observation.note_file(absolute(name), writes=False)


def _called_natively(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:
    """Note a library that is opened to call its functions, which may do anything."""
    if called_by_user(frame):
        observation.unseen[f"native code ({arguments[0] or 'of the C library'})"] = None
    _loaded(observation, arguments, frame)


def _forked(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:  # noqa: ARG001
    if called_for_user(frame):
        observation.unseen["another process"] = None


def _made_folder(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:  # noqa: ARG001
    if not os.path.lexists(name := absolute(arguments[0], arguments[2])):
        observation.note_written(name)


def _imported(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:
    """Note an extension module that is loaded."""
    if arguments[1] and called_for_user(frame):
        observation.note_file(absolute(arguments[1]), writes=False)


def _started(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:
    """Note another program that is started; not where Python asks about the system, or Git is asked."""
    if _asker(frame) in ("platform", "ctypes.util", "uuid") or not called_for_user(frame):
        return
    words = _command(arguments)
    program = os.path.basename(words[0]) if words else "of an unknown name"  # noqa: PTH119
    options = {"-C", "-c", "--git-dir", "--work-tree"}  # that a value follows
    verbs = [w for before, w in pairwise(words) if not w.startswith("-") and before not in options]
    if program != "git" or next(iter(verbs), "") not in _GIT_QUESTIONS:
        observation.unseen[f"the program {program}"] = None


def _command(arguments: tuple[Any, ...]) -> list[str]:
    """Return the words of the command of an event; of a script for a shell, those of its first line."""
    given = [one for one in arguments if isinstance(one, list | tuple | str | bytes | os.PathLike)]
    words = next((one for one in given if isinstance(one, list | tuple)), None)
    if words is None:
        words = [given[0]] if given else []
    texts = [os.fsdecode(one) for one in words]
    is_shell = len(texts) == 3 and texts[1] == "-c"
    if is_shell or len(texts) == 1:
        script = texts[-1]
        texts = script.split() if not set(script) & set("|;&<>`$\n") else script.split()[:1]
    return texts


def _connected(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:
    address = arguments[1]
    if not called_for_user(frame):
        return
    if isinstance(address, tuple):
        observation.unseen[f"the network ({address[0]})"] = None
    else:
        observation.unseen[f"another process (socket {os.fsdecode(address)})"] = None


def _renamed(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:  # noqa: ARG001
    source, target, source_fd, target_fd = arguments
    observation.note_written(absolute(source, source_fd))
    observation.note_written(absolute(target, target_fd))


def _removed(observation: Observation, arguments: tuple[Any, ...], frame: FrameType) -> None:  # noqa: ARG001
    observation.note_written(absolute(arguments[0], arguments[1]))


_NOTES: Mapping[str, Callable[[Observation, tuple[Any, ...], FrameType], None]] = {
    "open": opened,
    "mmap.__new__": _mapped,
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
    "os.rename": _renamed,
    "os.remove": _removed,
    "os.rmdir": _removed,
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


def _source_of(path: str) -> str:
    """Return the source of a file with bytecode, if it is there."""
    if path.endswith(".pyc") and f"{os.sep}__pycache__{os.sep}" in path:
        folder, name = Path(path).parent.parent, Path(path).name.partition(".")[0]
        if (source := folder / f"{name}.py").exists():
            return str(source)
    return path
