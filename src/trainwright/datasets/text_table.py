"""Texts in a column of a CSV or Parquet file, for models that read tokens.

Another column is the target (`data.target`); there may be one of weights, and those that rows are divided by.
Each text becomes `input_ids` and `attention_mask`, of `max_length` tokens: a longer text is cut, a shorter
one is padded at its end. So the shape of a sample does not depend on the others of its batch.

Texts may also be files in folders, one folder for each class:

    PATH/good/1.txt, PATH/good/more/2.txt, PATH/bad/3.txt ...   to be split
    PATH/train/good/1.txt ... [PATH/val/...] [PATH/test/...]    of each split

In a Parquet file a text may be a list of words, and the target a list of a tag for each of them (token
classification), or of the labels of a row (multilabel).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
from pydantic import BaseModel, Field

from trainwright.config.fields import Section
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import DataBundle, LoadRequest, Split
from trainwright.datasets.images.class_folders import text_tables
from trainwright.datasets.samples import preprocessed
from trainwright.datasets.samples.arrays import Arrays
from trainwright.datasets.samples.cache import data_cache
from trainwright.datasets.samples.files import paths_by_split
from trainwright.datasets.samples.weights import encode as encode_weights
from trainwright.datasets.tables import checks
from trainwright.datasets.tables.expectations import examined
from trainwright.datasets.tables.frames import read_table
from trainwright.datasets.tables.list_cells import holds_lists, tags_of, with_label_columns
from trainwright.datasets.tables.split_keys import read_as_text
from trainwright.datasets.tables.table import Table
from trainwright.datasets.tables.tabular import named_columns
from trainwright.datasets.tables.target import Target, require_target, rows_with_target
from trainwright.datasets.texts import tokenizers
from trainwright.datasets.texts.preparation import TextPreparation, texts_of, words_of
from trainwright.datasets.texts.tokenizers import Choice, Tokenizer, WordTokens
from trainwright.digest import sha256_json
from trainwright.errors import DataError
from trainwright.plugins import task_of
from trainwright.process.alarms import announced
from trainwright.tasks.support.columns import TOKEN_CLASSIFICATION
from trainwright.types import LABELS, Array, DataInfo, FeatureForm, Ids, SplitName

_FORMAT = 1  # of the file of tokens; a change of how tokens are made raises it, too
_BYTES_PER_CHARACTER = 4  # of the file of tokens, at most, for usual text
Text = str | list[str]  # or its words
_EXAMPLES = 1000  # texts of each split that are kept as they were read
_ROW = "row"  # the array that stands for the texts until they are tokens


class TextTableParams(Section):
    """Tables with a column of texts, or folders of texts."""

    text: str = Field(
        "text",
        min_length=1,
        description="the column of texts, or of lists of words; for text_folder: that of rows to predict",
    )
    max_length: int = Field(
        256, gt=0, description="tokens of a sample: longer texts are cut, shorter ones padded"
    )
    tokenizer: str = Field(
        "bytes",
        description="bytes; bpe, which is trained on the training texts; or the path of a tokenizer.json",
    )
    vocab_size: int | None = Field(
        None, gt=256, le=1 << 24, description="bpe: the number of tokens; default: 8192"
    )


class TextTableDataset:
    """A CSV or Parquet file with a column of texts, or a folder of texts, to be split; or one for each."""

    names: ClassVar[Sequence[str]] = ("text_table", "text_folder")
    Params: ClassVar[type[BaseModel]] = TextTableParams

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, TextTableParams)
        self._config = config
        self._params = params

    def load(self, request: LoadRequest) -> DataBundle:
        """Load the data; see `Dataset.load`."""
        config, params = self._config, self._params
        require_target(self._config)
        self._refuse_settings()
        choice = tokenizers.chosen(params.tokenizer, params.vocab_size, end_of_text=False)
        tables, warnings = self._tables()
        expectations = examined(tables, config, request.examine)
        tables, dropped = self._with_targets(tables)
        warnings += dropped
        of_words = holds_lists(tables["train"].column(params.text, "data.text"))
        texts = [text for table in tables.values() for text in self._texts(table, of_words=of_words)]
        has_tags = of_words and self._has_tags(tables["train"])
        if has_tags:
            config = config.model_copy(update={"task": TOKEN_CLASSIFICATION})
        else:
            expanded, config = with_label_columns(tables, config)
            tables = dict(expanded)
        divided = self._divided(tables, config, request.form)
        rows = {name: split.take(np.arange(len(split)))[_ROW] for name, split in divided.splits.items()}
        with announced(f"tokenizing {len(texts):,} texts"):
            tokenizer, samples = _tokens(texts, rows["train"], choice, params.max_length)
        info = divided.info
        preparation = TextPreparation(
            params.text, tokenizer, params.max_length, self._target(config, info), of_words=of_words
        )
        splits = {
            name: _of_tokens(
                split, [samples[row] for row in rows[name].tolist()], preparation, has_tags=has_tags
            )
            for name, split in divided.splits.items()
        }
        repeated = checks.repeated_rows(splits, sources=tables)
        return replace(
            divided,
            info=replace(info, inputs=preparation.inputs, vocab_size=tokenizer.vocab_size),
            splits=dict(splits),
            preparation=preparation,
            warnings=[*warnings, *divided.warnings, *(one.warning for one in repeated)],
            columns=_in_words(samples, params.max_length),
            repeated=repeated,
            expectations=expectations,
            examples={name: [texts[row] for row in of[:_EXAMPLES].tolist()] for name, of in rows.items()},
        )

    def _refuse_settings(self) -> None:
        """Refuse settings of tables of features; weights, groups and times may be columns next to the texts.

        Raises:
            DataError: Such a setting is given.
        """
        config = self._config
        plain = config.model_copy(
            update={
                "weight": None,
                "sampling": None,
                "split": config.split.without_columns,
            }
        )
        preprocessed.refuse_column_settings(plain, "texts are", "Leave it out")
        for key in ("columns", "missing_values"):
            if getattr(config, key):
                raise DataError(f"data.{key} is for tables of features, not for texts; leave it out")

    def _tables(self) -> tuple[dict[SplitName, Table], list[str]]:
        """Return the rows of each source, and what a user should know of them."""
        config, text = self._config, self._params.text
        tables: dict[SplitName, Table] = {}
        warnings: list[str] = []
        if config.type == "text_folder":
            return dict(text_tables(config, text)), warnings
        for name, path in paths_by_split(config).items():
            with announced(f"reading {path}"):
                table = read_table(path, text=[text, *read_as_text(config)], target=config.targets[0])
            warnings += table.remarks
            tables[name] = table
        return tables, warnings

    def _with_targets(self, tables: dict[SplitName, Table]) -> tuple[dict[SplitName, Table], list[str]]:
        """Return the rows that have a target, if the others are to be dropped, and warnings."""
        warnings: list[str] = []
        if self._config.missing_target != "drop" or self._config.type == "text_folder":
            return tables, warnings
        for name, target in product([*tables], self._config.targets):
            tables[name], dropped = rows_with_target(tables[name], target)
            warnings += [dropped] if dropped else []
        return tables, warnings

    def _texts(self, table: Table, *, of_words: bool) -> Sequence[Text]:
        name = self._params.text
        cells, where = list(table.column(name, "data.text")), f"{table.source}: column {name!r}"
        return words_of(cells, where) if of_words else texts_of(cells, where)

    def _has_tags(self, train: Table) -> bool:
        """Return whether the target has a tag for each word, and not the labels of a row.

        Raises:
            DataError: The task wants tags, and the target holds no lists.
        """
        name, task = self._config.target_name, self._config.task
        wants = task != "auto" and task_of(task).has_inner_labels
        if len(self._config.targets) > 1 or not (wants or task == "auto"):
            return False
        is_list = holds_lists(train.column(name, "data.target"))
        if wants and not is_list:
            raise DataError(
                f"{train.source}: the target {name!r} holds no lists, but the task is {task}, which needs a "
                "tag for each word"
            )
        return is_list

    def _target(self, config: DataConfig, info: DataInfo) -> Target:
        """Return the target, as files of other rows have it."""
        several = tuple(config.targets) if len(config.targets) > 1 else ()
        lists = None if config.target_name == self._config.target_name else self._config.target_name
        classes = None if several else info.classes
        return Target(info.target, info.task, classes, names=several, lists=lists)

    def _divided(
        self, tables: Mapping[SplitName, Table], config: DataConfig, form: FeatureForm
    ) -> DataBundle:
        """Return the data with an array of row numbers in place of the texts.

        The rows of all sources are counted one after the other.
        """
        start = 0
        pairs: dict[SplitName, preprocessed.Pair] = {}
        weights: dict[SplitName, Array] = {}
        for name, table in tables.items():
            pairs[name] = ({_ROW: np.arange(start, start + len(table))}, self._targets(table, config))
            start += len(table)
            if config.weight is not None:
                weights[name] = encode_weights(table, config.weight)
        train = tables["train"]
        columns = named_columns(train, config)
        return preprocessed.from_arrays(pairs, config, form, sample_weights=weights, columns=columns)

    def _targets(self, table: Table, config: DataConfig) -> Array:
        """Return the targets, (rows,), (rows, columns) of several, or (rows, words) of tags."""
        names = config.targets
        if config.task != "auto" and task_of(config.task).has_inner_labels:
            where = f"{table.source}: the target {names[0]!r}"
            tags = table.column(names[0], "data.target")
            return tags_of(self._texts(table, of_words=True), tags, where, table)
        if len(names) == 1:
            return table.column(names[0], "data.target")
        return np.stack([table.column(name, "data.target").astype(np.float64) for name in names], axis=1)


def _of_tokens(
    split: Split, samples: Sequence[WordTokens], preparation: TextPreparation, *, has_tags: bool
) -> Arrays:
    """Return a split with tokens in place of its row numbers.

    Args:
        split: What `_divided` made.
        samples: The tokens of its rows.
        preparation: Pads them to one length.
        has_tags: Whether the targets are labels of words, which become those of tokens.
    """
    assert isinstance(split, Arrays), "`from_arrays` made it"
    tokens = preparation.padded((one.ids for one in samples), len(split))
    others = {key: array for key, array in split.arrays.items() if key != _ROW}
    if has_tags:
        others[LABELS] = preparation.labels_of_tokens(others[LABELS], samples)
    return Arrays({**tokens, **others})


def _tokens(
    texts: Sequence[Text], train: Ids, choice: Choice, max_length: int
) -> tuple[Tokenizer, Sequence[WordTokens]]:
    """Return the tokenizer and the tokens of each text, from the cache if they are in it.

    Args:
        texts: The texts, or the words of each.
        train: (rows,) the positions of those that a tokenizer may learn from.
        choice: The tokenizer that the config asks for.
        max_length: The number of tokens of a text at most.
    """
    if choice.kind == tokenizers.BYTES:
        made = choice.made()
        return made, _encoded(made, texts, max_length)
    content = [sha256_json(list(texts)), train.tolist(), max_length]
    file = data_cache().made(
        f"samples {sha256_json([_FORMAT, content, choice.identity()])}",
        "the tokens of the texts",
        _BYTES_PER_CHARACTER * sum(map(len, _pieces(texts))),
        lambda path: _write(path, texts, train, choice, max_length),
    )
    return _read(file)


def _encoded(made: Tokenizer, texts: Sequence[Text], max_length: int) -> list[WordTokens]:
    """Return the tokens of each text; without the words that they begin, where it is not cut into words."""
    if any(isinstance(text, str) for text in texts[:1]):
        plain = cast(Sequence[str], texts)
        return [WordTokens(ids, np.empty(0, np.int64)) for ids in made.samples(plain, max_length)]
    return list(made.words(cast(Sequence[list[str]], texts), max_length))


def _write(path: Path, texts: Sequence[Text], train: Ids, choice: Choice, max_length: int) -> None:
    """Write the tokens of the texts, how many each has, the words that they begin, and the tokenizer."""
    made = (
        choice.trained(_pieces(texts[row] for row in train.tolist()), [tokenizers.PADDING])
        if choice.needs_training
        else choice.made()
    )
    samples = _encoded(made, texts, max_length)
    dtype = np.min_scalar_type(made.vocab_size - 1)
    flat = np.concatenate([np.empty(0, dtype), *(one.ids.astype(dtype) for one in samples)])
    begins = np.concatenate([np.empty(0, np.int64), *(one.begins for one in samples)])
    lengths = np.array([len(one.ids) for one in samples], np.int64)
    plain = np.frombuffer(json.dumps(made.to_json()).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, tokens=flat, lengths=lengths, tokenizer=plain, begins=begins)


def _pieces(texts: Iterable[Text]) -> Iterator[str]:
    """Yield the texts, or their words."""
    for text in texts:
        yield from [text] if isinstance(text, str) else text


def _read(path: Path) -> tuple[Tokenizer, Sequence[WordTokens]]:
    with np.load(path, allow_pickle=False) as kept:
        flat, lengths, plain = kept["tokens"], kept["lengths"], kept["tokenizer"]
        begins = kept["begins"] if "begins" in kept else np.empty(0, np.int64)
    ends = np.cumsum(lengths)[:-1]
    firsts = np.split(begins, ends) if len(begins) else [begins] * len(lengths)
    samples = [WordTokens(*pair) for pair in zip(np.split(flat, ends), firsts, strict=True)]
    return tokenizers.from_json(json.loads(plain.tobytes())), samples


def _in_words(samples: Sequence[WordTokens], max_length: int) -> str:
    """Return how many texts there are, and how long they are."""
    lengths = np.array([len(one.ids) for one in samples])
    cut = int((lengths == max_length).sum())
    middle = f"{np.median(lengths):,.0f} tokens in the median, {lengths.max():,} at most"
    return f"{len(samples):,} texts, {middle}" + (f"; {cut:,} fill data.max_length" if cut else "")
