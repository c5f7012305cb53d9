"""A service answers requests with the predictions of its run, and says what is wrong with others."""

from __future__ import annotations

import asyncio
import base64
import gzip
import io
import json
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import uvicorn
from pyarrow import parquet
from starlette.testclient import TestClient

import trainwright
from customers import NEW, config, write_customers
from trainwright.errors import DataError, InputError, RunNotFoundError
from trainwright.records.listing import has_model
from trainwright.runs.lookup import find
from trainwright.runs.run import Run
from trainwright.servers.service import protocol
from trainwright.servers.service.app import make_app
from trainwright.servers.service.batching import Batcher, Job
from trainwright.servers.service.errors import RequestError
from trainwright.servers.service.models import identity_of
from trainwright.servers.service.running import refuse_open
from trainwright.servers.service.settings import Settings

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    table = write_customers(folder / "customers.csv")
    return trainwright.train(config(table, "lightgbm"), runs_dir=folder / "runs", quiet=True)


@pytest.fixture(scope="module")
def other(folder: Path, run: Run) -> Run:
    parameters = {"n_estimators": 3, "max_depth": 2}
    other = config(folder / "customers.csv", "lightgbm")
    return trainwright.train(
        {**other, "model": {"type": "lightgbm", "params": parameters}}, runs_dir=folder / "runs", quiet=True
    )


@pytest.fixture(scope="module")
def expected(run: Run) -> pd.DataFrame:
    return trainwright.load(run).predict(NEW)


@pytest.fixture(scope="module")
def client(run: Run) -> Iterator[TestClient]:
    with TestClient(make_app(Settings(str(run.path), max_body=1 << 20))) as client:
        yield client


def error_of(response: Any) -> dict[str, Any]:
    found: dict[str, Any] = response.json()["error"]
    return found


