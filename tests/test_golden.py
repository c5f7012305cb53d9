"""Golden digests: what our parts give, on every machine, as committed values.

A test that fails here means that unchanged configs get other bits. If that is meant, raise the part's version in
`runs/semantics.py`, put an entry under *Changed bits* into the changelog, and commit the new value.
"""

import hashlib
import json
import random
from typing import Any

import numpy as np
import pandas as pd
import pytest

from trainwright import order
from trainwright.config import load
from trainwright.config.schema import DataConfig
from trainwright.config.splits import SplitConfig
from trainwright.datasets.base import DataBundle
from trainwright.datasets.samples.objects import from_objects
from trainwright.digest import array_buffer, digest, sha256_bytes, tensor_records, write_tensors
from trainwright.engine.rules import Rules
from trainwright.evaluation.metrics import evaluate_predictions, mode_of, names
from trainwright.frameworks.base import Plan
from trainwright.order import KeyedPermutation, SampleOrder, random_keys, stream_seed
from trainwright.process.global_random import preserved_global_random, seed_global_random
from trainwright.records.document import dump
from trainwright.types import DataInfo, Evaluation, Predictions, features_spec


def short(*arrays: Any) -> str:
    """Return the first 16 digits of the SHA-256 of arrays, with their dtypes and shapes."""
    hasher = hashlib.sha256()
    for array in map(np.asarray, arrays):
        little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<")))
        hasher.update(f"{array.dtype.name} {array.shape} ".encode() + little.tobytes())
    return hasher.hexdigest()[:16]


def test_order() -> None:
    samples = SampleOrder(1000, 32, seed=7)
    assert short(*(samples.batch(step) for step in range(96))) == GOLDEN["order"]
    assert short(KeyedPermutation(5, 10**9).at(123_456_789, 123_457_789)) == GOLDEN["order beyond memory"]


def test_streams() -> None:
    purposes = (order.INIT, order.STEP, order.EPOCH, order.SPLIT, order.PREDICT, order.EXPLAIN)
    assert purposes == (0, 1, 2, 3, 4, 5)
    seeds = [stream_seed(seed, purpose, 3, 1) for seed in (0, 1, 2**63 - 1) for purpose in purposes]
    assert short(np.array(seeds, dtype=np.uint64)) == GOLDEN["streams"]
    assert short(random_keys(11, 100)) == GOLDEN["keys"]
    with preserved_global_random():
        seed_global_random(3)
        drawn = [random.getrandbits(32) for _ in range(5)], np.random.randint(0, 2**31, 5)
    assert short(*(np.asarray(one, dtype=np.int64) for one in drawn)) == GOLDEN["global generators"]


