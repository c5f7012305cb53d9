"""Files that a model predicts or is evaluated on, as users give them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.config.schema import RunConfig
from trainwright.datasets.base import Split
from trainwright.datasets.csv import CsvParams
from trainwright.datasets.jsonl import JsonlChunks
from trainwright.datasets.npz import inputs_in
from trainwright.datasets.tables.chunks import CsvChunks, RowChunks, errors_in, without_errors
from trainwright.datasets.tables.frames import FOUND, read_frame, row_chunks
from trainwright.datasets.tables.preparation import AnyPreparation, TabularPreparation
from trainwright.datasets.tables.table import Table, frame_of
from trainwright.errors import DataError, InputError
from trainwright.inference.bad_rows import Failures, OnError
from trainwright.inference.input_rows import InputRows
from trainwright.inference.labeled import refuse_masks
from trainwright.inference.samples import samples_of
from trainwright.plugins import adapter, find_dataset
from trainwright.require import import_rule, importing_by
from trainwright.types import FEATURES, Array

DECIMAL = "decimal"  # an option: the decimal mark of numbers in text


class InputFiles:
    """Read files of rows, of arrays or of samples, as the run's own data were read.

    Args:
        run_id: The run, in messages.
        config: Its config.
        rows: What turns rows into the inputs of its model.
        tokenizer: What made the tokens of its text, if it has any; see `DataBundle.tokenizer`.
    """

    def __init__(
        self, run_id: str, config: RunConfig, rows: InputRows, tokenizer: Mapping[str, Any] | None
    ) -> None:
        self._run_id = run_id
        self._config = config
        self._rows = rows
        self._info, self._preparation = rows.info, rows.preparation
        self._tokenizer = tokenizer
        self._rule = import_rule()  # it holds for later calls, too
        self.options: Mapping[str, Any] = {}  # of the readers, which replace those of the run

    @property
    def preparation(self) -> AnyPreparation | None:
        """The preparation of raw rows as features; None where the data set brought features."""
        return self._preparation

    def samples(self, path: Path | str) -> Split | None:
        """Return the samples that the run's data set makes of a file, such as a text; None: it has rows.

        Raises:
            DataError: The file cannot be read, or gives no sample.
        """
        with importing_by(self._rule):
            return samples_of(self._config, path, self._tokenizer)

    def arrays(self, path: Path | str) -> Mapping[str, Array] | None:
        """Return the arrays of an npz file as `outputs` takes them; None: it has rows of a table.

        Raises:
            DataError: It cannot be read.
            InputError: The model takes images in files, or texts.
        """
        if Path(path).suffix.lower() != ".npz":
            return None
        if self._preparation is None:
            return inputs_in(str(path), self._info.target)
        if self._preparation.has_columns:
            return None
        columns = " and ".join(self._preparation.column_names)
        raise InputError(
            f"{path} holds arrays, but the run was trained on {columns} in files; give such files"
        )

    def read(self, path: Path | str, on_error: OnError = "stop") -> Any:
        """Read the rows of a file, or of one at a URL, as the training data were read.

        Args:
            path: The file: CSV (which may be compressed), Parquet, JSON Lines, Excel or npz; or a folder or a
                pattern of such files.
            on_error: What becomes of a row that cannot be parsed; `skip` and `null` leave it out.

        Raises:
            DataError: It cannot be read.
            InputError: The model takes other arrays than the columns of a table, or gives masks.
        """
        refuse_masks(self._info, self._run_id)
        if (arrays := self.arrays(path)) is not None:
            return arrays
        self._refuse_file()
        if on_error != "stop":
            frame = self._readable(path, on_error)
        else:
            options, text = self._format
            frame = read_frame(path, options, text, self._info.target, finds=self._finds)
        if not len(frame):
            raise DataError(f"{path}: there are columns, but no rows")
        return frame

    def _readable(self, path: Path | str, on_error: OnError) -> Any:
        """Return the rows that can be parsed as a data frame, and say how many cannot."""
        chunks, failures = self.chunks(path, on_error), Failures("skip")
        tables = list(chunks.tables(chunks.names, sys.maxsize))
        if not tables:
            return frame_of({})
        errors = errors_in(tables[0])
        failures.add(len(tables[0]), errors)
        failures.warn("read")
        good = without_errors(tables[0]).take(np.delete(np.arange(len(tables[0])), [*errors]))
        return frame_of(dict(good.columns))

    def chunks(self, path: Path | str, on_error: OnError = "stop") -> RowChunks:
        """Return the same rows, to be read chunk by chunk; the arguments and errors are those of `read`.

        With another `on_error` than `stop`, a row that cannot be parsed is there, and named in its column
        `chunks.ROW_ERROR`.
        """
        self._refuse_file()
        options, text = self._format
        chunks = row_chunks(path, options, text, self._info.target, finds=self._finds)
        if on_error != "stop" and isinstance(chunks, CsvChunks | JsonlChunks):
            chunks.mend()
        return chunks

    @property
    def _finds(self) -> Collection[str]:
        """The options of the run that need not fit this file."""
        return [name for name in FOUND if name not in self.options]

    def columns_of(self, names: Sequence[str]) -> Sequence[str]:
        """Return the columns to read of those that a file has: what predictions need.

        All of them if one is missing: they may be meant by position, or else the error names them.
        """
        needed = self._preparation.column_names if self._preparation is not None else []
        needed = needed if self._rows.steps is None else self._rows.steps.names
        is_whole = needed and set(needed) <= set(names)
        return [name for name in names if name in needed] if is_whole else names

    def rows_of(self, table: Table) -> Any:
        """Return rows of a file as `outputs` takes them: as a data frame where a table does not do."""
        if self._preparation is None:
            return frame_of(dict(table.columns))
        return self._preparation.rows_in(table)

    @property
    def _format(self) -> tuple[Mapping[str, Any] | None, Sequence[str]]:
        """The options of the reader, and the columns to read as text."""
        data = self._config.data
        cls = find_dataset(data.type) if data is not None else None
        is_csv = cls is not None and issubclass(cls.Params, CsvParams)
        options = data.params if data is not None and is_csv else {}
        own = {key: value for key, value in self.options.items() if key != DECIMAL}
        text = self._preparation.text_columns if self._preparation else ()
        if (steps := self._rows.steps) is not None:  # which get the columns of the file
            text = [*steps.text_columns, *(name for name in text if name not in steps.names)]
        if DECIMAL in self.options and isinstance(self._preparation, TabularPreparation):
            text = [*text, *self._preparation.number_columns]
        return {**options, **own}, text

    def _refuse_file(self) -> None:
        """Refuse a file of rows if the model takes other arrays than the columns of a table.

        Raises:
            InputError: The model takes other arrays.
        """
        if self._preparation is None and list(self._rows.specs) != [FEATURES]:
            raise InputError(
                f"run {self._run_id} takes {self._rows.description}, and a table holds no such arrays: "
                "give them in an npz file, or from Python: "
                f"trainwright.load({self._run_id!r}).predict(...); the run's own splits are evaluated by "
                "`trainwright evaluate --split`"
            )


def set_options(files: InputFiles, options: Mapping[str, Any]) -> None:
    """Read files with other options than those of the run's data.

    Raises:
        InputError: No reader has such an option, or it has another value.
    """
    given = {key: value for key, value in options.items() if value is not None}
    readers = [adapter("dataset", name).Params for name in ("csv", "excel")]
    known = [DECIMAL, *dict.fromkeys(key for params in readers for key in params.model_fields)]
    if unknown := [key for key in given if key not in known]:
        raise InputError(f"no option {unknown[0]!r} of reading a file; there are: {', '.join(known)}")
    if (mark := given.get(DECIMAL)) not in (None, ".", ","):
        raise InputError(f"decimal {mark!r} given; a decimal mark is '.' or ','")
    files.options = given
    if mark is not None and isinstance(files.preparation, TabularPreparation):
        files.preparation.set_decimal(mark)