def frame_of(answer: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(answer["predictions"])


class TestRows:
    @pytest.mark.parametrize(
        "body",
        [
            {"rows": NEW},
            NEW,
            {"columns": {name: [row[name] for row in NEW] for name in NEW[0]}},
            {"instances": NEW},
            {"dataframe_records": NEW},
            {"dataframe_split": {"columns": [*NEW[0]], "data": [[*row.values()] for row in NEW]}},
        ],
        ids=["rows", "list", "columns", "instances", "records", "split"],
    )
    def test_the_forms_of_json_get_the_predictions_of_the_run(
        self, client: TestClient, expected: pd.DataFrame, run: Run, body: Any
    ) -> None:
        response = client.post("/predict", json=body)
        assert response.status_code == 200
        pd.testing.assert_frame_equal(
            frame_of(response.json()), expected, check_dtype=False, check_exact=True
        )
        assert response.json()["run"] == run.id

    def test_a_single_row_needs_no_list(self, client: TestClient, expected: pd.DataFrame) -> None:
        answer = client.post("/predict", json=NEW[0]).json()["predictions"]
        assert answer == [expected.iloc[0].to_dict()]

    def test_a_body_without_content_type_is_json(self, client: TestClient) -> None:
        headers = {"content-type": "application/x-www-form-urlencoded"}  # what curl -d sends
        for given in ({}, headers):
            response = client.post("/predict", content=json.dumps(NEW).encode(), headers=given)
            assert response.status_code == 200

    @pytest.mark.parametrize("kind", ["csv", "ndjson", "parquet", "arrow", "arrow file"])
    def test_files_get_the_predictions_of_the_run(
        self, client: TestClient, expected: pd.DataFrame, kind: str
    ) -> None:
        frame = pd.DataFrame(NEW)
        table, sink = pa.Table.from_pandas(frame), io.BytesIO()
        match kind:
            case "csv":
                content, content_type = frame.to_csv(index=False, sep=";").encode(), "text/csv"
            case "ndjson":
                content = frame.to_json(orient="records", lines=True).encode()
                content_type = "application/x-ndjson"
            case "parquet":
                frame.to_parquet(sink)
                content, content_type = sink.getvalue(), "application/vnd.apache.parquet"
            case _:
                new = pa.ipc.new_stream if kind == "arrow" else pa.ipc.new_file
                with new(sink, table.schema) as writer:
                    writer.write_table(table)
                content, content_type = sink.getvalue(), "application/vnd.apache.arrow.stream"
        response = client.post("/predict", content=content, headers={"content-type": content_type})
        assert response.status_code == 200, response.text
        pd.testing.assert_frame_equal(
            pd.DataFrame(response.json()["predictions"]), expected, check_dtype=False, check_exact=True
        )

    def test_a_packed_body_is_unpacked(self, client: TestClient) -> None:
        packed = gzip.compress(json.dumps(NEW).encode())
        answer = client.post("/predict", content=packed, headers={"content-encoding": "gzip"})
        assert answer.status_code == 200
        text = json.dumps(NEW).encode()  # as `cat a.gz b.gz` writes it
        packed = gzip.compress(text[:40]) + gzip.compress(text[40:])
        again = client.post("/predict", content=packed, headers={"content-encoding": "gzip"})
        assert again.json()["predictions"] == answer.json()["predictions"]

    def test_a_threshold_moves_the_classes(self, client: TestClient) -> None:
        for threshold, plan in ((0, "gold"), (1, "basic")):
            answer = client.post(f"/predict?threshold={threshold}", json=NEW).json()
            assert set(frame_of(answer)["prediction"]) == {plan}

    def test_a_bad_row_gets_an_error_of_its_own_if_asked_for(
        self, client: TestClient, expected: pd.DataFrame
    ) -> None:
        rows = [NEW[0], {**NEW[1], "age": "young"}, NEW[2]]
        frame = frame_of(client.post("/predict?on_error=null", json=rows).json())
        assert "'young'" in frame["error"][1]
        assert frame["prediction"][1] is None
        assert list(frame["prediction"][[0, 2]]) == list(expected["prediction"][[0, 2]])

    def test_the_name_of_a_request_comes_back(self, client: TestClient) -> None:
        answer = client.post("/predict", json=NEW, headers={"x-request-id": "order 7"}).json()
        assert answer["id"] == "order 7"
        assert len({client.post("/predict", json=NEW).json()["id"] for _ in range(3)}) == 3


WITHOUT_AGE = {name: cell for name, cell in NEW[0].items() if name != "age"}
HOSTILE: dict[str, tuple[Any, int, str]] = {
    "nothing": (b"", 400, "truncated"),
    "no json": (b"hello", 400, "of a body that is not JSON, name the Content-Type"),
    "half": (b'[{"age": 3', 400, "truncated"),
    "nan": (json.dumps([{**NEW[0], "age": float("nan")}]).encode(), 400, "write null"),
    "infinity": (json.dumps([{**NEW[0], "age": float("inf")}]).encode(), 400, "write null"),
    "latin": (json.dumps([{**NEW[0], "city": "Zürich"}], ensure_ascii=False).encode("latin-1"), 400, "UTF-8"),
    "utf-16": (json.dumps(NEW).encode("utf-16"), 400, ""),
    "surrogate": (b'[{"age": "\\ud800"}]', 400, ""),
    "depth": (b"[" * 100_000 + b"]" * 100_000, 422, "row 1"),
    "depth in a cell": (b'[{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}]", 400, "nested too deeply"),
    "depth of objects": (b'{"x":' * 100_000 + b"1" + b"}" * 100_000, 400, "nested too deeply"),
    "a number": (b"5", 422, "expected"),
    "null": (b"null", 422, "expected"),
    "a list of lists": (b"[[1, 2]]", 422, "row 1: 2 cells given; there are 5 columns"),
    "no rows": (b"[]", 422, "no rows"),
    "no columns": (b"[{}]", 422, "row 1, column 'age': there is no value"),
    "a column is missing": (json.dumps([NEW[0], WITHOUT_AGE]).encode(), 422, "row 2, column 'age'"),
    "a list in a cell": (json.dumps([{**NEW[0], "age": [1]}]).encode(), 422, "row 1, column 'age'"),
    "an object in a cell": (
        json.dumps([NEW[1], {**NEW[0], "city": {}}]).encode(),
        422,
        "row 2, column 'city'",
    ),
    "text for a number": (json.dumps([NEW[0], {**NEW[1], "age": "x"}]).encode(), 422, "row 2: column 'age'"),
    "no time": (json.dumps([{**NEW[0], "joined": "soon"}]).encode(), 422, "column 'joined'"),
    "a boolean for a time": (json.dumps([{**NEW[0], "joined": True}]).encode(), 422, "column 'joined'"),
    "a huge number": (b'[{"age": 1e400}]', 422, "row 1, column 'age': number out of range"),
    "a huge integer": (json.dumps([{**NEW[0], "age": 10**400}]).encode(), 422, ""),
    "too large for float32": (json.dumps([{**NEW[0], "age": 1e300}]).encode(), 422, "column 'age'"),
    "unequal columns": (
        json.dumps({"columns": {**{n: [1] for n in NEW[0]}, "age": [1, 2]}}).encode(),
        422,
        "different numbers of rows",
    ),
    "columns that are no lists": (json.dumps({"columns": dict.fromkeys(NEW[0], 1)}).encode(), 422, "'age'"),
    "rows and nothing": (b'{"rows": null}', 422, "expected"),
    "an unknown key": (b'{"data": []}', 422, "the object has 'data': give `rows`"),
    "a ragged split": (b'{"dataframe_split": {"columns": ["age"], "data": [[1, 2]]}}', 422, "row 1"),
    "a path": (json.dumps("/etc/passwd").encode(), 422, "expected"),
    "many columns": (
        json.dumps([{**NEW[0], **{f"c{i}": i for i in range(20_000)}, "age": []}]).encode(),
        422,
        "column 'age'",
    ),
    "trailing data": (json.dumps(NEW).encode() + b"]", 400, "malformed"),
    "true": (b"true", 422, "expected"),
    "a text": (b'"rows"', 422, "expected"),
    "an empty object": (b"{}", 422, "column 'age': there is no value"),
    "null for a row": (b"[null]", 422, "row 1"),
    "a row among lists": (json.dumps([[1, 2, "Oslo", None, 3], NEW[0]]).encode(), 422, "row 2"),
    "rows that are a number": (b'{"rows": 5}', 422, "expected"),
    "rows that are one row": (json.dumps({"rows": NEW[0]}).encode(), 422, "expected"),
    "inputs that are no lists": (b'{"inputs": [1, 2]}', 422, "row 1"),
    "too many inputs": (b'{"inputs": [[1, 2, 3, 4, 5, 6]]}', 422, "row 1: 6 cells given"),
    "a list in an input": (b'{"inputs": [[[1], 2, "Oslo", null, 3]]}', 422, "row 1"),
    "no columns in columns": (b'{"columns": {}}', 422, "'age'"),
    "columns without rows": (json.dumps({"columns": {n: [] for n in NEW[0]}}).encode(), 422, "no rows"),
    "a split with a column twice": (
        b'{"dataframe_split": {"columns": ["age", "age"], "data": [[1, 2]]}}',
        422,
        "names a column twice",
    ),
    "a split without data": (b'{"dataframe_split": {"columns": ["age"]}}', 422, "data"),
    "a negative huge integer": (
        json.dumps([NEW[0], {**NEW[0], "seats": -(10**400)}]).encode(),
        422,
        "row 2, column 'seats'",
    ),
    "a path in a cell": (
        json.dumps([{**NEW[0], "joined": "../../etc/passwd"}]).encode(),
        422,
        "column 'joined'",
    ),
    "a control character": (b'[{"age": "\x00"}]', 400, "malformed"),
    "utf-32": (json.dumps(NEW).encode("utf-32"), 400, ""),
    "a comma too many": (json.dumps(NEW).encode()[:-1] + b",]", 400, "malformed"),
    "a comment": (b"[] // rows", 400, "malformed"),
    "single quotes": (b"[{'age': 3}]", 400, "malformed"),
    "a leading zero": (b'[{"age": 007}]', 400, "malformed"),
    "hexadecimal": (b'[{"age": 0x10}]', 400, "malformed"),
    "two documents": (b"[] []", 400, "malformed"),
    "a pickle": (b"\x80\x04\x95\x05\x00\x00\x00", 400, ""),
    "an image": (b"\x89PNG\r\n\x1a\n" + bytes(64), 400, ""),
}


class TestMistakes:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_is_answered_with_row_and_column(
        self, client: TestClient, name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        body, status, words = HOSTILE[name]
        response = client.post("/predict", content=body, headers=JSON)
        assert response.status_code == status, response.text
        assert words in error_of(response)["message"]
        assert len(response.text) < 2000
        assert not caplog.records
        assert client.post("/predict", json=NEW).status_code == 200

    def test_all_bad_rows_are_named(self, client: TestClient) -> None:
        rows = [{**NEW[0], "age": f"x{i}"} for i in range(3)]
        places = error_of(client.post("/predict", json=rows))["rows"]
        assert [(place["row"], place["column"]) for place in places] == [(1, "age"), (2, "age"), (3, "age")]

    @pytest.mark.parametrize(
        ("content_type", "content"),
        [
            ("text/csv", b""),
            ("text/csv", b"age\n1\n"),
            ("text/csv", b"\xff\xfe\x00"),
            ("text/csv; charset=klingon", b"age\n"),
            ("application/vnd.apache.parquet", b"PAR1 no"),
            ("application/vnd.apache.arrow.stream", b"ARROW1 no"),
            ("application/vnd.apache.arrow.stream", b"\x00" * 100),
            ("application/x-ndjson", b"{"),
        ],
    )
    def test_a_file_that_cannot_be_read_is_said(
        self, client: TestClient, content_type: str, content: bytes
    ) -> None:
        response = client.post("/predict", content=content, headers={"content-type": content_type})
        assert response.status_code in (400, 422), response.text
        assert "/tmp" not in response.text
        assert "/dev/shm" not in response.text

    @pytest.mark.parametrize(
        "name", ["offsets", "many rows", "an index", "invalid texts", "parquet of one text"]
    )
    def test_crafted_columns_are_refused(self, client: TestClient, name: str) -> None:
        """They would crash the process, or fill its memory."""
        rows = 3
        column: Any
        match name:
            case "offsets":
                offsets = pa.array([0, -900_000, 80, 84], pa.int32()).buffers()[1]
                column = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"x" * 84)])
            case "an index":
                indices = pa.array([0, 1, 9_000_000], pa.int32())
                column = pa.DictionaryArray.from_arrays(indices, pa.array(["Bern", "Oslo"]), safe=False)
            case "invalid texts":
                column = pa.array([b"\xff\xfe"] * 3).view(pa.string())
            case "many rows":
                column, rows = pa.nulls(1 << 25), 1 << 25
            case _:
                column, rows = pa.array(["x" * (1 << 20)] * 600), 600
        others = {name: pa.nulls(rows) for name in NEW[0] if name != "city"}
        table, sink = pa.table({**others, "city": column}), io.BytesIO()
        if name == "parquet of one text":
            parquet.write_table(table, sink)
            content_type = "application/vnd.apache.parquet"
        else:
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            content_type = "application/vnd.apache.arrow.stream"
        response = client.post("/predict", content=sink.getvalue(), headers={"content-type": content_type})
        assert response.status_code in (400, 413), response.text
        assert client.post("/predict", json=NEW).status_code == 200

    @pytest.mark.parametrize("charset", ["undefined", "punycode", "unicode_escape", "rot13", "hex", "\0"])
    def test_encodings_that_are_no_text_are_refused(self, client: TestClient, charset: str) -> None:
        content = pd.DataFrame(NEW).to_csv(index=False).encode()
        headers = {"content-type": f"text/csv; charset={charset}"}
        assert client.post("/predict", content=content, headers=headers).status_code == 400
        headers = {"content-type": "text/csv; charset=Windows-1252"}
        assert client.post("/predict", content=content, headers=headers).status_code == 200

    def test_other_content_types_are_refused_with_those_that_there_are(self, client: TestClient) -> None:
        for kind in ("application/pickle", "text/html", "x" * 500):
            response = client.post("/predict", content=b"x", headers={"content-type": kind})
            assert response.status_code == 415
            assert "text/csv" in response.text
        response = client.post("/predict", files={"file": ("a.csv", b"age\n1\n")})
        assert response.status_code == 415
        assert "--data-binary @FILE" in response.text
        response = client.post("/predict", content=b"x", headers={**JSON, "content-encoding": "br"})
        assert response.status_code == 415

    def test_a_large_body_is_refused(self, client: TestClient) -> None:
        assert client.post("/predict", content=b" " * (2 << 20), headers=JSON).status_code == 413
        bomb = gzip.compress(b" " * (64 << 20))
        response = client.post("/predict", content=bomb, headers={**JSON, "content-encoding": "gzip"})
        assert response.status_code == 413
        for broken in (b"no gzip", gzip.compress(b"[]")[:-6], gzip.compress(b"[]") + b"more"):
            response = client.post("/predict", content=broken, headers={**JSON, "content-encoding": "gzip"})
            assert response.status_code == 400

    @pytest.mark.parametrize(
        ("content", "said", "row", "column"),
        [
            ('{"row": [1, 2]}', "the object has 'row': give `rows`, `columns` or `inputs`", None, None),
            (
                json.dumps([NEW[0], {**NEW[0], "income": 10**400}]),
                "row 2, column 'income': a number is too large",
                2,
                "income",
            ),
            (json.dumps({"instances": [NEW[0], [1, 2, 3, 4, 5]]}), "row 2 is a list", 2, None),
            (json.dumps({"instances": [[1, 2]]}), "row 1: 2 cells given", 1, None),
        ],
    )
    def test_a_wrong_body_is_told_what_to_give(
        self, client: TestClient, content: str, said: str, row: int | None, column: str | None
    ) -> None:
        response = client.post("/predict", content=content, headers=JSON)
        assert response.status_code == 422
        error = response.json()["error"]
        assert error["message"].startswith(said)
        assert (error["rows"][0]["row"], error["rows"][0]["column"]) == (row, column)

    def test_instances_may_be_lists_of_cells(self, client: TestClient) -> None:
        cells = [[*row.values()] for row in NEW]
        by_lists = client.post("/predict", json={"instances": cells}).json()["predictions"]
        assert by_lists == client.post("/predict", json=NEW).json()["predictions"]

    def test_a_schema_takes_booleans_for_numbers_and_texts_for_dates(self, client: TestClient) -> None:
        document = client.get("/openapi.json").json()
        schema = document["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        cells = schema["oneOf"][3]["properties"]
        assert cells["age"]["type"][:2] == ["number", "boolean"]
        assert client.post("/predict", json={**NEW[0], "age": True}).status_code == 200
        assert cells["joined"]["type"][0] == "string"
        assert "number" not in cells["joined"]["type"]
        assert client.post("/predict", json={**NEW[0], "joined": 0}).status_code == 422

    def test_unknown_paths_and_methods_are_counted_and_told_the_others(self, client: TestClient) -> None:
        response = client.get("/nothing")
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "not_found"
        assert "/predict" in response.json()["error"]["message"]
        response = client.get("/predict")
        assert response.status_code == 405
        assert response.headers["allow"] == "POST"
        assert response.json()["error"]["message"] == "GET given; /predict takes POST"
        assert 'trainwright_requests_total{code="404",route="other"} 1.0' in client.get("/metrics").text

    def test_options_are_checked(self, client: TestClient) -> None:
        for query in ("threshold=2", "threshold=x", "on_error=skip", "treshold=0.5"):
            assert client.post(f"/predict?{query}", json=NEW).status_code == 422

    def test_mistakes_are_said_to_those_who_made_them(
        self, client: TestClient, expected: pd.DataFrame
    ) -> None:
        """Requests that are answered together do not suffer from each other."""
        bodies = [NEW, [{**NEW[0], "age": "x"}], NEW, [{**NEW[0], "joined": 7.5}], NEW] * 6
        with ThreadPoolExecutor(10) as pool:
            responses = list(pool.map(lambda body: client.post("/predict", json=body), bodies))
        assert [one.status_code for one in responses] == [200, 422, 200, 422, 200] * 6
        for response in responses[::5]:
            pd.testing.assert_frame_equal(
                frame_of(response.json()), expected, check_dtype=False, check_exact=True
            )


class TestService:
    def test_says_what_is_served(self, client: TestClient, run: Run) -> None:
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/ready").json() == {"status": "ready"}
        assert client.get("/version").json()["models"]["main"]["run"] == run.id

    def test_counts(self, client: TestClient) -> None:
        def value(name: str) -> float:
            lines = client.get("/metrics").text.splitlines()
            return next(float(line.split()[-1]) for line in lines if line.startswith(name))

        name = 'trainwright_requests_total{code="200",route="/predict"}'
        before = value(name), value("trainwright_rows_total")
        client.post("/predict", json=NEW)
        assert (value(name), value("trainwright_rows_total")) == (before[0] + 1, before[1] + 3)

    def test_describes_the_columns(self, client: TestClient) -> None:
        document = client.get("/openapi.json").json()
        body = document["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        row = body["oneOf"][0]["properties"]["rows"]["items"]
        assert [*row["properties"]] == [*NEW[0]]
        assert row["properties"]["age"]["type"][0] == "number"
        assert client.post("/predict", json=body["example"]).status_code == 200
        predictions = document["components"]["schemas"]["Predictions"]["properties"]["predictions"]["oneOf"]
        assert [*predictions[0]["items"]["properties"]] == [
            "prediction",
            "probability_basic",
            "probability_gold",
        ]
        page = client.get("/docs").text
        assert "https://" not in page  # it works without the internet
        script = page.split('src="')[1].split('"')[0]
        assert len(client.get(script).content) > 100_000

    def test_asks_for_its_key(self, run: Run) -> None:
        with TestClient(make_app(Settings(str(run.path), key="s3cret"))) as client:
            assert client.get("/health").status_code == client.get("/ready").status_code == 200
            for headers in (
                {},
                {"authorization": "Bearer s3cre"},
                {"authorization": "Basic s3cret"},
                {"x-api-key": "é".encode("latin-1")},
            ):
                assert client.post("/predict", json=NEW, headers=headers).status_code == 401
                for path in ("/metrics", "/docs", "/openapi.json", "/docs/oauth2-redirect"):
                    assert client.get(path, headers=headers).status_code == 401
            password = {"authorization": f"Basic {base64.b64encode(b'me:s3cret').decode()}"}
            for headers in ({"authorization": "Bearer s3cret"}, {"x-api-key": "s3cret"}, password):
                assert client.get("/docs", headers=headers).status_code == 200
                assert client.post("/predict", json=NEW, headers=headers).status_code == 200

    def test_listens_to_others_with_a_key_alone(self) -> None:
        for host in ("127.0.0.1", "localhost", "::1", "127.0.0.9"):
            refuse_open(Settings("run", host=host))
        for host in ("0.0.0.0", "::", "192.168.1.4", "example.org"):
            with pytest.raises(InputError, match="--key-file"):
                refuse_open(Settings("run", host=host))
            refuse_open(Settings("run", host=host, key="x"))

    def test_a_run_that_is_not_there_is_said(self, folder: Path) -> None:
        with pytest.raises(RunNotFoundError):
            make_app(Settings("nothing", runs_dir=folder / "runs"))


class TestModels:
    def test_a_share_of_the_requests_goes_to_another_model(self, run: Run, other: Run) -> None:
        settings = Settings(str(run.path), shares=[(str(other.path), 0.25)])
        with TestClient(make_app(settings)) as client:
            answers = [
                client.post("/predict", json=NEW, headers={"x-request-id": f"r{i}"}).json()
                for i in range(200)
                for _ in range(2)
            ]
        assert all(a["run"] == b["run"] for a, b in zip(answers[::2], answers[1::2], strict=True))
        share = np.mean([one["run"] == other.id for one in answers[::2]])
        assert 0.13 < share < 0.37  # four standard deviations
        theirs = next(one for one in answers if one["run"] == other.id)
        assert (
            frame_of(theirs)["prediction"].tolist()
            == trainwright.load(other).predict(NEW)["prediction"].tolist()
        )

    def test_a_shadow_is_compared(self, run: Run, other: Run) -> None:
        def counts(shadow: Run) -> dict[str, float]:
            with TestClient(make_app(Settings(str(run.path), shadow=str(shadow.path)))) as client:
                assert client.post("/predict", json=NEW).json()["run"] == run.id
                client.app.state.service.batcher  # noqa: B018
                for _ in range(1000):
                    lines = client.get("/metrics").text.splitlines()
                    found = [line for line in lines if line.startswith("trainwright_shadow_rows_total")]
                    if found:
                        return {line.split('"')[1]: float(line.split()[-1]) for line in found}
            raise AssertionError("the shadow model predicts nothing")

        assert counts(run) == {"equal": 3}
        assert counts(other)["different"] > 0

    def test_a_model_is_loaded_anew(self, run: Run, other: Run, tmp_path: Path) -> None:
        name = tmp_path / "current"
        name.symlink_to(run.path)
        with TestClient(make_app(Settings(str(name), reload_seconds=0.01))) as client:
            assert client.post("/predict", json=NEW).json()["run"] == run.id
            (tmp_path / "next").symlink_to(other.path)
            (tmp_path / "next").rename(name)
            while client.post("/predict", json=NEW).json()["run"] != other.id:
                pass
            name.unlink()  # the name stands for nothing: the model before answers on
            while 'outcome="failed"' not in client.get("/metrics").text:
                pass
            assert client.post("/predict", json=NEW).json()["run"] == other.id
            models = client.app.state.service.models  # type: ignore[attr-defined]
            for _ in range(3):
                models._look("main")
            assert 'outcome="failed"} 1.0' in client.get("/metrics").text, "each cause is said once"

    def test_a_model_that_was_copied_in_part_is_tried_again(
        self, run: Run, other: Run, tmp_path: Path
    ) -> None:
        """As `cp -r` goes on: the weights are there, and what describes the data is not yet."""
        path = tmp_path / "current"
        shutil.copytree(run.path, path)
        with TestClient(make_app(Settings(str(path), reload_seconds=0.01))) as client:
            first = client.post("/predict", json=NEW).json()["predictions"]
            shutil.rmtree(path)
            shutil.copytree(other.path, path, ignore=shutil.ignore_patterns("data.json"))
            while 'outcome="failed"' not in client.get("/metrics").text:
                pass
            assert client.post("/predict", json=NEW).json()["predictions"] == first
            shutil.copyfile(other.path / "data.json", path / "data.json")
            while client.post("/predict", json=NEW).json()["predictions"] == first:
                pass

    def test_other_weights_are_another_model(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "run"
        shutil.copytree(run.path, path)
        before = identity_of(find(path, None, has_model))
        assert identity_of(find(path, None, has_model)) == before
        weights = next((path / "best").iterdir())
        for change in (
            lambda: os.utime(weights, ns=(1, 1)),
            lambda: weights.rename(weights.with_name("other")),
        ):
            change()
            assert identity_of(find(path, None, has_model)) != before
            before = identity_of(find(path, None, has_model))

    def test_an_exported_model_is_served(self, run: Run, tmp_path: Path, expected: pd.DataFrame) -> None:
        path = trainwright.export(run, tmp_path / "model.onnx")
        with TestClient(make_app(Settings(str(path)))) as client:
            answer = client.post("/predict", json=NEW).json()
        assert frame_of(answer)["prediction"].tolist() == expected["prediction"].tolist()
        assert np.allclose(frame_of(answer)["probability_gold"], expected["probability_gold"], atol=1e-5)


class TestOtherForms:
    def test_rows_of_a_matrix_have_the_order_of_the_columns(
        self, client: TestClient, expected: pd.DataFrame
    ) -> None:
        matrix = [[*row.values()] for row in NEW]
        for body in ({"inputs": matrix}, matrix):
            answer = client.post("/predict", json=body).json()
            pd.testing.assert_frame_equal(frame_of(answer), expected, check_dtype=False, check_exact=True)

    def test_arrays(self, folder: Path) -> None:
        draw = np.random.default_rng(0)
        features = draw.random((80, 3, 4)).astype(np.float32)
        np.savez(folder / "arrays.npz", X=features, y=(features.mean((1, 2)) > 0.5).astype(np.int64))
        run = trainwright.train(
            {
                "experiment": "arrays",
                "data": {"path": str(folder / "arrays.npz")},
                "model": "mlp",
                "training": {"max_steps": 5},
            },
            runs_dir=folder / "runs",
            quiet=True,
        )
        rows = features[:5]
        wanted = trainwright.load(run).predict(rows)["prediction"].tolist()
        with TestClient(make_app(Settings(str(run.path)))) as client:
            for body in ({"inputs": rows.tolist()}, rows.tolist(), {"features": rows.tolist()}):
                answer = client.post("/predict", json=body).json()
                assert frame_of(answer)["prediction"].tolist() == wanted
            np.save(sink := io.BytesIO(), rows)
            headers = {"content-type": "application/x-npy"}
            answer = client.post("/predict", content=sink.getvalue(), headers=headers).json()
            assert frame_of(answer)["prediction"].tolist() == wanted
            single = client.post("/predict", json={"inputs": rows[0].tolist()}).json()
            assert frame_of(single)["prediction"].tolist() == wanted[:1]
            for wrong in (rows[:, :-1].tolist(), [[1], [1, 2]], "x", [["a"]], {"inputs": None}):
                response = client.post("/predict", json=wrong)
                assert response.status_code == 422, response.text
            for bomb in (1 << 26, 0):
                np.savez_compressed(sink := io.BytesIO(), x=np.zeros(bomb or 3), y=np.zeros(bomb))
                packed = sink.getvalue() if bomb else sink.getvalue()[:-30] + b"\0" * 30
                answer = client.post(
                    "/predict", content=packed, headers={"content-type": "application/x-npz"}
                )
                assert answer.status_code == (413 if bomb else 400), answer.text
            np.save(sink := io.BytesIO(), np.array([{}]), allow_pickle=True)
            assert client.post("/predict", content=sink.getvalue(), headers=headers).status_code == 400

    def test_images(self, folder: Path) -> None:
        from PIL import Image

        draw = np.random.default_rng(0)
        for i in range(12):
            path = folder / "images" / ("dark" if i % 2 else "light") / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((draw.random((8, 8, 3)) * 90 + 150 * (1 - i % 2)).astype(np.uint8)).save(path)
        run = trainwright.train(
            {
                "experiment": "images",
                "data": {"type": "image_folder", "path": str(folder / "images")},
                "model": "cnn",
                "training": {"max_steps": 3, "batch_size": 4},
            },
            runs_dir=folder / "runs",
            quiet=True,
        )
        content = path.read_bytes()
        wanted = trainwright.load(run).predict([content])["prediction"].tolist()
        text = base64.b64encode(content).decode()
        with TestClient(make_app(Settings(str(run.path)))) as client:
            for body in ({"images": [text]}, [text], {"images": [f"data:image/png;base64,{text}"]}):
                assert frame_of(client.post("/predict", json=body).json())["prediction"].tolist() == wanted
            as_curl = {"content-type": "application/x-www-form-urlencoded"}
            assert client.post("/predict", content=content, headers=as_curl).status_code == 200
            answer = client.post("/predict", content=content, headers={"content-type": "image/png"}).json()
            assert frame_of(answer)["prediction"].tolist() == wanted
            for wrong in ({"images": ["/etc/passwd"]}, {"images": ["!"]}, {"images": [""]}, {"images": [5]}):
                assert client.post("/predict", json=wrong).status_code == 422
            document = client.get("/openapi.json").json()
            body = document["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"][
                "schema"
            ]
            assert client.post("/predict", json=body["example"]).status_code == 200


class TestQueue:
    """The queue alone, with a model that the test holds up."""

    def _run(self, check: Any, **how: Any) -> None:
        batches: list[list[Any]] = []
        may_answer = threading.Semaphore(0)

        def answer(jobs: Any) -> list[Any]:
            may_answer.acquire()
            batches.append([job.work for job in jobs])
            return [job.work for job in jobs]

        options = {"max_batch": 4, "batch_seconds": 0.0, "max_waiting": 6, "timeout": 60.0, **how}
        batcher = Batcher(answer, **options)
        batcher.start()
        try:
            asyncio.run(check(batcher, batches, may_answer))
        finally:
            may_answer.release(100)
            batcher.close()

    def test_what_comes_meanwhile_is_answered_together(self) -> None:
        async def check(batcher: Batcher, batches: list[Any], may_answer: threading.Semaphore) -> None:
            first = asyncio.create_task(batcher.ask("a", 1, "key"))
            while batcher.waiting or not first.get_coro():
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            while batcher.waiting:
                await asyncio.sleep(0)
            others = [asyncio.create_task(batcher.ask(work, 1, "key")) for work in "bcdef"]
            while batcher.waiting < 5:
                await asyncio.sleep(0)
            may_answer.release(3)
            assert await asyncio.gather(first, *others) == [*"abcdef"]
            assert batches == [["a"], ["b", "c", "d", "e"], ["f"]]

        self._run(check)

    def test_a_batch_has_no_more_rows_than_it_may(self) -> None:
        async def check(batcher: Batcher, batches: list[Any], may_answer: threading.Semaphore) -> None:
            tasks = [asyncio.create_task(batcher.ask(work, 2, "key")) for work in "abc"]
            while batcher.waiting < 4:  # one may be taken
                await asyncio.sleep(0)
            may_answer.release(3)
            assert await asyncio.gather(*tasks) == [*"abc"]
            assert max(map(len, batches)) <= 1

        self._run(check, max_batch=3)

    def test_clients_in_step_meet_in_one_batch(self) -> None:
        async def check(batcher: Batcher, batches: list[Any], may_answer: threading.Semaphore) -> None:
            held = asyncio.create_task(batcher.ask("held", 1, "key"))
            while not batcher.waiting:
                await asyncio.sleep(0)
            while batcher.waiting:
                await asyncio.sleep(0)
            first = [asyncio.create_task(batcher.ask(work, 1, "key")) for work in "ab"]
            while batcher.waiting < 2:
                await asyncio.sleep(0)
            may_answer.release(3)
            await asyncio.gather(held, *first)
            third = asyncio.create_task(batcher.ask("c", 1, "key"))
            while not batcher.waiting:
                await asyncio.sleep(0)
            assert await asyncio.gather(third, batcher.ask("d", 1, "key")) == ["c", "d"]
            assert batches == [["held"], ["a", "b"], ["c", "d"]]

        self._run(check, batch_seconds=1000.0)

    def test_a_client_that_is_alone_never_waits_for_others(self) -> None:
        async def check(batcher: Batcher, batches: list[Any], may_answer: threading.Semaphore) -> None:
            may_answer.release(100)
            for rows in (3, 1, 3, 1):
                assert await batcher.ask(rows, rows, "key") == rows

        self._run(check, batch_seconds=1000.0)

    def test_a_full_queue_refuses_and_recovers(self) -> None:
        async def check(batcher: Batcher, batches: list[Any], may_answer: threading.Semaphore) -> None:
            tasks = [asyncio.create_task(batcher.ask(i, 3, None)) for i in range(2)]
            while batcher.waiting < 3:
                await asyncio.sleep(0)
            with pytest.raises(RequestError) as raised:
                await batcher.ask("too much", 6, None)
            assert raised.value.status == 429
            may_answer.release(2)
            await asyncio.gather(*tasks)
            may_answer.release()
            assert await batcher.ask("large", 100, None) == "large"  # an empty queue takes any

        self._run(check)

    def test_nobody_waits_longer_than_the_timeout(self) -> None:
        async def check(batcher: Batcher, batches: list[Any], may_answer: threading.Semaphore) -> None:
            held = asyncio.create_task(batcher.ask("held", 1, None))
            await asyncio.sleep(0)
            with pytest.raises(RequestError) as raised:
                await batcher.ask("late", 1, None)
            assert raised.value.status == 503
            with pytest.raises(RequestError):
                await held
            may_answer.release(2)
            while batcher.waiting:
                await asyncio.sleep(0.001)
            assert ["late"] not in batches  # it is not computed in vain

        self._run(check, timeout=0.05)

    def test_an_error_is_raised_where_the_job_waits(self) -> None:
        def answer(jobs: Any) -> list[Any]:
            raise ValueError("broken")

        async def check() -> None:
            with pytest.raises(ValueError, match="broken"):
                await batcher.ask("a", 1, None)

        batcher = Batcher(answer, max_batch=4, batch_seconds=0, max_waiting=6, timeout=60)
        batcher.start()
        asyncio.run(check())
        batcher.close()

    def test_closing_answers_what_waits(self) -> None:
        async def check() -> None:
            loop = asyncio.get_running_loop()
            tasks = [asyncio.create_task(batcher.ask(i, 1, None)) for i in range(3)]
            await asyncio.sleep(0)
            await loop.run_in_executor(None, batcher.close)
            assert await asyncio.gather(*tasks) == [0, 1, 2]
            with pytest.raises(RequestError):
                await batcher.ask(3, 1, None)

        def answer(jobs: list[Job]) -> list[Any]:
            return [job.work for job in jobs]

        batcher = Batcher(answer, max_batch=1, batch_seconds=0, max_waiting=6, timeout=60)
        batcher.start()
        asyncio.run(check())


def test_rows_are_read_as_they_would_be_alone(run: Run, expected: pd.DataFrame) -> None:
    """A number in a column of texts is read in the same way, whoever asks beside it."""
    form = make_app(Settings(str(run.path))).state.service.models.main.form
    alone = form.read(json.dumps([{**NEW[0], "city": 5.0}]).encode(), "", None)
    other = form.read(json.dumps(NEW).encode(), "", None)
    with pytest.raises(DataError):
        form.quick([alone.content, other.content])
    assert form.quick([alone.content])[0]["city"] == 5.0


def test_a_head_that_does_not_come_ends_its_connection(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else such connections would use all that there are, at no cost and without a key."""
    monkeypatch.setattr(protocol, "_SECONDS", 0.2)

    async def check() -> None:
        app = make_app(Settings(str(run.path)))
        server = uvicorn.Server(uvicorn.Config(app, port=0, http=protocol.LimitedProtocol, log_level="error"))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        for head in (
            b"",
            b"GET /health HTTP/1.1\r\nHost: x\r\n",
            b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head)
            answer = await asyncio.wait_for(reader.read(), 10)
            assert answer.startswith(b"HTTP/1.1 200") == (b"\r\n\r\n" in head)
            writer.close()
        server.should_exit = True
        await serving

    asyncio.run(check())
