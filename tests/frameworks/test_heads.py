"""Several heads from the config: beside a loss of one's own, scikit-learn's metrics and sums by hand."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, mean_absolute_error, root_mean_squared_error
from torch.nn import functional

import trainwright
from small_runs import assert_same, whole_and_resumed
from trainwright.errors import ConfigError, DataError, InputError, ModelError
from trainwright.records.journal import losses, read

SOURCE = """
import torch
from torch import nn
from torch.nn import functional


class Heads(nn.Module):
    def __init__(self, in_features=4):
        super().__init__()
        self.body = nn.Linear(in_features, 8)
        self.heads = nn.ModuleDict({"logits": nn.Linear(8, 2), "amount": nn.Linear(8, 1), "kind": nn.Linear(8, 3),
            "flags": nn.Linear(8, 2), "early": nn.Linear(4, 2)})

    def forward(self, features):
        hidden = torch.relu(self.body(features))
        given = {name: head(features if name == "early" else hidden) for name, head in self.heads.items()}
        return given | {"amount": given["amount"][:, 0]}


def summed(outputs, batch):
    first = functional.cross_entropy(outputs["logits"], batch["target"])
    amount = functional.mse_loss(outputs["amount"], batch["amount"])
    return first + 0.5 * amount + 2.0 * functional.cross_entropy(outputs["kind"], batch["kind"])


