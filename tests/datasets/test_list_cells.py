"""Columns that hold lists: words with their tags, against the library's own words, and labels of rows."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.preprocessing import MultiLabelBinarizer

import trainwright
from late import Late
from small_runs import SMALL
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import PLAIN, DataBundle
from trainwright.datasets.parquet import ParquetDataset, ParquetParams
from trainwright.datasets.text_table import TextTableDataset, TextTableParams
from trainwright.errors import DataError

tokenizers = Late(lambda: importlib.import_module("tokenizers"))
LENGTH, NONE = 16, -100


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def frame(rows: int = 60) -> pd.DataFrame:
    """Return sentences in words, whose tags the words tell; one has no word, and one more than is kept."""
    draw = np.random.default_rng(0)
    words = [
        draw.choice(["Anna", "Käthe", "sees", "Rome"], draw.integers(1, 5)).tolist() for _ in range(rows)
    ]
    words[0], words[1] = [], ["Anna", "sees"] * 6
    tag = {"Anna": "B-PER", "Käthe": "B-PER", "sees": "O", "Rome": "B-LOC"}
    return pd.DataFrame(
        {
            "words": words,
            "tags": [[tag[word] for word in row] for row in words],
            "said": [sorted({*row} - {"sees"}) for row in words],
            "text": [" ".join(row) for row in words],
            "count": [float(len(row)) for row in words],
        }
    )


def write(data: pd.DataFrame) -> str:
    pq.write_table(pa.Table.from_pandas(data, preserve_index=False), "t.parquet")
    return "t.parquet"


def load(data: pd.DataFrame, target: str = "tags", text: str = "words", **more: Any) -> DataBundle:
    config = {key: more.pop(key) for key in ("task", "missing_target") if key in more}
    section = DataConfig(type="text_table", path=write(data), target=target, **config)
    return TextTableDataset(section, TextTableParams(text=text, max_length=LENGTH, **more)).load(PLAIN)


def codes(bundle: DataBundle, tags: list[str]) -> list[int]:
    assert bundle.info.classes is not None
    return [bundle.info.classes.index(tag) for tag in tags]


def test_the_first_byte_of_a_word_has_its_tag() -> None:
    data, bundle = frame(), load(frame())
    assert (bundle.info.task, bundle.info.classes) == ("token_classification", ["B-LOC", "B-PER", "O"])
    for name, split in bundle.splits.items():
        batch = split.take(np.arange(len(split)))
        for i, row in enumerate(bundle.rows[name]):
            text, wanted, at = " ".join(data["words"][row]).encode(), np.full(LENGTH, NONE), 0
            for word, tag in zip(data["words"][row], codes(bundle, data["tags"][row]), strict=True):
                if at < LENGTH:
                    wanted[at] = tag
                at += len(word.encode()) + 1
            assert bytes(batch["input_ids"][i].astype(np.uint8)).rstrip(b"\0") == text[:LENGTH]
            assert batch["labels"][i].tolist() == wanted.tolist()


@pytest.mark.parametrize("kind", ["bpe", "words.json"])
def test_words_are_those_of_the_library(kind: str) -> None:
    """Of each word, the first token by the library's `word_ids` has its tag; templates and pieces have none."""
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(
            {"[UNK]": 0, "[CLS]": 1, "Anna": 2, "se": 3, "##es": 4}, unk_token="[UNK]"
        )
    )
    made.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A", None, [("[CLS]", 1)])
    made.save("words.json")
    data, bundle = frame(), load(frame(), tokenizer=kind, **({"vocab_size": 260} if kind == "bpe" else {}))
    assert bundle.preparation is not None
    if kind == "bpe":
        made = tokenizers.Tokenizer.from_str(bundle.preparation.tokenizer._content)  # type: ignore[attr-defined]
    made.enable_truncation(LENGTH)
    batch = bundle.splits["train"].take(np.arange(len(bundle.rows["train"])))
    for i, row in enumerate(bundle.rows["train"]):
        theirs = made.encode(data["words"][row], is_pretokenized=True)
        tags, seen, wanted = codes(bundle, data["tags"][row]), set(), np.full(LENGTH, NONE)
        for place, word in enumerate(theirs.word_ids):
            if word is not None and word not in seen:
                seen.add(word)
                wanted[place] = tags[word]
        assert batch["input_ids"][i].tolist()[: len(theirs.ids)] == theirs.ids
        assert batch["labels"][i].tolist() == wanted.tolist()


