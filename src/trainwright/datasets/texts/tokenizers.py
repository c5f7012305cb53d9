"""Tokenizers: text in UTF-8 becomes tokens, which are counted in bytes of the text that they stand for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import PurePath
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trainwright.datasets.samples.files import read_bytes
from trainwright.datasets.tables.table import nearest
from trainwright.digest import sha256_bytes, sha256_json
from trainwright.errors import DataError
from trainwright.require import require
from trainwright.types import Ids

BYTES, BPE, TOKENS = "bytes", "bpe", "tokens"
END_OF_TEXT = "<|endoftext|>"
DEFAULT_VOCABULARY = 8192
PADDING = "<|padding|>"
_PADDINGS = (PADDING, "[PAD]", "<pad>", "<|pad|>")  # what tokenizers call it
_VALUES = 256  # of a byte
_BATCH = 1024  # texts that are encoded together
_UTF8_LENGTHS = ((0x80, 1), (0x800, 2), (0x10000, 3))  # characters below this code take so many bytes


class Encoded(NamedTuple):
    """The tokens of a text, (tokens,) int64, and the number of bytes that each stands for, (tokens,) int64.

    The bytes add up to those of the text, if there is a token.
    """

    ids: Ids
    text_bytes: Ids


class WordTokens(NamedTuple):
    """The tokens of a text that may be cut into words, (tokens,) int64, and which word each begins.

    `begins` is (tokens,) int64: -1 for later tokens of a word, and for those of none; (0,) without words.
    """

    ids: Ids
    begins: Ids


class Tokenizer(Protocol):
    """A tokenizer, which turns text into tokens and back."""

    @property
    def vocab_size(self) -> int:
        """The number of different tokens."""

    @property
    def end_of_text(self) -> int | None:
        """The token that is put after each document, if one is."""

    @property
    def padding(self) -> int:
        """The token that pads a short text; 0 where no token is for that."""

    def encode(self, texts: Sequence[bytes]) -> Iterator[Encoded]:
        """Yield the tokens of each text.

        Raises:
            UnicodeDecodeError: A text is not in UTF-8, which this tokenizer needs.
        """

    def samples(self, texts: Sequence[str], max_length: int) -> Iterator[Ids]:
        """Yield the first tokens of each text, with those that a model's template adds: (tokens,) int64.

        Raises:
            DataError: The template alone has more tokens.
        """

    def words(self, rows: Sequence[Sequence[str]], max_length: int) -> Iterator[WordTokens]:
        """Yield the first tokens of each row of words, and which token begins which word; see `samples`.

        Raises:
            DataError: The template alone has more tokens.
        """

    def decode(self, ids: Ids) -> str:
        """Return the text of tokens, (tokens,); bytes that are not UTF-8 become the replacement character."""

    def token_bytes(self) -> NDArray[np.int64] | None:
        """Return the bytes that each token stands for, (vocab_size,); None if that depends on the text."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""


class ByteTokenizer:
    """A tokenizer of bytes: each is a token, and `end_of_text` is one more."""

    def __init__(self, *, end_of_text: bool = False) -> None:
        self.end_of_text = _VALUES if end_of_text else None

    @property
    def vocab_size(self) -> int:
        """256, and one for the end of a text."""
        return _VALUES + (self.end_of_text is not None)

    def encode(self, texts: Sequence[bytes]) -> Iterator[Encoded]:
        """Yield the bytes of each text."""
        for text in texts:
            ids = np.frombuffer(text, np.uint8).astype(np.int64)
            yield Encoded(ids, np.ones_like(ids))

    @property
    def padding(self) -> int:
        """0, which no text has."""
        return 0

    def samples(self, texts: Sequence[str], max_length: int) -> Iterator[Ids]:
        """Yield the first bytes of each text, (bytes,) int64."""
        for text in texts:
            yield np.frombuffer(text.encode()[:max_length], np.uint8).astype(np.int64)

    def words(self, rows: Sequence[Sequence[str]], max_length: int) -> Iterator[WordTokens]:
        """Yield the first bytes of the words of each row, with a blank between two."""
        for row in rows:
            lengths = np.array([len(word.encode()) for word in row], np.int64)
            ids = np.frombuffer(" ".join(row).encode(), np.uint8).astype(np.int64)
            begins = np.full(len(ids), -1, np.int64)
            starts = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]]).astype(np.int64)
            begins[starts[lengths > 0]] = np.flatnonzero(lengths)
            yield WordTokens(ids[:max_length], begins[:max_length])

    def decode(self, ids: Ids) -> str:
        """Return the text of bytes; the end of a text is left out."""
        return bytes(ids[ids < _VALUES].astype(np.uint8)).decode(errors="replace")

    def token_bytes(self) -> NDArray[np.int64]:
        """Return 1 for each byte."""
        return (np.arange(self.vocab_size) < _VALUES).astype(np.int64)

    def to_json(self) -> dict[str, Any]:
        """Return the kind, and whether texts have an end."""
        return {"kind": BYTES, "end_of_text": self.end_of_text is not None}


