"""A class for each token: metrics against scikit-learn, and runs from arrays and data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import trainwright
from late import Late
from small_runs import SMALL, assert_same, whole_and_resumed
from trainwright.errors import DataError
from trainwright.evaluation.metrics import evaluate_predictions
from trainwright.tasks.base import Task
from trainwright.tasks.token_classification import TokenClassificationTask, are_tags, entity_f1, spans
from trainwright.testing.task_suite import TaskSuite
from trainwright.types import NO_LABEL, Array, ArraySpec, DataInfo, Predictions

sk = Late(lambda: __import__("sklearn.metrics", fromlist=["metrics"]))
LENGTH, TAGS = 5, ["B-X", "I-X", "O"]


SPEC = {"input_ids": ArraySpec((LENGTH,), "int64")}
INFO = DataInfo("token_classification", SPEC, 3, TAGS, target="labels")


def task() -> TokenClassificationTask:
    return TokenClassificationTask(INFO)


def drawn(rows: int, seed: int) -> tuple[Array, Array]:
    draw = np.random.default_rng(seed)
    labels = np.random.default_rng(0).integers(0, 3, (rows, LENGTH))
    labels[:, 3:][np.random.default_rng(1).random((rows, 2)) < 0.5] = NO_LABEL
    logits = draw.normal(size=(rows, LENGTH, 3)) + 2 * np.eye(3)[np.maximum(labels, 0)]
    return task().predictions(logits.astype(np.float32)), labels


class TestTokenClassification(TaskSuite):
    def make(self) -> Task:
        return TokenClassificationTask(INFO)

    def drawn(self, rows: int, seed: int) -> tuple[Array, Array]:
        return drawn(rows, seed)


def test_metrics_of_tokens_are_those_of_scikit_learn() -> None:
    outputs, labels = drawn(40, 2)
    part = Predictions(np.arange(40), outputs, labels, 1.0)
    found = evaluate_predictions([part], list(task().metrics), task().info, "val").metrics
    counted = labels != NO_LABEL
    true, predicted = labels[counted], outputs[counted].argmax(axis=1)
    whole = outputs[counted].astype(np.float64)
    whole /= whole.sum(axis=1, keepdims=True)
    expected = {
        "token_accuracy": sk.accuracy_score(true, predicted),
        "log_loss": sk.log_loss(true, whole),
        "loss": sk.log_loss(true, whole),
    }
    for name, score in (("f1", sk.f1_score), ("precision", sk.precision_score), ("recall", sk.recall_score)):
        expected[name] = score(true, predicted, average="macro")
        for average in ("macro", "micro", "weighted"):
            expected[f"{name}_{average}"] = score(true, predicted, average=average)
    assert {name: found[f"val_{name}"] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert {f"val_{name}" for name in expected} | {"val_span_f1"} == set(found)


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O B-A I-A O", {("A", 1, 3)}),
        ("B-A B-A I-A", {("A", 0, 1), ("A", 1, 3)}),
        ("I-A I-B O", {("A", 0, 1), ("B", 1, 2)}),  # as CoNLL's script reads them
        ("B-A I-B I-B", {("A", 0, 1), ("B", 1, 3)}),
        ("O O", set()),
    ],
)
def test_tags_mark_entities(tags: str, found: set[Any]) -> None:
    assert spans(tags.split()) == found


def test_an_entity_counts_as_a_whole() -> None:
    true, answered = [["B-A", "I-A", "O"], ["B-B", "O", "B-A"]], [["B-A", "O", "O"], ["B-B", "O", "B-A"]]
    assert entity_f1(zip(true, answered, strict=True)) == pytest.approx(2 * 2 / (3 + 3))
    assert entity_f1([(["O"], ["O"])]) == 0
    assert are_tags(TAGS)
    assert not are_tags([0, 1])


# -- runs


def rows(count: int = 60) -> dict[str, Array]:
    draw = np.random.default_rng(0)
    ids, lengths = draw.integers(1, 20, (count, LENGTH)), draw.integers(1, LENGTH + 1, count)
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int64)
    tags = np.where(mask == 1, np.array(TAGS)[np.digitize(ids, [5, 9])], "")
    return {"input_ids": ids, "attention_mask": mask, "labels": tags}


class Rows:
    """The same, item by item, with indices of the classes."""

    classes = TAGS

    def __init__(self, first: int, last: int) -> None:
        self._rows = {name: array[first:last] for name, array in rows().items()}
        tags = self._rows["labels"]
        codes = {tag: i for i, tag in enumerate(TAGS)} | {"": NO_LABEL}
        self._rows["labels"] = np.array([[codes[tag] for tag in row] for row in tags])

    def __len__(self) -> int:
        return len(self._rows["labels"])

    def __getitem__(self, i: int) -> dict[str, Array]:
        return {name: array[i] for name, array in self._rows.items()}


SETTINGS = {
    "data": {"task": "token_classification", "target": "labels"},
    "model": {"type": "lstm", "hidden_size": 6, "embedding_dim": 5, "bidirectional": True, "dropout": 0.1},
    "training.microbatch_size": 5,
}


def test_a_run_on_arrays_ends_with_the_same_bits(tmp_path: Path) -> None:
    own = {**SETTINGS, "distributed.virtual.data": 2}
    whole, resumed = whole_and_resumed(tmp_path, own, data=rows())
    assert_same(resumed, whole)
    model, given = trainwright.load(whole), rows()
    inputs = {name: torch.from_numpy(given[name]) for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        logits = model.native(**inputs)  # (rows, length, classes)
    predicted = [[TAGS[i] for i in row] for row in logits.argmax(dim=2).tolist()]
    assert (
        model.predict({name: array.numpy() for name, array in inputs.items()})["prediction"].tolist()
        == predicted
    )


def test_the_loss_of_a_split_counts_each_label_the_same(tmp_path: Path) -> None:
    data = (Rows(0, 40), Rows(40, 60))
    settings = {**SETTINGS, "model.vocab_size": 20, "training.max_steps": 3}
    run = trainwright.train(SMALL, settings, data=data, runs_dir=tmp_path)
    val = Rows(40, 60)
    batch = {name: torch.from_numpy(np.stack([val[i][name] for i in range(20)])) for name in val[0]}
    labels = batch.pop("labels")
    with torch.no_grad():
        logits = trainwright.load(run).native(**batch)
    expected = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL)
    assert run.metrics["val_loss"] == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.full((60, LENGTH), NO_LABEL)}, "no token has a class"),
        ({"labels": np.arange(60) % 3}, r"whose targets are \(rows, length\)"),
        ({"labels": np.full((60, LENGTH), -3) + 4 * np.eye(60, LENGTH, dtype=int)}, "-3 is not a class"),
    ],
)
def test_what_is_no_label_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        trainwright.train(SMALL, SETTINGS, data={**rows(), **change}, runs_dir=tmp_path)
