"""The files of a batch: where the predictions of each go, and the record of those that are finished."""

from __future__ import annotations

import fcntl
import glob
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePath
from typing import Any, BinaryIO, NamedTuple

from trainwright.config.file_types import COMPRESSIONS, ENDINGS, FILE_TYPES, ending_of
from trainwright.datasets.samples.files import files_below, files_matching, is_pattern, is_url
from trainwright.errors import DataError, InputError, RunLockedError
from trainwright.safe_files import fsync_folder, make_folders, open_regular, usable_path

RECORD = ".trainwright-predict.jsonl"
FORMATS = ("csv", "csv.gz", "parquet", "jsonl", "xlsx")  # that predictions are asked for in
_FORMAT = 1  # of the record
_TABLES = (*ENDINGS, "npz")
_WRITTEN = {
    "csv": ".csv",
    "parquet": ".parquet",
    "jsonl": ".jsonl",
    "excel": ".xlsx",
}  # by the kind of the input


class BatchFile(NamedTuple):
    """A file to predict, as the user gave it, and the path of its predictions inside the output folder."""

    source: str
    output: str

    @property
    def with_partition(self) -> str:
        """The file; where its folders name columns (`year=2024`), as a pattern, with which these are read."""
        source, folders = PurePath(self.source), PurePath(self.output).parts[:-1]
        is_plain = not any("=" in folder for folder in folders) or not source.name[0].isalnum()
        if is_plain or FILE_TYPES.get(ending_of(source.name)) not in ENDINGS:
            return self.source
        before = self.source[: -len(source.name)]
        return f"{glob.escape(before)}[{source.name[0]}]{glob.escape(source.name[1:])}"


def batch_files(given: Sequence[str], output: Path, form: str | None) -> list[BatchFile]:
    """Return the files that paths, folders and patterns stand for, and where their predictions go.

    Outputs are in the same folders as the inputs, as seen from the folder that holds all of these.

    Args:
        given: Files, folders and patterns; or URLs of them.
        output: The folder of the predictions.
        form: Their format, one of `FORMATS`; None for that of each file.

    Raises:
        DataError: A folder or a pattern stands for no file.
        InputError: Two files would have one output, or the outputs would be among the inputs.
    """
    if form is not None and form not in FORMATS:
        raise InputError(f"format {form!r} given; predictions are written as {', '.join(FORMATS)}")
    found, roots = dict[str, None](), list[PurePath]()
    for one in given:
        names, root = _expanded(one)
        _refuse_inside(one, names, root, output)
        found.update(dict.fromkeys(names))
        roots.append(root)
    common = _common(roots)
    if not common.parts:
        raise InputError(f"{given[0]} and {given[-1]} have no folder in common: predict them by themselves")
    files = [BatchFile(name, _written_as(_absolute(name).relative_to(common), form)) for name in found]
    counts = Counter(one.output for one in files)
    if twice := [one for one in files if counts[one.output] > 1]:
        other = next(one for one in twice[1:] if one.output == twice[0].output)
        raise InputError(
            f"{twice[0].source} and {other.source} would both be predicted into {output / twice[0].output}: "
            "predict them into two folders"
        )
    usable_path(output / max((one.output for one in files), key=len))
    return files


def _expanded(one: str) -> tuple[list[str], PurePath]:
    """Return the files that a path stands for, and the folder that their outputs are named from."""
    if is_pattern(one):
        parts = _absolute(one).parts
        fixed = next(i for i, part in enumerate(parts) if any(mark in part for mark in "*?["))
        names = [name for name in files_matching(one) if is_url(name) or Path(name).is_file()]
        if not names:
            raise DataError(f"{one}: there is no file of this pattern")
        return names, type(_absolute(one))(*parts[:fixed])
    is_folder = one.endswith("/") if is_url(one) else Path(one).expanduser().is_dir()
    if not is_folder:
        return [one], _absolute(one).parent
    root = _absolute(one)
    below = [
        name
        for name in files_below(one, "*") or []
        if FILE_TYPES.get(ending_of(name)) in _TABLES
        and not any(part.startswith((".", "_")) for part in _absolute(name).relative_to(root).parts)
    ]
    if not below:
        endings = ", ".join(ending for kind in ENDINGS for ending in ENDINGS[kind])
        raise DataError(f"{one} is a folder, and no file below it is a table ({endings})")
    return below, root


def _refuse_inside(one: str, names: Sequence[str], root: PurePath, output: Path) -> None:
    """Refuse an output folder whose files a later call would take for inputs, or that would replace these."""
    if is_url(one):
        return
    folder = output.resolve()
    looks_below = Path(one).expanduser().is_dir() or "**" in one
    inside = looks_below and folder.is_relative_to(Path(root).resolve())
    if inside or any(Path(name).expanduser().resolve().is_relative_to(folder) for name in names):
        raise InputError(f"{output} is a folder of the files to predict ({one}): choose one outside of them")


def _absolute(path: str) -> PurePath:
    return PurePath(path) if is_url(path) else Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100


def _common(roots: Sequence[PurePath]) -> PurePath:
    """Return the innermost folder that holds all folders; an empty path if there is none."""
    first, *others = roots
    return next(
        (one for one in (first, *first.parents) if one.parts and all(o.is_relative_to(one) for o in others)),
        PurePath(),
    )


