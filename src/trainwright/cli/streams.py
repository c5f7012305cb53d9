"""Standard streams that show no secrets and survive the loss of their reader."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from trainwright.redact import redacted

_GONE = (errno.EPIPE, errno.EBADF, errno.EIO)  # a closed pipe, a closed descriptor, a terminal that hung up


class SafeStream:
    """A text stream that redacts its text, and discards it once the reader is gone.

    It replaces `sys.stdout` and `sys.stderr`, so it also covers what the user's functions and foreign
    libraries print. A reader that ends early (`| head`) must not fail a training.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text without its secrets."""
        self.write_raw(redacted(text))
        return len(text)

    def write_raw(self, text: str) -> None:
        """Write the text unchanged: results, whose paths and names are read by programs."""
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
        """Return whether this is a terminal."""
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
                raise  # for example a full disk: the result is lost, and the user must know
            self._discard()
        except ValueError:  # somebody closed the stream
            self._stream = None

    def _discard(self) -> None:
        """Redirect the descriptor to the null device, so that C libraries can write to it, too."""
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, cast(TextIO, self._stream).fileno())
            os.close(null)
            return
        self._stream = None


def open_missing_descriptors() -> None:
    """Open the null device for those of the descriptors 0, 1 and 2 that are closed (`>&-`).

    Otherwise the first files that a run opens would get these numbers, and what libraries print would end up
    in them.
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
    """Replace `sys.stdout` and `sys.stderr` by safe streams."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, _safe(stream)) for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def _safe(stream: TextIO | SafeStream | None) -> SafeStream:
    return stream if isinstance(stream, SafeStream) else SafeStream(stream)
