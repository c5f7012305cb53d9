"""Files that a model predicts or is evaluated on, as users give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwright.config.schema import RunConfig
from trainwright.datasets.base import Split
from trainwright.datasets.csv import CsvParams
from trainwright.datasets.npz import inputs_in
from trainwright.datasets.tables.chunks import RowChunks
from trainwright.datasets.tables.frames import read_frame, row_chunks
from trainwright.datasets.tables.raw import frame_of
from trainwright.datasets.tables.table import Table
from trainwright.errors import DataError, InputError
from trainwright.inference.input_rows import InputRows
from trainwright.inference.labeled import refuse_masks
from trainwright.inference.samples import samples_of
from trainwright.plugins import find_dataset
from trainwright.require import import_rule, importing_by
from trainwright.types import FEATURES, Array


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

    def read(self, path: Path | str) -> Any:
        """Read the rows of a CSV, Parquet or npz file, or of one at a URL, as the training data were read.

        Raises:
            DataError: It cannot be read.
            InputError: The model takes other arrays than the columns of a table, or gives masks.
        """
        refuse_masks(self._info, self._run_id)
        if (arrays := self.arrays(path)) is not None:
            return arrays
        self._refuse_file()
        frame = read_frame(path, *self._format, self._info.target)
        if not len(frame):
            raise DataError(f"{path}: there are columns, but no rows")
        return frame

    def chunks(self, path: Path | str) -> RowChunks:
        """Return the same rows, to be read chunk by chunk; the arguments and errors are those of `read`."""
        self._refuse_file()
        return row_chunks(path, *self._format, self._info.target)

    def columns_of(self, names: Sequence[str]) -> Sequence[str]:
        """Return the columns to read of those that a file has: what predictions need.

        All of them if one is missing: they may be meant by position, or else the error names them.
        """
        needed = self._preparation.column_names if self._preparation is not None else []
        is_whole = needed and set(needed) <= set(names)
        return [name for name in names if name in needed] if is_whole else names

    def rows_of(self, table: Table) -> Any:
        """Return rows of a file as `outputs` takes them: as a data frame where a table does not do."""
        if self._preparation is None:
            return frame_of(dict(table.columns))
        return self._preparation.rows_in(table)

    @property
    def _format(self) -> tuple[Mapping[str, Any] | None, Sequence[str]]:
        """The options of the CSV reader, and the columns to read as text."""
        data = self._config.data
        cls = find_dataset(data.type) if data is not None else None
        is_csv = cls is not None and issubclass(cls.Params, CsvParams)
        options = data.params if data is not None and is_csv else None
        return options, self._preparation.text_columns if self._preparation else ()

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
