"""The protocol over REST."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from trainwright.servers.service.app import Service
from trainwright.servers.service.bodies import read_body
from trainwright.servers.service.errors import RequestError, malformed
from trainwright.servers.service.forms.base import JSON, decoded
from trainwright.servers.service.open_inference import inference, tensors
from trainwright.servers.service.open_inference.tensors import BYTES, Tensor, wrong

_HEADER = "Inference-Header-Content-Length"
_INLINE = 1 << 16  # bytes of a body that are read in the loop itself
_ENCODER = msgspec.json.Encoder()


class _Input(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    data: list[Any] | None = None
    parameters: dict[str, Any] | None = None


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] | None = None


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[_Output] | None = None


_DECODER = msgspec.json.Decoder(_Request)


def add_routes(app: FastAPI) -> None:
    """Add the protocol to the application of a replica."""
    endpoints = _Endpoints(app.state.service)
    model = "/v2/models/{name}"
    routes = [
        ("GET", "/v2", endpoints.server),
        ("GET", "/v2/health/live", endpoints.live),
        ("GET", "/v2/health/ready", endpoints.ready),
        ("POST", "/v2/repository/index", endpoints.index),
    ]
    for path in (model, f"{model}/versions/{{version}}"):
        routes += [
            ("GET", path, endpoints.model),
            ("GET", f"{path}/ready", endpoints.model_ready),
            ("POST", f"{path}/infer", endpoints.infer),
        ]
    for method, path, endpoint in routes:
        guarded = app.state.service.guarded(path, endpoint, said=_said)
        app.add_route(path, guarded, methods=[method], include_in_schema=False)
    rest = app.state.service.guarded("/v2/*", endpoints.unknown, said=_said)
    app.add_route("/v2/{path:path}", rest, methods=["GET", "POST"], include_in_schema=False)


def _said(error: RequestError) -> dict[str, Any]:
    """Return the body of an answer that says what was wrong, as clients of the protocol read it."""
    return {"error": error.message}


class _Endpoints:
    """The endpoints of the protocol.

    Args:
        service: The service.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def server(self, request: Request) -> Response:  # noqa: ARG002
        """Describe the server."""
        return _json(inference.server_metadata())

    async def live(self, request: Request) -> Response:  # noqa: ARG002
        """Say that the process lives."""
        return _json({"live": True})

    async def ready(self, request: Request) -> Response:  # noqa: ARG002
        """Say whether requests are answered."""
        return self._readiness({})

    async def index(self, request: Request) -> Response:  # noqa: ARG002
        """List the models."""
        return _json(inference.index(self._service))

    async def model(self, request: Request) -> Response:
        """Describe a model."""
        return _json(inference.model_metadata(self._service, *_names(request)))

    async def model_ready(self, request: Request) -> Response:
        """Say whether a model answers requests."""
        model = inference.model_for(self._service, *_names(request))
        return self._readiness({"name": inference.name_of(model)})

    def _readiness(self, more: dict[str, Any]) -> Response:
        is_ready = self._service.is_ready
        return _json({**more, "ready": is_ready}, 200 if is_ready else 503)

    async def unknown(self, request: Request) -> Response:
        """Refuse a path that is none of the protocol."""
        raise RequestError(
            404,
            "unknown_path",
            f"there is no {request.method} {request.url.path[:200]}; the models are at /v2/models/NAME, and "
            f"their names are {', '.join(map(inference.name_of, inference.served(self._service)))}",
        )

    async def infer(self, request: Request) -> Response:
        """Answer a request for predictions."""
        name, version = _names(request)
        settings = self._service.settings
        body = await read_body(request, settings.max_body, settings.timeout)
        length = request.headers.get(_HEADER)
        if len(body) <= _INLINE:
            given, inputs = _read(body, length)
        else:
            given, inputs = await asyncio.to_thread(_read, body, length)
        identifier = inference.identifier_of(given.id or request.headers.get("x-request-id"))
        model = inference.model_for(self._service, name, version, identifier)
        wanted = [inference.Wanted(one.name, one.parameters or {}) for one in given.outputs or ()]
        parameters = given.parameters or {}
        found = await inference.infer(
            self._service, inference.Request(model, identifier, inputs, wanted, parameters)
        )
        by_default = parameters.get("binary_data_output")
        is_binary = {one.name: one.parameters.get("binary_data", by_default) for one in wanted}
        binary = [tensor for tensor in found if is_binary.get(tensor.name, by_default) is True]
        head = {"model_name": name, "model_version": inference.version_of(model), "id": identifier}
        return _answer(head, found, {tensor.name: tensors.as_bytes(tensor) for tensor in binary})


