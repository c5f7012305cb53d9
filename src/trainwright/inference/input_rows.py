"""Rows as users give them, turned into the arrays that a run's model is called with."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from trainwright.config.schema import DataConfig
from trainwright.datasets.samples.arrays import is_frame
from trainwright.datasets.tables import table as tables
from trainwright.datasets.tables.clean_rows import CleanRows
from trainwright.datasets.tables.feature_steps import FeatureSteps
from trainwright.datasets.tables.pairs import as_numpy, column_names
from trainwright.datasets.tables.preparation import AnyPreparation, TabularPreparation
from trainwright.datasets.tables.ranges import UnusualValues
from trainwright.datasets.tables.raw import RawPreparation
from trainwright.datasets.tables.remarks import UNSEEN
from trainwright.datasets.tables.table import Table, as_table
from trainwright.datasets.texts.tokenizers import Tokenizer
from trainwright.errors import InputError
from trainwright.inference import texts
from trainwright.numerals import listed
from trainwright.plugins import task_for
from trainwright.types import FEATURES, INPUT_IDS, Array, ArraySpec, DataInfo

log = logging.getLogger("trainwright")
_MOST_WATCHED = 1000  # features in arrays


class InputRows:
    """Turn rows into the arrays that a model is called with.

    Args:
        data: The data section of the run's config, if it has one.
        info: What the run's data are.
        preparation: What turns raw rows into features; None where the data set brought features.
        tokenizer: What made the tokens of a text.
        input_names: The arrays that the model is called with; default: all of `info.inputs`.
    """

    def __init__(
        self,
        data: DataConfig | None,
        info: DataInfo,
        preparation: AnyPreparation | None,
        tokenizer: Tokenizer,
        input_names: Sequence[str] | None,
    ) -> None:
        self.data = data
        self.info = info
        self.preparation = preparation
        self._tokenizer = tokenizer
        self.task = task_for(info)
        self.specs: dict[str, ArraySpec] = {name: info.inputs[name] for name in input_names or info.inputs}
        self._remarked: set[str] = set()  # what a user has been told of his rows
        self.remarks = True  # whether a user is told of them
        self.are_counted = False  # values that no training row has, which is said at the end
        self._remarking = threading.Lock()

    def checks(self) -> Sequence[Callable[[Any], object]]:
        """Return functions that raise a DataError for rows of which one cannot be predicted."""
        if isinstance(self.preparation, TabularPreparation):
            return [partial(self._check, one) for one in self.preparation.checks()]
        return [self.batch]

    def _check(self, check: Callable[[Any], object], rows: Any) -> None:
        check(self.named(rows))

    def count_unusual(self, rows: Any, counts: UnusualValues) -> None:
        """Count rows whose values no training row has."""
        if isinstance(self.preparation, TabularPreparation):
            self.preparation.count_unusual(self.named(rows), counts)

    def watched(self, rows: Any) -> dict[str, Array]:
        """Return the columns of rows that are watched; see `Predictor.watched`."""
        own = self.preparation
        if isinstance(own, TabularPreparation | RawPreparation):
            columns = own.columns_of(self.named(rows))
            return {
                name: columns[name] for name in (*own.column_names, *self.watched_targets) if name in columns
            }
        if self.preparation is not None or FEATURES not in self.specs or len(self.specs[FEATURES].shape) != 1:
            return {}
        features = np.asarray(rows[FEATURES] if isinstance(rows, Mapping) else rows)
        names = list(self.info.feature_names) or column_names(features.shape[1])
        return dict(zip(names[:_MOST_WATCHED], features.T, strict=False))

    @property
    def watched_targets(self) -> list[str]:
        """The names of the targets among the columns that are watched."""
        own = self.preparation
        return own.target.columns if isinstance(own, TabularPreparation | RawPreparation) else []

    @property
    def description(self) -> str:
        """The input of the model in words, for messages."""
        if list(self.specs) == [FEATURES]:
            return str(tuple(self.specs[FEATURES].shape))
        return "a mapping of arrays (rows, ...): " + ", ".join(
            f"{name} {spec.shape} {spec.dtype}" for name, spec in self.specs.items()
        )

    def batch(self, rows: Any) -> dict[str, Array]:
        """Return the inputs of rows, and targets: placeholders, unless predictions are sums over targets.

        Of masks, and of targets of any form, it returns the inputs alone.

        Raises:
            InputError: The rows lack an input of the model, or it has another shape; or they lack the targets
                of a task whose predictions are sums over them.
        """
        inputs = self.inputs(rows)
        if self.task.gives_masks or self.task.is_open:
            return inputs
        targets = self._targets(rows, len(next(iter(inputs.values()))))
        arrays = {**inputs, self.task.target: targets}
        if self.task.sums and INPUT_IDS in self.specs:
            arrays |= texts.text_bytes(self._tokenizer, rows, targets)
        return arrays

    def prepared(self, rows: Any) -> dict[str, Array]:
        """Return what the preparation makes of raw rows, by name."""
        assert self.preparation is not None, "the caller checks it"
        if not self.preparation.has_columns:
            return self.preparation.arrays(rows)
        table = as_table(rows, only=set(self.preparation.column_names))
        arrays = self.preparation.arrays(table)
        if self.remarks:
            self._remark(table, self.preparation)
        return arrays

    def _remark(self, table: Table, preparation: AnyPreparation) -> None:
        """Warn once of each oddity of the rows, such as unseen categories."""
        for matter, line in preparation.remarks(table, self._unused_columns(table)).items():
            with self._remarking:
                is_said = self.are_counted and matter.startswith(UNSEEN)
                is_new = matter not in self._remarked and not is_said
                self._remarked.add(matter)
            if is_new:
                log.warning("%s", line)

    def _unused_columns(self, table: Table) -> set[str]:
        """Return the columns that the config leaves out; all others if it lists those to learn from."""
        data = self.data
        if data is None or data.features is not None:
            return {*table.columns, *table.unread}
        others = (data.split.time, data.split.group, data.weight, *data.split.keys)
        return {*data.targets, *data.exclude, *(name for name in others if name is not None)}

    def _targets(self, rows: Any, count: int) -> Array:
        """Return placeholders; the rows' own targets where predictions are sums that depend on them.

        Raises:
            InputError: The rows lack them, or they have another shape.
        """
        blank, name = self.task.blank_targets(count), self.task.target
        if not self.task.sums:
            return blank
        targets = np.asarray(rows[name]) if isinstance(rows, Mapping) and name in rows else None
        if targets is None or targets.shape != blank.shape:
            got = f"no {name}" if targets is None else f"{name} of shape {targets.shape}"
            raise InputError(
                f"{got} given; the predictions of {self.task.name} compare the model's outputs with {name}, "
                f"{blank.shape} {blank.dtype}: give them too, or use model.native for the outputs alone"
            )
        return targets.astype(blank.dtype)

    def inputs(self, rows: Any) -> dict[str, Array]:
        """Return the arrays that the model is called with.

        Raises:
            InputError: One is missing, or has another shape.
        """
        if self.preparation is not None:
            given = self._clean_features(rows)
            if given is None:
                given = self.prepared(self.named(rows) if self.preparation.has_columns else rows)
        elif isinstance(rows, Mapping):
            given = {str(name): np.asarray(array) for name, array in rows.items()}
        else:
            given = {next(iter(self.specs)): np.asarray(rows)}
        if missing := [name for name in self.specs if name not in given]:
            raise InputError(f"rows without {', '.join(missing)} given; the model takes {self.description}")
        inputs = {name: self._as_trained(name, given[name]) for name in self.specs}
        counts = {name: len(array) for name, array in inputs.items()}
        if len(set(counts.values())) > 1:
            given_rows = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise InputError(
                f"arrays of different numbers of rows given: {given_rows}; give the same number of each"
            )
        count = next(iter(counts.values()))
        if self.task.is_open:  # the model may be called without the others
            return inputs
        others = {name: spec for name, spec in self.info.inputs.items() if name not in self.specs}
        # What only the loss reads may hold anything.
        return inputs | {name: np.zeros((count, *spec.shape), spec.dtype) for name, spec in others.items()}

    def _clean_features(self, rows: Any) -> dict[str, Array] | None:
        features = None if self._clean is None else self._clean.features(rows)
        return None if features is None else {FEATURES: features}

    @cached_property
    def _clean(self) -> CleanRows | None:
        """The fast way to features; it is taken for rows that `prepared` would have no remark on."""
        data = self.data
        takes_all = data is None or data.features is not None
        return CleanRows.of(self.preparation, None if takes_all else self._unused_columns(Table({})))

    def _as_trained(self, name: str, array: Array) -> Array:
        """Return an array in the dtype that the model was trained on.

        Raises:
            InputError: It has another shape than in training.
        """
        if is_frame(array):
            return array
        spec, what = self.specs[name], "rows" if name == FEATURES else f"rows of {name}"
        if array.ndim == 0 or array.shape[1:] != spec.shape:
            raise InputError(f"{what} of shape {array.shape[1:]} given; the model takes {self.description}")
        return _of_dtype(array, np.dtype(spec.dtype))

    def named(self, rows: Any) -> Any:
        """Return rows whose columns have the names of the training data.

        Columns are taken in their order where names cannot tell: those of arrays and tensors, and of any rows
        if the run was trained on an array, whose columns have no names of their own.

        Raises:
            InputError: There are more columns than in training, or fewer.
        """
        assert self.preparation is not None, "the caller checks it"
        names = self.preparation.column_names if self.steps is None else self.steps.names
        of_array = names == column_names(len(names))
        if is_frame(rows):
            own = [name for name in rows.columns if str(name) != self.info.target]
            is_by_position = of_array and not set(names) <= set(map(str, own))
            rows = _named(rows[own].to_numpy(), names) if is_by_position else rows
        elif not (isinstance(rows, Table | Mapping) or (isinstance(rows, Sequence) and _are_mappings(rows))):
            rows = _named(as_numpy(rows), names)
        return self.derived(rows)

    @property
    def steps(self) -> FeatureSteps | None:
        """The feature steps of the user's own, if there are any."""
        own = self.preparation
        return own.steps if isinstance(own, TabularPreparation | RawPreparation) else None

    def derived(self, rows: Any) -> Any:
        """Return the columns that the user's own steps make of rows, once; without steps the rows.

        Raises:
            DataError: A step fails.
        """
        if self.steps is None or (isinstance(rows, Table) and rows.is_derived):
            return rows
        return self.steps.apply(self._with_marks(as_table(rows), self.steps))

    def _with_marks(self, table: Table, steps: FeatureSteps) -> Table:
        """Write numbers as texts with a decimal comma where the steps got such texts in training."""
        kinds = self.preparation.kinds if isinstance(self.preparation, TabularPreparation) else {}
        for name in steps.text_columns:
            kind, values = kinds.get(name), table.columns.get(name)
            if kind and kind.decimal == "," and values is not None and tables.kind_of(values) == "number":
                marked = [text and text.replace(".", ",") for text in tables.as_texts(values).tolist()]
                table = replace(table, columns={**table.columns, name: np.array(marked, dtype=object)})
        return table


