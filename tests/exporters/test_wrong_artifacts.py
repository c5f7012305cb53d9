"""Artifacts of ONNX that are wrong in one place are found before they appear, and the step is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import trainwright
from trainwright.errors import DifferentArtifactError
from trainwright.exporters.onnx import OnnxExporter

CONFIGS: Mapping[str, Any] = {
    "network": {"model": "mlp", "target": "churn", "data.impute": "median", "training.batch_size": 32},
    "trees": {"model": "xgboost", "target": "churn"},
    "lightgbm": {"model": "lightgbm", "target": "churn"},
    "catboost": {"model": "catboost", "target": "churn", "data.encode": "target", "data.impute": "median"},
    "cost": {"model": "mlp", "target": "cost", "data.impute": "median", "training.batch_size": 32},
    "float64": {
        "model": "lightgbm",
        "target": "churn",
        "data.standardize": True,
        "data.exclude": ["cost", "city", "age", "joined"],
    },
}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Return a function to the run of one of the configs, which is trained once."""
    folder = tmp_path_factory.mktemp("wrong")
    draws = np.random.default_rng(1)
    lines = ["age,city,joined,serial,cost,churn"]
    for i in range(300):
        age, city, serial = draws.integers(18, 80), draws.choice(["Bern", "Oslo"]), 10**8 + i % 10
        day = np.datetime64("2019-12-25") + draws.integers(0, 900)
        churn = "yes" if (serial % 10 > 4) ^ (age > 45) else "no"
        lines.append(f"{'' if i % 9 == 4 else age},{city},{day},{serial},{1e6 + age * 3},{churn}")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    runs: dict[str, Any] = {}

    def run(name: str) -> Any:
        if name not in runs:
            own = dict(CONFIGS[name])
            data = {"type": "csv", "path": str(folder / "rows.csv"), "target": own.pop("target")}
            config = {"data": data, "model": own.pop("model"), "training": {"max_steps": 15, "threads": 1}}
            settings = [f"{key}={json.dumps(value)}" for key, value in own.items()]
            runs[name] = trainwright.train(config, overrides=settings, runs_dir=folder / "runs", quiet=True)
        return runs[name]

    return run