def test_tags_may_be_numbers_of_classes() -> None:
    data = frame()
    data["tags"] = [[None if tag == "O" else len(tag) % 2 for tag in row] for row in data["tags"]]
    bundle = load(data)
    batch = bundle.splits["train"].take(np.arange(len(bundle.rows["train"])))
    assert bundle.info.classes == [0, 1]
    assert sorted(set(batch["labels"].reshape(-1).tolist())) == [NONE, 1]


@pytest.mark.parametrize(
    ("change", "more", "message"),
    [
        (
            ("tags", [["O"] * 5]),
            {},
            r"'tags' has 5 tags in row 3, which has \d words; give one for each word",
        ),
        (("tags", [None]), {}, r"'tags': None in row 3 is not a list; an empty list is written \[\]"),
        (("words", [None]), {}, r"column 'words': None in row 3 is not a list"),
        (("said", [None]), {"target": "said", "task": "multilabel"}, "'said': None in row 3 is not a list"),
        (
            ("said", [["x", None]]),
            {"target": "said", "text": "text", "task": "multilabel"},
            r"missing label, \['x', None\], in row 3; leave",
        ),
        (
            ("count", [1.0]),
            {"target": "count", "task": "token_classification"},
            "'count' holds no lists, but",
        ),
        (
            ("said", [[]]),
            {"target": "said", "text": "text", "task": "regression"},
            "holds lists, of labels .* but",
        ),
    ],
)
def test_lists_that_do_not_fit_are_refused(change: Any, more: Any, message: str) -> None:
    data = frame()
    data[change[0]] = [*data[change[0]][:2], *change[1], *data[change[0]][3:]]
    with pytest.raises(DataError, match=message):
        load(data, **more)


@pytest.mark.parametrize("table", ["text", "columns"])
def test_lists_of_labels_are_columns_of_0_and_1(table: str) -> None:
    data = frame()
    wanted = MultiLabelBinarizer().fit(data["said"])
    if table == "text":
        bundle = load(data, "said", "text")
    else:
        config = DataConfig(path=write(data), target="said", exclude=["words", "tags", "text"])
        bundle = ParquetDataset(config, ParquetParams()).load(PLAIN)
    assert (bundle.info.task, bundle.info.classes) == ("multilabel", wanted.classes_.tolist())
    for name, split in bundle.splits.items():
        rows = data.iloc[bundle.rows[name]]
        targets = split.take(np.arange(len(split)))["target"]
        np.testing.assert_array_equal(targets, wanted.transform(rows["said"]))
        assert bundle.preparation is not None
        np.testing.assert_array_equal(bundle.preparation.targets(rows), targets)
    assert bundle.preparation is not None
    with pytest.raises(
        DataError, match="has 'Nero' in row 1, a label without training rows; training knows Anna"
    ):
        bundle.preparation.targets([{"said": ["Nero"]}])


def test_a_column_of_lists_is_no_feature() -> None:
    with pytest.raises(DataError, match=r"column 'words' holds list<.*; give each of its values a column"):
        ParquetDataset(DataConfig(path=write(frame()), target="count"), ParquetParams()).load(PLAIN)


@pytest.mark.slow
def test_a_model_answers_for_each_word(tmp_path: Path) -> None:
    data = frame()
    section = {"type": "text_table", "path": write(data), "text": "words", "target": "tags"}
    config = {
        **SMALL,
        "data": {**section, "max_length": LENGTH},
        "model": {"type": "lstm", "hidden_size": 16},
        "training": {**SMALL["training"], "learning_rate": 0.05},
    }
    model = trainwright.load(trainwright.train(config, runs_dir=tmp_path / "runs"))
    answers = model.predict(data)["prediction"].tolist()
    assert [len(row) for row in answers] == [len(row) for row in data["words"]]
    assert answers[1][4:] == [None] * 8, "words beyond max_length have no answer"
    pairs = [
        (answer, tag)
        for row, tags in zip(answers, data["tags"], strict=True)
        for answer, tag in zip(row, tags, strict=True)
        if answer is not None
    ]
    share = float(np.mean([answer == tag for answer, tag in pairs]))
    assert share > 0.6
    assert model.evaluate(rows=data).metrics["test_token_accuracy"] == pytest.approx(share)
