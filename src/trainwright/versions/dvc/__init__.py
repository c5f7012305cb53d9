"""Versions of data that DVC tracks in a Git repository: `data.dvc: {repo, path, rev}`.

DVC runs in a process of its own: it brings some fifty packages, which are no part of a run's environment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from trainwright.errors import DataError, MissingExtraError
from trainwright.records.pins import Pin
from trainwright.require import install_hint
from trainwright.versions.base import Description, Reference

_ENVIRONMENT = {
    "DVC_NO_ANALYTICS": "1",
    "GIT_TERMINAL_PROMPT": "0",  # nobody answers it
    "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",  # not `ext`, which starts any command
}


class DvcVersion:
    """The versions of a file or folder in repositories of DVC; see `versions.base.Version`.

    Args:
        runs: The folder of the runs, which keeps none of these versions.
    """

    def __init__(self, runs: str) -> None:  # noqa: ARG002 - of the contract
        self._found: dict[str, Any] = {}

    def resolve(self, reference: Reference) -> Pin:
        """Return the pin of `{repo, path, rev, remote}`; the revision is a branch, a tag or a commit."""
        repo, path = reference.get("repo") or ".", (reference.get("path") or "").strip("/")
        if not path or ".." in PurePosixPath(path).parts:
            raise DataError(f"data.dvc.path: {path!r} is no path of a file or folder in the repository")
        _refuse_credentials(repo)
        asked = {**reference, "repo": repo, "path": path, "rev": reference.get("rev") or "HEAD"}
        given = {name: value for name, value in asked.items() if value}
        found = self._look(given)
        return Pin(
            kind="dvc",
            source=f"{repo} {path}",
            revision=found["commit"],
            content=None if found["md5"] is None else f"md5:{found['md5']}",
            reference={**given, "rev": found["commit"]},
            file=PurePosixPath(path).name if found["is_file"] else "",
        )

    def materialise(self, pin: Pin, folder: Path) -> Path:
        """Write the files of a version; see `Version.materialise`."""
        found = _ask("get", {**pin.reference, "folder": str(folder.absolute())})
        if pin.content not in (None, f"md5:{found['md5']}"):
            raise DataError(f"{pin.source} at {pin.revision} is {found['md5']}, not {pin.content}")
        return folder / PurePosixPath(pin.reference["path"]).name

    def describe(self, pin: Pin) -> Description:
        """Return the numbers of a version."""
        found = self._look(pin.reference)
        return Description(found["files"], found["bytes"], found["names"], found["time"], found["user"])

    def _look(self, reference: Reference) -> dict[str, Any]:
        """Return what DVC says of a reference, asked once for an exact one."""
        key = json.dumps(dict(reference), sort_keys=True)
        if key not in self._found:
            found = _ask("look", reference)
            exact = json.dumps({**reference, "rev": found["commit"]}, sort_keys=True)
            self._found[exact] = found
            return found
        known: dict[str, Any] = self._found[key]
        return known


def _ask(do: str, reference: Reference) -> dict[str, Any]:
    """Have a process of its own answer with DVC.

    Raises:
        DataError: DVC cannot do it.
        MissingExtraError: DVC is not installed.
    """
    worker = Path(__file__).with_name("worker.py")
    done = subprocess.run(
        [_python(), "-I", str(worker)],
        input=json.dumps({**reference, "do": do}),
        env=os.environ | _ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    where = f"{reference['path']} at {reference['rev']} of {reference['repo']}"
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise DataError(f"{where}: DVC failed: {last[0]}") from error
    if "error" in answer:
        raise DataError(f"{where}: {answer['error']}")
    return answer


def _python() -> str:
    """Return a Python that has DVC: this one, or that of the command `dvc`, in an environment of its own.

    Raises:
        MissingExtraError: There is neither.
    """
    if find_spec("dvc") is not None:
        return sys.executable
    command = shutil.which("dvc")
    beside = None if command is None else Path(command).resolve().with_name("python3")
    if beside is None or not beside.exists():
        raise MissingExtraError(
            "data.dvc: DVC is not installed: `pipx install 'dvc[s3]'` keeps its packages apart; or "
            f"{install_hint('dvc')}"
        )
    return str(beside)


def _refuse_credentials(repo: str) -> None:
    """Refuse a URL with credentials, which the config of a run would keep.

    Raises:
        DataError: It has some.
    """
    parts = urlsplit(repo)
    if "@" in parts.netloc and (parts.scheme != "ssh" or parts.password is not None):
        raise DataError("data.dvc.repo must not hold credentials: leave them to Git's credential helper")
