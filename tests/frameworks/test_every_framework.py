"""What holds for all frameworks alike.

One config, the same rows, and no framework that gets in the way of another.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

import trainwright
from warm_commands import command

MODELS: dict[str, dict[str, Any]] = {
    "random_forest": {"n_estimators": 40, "max_depth": 6},
    "logistic_regression": {},
    "xgboost": {"n_estimators": 30, "max_depth": 3, "subsample": 0.8},
    "lightgbm": {"n_estimators": 30, "num_leaves": 7, "subsample": 0.8, "subsample_freq": 1},
    "catboost": {"n_estimators": 30, "max_depth": 3},
    "keras_mlp": {"hidden": [16]},
    "mlp": {"hidden": [16]},
}
LIBRARIES = {
    "random_forest": "sklearn",
    "logistic_regression": "sklearn",
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
    "catboost": "catboost",
    "keras_mlp": "keras",
    "mlp": "torch",
}
BRINGS = {"keras": {"tensorflow"}}  # what a library cannot do without
# Scikit-learn serves data sets, too
FRAMEWORKS = {
    "torch",
    "xgboost",
    "lightgbm",
    "catboost",
    "keras",
    "tensorflow",
    "jax",
}
DIALECT = Path(__file__).with_name("tabular_dialect.yaml")


def products(rows: int, seed: int) -> pd.DataFrame:
    """Products of three classes, told by two numbers and a category, with some noise."""
    random = np.random.default_rng(seed)
    price, weight = random.normal(50, 20, rows), random.normal(5, 2, rows)
    color = random.choice(["red", "green", "blue"], rows)
    score = price / 20 + weight + 3 * (color == "red") + random.normal(0, 0.3, rows)
    frame = pd.DataFrame(
        {"price": price, "weight": weight, "color": color, "noise": random.normal(size=rows)}
    )
    return frame.assign(target=np.digitize(score, [7, 9.5]))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the users of the dialect have it."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "data").mkdir()
    for seed, (name, rows) in enumerate({"train": 600, "val": 150, "test": 150}.items()):
        products(rows, seed).to_parquet(folder / "data" / f"{name}.parquet")
    (folder / "config.yaml").write_text(DIALECT.read_text(encoding="utf-8"), encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("model", ["as it stands", "xgboost", "lightgbm", "pytorch"])
def test_the_tabular_dialect_trains_as_it_stands(model: str, shop: Path, empty_mlflow_store: Path) -> None:
    config = yaml.safe_load(DIALECT.read_text(encoding="utf-8"))
    store = f"{model.replace(' ', '-')}.db"
    (shop / store).write_bytes(empty_mlflow_store.read_bytes())
    config["experiment"] |= {"tracking_uri": f"sqlite:///{store}"}
    if model != "as it stands":
        params = {"pytorch": {"hidden": [32]}}.get(
            model, {"n_estimators": 60, "max_depth": 4, "learning_rate": 0.1}
        )
        config["model"] = {"type": model, "params": params}
    (shop / f"{model}.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    done = command("train", f"{model}.yaml", "--runs-dir", model, folder=shop)
    assert done.returncode == 0, done.stderr
    run = trainwright.get("last", runs_dir=shop / model)
    assert run.metrics["test_accuracy"] > 0.8
    unused = [line for line in done.stderr.splitlines() if "has no effect" in line]
    named = [
        key
        for key in ("epochs", "batch_size", "learning_rate")
        if any(f"training.{key} " in line for line in unused)
    ]
    assert named == ([] if model == "pytorch" else ["epochs", "batch_size", "learning_rate"])
    assert len(unused) == len(named), "each is named once"


def trained(model: dict[str, Any], shop: Path, folder: Path) -> Any:
    config = {
        "data": {"path": str(shop / "data" / "train.parquet")},
        "model": model,
        "training": {"epochs": 1, "threads": 1},
    }
    return trainwright.train(config, runs_dir=folder).manifest["data"]


@pytest.fixture(scope="module")
def reference(shop: Path) -> Any:
    """The data of a run of the toy framework."""
    return trained({"type": "toy"}, shop, shop / "reference")


@pytest.mark.parametrize("model", MODELS)
def test_splits_and_targets_are_the_same_in_all(
    model: str, shop: Path, tmp_path: Path, reference: Any
) -> None:
    data = trained({"type": model, "params": MODELS[model]}, shop, tmp_path)
    assert [part["splits"]["test"]["rows"] for part in (data, reference)] == [60, 60]
    assert data["rows"]["test"] == reference["rows"]["test"]


@pytest.mark.parametrize("model", MODELS)
def test_a_run_imports_no_other_framework(model: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)  # iris would bring scikit-learn
    np.savez(tmp_path / "rows.npz", X=draw.normal(size=(160, 4)), y=draw.integers(0, 3, 160))
    config = {"data": {"path": "rows.npz"}, "model": {"type": model}, "training": {"epochs": 1}}
    code = (
        "import json, sys, trainwright\n"
        "trainwright.train(json.loads(sys.argv[1]), runs_dir='runs')\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))\n"
    )
    words = [sys.executable, "-c", code, json.dumps(config)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    loaded, own = set(json.loads(done.stdout.splitlines()[-1])), LIBRARIES[model]
    assert own in loaded
    assert not loaded & FRAMEWORKS - {own} - BRINGS.get(own, set())


COMMAND = """
import sys
from trainwright.cli import main
def end(code):
    print("sklearn" in sys.modules)
    sys.exit(code)
main.os._exit = end
sys.argv[1:] = ["train", "config.yaml", "--runs-dir", "runs"]
main.command()
"""
USER_CODE = """
import numpy as np
def load():
    from {library} import {estimator}
    x, y = np.random.default_rng(0).normal(size=(200, 3)), np.arange(200) % 2
    {estimator}(n_estimators=2).fit(x, y)
    return x, y
"""


@pytest.mark.parametrize(
    ("library", "estimator"), [("xgboost", "XGBClassifier"), ("lightgbm", "LGBMClassifier")]
)
def test_a_command_leaves_out_what_nobody_can_want(library: str, estimator: str, tmp_path: Path) -> None:
    """scikit-learn, which boosters import if it is there; code of the user's may want it, and finds it."""
    features = np.random.default_rng(0).normal(size=(200, 3))
    np.savez(tmp_path / "data.npz", X_train=features, y_train=np.arange(200) % 2)
    (tmp_path / "user_code.py").write_text(
        USER_CODE.format(library=library, estimator=estimator), encoding="utf-8"
    )
    for data, imported in (({"path": "data.npz"}, "False"), ({"type": "user_code:load"}, "True")):
        config = {"data": data, "model": {"type": library, "n_estimators": 3}}
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-c", COMMAND],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == imported


WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {library!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Without())
from trainwright.cli.main import main
sys.exit(main(["train", "config.yaml", "--runs-dir", "runs"]))
"""


@pytest.mark.parametrize("model", MODELS)
def test_a_framework_that_is_not_installed_is_named_with_its_extra(model: str, tmp_path: Path) -> None:
    data = {"type": "csv", "path": "data.csv", "target": "y"}
    (tmp_path / "data.csv").write_text(
        "x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(40)), encoding="utf-8"
    )
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump({"data": data, "model": {"type": model}}), encoding="utf-8"
    )
    library = LIBRARIES[model]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(library=library)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert f"{library} is not installed" in done.stderr
    assert f"installs the extra {library!r}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "runs").glob("*/*")), "a run is left behind"