class Scaled(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def forward(self, input, target):
        return self.factor * functional.cross_entropy(input, target)


class Pair(Heads):
    def forward(self, features):
        return tuple(super().forward(features).values())


def gap(targets, predictions):
    return float(abs(targets - predictions).max())


gap.greater_is_better = False
"""
CONFIG: dict[str, Any] = {
    "experiment": {"name": "heads", "seed": 3},
    "model": "own_heads:Heads",
    "training": {"max_steps": 12, "batch_size": 16, "learning_rate": 0.02, "threads": 1},
    "evaluation": {"every_n_steps": 4},
    "checkpoint": {"every_n_steps": 5, "every_n_minutes": None},
    "logging": {"every_n_steps": 1},
}
AMOUNT_AND_KIND = {"amount": {"weight": 0.5}, "kind": {"weight": 2.0}}
OTHERS = {
    "amount": {"weight": 0.5, "loss": "huber", "metrics": ["mae", "own_heads:gap"]},
    "flags": {"weight": 3.0},
    "early": {"target": "target", "weight": 0.25, "metrics": ["accuracy"]},
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the module `own_heads`."""
    (tmp_path / "own_heads.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("own_heads", None)


def rows() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(160, 4)).astype(np.float32)
    return {
        "features": x,
        "target": (x[:, 0] > 0).astype(np.int64),
        "amount": (x[:, 1] * 3).astype(np.float32),
        "kind": np.digitize(x[:, 2], [-0.5, 0.5]).astype(np.int64),
        "flags": (x[:, 2:] > 0).astype(np.int64),
    }


def given() -> dict[str, Any]:
    """Training and validation rows."""
    whole = rows()
    return {
        "train": {name: one[:120] for name, one in whole.items()},
        "val": {name: one[120:] for name, one in whole.items()},
    }


def train(heads: dict[str, Any], data: Any = None, **training: Any) -> trainwright.Run:
    config = CONFIG | {"training": CONFIG["training"] | {"heads": heads} | training}
    return trainwright.train(config, data=data or given())


def test_the_weighted_sum_is_that_of_a_loss_of_ones_own() -> None:
    ours, own = train(AMOUNT_AND_KIND), train({}, loss="own_heads:summed")
    assert ours.digest == own.digest
    assert ours.metrics["val_loss"] == own.metrics["val_loss"]
    parts = [ours.metrics[f"val_loss_{name}"] for name in ("logits", "amount", "kind")]
    assert parts[0] + 0.5 * parts[1] + 2.0 * parts[2] == pytest.approx(ours.metrics["val_loss"], rel=1e-6)


def test_options_of_a_heads_loss_stand_beside_its_type_or_within_params() -> None:
    weighted = train({"kind": {"weight": 2.0}})
    for options in ({"factor": 2.0}, {"params": {"factor": 2.0}}):
        ours = train({"kind": {"loss": {"type": "own_heads:Scaled", **options}}})
        assert ours.digest == weighted.digest
    with pytest.raises(ConfigError, match=r"heads\.amount\.loss: the loss huber of a head has no options"):
        train({"amount": {"loss": {"type": "huber", "delta": 2.0}}})


@pytest.mark.parametrize("weighted", [False, True])
def test_each_head_has_the_metrics_of_scikit_learn(weighted: bool) -> None:
    data, weights = given(), np.random.default_rng(1).integers(1, 5, 160).astype(np.float64)
    config = CONFIG | {
        "training": CONFIG["training"] | {"heads": OTHERS | {"kind": {}}, "microbatch_size": 5}
    }
    if weighted:
        config |= {"data": {"weight": "importance"}}
        data["train"]["importance"], data["val"]["importance"] = weights[:120], weights[120:]
    run = trainwright.train(config, data=data)
    val, weights = data["val"], weights[120:] if weighted else np.ones(40)
    with torch.no_grad():
        found = trainwright.load(run).native(torch.from_numpy(val["features"]))
    by = {name: output.numpy() for name, output in found.items()}
    kinds, flags = by["kind"].argmax(axis=1), by["flags"] > 0
    wanted = {
        "mae_amount": mean_absolute_error(val["amount"], by["amount"], sample_weight=weights),
        "gap_amount": abs(val["amount"] - by["amount"]).max(),
        "accuracy_kind": accuracy_score(val["kind"], kinds, sample_weight=weights),
        "f1_kind": f1_score(val["kind"], kinds, average="macro", sample_weight=weights),
        "f1_flags": f1_score(val["flags"], flags, average="macro", sample_weight=weights),
        "accuracy_early": accuracy_score(val["target"], by["early"].argmax(axis=1), sample_weight=weights),
    }
    assert {name: run.metrics[f"val_{name}"] for name in wanted} == pytest.approx(wanted, rel=1e-5)
    huber = functional.huber_loss(found["amount"], torch.from_numpy(val["amount"]), reduction="none").numpy()
    assert run.metrics["val_loss_amount"] == pytest.approx(np.average(huber, weights=weights), rel=1e-5)


def test_microbatches_and_virtual_ranks_change_only_rounding() -> None:
    def first(**training: Any) -> list[float]:
        return list(losses(read(train(OTHERS, **training).path / "journal")).values())

    whole = first()
    assert first(microbatch_size=3) == pytest.approx(whole, rel=1e-4)
    parted = CONFIG | {
        "training": CONFIG["training"] | {"heads": OTHERS},
        "distributed": {"virtual": {"data": 2}},
    }
    run = trainwright.train(parted, data=given())
    assert list(losses(read(run.path / "journal")).values()) == pytest.approx(whole, rel=1e-4)


def test_a_metric_of_a_head_decides_and_a_resume_has_the_same_bits(tmp_path: Path) -> None:
    """On the shared small run, whose cadences no other divides; its model is ours here."""
    overrides = {
        "model": "own_heads:Heads",
        "training.heads": OTHERS,
        "training.early_stopping": {"metric": "val_loss_flags", "patience": 9},
        "checkpoint.metric": "val_rmse_amount",
    }
    run, resumed = whole_and_resumed(tmp_path, overrides, data=given())
    assert_same(resumed, run)
    assert resumed.result["best"]["metric"] == "val_rmse_amount"
    with torch.no_grad():
        amounts = trainwright.load(run).native(torch.from_numpy(given()["val"]["features"]))["amount"].numpy()
    best = root_mean_squared_error(given()["val"]["amount"], amounts)
    assert run.metrics["val_rmse_amount"] == pytest.approx(best, rel=1e-5)


def test_rows_are_predicted_without_the_targets_of_heads() -> None:
    run = train(AMOUNT_AND_KIND)
    assert len(trainwright.load(run).predict({"features": rows()["features"][:5]})) == 5


class Items:
    """The same samples as items: pairs of which both parts are mappings, or the second one."""

    num_classes = 2

    def __init__(self, arrays: dict[str, np.ndarray], form: str) -> None:
        self.arrays, self.form = arrays, form

    def __len__(self) -> int:
        return len(self.arrays["target"])

    def __getitem__(self, i: int) -> Any:
        item = {name: array[i] for name, array in self.arrays.items()}
        x = item.pop("features")
        return ({"features": x}, item) if self.form == "mappings" else (x, item)


@pytest.mark.parametrize("form", ["mappings", "pair"])
def test_samples_one_by_one_give_the_same_bits(form: str) -> None:
    named = given()
    items = {split: Items(arrays, form) for split, arrays in named.items()}
    ours = train(OTHERS, items, microbatch_size=5)
    assert ours.digest == train(OTHERS, named, microbatch_size=5).digest
    assert len(trainwright.load(ours).predict({"features": rows()["features"][:5]})) == 5


class Pairs(Items):
    """Items whose targets are a tuple, or whose input has the name of a target."""

    def __getitem__(self, i: int) -> Any:
        x, y = self.arrays["features"][i], self.arrays["flags"][i]
        return (x, (y[0], y)) if self.form == "tuple" else ({"target": x}, {"target": y[0]})


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("tuple", "item 0 has a tuple of several targets; name them"),
        ("both", "'target' among its inputs and"),
    ],
)
def test_items_whose_targets_have_no_names_of_their_own_are_refused(form: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        train({}, {"train": Pairs(rows(), form)})


@pytest.mark.parametrize(
    ("heads", "said", "model"),
    [
        ({"cost": {}}, "training.heads.cost: the data have no array 'cost' .*; they have .*amount", "Heads"),
        ({"cost": {"target": "amount"}}, "mapping with a tensor 'cost', and returns dict of logits", "Heads"),
        ({"amount": {}}, "mapping with a tensor 'amount', and returns tuple", "Pair"),
        (
            {"amount": {"loss": "focal"}},
            "training.heads.amount.loss: focal is not a loss for regression",
            "Heads",
        ),
        ({"flags": {"task": "classification"}}, r"int64 of shape \(2,\) for each sample, not", "Heads"),
        ({"kind": {"target": "flags"}}, r"gives \(1, 3\), and the targets \(flags\) are \(1, 2\)", "Heads"),
        ({"amount": {"metrics": ["accuracy"]}}, "'accuracy' is for .*, but the task is regression", "Heads"),
    ],
)
def test_what_does_not_fit_is_said(heads: dict[str, Any], said: str, model: str) -> None:
    config = CONFIG | {"training": CONFIG["training"] | {"heads": heads}, "model": f"own_heads:{model}"}
    with pytest.raises((InputError, ModelError), match=said):
        trainwright.train(config, data=given())
