"""Text in tokens: against the library itself, and every byte of the text counted once."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from late import Late
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import DataBundle
from trainwright.datasets.text import TextDataset, TextParams, documents, tokens
from trainwright.datasets.texts.tokenizers import ByteTokenizer, LibraryTokenizer, from_json
from trainwright.errors import DataError
from trainwright.testing.dataset_suite import DatasetSuite
from trainwright.types import INPUT_IDS, LABELS, NO_LABEL, TEXT_BYTES

tokenizers = Late(lambda: importlib.import_module("tokenizers"))
PLAIN = Path(argparse.__file__).read_text()[:40_000]
TEXTS = [PLAIN[:18_000], "Käse, 漢字 und 🙂 …\n" * 40 + PLAIN[18_000:30_000], PLAIN[30_000:]]


def write(folder: Path) -> Path:
    (folder / "text").mkdir(exist_ok=True)
    for i, text in enumerate(TEXTS):
        (folder / "text" / f"{i}.txt").write_text(text)
    return folder / "text"


def dataset(path: Path | str, config: Any = None, **params: Any) -> TextDataset:
    options = {"length": 16, "tokenizer": "bpe", "vocab_size": 400, **params}
    return TextDataset(DataConfig(type="text", path=str(path), **(config or {})), TextParams(**options))


def bpe(texts: list[str], vocabulary: int = 400) -> Any:
    """Return a tokenizer that the library trains."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def tokens_in(bundle: DataBundle, split: str) -> list[int]:
    """Return all tokens of a split, as its windows have them."""
    windows = bundle.splits[split]  # type: ignore[index]
    batch = windows.take(np.arange(len(windows)))
    labels = batch[LABELS].reshape(-1)
    return [int(batch[INPUT_IDS][0, 0]), *labels[labels != NO_LABEL].tolist()]


class TestTokens(DatasetSuite):
    def make(self, folder: Path) -> TextDataset:
        words = np.random.default_rng(0).integers(0, 10**6, 4000)  # no two windows are equal
        (folder / "words.txt").write_text(" ".join(map(str, words)))
        return dataset(folder / "words.txt")


def test_tokens_are_those_of_the_library_trained_on_the_training_text(tmp_path: Path) -> None:
    bundle = dataset(write(tmp_path)).load(PLAIN)
    whole = "".join(TEXTS).encode()
    edges = [int(len(whole) * share) for share in (0.8, 0.9)]
    last = len(whole) - len(TEXTS[2].encode())
    assert edges[0] > last  # the cut is in the last document
    train = [TEXTS[0], TEXTS[1], whole[last : edges[0]].decode()]
    expected = bpe(train)
    end = expected.token_to_id("<|endoftext|>")
    parts = [expected.encode(text).ids for text in train]
    found = [
        [*parts[0], end, *parts[1], end, *parts[2]],
        expected.encode(whole[edges[0] : edges[1]].decode()).ids,
        [*expected.encode(whole[edges[1] :].decode()).ids, end],
    ]
    assert bundle.info.outputs == 400
    for split, ids in zip(("train", "val", "test"), found, strict=True):
        read = tokens_in(bundle, split)
        assert read == ids[: len(read)]
        assert len(read) == (len(ids) if split != "train" else (len(ids) - 1) // 16 * 16 + 1)
    assert bundle.tokenizer is not None
    assert bundle.tokenizer["tokenizer"] == json.loads(expected.to_str())


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "bytes"])
def test_every_byte_of_the_text_is_counted_once(kind: str, tmp_path: Path) -> None:
    """All but those of the first token, whatever the tokenizer does to the text."""
    options: dict[str, Any] = {}
    if kind == "wordpiece":
        options = {"tokenizer": str(word_pieces(tmp_path)), "vocab_size": None, "end_of_text": "[SEP]"}
    elif kind == "bytes":
        options = {"tokenizer": "bytes", "vocab_size": None, "end_of_text": True}
    bundle = dataset(write(tmp_path), {"split": {"val": 0.4, "test": 0}}, **options).load(PLAIN)
    windows = bundle.splits["val"]
    whole = "".join(TEXTS).encode()
    text = whole[int(len(whole) * 0.6) :]
    counted = int(windows.take(np.arange(len(windows)))[TEXT_BYTES].sum())
    first = from_json(bundle.tokenizer).decode(np.array([tokens_in(bundle, "val")[0]]))
    assert 0 < len(text) - counted <= len(first.encode()) + 8  # and the space after it
    if kind != "wordpiece":
        assert len(text) - counted == len(first.encode())
        read = from_json(bundle.tokenizer).decode(np.array(tokens_in(bundle, "val")))
        assert read == text.decode()