def frame(rows: int = 97) -> pd.DataFrame:
    """Return columns of every kind, made without any random generator."""
    numbers = np.arange(rows)
    return pd.DataFrame(
        {
            "number": (numbers * 37 % 101) / 8,
            "gaps": np.where(numbers % 7 == 0, np.nan, numbers % 5),
            "kind": np.array(["red", "green", "blue"])[numbers * 5 % 11 % 3],
            "team": numbers * 13 % 17,
            "day": numbers * 29 % 97,
            "target": np.array(["yes", "no", "maybe"])[numbers % 10 // 4],
        }
    )


SPLITS: dict[str, dict[str, Any]] = {
    "stratified": {},
    "plain": {"stratify": False, "seed": 5},
    "groups": {"group": "team", "stratify": False},
    "time": {"time": "day"},
    "fold": {"folds": 4, "fold": 1},
    "fold of groups": {"folds": 4, "fold": 2, "group": "team", "stratify": False},
    "fold of time": {"folds": 4, "fold": 2, "time": "day"},
    "hash of a key": {"by": "hash", "key": ["team", "kind"], "seed": 3, "val": 0.2},
    "hash of the content": {"by": "hash", "val": 0.2},
    "fold of hashes": {"by": "hash", "key": "day", "folds": 4, "fold": 1},
}


@pytest.mark.parametrize("name", SPLITS)
def test_split(name: str) -> None:
    config = DataConfig(split=SplitConfig(**SPLITS[name]), impute="median")
    bundle = from_objects(frame(), config)
    assert short(*(bundle.rows[split] for split in ("train", "val", "test"))) == GOLDEN[f"split: {name}"]


PREPARATIONS: dict[str, dict[str, Any]] = {
    "one hot": {"impute": "median"},
    "ordinal": {"impute": "mean", "encode": "ordinal"},
    "category": {"impute": "keep", "encode": "category", "standardize": False},
    "mean target": {"impute": "median", "encode": "target", "columns": {"note": "text", "team": "category"}},
    "frequency": {"impute": "keep", "encode": "frequency", "columns": {"note": "text"}, "standardize": False},
}


def prepared(settings: dict[str, Any]) -> DataBundle:
    data = frame()
    if "columns" in settings:
        words, numbers = np.array(["late", "wet", "parcel", "thanks", "order", "again"]), np.arange(len(data))
        data["note"] = [" ".join(words[[i % 6, i * 7 % 5, i * i % 4]]) for i in numbers]
        times = np.datetime64("2023-11-05T07:30") + numbers * np.timedelta64(31_337, "m")
        data["when"] = np.where(numbers % 9 == 0, np.datetime64("NaT"), times)
    return from_objects(data, DataConfig(**settings))


@pytest.mark.parametrize("name", PREPARATIONS)
def test_preparation(name: str) -> None:
    bundle = prepared(PREPARATIONS[name])
    batches = [split.take(np.arange(len(split))) for split in bundle.splits.values()]
    assert short(*(array for batch in batches for array in batch.values())) == GOLDEN[f"preparation: {name}"]


def test_fingerprint_of_data() -> None:
    """It identifies the data of a run in the manifest."""
    assert prepared(PREPARATIONS["one hot"]).splits["train"].fingerprint()[:16] == GOLDEN["fingerprint"]


SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {"type": "constant", "warmup_steps": 4},
    "linear": {"type": "linear", "warmup_steps": 3, "final_lr_ratio": 0.1},
    "cosine": {"type": "cosine", "final_lr_ratio": 0.05},
    "step": {"type": "step", "step_size": 5, "gamma": 0.5},
    "plateau": {"type": "plateau", "patience": 1, "factor": 0.5},
}


def rules(scheduler: dict[str, Any]) -> Rules:
    training = {"scheduler": scheduler, "early_stopping": {"patience": 2, "min_delta": 0.05}}
    config = load(
        {"model": "mlp", "data": "iris", "training": training, "checkpoint": {"save_top_k": 2}}
    ).config
    return Rules(config, Plan(16, 20, 0.01), 7, mode_of)


@pytest.mark.parametrize("name", SCHEDULES)
def test_learning_rates(name: str) -> None:
    """To 12 digits: libraries differ in the last bits of a cosine."""
    schedule = rules(SCHEDULES[name])
    rates = [f"{schedule.learning_rate(step):.12e}" for step in range(20)]
    assert sha256_bytes(" ".join(rates).encode())[:16] == GOLDEN[f"learning rates: {name}"]


def test_decisions() -> None:
    losses = [0.9, 0.7, 0.69, 0.72, 0.5, 0.55, 0.49, 0.6]
    history = [Evaluation(7 * i, {"val_loss": loss}) for i, loss in enumerate(losses, 1)]
    schedule = rules(SCHEDULES["plateau"])
    decided = [
        [
            schedule.best_steps(history[:i]),
            schedule.last_step(history[:i]),
            schedule.learning_rate_factor(history[:i]),
        ]
        for i in range(1, len(history) + 1)
    ]
    assert sha256_bytes(json.dumps(decided).encode())[:16] == GOLDEN["decisions"]


