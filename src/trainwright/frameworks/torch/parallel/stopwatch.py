"""Measures how long this process computes in each step, before it waits for the others."""

from __future__ import annotations

import time
from typing import Any

import torch


class _Waiting:
    """The seconds that the thread of the steps has waited for other processes: in its `with` blocks.

    `is_on` within a block; `changes` counts how often one has begun or ended.
    """

    def __init__(self) -> None:
        self.seconds = self._began = 0.0
        self.changes, self.is_on = 0, False

    def __enter__(self) -> None:
        self._began = time.perf_counter()
        self.changes, self.is_on = self.changes + 1, True

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began
        self.changes, self.is_on = self.changes + 1, False


waiting = _Waiting()


class Stopwatch:
    """Mark the start of each step, and the end of its backward pass; nothing is read until `take`.

    What is spent in blocks of `waiting` does not count. On a GPU, which computes later than it is told to,
    the marks are events in its stream, and what this stream waits for in a pass counts.

    Args:
        device: The device that computes.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Record an event; calls alternate between start and end."""
        if self._is_cuda:
            mark: Any = torch.cuda.Event(enable_timing=True)
            mark.record()
        else:
            mark = time.perf_counter() - waiting.seconds
        self._marks.append(mark)

    def take(self) -> list[float]:
        """Return the seconds between the marks of each step since the last call."""
        marks, self._marks = self._marks, []
        if self._is_cuda and marks:
            marks[-1].synchronize()
            return [
                start.elapsed_time(end) / 1000 for start, end in zip(marks[::2], marks[1::2], strict=True)
            ]
        return [end - start for start, end in zip(marks[::2], marks[1::2], strict=True)]