def _written_as(path: PurePath, form: str | None) -> str:
    """Return the path of the predictions for a file."""
    ending = ending_of(path.name)
    packed = path.suffix if path.suffix.lower() != ending else ""
    stem = path.name.removesuffix(packed)
    stem = stem[: -len(ending)] if ending and ending in FILE_TYPES else stem
    if form is not None:
        return str(path.with_name(f"{stem}.{form}"))
    kind = FILE_TYPES.get(ending, "csv")
    packed = packed if packed.lower() in COMPRESSIONS else ""
    return str(path.with_name(f"{stem}{_WRITTEN.get(kind, '.csv')}{packed}"))


class BatchRecord:
    """The record of a folder of predictions: what they were made with, and the inputs of finished files.

    It is a file of lines of JSON, one for each finished file, which are added when its predictions are safe.
    """

    def __init__(self, folder: Path, file: BinaryIO, entries: Sequence[Mapping[str, Any]]) -> None:
        self._folder = folder
        self._file = file
        self._entries = {entry["output"]: entry for entry in entries}

    @property
    def path(self) -> Path:
        """The path of the record."""
        return self._folder / RECORD

    def finished(self, one: BatchFile) -> Mapping[str, Any] | None:
        """Return the record of a file whose predictions are there; its input may have changed since."""
        entry = self._entries.get(one.output)
        try:
            size = (self._folder / one.output).stat().st_size
        except OSError:
            return None
        return entry if entry is not None and entry["output_bytes"] == size else None

    def add(self, one: BatchFile, made: Mapping[str, Any]) -> None:
        """Record a finished file, once its predictions are safe against a loss of power."""
        path = self._folder / one.output
        with path.open("rb") as written:
            os.fsync(written.fileno())
        fsync_folder(path.parent)
        size = path.stat().st_size
        entry = {"output": one.output, "input": one.source, **made, "output_bytes": size}
        self._append(entry)
        self._entries[one.output] = entry

    def _append(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def begin(self, about: Mapping[str, Any]) -> None:
        """Begin anew: remove the predictions that are recorded, and say what the next ones are made with."""
        root = self._folder.resolve()
        for output in self._entries:
            path = (self._folder / output).resolve()
            if path.is_relative_to(root):  # anyone may have written the record
                path.unlink(missing_ok=True)
        self._entries.clear()
        self._file.truncate(0)
        self._append({"format": _FORMAT, **about})
        fsync_folder(self._folder)


@contextmanager
def batch_record(folder: Path, about: Mapping[str, Any], *, force: bool) -> Iterator[BatchRecord]:
    """Open the record of a folder of predictions, and keep other processes from it.

    Args:
        folder: The folder, which is made.
        about: What the predictions are made with: `run` (in words), `model` and `options`.
        force: Begin anew, whatever is in the folder.

    Raises:
        InputError: The folder holds other files, or predictions of another model or with other options; or
            it cannot be written.
        RunLockedError: Another process predicts into it.
    """
    with ExitStack() as opened:
        try:
            make_folders(folder)
            file = opened.enter_context(open_regular(folder / RECORD, "ab"))
            record = _opened(folder, file, about, force=force)
        except OSError as error:
            raise InputError(f"{folder} cannot be written: {error.strerror or error}") from error
        yield record


def _opened(folder: Path, file: BinaryIO, about: Mapping[str, Any], *, force: bool) -> BatchRecord:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunLockedError(f"another process is writing predictions into {folder}") from None
    header, entries, size = _read(folder / RECORD)
    record = BatchRecord(folder, file, entries)
    if header is not None and not force:
        _refuse_others(folder, header, about)
        file.truncate(size)
        return record
    if not force and any(one.name != RECORD for one in folder.iterdir()):
        if not (folder / RECORD).stat().st_size:
            (folder / RECORD).unlink()
        raise InputError(
            f"{folder} is not empty, and holds no predictions of this command: choose another folder, or "
            "write into it with --force"
        )
    record.begin(about)
    return record


def _read(path: Path) -> tuple[Mapping[str, Any] | None, list[Mapping[str, Any]], int]:
    """Return the first line of a record, the others, and the length of what is whole: a crash cuts it off."""
    lines, size = list[Mapping[str, Any]](), 0
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            entry = json.loads(line)
        except ValueError:
            break
        needed = ("format", "run", "model", "options") if not lines else ("output", "output_bytes", "sha256")
        if not line.endswith(b"\n") or not isinstance(entry, dict) or any(key not in entry for key in needed):
            break
        lines.append(entry)
        size += len(line)
    return (lines[0] if lines else None), lines[1:], size


def _refuse_others(folder: Path, header: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Refuse to add predictions to those of another model, or with other options."""
    now = json.loads(json.dumps(about))  # lists for tuples
    others = [key for key in now["options"] if header["options"].get(key) != now["options"][key]]
    differs = ""
    if header["format"] != _FORMAT or header["run"] != now["run"]:
        differs = f"of run {header['run']}"
    elif header["model"] != now["model"]:
        differs = f"of other weights of run {header['run']}"
    elif others:
        differs = f"that were made with other options ({', '.join(others)})"
    if differs:
        raise InputError(
            f"{folder} holds predictions {differs}: choose another folder, or replace them with --force"
        )
