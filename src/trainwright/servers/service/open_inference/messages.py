"""The messages of the protocol over gRPC.

They are made from this table when the module is imported, in a pool of their own: code that protoc writes
would need one version of protobuf, and would collide with a client's in the same process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "inference.GRPCInferenceService"
# Each message: its fields by number, from 1; `[]` repeated, `{}` a map from names, `|` one of several.
_MESSAGES: Mapping[str, str] = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "bool live",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "bool ready",
    "ModelReadyRequest": "string name, string version",
    "ModelReadyResponse": "bool ready",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "string name, string version, string[] extensions",
    "ModelMetadataRequest": "string name, string version",
    "ModelMetadataResponse": "string name, string[] versions, string platform, .TensorMetadata[] inputs, "
    ".TensorMetadata[] outputs",
    "ModelMetadataResponse.TensorMetadata": "string name, string datatype, int64[] shape",
    "InferParameter": "bool| bool_param, int64| int64_param, string| string_param, double| double_param, "
    "uint64| uint64_param",
    "InferTensorContents": "bool[] bool_contents, int32[] int_contents, int64[] int64_contents, "
    "uint32[] uint_contents, uint64[] uint64_contents, float[] fp32_contents, double[] fp64_contents, "
    "bytes[] bytes_contents",
    "ModelInferRequest": "string model_name, string model_version, string id, InferParameter{} parameters, "
    ".InferInputTensor[] inputs, .InferRequestedOutputTensor[] outputs, bytes[] raw_input_contents",
    "ModelInferRequest.InferInputTensor": "string name, string datatype, int64[] shape, "
    "InferParameter{} parameters, InferTensorContents contents",
    "ModelInferRequest.InferRequestedOutputTensor": "string name, InferParameter{} parameters",
    "ModelInferResponse": "string model_name, string model_version, string id, InferParameter{} parameters, "
    ".InferOutputTensor[] outputs, bytes[] raw_output_contents",
    "ModelInferResponse.InferOutputTensor": "string name, string datatype, int64[] shape, "
    "InferParameter{} parameters, InferTensorContents contents",
    "RepositoryIndexRequest": "string repository_name, bool ready",
    "RepositoryIndexResponse": ".ModelIndex[] models",
    "RepositoryIndexResponse.ModelIndex": "string name, string version, string state, string reason",
}
_FIELD = re.compile(r"(\.?\w+)(\[\]|\{\}|\|)? (\w+)")
_Message = descriptor_pb2.DescriptorProto
_Field = descriptor_pb2.FieldDescriptorProto
_ENTRY = "ParametersEntry"  # of the one map that there is


def _file() -> descriptor_pb2.FileDescriptorProto:
    """Return the description of all messages."""
    file = descriptor_pb2.FileDescriptorProto(
        name="trainwright/open_inference.proto", package="inference", syntax="proto3"
    )
    made: dict[str, Any] = {}
    for path, text in _MESSAGES.items():
        outer, _, name = path.rpartition(".")
        message = made[outer].nested_type.add() if outer else file.message_type.add()
        made[path] = message
        message.name = name
        for number, (kind, form, field) in enumerate(_FIELD.findall(text), 1):
            _add_field(message, path, field, number, kind, form)
    return file


def _add_field(message: Any, path: str, name: str, number: int, kind: str, form: str) -> None:
    """Add a field to a message; `kind` and `form` are those of the table."""
    field = message.field.add(name=name, number=number)
    field.label = _Field.LABEL_REPEATED if form in ("[]", "{}") else _Field.LABEL_OPTIONAL
    if form == "{}":
        entry = message.nested_type.add(name=_ENTRY)
        entry.options.map_entry = True
        _add_field(entry, f"{path}.{_ENTRY}", "key", 1, "string", "")
        _add_field(entry, f"{path}.{_ENTRY}", "value", 2, kind, "")
        kind = f".{_ENTRY}"
    if form == "|":
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
    if kind[0] == "." or kind in _MESSAGES:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".inference.{path}{kind}" if kind[0] == "." else f".inference.{kind}"
    else:
        field.type = getattr(_Field, f"TYPE_{kind.upper()}")


def _classes() -> Iterator[tuple[str, Any]]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    for path in _MESSAGES:
        yield path, message_factory.GetMessageClass(pool.FindMessageTypeByName(f"inference.{path}"))


CLASSES: Mapping[str, Any] = dict(_classes())