# Metrics that the golden digests leave out.
LATER = {
    *("jaccard", "specificity", "smape", "wape", "msle", "rmsle", "poisson_deviance", "gamma_deviance"),
    *("d2_absolute_error", "pearson", "spearman"),
}


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_metrics(task: Any) -> None:
    """To 9 digits: sums over rows differ in the last bits from one processor to another."""
    rows = np.arange(40)
    if task == "classification":
        outputs = ((rows[:, None] * 7 + np.array([3, 5, 11])) % 13 + 1).astype(np.float32)
        outputs /= outputs.sum(axis=1, keepdims=True)
        info, targets = DataInfo(task, features_spec((4,)), 3, classes=["a", "b", "c"]), rows % 3
    else:
        outputs, targets = (rows * 7 % 13).astype(np.float32), (rows * 5 % 11 + 1).astype(np.float32)
        info = DataInfo(task, features_spec((4,)), 1)
    parts = [Predictions(rows, outputs, targets, 12.5)]
    values = evaluate_predictions(parts, names(task), info, "test").metrics
    first = {name: values[name] for name in values if name.removeprefix("test_") not in LATER}
    for part, some in (("metrics", first), ("later metrics", values.keys() - first.keys())):
        text = " ".join(f"{name}={values[name]:.9g}" for name in sorted(some))
        assert sha256_bytes(text.encode())[:16] == GOLDEN[f"{part}: {task}"]


def test_files(tmp_path: Any) -> None:
    """The formats of what is compared, and read again: tensors, digests, records and configs."""
    arrays = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.array([1, 2], dtype=np.int64)}
    buffers = [array_buffer(name, array) for name, array in arrays.items()]
    write_tensors(tmp_path / "w.safetensors", buffers)
    assert sha256_bytes((tmp_path / "w.safetensors").read_bytes())[:16] == GOLDEN["tensor file"]
    assert digest(tensor_records(buffers))[:16] == GOLDEN["digest"]
    assert sha256_bytes(dump({"a": 0.1, "b": [None, "ä"], "format": 2}))[:16] == GOLDEN["record"]


GOLDEN = {
    "order": "f29c9b3bb3edf5d9",
    "order beyond memory": "221fa4575ea5e858",
    "streams": "f5db456a6aa869c1",
    "keys": "fabfd1e314f11638",
    "global generators": "65b5ca62aec779e3",
    "split: stratified": "88a07ca810583d99",
    "split: plain": "626abfacc0afbbca",
    "split: groups": "b97763f4bc489597",
    "split: time": "7663d9b15c93fab3",
    "split: fold": "5e2c449056a5655d",
    "split: fold of groups": "440ccf721bf13605",
    "split: fold of time": "457bacce8a073618",
    "split: hash of a key": "be67835e9f83c499",
    "split: hash of the content": "c5cdcb8351179429",
    "split: fold of hashes": "499d0b5f005899c0",
    "preparation: one hot": "732ef63b98ec3000",
    "preparation: ordinal": "ca37ad8cdd1c945c",
    "preparation: category": "910753e796914237",
    "preparation: mean target": "fea3a8f78c5a0c99",
    "preparation: frequency": "b7a75812cdfad1dd",
    "fingerprint": "a58f55af2bbd0aa4",
    "learning rates: constant": "72d599233a38cef5",
    "learning rates: linear": "9d81c6d7e455106f",
    "learning rates: cosine": "14a4dcff97310ac7",
    "learning rates: step": "37ecc2d7940e0d36",
    "learning rates: plateau": "8845c42ca3a403fe",
    "decisions": "40a7c102db6f50b6",
    "metrics: classification": "4b9cb8b9e8b3d553",
    "metrics: regression": "ced152b24f5315c6",
    "later metrics: classification": "c0b7f7ab6017ecb6",
    "later metrics: regression": "98c7f485e416bfa7",
    "tensor file": "3ae5601fa6ee52c0",
    "digest": "c66027f4814684d1",
    "record": "df256953638d1509",
}
