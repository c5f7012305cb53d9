"""Existing clients of the open inference protocol work unchanged: tritonclient, and MLServer's."""

import base64
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pandas as pd
import pytest

import trainwright
from customers import NEW
from served_runs import WORDS, array_run, image_run, matrix_run, serving, table_run, text_run
from trainwright.runs.run import Run
from trainwright.servers.service.open_inference.messages import CLASSES, SERVICE

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(600)]
SCRIPTS = Path(__file__).parent / "foreign_clients"
# MLServer 1.7 does not know the texts of pandas 3.
PACKAGES = ("mlserver>=1.7.1,<2", "pandas>=2,<3", "tritonclient[grpc,http]>=2.60,<3")


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment of its own, as the clients ask for older packages than ours."""
    folder = tmp_path_factory.getbasetemp()
    made = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "foreign_clients"
    with open(made.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / "ready").exists():
            subprocess.run([sys.executable, "-m", "venv", made], check=True)
            done = subprocess.run([made / "bin" / "pip", "install", "-q", *PACKAGES], check=False)
            if done.returncode:
                pytest.skip(f"needs `pip install {' '.join(PACKAGES)}` into an environment of its own")
            (made / "ready").touch()
    return made / "bin"


def asked(foreign: Path, script: str, task: dict[str, Any]) -> Any:
    done = subprocess.run(
        [foreign / "python", SCRIPTS / script], input=json.dumps(task), capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tensor(name: str, dtype: str, values: Any) -> dict[str, Any]:
    """An input for the script: elements of `bytes` are given in hexadecimal digits."""
    array = np.array(values, object if dtype == "bytes" else dtype)
    flat = array.reshape(-1).tolist()
    if dtype == "bytes":
        flat = [(one if isinstance(one, bytes) else (one or "").encode()).hex() for one in flat]
    return {"name": name, "dtype": dtype, "shape": [*array.shape], "data": flat}


def cells(name: str) -> list[Any]:
    return [row[name] for row in NEW]


def assert_all(found: dict[str, Any], wanted: pd.DataFrame, count: int) -> None:
    """Check the answers of all clients: those that came alone to the last bit."""
    expected = {str(name): values.tolist() for name, values in wanted.items()}
    last = [*expected][-1]
    seen = 0
    for client, answers in found.items():
        if client == "index":
            continue
        assert answers["plain"] == expected, client
        seen += 1
        if "chosen" in answers:
            assert answers["chosen"] == {last: expected[last]}, client
            for together in answers["together"]:  # some of them in one batch, which changes bits of PyTorch's
                pd.testing.assert_frame_equal(pd.DataFrame(together), pd.DataFrame(expected), rtol=1e-5)
            assert answers["alive"] == [True] * 3
    assert seen == count


class TestTriton:
    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("triton")

    def check(
        self, foreign: Path, run: Run, inputs: list[dict[str, Any]], wanted: Any, *, as_json: bool = True
    ) -> Any:
        with serving(run) as (http, rpc):
            task = {"http": http, "grpc": rpc, "model": run.id, "inputs": inputs, "as_json": as_json}
            found = asked(foreign, "triton_script.py", task)
        assert found["index"] == [run.id]
        assert_all(found, wanted, 5 if as_json else 4)
        return found

    def test_a_table(self, foreign: Path, folder: Path) -> None:
        run = table_run(folder)
        inputs = [
            tensor("age", "int64", cells("age")),
            tensor("income", "float64", [np.nan if one is None else one for one in cells("income")]),
            tensor("city", "bytes", cells("city")),
            tensor("joined", "bytes", [[one] for one in cells("joined")]),
            tensor("seats", "int16", cells("seats")),
        ]
        # Its JSON has NaN, which is none.
        found = self.check(foreign, run, inputs, trainwright.load(run).predict(NEW), as_json=False)
        for client, codes in {
            "http": {"model": "404", "version": "404", "output": "400", "input": "422"},
            "grpc": {
                "model": "StatusCode.NOT_FOUND",
                "version": "StatusCode.NOT_FOUND",
                "output": "StatusCode.INVALID_ARGUMENT",
                "input": "StatusCode.INVALID_ARGUMENT",
            },
        }.items():
            refusals = found[client]["refusals"]
            assert {name: code for name, (code, _) in refusals.items()} == codes
            assert "no input 'age'" in refusals["input"][1]
            assert run.id in refusals["model"][1]

    def test_a_matrix(self, foreign: Path, folder: Path) -> None:
        run = matrix_run(folder)
        rows = np.random.default_rng(2).normal(size=(5, 10)).astype(np.float32)
        inputs = [tensor("anything", "float32", rows)]
        self.check(foreign, run, inputs, trainwright.load(run).predict(rows))

    def test_images(self, foreign: Path, folder: Path) -> None:
        run, contents = image_run(folder)
        inputs = [tensor("image", "bytes", contents)]
        # JSON cannot hold them.
        self.check(foreign, run, inputs, trainwright.load(run).predict(contents), as_json=False)

    def test_texts(self, foreign: Path, folder: Path) -> None:
        run = text_run(folder)
        self.check(foreign, run, [tensor("text", "bytes", WORDS)], trainwright.load(run).predict([*WORDS]))

    def test_arrays(self, foreign: Path, folder: Path) -> None:
        run, rows = array_run(folder)
        self.check(foreign, run, [tensor("features", "float32", rows)], trainwright.load(run).predict(rows))


class TestMlserver:
    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("mlserver")

    @pytest.mark.parametrize("codec", ["pd", "np", "str", "base64"])
    def test_its_codecs(self, foreign: Path, folder: Path, codec: str) -> None:
        match codec:
            case "pd":
                run = table_run(folder)
                # Its codec takes no missing text, but an empty one.
                columns = {name: cells(name) for name in NEW[0]}
                more: dict[str, Any] = {"columns": columns | {"city": [one or "" for one in cells("city")]}}
                rows: Any = NEW
            case "np":
                run, rows = matrix_run(folder), np.random.default_rng(2).normal(size=(5, 10))
                more = {"matrix": rows.tolist()}
            case "str":
                run, rows = text_run(folder), [*WORDS]
                more = {"texts": rows}
            case _:
                run, rows = image_run(folder)
                more = {"images": [base64.b64encode(one).decode() for one in rows]}
        wanted = {name: values.tolist() for name, values in trainwright.load(run).predict(rows).items()}
        with serving(run) as (http, rpc):
            task = {"http": http, "grpc": rpc, "model": run.id, "codec": codec, **more}
            found = asked(foreign, "mlserver_script.py", task)
        assert found == dict.fromkeys(("rest", "grpc False", "grpc True"), wanted)

    def test_its_batches(self, foreign: Path, folder: Path) -> None:
        """`mlserver infer` joins requests of a file, and parts the answers."""
        run = matrix_run(folder)
        rows = np.random.default_rng(3).normal(size=(7, 10))
        lines = [
            {"inputs": [{"name": "x", "datatype": "FP64", "shape": [1, 10], "data": row.tolist()}]}
            for row in rows
        ]
        given, taken = folder / "requests.jsonl", folder / "answers.jsonl"
        given.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
        with serving(run) as (http, _):
            words = ["-u", http, "-m", run.id, "-i", given, "-o", taken, "--batch-size", "3", "--binary-data"]
            subprocess.run([foreign / "mlserver", "infer", *words], check=True, capture_output=True)
        answers = {}
        for line in taken.read_text(encoding="utf-8").splitlines():
            answer = json.loads(line)
            answers[answer["parameters"]["batch_index"]] = answer["outputs"][0]["data"][0]
        found = [answers[i] for i in range(len(rows))]
        wanted = trainwright.load(run).predict(rows)["prediction"].tolist()
        assert found == pytest.approx(wanted, rel=1e-5)  # batches of a network differ in the last bits


def test_replicas_listen_side_by_side(tmp_path: Path) -> None:
    run = matrix_run(tmp_path)
    rows = np.random.default_rng(2).normal(size=(5, 10))
    wanted = trainwright.load(run).predict(rows)["prediction"].tolist()
    request = CLASSES["ModelInferRequest"](model_name=run.id)
    request.inputs.add(name="x", datatype="FP64", shape=[5, 10]).contents.fp64_contents.extend(
        rows.reshape(-1)
    )
    with serving(run, "--workers", 2) as (_, rpc):
        for i in range(20):  # each connection falls to one of them
            with grpc.insecure_channel(
                rpc, options=[("grpc.use_local_subchannel_pool", 1), ("i", i)]
            ) as channel:
                grpc.channel_ready_future(channel).result(60)
                content = channel.unary_unary(f"/{SERVICE}/ModelInfer")(
                    request.SerializeToString(), timeout=60
                )
            answer = CLASSES["ModelInferResponse"].FromString(content)
            assert [*answer.outputs[0].contents.fp64_contents] == wanted
        taken = subprocess.run(
            [sys.executable, "-m", "trainwright", "serve", run.path, "--port", "0", "--grpc-port", rpc.rpartition(":")[2]],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert taken.returncode == 2
        assert "--grpc-port" in taken.stderr
