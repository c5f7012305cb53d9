"""The open inference protocol over REST and gRPC: predictions of the run, and clear refusals of the rest."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import math
import socket
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pandas as pd
import pytest
from google.protobuf import descriptor_pool
from starlette.testclient import TestClient

import trainwright
from customers import NEW
from served_runs import WORDS, array_run, image_run, language_run, matrix_run, table_run, text_run
from trainwright.runs.run import Run
from trainwright.servers.service.app import Service, make_app
from trainwright.servers.service.errors import full, late
from trainwright.servers.service.open_inference.grpc_server import add_server
from trainwright.servers.service.open_inference.messages import CLASSES, SERVICE
from trainwright.servers.service.open_inference.rest import add_routes
from trainwright.servers.service.open_inference.rows import rows_of
from trainwright.servers.service.open_inference.tensors import Tensor
from trainwright.servers.service.settings import Settings

MiB = 1 << 20
KINDS = {"age": "INT64", "income": "FP64", "city": "BYTES", "joined": "BYTES", "seats": "INT32"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Both:
    """A client of both protocols, and the service behind it."""

    def __init__(self, rest: TestClient, channel: grpc.Channel, name: str, service: Service) -> None:
        self.rest, self.channel, self.name, self.service = rest, channel, name, service

    def infer(self, inputs: list[dict[str, Any]], status: int = 200, **more: Any) -> Any:
        response = self.rest.post(f"/v2/models/{self.name}/infer", json={"inputs": inputs, **more})
        assert response.status_code == status, response.text
        return response.json()

    def frame(self, inputs: list[dict[str, Any]], **more: Any) -> pd.DataFrame:
        return frame_of(self.infer(inputs, **more))

    def call(self, method: str, body: Any = b"", metadata: Any = (), **options: Any) -> Any:
        """Call a method; messages are given as they are, or as bytes."""
        body = body if isinstance(body, bytes) else body.SerializeToString()
        answer = self.channel.unary_unary(f"/{SERVICE}/{method}")(
            body, metadata=metadata, timeout=60, **options
        )
        return CLASSES[f"{method}Response"].FromString(answer)

    def refusal(self, method: str, body: Any, **options: Any) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as caught:
            self.call(method, body, **options)
        return caught.value.code(), caught.value.details()


@contextmanager
def served(run: Run, **more: Any) -> Iterator[Both]:
    settings = Settings(str(run.path), grpc_port=free_port(), **{"max_body": MiB, **more})
    app = make_app(settings)
    add_routes(app)
    add_server(app)
    with TestClient(app) as rest, grpc.insecure_channel(f"127.0.0.1:{settings.grpc_port}") as channel:
        yield Both(rest, channel, run.id, app.state.service)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("open_inference")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return table_run(folder)


@pytest.fixture(scope="module")
def expected(run: Run) -> pd.DataFrame:
    return trainwright.load(run).predict(NEW)


@pytest.fixture(scope="module")
def both(run: Run) -> Iterator[Both]:
    with served(run) as both:
        yield both


def columns(shape: tuple[int, ...] = (3,), rows: list[dict[str, Any]] = NEW) -> list[dict[str, Any]]:
    """Customers, a tensor for each column."""
    return [
        {"name": name, "datatype": kind, "shape": [*shape], "data": [row[name] for row in rows]}
        for name, kind in KINDS.items()
    ]


def packed(tensor: dict[str, Any]) -> bytes:
    """The data of a tensor in binary, as the specification has them."""
    if tensor["datatype"] == "BYTES":
        contents = [(text or "").encode() for text in tensor["data"]]
        return b"".join(struct.pack("<I", len(one)) + one for one in contents)
    code = {"INT64": "q", "INT32": "i", "FP64": "d", "FP32": "f"}[tensor["datatype"]]
    values = [math.nan if value is None else value for value in tensor["data"]]
    return struct.pack(f"<{len(values)}{code}", *values)


def binary_request(inputs: list[dict[str, Any]], **more: Any) -> tuple[bytes, dict[str, str]]:
    parts = [packed(one) for one in inputs]
    listed = [
        {**{key: one[key] for key in ("name", "datatype", "shape")}, "parameters": {"binary_data_size": len(part)}}
        for one, part in zip(inputs, parts, strict=True)
    ]  # fmt: skip
    head = json.dumps({"inputs": listed, **more}).encode()
    return head + b"".join(parts), {"Inference-Header-Content-Length": str(len(head))}


def frame_of(answer: dict[str, Any]) -> pd.DataFrame:
    for one in answer["outputs"]:
        assert one["shape"] == [len(one["data"])]
    return pd.DataFrame({one["name"]: one["data"] for one in answer["outputs"]})


def assert_same(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(found, wanted, check_dtype=False, check_exact=True)


def message(name: str, inputs: list[dict[str, Any]], *, raw: bool, **more: Any) -> Any:
    request = CLASSES["ModelInferRequest"](model_name=name, **more)
    fields = {"INT64": "int64", "INT32": "int", "FP64": "fp64", "FP32": "fp32", "BYTES": "bytes"}
    for one in inputs:
        tensor = request.inputs.add(name=one["name"], datatype=one["datatype"], shape=one["shape"])
        if raw:
            request.raw_input_contents.append(packed(one))
            continue
        data = one["data"]
        if one["datatype"] == "BYTES":
            data = [(text or "").encode() for text in data]
        elif one["datatype"].startswith("FP"):
            data = [math.nan if value is None else value for value in data]
        getattr(tensor.contents, f"{fields[one['datatype']]}_contents").extend(data)
    return request


def unpacked(answer: Any) -> pd.DataFrame:
    """The predictions of an answer over gRPC, raw or not."""
    found = {}
    for i, output in enumerate(answer.outputs):
        if not answer.raw_output_contents:
            [(_, values)] = output.contents.ListFields()
            found[output.name] = [one.decode() if isinstance(one, bytes) else one for one in values]
        elif output.datatype == "BYTES":
            content, texts = answer.raw_output_contents[i], []
            while content:
                (size,) = struct.unpack("<I", content[:4])
                texts.append(content[4 : 4 + size].decode())
                content = content[4 + size :]
            found[output.name] = texts
        else:
            kind = {"FP32": "<f4", "FP64": "<f8", "INT64": "<i8"}[output.datatype]
            found[output.name] = np.frombuffer(answer.raw_output_contents[i], kind).tolist()
    return pd.DataFrame(found)


class TestTables:
    @pytest.mark.parametrize("shape", [(3,), (3, 1)])
    def test_a_tensor_for_each_column(
        self, both: Both, expected: pd.DataFrame, shape: tuple[int, ...]
    ) -> None:
        assert_same(both.frame(columns(shape)), expected)

    def test_data_may_be_nested_as_the_shape_is(self, both: Both, expected: pd.DataFrame) -> None:
        nested = [{**one, "data": [[value] for value in one["data"]]} for one in columns((3, 1))]
        assert_same(both.frame(nested), expected)

    def test_binary_data_come_and_go(self, both: Both, expected: pd.DataFrame) -> None:
        body, headers = binary_request(columns(), parameters={"binary_data_output": True}, id="mine")
        response = both.rest.post(f"/v2/models/{both.name}/infer", content=body, headers=headers)
        assert response.status_code == 200, response.text
        size = int(response.headers["Inference-Header-Content-Length"])
        head, content = json.loads(response.content[:size]), response.content[size:]
        assert (head["id"], head["model_name"]) == ("mine", both.name)
        raw = CLASSES["ModelInferResponse"]()
        for one in head["outputs"]:
            raw.outputs.add(name=one["name"], datatype=one["datatype"])
            part, content = content[: one["parameters"]["binary_data_size"]], content[one["parameters"]["binary_data_size"] :]  # fmt: skip
            raw.raw_output_contents.append(part)
        assert content == b""
        assert_same(unpacked(raw), expected)

    @pytest.mark.parametrize("packing", ["gzip", "deflate"])
    def test_a_packed_body_is_unpacked(self, both: Both, expected: pd.DataFrame, packing: str) -> None:
        pack = gzip.compress if packing == "gzip" else zlib.compress
        body = pack(json.dumps({"inputs": columns()}).encode())
        headers = {"content-encoding": packing}
        response = both.rest.post(f"/v2/models/{both.name}/infer", content=body, headers=headers)
        assert_same(frame_of(response.json()), expected)

    def test_outputs_are_chosen(self, both: Both, expected: pd.DataFrame) -> None:
        wanted = [{"name": "probability_gold"}, {"name": "prediction", "parameters": {"binary_data": False}}]
        found = both.frame(columns(), outputs=wanted, parameters={"binary_data_output": False})
        assert_same(found, expected[["probability_gold", "prediction"]])
        assert "'proba'" in both.infer(columns(), 400, outputs=[{"name": "proba"}])["error"]
        classes = [{"name": "prediction", "parameters": {"classification": 2}}]
        assert "classification" in both.infer(columns(), 400, outputs=classes)["error"]

    def test_clients_that_write_null_are_understood(self, both: Both, expected: pd.DataFrame) -> None:
        inputs = [{**one, "parameters": None} for one in columns()]
        assert_same(both.frame(inputs, id=None, parameters=None, outputs=None), expected)

    def test_elements_may_be_json(self, both: Both, expected: pd.DataFrame) -> None:
        inputs = columns()
        inputs[2] |= {"parameters": {"content_type": "pd_json"}, "data": ['"Oslo"', '"Atlantis"', "null"]}
        inputs[1] |= {
            "parameters": {"content_type": "pd_json"},
            "datatype": "BYTES",
            "data": ["52000.0", "null", "18000.5"],
        }
        assert_same(both.frame(inputs), expected)

    def test_columns_that_the_model_does_not_take_are_left_out(
        self, both: Both, expected: pd.DataFrame
    ) -> None:
        more = {"name": "plan", "datatype": "BYTES", "shape": [3], "data": ["gold"] * 3}
        assert_same(both.frame([more, *columns()]), expected)

    def test_a_threshold_moves_the_classes(self, both: Both) -> None:
        for threshold, plan in ((0, "gold"), (1.0, "basic")):
            found = both.frame(columns(), parameters={"threshold": threshold})
            assert set(found["prediction"]) == {plan}
        assert "0 to 1" in both.infer(columns(), 400, parameters={"threshold": "0.5"})["error"]

    def test_rows_are_those_of_other_requests(self, both: Both) -> None:
        """So they are answered in one batch."""
        model = both.service.models.main
        plain = model.form.read(json.dumps(NEW).encode(), "application/json", None)
        inputs = [
            Tensor(name, kind, np.array([row[name] for row in NEW], object if kind == "BYTES" else "f8"))
            for name, kind in KINDS.items()
        ]
        inputs[2].values[:] = [b"Oslo", "Atlantis", b""]  # nothing is missing, too
        found = rows_of(model, inputs)
        assert found.is_joinable
        assert plain.is_joinable
        assert found.content == plain.content

    def test_a_matrix_has_the_columns_in_their_order(self, folder: Path) -> None:
        run = matrix_run(folder)
        predictor = trainwright.load(run)
        rows = np.random.default_rng(1).normal(size=(4, 10))
        wanted = predictor.predict(rows)
        with served(run) as both:
            (output,) = both.rest.get(f"/v2/models/{run.id}").json()["outputs"]
            assert output == {"name": "prediction", "datatype": "FP64", "shape": [-1]}
            for data in (rows.tolist(), rows.reshape(-1).tolist()):
                matrix = {"name": "input-0", "datatype": "FP64", "shape": [4, 10], "data": data}
                assert_same(both.frame([matrix]), wanted)
            single = {**matrix, "datatype": "FP32"}
            assert_same(both.frame([single]), predictor.predict(rows.astype(np.float32)))
            answer = both.call("ModelInfer", message(run.id, [single], raw=True))
            assert_same(unpacked(answer), predictor.predict(rows.astype(np.float32)))
            error = both.infer([{**matrix, "shape": [10, 4]}], 400)["error"]
            assert "[rows, 10]" in error
            assert "'age'" in error


class TestOtherForms:
    def test_images(self, folder: Path) -> None:
        run, contents = image_run(folder)
        wanted = trainwright.load(run).predict(contents)
        pixels = np.stack([np.asarray(opened(one)) for one in contents])
        texts = [base64.b64encode(one).decode() for one in contents]
        shape = [len(contents)]
        with served(run) as both:
            (told,) = both.rest.get(f"/v2/models/{run.id}").json()["inputs"]
            assert (told["datatype"], told["shape"]) == ("BYTES", [-1])
            given = {"name": told["name"], "datatype": "BYTES", "shape": shape, "data": texts}
            assert_same(both.frame([given]), wanted)
            array = {"name": "x", "datatype": "UINT8", "shape": [*pixels.shape], "data": pixels.tolist()}
            assert_same(both.frame([array]), wanted)
            request = CLASSES["ModelInferRequest"](model_name=run.id)
            request.inputs.add(name="x", datatype="BYTES", shape=shape).contents.bytes_contents.extend(
                contents
            )
            assert_same(unpacked(both.call("ModelInfer", request)), wanted)
            for wrong, said in (
                ({**given, "data": ["/etc/passwd"], "shape": [1]}, "base64"),
                ({**given, "data": ["aGVsbG8="], "shape": [1]}, "row 1"),
                ({**array, "datatype": "FP32"}, "UINT8"),
                ({**array, "shape": [*pixels.shape[:2], 24], "data": pixels.reshape(-1).tolist()}, "uint8"),
            ):
                response = both.rest.post(f"/v2/models/{run.id}/infer", json={"inputs": [wrong]})
                assert response.status_code in (400, 422), response.text
                assert said in response.json()["error"]
            path = CLASSES["ModelInferRequest"](model_name=run.id)
            path.inputs.add(name="x", datatype="BYTES", shape=[1]).contents.bytes_contents.append(
                b"/etc/passwd"
            )
            code, said = both.refusal("ModelInfer", path)
            assert code == grpc.StatusCode.INVALID_ARGUMENT
            assert "root" not in said

    def test_texts(self, folder: Path) -> None:
        run = text_run(folder)
        wanted = trainwright.load(run).predict(list(WORDS))
        given = {"name": "anything", "datatype": "BYTES", "shape": [len(WORDS), 1], "data": list(WORDS)}
        with served(run) as both:
            assert_same(both.frame([given]), wanted)
            assert_same(unpacked(both.call("ModelInfer", message(run.id, [given], raw=True))), wanted)
            assert "no text" in both.infer([{**given, "data": ["a", None, "b", "c"]}], 422)["error"]
            assert "BYTES" in both.infer([{**given, "datatype": "INT8", "data": [1, 2, 3, 4]}], 400)["error"]
            assert "takes one" in both.infer([given, {**given, "name": "b"}], 422)["error"]

    def test_arrays(self, folder: Path) -> None:
        run, rows = array_run(folder)
        wanted = trainwright.load(run).predict(rows)
        given = {"name": "x", "datatype": "FP32", "shape": [*rows.shape], "data": rows.reshape(-1).tolist()}
        with served(run) as both:
            (told,) = both.rest.get(f"/v2/models/{run.id}").json()["inputs"]
            assert told == {"name": "features", "datatype": "FP32", "shape": [-1, 3, 4]}
            assert_same(both.frame([given]), wanted)
            assert_same(unpacked(both.call("ModelInfer", message(run.id, [given], raw=True))), wanted)
            error = both.infer([{**given, "shape": [5, 4, 3]}], 422)["error"]
            assert "[3, 4]" in error
            texts = {"name": "x", "datatype": "BYTES", "shape": [1], "data": ["a"]}
            assert "numbers" in both.infer([texts], 400)["error"]

    def test_a_language_model_is_asked_elsewhere(self, folder: Path) -> None:
        with served(language_run(folder)) as both:
            found = both.rest.get(f"/v2/models/{both.name}").json()
            assert (found["inputs"], found["outputs"]) == ([], [])
            given = {"name": "x", "datatype": "BYTES", "shape": [1], "data": ["The "]}
            assert "/generate" in both.infer([given], 400)["error"]


def opened(content: bytes) -> Any:
    import io

    from PIL import Image

    return Image.open(io.BytesIO(content))


class TestDescriptions:
    def test_a_model_is_described(self, both: Both) -> None:
        found = both.rest.get(f"/v2/models/{both.name}").json()
        told = {one["name"]: one["datatype"] for one in found["inputs"]}
        assert told == {"age": "FP64", "income": "FP64", "city": "BYTES", "joined": "BYTES", "seats": "FP64"}
        outputs = {one["name"]: (one["datatype"], one["shape"]) for one in found["outputs"]}
        assert outputs == {
            "prediction": ("BYTES", [-1]),
            "probability_basic": ("FP64", [-1]),
            "probability_gold": ("FP64", [-1]),
        }
        assert found["versions"] == [both.name]
        same = both.rest.get(f"/v2/models/{both.name}/versions/{both.name}").json()
        assert same == found
        answer = both.infer(columns())
        assert {one["name"]: one["datatype"] for one in answer["outputs"]} == {
            name: kind for name, (kind, _) in outputs.items()
        }
        told = both.call("ModelMetadata", CLASSES["ModelMetadataRequest"](name=both.name))
        assert [(one.name, one.datatype, [*one.shape]) for one in told.inputs] == [
            (one["name"], one["datatype"], one["shape"]) for one in found["inputs"]
        ]

    def test_the_server_and_its_models_are_alive(self, both: Both) -> None:
        assert both.rest.get("/v2").json()["name"] == "trainwright"
        assert both.rest.get("/v2/health/live").json() == {"live": True}
        assert both.rest.get("/v2/health/ready").json() == {"ready": True}
        assert both.rest.get(f"/v2/models/{both.name}/ready").status_code == 200
        assert both.call("ServerLive").live
        assert both.call("ServerReady").ready
        assert both.call("ModelReady", CLASSES["ModelReadyRequest"](name=both.name)).ready
        assert both.call("ServerMetadata").extensions[0] == "binary_tensor_data"
        (one,) = both.rest.post("/v2/repository/index").json()
        (other,) = both.call("RepositoryIndex").models
        assert (one["name"], one["state"]) == (other.name, other.state) == (both.name, "READY")

    def test_a_service_that_stops_is_not_ready(self, both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(both.service, "is_ready", False)
        assert both.rest.get("/v2/health/ready").status_code == 503
        assert both.rest.get(f"/v2/models/{both.name}/ready").status_code == 503
        assert not both.call("ServerReady").ready

    def test_another_model_or_version_is_not_there(self, both: Both) -> None:
        for path in ("other", f"{both.name}/versions/2", "..%2f..%2fetc", "a/b/c", "%00"):
            for more in ("", "/ready", "/infer"):
                ask = both.rest.post if more == "/infer" else both.rest.get
                response = ask(f"/v2/models/{path}{more}", **({"json": {"inputs": []}} if more == "/infer" else {}))  # fmt: skip
                assert response.status_code == 404, (path, more, response.text)
                assert both.name in response.json()["error"]
        code, said = both.refusal("ModelMetadata", CLASSES["ModelMetadataRequest"](name="other"))
        assert (code, both.name in said) == (grpc.StatusCode.NOT_FOUND, True)

    def test_versions_and_shares_and_shadows(self, run: Run, folder: Path) -> None:
        other = table_run(folder, "random_forest")
        shares = [(str(other.path), 0.5)]
        with served(run, shares=shares, shadow=str(other.path)) as both:
            wanted = {one.id: trainwright.load(one).predict(NEW) for one in (run, other)}
            assert not wanted[run.id].equals(wanted[other.id])
            seen = set()
            for i in range(40):
                answer = both.infer(columns(), id=f"request {i}")
                assert answer["id"] == f"request {i}"
                seen.add(answer["model_version"])
                assert_same(frame_of(answer), wanted[answer["model_version"]])
            assert seen == {run.id, other.id}
            for one in (run, other):
                path = f"/v2/models/{run.id}/versions/{one.id}/infer"
                answer = both.rest.post(path, json={"inputs": columns()}).json()
                assert_same(frame_of(answer), wanted[one.id])
            path = f"/v2/models/{other.id}/infer"
            answer = both.rest.post(path, json={"inputs": columns()}).json()
            assert_same(frame_of(answer), wanted[other.id])
            assert len(both.rest.post("/v2/repository/index").json()) == 2
            counted = b"trainwright_shadow"
            while counted + b'_rows_total{outcome="different"}' not in both.rest.get("/metrics").content:
                assert counted in both.rest.get("/metrics").content


class TestGrpc:
    @pytest.mark.parametrize("raw", [True, False])
    def test_predictions_are_those_of_the_run(self, both: Both, expected: pd.DataFrame, raw: bool) -> None:
        answer = both.call("ModelInfer", message(both.name, columns(), raw=raw, id="mine"))
        assert bool(answer.raw_output_contents) == raw
        assert (answer.id, answer.model_name, answer.model_version) == ("mine", both.name, both.name)
        assert_same(unpacked(answer), expected)

    def test_outputs_and_parameters(self, both: Both) -> None:
        request = message(both.name, columns(), raw=True)
        request.parameters["threshold"].double_param = 0.0
        request.outputs.add(name="prediction")
        answer = both.call("ModelInfer", request)
        assert unpacked(answer).to_dict("list") == {"prediction": ["gold"] * 3}

    def test_refusals_have_the_codes_of_grpc(self, both: Both) -> None:
        good = message(both.name, columns(), raw=True)
        invalid, found = grpc.StatusCode.INVALID_ARGUMENT, {}
        extra = type(good).FromString(good.SerializeToString())
        extra.raw_input_contents.append(b"")
        short = type(good).FromString(good.SerializeToString())
        short.raw_input_contents[0] = b"123"
        found["raw"] = both.refusal("ModelInfer", extra)
        found["short"] = both.refusal("ModelInfer", short)
        found["missing"] = both.refusal("ModelInfer", message(both.name, columns()[1:], raw=True))
        found["no message"] = both.refusal("ModelInfer", b"\xff\xff\xff\xff")
        found["none"] = both.refusal("ModelInfer", message(both.name, [], raw=True))
        half = message(both.name, columns(), raw=False)
        half.inputs[0].datatype = "FP16"
        found["fp16"] = both.refusal("ModelInfer", half)
        half.inputs[0].datatype = "FP128"
        found["datatype"] = both.refusal("ModelInfer", half)
        half.inputs[0].datatype = "INT8"
        del half.inputs[0].contents.int64_contents[:]
        half.inputs[0].contents.int_contents.extend([1, 2, 300])
        found["range"] = both.refusal("ModelInfer", half)
        assert {code for code, _ in found.values()} == {invalid}, found
        for name, words in {
            "raw": "6 raw contents",
            "short": "24 bytes, but 3",
            "missing": "no input 'age'",
            "no message": "no ModelInferRequest",
            "none": "no inputs",
            "fp16": "raw",
            "datatype": "FP128",
            "range": "too large for INT8",
        }.items():
            assert words in found[name][1], (name, found[name])

    def test_large_messages_are_refused_packed_or_not(self, both: Both) -> None:
        request = message(both.name, columns(), raw=True)
        request.raw_input_contents.append(bytes(64 * MiB))
        for packing in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            code, _ = both.refusal("ModelInfer", request, compression=packing)
            assert code == grpc.StatusCode.RESOURCE_EXHAUSTED

    def test_a_full_queue_and_a_late_model(self, both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
        request = message(both.name, columns(), raw=True)
        for error, code, status in (
            (full(5, 5), grpc.StatusCode.RESOURCE_EXHAUSTED, 429),
            (late(1.0), grpc.StatusCode.DEADLINE_EXCEEDED, 503),
        ):

            async def ask(*_: Any, error: Exception = error) -> None:
                raise error

            monkeypatch.setattr(both.service, "ask", ask)
            assert both.refusal("ModelInfer", request) == (code, str(error))
            assert both.infer(columns(), status)["error"] == str(error)

    def test_a_mistake_of_the_service_is_logged_without_content(
        self, both: Both, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def ask(*_: Any) -> None:
            raise ValueError("secret of Oslo")

        monkeypatch.setattr(both.service, "ask", ask)
        with caplog.at_level(logging.ERROR):
            code, said = both.refusal("ModelInfer", message(both.name, columns(), raw=True))
            assert both.infer(columns(), 500)["error"] == said
        logged = "".join(record.getMessage() for record in caplog.records if record.name == "trainwright")
        assert code == grpc.StatusCode.INTERNAL
        assert "ValueError" in logged
        assert "Oslo" not in logged.replace('raise ValueError("secret of Oslo")', "") + said

    def test_requests_are_counted(self, both: Both) -> None:
        def count(code: int) -> float:
            text = both.rest.get("/metrics").text
            line = f'trainwright_requests_total{{code="{code}",route="/{SERVICE}/ModelInfer"}} '
            return float(
                next((one.removeprefix(line) for one in text.splitlines() if one.startswith(line)), 0)
            )

        good, bad = count(200), count(404)
        both.call("ModelInfer", message(both.name, columns(), raw=True))
        both.refusal("ModelInfer", message("other", columns(), raw=True))
        assert (count(200), count(404)) == (good + 1, bad + 1)


def test_a_key_is_asked_for(run: Run) -> None:
    with served(run, key="sesame") as both:
        assert both.rest.get("/v2/health/ready").status_code == 200
        assert both.call("ServerLive").live
        assert both.rest.get("/v2").status_code == 401
        assert "Bearer" in both.infer(columns(), 401)["error"]
        request = message(both.name, columns(), raw=True)
        for shown in ((), [("authorization", "Bearer wrong")], [("x-api-key", "sesam")]):
            code, said = both.refusal("ModelInfer", request, metadata=shown)
            assert (code, "Bearer" in said) == (grpc.StatusCode.UNAUTHENTICATED, True)
        for good in ([("authorization", "Bearer sesame")], [("x-api-key", "sesame")]):
            assert both.call("ModelInfer", request, metadata=good).outputs


def test_answers_are_logged_as_others_are(run: Run, expected: pd.DataFrame, tmp_path: Path) -> None:
    with served(run, log=tmp_path / "log", window_seconds=0) as both:
        both.infer(columns(), id="rest")
        both.call("ModelInfer", message(both.name, columns(), raw=True, id="grpc"))
    log = pd.read_parquet(tmp_path / "log")
    for name in ("rest", "grpc"):
        rows = log[log["_request_id"] == name]
        assert rows["_prediction"].tolist() == expected["prediction"].tolist()
        assert rows["age"].tolist() == [row["age"] for row in NEW]
        assert rows["income"].isna().tolist() == [False, True, False]


def changed(at: int, **more: Any) -> list[dict[str, Any]]:
    inputs = columns()
    inputs[at] = {key: value for key, value in {**inputs[at], **more}.items() if value is not ...}
    return inputs


HOSTILE: dict[str, tuple[Any, int, str]] = {
    "shape of more": ({"inputs": changed(0, shape=[4])}, 400, "'age': shape [4] has 4 elements, but 3"),
    "huge product": ({"inputs": changed(0, shape=[2**40, 2**40])}, 400, "has more than"),
    "huge size": ({"inputs": changed(0, shape=[10**30])}, 400, "shape"),
    "huge digits": ({"inputs": changed(0, shape=[10**4200] * 3)}, 400, ""),
    "huge sizes": ({"inputs": changed(0, shape=[2**40] * 16)}, 400, "has more than"),
    "huge but empty": ({"inputs": changed(0, shape=[0, 2**40, 2**40, 2**40], data=[])}, 400, "has more than"),
    "negative": ({"inputs": changed(0, shape=[-3])}, 400, "shape [-3]"),
    "negative twice": ({"inputs": changed(0, shape=[-1, -3])}, 400, "shape [-1, -3]"),
    "no axes": ({"inputs": changed(0, shape=[])}, 400, "shape []"),
    "many axes": ({"inputs": changed(0, shape=[1] * 10_000)}, 400, "1 to 16"),
    "fraction of a size": ({"inputs": changed(0, shape=[1.5])}, 400, "$.inputs[0].shape[0]"),
    "other lengths": ({"inputs": changed(0, shape=[3, 1], data=[[1], [2, 3], []])}, 400, "lists of other"),
    "a list in a flat one": ({"inputs": changed(0, data=[1, [2], 3])}, 400, "lists of other"),
    "text for a number": ({"inputs": changed(0, data=["1", "2", "3"])}, 400, "a text is given"),
    "boolean for a number": ({"inputs": changed(0, data=[True, 1, 2])}, 400, "a boolean is given"),
    "number for a text": ({"inputs": changed(2, data=[1, 2, 3])}, 400, "a number is given"),
    "fraction for an integer": ({"inputs": changed(0, data=[1.5, 2, 3])}, 400, "with a fraction"),
    "null for an integer": ({"inputs": changed(0, data=[None, 2, 3])}, 400, "whole numbers"),
    "number for a boolean": ({"inputs": changed(0, datatype="BOOL", data=[1, 0, 1])}, 400, "true or false"),
    "out of range": ({"inputs": changed(0, datatype="UINT8", data=[256, 0, 1])}, 400, "too large for UINT8"),
    "negative unsigned": ({"inputs": changed(0, datatype="UINT8", data=[-1, 0, 1])}, 400, "too large"),
    "huge number": ({"inputs": changed(1, data=[10**400, 1, 1])}, 400, "too large"),
    "huge float": ({"inputs": changed(1, datatype="FP32", data=[1e300, 1, 1])}, 400, "too large for FP32"),
    "unknown datatype": ({"inputs": changed(0, datatype="int64")}, 400, "'int64' given; there are BOOL"),
    "an object": ({"inputs": changed(0, data=[{}, 1, 2])}, 400, "something else"),
    "no data": ({"inputs": changed(0, data=...)}, 400, "no data"),
    "no datatype": ({"inputs": changed(0, datatype=...)}, 400, "datatype"),
    "rows that differ": ({"inputs": changed(0, shape=[2], data=[1, 2])}, 422, "numbers of rows: 'age' has 2"),
    "a missing column": ({"inputs": columns()[1:]}, 422, "no input 'age'"),
    "no inputs": ({"inputs": []}, 422, "no inputs"),
    "no rows": ({"inputs": columns((0,), [])}, 422, "no rows"),
    "the same twice": ({"inputs": [*columns(), columns()[0]]}, 422, "same name"),
    "a matrix for a column": ({"inputs": changed(0, shape=[1, 3])}, 400, "[rows, 1]"),
    "a path for a name": ({"inputs": changed(0, name="../../etc/passwd")}, 422, "no input 'age'"),
    "shared memory": ({"inputs": changed(0, parameters={"shared_memory_region": "x"})}, 400, "shared"),
    "size without data": ({"inputs": changed(0, parameters={"binary_data_size": 24})}, 400, "0 bytes are left"),
    "size that is none": ({"inputs": changed(0, parameters={"binary_data_size": True})}, 400, "bytes are left"),
    "a list": ([], 400, "no inference request"),
    "a bad row": (
        {"inputs": changed(0, datatype="BYTES", data=["31", "young", "19"])}, 422, "row 2: column 'age'"
    ),
    "json that is none": (
        {"inputs": changed(2, data=["{", "[" * 50_000, "1"], parameters={"content_type": "pd_json"})},
        422,
        "row 1, column 'city'",
    ),
}  # fmt: skip


class TestHostile:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_a_wrong_request_is_refused_with_words(self, both: Both, name: str) -> None:
        body, status, words = HOSTILE[name]
        response = both.rest.post(f"/v2/models/{both.name}/infer", content=json.dumps(body).encode())
        error = response.json()["error"]
        assert response.status_code == status, error
        assert words in error
        assert "Traceback" not in error
        assert len(error) < 600

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            (b"", "truncated"),
            (b"{", "truncated"),
            (b"\xff\xfe", "malformed"),
            (b'{"inputs": [{"data": ' + b"[" * 200_000, "deeply"),
            (b'{"inputs": [{"name": "x", "datatype": "FP64", "shape": [1], "data": [NaN]}]}', "write null"),
            (b'{"inputs": [{"name": "\xff"}]}', ""),
        ],
    )
    def test_what_is_no_json(self, both: Both, body: bytes, words: str) -> None:
        response = both.rest.post(f"/v2/models/{both.name}/infer", content=body)
        assert response.status_code == 400
        assert words in response.json()["error"]

    def test_nested_data_are_no_bomb(self, both: Both) -> None:
        deep: Any = 1
        for _ in range(500):
            deep = [deep]
        assert "lists of other" in both.infer(changed(0, shape=[1], data=[deep]), 400)["error"]

    def test_binary_data_that_do_not_fit(self, both: Both) -> None:
        body, headers = binary_request(columns())
        url, key = f"/v2/models/{both.name}/infer", "Inference-Header-Content-Length"
        for content, header, words in (
            (body[:-1], headers[key], "binary_data_size"),
            (body + b"x", headers[key], "1 bytes of binary data"),
            (body, "99999999", "number of bytes"),
            (body, "9" * 5000, "number of bytes"),
            (body, "-1", "number of bytes"),
            (body, "x", "number of bytes"),
            (body, "\u0663".encode(), "number of bytes"),
            (body, "3", "truncated"),
        ):
            response = both.rest.post(url, content=content, headers={key: header})
            assert response.status_code == 400, header
            assert words in response.json()["error"]
        cut = columns()
        for data, shape, words in (
            (["a" * 5], [2], "hold 1"),
            (["a", "b", "c"], [2], "hold more"),
            ([], [1], "hold 0"),
        ):
            cut[2] = {**cut[2], "data": data, "shape": shape}
            body, headers = binary_request(cut)
            response = both.rest.post(url, content=body, headers=headers)
            assert (response.status_code, words in response.json()["error"]) == (400, True)
        raw = message(both.name, columns(), raw=True)
        raw.raw_input_contents[2] = struct.pack("<I", 2**32 - 1) + b"x"
        assert "end within element 1" in both.refusal("ModelInfer", raw)[1]
        raw.raw_input_contents[2] = struct.pack("<I", 1) + b"\xff" + bytes(8)
        code, said = both.refusal("ModelInfer", raw)
        assert (code, "no text in UTF-8" in said) == (grpc.StatusCode.INVALID_ARGUMENT, True)

    def test_a_large_body_is_refused(self, both: Both) -> None:
        response = both.rest.post(f"/v2/models/{both.name}/infer", content=bytes(MiB + 1))
        assert response.status_code == 413
        assert isinstance(response.json()["error"], str)

    def test_a_large_request_is_read_beside_the_loop(self, both: Both, expected: pd.DataFrame) -> None:
        rows = NEW * 2000
        found = both.frame(columns((len(rows),), rows))
        assert_same(found, pd.concat([expected] * 2000, ignore_index=True))


def test_messages_do_not_touch_the_pool_that_clients_share() -> None:
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("inference.ModelInferRequest")