def _named(rows: Array, names: Sequence[str]) -> Any:
    """Name an array's columns like those of the training data, to be prepared in the same way."""
    import pandas as pd

    if rows.dtype.kind == "U" and rows.ndim == 0:
        raise InputError(
            f"rows are a data frame or an array, and {str(rows)!r} is a text; to predict for a file, read it "
            "(pandas.read_csv), or use `trainwright predict RUN FILE`"
        )
    if rows.ndim != 2 or rows.shape[1] != len(names):
        given = f"an array of shape {tuple(rows.shape)} given"
        raise InputError(f"{given}; expected the columns {listed(names)}, in this order")
    return pd.DataFrame(rows, columns=list(names))


def _are_mappings(rows: Sequence[Any]) -> bool:
    return all(isinstance(row, Mapping) for row in rows)


def _of_dtype(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return an array in the dtype that the model was trained on, if that keeps its values.

    Integers for a model of floats are left as they are.
    """
    if dtype.kind == "f":
        return array.astype(np.float32) if array.dtype.kind == "f" and dtype == np.float32 else array
    if array.dtype.kind not in "biuf" or dtype.kind not in "biu":
        return array
    with np.errstate(invalid="ignore"):
        cast = array.astype(dtype)
    return cast if (cast == array).all() else array
