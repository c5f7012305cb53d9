"""Small runs of each form of requests, for the tests of the service."""

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import trainwright
from customers import config, write_customers
from trainwright.runs.run import Run

WORDS = ("win a prize now", "meet me at noon", "free prize inside", "the report is late")


def table_run(folder: Path, model: str = "lightgbm", **more: Any) -> Run:
    """A classifier of customers: numbers, categories, dates and missing values."""
    table = write_customers(folder / "customers.csv")
    return trainwright.train(config(table, model, **more), runs_dir=folder / "runs", quiet=True)


def matrix_run(folder: Path) -> Run:
    """A regression of PyTorch whose columns are all numbers."""
    parameters = {"type": "mlp", "params": {"hidden": [8]}}
    return _trained(folder, "matrix", {"type": "diabetes"}, parameters)


def image_run(folder: Path) -> tuple[Run, list[bytes]]:
    """A classifier of images, and the contents of some."""
    draw, contents = np.random.default_rng(0), []
    for i in range(12):
        path = folder / "images" / ("dark" if i % 2 else "light") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = (draw.random((8, 8, 3)) * 90 + 150 * (1 - i % 2)).astype(np.uint8)
        Image.fromarray(pixels).save(path)
        contents.append(path.read_bytes())
    return _trained(
        folder, "images", {"type": "image_folder", "path": str(folder / "images")}, "cnn"
    ), contents


def text_run(folder: Path) -> Run:
    """A classifier of texts."""
    for i in range(24):
        path = folder / "texts" / ("spam" if i % 2 == 0 else "other") / f"{i}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{WORDS[i % 4]} {i}", encoding="utf-8")
    data = {"type": "text_folder", "path": str(folder / "texts"), "max_length": 16}
    return _trained(folder, "texts", data, "lstm")


def language_run(folder: Path) -> Run:
    """A language model."""
    (folder / "text.txt").write_text("The cat sat on the mat. " * 60, encoding="utf-8")
    data = {"type": "text", "path": str(folder / "text.txt"), "length": 16}
    return _trained(
        folder, "language", data, {"type": "gpt", "num_layers": 1, "num_heads": 2, "hidden_size": 16}
    )


def array_run(folder: Path) -> tuple[Run, Any]:
    """A classifier of arrays (3, 4) float32, and some rows."""
    draw = np.random.default_rng(0)
    features = draw.random((80, 3, 4)).astype(np.float32)
    np.savez(folder / "arrays.npz", X=features, y=(features.mean((1, 2)) > 0.5).astype(np.int64))
    return _trained(folder, "arrays", {"path": str(folder / "arrays.npz")}, "mlp"), features[:5]


def _trained(folder: Path, name: str, data: Any, model: Any) -> Run:
    given = {
        "experiment": name,
        "data": data,
        "model": model,
        "training": {"max_steps": 3, "batch_size": 4, "threads": 1},
    }
    return trainwright.train(given, runs_dir=folder / "runs", quiet=True)


@contextmanager
def serving(run: Run, *options: object) -> Iterator[tuple[str, str]]:
    """Start the command, and yield its addresses: host and port of HTTP, and of gRPC."""
    words = [sys.executable, "-m", "trainwright", "serve", run.path, "--port", 0, "--grpc-port", 0, *options]
    process = subprocess.Popen(
        [*map(str, words)], stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://(\S+) .*gRPC: ([^;]+);", line)
        assert found, line + process.stderr.read()
        http, grpc = found.groups()
        while True:
            try:
                with urllib.request.urlopen(f"http://{http}/v2/health/ready", timeout=5):
                    break
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                assert process.poll() is None, process.stderr.read()
        yield http, grpc
    finally:
        process.terminate()
        process.wait(30)