def _names(request: Request) -> tuple[str, str]:
    """Return the model and the version that a path names."""
    return request.path_params["name"], request.path_params.get("version", "")


def _read(body: bytes, header: str | None) -> tuple[_Request, list[Tensor]]:
    """Return a request, and its tensors: in JSON, or as binary data after it.

    Raises:
        RequestError: It cannot be read.
    """
    length = len(body)
    if header is not None:
        if not (header.isascii() and header.isdigit() and len(header) < 20 and int(header) <= len(body)):
            raise malformed(f"{_HEADER}: give the number of bytes of the JSON before the binary data")
        length = int(header)
    given = decoded(body[:length], _DECODER, misplaced=_misplaced)
    return given, [*_tensors(given.inputs, memoryview(body)[length:])]


def _misplaced(message: str) -> RequestError:
    return malformed(f"this is no inference request: {message[:1].lower()}{message[1:]}")


def _tensors(inputs: Sequence[_Input], binary: memoryview) -> Iterator[Tensor]:
    at = 0
    for one in inputs:
        parameters = one.parameters or {}
        content_type = parameters.get("content_type")
        size = parameters.get("binary_data_size")
        if "shared_memory_region" in parameters:
            raise wrong(one.name, "this server has no shared memory: send the data")
        if size is None:
            if one.data is None:
                raise wrong(one.name, "there are no data, and parameters name no binary_data_size")
            values = tensors.of_json(one.name, one.datatype, one.shape, one.data)
        else:
            if type(size) is not int or not 0 <= size <= len(binary) - at:
                raise wrong(one.name, f"binary_data_size: {len(binary) - at:,} bytes are left after the JSON")
            values = tensors.of_bytes(one.name, one.datatype, one.shape, bytes(binary[at : at + size]))
            at += size
        yield Tensor(one.name, one.datatype, values, content_type if isinstance(content_type, str) else "")
    if at < len(binary):
        raise malformed(f"{len(binary) - at:,} bytes of binary data belong to no input")


def _answer(head: dict[str, Any], found: Sequence[Tensor], binary: dict[str, bytes]) -> Response:
    """Return the answer; tensors in `binary` come after the JSON."""
    # Clients of MLServer make a data frame of columns.
    is_table = all(tensor.values.ndim == 1 for tensor in found)
    content = {
        **head,
        **({"parameters": {"content_type": "pd"}} if is_table else {}),
        "outputs": [_output(tensor, binary.get(tensor.name)) for tensor in found],
    }
    header = _ENCODER.encode(content)
    if not binary:
        return Response(header, media_type=JSON)
    parts = [binary[tensor.name] for tensor in found if tensor.name in binary]
    return Response(
        b"".join([header, *parts]),
        headers={_HEADER: str(len(header))},
        media_type="application/octet-stream",
    )


def _output(tensor: Tensor, binary: bytes | None) -> dict[str, Any]:
    parameters: dict[str, Any] = {"content_type": tensor.content_type} if tensor.datatype == BYTES else {}
    if binary is not None:
        parameters["binary_data_size"] = len(binary)
    return {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": list(tensor.values.shape),
        **({"parameters": parameters} if parameters else {}),
        **({"data": tensors.as_json(tensor)} if binary is None else {}),
    }


def _json(content: Any, status: int = 200) -> Response:
    return Response(_ENCODER.encode(content), status, media_type=JSON)
