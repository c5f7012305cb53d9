"""Texts of a table: their tokens, against the library's own, and runs on them from CSV to predictions."""

from __future__ import annotations

import importlib
import json
import os
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, f1_score

import trainwright
from late import Late
from small_runs import SMALL, assert_same, whole_and_resumed
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import PLAIN, DataBundle
from trainwright.datasets.text_table import TextTableDataset, TextTableParams
from trainwright.errors import DataError
from trainwright.testing.dataset_suite import DatasetSuite

tokenizers = Late(lambda: importlib.import_module("tokenizers"))
GOOD, BAD = ["lovely", "superb", "fine", "Käse"], ["awful", "dull", "sad", "漢字"]


def frame(rows: int = 60) -> pd.DataFrame:
    """Return reviews whose label their words tell; one is empty, and two look like numbers."""
    draw = np.random.default_rng(0)
    labels = draw.choice(["good", "bad"], rows)
    texts = [
        " ".join(draw.choice([*(GOOD if label == "good" else BAD), "the", "film"], draw.integers(2, 12)))
        for label in labels
    ]
    texts[:3] = ["", "007", "1e3"]
    scores = [sum(word in GOOD for word in text.split()) / 2 for text in texts]
    weights = np.arange(rows) % 3 + 0.5
    return pd.DataFrame({"review": texts, "label": labels, "score": scores, "weight": weights})


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINWRIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def dataset(path: Path, config: Any = None, **params: Any) -> TextTableDataset:
    data = DataConfig(**{"type": "text_table", "path": str(path), "target": "label", **(config or {})})
    return TextTableDataset(data, TextTableParams(**{"text": "review", "max_length": 24, **params}))


def loaded(folder: Path, config: Any = None, **params: Any) -> DataBundle:
    path = folder / "reviews.csv"
    frame().to_csv(path, index=False)
    return dataset(path, config, **params).load(PLAIN)


def texts_of(bundle: DataBundle, split: str) -> list[str]:
    return [frame()["review"][row] for row in bundle.rows[split]]  # type: ignore[index]


class TestBytes(DatasetSuite):
    """The bytes of a CSV file's texts."""

    def make(self, folder: Path) -> TextTableDataset:
        frame().to_csv(folder / "reviews.csv", index=False)
        return dataset(folder / "reviews.csv")

    def raw_rows(self, folder: Path) -> Any:
        return frame()


def test_bytes_are_cut_and_padded_and_masked(tmp_path: Path) -> None:
    bundle = loaded(tmp_path)
    batch = bundle.splits["val"].take(np.arange(6))
    for i, text in enumerate(texts_of(bundle, "val")[:6]):
        raw = list(text.encode())[:24]
        assert batch["input_ids"][i].tolist() == raw + [0] * (24 - len(raw))
        assert batch["attention_mask"][i].tolist() == [1] * max(1, len(raw)) + [0] * (24 - max(1, len(raw)))
    assert (bundle.info.vocab_size, bundle.info.classes) == (256, ["bad", "good"])
    cut = sum(len(text.encode()) >= 24 for text in frame()["review"])
    assert (
        f"60 texts, {np.median([min(24, len(t.encode())) for t in frame()['review']]):.0f} " in bundle.columns
    )
    assert f"{cut} fill data.max_length" in bundle.columns


def test_bpe_learns_from_the_training_texts_alone(tmp_path: Path) -> None:
    bundle = loaded(tmp_path, tokenizer="bpe", vocab_size=300)
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|padding|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts_of(bundle, "train"), trainer)
    made.enable_truncation(24)
    made.enable_padding(length=24, pad_id=0)
    for name in ("train", "test"):
        texts = texts_of(bundle, name)
        batch = bundle.splits[name].take(np.arange(len(texts)))  # type: ignore[index]
        theirs = made.encode_batch(texts)
        assert batch["input_ids"].tolist() == [one.ids for one in theirs]
        filled = [[1, *one.attention_mask[1:]] for one in theirs]  # an empty text has one token
        assert batch["attention_mask"].tolist() == filled