class LibraryTokenizer:
    """A tokenizer of the library `tokenizers`.

    Args:
        content: The content of its `tokenizer.json`.
        end_of_text: The name of the token that ends a document; None for none.

    Raises:
        DataError: The library cannot read it, or it has no such token.
    """

    def __init__(self, content: str, end_of_text: str | None) -> None:
        library = require("tokenizers", "text")
        try:
            self._tokenizer: Any = library.Tokenizer.from_str(content)
        except Exception as error:  # the library raises nothing narrower
            raise DataError(f"this is not a tokenizer.json that can be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._content = content
        self._name = end_of_text
        self.end_of_text: int | None = None
        if end_of_text is not None:
            self.end_of_text = self._tokenizer.token_to_id(end_of_text)
            if self.end_of_text is None:
                known = sorted(self._tokenizer.get_vocab(), key=lambda name: (name[0] not in "<[", name))
                raise DataError(
                    f"it has no token {end_of_text!r}; {nearest(end_of_text, known)}; give one of its own as "
                    "data.params.end_of_text, or false for none"
                )

    @property
    def vocab_size(self) -> int:
        """The number of different tokens, those that were added included."""
        vocabulary = self._tokenizer.get_vocab()
        return max(vocabulary.values()) + 1 if vocabulary else 0

    def encode(self, texts: Sequence[bytes]) -> Iterator[Encoded]:
        """Yield the tokens of each text, without those that a model's template adds."""
        decoded = [text.decode() for text in texts]
        lengths = self.token_bytes()
        if lengths is None:
            for text, encoding in zip(decoded, self._batch(decoded), strict=True):
                yield _encoded(text, encoding)
            return
        batch = self._tokenizer.encode_batch_fast(decoded, add_special_tokens=False)
        for text, raw, encoding in zip(decoded, texts, batch, strict=True):
            ids = np.array(encoding.ids, np.int64)
            found = Encoded(ids, lengths[ids])
            if int(found.text_bytes.sum()) != len(raw):  # a byte that is in no token of its vocabulary
                (again,) = self._batch([text])
                found = _encoded(text, again)
            yield found

    @cached_property
    def padding(self) -> int:
        """The token that its file pads with, or whose name says so; else 0."""
        of_file = (json.loads(self._content).get("padding") or {}).get("pad_id")
        named = (self._tokenizer.token_to_id(name) for name in _PADDINGS)
        return int(next((one for one in (of_file, *named) if one is not None), 0))

    def samples(self, texts: Sequence[str], max_length: int) -> Iterator[Ids]:
        """Yield the first tokens of each text, with those that a model's template adds: (tokens,) int64.

        Raises:
            DataError: The template alone has more tokens.
        """
        for encoding in self._cut(texts, max_length):
            yield np.array(encoding.ids, np.int64)

    def words(self, rows: Sequence[Sequence[str]], max_length: int) -> Iterator[WordTokens]:
        """Yield the same as `samples` of texts that are cut into words."""
        for encoding in self._cut(rows, max_length):
            of = np.array([-1 if word is None else word for word in encoding.word_ids], np.int64)
            is_first = of != np.concatenate([[-1], of[:-1]])
            yield WordTokens(np.array(encoding.ids, np.int64), np.where(is_first, of, -1))

    def _cut(self, texts: Sequence[Any], max_length: int) -> Iterator[Any]:
        """Yield the encodings of texts, or of lists of words, cut to a length, with the template's tokens.

        Raises:
            DataError: The template alone has more tokens.
        """
        added = self._tokenizer.num_special_tokens_to_add(False)
        if added >= max_length:
            raise DataError(
                f"data.params.max_length: {max_length} given, but the tokenizer adds {added} tokens to each "
                "text; give more"
            )
        for start in range(0, len(texts), _BATCH):
            for encoding in self._batch(texts[start : start + _BATCH]):
                encoding.truncate(max_length - added)
                yield self._tokenizer.post_process(encoding)

    def _batch(self, texts: Sequence[Any]) -> Sequence[Any]:
        are_words = bool(len(texts)) and not isinstance(texts[0], str)
        encodings: Sequence[Any] = self._tokenizer.encode_batch(
            texts, is_pretokenized=are_words, add_special_tokens=False
        )
        return encodings

    def decode(self, ids: Ids) -> str:
        """Return the text of tokens, special ones left out."""
        text: str = self._tokenizer.decode(ids.tolist(), skip_special_tokens=True)
        return text

    @cached_property
    def _token_bytes(self) -> NDArray[np.int64] | None:
        plain = json.loads(self._content)
        decoder, splitter = plain.get("decoder") or {}, json.dumps(plain.get("pre_tokenizer"))
        adds = '"add_prefix_space": true' in splitter
        if decoder.get("type") != "ByteLevel" or '"ByteLevel"' not in splitter or adds:
            return None
        if plain.get("normalizer") is not None:
            return None
        added = {token["id"]: len(token["content"].encode()) for token in plain.get("added_tokens", ())}
        lengths = np.zeros(self.vocab_size, np.int64)
        for name, index in self._tokenizer.get_vocab().items():
            lengths[index] = added.get(index, len(name))  # its alphabet has a character for each byte
        return lengths

    def token_bytes(self) -> NDArray[np.int64] | None:
        """Return the bytes of each token of a byte-level vocabulary; None for other kinds."""
        return self._token_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the `tokenizer.json`, and the name of the token that ends a text."""
        return {"kind": "tokenizers", "end_of_text": self._name, "tokenizer": json.loads(self._content)}


class TokensAlone:
    """The tokens that others have made, of which nothing is known but their number.

    Args:
        vocab_size: How many there are.
    """

    end_of_text: int | None = None
    padding = 0

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, texts: Sequence[bytes]) -> Iterator[Encoded]:  # noqa: ARG002 - none is known
        """Refuse texts.

        Raises:
            DataError: Always.
        """
        raise _unknown()

    def samples(self, texts: Sequence[str], max_length: int) -> Iterator[Ids]:  # noqa: ARG002 - none is known
        """Refuse texts, as `encode` does."""
        raise _unknown()

    def words(self, rows: Sequence[Sequence[str]], max_length: int) -> Iterator[WordTokens]:  # noqa: ARG002 - none is known
        """Refuse texts, as `encode` does."""
        raise _unknown()

    def decode(self, ids: Ids) -> str:  # noqa: ARG002 - none is known
        """Refuse to make a text, as `encode` does."""
        raise _unknown()

    def token_bytes(self) -> NDArray[np.int64]:
        """Return 0 for each token: it is not known."""
        return np.zeros(self.vocab_size, np.int64)

    def to_json(self) -> dict[str, Any]:
        """Return the kind, and the number of tokens."""
        return {"kind": TOKENS, "vocab_size": self.vocab_size}


def _unknown() -> DataError:
    return DataError(
        "the data were tokens, and no tokenizer says which texts they stand for: give data.tokenizer, the "
        "tokenizer.json that made them"
    )


def from_json(data: Mapping[str, Any] | None) -> Tokenizer:
    """Restore the tokenizer that `to_json` was called on; None stands for bytes."""
    if data is None or data["kind"] == BYTES:
        return ByteTokenizer(end_of_text=bool(data and data["end_of_text"]))
    if data["kind"] == TOKENS:
        return TokensAlone(data["vocab_size"])
    return LibraryTokenizer(json.dumps(data["tokenizer"]), data["end_of_text"])


def is_plain(tokenizer: Tokenizer) -> bool:
    """Return whether the tokens are the bytes of a text, and nothing else."""
    return isinstance(tokenizer, ByteTokenizer) and tokenizer.end_of_text is None


def fingerprint(tokenizer: Tokenizer) -> str:
    """Return the SHA-256 of what a tokenizer does."""
    return sha256_json(tokenizer.to_json())


class Choice(NamedTuple):
    """A tokenizer, as a config asks for it.

    Attributes:
        kind: `bytes`, `bpe` or the path of a tokenizer.json.
        vocab_size: The number of tokens of a new vocabulary.
        end_of_text: The name of the token that ends a document; None for none.
    """

    kind: str
    vocab_size: int
    end_of_text: str | None

    @property
    def needs_training(self) -> bool:
        """True where it is made from the training text."""
        return self.kind == BPE

    def made(self) -> Tokenizer:
        """Return a tokenizer that needs no training.

        Raises:
            DataError: The file cannot be read.
        """
        if self.kind == BYTES:
            return ByteTokenizer(end_of_text=self.end_of_text is not None)
        try:
            return LibraryTokenizer(self._read().decode(), self.end_of_text)
        except (DataError, UnicodeDecodeError) as error:
            raise DataError(f"data.params.tokenizer: {self.kind}: {error}") from error

    def _read(self) -> bytes:
        """Return the content of the user's file."""
        try:
            return read_bytes(self.kind)
        except DataError as error:
            raise DataError(f"data.params.tokenizer: {error}") from error

    def trained(self, texts: Iterable[str], special: Sequence[str] = ()) -> Tokenizer:
        """Return a byte-level BPE tokenizer that is trained on texts; the result depends on nothing else.

        Pairs of equal frequency are merged in the order of their tokens. Sennrich et al.: "Neural machine
        translation of rare words with subword units", 2016; over bytes, as GPT-2 has it.

        Args:
            texts: The texts.
            special: The names of the first tokens, which no text is cut into.
        """
        library = require("tokenizers", "text")
        tokenizer = library.Tokenizer(library.models.BPE())
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=self.vocab_size,
            special_tokens=[*special, *([] if self.end_of_text is None else [self.end_of_text])],
            initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return LibraryTokenizer(tokenizer.to_str(), self.end_of_text)

    def identity(self) -> list[Any]:
        """Return what the tokens of a text depend on, apart from the text, as plain values."""
        if self.kind == BYTES:
            return [*self]
        version = str(require("tokenizers", "text").__version__)
        if self.kind == BPE:
            return [*self, version]
        return [sha256_bytes(self._read()), self.end_of_text, version]


def chosen(kind: str, vocab_size: int | None, end_of_text: bool | str | None) -> Choice:
    """Return the tokenizer that the options ask for.

    Raises:
        DataError: They do not fit together.
    """
    if kind not in (BYTES, BPE) and PurePath(kind).suffix != ".json":
        raise DataError(
            f"data.params.tokenizer: {kind!r} given; allowed: bytes, bpe (trained on the training text), or "
            "the path of a tokenizer.json"
        )
    if vocab_size is not None and vocab_size <= _VALUES:
        raise DataError(
            f"data.params.vocab_size: {vocab_size} given; each byte is a token, so give 257 or more"
        )
    if vocab_size is not None and kind != BPE:
        raise DataError(
            f"data.params.vocab_size: {vocab_size} given, but the tokenizer is {kind}, "
            "whose vocabulary is fixed; leave it out, or give tokenizer: bpe"
        )
    if isinstance(end_of_text, str) and kind == BYTES:
        raise DataError(
            f"data.params.end_of_text: {end_of_text!r} given, but bytes have no tokens with names; give true "
            "or false"
        )
    wanted = kind != BYTES if end_of_text is None else end_of_text
    name = wanted if isinstance(wanted, str) else END_OF_TEXT if wanted else None
    return Choice(kind, vocab_size or DEFAULT_VOCABULARY, name)


def _encoded(text: str, encoding: Any) -> Encoded:
    """Return tokens with the bytes from the start of each to that of the next one.

    What no token covers, such as white space, counts for the token before it; at the start of the text, for
    the first one.
    """
    ids = np.array(encoding.ids, np.int64)
    if not len(ids):
        return Encoded(ids, ids)
    starts = np.maximum.accumulate(np.array([start for start, _ in encoding.offsets], np.int64))
    starts[0] = 0
    positions = _byte_positions(text)  # (characters + 1,)
    edges = np.append(positions[starts], positions[-1])
    return Encoded(ids, np.diff(edges))


def _byte_positions(text: str) -> Ids:
    """Return where each character begins in UTF-8, and where the text ends, (characters + 1,)."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    lengths = np.full(len(codes), 4)
    for below, length in reversed(_UTF8_LENGTHS):
        lengths[codes < below] = length
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
