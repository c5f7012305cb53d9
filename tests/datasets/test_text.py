"""Plain text in windows: every byte is where it was, and validation counts each byte once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainwright.config.schema import DataConfig
from trainwright.datasets.base import PLAIN
from trainwright.datasets.text import TextDataset, TextParams, Windows
from trainwright.errors import DataError
from trainwright.testing.dataset_suite import DatasetSuite
from trainwright.types import INPUT_IDS, LABELS, NO_LABEL

TEXT = bytes(np.random.default_rng(0).integers(0, 256, 1000, dtype=np.uint8))


def write(folder: Path) -> Path:
    path = folder / "words.txt"
    path.write_bytes(TEXT)
    return path


def dataset(path: Path, length: int = 8, pattern: str = "*.txt", **settings: Any) -> TextDataset:
    return TextDataset(
        DataConfig(type="text", path=str(path), **settings), TextParams(length=length, pattern=pattern)
    )


class TestText(DatasetSuite):
    def make(self, folder: Path) -> TextDataset:
        return dataset(write(folder))


def test_the_text_is_cut_in_its_own_order(tmp_path: Path) -> None:
    splits = dataset(write(tmp_path)).load(PLAIN).splits
    texts = {"train": TEXT[:800], "val": TEXT[800:900], "test": TEXT[900:]}
    assert splits.keys() == texts.keys()
    for name, split in splits.items():
        batch = split.take(np.arange(len(split)))
        for row, (tokens, labels) in enumerate(zip(batch[INPUT_IDS], batch[LABELS], strict=True)):
            start = row * 8 if labels[0] != NO_LABEL else len(texts[name]) - 9
            assert bytes(tokens.astype(np.uint8)) == texts[name][start : start + 8]
            known = labels != NO_LABEL
            following = np.frombuffer(texts[name][start + 1 : start + 9], np.uint8)
            assert labels[known].tolist() == following[known].tolist()


@pytest.mark.parametrize("size", [9, 10, 16, 17, 18, 100])
@pytest.mark.parametrize("whole", [True, False])
def test_each_byte_is_predicted_once(size: int, whole: bool) -> None:
    """All but the first in validation; in training, what fills no window is left out."""
    text = np.arange(size, dtype=np.uint8)
    split = Windows(text, 8, every_byte=whole)
    labels = split.take(np.arange(len(split)))[LABELS]
    predicted = labels[labels != NO_LABEL].tolist()
    assert predicted == list(range(1, size if whole else 1 + (size - 1) // 8 * 8))


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a.txt").write_bytes(TEXT[:300])
    (tmp_path / "b" / "c.txt").write_bytes(TEXT[300:700])
    (tmp_path / "d.txt").write_bytes(TEXT[700:])
    (tmp_path / "e.md").write_bytes(b"not this one")
    folder, file = tmp_path, write(tmp_path / "b")
    (tmp_path / "one").mkdir()
    file.rename(tmp_path / "one" / "words.md")
    in_parts = dataset(folder).load(PLAIN)
    as_one = dataset(tmp_path / "one", pattern="*.md").load(PLAIN)
    for name, split in in_parts.splits.items():
        assert split.fingerprint() == as_one.splits[name].fingerprint()


def test_splits_of_their_own(tmp_path: Path) -> None:
    train, val = write(tmp_path), tmp_path / "val.txt"
    val.write_bytes(TEXT[:50])
    config = DataConfig(type="text", train_path=str(train), val_path=str(val))
    splits = TextDataset(config, TextParams(length=10)).load(PLAIN).splits
    assert {name: len(split) for name, split in splits.items()} == {"train": 99, "val": 5}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"length": 100}, "the val text has 100 bytes, too few for a sample of data.params.length: 100"),
        ({"length": 9999}, r"the train text has .*; give more text, or a smaller length$"),
        ({"task": "classification"}, "data.task does not apply to text"),
        ({"features": ["a"]}, "data.features does not apply to text"),
        ({"split": {"group": "a"}}, "data.split.group does not apply to text"),
        ({"split": {"folds": 2, "fold": 0}}, "data.split.folds does not apply to text"),
    ],
)
def test_what_cannot_be_done_is_refused(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        dataset(write(tmp_path), **settings).load(PLAIN)


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file in this folder matches data.params.pattern: \*.txt"):
        dataset(tmp_path).load(PLAIN)


def test_another_text_is_cut_as_the_tokenizer_of_the_run_does(tmp_path: Path) -> None:
    """Of two files with an end each, every token but the first is predicted once, and its bytes are counted."""
    texts = [b"one two three", b"four"]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_bytes(text)
    split = dataset(tmp_path / "gone").samples(str(tmp_path), {"kind": "bytes", "end_of_text": True})
    batch = split.take(np.arange(len(split)))
    tokens = [*texts[0], 256, *texts[1], 256]
    assert batch[LABELS][batch[LABELS] != NO_LABEL].tolist() == tokens[1:]
    assert batch["text_bytes"].sum() == len(texts[0]) + len(texts[1]) - 1
    (tmp_path / "1.txt").write_bytes(b"a\0b")
    with pytest.raises(DataError, match=r"1\.txt is not plain text: it contains a zero byte"):
        dataset(tmp_path / "gone").samples(str(tmp_path), None)


def test_tokens_of_others_are_not_taken_for_bytes(tmp_path: Path) -> None:
    np.arange(40_000, dtype=np.uint16).tofile(tmp_path / "train.bin")
    with pytest.raises(
        DataError, match=r"train\.bin holds numbers, not text: perhaps tokens in uint16, as nanoGPT"
    ):
        TextDataset(DataConfig(type="text", path=str(tmp_path / "train.bin")), TextParams()).load(PLAIN)
    (tmp_path / "plain.bin").write_text("Käse und 漢字\n" * 100_000)
    found = TextDataset(DataConfig(type="text", path=str(tmp_path / "plain.bin")), TextParams()).load(PLAIN)
    assert len(found.splits["train"]) > 1000