def test_a_tokenizer_adds_what_its_template_says(tmp_path: Path) -> None:
    words = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "the", "film", *GOOD, *BAD]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", None, [("[CLS]", 1), ("[SEP]", 2)]
    )
    made.save(str(tmp_path / "tokenizer.json"))
    bundle = loaded(tmp_path, tokenizer=str(tmp_path / "tokenizer.json"), max_length=6)
    made.enable_truncation(6)
    made.enable_padding(length=6, pad_id=3)
    theirs = made.encode_batch(texts_of(bundle, "train"))
    batch = bundle.splits["train"].take(np.arange(len(theirs)))
    assert batch["input_ids"].tolist() == [one.ids for one in theirs]
    assert batch["attention_mask"].tolist() == [one.attention_mask for one in theirs]
    assert {ids[-1] for ids in batch["input_ids"].tolist()} == {2, 3}  # a text that is cut keeps its end
    with pytest.raises(DataError, match=r"max_length: 2 given, but the tokenizer adds 2 tokens"):
        loaded(tmp_path, tokenizer=str(tmp_path / "tokenizer.json"), max_length=2)


@pytest.mark.parametrize(
    ("config", "params", "message"),
    [
        ({}, {"text": "revue"}, r"data\.text: there is no column 'revue'; did you mean 'review'"),
        ({}, {"tokenizer": "words"}, r"tokenizer: 'words' given; allowed: bytes, bpe"),
        ({}, {"vocab_size": 300}, r"vocab_size: 300 given, but the tokenizer is bytes"),
        ({"features": ["score"]}, {}, r"data\.features needs named columns"),
        ({"columns": {"score": "ignore"}}, {}, r"data\.columns is for tables of features"),
        ({"task": "regression"}, {}, r"'label' holds text, but the task is regression"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, config: Any, params: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        loaded(tmp_path, config, **params)


def test_the_same_text_in_two_splits_is_said(tmp_path: Path) -> None:
    twice = pd.concat([frame(), frame()])
    twice.to_parquet(tmp_path / "reviews.parquet")
    bundle = dataset(tmp_path / "reviews.parquet").load(PLAIN)
    assert any("val rows are also train rows" in line for line in bundle.warnings)


SETTINGS = {
    "data": {"type": "text_table", "text": "review", "target": "label", "max_length": 24},
    "model": {"type": "lstm", "hidden_size": 8, "embedding_dim": 6, "dropout": 0.2, "bidirectional": True},
    "training.microbatch_size": 5,
}


def test_a_run_ends_with_the_same_bits_and_predicts_raw_rows(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "reviews.csv", index=False)
    own = {"data.path": str(tmp_path / "reviews.csv"), "data.tokenizer": "bpe", "data.vocab_size": 270}
    own |= {"data.split.val": 0.3, "data.weight": "weight", "distributed.virtual.data": 2}
    whole, resumed = whole_and_resumed(tmp_path / "runs", {**SETTINGS, **own})
    assert_same(resumed, whole)
    model, rows = trainwright.load(whole), frame()
    found = model.evaluate(rows=rows).metrics
    predicted = model.predict(rows)["prediction"]
    weights = rows["weight"]
    assert found["test_accuracy"] == pytest.approx(
        accuracy_score(rows["label"], predicted, sample_weight=weights)
    )
    assert found["test_f1"] == pytest.approx(
        f1_score(rows["label"], predicted, pos_label="bad", sample_weight=weights)
    )
    texts = rows["review"].tolist()
    np.testing.assert_array_equal(model.predict_proba(texts), model.predict_proba(rows))
    assert model.predict([{"review": texts[5]}])["prediction"][0] == predicted[5]
    assert model.tokenizer.to_json() == json.loads(json.dumps(model.preparation.to_json()))["tokenizer"]
    written = trainwright.predict_file(whole, tmp_path / "reviews.csv", tmp_path / "out.csv", keep=["review"])
    out = pd.read_csv(tmp_path / "out.csv", keep_default_na=False, dtype={"review": str})
    assert written.rows == 60
    assert out["prediction"].tolist() == predicted.tolist()
    assert out["review"].tolist() == texts
    strange = Path(os.fsdecode(os.fsencode(tmp_path) + b"/more/\xff.txt"))  # no UTF-8
    strange.parent.mkdir()
    strange.write_text(texts[5], encoding="utf-8")
    for name, read in (("out.csv", pd.read_csv), ("out.parquet", pd.read_parquet)):
        trainwright.predict_file(whole, strange.parent, tmp_path / name)
        assert read(tmp_path / name)["file"].tolist() == [f"{tmp_path}/more/\\xff.txt"]


def test_texts_in_folders_are_those_of_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One folder to split, and folders of splits; against the same texts in a table."""
    monkeypatch.chdir(tmp_path)
    texts = frame().sort_values("label", kind="stable")
    for number, (text, label) in enumerate(zip(texts["review"], texts["label"], strict=True)):
        for root in ("all", f"split/{'valid' if number % 5 == 0 else 'train'}"):
            path = tmp_path / root / label / ("more" if root == "all" else "") / f"{number:03}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8-sig" if number % 2 else "utf-8")
    (tmp_path / "all" / "good" / "notes.md").write_text("no text")
    texts.to_csv("texts.csv", index=False)

    def arrays(bundle: DataBundle) -> dict[str, Any]:
        batches = {name: split.take(np.arange(len(split))) for name, split in bundle.splits.items()}
        return {
            f"{name} {key}": array.tolist() for name, one in batches.items() for key, array in one.items()
        }

    folder = {"type": "text_folder", "path": "all"}
    caplog.set_level("INFO", "trainwright")
    assert arrays(dataset(tmp_path, folder).load(PLAIN)) == arrays(
        dataset(tmp_path / "texts.csv").load(PLAIN)
    )
    assert "all that are no texts are left out: 1 .md" in caplog.text
    splits = dataset(tmp_path, {**folder, "path": "split"}).load(PLAIN).splits
    assert {name: len(split) for name, split in splits.items()} == {"train": 48, "val": 12}
    for change, message in (
        (lambda: (tmp_path / "all/good/x.txt").write_bytes(b"caf\xe9"), r"x\.txt is not in UTF-8 \(byte 3\)"),
        ((tmp_path / "all/none").mkdir, r"all/none holds no text: no file that ends in \.txt"),
    ):
        change()  # type: ignore[no-untyped-call]
        with pytest.raises(DataError, match=message):
            dataset(tmp_path, folder).load(PLAIN)
        (tmp_path / "all/good/x.txt").unlink(missing_ok=True)
    with pytest.raises(
        DataError, match=r"texts\.csv is not a folder on this machine; text_folder reads such"
    ):
        dataset(tmp_path / "texts.csv", {"type": "text_folder"}).load(PLAIN)


@pytest.mark.soak
def test_two_processes_give_the_same_bits(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "reviews.csv", index=False)
    own = {**SETTINGS, "data.path": str(tmp_path / "reviews.csv"), "distributed.virtual.data": 2}
    own |= {"data.tokenizer": "bpe", "data.vocab_size": 270}
    own |= {"model": {"type": "text_transformer", "hidden_size": 12, "num_heads": 2}}
    alone = trainwright.train(SMALL, own, runs_dir=tmp_path / "alone")
    both = trainwright.train(SMALL, {**own, "distributed.nproc": 2}, runs_dir=tmp_path / "both")
    assert (both.digest, both.metrics) == (alone.digest, alone.metrics)


def test_the_example_learns_in_a_small_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = Path(__file__).parents[2] / "examples" / "text_classification.py"
    small = ["data.max_length=24", "data.vocab_size=400", "model.hidden_size=16", "model.num_layers=1"]
    small += ["training.epochs=3", "training.threads=1", "training.learning_rate=0.01"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(example), *small])
    made = runpy.run_path(str(example))
    made["main"].__globals__["PACKAGES"] = ("http", "logging")
    made["main"]()
    run = trainwright.get("last")
    rows = pd.read_csv("docstrings.csv")
    assert run.metrics["test_accuracy"] > rows["package"].value_counts(normalize=True).max()
    assert f"{len(rows)} docstrings; {run.metrics['test_accuracy']:.3f}" in capsys.readouterr().out
