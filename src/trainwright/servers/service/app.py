"""The HTTP interface of a service.

`POST /predict` answers rows with predictions. `GET /health` says that the process lives, `/ready` that it
answers requests, `/version` what is served; `/metrics` is for Prometheus, and `/docs` shows the interface,
made from the data's schema.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import time
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from trainwright.inference.predictor import Predictor
from trainwright.plugins import task_for
from trainwright.servers.service import documentation
from trainwright.servers.service.batching import Batcher, Job
from trainwright.servers.service.bits import Batching
from trainwright.servers.service.bodies import content_type, read_body
from trainwright.servers.service.errors import RequestError
from trainwright.servers.service.explaining import Explaining
from trainwright.servers.service.feedback import Feedback, is_supported
from trainwright.servers.service.feedback_store import Store
from trainwright.servers.service.forms.base import JSON, Rows
from trainwright.servers.service.language import Language
from trainwright.servers.service.metrics import CONTENT_TYPE, Metrics
from trainwright.servers.service.models import Models, spare_collections
from trainwright.servers.service.recording import LONGEST, Record, Recorder, RequestLog
from trainwright.servers.service.references import reference_maker
from trainwright.servers.service.served import Answer, Asked, ServedModel
from trainwright.servers.service.settings import Settings
from trainwright.servers.service.shadow import Shadow
from trainwright.servers.service.watching import Watch, kept_reference
from trainwright.version import VERSION

log = logging.getLogger("trainwright")
_OPEN = ("/health", "/ready", "/v2/health/live", "/v2/health/ready")  # what needs no key
_INLINE = 1 << 16  # bytes of JSON, or of an image (decoded later), that are read in the loop itself
_MANY = 2000  # rows, whose answer is written beside the loop
_DOCS = ("/docs", "/openapi.json")
_ENCODER = msgspec.json.Encoder(enc_hook=lambda value: value.item())  # numbers of NumPy
Endpoint = Callable[[Request], Awaitable[Response]]


class Service:
    """One replica: its models, its queue, and what it answers.

    Args:
        settings: The settings.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.models = Models(settings, self._changed)
        self.batcher = Batcher(
            self._answer,
            max_batch=settings.max_batch,
            batch_seconds=settings.batch_seconds,
            max_waiting=settings.max_waiting,
            timeout=settings.timeout,
        )
        self._batching = Batching(self.batcher.ask)
        self._explaining = Explaining(self.batcher.ask, self.ask, settings.timeout)
        self.shadow = Shadow(self.models, self.batcher, self.metrics)
        self.watch, self.feedback = self._watch(), self._feedback()
        request_log = settings.log and RequestLog(
            settings.log, settings.log_sample, settings.log_without, self.metrics
        )
        self._recorder = Recorder(
            [one for one in (self.watch, self.feedback, request_log) if one], self.metrics
        )
        self._maker: Any = None  # of references, a process
        self.is_ready = False

    def start(self) -> None:
        """Start the threads."""
        spare_collections()
        self.batcher.start()
        self.models.start()
        self._recorder.start()
        self.is_ready = True

    def close(self) -> None:
        """Answer what waits, and stop the threads."""
        self.is_ready = False
        self.models.close()
        self.batcher.close()
        self._recorder.close()
        if self._maker is not None:
            self._maker.kill()

    def _watch(self) -> Watch | None:
        """Return the windows of drift, where there are columns or predictions to watch."""
        settings, task = self.settings, task_for(self.models.main.predictor.info)
        if not settings.window_seconds or settings.state is None or task.sums:
            return None
        return Watch(
            settings.state,
            settings.window_seconds,
            settings.alarm_rate,
            self.metrics,
            lambda: self.models.main,
        )

    def _feedback(self) -> Feedback | None:
        """Return what takes labels that come later, where predictions can be compared with them."""
        settings = self.settings
        if not settings.feedback_rows or settings.state is None or not is_supported(self.models.main):
            return None

        store = Store(settings.state, settings.feedback_rows)
        return Feedback(self.models, store, self.metrics, self.body, settings.log)

    def _answer(self, jobs: Sequence[Job]) -> Sequence[Any]:
        """Answer jobs of one model, in the thread of the queue."""
        if callable(jobs[0].work):  # a step of a text
            return [job.work() for job in jobs]
        model: ServedModel = jobs[0].work.model
        rows = sum(job.rows for job in jobs)
        answers = model.answer(jobs)
        self.metrics.batch.observe(rows)
        self.metrics.rows.labels(model.name).inc(rows)
        return answers

    def _changed(self, role: str, old: ServedModel | None, new: ServedModel | None) -> None:
        """Show in the metrics what is served; `new` is None where it could not be loaded."""
        if new is None:
            self.metrics.reloads.labels("failed").inc()
            return
        if old is not None:
            self.metrics.model.labels(old.name, old.predictor.run_id, role).set(0)
            self.metrics.reloads.labels("loaded").inc()
            if old.predictor.run_id != new.predictor.run_id:
                self._watch_anew(role)
        self.metrics.model.labels(new.name, new.predictor.run_id, role).set(1)

    def _watch_anew(self, role: str) -> None:
        """Watch a run that was not served at the start."""
        if role == "main" and self.watch is not None:
            self.watch.forget()
        if role != "shadow" and self.watch is not None and kept_reference(self.models.by_role[role]) is None:
            self._maker = reference_maker(self.settings)
            self._maker.start()

    async def predict(self, request: Request) -> Response:
        """Answer a request for predictions."""
        began, identifier = time.perf_counter(), _identifier(request)
        model = self.models.for_request(identifier)
        threshold, is_lenient = _options(request.query_params)
        body = await self.body(request)
        kind = content_type(request.headers.get("content-type", ""))
        rows = await _read(model, body, kind)
        asked = Asked(model, rows, threshold, is_lenient)
        answer = await self.answer(identifier, asked, lambda other: other.form.read(body, *kind), began)
        if rows.number > _MANY:
            found = await asyncio.to_thread(_predictions, answer, by_column=rows.by_column)
        else:
            found = _predictions(answer, by_column=rows.by_column)
        content = {**found, "id": identifier, "run": model.predictor.run_id}
        if rows.number > _MANY:
            return await asyncio.to_thread(_json, content)
        return _json(content)

    async def body(self, request: Request) -> bytes:
        """Return the body of a request; see `read_body`."""
        return await read_body(request, self.settings.max_body, self.settings.timeout)

    async def explain(self, request: Request) -> Response:
        """Answer a request for explanations of predictions."""
        identifier = _identifier(request)
        model = self.models.for_request(identifier)
        body = await self.body(request)
        rows = await _read(model, body, content_type(request.headers.get("content-type", "")))
        found = await self._explaining.explain(model, rows, request.query_params)
        return _json({**found, "id": identifier, "run": model.predictor.run_id})

    def own_routes(self) -> Sequence[tuple[str, str, Endpoint]]:
        """Return the routes that depend on the task of the model."""
        if not task_for(self.models.main.predictor.info).generates_text:
            own: list[tuple[str, str, Endpoint]] = [("POST", "/predict", self.predict)]
            if (labels := self.feedback) is not None:
                own += [("POST", "/feedback", labels.post), ("GET", "/quality", labels.show)]
            if documentation.explains(self.models.main):
                own.append(("POST", "/explain", self.explain))
            return own

        def model_of(request: Request) -> tuple[Predictor, str]:
            model = self.models.for_request(_identifier(request))
            return model.predictor, model.name

        language = Language(
            model_of,
            lambda step: self.batcher.ask(step, 1),
            self.body,
        )
        return [
            ("POST", "/generate", language.generate),
            ("POST", "/v1/completions", language.completions),
            ("POST", "/v1/chat/completions", language.chat),
            ("GET", "/v1/models", language.models),
        ]

    async def answer(
        self, identifier: str, asked: Asked, read: Callable[[ServedModel], Rows], began: float
    ) -> Answer:
        """Return the predictions of a request, and record them.

        Args:
            identifier: The name of the request.
            asked: What it asks.
            read: Reads its rows for another model.
            began: The time at which it came, by `time.perf_counter`.

        Raises:
            RequestError: There are none; see `ask`.
        """
        answer = await self.ask(asked)
        self.shadow.follow(read, answer)
        seconds = time.perf_counter() - began
        record = Record(identifier, asked.model, asked.rows.content, answer, time.time(), seconds)
        self._recorder.add(record)
        if answer.errors:
            self.metrics.failed.inc(len(answer.errors))
        return answer

    async def ask(self, asked: Asked) -> Answer:
        """Return the predictions of rows, which wait in the queue.

        Raises:
            RequestError: They cannot be predicted, the queue is full, or the time is over.
        """
        answer: Answer = await self.batcher.ask(asked, asked.rows.number, asked.key)
        return answer

    async def health(self, request: Request) -> Response:  # noqa: ARG002
        """Say that the process lives."""
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:  # noqa: ARG002
        """Say whether requests are answered."""
        return _json({"status": "ready" if self.is_ready else "stopping"}, 200 if self.is_ready else 503)

    async def version(self, request: Request) -> Response:  # noqa: ARG002
        """Say what is served."""
        models = {
            role: {**documentation.description(one), "batching": await self._batching.statement(one)}
            for role, one in self.models.by_role.items()
        }
        return _json({"trainwright": VERSION, "models": models})

    async def drift(self, request: Request) -> Response:  # noqa: ARG002
        """Return the windows of served rows, compared with the training rows."""
        if self.watch is None:
            sums = task_for(self.models.main.predictor.info).sums
            why = "it has no columns to compare" if sums else "serve with --window"
            raise RequestError(404, "not_watched", f"drift of this model is not watched: {why}")
        return _json(await asyncio.to_thread(self.watch.report))

    async def show_metrics(self, request: Request) -> Response:  # noqa: ARG002
        """Return the metrics."""
        self.metrics.waiting.set(self.batcher.waiting)
        return Response(await asyncio.to_thread(self.metrics.text), media_type=CONTENT_TYPE)

    def guarded(
        self, route: str, endpoint: Endpoint, said: Callable[[RequestError], Any] = RequestError.to_json
    ) -> Endpoint:
        """Return an endpoint that asks for the key, counts, and turns errors into answers, as `said` says."""
        requests, seconds = self.metrics.requests, self.metrics.seconds.labels(route)
        ok = requests.labels(route, "200")

        async def answer(request: Request) -> Response:
            began = time.perf_counter()
            try:
                if route not in _OPEN:
                    self.check_key(request.headers)
                response = await endpoint(request)
            except RequestError as error:
                response = _json(said(error), error.status, error.headers)
            except ClientDisconnect:
                response = Response(status_code=499)  # nobody gets it
            except Exception as error:  # the request is lost, and nothing else
                response = _json(said(lost(route, error)), 500)
            if response.status_code == 200:
                ok.inc()
            else:
                requests.labels(route, str(response.status_code)).inc()
            seconds.observe(time.perf_counter() - began)
            return response

        return answer

    def check_key(self, headers: Mapping[str, str]) -> None:
        """Check the key that a request shows.

        Raises:
            RequestError: It is another one, or there is none.
        """
        if self.settings.key is None:
            return
        if not hmac.compare_digest(_shown_key(headers).encode(), self.settings.key.encode()):
            raise RequestError(
                401,
                "unauthorized",
                "this service needs a key: send it as `Authorization: Bearer KEY`",
                headers={"WWW-Authenticate": "Bearer"},
            )


