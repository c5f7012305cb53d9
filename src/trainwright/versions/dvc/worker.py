"""The process that asks DVC: one question as JSON on stdin, one answer on stdout.

It may run in the environment of DVC, where nothing of ours is installed.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import sys
from pathlib import Path, PurePosixPath
from typing import Any

_NAMES = 1000  # that a description has
_LOST = re.compile(r"No storage files available: '(.*)'")


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Return what is at a path of a revision; write it into a folder first, where `do` is `get`.

    Raises:
        Exception: Whatever DVC raises; ValueError: what was written is damaged.
    """
    api: Any = importlib.import_module("dvc.api")
    files = api.DVCFileSystem(question["repo"], rev=question["rev"], remote=question.get("remote"))
    path = question["path"]
    info = files.info(path)
    is_file = info["type"] == "file"
    listed = {path: info} if is_file else files.find(path, detail=True)
    names = {name: (PurePosixPath(name).relative_to(path).as_posix(), one) for name, one in listed.items()}
    if any(".." in PurePosixPath(name).parts for name in names):
        raise ValueError("a name of a file leads out of the folder")
    commit = files.repo.scm.resolve_commit(question["rev"])
    if question["do"] == "get":
        target = Path(question["folder"]) / PurePosixPath(path).name
        files.get(path, str(target), recursive=not is_file)
        for inside, one in names.values():
            _verify(target if is_file else target / inside, inside if not is_file else path, one)
    md5 = info.get("md5")
    if not is_file and md5 is not None and _hash_name(info) == "md5" and _of_folder(names) != md5:
        raise ValueError(f"the list of the files of the folder is damaged: it is not {md5}")
    return {
        "commit": commit.hexsha,
        "time": float(commit.commit_time),
        "user": commit.author_name or "",
        "md5": md5,
        "is_file": is_file,
        "files": len(names),
        "bytes": info.get("size") or sum(one.get("size") or 0 for _, one in names.values()),
        "names": [PurePosixPath(path).name] if is_file else sorted(one for one, _ in names.values())[:_NAMES],
    }


def _verify(file: Path, name: str, info: dict[str, Any]) -> None:
    """Compare a file with the hash that DVC has of it; a file that Git has is none of DVC's."""
    if (md5 := info.get("md5")) is None:
        return
    if not file.is_file():
        raise ValueError(f"{name} is missing in the cache and in the remote of DVC")
    hashing: Any = importlib.import_module("dvc_data.hashfile.hash")
    disk: Any = importlib.import_module("dvc_objects.fs.local").LocalFileSystem()
    if hashing.file_md5(str(file), disk, name=_hash_name(info)) != md5:
        raise ValueError(f"{name} is damaged in the cache or remote of DVC: its hash is not {md5}")


def _of_folder(names: dict[str, tuple[str, dict[str, Any]]]) -> str:
    """Return the hash of a folder, as DVC computes it of the list of its files."""
    listed = sorted((inside, one.get("md5")) for inside, one in names.values())
    text = json.dumps([{"md5": md5, "relpath": inside} for inside, md5 in listed], sort_keys=True)
    return f"{hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()}.dir"


def _hash_name(info: dict[str, Any]) -> str:
    """Return the kind of hash: `md5`, or that of versions of DVC before 3, `md5-dos2unix`."""
    entry = info.get("dvc_info", {}).get("entry")
    return str(entry.hash_info.name) if entry is not None and entry.hash_info else "md5"


def _in_a_line(error: BaseException) -> str:
    """Return what an error says; DVC says of some only that there is one, and of others in its own terms."""
    text = " ".join(str(error).split()) or type(error).__name__
    if (lost := _LOST.search(text)) is not None:
        return f"{lost[1]} is neither in the cache nor in the remote of DVC: it was deleted, or never pushed"
    if isinstance(error, FileNotFoundError):
        return "there is no such file or folder"
    if text == "SCM error" and error.__cause__ is not None:
        return _in_a_line(error.__cause__)
    return text


def main() -> None:
    """Answer the question on stdin."""
    try:
        said = answer(json.load(sys.stdin))
    except Exception as error:  # the caller prints it in one line
        said = {"error": _in_a_line(error)}
    sys.stdout.write(f"{json.dumps(said)}\n")


if __name__ == "__main__":
    main()
