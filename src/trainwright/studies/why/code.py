"""The user's code of two runs, checked out aside, so that their own checkout stays as it is."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainwright.digest import sha256_file
from trainwright.errors import InputError
from trainwright.records.manifest import Manifest

_SECONDS = 120  # for a git command; large repositories take their time


def differs(before: Manifest, after: Manifest) -> bool:
    """Return whether the user's own code differs between two runs."""
    return before.code.modules != after.code.modules


def why_not(before: Manifest, after: Manifest, folder: Path) -> str | None:
    """Return why the code of two runs cannot be checked out of the repository of a folder, or None."""
    for manifest in (before, after):
        git = manifest.code.git
        if git is None:
            return f"run {manifest.run_id} recorded no commit"
        if git.dirty:
            return f"run {manifest.run_id} had changes that were not committed"
        if not _git_works(folder, "cat-file", "-e", f"{git.commit}^{{commit}}"):
            return f"commit {git.commit[:12]} of run {manifest.run_id} is not in the repository of {folder}"
    return None


@contextmanager
def checked_out(manifest: Manifest, folder: Path, target: Path) -> Iterator[Path]:
    """Check out the commit of a run into a new folder, which is removed at the end.

    Args:
        manifest: The manifest of the run.
        folder: A folder in the repository; the run was started there.
        target: The new folder.

    Yields:
        The folder in the new one that corresponds to `folder`.

    Raises:
        InputError: Git refuses, or the commit does not hold the code that the run had.
    """
    assert manifest.code.git is not None, "see `why_not`"
    _remove(folder, target)  # of a process that was killed
    # A hook of the user's may do anything; it is for their own checkouts.
    _git(
        folder,
        "-c",
        "core.hooksPath=/dev/null",
        "worktree",
        "add",
        "--detach",
        str(target),
        manifest.code.git.commit,
    )
    try:
        inside = target / _git(folder, "rev-parse", "--show-prefix").strip()
        _check(manifest, inside)
        yield inside
    finally:
        _remove(folder, target)


def _check(manifest: Manifest, folder: Path) -> None:
    for name, sha256 in manifest.code.modules.items():
        path = folder / Path(*name.split("."))
        files = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
        if files and sha256_file(files[0]) != sha256:
            raise InputError(
                f"the commit of run {manifest.run_id} does not hold the module {name} that the run imported"
            )


def _remove(folder: Path, target: Path) -> None:
    if target.exists():
        _git_works(folder, "worktree", "remove", "--force", "--force", str(target))
    _git_works(folder, "worktree", "prune")


def _git_works(folder: Path, *words: str) -> bool:
    try:
        _git(folder, *words)
    except InputError:
        return False
    return True


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, check=True, timeout=_SECONDS
        )
    except subprocess.CalledProcessError as error:
        why = error.stderr.decode(errors="replace").strip()
        raise InputError(f"git {words[0]} failed in {folder}: {why}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(f"git cannot be used in {folder}: {error}") from error
    return done.stdout.decode(errors="replace")
