"""Whether a run is the user's own: made by this user, in one of this user's folders of runs.

A file of a run directory may come from someone else, so nothing in it is believed. What makes a run, or a
search, signs its config and the place of its folder with a key that only this user's account can read
(`~/.local/state/trainwright/key`, or below `XDG_STATE_HOME`). The signature is wrong where the config was
changed, or the folder came from elsewhere.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from trainwright.digest import make_folders
from trainwright.records.creation import Creation
from trainwright.records.document import Document
from trainwright.records.urls import url_of
from trainwright.safe_open import read_regular

_KEY_BYTES = 32
_named: set[Path] = set()  # the folders of runs that the user of this process has named


class Signature(Document):
    """The signature of the config of a search, in a file beside it; a run's is in its `Creation`."""

    FILE: ClassVar[str] = "signature.json"

    signature: str | None = None


def note_folder(runs_dir: Path) -> None:
    """Note that the user has named a folder of runs: on the command line, by a variable, or as a default."""
    _named.add(runs_dir.resolve())


def signature(folder: Path, config: bytes) -> str | None:
    """Return the signature of the config of a run or a search; None where there can be no key.

    Args:
        folder: Its folder, below that of its experiment.
        config: The content of its config file.
    """
    import hmac  # loads OpenSSL, which `--help` does without

    key = _key()
    if key is None:
        return None
    runs_dir = folder.absolute().parent.parent
    place = url_of(runs_dir) or str(runs_dir.resolve())
    return hmac.new(key, place.encode(errors="surrogateescape") + b"\0" + config, "sha256").hexdigest()


def is_own(folder: Path, config_name: str = "config.yaml") -> bool:
    """Return whether a run or a search was made by this user, and lies in a folder of runs of theirs.

    That is one that the user has named, or one inside the working directory.

    Args:
        folder: Its folder.
        config_name: The name of its config file.
    """
    import hmac

    runs_dir = folder.resolve().parent.parent
    if runs_dir not in _named and not runs_dir.is_relative_to(Path.cwd().resolve()):
        return False
    record = Creation if config_name == "config.yaml" else Signature
    with suppress(Exception):  # whatever is damaged there, it is not signed
        signed = record.load(folder / record.FILE)
        now = signature(folder, read_regular(folder / config_name))
        return bool(signed and signed.signature and now and hmac.compare_digest(signed.signature, now))
    return False


def _key() -> bytes | None:
    """Return this user's key, which is made at first; None where the user has no folder to keep it in."""
    try:
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        file = Path(base).absolute() / "trainwright" / "key"
        with suppress(FileNotFoundError):
            return _read(file)
        make_folders(file.parent)
        new = file.with_name(f".key-{secrets.token_hex(8)}")
        new.touch(0o600)
        try:
            new.write_bytes(secrets.token_bytes(_KEY_BYTES))
            with suppress(FileExistsError):
                os.link(new, file)  # whole at once, and never in place of another process's
        finally:
            new.unlink()
        return _read(file)
    except (OSError, RuntimeError):  # a home that is not known
        return None


def _read(file: Path) -> bytes | None:
    key = file.read_bytes()
    return key if len(key) == _KEY_BYTES else None
