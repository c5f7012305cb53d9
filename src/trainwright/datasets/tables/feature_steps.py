"""Feature steps of the user's own (`data.features_from`): a function, or an object that is fitted first.

A step gets the raw columns of a table, without target and weights, as a data frame of pandas, and returns a
frame of the same rows. It is applied alike to the rows of all splits, and to rows to predict. What an object
has fitted to the training rows is kept as plain values, so that nothing of it is executed when it is read.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from trainwright.config.sampling import sampling_column
from trainwright.config.schema import DataConfig
from trainwright.datasets.samples.arrays import is_frame
from trainwright.datasets.tables.arrow import as_pandas
from trainwright.datasets.tables.fitted_values import plain_value, restored_value
from trainwright.datasets.tables.table import Table, as_table, as_texts, frame_of, kind_of, missing
from trainwright.datasets.tables.times import read_time
from trainwright.datasets.tables.written import read_number
from trainwright.errors import DataError, InputError
from trainwright.numerals import listed
from trainwright.require import import_path
from trainwright.types import Array, Ids, SplitName

_ALONE = 20  # rows that are also computed by themselves
_KEY = "features_from"


class FeatureSteps:
    """A step of the user's own, with the columns that it gets.

    Args:
        name: Its import path.
        dtypes: NumPy's dtypes of the raw columns that it gets, by name.
        state: What it has fitted, as plain values; None: it is not fitted, or a function.
    """

    def __init__(
        self, name: str, dtypes: Mapping[str, str] | None = None, state: Mapping[str, Any] | None = None
    ) -> None:
        self.name = name
        self._dtypes, self._state = dict(dtypes or {}), state
        self._step: Any = None
        self._other: FeatureSteps | None = None  # with the same state, to compare with

    @property
    def names(self) -> list[str]:
        """The raw columns of the training rows, without the target and weights."""
        return list(self._dtypes)

    @property
    def text_columns(self) -> list[str]:
        """Those to read as text from files without types."""
        return [name for name, dtype in self._dtypes.items() if np.dtype(dtype).kind == "O"]

    def open(self) -> FeatureSteps:
        """Import the step, and give it what it has fitted; nothing of it is called but its class.

        Raises:
            InputError: It cannot be imported, or is no step.
        """
        try:
            found = import_path(self.name)
        except InputError as error:
            raise type(error)(f"data.{_KEY}: {error}") from error
        if isinstance(found, type):
            try:
                found = found()
            except TypeError as error:
                raise DataError(f"data.{_KEY}: {self.name} is made without arguments: {error}") from error
        elif hasattr(found, "transform"):
            found = copy.deepcopy(found)
        if not callable(getattr(found, "transform", found)):
            raise DataError(
                f"data.{_KEY}: {self.name} is no step; name a function of a data frame, or a class with "
                "`fit` and `transform`"
            )
        if self._state is not None:
            vars(found).update({key: restored_value(value) for key, value in self._state.items()})
        self._step = found
        return self

    def fit(self, tables: Mapping[SplitName, Table], rows: Ids, config: DataConfig) -> dict[SplitName, Table]:
        """Fit the step to the training rows, and return the tables that it makes.

        Args:
            tables: The rows of each source.
            rows: The training rows of the first.
            config: The data section.

        Raises:
            DataError: It fails, or does not return a frame of the same rows.
        """
        train = tables["train"]
        kept = {*config.targets, config.weight, sampling_column(config.sampling)}
        columns = {name: values for name, values in train.columns.items() if name not in kept}
        self._dtypes = {name: values.dtype.str for name, values in columns.items()}
        if hasattr(self._step, "fit"):
            frame = frame_of(columns).iloc[rows].reset_index(drop=True)
            targets = frame_of({name: train.columns[name][rows] for name in config.targets})
            single = targets[config.targets[0]] if len(config.targets) == 1 else None
            self._fit(frame, single if single is not None or not config.targets else targets)
        return {name: self.apply(table) for name, table in tables.items()}

    def _fit(self, frame: Any, target: Any) -> None:
        takes_target = len(inspect.signature(self._step.fit).parameters) > 1
        try:
            self._step.fit(frame, target) if takes_target else self._step.fit(frame)
        except Exception as error:
            raise self._failed("fit", error, frame) from error
        self._state = {key: self._kept(key, value) for key, value in vars(self._step).items()}
        # The values that others will read, so that training computes with the same.
        vars(self._step).update({key: restored_value(value) for key, value in self._state.items()})

    def apply(self, rows: Any) -> Table:
        """Return a table with the step's columns, besides those that it does not get, such as the target.

        Raises:
            DataError: It fails, or does not return a frame of the same rows.
        """
        table = as_table(rows)
        raw = {name: self._as_trained(table, name) for name in self._dtypes if name in table.columns}
        frame = frame_of(raw)
        if not raw:
            raise DataError(f"{table.source}: there is none of the columns {listed(self._dtypes)}")
        made = self._call(frame)
        self._compare(made, frame, table.source)
        derived = as_table(made, f"what {self.name} made of {table.source}")
        others = {name: table.columns[name] for name in table.columns if name not in self._dtypes}
        if both := others.keys() & derived.columns.keys():
            raise DataError(f"data.{_KEY}: {self.name} returns a column {min(both)!r}, which it does not get")
        return replace(
            table,
            columns={**derived.columns, **others},
            guessed=table.guessed & others.keys(),
            categorical=derived.categorical | (table.categorical & others.keys()),
            unread=(),
            frame=None,
            is_derived=True,
        )

    def _as_trained(self, table: Table, name: str) -> Array:
        """Return a raw column in the kind of the training rows; where it keeps its values, in their dtype."""
        values, dtype = table.columns[name], np.dtype(self._dtypes[name])
        if dtype.kind == "O":
            return as_texts(values)
        if kind_of(values) == "text":
            texts = [None if one is None else str(one) for one in values]
            if dtype.kind == "M":
                times = [None if one is None else read_time(one) for one in texts]
                values = np.array(times, dtype="datetime64[us]")
            else:
                numbers = [None if one is None else read_number(one) for one in texts]
                values = np.array([np.nan if one is None else one.value for one in numbers], np.float64)
            if (strays := missing(values) & ~missing(table.columns[name])).any():
                kind = "times" if dtype.kind == "M" else "numbers"
                raise DataError(
                    f"{table.source}: column {name!r} holds {kind}, but {texts[int(np.argmax(strays))]!r} in "
                    f"{table.where(strays)}"
                )
        if (dtype.kind == "M") != (values.dtype.kind == "M") or missing(values).any():
            return values
        cast = values.astype(dtype)
        return cast if (cast == values).all() else values

    def _call(self, frame: Any) -> Any:
        try:
            made = as_pandas(getattr(self._step, "transform", self._step)(frame.copy()))
        except Exception as error:
            raise self._failed("transform" if hasattr(self._step, "fit") else "", error, frame) from error
        if not is_frame(made):
            what = type(made).__name__
            raise DataError(f"data.{_KEY}: {self.name} returned {what}; return a data frame of the same rows")
        if len(made) != len(frame):
            raise DataError(
                f"data.{_KEY}: {self.name} returned {len(made):,} rows of {len(frame):,}; a step must keep "
                "all rows, in their order: leave rows out in the file, or by data.missing_target"
            )
        if list(made.index) != list(frame.index):
            raise DataError(
                f"data.{_KEY}: {self.name} changed the order of the rows, or their index; keep both as given"
            )
        return made

    def _compare(self, made: Any, frame: Any, source: str) -> None:
        """Refuse a step that gives rows other values alone than among others: predictions would be wrong.

        Some rows of the whole table are made again by themselves, the last one first, so that what depends
        on the row before, on those so far or on the position differs. Another object of the step makes them,
        as a run that is loaded does, so that what `transform` keeps in `self` differs, too.
        """
        if len(made) <= _ALONE:
            return
        rows = np.linspace(len(made) - 1, 0, _ALONE).astype(int)
        if self._other is None:
            self._other = FeatureSteps(self.name, self._dtypes, self._state).open()
        alone = self._other._call(frame.iloc[rows].reset_index(drop=True)).reset_index(drop=True)
        among = made.iloc[rows].reset_index(drop=True)
        names = [str(name) for name in made.columns]
        odd = [] if names == list(map(str, alone.columns)) else ["the columns"]
        for i, name in enumerate(names if not odd else ()):
            if not _are_equal(among.iloc[:, i], alone.iloc[:, i]):
                odd.append(repr(name))
        if odd:
            raise DataError(
                f"data.{_KEY}: {self.name} gives {listed(odd)} of {_ALONE} rows of {source} other values "
                "alone than among the others; what depends on other rows, or is kept in self, belongs in "
                "`fit` of a class"
            )

    def _failed(self, method: str, error: Exception, frame: Any) -> DataError:
        lost = [name for name in self._dtypes if name not in frame.columns]
        hint = f"; the rows lack {listed(map(repr, lost))}" if lost else ""
        where = f"{self.name}.{method}" if method else self.name
        return DataError(
            f"data.{_KEY}: {where} failed: {type(error).__name__}: {error}{hint}; see where with --debug"
        )

    def _kept(self, key: str, value: Any) -> Any:
        try:
            return plain_value(value)
        except TypeError as error:
            raise DataError(
                f"data.{_KEY}: {self.name} has fitted {key!r}, which holds {error} and cannot be kept; keep "
                "numbers, texts, lists, mappings, NumPy arrays, or series and frames of pandas"
            ) from error

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        return {"name": self.name, "dtypes": self._dtypes, "state": self._state}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> FeatureSteps:
        """Restore what `to_json` was called on; `open` imports it."""
        return FeatureSteps(data["name"], data["dtypes"], data["state"])


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether two columns of pandas are equal; numbers may differ in their last bits."""
    if one.dtype.kind == "f" and other.dtype.kind in "iuf":
        return np.allclose(one, other, rtol=1e-9, atol=0, equal_nan=True)
    both = one.astype(object), other.astype(object)
    return bool(((both[0] == both[1]) | (both[0].isna() & both[1].isna())).all())


def opened_steps(config: DataConfig) -> FeatureSteps | None:
    """Return the step that the config names, imported; None if it names none."""
    return None if config.features_from is None else FeatureSteps(config.features_from).open()
