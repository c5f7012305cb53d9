"""Tests of what loading a config imports: of each kind, nothing of an adapter that the config does not name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MLP = "model: mlp\ndata: digits\n"
TABLE = "data: {type: csv, path: rows.csv}\n"
# The config, and the adapters that it names.
CONFIGS: dict[str, set[str]] = {
    MLP: {"frameworks.torch", "datasets.sklearn"},
    f"{MLP}training: {{optimizer: sgd, loss: cross_entropy, scheduler: cosine}}\n"
    "evaluation: {metrics: [accuracy]}\n": {"frameworks.torch", "datasets.sklearn"},
    f"{TABLE}model: {{type: mlp, framework: torch, dropout: 0.1}}\n": {"frameworks.torch", "datasets.csv"},
    f"{TABLE}model: {{type: mlp, framework: keras}}\n": {"frameworks.keras", "datasets.csv"},
    f"{TABLE}model: {{type: xgboost, framework: xgboost}}\n": {"frameworks.xgboost", "datasets.csv"},
    f"{TABLE}model: {{type: xgboost, eta: 0.1}}\n": {"frameworks.xgboost", "datasets.csv"},
    "data: {path: rows.parquet}\nmodel: XGBClassifier\n": {"frameworks.xgboost", "datasets.parquet"},
    "data: {path: rows.npz}\nmodel: catboost\n": {"frameworks.catboost", "datasets.npz"},
    f"{TABLE}model: {{type: random_forest, n_estimators: 3}}\n": {"frameworks.sklearn", "datasets.csv"},
    f"{TABLE}model: RandomForestClassifier\n": {"frameworks.sklearn", "datasets.csv"},
    f"{MLP}tracking: [{{type: tensorboard}}]\n": {
        "frameworks.torch",
        "datasets.sklearn",
        "trackers.tensorboard",
    },
    f"{TABLE}model: lightgbm\ntuning: {{trials: 3, metric: val_loss, sampler: random, "
    "space: {model.num_leaves: [3, 4]}}\n": {"frameworks.lightgbm", "datasets.csv", "samplers.random"},
}
# Each config is loaded in a fork of a process that has loaded none.
CODE = """
import json, os, sys
from pathlib import Path
from trainwright.config.load import load
from trainwright.runs.catalog import Catalog
for number in range(int(sys.argv[1])):
    if not os.fork():
        load(Path(f"{number}.yaml"), (), Catalog())
        Path(f"{number}.json").write_text(json.dumps(list(sys.modules)))
        os._exit(0)
    if os.wait()[1]:
        sys.exit(1)
"""
KINDS = ("frameworks", "datasets", "trackers", "samplers", "tuners", "stores")
SHARED = ("base", "boosting", "images", "samples", "support", "tables", "texts")  # of several adapters


# What training needs, or the options of other models.
LATE = ("datasets.tables.preparation", "datasets.tables.encoders", "frameworks.torch.huggingface.params")


@pytest.mark.slow
def test_a_config_imports_no_adapter_that_it_does_not_name(tmp_path: Path) -> None:
    for number, config in enumerate(CONFIGS):
        (tmp_path / f"{number}.yaml").write_text(config, encoding="utf-8")
    command = [sys.executable, "-c", CODE, str(len(CONFIGS))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for number, (config, named) in enumerate(CONFIGS.items()):
        modules = json.loads((tmp_path / f"{number}.json").read_text(encoding="utf-8"))
        ours = [name.removeprefix("trainwright.") for name in modules if name.startswith("trainwright.")]
        paths = [name.split(".") for name in ours]
        adapters = {".".join(one[:2]) for one in paths if one[0] in KINDS and len(one) > 1}
        assert {one for one in adapters if one.split(".")[1] not in SHARED} == named, config
        assert not {*LATE} & {*ours}, config
