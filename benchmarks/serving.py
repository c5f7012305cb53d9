"""Requests a second of `trainwright serve` beside a FastAPI endpoint by hand, LitServe and MLflow's server.

All serve the same model with one thread; wrk asks for predictions of one row, with 1, 8 and 64 connections,
in turns. LitServe and MLflow are left out where they are not installed; they may have an environment of their
own: `python benchmarks/serving.py [PEERS/bin]`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import trainwright

CONNECTIONS = (1, 8, 64)
SECONDS = 5
KINDS = ("lightgbm", "mlp")
FEATURES = 20
PORT = 8731
# One thread for each model: wrk and the server share two processors.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}

HAND_WRITTEN = {
    "lightgbm": """
import lightgbm, numpy as np, pydantic, fastapi
booster = lightgbm.Booster(model_file={model!r})
app = fastapi.FastAPI()
class Row(pydantic.BaseModel):
    {fields}
@app.post("/predict")
def predict(rows: list[Row]):
    features = np.array([[getattr(row, name) for name in Row.model_fields] for row in rows])
    probabilities = booster.predict(features, num_threads=1)
    return [{{"prediction": int(p > 0.5), "probability": float(p)}} for p in probabilities]
""",
    "mlp": """
import numpy as np, pydantic, fastapi, torch
torch.set_num_threads(1)
model = torch.jit.load({model!r}).eval()
app = fastapi.FastAPI()
class Row(pydantic.BaseModel):
    {fields}
@app.post("/predict")
def predict(rows: list[Row]):
    features = torch.tensor([[getattr(row, name) for name in Row.model_fields] for row in rows])
    with torch.inference_mode():
        probabilities = model(features)
    return [{{"prediction": int(p[1] > p[0]), "probability": float(p[1])}} for p in probabilities]
""",
}
LITSERVE = """
import litserve, lightgbm, numpy as np
class Api(litserve.LitAPI):
    def setup(self, device): self.booster = lightgbm.Booster(model_file={model!r})
    def decode_request(self, request): return [list(row.values()) for row in request["rows"]][0]
    def batch(self, inputs): return np.array(inputs)
    def predict(self, features): return self.booster.predict(features, num_threads=1)
    def unbatch(self, output): return list(output)
    def encode_response(self, output): return {{"probability": float(output)}}
if __name__ == "__main__":
    api = Api(max_batch_size=64, batch_timeout=0.005)
    litserve.LitServer(api, accelerator="cpu").run(port={port}, log_level="error", generate_client_file=False)
