"""Baselines of texts, of labeled tokens and of masks, against counts by hand."""

from collections import Counter

import numpy as np
import pytest
from numpy.testing import assert_allclose

from trainwright.datasets.base import DataBundle
from trainwright.datasets.samples.arrays import Arrays
from trainwright.datasets.text.windows import Windows
from trainwright.evaluation.baselines import compared, fitted
from trainwright.evaluation.metrics import evaluate_predictions
from trainwright.evaluation.tables import tables
from trainwright.reports.verdict import judge
from trainwright.tasks.support.guesses import PairTable, shares
from trainwright.types import ArraySpec, DataInfo, Predictions

TEXT = b"the cat sat on the mat; the rat ate the hat of the cat, and that was that. " * 6


def verdict_on(data, outputs, metrics):
    targets = np.zeros(len(outputs), np.int64)
    target = data.splits["test"].take(np.arange(len(outputs))).get("target")
    result = evaluate_predictions(
        [Predictions(np.arange(len(outputs)), outputs, targets if target is None else target, 1.0)],
        metrics,
        data.info,
        "test",
    )
    found = compared(fitted(data), result, data.splits["test"], data.info)
    assert found is not None
    return judge(tables(result, data.info) | {"compared": found}), found


def text(length=16):
    tokens = np.frombuffer(TEXT, np.uint8)
    info = DataInfo("language_modeling", {"input_ids": ArraySpec((length,), "int64")}, 256)
    splits = {
        "train": Windows(tokens[:300], length, every_byte=False),
        "test": Windows(tokens[300:], length, every_byte=True),
    }
    return tokens, DataBundle(info, splits)


def sums_of(split, nats):
    labels = split.take(np.arange(len(split)))["labels"]
    tokens = (labels != -100).sum(axis=1)
    return np.stack([nats * tokens, tokens, 0 * tokens], axis=1).astype(np.float32)


def test_a_language_model_is_judged_by_bytes_and_by_pairs_of_bytes():
    tokens, data = text()
    split = data.splits["test"]
    count = (300 - 1) // 16 * 16  # tokens that the training windows predict
    learned, new = tokens[1 : count + 1].tolist(), tokens[301:].tolist()
    single = Counter(learned)
    likely = {byte: (single[byte] + 1) / (count + 256) for byte in range(256)}
    verdict, found = verdict_on(data, sums_of(split, 2.0), ["bits_per_byte", "token_accuracy"])
    constant, table = found["baselines"]
    expected = -np.mean([np.log2(likely[byte]) for byte in new])
    assert constant["metrics"]["test_bits_per_byte"] == pytest.approx(expected, rel=1e-5)
    most = single.most_common(1)[0][0]
    assert constant["metrics"]["test_token_accuracy"] == pytest.approx(np.mean(np.array(new) == most))

    pairs = Counter(zip(tokens[:count].tolist(), learned, strict=True))
    bits = []
    for previous, byte in zip(tokens[300:-1].tolist(), new, strict=True):
        follows = {one: times for (first, one), times in pairs.items() if first == previous}
        kinds, times = len(follows), sum(follows.values())
        bits.append(-np.log2((follows.get(byte, 0) + kinds * likely[byte]) / (times + kinds)))
    assert table["metrics"]["test_bits_per_byte"] == pytest.approx(np.mean(bits), rel=1e-5)
    gain = constant["gains"]["bits_per_byte"]["mean"]
    assert gain == pytest.approx(expected - 2 / np.log(2), rel=1e-5)
    assert verdict.title == (
        "Better than guessing by how often each byte occurs, but worse than a table of which byte follows which"
    )


@pytest.mark.parametrize(
    ("nats", "title", "level"),
    [
        (0.1, "Better than guessing by how often each byte occurs, and than a table of which byte", "good"),
        (5.5, "Worse than guessing by how often each byte occurs", "poor"),
    ],
)
def test_verdicts_on_texts(nats, title, level):
    _, data = text()
    verdict, _ = verdict_on(data, sums_of(data.splits["test"], nats), ["bits_per_byte"])
    assert verdict.title.startswith(title)
    assert verdict.level == level