def word_pieces(folder: Path) -> Path:
    """Write a tokenizer that lowers case, drops white space, and knows few words."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[UNK]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator([PLAIN[:5000]], trainer)
    tokenizer.enable_truncation(5)  # which must not be used
    tokenizer.save(str(folder / "words.json"))
    return folder / "words.json"


def test_the_bytes_of_tokens_are_those_of_their_offsets(tmp_path: Path) -> None:
    """Also where a character is cut into tokens, and where the text names a special token."""
    text = "naïve 漢字🙂 <|endoftext|> tail\n"
    for tokenizer in (
        LibraryTokenizer(bpe(TEXTS[:1]).to_str(), "<|endoftext|>"),
        LibraryTokenizer(word_pieces(tmp_path).read_text(), None),
    ):
        (encoded,) = tokenizer.encode([text.encode()])
        assert encoded.text_bytes.sum() == len(text.encode())
    byte_level = LibraryTokenizer(bpe(TEXTS[:1]).to_str(), None)
    (encoded,) = byte_level.encode([text.encode()])
    lengths = byte_level.token_bytes()
    assert lengths is not None
    assert lengths[encoded.ids].tolist() == encoded.text_bytes.tolist()
    pieces = [len(byte_level.decode(np.array([token])).encode()) for token in encoded.ids[:2]]
    assert lengths[encoded.ids[:2]].tolist() == pieces


def test_a_table_has_its_documents_in_a_column(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    frame = pandas.DataFrame({"body": [TEXTS[0], None, *TEXTS[1:]], "n": range(4)})
    frame.to_parquet(tmp_path / "one" / "rows.parquet")
    frame.to_csv(tmp_path / "two" / "rows.csv", index=False)
    expected = dataset(write(tmp_path)).load(PLAIN)
    for path in ("one/rows.parquet", "two/rows.csv"):
        found = dataset(tmp_path / path, column="body").load(PLAIN)
        assert {n: s.fingerprint() for n, s in found.splits.items()} == {
            n: s.fingerprint() for n, s in expected.splits.items()
        }
    with pytest.raises(DataError, match=r"data.params.column: there is no column 'text'; there are: body, n"):
        dataset(tmp_path / "one/rows.parquet", column="text").load(PLAIN)
    with pytest.raises(DataError, match=r"column 'n' holds 0.* in row 0; texts are needed"):
        dataset(tmp_path / "one/rows.parquet", column="n").load(PLAIN)


def test_a_pattern_names_files(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "other.md").write_text("not this one")
    as_folder, as_pattern = (dataset(path).load(PLAIN) for path in (folder, f"{folder}/*.txt"))
    assert as_folder.splits["train"].fingerprint() == as_pattern.splits["train"].fingerprint()
    with pytest.raises(DataError, match=r"data.path: no file matches .*\*.rst"):
        dataset(f"{folder}/*.rst").load(PLAIN)


def test_tokens_are_made_once_and_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path)
    made = dataset(path).load(PLAIN)
    fingerprints = {name: split.fingerprint() for name, split in made.splits.items()}
    with monkeypatch.context() as patch:
        patch.setattr(tokens, "_write", lambda *_: pytest.fail("made again"))
        again = dataset(path).load(PLAIN)
    assert {name: split.fingerprint() for name, split in again.splits.items()} == fingerprints
    assert isinstance(again.splits["train"]._text.base, np.memmap)  # type: ignore[attr-defined]
    (content,) = (tmp_path / "cache" / "data").glob("*/content")
    damaged = bytearray(content.read_bytes())
    damaged[100] ^= 1
    del again
    content.write_bytes(damaged)
    mended = dataset(path).load(PLAIN)
    assert {name: split.fingerprint() for name, split in mended.splits.items()} == fingerprints
    (path / "1.txt").write_text(TEXTS[1].replace("def", "fed", 1))
    changed = dataset(path).load(PLAIN)
    assert changed.splits["train"].fingerprint() != fingerprints["train"]


def test_long_texts_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut after lines, and within a long line between characters; no byte is lost."""
    text = "a line\n" * 30 + "é" * 100 + "\nend"
    (tmp_path / "long.txt").write_text(text)
    monkeypatch.setattr(documents, "PIECE_BYTES", 51)
    pieces = list(documents.Documents(str(tmp_path / "long.txt"), "*", None).pieces())
    assert b"".join(piece.content for piece in pieces).decode() == text
    assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(len(piece.content) <= 51 and piece.content.decode() for piece in pieces)
    assert pieces[0].content == b"a line\n" * 7
    monkeypatch.setattr("trainwright.datasets.text._IN_MEMORY", 0)
    bundle = dataset(tmp_path / "long.txt", tokenizer="bytes", vocab_size=None, length=8).load(PLAIN)
    assert bytes(bundle.splits["train"]._text) == text.encode()[: int(len(text.encode()) * 0.8)]  # type: ignore[attr-defined]
    assert bundle.info.outputs == 256
    assert bundle.tokenizer is None


