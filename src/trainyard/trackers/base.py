"""The contract of trackers: outside places that the journal is forwarded to.

A tracker lives in a process of its own (`trackers/feed`), which tails the journal: it is never called from the
training process, from one thread only, and may be slow, raise, or die without the training noticing. A call that
raised is repeated with the same arguments after a pause, by the same object or by a new one in another process, so
each call must leave nothing behind that would make its repetition wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from pydantic import BaseModel


class Point(NamedTuple):
    """One value of one metric. `time` is seconds since the epoch."""

    metric: str
    step: int
    value: float
    time: float


class Histogram(NamedTuple):
    """The distribution of one tensor: `counts[i]` values lie in [edges[i], edges[i+1])."""

    name: str
    step: int
    time: float
    edges: Sequence[float]
    counts: Sequence[int]
    sum: float
    sum_squares: float


class RunCard(NamedTuple):
    """What a tracker is told about a run. `params` are the resolved config's values by dotted key, secrets unexpanded."""

    run_id: str
    experiment: str
    run_dir: Path
    params: Mapping[str, str]
    tags: Mapping[str, str]


class Tracker(Protocol):
    """An adapter; constructed with its own validated `Params`, importing its library then and not before."""

    Params: ClassVar[type[BaseModel]]
    wants_histograms: ClassVar[bool]

    def __init__(self, params: BaseModel) -> None: ...

    def open(self, run: RunCard) -> Mapping[str, int]:
        """Finds the run again by the tag `trainyard.run_id`, or makes it, with params and tags.

        Returns:
            For each metric, and each histogram's name, that the tracker already holds, the last step it holds: nothing up
            to there is sent again.
        """

    def log(self, points: Sequence[Point]) -> None:
        """Sends points, in the order of their steps. Returns when the tracker has them."""

    def log_histograms(self, histograms: Sequence[Histogram]) -> None:
        """Sends histograms; only called where `wants_histograms`."""

    def log_artifact(self, path: Path, name: str) -> None:
        """Sends a file, or a folder with all it holds, under `name`; sent again, it replaces."""

    def close(self, status: str) -> None:
        """Ends the tracker's run: `completed`, `failed`, `preempted`, `interrupted` (it may be opened again)."""
