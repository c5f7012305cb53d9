"""Signatures that tell the user's own runs and studies from those of others.

A run directory may come from someone else, so nothing in it is believed. Creating a run or a search signs its
config, the folder of runs, the working directory and where the data are, with a key that only this user's
account can read (`~/.local/state/trainwright/key`, or below `XDG_STATE_HOME`). The signature does not match
where the config was changed, or the folder was copied from elsewhere. It matches wherever the command is
started.
"""

from __future__ import annotations

import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from trainwright.errors import CheckpointError, InputError
from trainwright.records.creation import Creation
from trainwright.records.document import Document
from trainwright.redact import redacted
from trainwright.safe_files import fsync_folder, make_folders, read_regular
from trainwright.storage.urls import url_of

SEARCH_CONFIG = "search.yaml"  # of a search; `config.yaml` would make its folder look like a run
_KEY_BYTES = 32


class Signature(Document):
    """The signature of the config of a search, in a file beside it; a run's is in its `Creation`."""

    FILE: ClassVar[str] = "signature.json"

    code_folder: str = ""  # as in `Creation`
    signature: str | None = None

    @property
    def places(self) -> str:
        """The folder that the signature covers."""
        return self.code_folder


def signature(folder: Path, config: bytes, places: str = "") -> str | None:
    """Return the signature of the config of a run or a search; None where there is no key.

    Args:
        folder: Its folder, below that of its experiment.
        config: The content of its config file.
        places: What it covers, too: `places` of the record that holds it.
    """
    try:
        return _signed(_key(), folder, config, places)
    except (OSError, ValueError, RuntimeError):  # also a home that is not known
        return None


def is_own(folder: Path, config_name: str = "config.yaml") -> bool:
    """Return whether this user has made a run or a search, where it lies now; see `foreign_reason`."""
    return foreign_reason(folder, config_name) is None


def foreign_reason(folder: Path, config_name: str = "config.yaml") -> str | None:
    """Return why a run or a search does not count as made by this user; None if it does.

    Args:
        folder: Its folder.
        config_name: The name of its config file.
    """
    record = Creation if config_name == "config.yaml" else Signature
    try:
        key = _key()
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        return f"your key, {_key_name()}, which tells your own runs from others, cannot be read: {reason}"
    try:
        signed = record.load(folder / record.FILE)
        places = signed.places if signed is not None else ""
        now = _signed(key, folder, read_regular(folder / config_name), places)
    except (OSError, CheckpointError) as error:
        return f"what shows who made it cannot be read: {error}"
    if signed is None or not signed.signature:
        return "it carries no signature of yours"
    if hmac.compare_digest(signed.signature.encode(errors="replace"), now.encode()):
        return None
    return (
        f"its signature is of another key than {_key_name()}, another folder of runs, or another config: "
        "was it copied, moved, edited, or made by another user?"
    )


def own_code_folder(folder: Path) -> Path | None:
    """Return the folder of code that a run or a search of this user's notes; None if there is none."""
    for record, config_name in ((Creation, "config.yaml"), (Signature, SEARCH_CONFIG)):
        if not (folder / config_name).exists() or not is_own(folder, config_name):
            continue
        signed = record.load(folder / record.FILE)
        if isinstance(signed, Creation | Signature) and signed.code_folder:
            return Path(signed.code_folder)
    return None


def foreign_error(folder: Path, key: str, text: str, config_name: str = "config.yaml") -> InputError:
    """Return the error of a config value that leads outside, of a run or a search that is not one's own.

    Args:
        folder: The folder of the run or the search.
        key: The dotted key of the value.
        text: The value.
        config_name: The name of its config file.
    """
    kind = "run" if config_name == "config.yaml" else "study"
    reason = foreign_reason(folder, config_name)
    return InputError(
        f"{key}: {redacted(text)} is not used, because {kind} {folder.name} may have come from someone else: "
        "a variable may hold a secret, and the config decides which host receives it"
        + (f"\n{reason}" if reason else "")
        + f"\nif you trust the {kind}, add --trust (trust=True)"
    )


def _signed(key: bytes, folder: Path, config: bytes, places: str) -> str:
    signed = f"{_place(folder)}\0{places}\0".encode(errors="surrogatepass")
    return hmac.new(key, signed + config, "sha256").hexdigest()


def _place(folder: Path) -> str:
    """Return the folder of runs that holds a run: its URL, or its path without links."""
    named, real = (path.parent.parent for path in (folder.absolute(), folder.resolve()))
    return url_of(named) or url_of(real) or str(real)


def _key() -> bytes:
    """Return this user's key; make it on first use.

    Raises:
        OSError: It cannot be read or made.
        ValueError: The file holds something else.
        RuntimeError: The user has no home.
    """
    file = _key_file()
    with suppress(FileNotFoundError):
        return _read(file)
    make_folders(file.parent)
    new = file.with_name(f".key-{secrets.token_hex(8)}")
    new.touch(0o600)
    try:
        with new.open("wb") as content:
            content.write(secrets.token_bytes(_KEY_BYTES))
            content.flush()
            os.fsync(content.fileno())
        with suppress(FileExistsError):
            os.link(new, file)  # whole at once, and never in place of another process's
        fsync_folder(file.parent)
    finally:
        new.unlink()
    return _read(file)


def _key_file() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base).absolute() / "trainwright" / "key"


def _key_name() -> str:
    """Return the path of the key file for messages, where the home may not be known."""
    try:
        return str(_key_file())
    except RuntimeError:
        return "~/.local/state/trainwright/key"


def _read(file: Path) -> bytes:
    key = file.read_bytes()
    if len(key) != _KEY_BYTES:
        raise ValueError(
            f"it holds {len(key)} bytes, not {_KEY_BYTES}: put it back, or delete it, and a new one is made"
        )
    return key
