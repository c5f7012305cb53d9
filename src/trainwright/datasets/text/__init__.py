"""Plain text for language modeling: bytes, or the tokens of a vocabulary.

`data.path` is a file, a folder or a pattern of files, which are read one after the other, in the order of
their names; or tables with a column of texts; or a file of tokens that others have made. The text is cut once
into training, validation and test text, in this order, and each part into windows of `length` tokens. The
labels of a sample are its tokens shifted by one position: the token that follows each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, Field

from trainwright.config.fields import Section
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import DataBundle, LoadRequest
from trainwright.datasets.samples.files import paths_by_split
from trainwright.datasets.tables.splitting import fractions
from trainwright.datasets.tables.tabular import provided_splits
from trainwright.datasets.text.documents import Documents
from trainwright.datasets.text.token_files import MOST_TOKENS, TokenType, tokens_in, vocabulary
from trainwright.datasets.text.tokens import Cuts, Source, SplitTokens, encoded, tokens_of
from trainwright.datasets.text.windows import Windows
from trainwright.datasets.texts import tokenizers
from trainwright.datasets.texts.tokenizers import ByteTokenizer, Choice, Tokenizer, TokensAlone
from trainwright.errors import DataError
from trainwright.process.alarms import announced
from trainwright.types import INPUT_IDS, LABELS, SPLITS, Array, ArraySpec, DataInfo, SplitName

__all__ = ["TextDataset", "TextParams", "Windows"]
_TASK = "language_modeling"
_IN_MEMORY = 64 << 20  # bytes; a shorter text of which the bytes are the tokens is not copied to the disk


class TextParams(Section):
    """Text: plain files, or a column of tables."""

    length: int = Field(128, gt=0, description="tokens of one sample: what the model sees at once")
    pattern: str = Field("*.txt", min_length=1, description="the files of a folder, its subfolders included")
    column: str | None = Field(
        None, description="the column of CSV or Parquet files that holds the texts; default: files are texts"
    )
    tokenizer: str = Field(
        "bytes",
        description="bytes; bpe, which is trained on the training text; or the path of a tokenizer.json",
    )
    dtype: TokenType | None = Field(
        None,
        description="the files hold tokens of this dtype, such as uint16, and no text: nanoGPT's train.bin "
        "and val.bin; tokenizer is then the tokenizer.json that made them, if there is one",
    )
    vocab_size: int | None = Field(
        None,
        gt=1,
        le=MOST_TOKENS,
        description="bpe: the number of tokens; default: 8192; with dtype: how many there are; "
        "default: those of the tokenizer, or up to the highest",
    )
    end_of_text: bool | str | None = Field(
        None,
        description="a token after each file, or cell of the column: true, or its name in a tokenizer.json; "
        "default: true (<|endoftext|>), but not for bytes",
    )


class TextDataset:
    """Text to be cut into splits; or a file, folder or pattern of files for each split."""

    names: ClassVar[Sequence[str]] = ("text",)
    Params: ClassVar[type[BaseModel]] = TextParams

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, TextParams)
        self._config = config
        self._params = params

    def load(self, request: LoadRequest) -> DataBundle:  # noqa: ARG002 - tokens have one form
        """Load the data; see `Dataset.load`."""
        config, params, length = self._config, self._params, self._params.length
        _refuse_settings(config)
        if params.dtype is not None:
            return self._of_tokens(params.dtype)
        choice = tokenizers.chosen(params.tokenizer, params.vocab_size, params.end_of_text)
        documents = {
            name: Documents(path, params.pattern, params.column)
            for name, path in paths_by_split(config).items()
        }
        with announced("reading the text"):
            contents = {name: one.content() for name, one in documents.items()}
        cuts = _cuts({name: content.size for name, content in contents.items()}, config)
        sources = [Source(one, cuts[name], contents[name].sha256) for name, one in documents.items()]
        tokenizer, splits = _tokens(sources, choice, sum(content.size for content in contents.values()))
        for name in splits:
            self._check_length(name, len(splits[name].tokens), tokenizer)
        plain = tokenizers.is_plain(tokenizer)
        known: dict[str, Any] = {} if plain else {"tokenizer": tokenizers.fingerprint(tokenizer)}
        return DataBundle(
            info=DataInfo(
                _TASK, {INPUT_IDS: ArraySpec((length,), "int64")}, tokenizer.vocab_size, target=LABELS
            ),
            splits={
                name: Windows(
                    one.tokens, length, every_byte=name != "train", text_bytes=one.text_bytes, **known
                )
                for name, one in splits.items()
            },
            tokenizer=None if plain else tokenizer.to_json(),
        )

    def _of_tokens(self, dtype: TokenType) -> DataBundle:
        """Load tokens that others have made."""
        config, params = self._config, self._params
        for key in ("column", "end_of_text"):
            if getattr(params, key) is not None:
                raise DataError(
                    f"data.{key} is for texts, and these files hold tokens (data.dtype): leave it out"
                )
        if params.tokenizer == tokenizers.BPE:
            raise DataError(
                "data.tokenizer: bpe is trained on texts, and these files hold tokens (data.dtype): give the "
                "tokenizer.json that made them, or leave it out"
            )
        given = None
        if params.tokenizer != tokenizers.BYTES:
            given = tokenizers.chosen(params.tokenizer, None, end_of_text=False).made()
        files = {name: tokens_in(path, dtype) for name, path in paths_by_split(config).items()}
        cuts = _cuts({name: len(tokens) for name, tokens in files.items()}, config)
        parts = {
            split: tokens[start:stop]
            for name, tokens in files.items()
            for split, (start, stop) in cuts[name].items()
        }
        with announced("reading the tokens"):
            count = vocabulary(parts, given, params.vocab_size)
        made = TokensAlone(count) if given is None else given
        for name, tokens in parts.items():
            self._check_length(name, len(tokens), made)
        lengths = made.token_bytes()
        return DataBundle(
            info=DataInfo(
                _TASK,
                {INPUT_IDS: ArraySpec((params.length,), "int64")},
                count,
                target=LABELS,
                counts_bytes=lengths is not None and bool(lengths.any()),
            ),
            splits={
                name: self._windows(parts[name], made, every_byte=name != "train")
                for name in SPLITS
                if name in parts
            },
            tokenizer=made.to_json(),
        )

    def _windows(self, tokens: Array, tokenizer: Tokenizer, *, every_byte: bool) -> Windows:
        """Return windows of tokens that others have made."""
        lengths = tokenizer.token_bytes()
        known = np.zeros(tokenizer.vocab_size, np.int64) if lengths is None else lengths
        return Windows(
            tokens,
            self._params.length,
            every_byte=every_byte,
            token_bytes=known,
            tokenizer=tokenizers.fingerprint(tokenizer),
        )

    def samples(self, path: str, tokenizer: Mapping[str, Any] | None) -> Windows:
        """Return another text in windows, in which each token but the first is predicted once."""
        params, made = self._params, tokenizers.from_json(tokenizer)
        if params.dtype is not None:
            tokens = tokens_in(path, params.dtype)
            vocabulary({"test": tokens}, made, None)
            self._check_length("test", len(tokens), made)
            return self._windows(tokens, made, every_byte=True)
        one = encoded(Documents(path, params.pattern, params.column), made)
        unit = "bytes" if isinstance(made, ByteTokenizer) else "tokens"
        if not len(one.tokens):
            raise DataError(f"{path} is empty: give a text of at least {params.length + 1} {unit}")
        if len(one.tokens) <= params.length:
            raise DataError(
                f"{path} has {len(one.tokens)} {unit}, too few for a window of the run's data.params.length: "
                f"{params.length} and the {unit[:-1]} after it; give more text"
            )
        return Windows(one.tokens, params.length, every_byte=True, text_bytes=one.text_bytes)

    def _check_length(self, name: SplitName, tokens: int, tokenizer: Tokenizer) -> None:
        """Check that a split has a sample.

        Raises:
            DataError: The text is shorter than a sample.
        """
        length = self._params.length
        if tokens <= length:
            unit = "bytes" if isinstance(tokenizer, ByteTokenizer) else "tokens"
            share = "" if name == "train" else f"a larger data.split.{name}, "
            raise DataError(
                f"the {name} text has {tokens} {unit}, too few for a sample of data.params.length: "
                f"{length} and the {unit[:-1]} after it; give more text, {share}or a smaller length"
            )


def _refuse_settings(config: DataConfig) -> None:
    """Refuse settings that need rows and columns.

    Raises:
        DataError: One is given.
    """
    given = {
        "task": config.task not in ("auto", _TASK),
        "features": config.features is not None,
        "weight": config.weight is not None,
        "sampling": config.sampling is not None,
        "target_transform": config.target_transform is not None,
        "exclude": bool(config.exclude),
        "impute": config.impute not in (None, "keep"),
        "split.stratify": bool(config.split.stratify),
        "split.group": config.split.group is not None,
        "split.time": config.split.time is not None,
        "split.by": config.split.by == "hash",
        "split.folds": config.split.folds is not None,
        "split.val_folds": config.split.val_folds is not None,
    }
    for name, is_given in given.items():
        if is_given:
            raise DataError(
                f"data.{name} does not apply to text, which is cut in its own order for {_TASK}; leave it out"
            )


def _cuts(sizes: Mapping[SplitName, int], config: DataConfig) -> dict[SplitName, Cuts]:
    """Return, for each source, the bytes that each split takes of it.

    Validation and test text are cut off the end of the training text, unless they have files of their own.
    """
    val, test = fractions(config.split, provided_splits(sizes, config))
    total = sizes["train"]
    first_val, first_test = (int(total * share) for share in (1 - val - test, 1 - test))
    train: dict[SplitName, tuple[int, int]] = {"train": (0, first_val)}
    if val:
        train["val"] = (first_val, first_test)
    if test:
        train["test"] = (first_test, total)
    cuts: dict[SplitName, Cuts] = {name: {name: (0, size)} for name, size in sizes.items()}
    return {**cuts, "train": train}


def _tokens(
    sources: Sequence[Source], choice: Choice, size: int
) -> tuple[Tokenizer, dict[SplitName, SplitTokens]]:
    """Return the tokenizer and the tokens of each split: those of a short text of bytes, or mapped ones."""
    if choice.kind != tokenizers.BYTES or choice.end_of_text is not None or size > _IN_MEMORY:
        with announced("tokenizing the text"):
            return tokens_of(sources, choice)
    splits: dict[SplitName, SplitTokens] = {}
    for name in SPLITS:
        for source in sources:
            if name in source.cuts:
                parts = [piece.content for piece in source.pieces(name, characters=False)]
                splits[name] = SplitTokens(np.frombuffer(b"".join(parts), np.uint8), None)
    return choice.made(), splits