"""


def train(folder: Path, kind: str) -> tuple[Any, str]:
    """Train a model, and return its run and the model for the hand-written endpoint."""
    draw = np.random.default_rng(0)
    features = draw.normal(size=(5000, FEATURES))
    label = (features[:, 0] + features[:, 1] * features[:, 2] > 0).astype(int)
    table = folder / "rows.csv"
    header = ",".join([*(f"x{i}" for i in range(FEATURES)), "y"])
    np.savetxt(
        table, np.column_stack([features, label]), delimiter=",", header=header, comments="", fmt="%.6g"
    )
    models: dict[str, Any] = {
        "lightgbm": {"type": "lightgbm", "n_estimators": 100},
        "mlp": {"type": "mlp", "hidden": [128, 64]},
    }
    config = {
        "experiment": kind,
        "data": {"path": str(table), "target": "y", "split": {"test": 0.2}},
        "model": models[kind],
        "training": {"threads": 1, **({"max_steps": 300} if kind == "mlp" else {})},
    }
    run = trainwright.train(config, runs_dir=folder / "runs", quiet=True)
    if kind == "lightgbm":
        path = folder / "model.txt"
        trainwright.load(run).native.save_model(path)
    else:
        import torch

        module = trainwright.load(run).native.eval()
        path = folder / "model.pt"
        traced = torch.jit.trace(torch.nn.Sequential(module, torch.nn.Softmax(-1)), torch.zeros(1, FEATURES))
        torch.jit.save(traced, str(path))
    return run, str(path)


@contextmanager
def serving(command: list[str], path: str, body: bytes) -> Iterator[float]:
    """Start a server, and yield the seconds to its first answer."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # LitServe leaves processes behind, which hold the port
    )
    try:
        while True:
            if process.poll() is not None:
                raise RuntimeError(f"{' '.join(command)} has ended")
            try:
                request = urllib.request.Request(
                    f"http://127.0.0.1:{PORT}{path}", body, {"content-type": "application/json"}
                )
                urllib.request.urlopen(request, timeout=5).read()
                break
            except (OSError, ConnectionError):
                time.sleep(0.02)
        yield time.perf_counter() - began
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def asked(path: str, script: Path, connections: int) -> tuple[float, str, str]:
    """Return the requests a second, and the latencies p50 and p99."""
    found = subprocess.run(
        ["wrk", "-t1", f"-c{connections}", f"-d{SECONDS}", "--latency", "-s", str(script),
         f"http://127.0.0.1:{PORT}{path}"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    if failed := re.search(r"Non-2xx.*|Socket errors.*", found):
        print("   ", failed[0])
    rate = re.search(r"Requests/sec: +([\d.]+)", found)
    assert rate, found
    latencies = dict(re.findall(r"(50|99)% +(\S+)", found))
    return float(rate[1]), latencies["50"], latencies["99"]


def main() -> None:
    """Measure, and print a line for each server and number of connections."""
    peers = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(sys.executable).parent
    random.seed(0)
    row = {f"x{i}": round(random.gauss(0, 1), 4) for i in range(FEATURES)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in KINDS:
            measure(kind, folder, row, peers)


def measure(kind: str, folder: Path, row: Mapping[str, float], peers: Path) -> None:
    """Measure all servers of one model."""
    run, model = train(folder, kind)
    fields = "; ".join(f"x{i}: float" for i in range(FEATURES))
    (folder / "hand.py").write_text(HAND_WRITTEN[kind].format(model=model, fields=fields))
    hand = [
        "-m",
        "uvicorn",
        "hand:app",
        "--app-dir",
        str(folder),
        "--port",
        str(PORT),
        "--log-level",
        "error",
    ]
    ours = ["-m", "trainwright", "serve", str(run.path), "--port", str(PORT)]
    rows, body = json.dumps([row]).encode(), json.dumps({"rows": [row]}).encode()
    servers = {
        "trainwright": ([sys.executable, *ours], "/predict", body),
        "trainwright, no windows": ([sys.executable, *ours, "--window", "0"], "/predict", body),
        "FastAPI by hand": ([sys.executable, *hand], "/predict", rows),
    }
    if kind == "lightgbm":
        (folder / "lit.py").write_text(LITSERVE.format(model=model, port=PORT))
        servers["LitServe"] = ([str(peers / "python"), str(folder / "lit.py")], "/predict", body)
        if shutil.which(peers / "mlflow"):
            trainwright.export(run, folder / "mlflow", "mlflow", options={})
            command = [str(peers / "mlflow"), "models", "serve", "-m", str(folder / "mlflow")]
            records = json.dumps({"dataframe_records": [row]}).encode()
            servers["mlflow models serve"] = (
                [*command, "-p", str(PORT), "--env-manager", "local"], "/invocations", records
            )  # fmt: skip
    for name, (command, path, content) in servers.items():
        script = folder / "ask.lua"
        (folder / "body.json").write_bytes(content)
        script.write_text(
            f'wrk.method="POST"\nwrk.body=io.open("{folder}/body.json"):read("a")\n'
            'wrk.headers["Content-Type"]="application/json"\n'
        )
        try:
            with serving(command, path, content) as started:
                print(f"{kind}, {name}: first answer after {started:.1f} s")
                for connections in CONNECTIONS:
                    rate, p50, p99 = asked(path, script, connections)
                    print(
                        f"    {connections:2} connections: {rate:6.0f} a second, p50 {p50}, p99 {p99}",
                        flush=True,
                    )
        except (RuntimeError, FileNotFoundError) as error:
            print(f"{kind}, {name}: not measured: {error}")


if __name__ == "__main__":
    main()
