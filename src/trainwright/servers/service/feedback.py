"""Labels that come after the predictions, and the quality of the models by them.

The recorder's thread writes predictions to a database that the replicas share; a label may reach another
replica than the one that answered. Labels that come before their prediction is written wait for it.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import re
import sqlite3
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.datasets.tables.raw import RawPreparation
from trainwright.errors import DataError, InputError
from trainwright.evaluation.metrics import wanted_metrics
from trainwright.monitoring.feedback import quality
from trainwright.plugins import task_for
from trainwright.servers.service.errors import RequestError, invalid, malformed
from trainwright.servers.service.feedback_store import Known, Predicted, Store
from trainwright.servers.service.forms.base import JSON, decoded
from trainwright.servers.service.forms.tables import column_of
from trainwright.servers.service.metrics import Metrics
from trainwright.servers.service.models import Models
from trainwright.servers.service.recording import LONGEST, Record
from trainwright.servers.service.served import ServedModel
from trainwright.types import Array

log = logging.getLogger("trainwright")
_MOST_ITEMS = 10_000  # of a request
_EARLY_SECONDS = 60.0  # that labels wait for their prediction to be written
_EARLY_ROWS = 100_000
_JUDGED_EVERY = 5.0  # seconds
_REST = 20.0  # times as long as judging took
_SHOWN = 20  # items that are named
_MESSAGE = 300  # characters
_ADVICE = re.compile(r"; (remove these rows|training knows|fix it).*", re.DOTALL)


class Item(msgspec.Struct, forbid_unknown_fields=True):
    """The labels of a request."""

    id: str
    labels: list[Any] | msgspec.UnsetType = msgspec.UNSET
    label: Any | msgspec.UnsetType = msgspec.UNSET

    @property
    def rows(self) -> list[Any]:
        """The label of each row."""
        return [self.label] if self.labels is msgspec.UNSET else self.labels


_DECODER = msgspec.json.Decoder(list[Item] | Item)


class Verdict(NamedTuple):
    """The outcome of an item (`taken`, `waiting`, `repeated` or `refused`), and why."""

    outcome: str
    message: str = ""
    targets: bytes | None = None


def is_supported(model: ServedModel) -> bool:
    """Return whether predictions of a model can be compared with labels that come later: one for each row."""
    task = task_for(model.predictor.info)
    return not (task.sums or task.generates_text or task.gives_masks or task.has_inner_labels)


class Feedback:
    """The labels of the requests to the models of a service; a `Sink` of what they answer.

    Args:
        models: The models.
        store: The database of the predictions.
        metrics: Gets the quality, and the number of labels by outcome.
        read_body: Reads the body of a request.
        folder: The folder of the log of requests, which gets the labels, too.
    """

    noun = "predictions that wait for their labels"

    def __init__(
        self,
        models: Models,
        store: Store,
        metrics: Metrics,
        read_body: Callable[[Request], Awaitable[bytes]],
        folder: Path | None = None,
    ) -> None:
        self._models = models
        self._store = store
        self._metrics = metrics
        self._read_body = read_body
        self._new: list[Predicted] = []
        self._due = 0.0  # when the quality is judged for the metrics
        self._reports: dict[tuple[str, int | None], tuple[Any, dict[str, Any]]] = {}
        moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        self._log = folder and folder / f"feedback-{moment}-{uuid.uuid4().hex[:8]}.jsonl"

    # -- predictions, in the thread of the recorder

    def take(self, model: ServedModel, rows: Any, records: Sequence[Record]) -> None:  # noqa: ARG002
        """Take answers; they are written together."""
        run = model.predictor.run_id
        self._new += [Predicted(one.identifier, run, np.asarray(one.answer.outputs)) for one in records]

    def tick(self) -> None:
        """Write the predictions, and give them the labels that came before."""
        new, self._new = self._new, []
        if new:
            try:
                self._store.add(new)
            except sqlite3.Error:
                self._metrics.unrecorded.inc(sum(len(one.outputs) for one in new))
                raise
        if early := self._store.due():
            items = [Item(name, json.loads(text)) for name, text in early]
            refused = [one for one in self._take(items, is_logged=False) if one.outcome == "refused"]
            if refused:
                log.warning(
                    "labels that came before their predictions do not fit: of %d requests", len(refused)
                )
        if rows := self._store.expired(_EARLY_SECONDS):
            self._metrics.labels.labels("expired").inc(rows)
        if (began := time.monotonic()) >= self._due and self._store.takes_turn(_JUDGED_EVERY):
            self._show()
            self._due = time.monotonic() + max(_JUDGED_EVERY, _REST * (time.monotonic() - began))

    def close(self) -> None:
        """Write what is left, and close the database."""
        self.tick()
        self._store.close()

    # -- labels

    async def post(self, request: Request) -> Response:
        """Answer a request that brings labels."""
        body = await self._read_body(request)
        kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
        if kind not in (JSON, "", "application/x-www-form-urlencoded"):
            raise RequestError(415, "unknown_content_type", f"content type {kind[:80]!r} given; give {JSON}")
        try:
            return await asyncio.to_thread(self._answer, body)
        except (sqlite3.Error, OSError) as error:  # such as a full disk
            log.warning("labels cannot be kept: %s", type(error).__name__)
            raise RequestError(
                503,
                "not_kept",
                "the labels cannot be kept now: send them again",
                headers={"Retry-After": "5"},
            ) from None

    def _answer(self, body: bytes) -> Response:
        found = decoded(body, _DECODER, _no_items)
        items = [found] if isinstance(found, Item) else found
        if not items:
            raise invalid("the request holds no labels")
        if len(items) > _MOST_ITEMS:
            raise RequestError(
                413,
                "too_many_items",
                f"the labels of {len(items):,} requests given; {_MOST_ITEMS:,} may come at once",
            )
        try:
            verdicts = self._take(items, is_logged=True)
        except RecursionError:
            raise malformed("the JSON is nested too deeply") from None
        rows = Counter[str](dict.fromkeys(("taken", "waiting", "repeated", "refused"), 0))
        for item, verdict in zip(items, verdicts, strict=True):
            rows[verdict.outcome] += len(item.rows)
        said = [
            {"item": i + 1, "id": items[i].id[:LONGEST], "outcome": one.outcome, "message": one.message}
            for i, one in enumerate(verdicts)
            if one.message
        ]
        content: dict[str, Any] = {"labels": dict(rows), "items": said[:_SHOWN]}
        refused = [one for one in said if one["outcome"] == "refused"]
        if refused:
            first = f"item {refused[0]['item']}: {refused[0]['message']}"
            more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
            rest = "; the other items are taken" if len(refused) < len(items) else ""
            content["items"] = refused[:_SHOWN]
            content["error"] = {"code": "invalid_feedback", "message": f"{first}{more}{rest}"}
        status = 422 if refused else 202 if rows["waiting"] else 200
        return Response(msgspec.json.encode(content), status, media_type=JSON)

    def _take(self, items: Sequence[Item], *, is_logged: bool) -> list[Verdict]:
        """Judge labels, and keep those that fit."""
        ids = [item.id[:LONGEST] for item in items]
        verdicts = self._judged(items, ids, self._store.known([*dict.fromkeys(ids)]))
        kept = [i for i, one in enumerate(verdicts) if one.outcome in ("taken", "waiting")]
        if is_logged and self._log and kept:
            self._write([(ids[i], items[i]) for i in kept])
        taken = [i for i in kept if verdicts[i].outcome == "taken"]
        self._store.label([(ids[i], _text(items[i].rows), verdicts[i].targets) for i in taken])
        early = [i for i in kept if verdicts[i].outcome == "waiting"]
        waiting = [(ids[i], _text(items[i].rows), len(items[i].rows)) for i in early]
        if early:
            for i in early[self._store.add_early(waiting, _EARLY_ROWS) :]:
                verdicts[i] = Verdict("refused", "no prediction of this id is kept, and too many labels wait")
        for item, verdict in zip(items, verdicts, strict=True):
            self._metrics.labels.labels(verdict.outcome).inc(len(item.rows))
        return verdicts

    def _judged(self, items: Sequence[Item], ids: Sequence[str], known: Mapping[str, Known]) -> list[Verdict]:
        verdicts: list[Verdict | None] = []
        first = self._store.early([*dict.fromkeys(ids)])  # labels of an id that came before
        groups: dict[Any, list[int]] = defaultdict(list)  # of items that can be encoded together
        for i, (item, name) in enumerate(zip(items, ids, strict=True)):
            found = known.get(name)
            verdicts.append(_refused(item, found, first.get(name)))
            if verdicts[i] is None:
                first[name] = _text(item.rows)
                groups[found and found.run, frozenset(map(type, item.rows))].append(i)
        for (run, _), members in groups.items():
            verdicts_of = self._encoded(run, [items[i].rows for i in members])
            for i, verdict in zip(members, verdicts_of, strict=True):
                verdicts[i] = verdict
        return [one for one in verdicts if one is not None]

    def _encoded(self, run: str | None, labels: Sequence[list[Any]]) -> list[Verdict]:
        """Return verdicts on the labels of requests that one run has answered.

        Labels for a run that is not served any more are judged by the main model, and count in no quality.
        """
        by_run = {one.predictor.run_id: one for one in self._models.by_role.values()}
        model = by_run.get(run or "", self._models.main)
        try:
            targets = _targets(model, [label for one in labels for label in one])
        except (DataError, InputError, RequestError) as error:
            if len(labels) > 1:
                return [verdict for one in labels for verdict in self._encoded(run, [one])]
            message = str(error).replace("the rows given: ", "")
            known = re.search("training knows [^;]*", message)
            message = _ADVICE.sub("", message)[:_MESSAGE] + (f"; {known[0]}"[:_MESSAGE] if known else "")
            return [Verdict("refused", message)]
        if run is None:
            seconds = f"{_EARLY_SECONDS:g} s"
            message = f"no prediction of this id is kept; the labels wait {seconds} for one to be written"
            logged = ", and are in the log" if self._log else ""
            return [Verdict("waiting", f"{message}{logged}")] * len(labels)
        if run not in by_run:
            return [Verdict("taken")] * len(labels)
        bounds = np.cumsum([0, *map(len, labels)])
        return [Verdict("taken", "", targets[start:stop].tobytes()) for start, stop in pairwise(bounds)]

    def _write(self, items: Sequence[tuple[str, Item]]) -> None:
        """Add labels to the log, which is as durable as the answer."""
        assert self._log is not None, "the caller checks it"
        now, names = time.time(), _target_names(self._models.main)
        lines = []
        for one, item in items:
            labels = {names[0]: item.rows}
            if len(names) > 1:
                labels = {name: [label[name] for label in item.rows] for name in names}
            lines.append(json.dumps({"id": one, "labels": labels, "at": now}) + "\n")
        with self._log.open("ab", buffering=0) as file:
            size = file.tell()
            content = "".join(lines).encode()
            if file.write(content) < len(content):  # the disk is full
                file.truncate(size)
                raise OSError(errno.ENOSPC, "no space is left")

    # -- quality

    async def show(self, request: Request) -> Response:
        """Answer a request for the quality of the models."""
        query = request.query_params
        if unknown := query.keys() - {"rows"}:
            raise RequestError(422, "unknown_option", f"option {min(unknown)[:40]!r} given; there is: rows")
        text = query.get("rows", "1")
        if not re.fullmatch(r"\d{1,12}", text, re.ASCII) or int(text) == 0:
            raise RequestError(422, "invalid_option", f"rows {text[:40]!r} given; give a number of rows")
        rows = int(text) if "rows" in query else None
        return Response(msgspec.json.encode(await asyncio.to_thread(self.report, rows)), media_type=JSON)

    def report(self, rows: int | None = None) -> dict[str, Any]:
        """Return the quality of each model that answers requests.

        Args:
            rows: How many of the last rows with labels count; None: all that are kept.
        """
        counts = self._store.counts()
        models = {role: one for role, one in self._models.by_role.items() if not one.is_shadow}
        return {
            "models": [
                {"role": role, "name": one.name, **self._quality(one, counts, rows)}
                for role, one in models.items()
            ]
        }

    def _quality(
        self, model: ServedModel, counts: Mapping[str, tuple[int, int, int]], rows: int | None
    ) -> dict[str, Any]:
        predictor = model.predictor
        kept, labeled, _ = state = counts.get(predictor.run_id, (0, 0, 0))
        if (known := self._reports.get((predictor.run_id, rows))) and known[0] == state:
            return known[1]
        outputs, encoded = self._store.labeled(predictor.run_id, rows)
        targets = _decoded_targets(model, encoded)
        own = predictor.run.test_metrics()
        expected = {name.removeprefix("test_"): value for name, value in own.items()}
        metrics = wanted_metrics(predictor.config, predictor.info)
        found = {
            "run": predictor.run_id,
            "rows": kept,
            "labels": labeled,
            "used": len(outputs),
            "metrics": quality(outputs, targets, predictor.info, metrics, expected),
        }
        if len(self._reports) > _SHOWN:
            self._reports.clear()
        self._reports[predictor.run_id, rows] = state, found
        return found

    def _show(self) -> None:
        """Show the quality in the metrics."""
        for one in self.report()["models"]:
            for name, metric in one["metrics"].items():
                places = (
                    (self._metrics.quality, "value"),
                    (self._metrics.quality_lower, "low"),
                    (self._metrics.quality_upper, "high"),
                )
                for gauge, key in places:
                    if metric[key] is not None:
                        gauge.labels(name, one["name"]).set(metric[key])


def _no_items(message: str) -> RequestError:
    """Return the error of a body that holds no items, of which msgspec says what is wrong."""
    said = message[:1].lower() + message[1:_MESSAGE]
    return RequestError(
        422, "invalid_feedback", f"{said}; an item is an object with `id`, and `labels` (a list) or `label`"
    )


def _refused(item: Item, known: Known | None, before: str | None) -> Verdict | None:
    """Return the verdict on an item that needs no look at its labels; None: they have to be looked at."""
    message = ""
    if (item.labels is msgspec.UNSET) == (item.label is msgspec.UNSET):
        message = "give labels (a list), or label (of one row)"
    elif not item.rows:
        message = "the list of labels is empty"
    elif known is not None and len(item.rows) != known.rows:
        message = f"{len(item.rows):,} labels given; the request has {known.rows:,} rows with predictions"
    elif any(label is None for label in item.rows):
        message = "a label is null; leave out requests whose labels are not known"
    elif (before := (known and known.labels) or before) is not None:
        if before == _text(item.rows):
            return Verdict("repeated")
        message = "other labels came for this request before"
    return Verdict("refused", message) if message else None


def _targets(model: ServedModel, labels: Sequence[Any]) -> Array:
    """Return labels as targets, (rows, ...), in the dtype of the task.

    Raises:
        DataError, InputError, RequestError: They are none of this model.
    """
    predictor = model.predictor
    names = _target_names(model)
    columns: dict[str, Any]
    if len(names) > 1:
        if not all(isinstance(one, dict) and one.keys() == {*names} for one in labels):
            raise InputError(f"a label must be an object with {', '.join(names)}")
        columns = {name: column_of([one[name] for one in labels]) for name in names}
    elif not any(isinstance(one, list | dict) for one in labels):
        columns = {names[0]: column_of(labels)}
    elif isinstance(own := predictor.preparation, TabularPreparation | RawPreparation):
        if own.target.lists is None or not all(isinstance(one, list) for one in labels):
            raise InputError("a label must be one number, text or boolean")
        columns = {names[0]: np.empty(len(labels), object)}
        columns[names[0]][:] = labels
    else:  # of arrays, several values
        try:
            columns = {names[0]: np.array(labels, np.float64)}
        except (TypeError, ValueError):
            raise InputError("a label must be a list of numbers") from None
    targets = predictor.encoded_targets(columns)
    return targets.astype(_blank(model).dtype)


def _target_names(model: ServedModel) -> list[str]:
    return model.predictor.watched_targets or [model.predictor.info.target]


def _blank(model: ServedModel) -> Array:
    return task_for(model.predictor.info).blank_targets(1)


def _decoded_targets(model: ServedModel, encoded: bytes) -> Array:
    blank = _blank(model)
    return np.frombuffer(encoded, blank.dtype).reshape(-1, *blank.shape[1:])


def _text(labels: Sequence[Any]) -> str:
    return json.dumps(labels, sort_keys=True)
