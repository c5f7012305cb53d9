"""NVIDIA Triton: a repository with a model of ONNX, whose rows are batched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from trainwright.errors import InputError
from trainwright.require import require
from trainwright.servers.base import Package, Server
from trainwright.servers.rendering import example, quoted, render

_BATCH = 64  # rows
# Names of onnx.TensorProto.DataType, as Triton calls them.
_TYPES: Mapping[str, str] = {
    "BOOL": "TYPE_BOOL",
    "DOUBLE": "TYPE_FP64",
    "FLOAT": "TYPE_FP32",
    "FLOAT16": "TYPE_FP16",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "INT8": "TYPE_INT8",
    "STRING": "TYPE_STRING",
    "UINT8": "TYPE_UINT8",
}


class TritonServer(Server):
    """The layout of a model repository."""

    summary = "NVIDIA Triton: a model repository with a model of ONNX"
    formats: ClassVar[Sequence[str]] = ("onnx",)
    predicts = False  # it answers with what the graph gives

    def write(self, package: Package, folder: Path) -> str:
        """Write the repository, `models`; see `Server.write`."""
        place = folder / "models" / package.name
        place.mkdir(parents=True)
        artifact = package.copy_artifact(place / "1")
        if artifact.name != "model.onnx":
            raise InputError(f"Triton opens model.onnx: rename {artifact.name}, and what is beside it")
        (place / "config.pbtxt").write_text(_config(package, artifact), encoding="utf-8")
        inputs = [
            {
                "name": name,
                "shape": [1, 1],
                "datatype": _kserve(one["dtype"]),
                "data": [example(package)[name]],
            }
            for one in package.certificate.inputs
            for name in [one["name"]]
            if list(one["shape"]) == [1]
        ]
        render(
            Path(__file__).with_name("templates"), folder, package, {"request": quoted({"inputs": inputs})}
        )
        return "docker compose up --detach --wait"


def _kserve(dtype: str) -> str:
    return {"float64": "FP64", "string": "BYTES"}.get(dtype, dtype.upper())


def _config(package: Package, artifact: Path) -> str:
    """Return the config of a model, in the text format of protocol buffers."""
    onnx = require("onnx", "onnx")
    graph = onnx.load(str(artifact), load_external_data=False).graph
    lines = [
        f'name: "{package.name}"',
        'platform: "onnxruntime_onnx"',
        f"max_batch_size: {_BATCH}",
    ]
    for kind, values in (("input", graph.input), ("output", graph.output)):
        lines += [f"{kind} ["]
        lines.append(",\n".join(_tensor(onnx, one) for one in values))
        lines.append("]")
    lines += [
        "# Requests wait for others, 5 ms at most; 1024 wait at most.",
        "dynamic_batching {",
        "  max_queue_delay_microseconds: 5000",
        "  default_queue_policy { max_queue_size: 1024 timeout_action: REJECT }",
        "}",
        f"instance_group [ {{ kind: KIND_CPU count: {package.replicas} }} ]",
        'parameters { key: "intra_op_thread_count" value: { string_value: "1" } }',
        f'parameters {{ key: "run" value: {{ string_value: "{package.version}" }} }}',
    ]
    return "\n".join(lines) + "\n"


def _tensor(onnx: Any, value: Any) -> str:
    """Return an input or output; the rows of a batch are no dimension of it."""
    tensor = value.type.tensor_type
    name = onnx.TensorProto.DataType.Name(tensor.elem_type)
    sizes = [one.dim_value if one.HasField("dim_value") else -1 for one in tensor.shape.dim][1:]
    dims = ", ".join(map(str, sizes or [1]))
    reshape = "" if sizes else " reshape { shape: [ ] }"  # a number for each row
    text = value.name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'  {{ name: "{text}" data_type: {_TYPES[name]} dims: [ {dims} ]{reshape} }}'
