"""TensorBoard: event files, with scalars and weight histograms."""

from __future__ import annotations

import io
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from pydantic import Field

from trainwright.config.fields import Section
from trainwright.errors import TrackerError
from trainwright.require import require
from trainwright.safe_files import open_regular
from trainwright.trackers.base import Histogram, Point, RunCard

RUN_ID = "trainwright.run_id"
CARD = "trainwright/run"  # the text panel with params and tags


class TensorboardParams(Section):
    """The place of the event files."""

    log_dir: str | None = Field(
        None, description="holds a folder for each run; default: `tensorboard` in the run directory"
    )


class TensorboardTracker:
    """Write event files through the `tensorboard` package alone.

    Its `EventFileWriter` is not used: it imports all of TensorFlow if that is installed, and it writes in a
    thread of its own, which cannot say whether a batch arrived. Here a batch is on disk when `log` returns,
    and is removed again if it could not be written completely.
    """

    Params: ClassVar[type[TensorboardParams]] = TensorboardParams
    wants_histograms: ClassVar[bool] = True

    def __init__(self, params: TensorboardParams) -> None:
        """Import TensorBoard's messages.

        Raises:
            MissingExtraError: It is not installed.
        """
        self._summary = require("tensorboard.compat.proto.summary_pb2", "tensorboard")
        self._tensor = require("tensorboard.compat.proto.tensor_pb2", "tensorboard")
        self._event = require("tensorboard.compat.proto.event_pb2", "tensorboard").Event
        self._framing = require("tensorboard.summary.writer.record_writer", "tensorboard").RecordWriter
        self._params = params
        self._file: BinaryIO | None = None

    def open(self, run: RunCard) -> Mapping[str, int]:
        """Read what the run's event files hold, and begin a new one beside them.

        Raises:
            TrackerError: The folder cannot be read or written.
        """
        folder = (
            Path(self._params.log_dir) / run.run_id if self._params.log_dir else run.run_dir / "tensorboard"
        )
        held: dict[str, int] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for event in self._events(folder):
                held.update(
                    (value.tag, max(event.step, held.get(value.tag, 0))) for value in event.summary.value
                )
            self._file = open_regular(folder / _file_name(), "xb", depth=2)
        except OSError as error:
            raise TrackerError(f"TensorBoard in {folder}: {error}") from error
        self._write([self._event(wall_time=time.time(), file_version="brain.Event:2")])
        texts = {
            **run.params,
            **{f"tag: {key}": value for key, value in run.tags.items()},
            f"tag: {RUN_ID}": run.run_id,
        }
        if held.pop(CARD, None) is None:
            self._write([self._of_step(0, time.time(), [self._table(CARD, texts)])])
        return held

    def log(self, points: Sequence[Point]) -> None:
        """Write points, one event for each step."""
        value = self._summary.Summary.Value
        self._write(
            [
                self._of_step(
                    step, wall_time, [value(tag=point.metric, simple_value=point.value) for point in group]
                )
                for (step, wall_time), group in groupby(points, key=lambda point: (point.step, point.time))
            ]
        )

    def log_histograms(self, histograms: Sequence[Histogram]) -> None:
        """Write histograms."""
        self._write([self._of_step(each.step, each.time, [self._bars(each)]) for each in histograms])

    def log_artifact(self, path: Path, name: str) -> None:
        """Do nothing: TensorBoard shows no files, and those of the run are in the run directory."""

    def close(self, status: str) -> None:  # noqa: ARG002 - the contract's
        """Close the event file; TensorBoard knows no status."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _of_step(self, step: int, wall_time: float, values: list[Any]) -> Any:
        return self._event(step=step, wall_time=wall_time, summary=self._summary.Summary(value=values))

    def _bars(self, histogram: Histogram) -> Any:
        bars = self._summary.HistogramProto(
            min=histogram.edges[0],
            max=histogram.edges[-1],
            num=sum(histogram.counts),
            sum=histogram.sum,
            sum_squares=histogram.sum_squares,
            bucket_limit=histogram.edges[1:],
            bucket=histogram.counts,
        )
        return self._summary.Summary.Value(tag=histogram.name, histo=bars)

    def _table(self, tag: str, texts: Mapping[str, str]) -> Any:
        rows = [f"| {_cell(key)} | {_cell(value)} |" for key, value in texts.items()]
        text = "\n".join(["| | |", "| --- | --- |", *rows])
        plugin = self._summary.SummaryMetadata.PluginData(plugin_name="text")
        return self._summary.Summary.Value(
            tag=tag,
            metadata=self._summary.SummaryMetadata(plugin_data=plugin),
            tensor=self._tensor.TensorProto(dtype="DT_STRING", string_val=[text.encode()]),
        )

    def _write(self, events: Sequence[Any]) -> None:
        if self._file is None:
            raise TrackerError("TensorBoard: the event file is closed; open the tracker first")
        data = io.BytesIO()
        framing = self._framing(data)
        for event in events:
            framing.write(event.SerializeToString())
        end = self._file.tell()
        try:
            self._file.write(data.getvalue())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            _remove_batch(self._file, end)
            self._file = None
            raise TrackerError(f"TensorBoard: {error}") from error

    def _events(self, folder: Path) -> Iterator[Any]:
        for path in sorted(folder.glob("*.tfevents.*")):
            with open_regular(path, depth=2) as file:
                for data in _records(file):
                    yield self._event.FromString(data)


def _records(file: BinaryIO) -> Iterator[bytes]:
    """Yield the records of an event file, up to one that was not written completely.

    A record is the length of its data, a checksum of that, the data, and a checksum of those.
    """
    while len(header := file.read(12)) == 12:
        length = struct.unpack("<Q", header[:8])[0]
        record = file.read(length + 4)
        if len(record) < length + 4:
            return
        yield record[:length]


def _file_name() -> str:
    # TensorBoard reads files in the order of their names: the time comes first, with enough digits to differ.
    return f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"


def _remove_batch(file: BinaryIO, end: int) -> None:
    """Cut off a batch that was written in part, so that sending it again doubles nothing."""
    os.truncate(file.name, end)
    try:
        file.close()  # tries once more to write what it still buffers ...
    except OSError:
        pass
    finally:
        os.truncate(file.name, end)  # ... which is no longer wanted


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
