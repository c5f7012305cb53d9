"""The page about adapters is enough: its code is installed as a package, trains, and passes the suites."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from plugins import install, python, trainwright

PAGE = Path(__file__).parent.parent / "docs" / "adapters.md"
BLOCK = re.compile(r"^```(\w+)\n(?:# (\S+)\n)?(.*?)^```$", re.MULTILINE | re.DOTALL)
# The framework suite kills many processes; the toy framework in tests/frameworks has all of it.
FEW = "not (killed or damaged or other_number) or commit-4 or though"


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
        "toy_exporter",
        "toy_framework",
        "toy_runtime",
        "toy_store",
        "toy_strategy",
        "toy_task",
        "toy_tracker",
    ]
    install(site, project["name"], "\n".join(lines), modules)
    (site / "toy.yaml").write_text(blocks["toy.yaml"], encoding="utf-8")
    return site


@pytest.mark.slow
def test_it_trains_and_resumes_with_all_of_them(site: Path, tmp_path: Path) -> None:
    doctor = json.loads(trainwright(site, "doctor", "--json", "--runs-dir", tmp_path, cwd=tmp_path).stdout)
    ours = {
        plugin["name"]: plugin["error"]
        for plugin in doctor["plugins"]
        if plugin["package"] == "toy-adapters 1.0"
    }
    assert ours == {
        "counts": None,
        "lines": None,
        "moons": None,
        "rows": None,
        "softmax": None,
        "table": None,
        "weights": None,
    }
    done = trainwright(site, "train", site / "toy.yaml", "--json", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert run["status"] == "completed"
    assert run["metrics"]["test_accuracy"] > 0.7
    (points,) = (tmp_path / "tracked").glob("*/points.jsonl")
    values = {(name, step): value for name, step, value in map(json.loads, points.read_text().splitlines())}
    assert values["val_loss", 40] == run["metrics"]["val_loss"]
    assert (points.parent / "status").read_text() == "completed"
    again = trainwright(site, "reproduce", run["run_id"], "--quiet", cwd=tmp_path)
    assert again.stdout.startswith("identical"), again.stderr
    url = f"table://{tmp_path}/runs.db"
    done = trainwright(site, "train", site / "toy.yaml", "--json", "--quiet", "--runs-dir", url, cwd=tmp_path)
    assert json.loads(done.stdout)["digest"] == run["digest"], done.stderr
    listed = json.loads(trainwright(site, "runs", "list", "--json", "--runs-dir", url, cwd=tmp_path).stdout)
    assert [one["digest"] for one in listed] == [run["digest"]]
    wrong = trainwright(
        site, "config", "check", site / "toy.yaml", "model.nois=1", "data.rows=3", cwd=tmp_path
    )
    assert "did you mean 'noise'?" in wrong.stderr
    assert "expected a whole number of at least 10, got 3" in wrong.stderr


COUNTS = """
import csv, json
import numpy as np, trainwright
from sklearn.metrics import mean_poisson_deviance
draw = np.random.default_rng(0)
x = draw.normal(size=(600, 2)).astype("float32")
y = draw.poisson(np.exp(x[:, 0]))
with open("calls.csv", "w", newline="") as file:
    csv.writer(file).writerows([["id", "heat", "wind", "calls"], *([f"r{i}", *row, n] for i, (row, n) in
        enumerate(zip(x.tolist(), y)))])
config = {
    "data": {"path": "calls.csv", "target": "calls", "task": "counts", "exclude": ["id"], "split": {"test": 0.4}},
    "model": {"type": "mlp"}, "experiment": {"name": "counts"},
    "training": {"epochs": 12, "learning_rate": 1e-2, "threads": 1},
}
run = trainwright.train(config)

# The columns of predictions, and intervals around them.
told = trainwright.predict(run.id, "calls.csv", keep=["id"], interval=0.8)
assert list(told) == ["id", "prediction", "lower", "upper"], list(told)
tested = json.loads((run.path / "evaluation" / "test.json").read_text())
oof = trainwright.load(run.id).predict(x)["prediction"]
assert np.abs(told["prediction"] - oof).max() < 1e-5
reached = ((told["lower"] <= y) & (y <= told["upper"])).mean()
assert 0.7 < reached < 0.95, reached

# The metric, and the baselines that the verdict is about.
baselines = {one["name"]: one for one in tested["compared"]["baselines"]}
constant = baselines["constant"]
rows = tested["rows"]
assert constant["words"].startswith("always predicting the mean, 1."), constant
assert constant["gains"]["poisson_deviance"]["mean"] > 0.5, constant
assert run.metrics["test_poisson_deviance"] < 0.75 * constant["metrics"]["test_poisson_deviance"]
everything = mean_poisson_deviance(y, oof)
assert abs(everything - run.metrics["test_poisson_deviance"]) < 0.4, everything
page = trainwright.report(run.id).read_text()
assert "Better than always predicting the mean" in page and "predict the value of calls" in page

# Which column matters, and why a worse run is worse.
explained = trainwright.explain(run.id)
assert explained["permutation"]["features"][0]["name"] == "heat", explained
slow = trainwright.train(config, {"training.learning_rate": 1e-5})
why = trainwright.why(run.id, slow.id, max_runs=8)
assert "test_poisson_deviance" in why.answer and why.moved_by == ["training.learning_rate"], why

# A study minimizes the task's own loss if no metric is named, and the metrics of the task if one is.
judged = {"tuning.trials": 2, "checkpoint.metric": "val_poisson_deviance"}
best = trainwright.tune(config, judged,
    space={"training.learning_rate": {"choices": [1e-5, 1e-2]}})
assert best.best_params == {"training.learning_rate": 1e-2}, best
folds = trainwright.cross_validate(config, {"training.epochs": 1}, folds=2)
low, high = folds.interval["test_poisson_deviance"]
assert low >= 0 and folds.mean["test_poisson_deviance"] < high, folds
assert list(folds.out_of_fold) == ["row", "fold", "target", "prediction"]
"""


@pytest.mark.slow
def test_its_task_goes_through_every_command(site: Path, tmp_path: Path) -> None:
    done = python(site, "-c", COUNTS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.services
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
