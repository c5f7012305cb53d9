"""Requests a second of `trainwright serve` beside a FastAPI endpoint by hand, LitServe and MLflow's server.

All serve the same model with one thread; wrk asks for predictions of one row or image, with 1, 8 and 64
connections, in turns. LitServe is left out where it is not installed; it may have an environment of its own:
`python benchmarks/serving.py [PEERS/bin]`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
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
KINDS = ("lightgbm", "mlp", "cnn")
FEATURES = 20
SIDE = 32  # pixels of an image
PORT = 8731
# One thread for each model: wrk and the server share two processors.
# MLflow starts uvicorn by its name.
OWN = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PATH": OWN}

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
    "cnn": """
import io, numpy as np, fastapi, torch
from PIL import Image
from typing import Annotated
torch.set_num_threads(1)
model = torch.jit.load({model!r}).eval()
app = fastapi.FastAPI()
@app.post("/predict")
def predict(body: Annotated[bytes, fastapi.Body(media_type="image/png")]):
    pixels = np.asarray(Image.open(io.BytesIO(body)).convert("L"), np.float32) / 255
    with torch.inference_mode():
        probabilities = model(torch.from_numpy(pixels)[None, None])[0]
    label = int(probabilities.argmax())
    return {{"prediction": label, "probabilities": probabilities.tolist()}}
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
    if kind == "cnn":
        return train_images(folder)
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
        path = traced(run, folder, (1, FEATURES))
    return run, str(path)


def train_images(folder: Path) -> tuple[Any, str]:
    """Train a small network on images of digits, as `train` does."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for i, (pixels, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
        path = folder / "digits" / str(digit) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.rint(pixels * 255 / 16).astype(np.uint8)).resize((SIDE, SIDE)).save(path)
    config = {
        "experiment": "cnn",
        "data": {"type": "image_folder", "path": str(folder / "digits"), "mode": "gray", "cache": "memory"},
        "model": {"type": "cnn", "filters": [16, 32]},
        "training": {"threads": 1, "max_steps": 300},
    }
    run = trainwright.train(config, runs_dir=folder / "runs", quiet=True)
    return run, str(traced(run, folder, (1, 1, SIDE, SIDE)))


def traced(run: Any, folder: Path, shape: tuple[int, ...]) -> Path:
    """Write the network of a run for TorchScript, with its softmax."""
    import torch

    module = torch.nn.Sequential(trainwright.load(run).native.eval(), torch.nn.Softmax(-1))
    torch.jit.save(torch.jit.trace(module, torch.zeros(shape)), str(folder / "model.pt"))
    return folder / "model.pt"


def image() -> bytes:
    """Return an image of noise as a PNG file."""
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE), np.uint8)
    Image.fromarray(pixels).save(sink := io.BytesIO(), "PNG")
    return sink.getvalue()


@contextmanager
def serving(command: list[str], path: str, body: bytes, content_type: str) -> Iterator[float]:
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
                    f"http://127.0.0.1:{PORT}{path}", body, {"content-type": content_type}
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
    content_type = "application/json"
    if kind == "cnn":
        rows = body = image()
        content_type = "image/png"
    servers = {
        "trainwright": ([sys.executable, *ours], "/predict", body),
        "trainwright, no windows": ([sys.executable, *ours, "--window", "0"], "/predict", body),
        "FastAPI by hand": ([sys.executable, *hand], "/predict", rows),
    }
    if kind == "lightgbm":
        (folder / "lit.py").write_text(LITSERVE.format(model=model, port=PORT))
        servers["LitServe"] = ([str(peers / "python"), str(folder / "lit.py")], "/predict", body)
    if kind != "cnn":
        trainwright.export(run, folder / f"{kind}-mlflow", "mlflow", options={})
        records = json.dumps({"dataframe_records": [row]}).encode()
        command = [
            *(sys.executable, "-m", "mlflow", "models", "serve", "-m", str(folder / f"{kind}-mlflow")),
            *("--port", str(PORT), "--env-manager", "local", "--workers", "1"),
        ]
        servers["mlflow models serve"] = (command, "/invocations", records)
    for name, (command, path, content) in servers.items():
        script = folder / "ask.lua"
        (folder / "body").write_bytes(content)
        script.write_text(
            f'wrk.method="POST"\nwrk.body=io.open("{folder}/body"):read("a")\n'
            f'wrk.headers["Content-Type"]="{content_type}"\n'
        )
        try:
            with serving(command, path, content, content_type) as started:
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
