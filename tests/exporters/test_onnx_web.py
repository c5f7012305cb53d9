"""The page of examples/web predicts in a real browser what the run predicts."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from trainwright import api
from trainwright.testing.exporter_suite import write_rows

pytestmark = pytest.mark.services
pytest.importorskip("onnx")

PAGE = Path(__file__).parents[2] / "examples" / "web"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MODELS: dict[str, dict[str, Any]] = {
    "lightgbm": {"model": "lightgbm"},
    "xgboost": {"model": "xgboost"},
    "random_forest": {"model": "random_forest"},
    "mlp": {"model": "mlp", "data.impute": "median"},
    "price": {
        "model": "mlp",
        "data.target": "income",
        "data.target_transform": "log1p",
        "data.impute": "median",
    },
}
ROWS = [
    {"age": "31", "city": "Oslo", "income": "25000.5", "joined": "2021-02-28T13:30:00"},
    {"age": "", "city": "", "income": "18000", "joined": ""},
    {"age": "70", "city": "no such city", "income": "1e6", "joined": "1965-12-31"},
]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *words: Any) -> None:
        """Write nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Return a folder with the page and what npm installs, and the address at which it is served."""
    if CHROMIUM is None or shutil.which("npm") is None:
        pytest.skip("this needs a browser and npm: apt-get install chromium npm")
    folder = tmp_path_factory.mktemp("web")
    shutil.copytree(
        PAGE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("node_modules", "*.onnx*")
    )
    shutil.copy(Path(__file__).with_name("web_page.mjs"), folder)
    words = ["npm", "install", "--no-audit", "--no-fund", "--loglevel", "error", "playwright-core@1"]
    done = subprocess.run(words, cwd=folder, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"npm cannot install onnxruntime-web and playwright-core: {done.stderr[-200:]}")
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def shown(site: tuple[Path, str], name: str, cells: dict[str, Any]) -> dict[str, str]:
    """Return what the page shows for a row."""
    folder, url = site
    words = ["node", "web_page.mjs", str(CHROMIUM), f"{url}/?model={name}", json.dumps(cells)]
    done = subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True, timeout=120)
    said = json.loads(done.stdout)
    assert said["error"] == ""
    found: dict[str, str] = said["found"]
    return found


@pytest.mark.parametrize("name", MODELS)
def test_tables(site: tuple[Path, str], tmp_path: Path, name: str) -> None:
    """Strings, missing values, times in int64, and trees in float64."""
    write_rows(tmp_path / "rows.csv")
    own = dict(MODELS[name])
    data = {"type": "csv", "path": str(tmp_path / "rows.csv"), "target": "churn"}
    overrides = [f"{key}={json.dumps(value)}" for key, value in own.items() if key != "model"]
    run = api.train(
        {"data": data, "model": own["model"], "training": {"max_steps": 5, "threads": 1}},
        overrides=overrides,
        runs_dir=tmp_path / "runs",
        quiet=True,
    )
    api.export(run, site[0] / f"{name}.onnx", "onnx")
    rows = [{**row, "churn": "yes"} if name == "price" else row for row in ROWS]
    for row in rows:
        cells = {key: value for key, value in row.items() if name != "price" or key != "income"}
        pd.DataFrame([cells]).to_csv(tmp_path / "row.csv", index=False)
        expected = api.predict(run, tmp_path / "row.csv").iloc[0]
        found = shown(site, f"{name}.onnx", cells)
        for column, value in found.items():
            if isinstance(expected[column], str):
                assert value == expected[column]
            else:
                assert float(value) == pytest.approx(float(expected[column]), rel=1e-5, abs=1e-5)
        assert "prediction" in found


@pytest.mark.parametrize("mode", ["gray", "rgb"])
def test_images(site: tuple[Path, str], tmp_path: Path, mode: str) -> None:
    draws = np.random.default_rng(1)
    for i in range(24):
        path = tmp_path / "pictures" / ("a" if i % 2 else "b") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (9, 11, 3), dtype=np.uint8)).save(path)
    data = {
        "type": "image_folder",
        "path": str(tmp_path / "pictures"),
        "mode": mode,
        "transforms": ["normalize"],
    }
    model = {"type": "cnn", "filters": [4], "hidden": []}
    training = {"max_steps": 3, "batch_size": 8, "threads": 1}
    run = api.train(
        {"data": data, "model": model, "training": training}, runs_dir=tmp_path / "runs", quiet=True
    )
    api.export(run, site[0] / f"{mode}.onnx", "onnx")
    path = tmp_path / "pictures" / "a" / "1.png"
    found = shown(site, f"{mode}.onnx", {"image": {"file": os.fspath(path)}})
    expected = api.load(run).predict([str(path)]).iloc[0]
    assert found["prediction"] == expected["prediction"]
    assert float(found["probability_a"]) == pytest.approx(float(expected["probability_a"]), abs=1e-5)
