"""Models and predictions as the protocol has them, whatever carries the messages."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trainwright.servers.service.app import Service
from trainwright.servers.service.errors import RequestError
from trainwright.servers.service.open_inference.rows import inputs_of, outputs_of, rows_of, tensors_of
from trainwright.servers.service.open_inference.tensors import Tensor
from trainwright.servers.service.served import Answer, Asked, ServedModel
from trainwright.version import VERSION

EXTENSIONS = ("binary_tensor_data", "model_repository")
_INLINE = 1 << 12  # elements that are read in the loop itself
_SHOWN = 100  # characters of a name in a message


class Wanted(NamedTuple):
    """An output that a request asks for.

    Attributes:
        name: Its name.
        parameters: Its parameters.
    """

    name: str
    parameters: Mapping[str, Any]


class Request(NamedTuple):
    """A request for predictions.

    Attributes:
        model: The model that answers it.
        identifier: The name of the request.
        inputs: Its tensors.
        outputs: Those that the answer is to have; none: all.
        parameters: Its parameters.
    """

    model: ServedModel
    identifier: str
    inputs: Sequence[Tensor]
    outputs: Sequence[Wanted]
    parameters: Mapping[str, Any]


def name_of(model: ServedModel) -> str:
    """Return the name of a model in the protocol: the last part of what the user called it."""
    return model.name.rstrip("/").rpartition("/")[2]


def version_of(model: ServedModel) -> str:
    """Return the version of a model: its run."""
    return model.predictor.run_id


def served(service: Service) -> list[ServedModel]:
    """Return the models that answer requests."""
    return [model for role, model in service.models.by_role.items() if role != "shadow"]


def model_for(service: Service, name: str, version: str = "", identifier: str = "") -> ServedModel:
    """Return the model of a name and, if one is given, a version.

    A request that names no version is answered by the model that it falls to.

    Raises:
        RequestError: There is none.
    """
    models = served(service)
    named = [model for model in models if name_of(model) == name]
    if not named:
        known = ", ".join(dict.fromkeys(map(name_of, models)))
        raise RequestError(404, "unknown_model", f"there is no model {name[:_SHOWN]!r}; there is {known}")
    main = service.models.main
    if not version:
        return service.models.for_request(identifier) if main in named else named[0]
    for model in models if main in named else named:
        if version_of(model) == version:
            return model
    known = ", ".join(map(version_of, models if main in named else named))
    raise RequestError(
        404, "unknown_version", f"model {name!r} has no version {version[:_SHOWN]!r}; there is {known}"
    )


def server_metadata() -> dict[str, Any]:
    """Return what is known of the server."""
    return {"name": "trainwright", "version": VERSION, "extensions": list(EXTENSIONS)}


def model_metadata(service: Service, name: str, version: str = "") -> dict[str, Any]:
    """Return what is known of a model: its versions, inputs and outputs.

    Raises:
        RequestError: There is none.
    """
    model = model_for(service, name, version)
    tensors = {"inputs": inputs_of(model), "outputs": outputs_of(model)}
    return {
        "name": name,
        "versions": [version_of(one) for one in served(service) if name == name_of(one)],
        "platform": "trainwright",
        **{
            kind: [{"name": one, "datatype": datatype, "shape": shape} for one, datatype, shape in found]
            for kind, found in tensors.items()
        },
    }


def index(service: Service) -> list[dict[str, str]]:
    """Return the models that answer requests, as an index of a repository."""
    return [
        {"name": name_of(one), "version": version_of(one), "state": "READY", "reason": ""}
        for one in served(service)
    ]


def identifier_of(given: str | None) -> str:
    """Return the name of a request: its own, or one that is made for it."""
    return given[:128] if given else uuid.uuid4().hex


async def infer(service: Service, request: Request) -> list[Tensor]:
    """Return the predictions that a request asks for.

    Raises:
        RequestError: There are none.
    """
    began, model, inputs = time.perf_counter(), request.model, request.inputs
    threshold = _threshold(request.parameters)
    if sum(tensor.values.size for tensor in inputs) <= _INLINE:
        rows = rows_of(model, inputs)
    else:
        rows = await asyncio.to_thread(rows_of, model, inputs)
    asked = Asked(model, rows, threshold)
    answer = await service.answer(request.identifier, asked, lambda other: rows_of(other, inputs), began)
    return _chosen(answer, request.outputs)


def _chosen(answer: Answer, outputs: Sequence[Wanted]) -> list[Tensor]:
    """Return the tensors of an answer that are asked for, in this order."""
    found = {tensor.name: tensor for tensor in tensors_of(answer.columns)}
    for one in outputs:
        if one.name not in found:
            known = ", ".join([*found][:20])
            raise RequestError(
                400, "unknown_output", f"there is no output {one.name[:_SHOWN]!r}; there is {known}"
            )
        if one.parameters.get("classification"):
            raise RequestError(
                400, "unknown_extension", "this server has no classification extension: leave class_count out"
            )
    return [found[one.name] for one in outputs] if outputs else [*found.values()]


def _threshold(parameters: Mapping[str, Any]) -> float | None:
    threshold = parameters.get("threshold")
    if threshold is None:
        return None
    if isinstance(threshold, bool) or not (isinstance(threshold, int | float) and 0 <= threshold <= 1):
        raise RequestError(400, "invalid_option", "parameter threshold: give a number from 0 to 1")
    return float(threshold)
