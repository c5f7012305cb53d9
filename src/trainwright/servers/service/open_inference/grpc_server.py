"""The protocol over gRPC, in the loop of the HTTP server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
from fastapi import FastAPI
from google.protobuf.message import DecodeError

from trainwright.errors import InputError
from trainwright.servers.service.app import Service, lost
from trainwright.servers.service.errors import RequestError, malformed
from trainwright.servers.service.open_inference import inference, tensors
from trainwright.servers.service.open_inference.messages import CLASSES, SERVICE
from trainwright.servers.service.open_inference.tensors import BYTES, Tensor, wrong

_INLINE = 1 << 16  # bytes of a message that are read in the loop itself
_OPEN = ("ServerLive", "ServerReady")  # what needs no key
_CODES = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.DEADLINE_EXCEEDED,  # the model did not come to it
}
# The fields of values that come as such.
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
Method = Callable[[Service, Any, Mapping[str, str]], Awaitable[Any]]


def add_server(app: FastAPI) -> None:
    """Have the application of a replica listen for gRPC while it lives."""
    service, inner = app.state.service, app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with inner(app) as state:
            server = await started(service)
            try:
                yield state
            finally:
                await server.stop(service.settings.timeout)

    app.router.lifespan_context = lifespan


async def started(service: Service) -> Any:
    """Return a server that has begun to listen.

    Raises:
        InputError: The port cannot be opened.
    """
    settings = service.settings
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", settings.max_body),
            ("grpc.max_send_message_length", -1),
            # Replicas listen side by side; others must not.
            ("grpc.so_reuseport", int(settings.workers > 1)),
        ]
    )
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(partial(_handle, service, name, method))
        for name, method in _METHODS.items()
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{host}:{settings.grpc_port}"
    try:
        opened = server.add_insecure_port(address)
    except RuntimeError:
        opened = 0
    if not opened:
        raise InputError(f"cannot listen on {address} for gRPC: give another --grpc-port")
    await server.start()
    return server


async def _handle(service: Service, name: str, method: Method, body: bytes, context: Any) -> bytes:
    """Answer a call: check the key, count, and turn errors into those of gRPC."""
    began, route, status = time.perf_counter(), f"/{SERVICE}/{name}", 499
    try:
        headers = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        if name not in _OPEN:
            service.check_key(headers)
        answer = await method(service, await _parsed(f"{name}Request", body), headers)
        found: bytes = answer.SerializeToString()
        status = 200
        return found
    except RequestError as error:
        status, refused = error.status, error
    except Exception as error:  # the request is lost, and nothing else
        status, refused = 500, lost(route, error)
    finally:
        service.metrics.requests.labels(route, str(status)).inc()
        service.metrics.seconds.labels(route).observe(time.perf_counter() - began)
    await context.abort(_CODES.get(status, grpc.StatusCode.INVALID_ARGUMENT), refused.message)
    raise AssertionError("abort raises")


async def _parsed(name: str, body: bytes) -> Any:
    """Return a message.

    Raises:
        RequestError: It is none.
    """
    try:
        if len(body) <= _INLINE:
            return CLASSES[name].FromString(body)
        return await asyncio.to_thread(CLASSES[name].FromString, body)
    except DecodeError:
        raise malformed(f"the message is no {name}") from None


async def _live(service: Service, request: Any, headers: Mapping[str, str]) -> Any:  # noqa: ARG001
    return CLASSES["ServerLiveResponse"](live=True)


async def _ready(service: Service, request: Any, headers: Mapping[str, str]) -> Any:  # noqa: ARG001
    return CLASSES["ServerReadyResponse"](ready=service.is_ready)


async def _model_ready(service: Service, request: Any, headers: Mapping[str, str]) -> Any:  # noqa: ARG001
    inference.model_for(service, request.name, request.version)
    return CLASSES["ModelReadyResponse"](ready=service.is_ready)


async def _server_metadata(service: Service, request: Any, headers: Mapping[str, str]) -> Any:  # noqa: ARG001
    return CLASSES["ServerMetadataResponse"](**inference.server_metadata())


async def _model_metadata(service: Service, request: Any, headers: Mapping[str, str]) -> Any:  # noqa: ARG001
    return CLASSES["ModelMetadataResponse"](
        **inference.model_metadata(service, request.name, request.version)
    )


async def _index(service: Service, request: Any, headers: Mapping[str, str]) -> Any:  # noqa: ARG001
    return CLASSES["RepositoryIndexResponse"](models=inference.index(service))


async def _infer(service: Service, request: Any, headers: Mapping[str, str]) -> Any:
    """Answer a request for predictions."""
    identifier = inference.identifier_of(request.id or headers.get("x-request-id"))
    model = inference.model_for(service, request.model_name, request.model_version, identifier)
    if request.ByteSize() <= _INLINE:
        inputs = [*_tensors(request)]
    else:
        inputs = await asyncio.to_thread(lambda: [*_tensors(request)])
    wanted = [inference.Wanted(one.name, _parameters(one.parameters)) for one in request.outputs]
    asked = inference.Request(model, identifier, inputs, wanted, _parameters(request.parameters))
    found = await inference.infer(service, asked)
    answer = CLASSES["ModelInferResponse"](
        model_name=request.model_name, model_version=inference.version_of(model), id=identifier
    )
    if all(tensor.values.ndim == 1 for tensor in found):
        answer.parameters["content_type"].string_param = "pd"
    for tensor in found:
        _add(answer, tensor, is_raw=bool(request.raw_input_contents))
    return answer


def _parameters(given: Any) -> dict[str, Any]:
    """Return the parameters of a message."""
    return {
        name: getattr(value, kind)
        for name, value in given.items()
        if (kind := value.WhichOneof("parameter_choice")) is not None
    }


def _tensors(request: Any) -> Iterator[Tensor]:
    """Yield the tensors of a request: those without values have raw contents, in their order.

    Raises:
        RequestError: There are other raw contents, or the data are others than a tensor says.
    """
    raw: Sequence[bytes] = request.raw_input_contents
    at = 0
    for one in request.inputs:
        parameters = _parameters(one.parameters)
        if "shared_memory_region" in parameters:
            raise wrong(one.name, "this server has no shared memory: send the data")
        if at < len(raw) and not one.contents.ListFields():
            values = tensors.of_bytes(one.name, one.datatype, one.shape, raw[at])
            at += 1
        elif one.datatype == "FP16":
            raise wrong(one.name, "FP16 has no field of values: send raw contents")
        else:
            contents = getattr(one.contents, _CONTENTS.get(one.datatype, ""), ())
            values = tensors.of_contents(one.name, one.datatype, one.shape, contents)
        yield Tensor(one.name, one.datatype, values, str(parameters.get("content_type", "")))
    if at < len(raw):
        raise malformed(f"{len(raw)} raw contents given, but {at} inputs have no values")


def _add(answer: Any, tensor: Tensor, *, is_raw: bool) -> None:
    """Add a tensor to an answer: its values as such, or raw."""
    output = answer.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.values.shape)
    if tensor.content_type:
        output.parameters["content_type"].string_param = tensor.content_type
    if is_raw:
        answer.raw_output_contents.append(tensors.as_bytes(tensor))
        return
    flat = tensor.values.reshape(-1).tolist()
    values = [tensors.as_element(one) for one in flat] if tensor.datatype == BYTES else flat
    getattr(output.contents, _CONTENTS[tensor.datatype]).extend(values)


_METHODS: Mapping[str, Method] = {
    "ServerLive": _live,
    "ServerReady": _ready,
    "ModelReady": _model_ready,
    "ServerMetadata": _server_metadata,
    "ModelMetadata": _model_metadata,
    "RepositoryIndex": _index,
    "ModelInfer": _infer,
}
