"""The contract of versions of data: a reference becomes an exact pin, and a pin becomes files.

An adapter is constructed with the folder of the runs, as a URL, and asked about references: the keys of the
config that name data. No call changes what is kept. Methods may be called from any thread. An adapter raises
`DataError` with one line that says what is there, or, of a version that is gone, who deleted it and when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from trainwright.records.pins import Pin

Reference = Mapping[str, str | None]


class Description(NamedTuple):
    """The content of a version in numbers.

    Attributes:
        files: The number of files.
        bytes: Their size.
        names: The paths of the first files, relative to the folder; of a file, its name.
        time: When the version was made, in seconds since the epoch; None: it is not known.
        user: Who made it; empty: it is not known.
        message: A note on it.
        tags: Its other names.
    """

    files: int
    bytes: int
    names: Sequence[str]
    time: float | None = None
    user: str = ""
    message: str = ""
    tags: Sequence[str] = ()


class Version(Protocol):
    """A system that keeps versions of data."""

    def __init__(self, runs: str) -> None:
        """Remember where the runs are: the URL of their folder."""

    def resolve(self, reference: Reference) -> Pin:
        """Return the exact version that a reference means now; a moving name means another one later.

        Resolving `Pin.reference` gives the same pin for ever.

        Raises:
            DataError: There is no such version, or it was deleted.
        """

    def materialise(self, pin: Pin, folder: Path) -> Path:
        """Write the files of a version into an empty folder, and return the path of the file or folder there.

        All content is compared with its hashes. The path is `folder / pin.file`, or a new folder below
        `folder`. If this fails, the caller deletes what is in `folder`.

        Raises:
            DataError: The version was deleted, is damaged or cannot be read; what is damaged is named.
            OSError: The files cannot be written.
        """

    def describe(self, pin: Pin) -> Description:
        """Return the content of a version in numbers.

        Raises:
            DataError: As `materialise`.
        """
