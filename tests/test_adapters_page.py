"""The page about adapters is enough: its code is installed as a package, trains, and passes the suites."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from plugins import install, python, trainyard

PAGE = Path(__file__).parent.parent / "docs" / "adapters.md"
BLOCK = re.compile(r"^```(\w+)\n(?:# (\S+)\n)?(.*?)^```$", re.MULTILINE | re.DOTALL)
# The framework suite kills many processes; the toy framework in tests/frameworks has all of it.
FEW = "not (killed or damaged) or commit-4"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the page, installed."""
    site = tmp_path_factory.mktemp("site")
    blocks = {
        name or language: text for language, name, text in BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    }
    project = tomllib.loads(blocks["toml"])["project"]
    lines = [
        f"[{group}]\n{name} = {target}"
        for group, points in project["entry-points"].items()
        for name, target in points.items()
    ]
    modules = {name.removesuffix(".py"): text for name, text in blocks.items() if name.endswith(".py")}
    assert sorted(modules) == [
        "test_toys",
        "toy_data",
        "toy_framework",
        "toy_store",
        "toy_task",
        "toy_tracker",
    ]
    install(site, project["name"], "\n".join(lines), modules)
    (site / "toy.yaml").write_text(blocks["toy.yaml"], encoding="utf-8")
    return site


@pytest.mark.slow
def test_it_trains_and_resumes_with_all_of_them(site: Path, tmp_path: Path) -> None:
    doctor = json.loads(trainyard(site, "doctor", "--json", "--runs-dir", tmp_path, cwd=tmp_path).stdout)
    ours = {
        plugin["name"]: plugin["error"]
        for plugin in doctor["plugins"]
        if plugin["package"] == "toy-adapters 1.0"
    }
    assert ours == {"counts": None, "lines": None, "moons": None, "softmax": None, "table": None}
    done = trainyard(site, "train", site / "toy.yaml", "--json", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert run["status"] == "completed"
    assert run["metrics"]["test_accuracy"] > 0.7
    (points,) = (tmp_path / "tracked").glob("*/points.jsonl")
    values = {(name, step): value for name, step, value in map(json.loads, points.read_text().splitlines())}
    assert values["val_loss", 40] == run["metrics"]["val_loss"]
    assert (points.parent / "status").read_text() == "completed"
    again = trainyard(site, "reproduce", run["run_id"], "--quiet", cwd=tmp_path)
    assert again.stdout.startswith("identical"), again.stderr
    url = f"table://{tmp_path}/runs.db"
    done = trainyard(site, "train", site / "toy.yaml", "--json", "--quiet", "--runs-dir", url, cwd=tmp_path)
    assert json.loads(done.stdout)["digest"] == run["digest"], done.stderr
    listed = json.loads(trainyard(site, "runs", "list", "--json", "--runs-dir", url, cwd=tmp_path).stdout)
    assert [one["digest"] for one in listed] == [run["digest"]]
    wrong = trainyard(site, "config", "check", site / "toy.yaml", "model.nois=1", "data.rows=3", cwd=tmp_path)
    assert "did you mean 'noise'?" in wrong.stderr
    assert "expected a whole number of at least 10, got 3" in wrong.stderr


COUNTS = """
import numpy as np, trainyard
from sklearn.metrics import mean_poisson_deviance
draw = np.random.default_rng(0)
x = draw.normal(size=(600, 2)).astype("float32")
y = draw.poisson(np.exp(x[:, 0]))
config = {
    "data": {"task": "counts"}, "model": {"type": "mlp"}, "experiment": {"name": "counts"},
    "training": {"epochs": 12, "learning_rate": 1e-2},
}
run = trainyard.train(config, data={"train": (x[:400], y[:400]), "test": (x[400:], y[400:])})
rates = trainyard.load(run.id).predict(x[400:])["prediction"]
expected = mean_poisson_deviance(y[400:], rates)
assert abs(run.metrics["test_poisson_deviance"] - expected) < 1e-5 * expected, (run.metrics, expected)
assert expected < 0.75 * mean_poisson_deviance(y[400:], np.full(200, y[:400].mean())), expected
"""


@pytest.mark.slow
def test_its_task_trains_a_torch_model(site: Path, tmp_path: Path) -> None:
    done = python(site, "-c", COUNTS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_its_suites_pass(site: Path, tmp_path: Path) -> None:
    words = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--strict-markers",
        "-o",
        "markers=slow",
        "-k",
        FEW,
    ]
    done = python(site, *words, site / "test_toys.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert re.search(r"\b[4-9]\d passed", done.stdout), done.stdout