class Found:
    """The nodes and constants of a model of ONNX."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self.constants = {one.name: one for one in model.graph.initializer}

    def maker(self, value: str) -> onnx.NodeProto:
        """Return the node that makes a value."""
        return next(node for node in self.graph.node if value in node.output)

    def before(self, value: str, kind: str) -> onnx.NodeProto:
        """Return the first node of a kind that leads to a value."""
        waiting = [value]
        while waiting:
            name = waiting.pop(0)
            if name in self.constants or name in [one.name for one in self.graph.input]:
                continue
            node = self.maker(name)
            if node.op_type == kind:
                return node
            waiting += node.input
        raise AssertionError(f"no {kind} leads to {value}")

    def change(self, name: str, change: Callable[[Any], Any]) -> None:
        """Change a constant."""
        tensor = self.constants[name]
        changed = np.asarray(change(numpy_helper.to_array(tensor)))
        if changed.dtype.kind in "OU":
            texts = [str(one).encode() for one in changed.ravel()]
            tensor.CopyFrom(helper.make_tensor(name, tensor.data_type, changed.shape, texts))
        else:
            tensor.CopyFrom(numpy_helper.from_array(changed, name))


def flipped_weight(model: Found) -> None:
    def flip(weights: Any) -> Any:
        weights = weights.copy()
        weights.flat[np.abs(weights).argmax()] *= -1
        return weights

    sizes = {name: one for name, one in model.constants.items() if one.data_type == onnx.TensorProto.FLOAT}
    model.change(max(sizes, key=lambda name: int(np.prod(sizes[name].dims))), flip)


def swapped_labels(model: Found) -> None:
    model.change(model.before("label", "Gather").input[0], lambda labels: labels[::-1])


def wrong_mean(model: Found) -> None:
    model.change(model.before("/tw/column/age", "Sub").input[1], lambda mean: mean * 1.01)


def wrong_scale(model: Found) -> None:
    model.change(model.before("/tw/column/age", "Div").input[1], lambda scale: scale * 1.01)


def unseen_is_seen(model: Found) -> None:
    for one in model.before("/tw/column/city", "LabelEncoder").attribute:
        if one.name == "default_int64":
            one.i = 2


def wrong_fill(model: Found) -> None:
    model.change(model.before("/tw/column/age", "Where").input[1], lambda fill: fill + 1)


def at_most(model: Found) -> None:
    """Compare with <= where XGBoost has <."""
    for one in model.before("/tw/model", "TreeEnsemble").attribute:
        if one.name == "nodes_modes":
            modes = numpy_helper.to_array(one.t)
            one.t.CopyFrom(numpy_helper.from_array(np.where(modes == 1, 0, modes).astype(np.uint8), "modes"))


def seventh_tree(model: Found) -> None:
    """Let all rows go one way at the root of the seventh tree."""
    kept = {one.name: one for one in model.before("/tw/model", "TreeEnsemble").attribute}
    splits = numpy_helper.to_array(kept["nodes_splits"].t).copy()
    splits[kept["tree_roots"].ints[6]] = 1e30
    kept["nodes_splits"].t.CopyFrom(numpy_helper.from_array(splits, "splits"))


def date_off_by_one(model: Found) -> None:
    eras = [
        name
        for name, one in model.constants.items()
        if numpy_helper.to_array(one).ravel().tolist() == [719_468]
    ]
    model.change(eras[0], lambda day: day + 1)


def dropped_offset(model: Found) -> None:
    node = model.before("prediction", "Add")
    model.change(node.input[1], lambda offset: offset * 0)


def float32_at_a_split(model: Found) -> None:
    reader = next(node for node in model.graph.node if "serial" in node.input)
    rounded = helper.make_node("Cast", ["serial"], ["rounded"], to=onnx.TensorProto.FLOAT)
    again = helper.make_node("Cast", ["rounded"], ["again"], to=onnx.TensorProto.DOUBLE)
    reader.input[:] = ["again" if name == "serial" else name for name in reader.input]
    at = list(model.graph.node).index(reader)
    model.graph.node.insert(at, again)
    model.graph.node.insert(at, rounded)


@pytest.mark.parametrize(
    ("name", "damage", "step"),
    [
        ("network", flipped_weight, "layer module.layers."),
        ("network", swapped_labels, "what follows the model"),
        ("network", wrong_mean, "column age"),
        ("network", wrong_scale, "column age"),
        ("network", unseen_is_seen, "column city"),
        ("network", wrong_fill, "column age"),
        ("trees", at_most, "tree "),
        ("trees", seventh_tree, "tree 7 of 15"),
        ("lightgbm", seventh_tree, "tree 7 of 15"),
        ("catboost", seventh_tree, "tree 7 of 15"),
        ("network", date_off_by_one, "column joined"),
        ("cost", dropped_offset, "what follows the model"),
        ("float64", float32_at_a_split, "column serial"),
    ],
)
def test_wrong_artifacts_are_found(
    run_of: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    damage: Callable[[Found], None],
    step: str,
) -> None:
    run = run_of(name)
    write = OnnxExporter.write

    def wrong(exporter: Any, predictor: Any, path: Path, metadata: Mapping[str, str]) -> None:
        write(exporter, predictor, path, metadata)
        model = onnx.load(path)
        damage(Found(model))
        onnx.save(model, path)

    monkeypatch.setattr(OnnxExporter, "write", wrong)
    with pytest.raises(DifferentArtifactError) as found:
        trainwright.export(run, tmp_path / "model.onnx")
    assert found.value.exit_code == 3
    first = str(found.value).splitlines()[0]
    assert f"the first step that differs: {step}" in first
    assert list(tmp_path.iterdir()) == []