class _LockedDocs:
    """Ask for the key before the pages that name the columns; browsers send it as a password.

    Args:
        app: The application.
        service: Knows the key.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_DOCS):
            try:
                self._service.check_key(Headers(scope=scope))
            except RequestError as error:
                asking = {"WWW-Authenticate": 'Basic realm="the API key is the password"'}
                await _json(error.to_json(), error.status, asking)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def make_app(settings: Settings) -> FastAPI:
    """Return the application of one replica; its model is loaded.

    Raises:
        TrainwrightError: The model cannot be loaded.
    """
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            await asyncio.to_thread(service.close)

    app = FastAPIOffline(
        title=f"Predictions of {settings.model}",
        version=VERSION,
        lifespan=lifespan,
        redoc_url=None,
    )
    for method, path, endpoint in (
        *service.own_routes(),
        ("GET", "/health", service.health),
        ("GET", "/ready", service.ready),
        ("GET", "/version", service.version),
        ("GET", "/metrics", service.show_metrics),
        ("GET", "/drift", service.drift),
    ):
        app.add_route(path, service.guarded(path, endpoint), methods=[method])
    is_locked = settings.key is not None
    if is_locked:
        app.add_middleware(_LockedDocs, service=service)
    app.openapi = lambda: documentation.openapi(  # type: ignore[method-assign]
        service.models.main, app.title, needs_key=is_locked
    )
    app.state.service = service

    async def unknown(request: Request, error: Exception) -> Response:
        """Answer a request for a path or a method that there is not."""
        assert isinstance(error, HTTPException), "it is registered for these"
        status, path = error.status_code, request.url.path
        service.metrics.requests.labels("other", str(status)).inc()
        takes = {one.path: one.methods or () for one in app.routes if isinstance(one, Route)}
        if path in takes:
            said = f"{request.method} given; {path} takes {', '.join(sorted(takes[path]))}"
        else:
            known = [one for one in takes if not one.startswith(("/v2", "/docs", "/openapi"))]
            said = f"there is no such path; there are: {', '.join(known)}, /v2, /docs"
        code = "method_not_allowed" if path in takes else "not_found"
        return _json(RequestError(status, code, said).to_json(), status, error.headers)

    app.add_exception_handler(HTTPException, unknown)
    return app


def lost(route: str, error: Exception) -> RequestError:
    """Log a mistake of the service, and return the error of the request that met it."""
    # Its message may hold what the request held.
    where = "".join(traceback.format_tb(error.__traceback__))
    log.error("a request to %s failed: %s at\n%s", route, type(error).__name__, where)
    return RequestError(500, "internal", "the service failed; its log says why")


async def _read(model: ServedModel, body: bytes, kind: tuple[str, str | None]) -> Rows:
    """Return the rows of a body; what takes long is read beside the loop."""
    if len(body) <= _INLINE and (kind[0] in ("", JSON) or kind[0].startswith("image/")):
        return model.form.read(body, *kind)
    return await asyncio.to_thread(model.form.read, body, *kind)


def _shown_key(headers: Mapping[str, str]) -> str:
    """Return the key that a request shows; empty if there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    match scheme.lower():
        case "bearer":
            return token
        case "basic":
            try:
                return base64.b64decode(token, validate=True).decode().partition(":")[2]
            except ValueError:
                return ""
    return headers.get("x-api-key", "")


