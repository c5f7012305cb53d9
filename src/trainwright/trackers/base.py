"""The contract of trackers: outside places that the journal is forwarded to.

A tracker is called in a feeder process of its own (`trackers/feed`), which tails the journal, and from one
thread only. It is never called in the training process: it may be slow, raise, or die without any effect on
training. A call that raised is repeated with the same arguments after a pause, by the same object or by a new
one in another process, so a failed call must leave nothing behind that makes its repetition wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

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


class DatasetCard(NamedTuple):
    """A split of a run's data: `context` is training, validation or test, `digest` what the model sees."""

    name: str
    source: str
    context: str
    digest: str
    rows: int


class RunCard(NamedTuple):
    """A run as trackers show it. `params` are the config's values by dotted key, secrets unexpanded.

    They are those that the user set, where that is recorded; else all. `study` is the id of the study that
    the run is a trial of; its folder is beside that of the run.
    """

    run_id: str
    experiment: str
    run_dir: Path
    params: Mapping[str, str]
    tags: Mapping[str, str]
    datasets: Sequence[DatasetCard] = ()
    study: str | None = None


class StudyCard(NamedTuple):
    """A study that has ended, as trackers show it.

    `metrics` are those of its best trial, and `best_run` is the id of that trial's run, or of the final
    training with its parameters; empty where no trial is the best.
    """

    study_id: str
    experiment: str
    folder: Path
    status: str
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    best_run: str = ""


class Tracker(Protocol):
    """An adapter; constructed with its own validated `Params`, it imports its library then and not before."""

    Params: ClassVar[type[BaseModel]]
    wants_histograms: ClassVar[bool]

    def __init__(self, params: BaseModel) -> None: ...

    def open(self, run: RunCard) -> Mapping[str, int]:
        """Find the run by the tag `trainwright.run_id`, or create it with params and tags.

        Returns:
            The last step that the tracker already holds of each metric and of each histogram, by name.
            Nothing up to that step is sent again.
        """

    def log(self, points: Sequence[Point]) -> None:
        """Send points, in the order of their steps; return when the tracker has them."""

    def log_histograms(self, histograms: Sequence[Histogram]) -> None:
        """Send histograms; only called if `wants_histograms`."""

    def log_artifact(self, path: Path, name: str) -> None:
        """Send a file, or a folder with its content, under `name`, replacing what was sent before."""

    def close(self, status: str) -> None:
        """End the tracker's run, which may be opened again later.

        Args:
            status: How the attempt ended, one of `records.status.ENDED`.
        """


@runtime_checkable
class ModelTracker(Tracker, Protocol):
    """A tracker that also takes the model of a run that has ended; called last, after `close`."""

    wants_model: bool

    def log_model(self, folder: Path, digest: str) -> None:
        """Send the model, unless the tracker holds it already.

        Args:
            folder: A folder that the tracker may write into; `run` in it is the part of the run that
                predictions need (see `records.portable`).
            digest: The digest of its weights.

        Raises:
            InputError: It is no model that this tracker could take.
        """


@runtime_checkable
class StudyTracker(Protocol):
    """A tracker that shows the runs of a study below a run of its own."""

    def end_study(self, study: StudyCard) -> None:
        """Find the run of the study, or create it, and record how the study has ended.

        Called in a process of its own; it may be called again, when a study that was resumed has ended.
        """