def test_the_table_of_pairs_knows_unseen_tokens_and_sums_to_one():
    draw = np.random.default_rng(0)
    tokens, labels = draw.integers(0, 50, (40, 8)), draw.integers(0, 6, (40, 8))
    labels[:, 5] = -100
    table = PairTable(tokens, labels, shares(labels, 6))
    asked = np.arange(60)  # the last ten were never seen
    each = [table.probabilities(asked, np.full(60, label)) for label in range(6)]
    assert_allclose(np.sum(each, axis=0), 1.0)
    assert_allclose(np.stack(each)[:, 55], shares(labels, 6))
    counts = Counter(labels[(tokens == 3) & (labels != -100)].tolist())
    assert counts[int(table.best(np.array([3]))[0])] == max(counts.values())
    assert PairTable(tokens, np.full_like(labels, -100), shares(labels, 6)).best(tokens).shape == (40, 8)


def test_labels_of_tokens_are_judged_by_the_usual_label_of_each_token():
    draw = np.random.default_rng(1)
    tokens = draw.integers(0, 9, (60, 5))
    labels = np.where(tokens < 6, 0, tokens - 5)  # four labels, mostly the first
    labels[:, -1] = -100
    parts = {"train": slice(0, 40), "test": slice(40, 60)}
    splits = {name: Arrays({"input_ids": tokens[at], "labels": labels[at]}) for name, at in parts.items()}
    inputs = {"input_ids": ArraySpec((5,), "int64")}
    info = DataInfo("token_classification", inputs, 4, ["O", "A", "B", "C"], target="tags")
    outputs = np.eye(4, dtype=np.float32)[draw.integers(0, 4, (20, 5))] * 0.6 + 0.1
    result = evaluate_predictions(
        [Predictions(np.arange(20), outputs, labels[40:], 1.0)],
        ["token_accuracy", "log_loss"],
        info,
        "test",
    )
    data = DataBundle(info, splits)
    found = compared(fitted(data), result, splits["test"], info)
    constant, table = found["baselines"]
    true = labels[40:, :4]
    assert constant["metrics"]["test_token_accuracy"] == pytest.approx(np.mean(true == 0))
    assert table["metrics"]["test_token_accuracy"] == 1.0
    own = np.mean(outputs.argmax(axis=2)[:, :4] == true)
    assert constant["gains"]["token_accuracy"]["mean"] == pytest.approx(own - np.mean(true == 0))
    verdict = judge(tables(result, info) | {"compared": found})
    assert verdict.title == "Worse than always answering “O”, the most frequent label"


def test_masks_are_judged_by_the_most_frequent_class():
    draw = np.random.default_rng(2)
    masks = (draw.random((30, 4, 4)) < 0.2).astype(np.int64)
    splits = {
        "train": Arrays({"features": np.zeros((20, 3, 4, 4), np.float32), "target": masks[:20]}),
        "test": Arrays({"features": np.zeros((10, 3, 4, 4), np.float32), "target": masks[20:]}),
    }
    inputs = {"features": ArraySpec((3, 4, 4), "float32")}
    info = DataInfo("segmentation", inputs, 2, [0, 1], target_shape=(4, 4))
    true = np.stack([(masks[20:] == 0).sum(axis=(1, 2)), (masks[20:] == 1).sum(axis=(1, 2))], axis=1)
    whole = np.concatenate([np.zeros((10, 1)), np.full((10, 1), 16.0), true, true, true], axis=1)  # all right
    verdict, found = verdict_on(DataBundle(info, splits), whole.astype(np.float32), ["iou", "pixel_accuracy"])
    share = np.mean(masks[20:] == 0)
    metrics = found["baselines"][0]["metrics"]
    assert metrics["test_pixel_accuracy"] == pytest.approx(share)
    assert metrics["test_iou"] == pytest.approx(share / 2)  # the other class has none
    assert found["baselines"][0]["gains"]["pixel_accuracy"]["mean"] == pytest.approx(1 - share)
    assert verdict.title == "Better than always answering 0, the most frequent class"