def test_tokens_of_many_bytes_share_them(tmp_path: Path) -> None:
    """16 bits count the bytes of a token; what is beyond goes to the next one."""
    encoded = [
        (tokens.Encoded(np.array([], np.int64), np.array([], np.int64)), 3),
        (tokens.Encoded(np.array([1, 2, 3]), np.array([70_000, 1, 1])), 70_002),
    ]
    (found,) = tokens._capped(encoded)
    assert found.text_bytes.tolist() == [65_535, 4469, 1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"tokenizer": "words"},
            r"data.params.tokenizer: 'words' given; allowed: bytes, bpe .*tokenizer.json",
        ),
        ({"tokenizer": "bytes"}, "data.params.vocab_size: 400 given, but the tokenizer is bytes"),
        ({"tokenizer": "none.json", "vocab_size": None}, "data.params.tokenizer: none.json: .*no such file"),
        (
            {"end_of_text": "</s>", "tokenizer": "bytes", "vocab_size": None},
            "'</s>' given, but bytes have no",
        ),
        ({"length": 4000}, r"the val text has \d+ tokens, too few .* and the token after it"),
    ],
)
def test_options_that_do_not_fit_are_said(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        dataset(write(tmp_path), **options).load(PLAIN)


def test_a_token_or_a_text_that_cannot_be_is_said(tmp_path: Path) -> None:
    options: dict[str, Any] = {"tokenizer": str(word_pieces(tmp_path)), "vocab_size": None}
    with pytest.raises(DataError, match=r"words.json: it has no token '<\|endoftext\|>'; .*\[SEP\]"):
        dataset(write(tmp_path), **options).load(PLAIN)
    (tmp_path / "text" / "9.txt").write_bytes(b"caf\xe9 " * 3)
    with pytest.raises(DataError, match=r"9.txt is not UTF-8: .*give tokenizer: bytes"):
        dataset(tmp_path / "text").load(PLAIN)
    (tmp_path / "no.json").write_text("{}")
    with pytest.raises(DataError, match=r"no.json: this is not a tokenizer.json"):
        dataset(write(tmp_path), tokenizer=str(tmp_path / "no.json"), vocab_size=None).load(PLAIN)


def test_bytes_with_an_end_are_one_more_token() -> None:
    tokenizer = ByteTokenizer(end_of_text=True)
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (257, 256)
    assert tokenizer.decode(np.array([104, 105, 256])) == "hi"
    assert from_json(tokenizer.to_json()).vocab_size == 257
    assert from_json(None).vocab_size == 256


def test_a_text_that_changes_while_tokens_are_made_of_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, content = write(tmp_path), documents.Documents.content
    texts = [folder / "0.txt"]  # changed after it was hashed

    def changed(self: documents.Documents) -> documents.Content:
        known = content(self)
        while texts:
            texts.pop().write_text("another text\n" * 1000)
        return known

    monkeypatch.setattr(documents.Documents, "content", changed)
    with pytest.raises(DataError, match="was changed while it was tokenized"):
        dataset(folder, vocab_size=393).load(PLAIN)  # which no other test has made
