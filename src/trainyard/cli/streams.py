"""The standard streams of a command: they show no secrets, and outlive their readers."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from trainyard.redact import redacted

_GONE = (errno.EPIPE, errno.EBADF, errno.EIO)  # a closed pipe, a closed descriptor, a terminal that hung up


class SafeStream:
    """A text stream that redacts what is written to it, and drops it once the reader is gone.

    It takes the place of `sys.stdout` and `sys.stderr`, so it covers what the user's functions and foreign libraries
    print. A program in a pipe that ends early (`| head`) must not fail a training.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text without its secrets."""
        self.write_raw(redacted(text))
        return len(text)

    def write_raw(self, text: str) -> None:
        """Write the text as it is: results, whose paths and names programs read."""
        if self._stream is None:
            return
        with self._surviving():
            try:
                self._stream.write(text)
            except UnicodeEncodeError as error:
                self._stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        if self._stream is not None:
            with self._surviving():
                self._stream.flush()

    def isatty(self) -> bool:
        """Return whether a terminal reads this."""
        with suppress(ValueError):  # the stream is closed
            return self._stream is not None and self._stream.isatty()
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in _GONE:
                raise  # a full disk, say: a result that is lost there must not count as written
            self._discard()
        except ValueError:  # somebody closed the stream
            self._stream = None

    def _discard(self) -> None:
        """Let everything go to the null device, also what libraries write to the descriptor itself."""
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, cast(TextIO, self._stream).fileno())
            os.close(null)
            return
        self._stream = None


def open_missing_descriptors() -> None:
    """Give the null device to those of the descriptors 0, 1 and 2 that are closed (`>&-`).

    Otherwise the first files of the run would get these numbers, and what libraries print would end up in them.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            os.set_inheritable(opened, True)
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", closefd=False))


@contextmanager
def safe_streams() -> Iterator[None]:
    """Make `sys.stdout` and `sys.stderr` safe."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, _safe(stream)) for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def _safe(stream: TextIO | SafeStream | None) -> SafeStream:
    return stream if isinstance(stream, SafeStream) else SafeStream(stream)