def _options(query: Mapping[str, str]) -> tuple[float | None, bool]:
    """Return the threshold, and whether rows that cannot be predicted get an error of their own.

    Raises:
        RequestError: There is another option, or it has another value.
    """
    known = {"threshold", "on_error"}
    if unknown := query.keys() - known:
        raise RequestError(
            422, "unknown_option", f"option {min(unknown)[:40]!r} given; there are: threshold, on_error"
        )
    threshold = None
    if (text := query.get("threshold")) is not None:
        try:
            threshold = float(text)
        except ValueError:
            threshold = float("nan")
        if not 0 <= threshold <= 1:
            raise RequestError(
                422, "invalid_option", f"threshold {text[:40]!r} given; a probability is from 0 to 1"
            )
    on_error = query.get("on_error", "stop")
    if on_error not in ("stop", "null"):
        raise RequestError(422, "invalid_option", f"on_error {on_error[:40]!r} given; give stop or null")
    return threshold, on_error == "null"


def _predictions(answer: Answer, *, by_column: bool) -> dict[str, Any]:
    """Return the predictions as rows, or as columns."""
    columns = answer.columns
    if answer.errors:
        count = len(next(iter(columns.values())))
        columns = {**columns, "error": [answer.errors.get(row) for row in range(count)]}
    if by_column:
        return {"predictions": columns}
    names, rows = list(columns), zip(*columns.values(), strict=True)
    return {"predictions": [dict(zip(names, cells, strict=True)) for cells in rows]}


def _identifier(request: Request) -> str:
    """Return the name of a request: its own, or one that is made for it."""
    given = request.headers.get("x-request-id", "")
    return given[:LONGEST] if given else uuid.uuid4().hex


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_ENCODER.encode(content), status, headers, media_type=JSON)
