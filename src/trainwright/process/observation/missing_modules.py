"""Modules that the user's code looks for, and that are not there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType

from trainwright.process.module_sources import is_installed
from trainwright.process.observation.call_origins import origin_of
from trainwright.process.observation.record import noting
from trainwright.process.observation.unobserved import unobserved


class _LastFinder:
    """A finder that is asked after all others: for modules that they do not find."""

    def find_spec(self, name: str, path: Iterable[str] | None, target: object = None) -> None:  # noqa: ARG002
        """Note where a module of the user's would be."""
        if (observation := noting()) is None or not _is_asked_by_user(sys._getframe(1)):
            return
        last = name.rpartition(".")[2]
        with unobserved(), suppress(Exception):
            for folder in sys.path if path is None else path:
                place = os.path.abspath(folder)  # noqa: PTH100
                if os.path.isdir(place) and not is_installed(place):  # noqa: PTH112
                    observation.note_question(f"{place}/{last}.py")
                    observation.note_question(f"{place}/{last}")


def _is_asked_by_user(frame: FrameType | None) -> bool:
    while frame is not None and origin_of(frame) in ("import", "python"):
        frame = frame.f_back
    return frame is not None and origin_of(frame) == "user"


_FINDER = _LastFinder()


def replace() -> None:
    """Add the finder."""
    sys.meta_path.append(_FINDER)


def put_back() -> None:
    """Remove the finder."""
    with suppress(ValueError):
        sys.meta_path.remove(_FINDER)
