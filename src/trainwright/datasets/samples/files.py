"""Opening the user's files."""

from __future__ import annotations

import glob
import logging
import os
import stat
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from trainwright.config.schema import DataConfig
from trainwright.datasets.tables.table import nearest
from trainwright.errors import DataError
from trainwright.process.machine import available_memory
from trainwright.types import SplitName

log = logging.getLogger("trainwright")
TEXT_ENDING = ".txt"
_WILD = "*?["
_KINDS = {
    stat.S_IFIFO: "a pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_MANY = 12  # names in a folder, of which not all are listed
_LARGE = 64 << 20  # bytes; smaller files are read at once, whatever is in them
_WRITTEN_SHARE = 0.01  # of the bytes of a file must be on the disk


def paths_by_split(config: DataConfig) -> dict[SplitName, str]:
    """Return the files of the config by split; a single file to split is under `train`.

    Raises:
        DataError: No file is given, or `path` together with paths of splits.
    """
    paths: dict[SplitName, str | None] = {
        "train": config.train_path,
        "val": config.val_path,
        "test": config.test_path,
    }
    if config.path is not None:
        if any(path is not None for path in paths.values()):
            raise DataError(
                "data: path is one file to split; give it, or train_path with val_path and test_path"
            )
        return {"train": config.path}
    if config.train_path is None:
        raise DataError(f"data: type {config.type!r} reads files; give data.path, or data.train_path")
    return {name: path for name, path in paths.items() if path is not None}


def as_text(path: Path | str) -> str:
    r"""Return a path, or a part of one, as text that any file can hold: a byte that is no UTF-8 as `\xff`."""
    return os.fsencode(path).decode(errors="backslashreplace")


def text_of(file: Path) -> str:
    """Return the content of a file.

    Raises:
        DataError: It cannot be read, or is not in UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not in UTF-8 (byte {error.start}); convert it") from error
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from error


def existing_file(path: str, *, mapped: bool = False) -> Path:
    """Return the file at `path`, relative to the working directory; a local copy of what is at a URL.

    Args:
        path: The path or URL, as the user gave it.
        mapped: The file is read in parts, so it may be larger than memory.

    Raises:
        DataError: The file does not exist, or cannot be read to its end: it is a folder, a pipe, a
            device, a file that is larger than memory or was never written.
    """
    try:
        file = _fetched(path) if is_url(path) else Path(path).expanduser()
        status = file.stat()
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file; {_elsewhere(file)}") from error
    except (OSError, ValueError, RuntimeError) as error:  # a null character; a home that is not known
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if stat.S_ISDIR(status.st_mode):
        raise DataError(f"{path} is a folder; give {_file_inside(file, path)}")
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a special file")
        raise DataError(
            f"{path} is {kind}, and data are read more than once; write them to a file and give that"
        )
    _refuse_size(path, file, status, mapped=mapped)
    return file


def require_file(path: str) -> None:
    """Make sure that a path leads to a file or a folder; what URLs and patterns stand for is not asked.

    Raises:
        DataError: There is nothing.
    """
    if not (is_url(path) or is_pattern(path) or Path(path).expanduser().exists()):
        existing_file(path)


def is_url(path: str) -> bool:
    """Return whether data are given by a URL."""
    return "://" in path


def is_pattern(path: str) -> bool:
    """Return whether a path is a pattern of files as `glob` knows them, and no file itself."""
    return any(mark in path for mark in _WILD) and not (not is_url(path) and Path(path).exists())


def files_below(path: str, pattern: str) -> list[str] | None:
    """Return the files below a folder whose paths end as a pattern says, sorted; None if it is no folder.

    Args:
        path: The folder, as the user gave it: a path or a URL.
        pattern: Names and patterns, as `Path.rglob` takes them.
    """
    if is_url(path):
        from trainwright.datasets.samples.remote import matches, urls_below

        urls = urls_below(path)
        depth, wanted = path.rstrip("/").count("/") + 1, ["**", *pattern.split("/")]
        return [url for url in urls if matches(url.split("/")[depth:], wanted)] if urls else None
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return None
    return [str(file) for file in sorted(folder.rglob(pattern)) if file.is_file()]


def names_in(path: str) -> list[str] | None:
    """Return the names in a folder, sorted; None if it is no folder.

    Args:
        path: The folder, as the user gave it: a path or a URL.
    """
    if is_url(path):
        urls = files_below(path, "*")
        inside = (url.removeprefix(f"{path.rstrip('/')}/") for url in urls or ())
        return None if urls is None else sorted(name for name in inside if "/" not in name)
    folder = Path(path)
    return sorted(file.name for file in folder.iterdir()) if folder.is_dir() else None


def files_matching(pattern: str) -> list[str]:
    """Return the files that match a pattern as `glob` knows them, a path or a URL, sorted."""
    if is_url(pattern):
        from trainwright.datasets.samples.remote import urls_matching

        return urls_matching(pattern)
    return sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - pathlib takes no absolute pattern


def _fetched(url: str) -> Path:
    from trainwright.datasets.samples.remote import fetched  # late: it imports what local files do not need

    return fetched(url)


def _file_inside(folder: Path, path: str) -> str:
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    except OSError:
        names = []
    return f"one of its files, such as {path.rstrip('/')}/{names[0]}" if names else "a file"


def _elsewhere(file: Path) -> str:
    folder = file.parent
    if not folder.is_dir():
        return (
            f"there is no folder {folder} in {Path.cwd()} either"
            if not folder.is_absolute()
            else f"nor a folder {folder}"
        )
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    holds_runs = "*/*/config.yaml"  # which Trainwright wrote: no data
    names = sorted(entry.name for entry in entries if next(entry.glob(holds_runs), None) is None)
    # Endings are alike by themselves: `rows.csv` is not near `x.csv`.
    alike = [name for name in names if nearest(file.stem, [Path(name).stem]).startswith("did you mean")]
    if not alike and len(names) > _MANY:
        return f"nothing in {folder.resolve()} has a similar name"
    names = alike or names
    return f"in {folder.resolve()}: {nearest(file.name, names)}"


def _refuse_size(path: str, file: Path, status: os.stat_result, *, mapped: bool) -> None:
    size = status.st_size
    if size < _LARGE:
        return
    if status.st_blocks * 512 < _WRITTEN_SHARE * size and _has_hole(file, size):
        raise DataError(
            f"{path} claims {_gib(size)}, but next to nothing of it was ever written (a sparse file); "
            "was a download or a copy cut short?"
        )
    available = available_memory()
    if not mapped and available is not None and size > available:
        raise DataError(
            f"{path} is {_gib(size)}, but only {_gib(available)} of memory is available; give a part of it, "
            "or a folder of npy files (data.type: npy), whose features stay on the disk"
        )


def _has_hole(file: Path, size: int) -> bool:
    """Return whether bytes were never written; file systems that compress also use few blocks."""
    if not hasattr(os, "SEEK_HOLE"):
        return True
    try:
        with file.open("rb") as stream:
            return os.lseek(stream.fileno(), 0, os.SEEK_HOLE) < size
    except OSError:
        return False  # the file system does not know holes, or reading says why it fails


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"


def read_bytes(path: str) -> bytes:
    """Return all bytes of a file.

    Raises:
        DataError: The file cannot be read.
    """
    try:
        return existing_file(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def files_in(folder: Path, endings: Collection[str]) -> tuple[list[Path], Counter[str]]:
    """Return the files with these endings in a folder and below it, sorted; and the numbers of others."""
    found: list[Path] = []
    others: Counter[str] = Counter()
    for path in sorted(folder.rglob("*")):
        ending = path.suffix.lower()
        if path.is_file() and ending in endings:
            found.append(path)
        elif path.is_file():
            others[ending or "without an ending"] += 1
        elif not path.is_dir():
            others["broken links, pipes or the like"] += 1
    return found, others


def log_left_out(folder: str | Path, others: Counter[str], what: str) -> None:
    """Say which files of a folder are none of those that are read, `what`."""
    if others:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in others.most_common())
        log.info("data: files in %s that are no %s are left out: %s", folder, what, kinds)
