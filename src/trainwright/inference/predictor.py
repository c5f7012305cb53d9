"""The trained model of a run, for prediction, evaluation, explanation and export."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.datasets.base import DataBundle, Split
from trainwright.datasets.samples.arrays import Arrays, rows_from
from trainwright.datasets.tables.arrow import as_pandas
from trainwright.datasets.tables.preparation import AnyPreparation, TabularPreparation, from_json
from trainwright.datasets.tables.ranges import UnusualValues
from trainwright.datasets.tables.raw import RawPreparation
from trainwright.datasets.texts import tokenizers
from trainwright.datasets.texts.preparation import TextPreparation
from trainwright.datasets.texts.tokenizers import Tokenizer
from trainwright.errors import DataError, InputError
from trainwright.evaluation.metrics import (
    EvaluationResult,
    accumulators,
    evaluate_predictions,
    explained_metric,
    wanted_metrics,
)
from trainwright.frameworks.base import Framework, Model, ModelInputs
from trainwright.inference import texts
from trainwright.inference.bad_rows import (
    Failures,
    OnError,
    check_on_error,
    count_of,
    row_errors,
    take,
    with_errors,
)
from trainwright.inference.input_files import InputFiles
from trainwright.inference.input_rows import InputRows
from trainwright.inference.intervals import (
    FILE,
    Intervals,
    Residuals,
    around_quantile,
    calibrated,
    check_level,
    chosen_on_validation,
    residuals,
)
from trainwright.inference.labeled import encoded_targets, labeled, refuse_masks
from trainwright.inference.original_units import in_original_units
from trainwright.plugins import task_for
from trainwright.process.global_random import preserved_global_random
from trainwright.records.data import StoredModel, understanding
from trainwright.records.run_dir import RunDir
from trainwright.types import INPUT_IDS, Array, SplitName

log = logging.getLogger("trainwright")

# If two threads loaded at once, one would restore the generators to what the other had set them to.
_LOADING = threading.RLock()  # an exported model may hold a run, which is loaded in turn
_CHUNK_ROWS = 1 << 16  # that are predicted from one chunk, at most
_CHUNK_CELLS = 1 << 22


class Predictor:
    """The model of a run (the best one where there is one), ready to predict.

    It may be used from many threads at once, beside others. `files` reads what is to be predicted or
    evaluated from files.

    Args:
        run: The run.
        stored: Its weights, and how its data were prepared.
        framework: The framework of the model.
        inputs: The arguments with which the framework loads it.
        load_data: Reads and prepares the run's own data, in the current working directory.
        folder: Returns the folder in which the run reads them.

    Raises:
        CheckpointError: A file that predictions depend on is damaged.
    """

    def __init__(
        self,
        run: RunDir,
        stored: StoredModel,
        framework: type[Framework],
        inputs: ModelInputs,
        load_data: Callable[[], DataBundle],
        folder: Callable[[], Path],
    ) -> None:
        self._run, self.stored = run, stored
        self._framework = framework
        self.config, self.info, self.model_object = inputs.config, inputs.info, inputs.model
        self._load_data, self._folder = load_data, folder
        self._residuals: Residuals | None = None  # of the validation rows, once they are asked for
        with understanding(stored.data_file):
            self._preparation = self._prepared(stored)
            self._tokenizer = (
                self._preparation.tokenizer
                if isinstance(self._preparation, TextPreparation)
                else tokenizers.from_json(stored.data.tokenizer)
            )
            self._task = task_for(self.info)
        with _LOADING, preserved_global_random():
            self.trained_model = self._loaded(inputs)
        self.model = in_original_units(self.trained_model, self.info)  # as the user sees it
        self._rows = InputRows(
            self.config.data, self.info, self._preparation, self._tokenizer, self.model.input_names
        )
        self.files = InputFiles(run.id, self.config, self._rows, stored.data.tokenizer)

    def _prepared(self, stored: StoredModel) -> AnyPreparation | None:
        """Return the preparation of raw rows; None where the data set brought features."""
        made = from_json(stored.data.preparation) if stored.data.preparation else None
        if (steps := getattr(made, "steps", None)) is not None:
            steps.open()
        return made

    def _loaded(self, inputs: ModelInputs) -> Model:
        """Return the model, on the scale that it was trained on."""
        return self._framework.load(inputs, self.stored.folder)

    def __repr__(self) -> str:
        kind = self.config.model.type if self.model_object is None else type(self.model_object).__name__
        return f"<Predictor of run {self._run.id}: {kind}, {self.info.task}>"

    @property
    def run(self) -> RunDir:
        """The directory of the run that trained the model."""
        return self._run

    @property
    def run_id(self) -> str:
        """The id of the run that trained the model."""
        return self._run.id

    @property
    def framework(self) -> type[Framework]:
        """The framework of the model."""
        return self._framework

    @property
    def preparation(self) -> AnyPreparation | None:
        """The preparation of raw rows as features; None where the data set brought features."""
        return self._preparation

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the text.

        Raises:
            InputError: The run was not trained on text.
        """
        if INPUT_IDS not in self.info.inputs:
            raise InputError(f"run {self._run.id} was not trained on text: its task is {self._task.name}")
        return self._tokenizer

    def generate(self, prompt: str, max_tokens: int = 200, **how: Any) -> str:
        """Return a text that continues `prompt`; see `texts.generate`.

        Args:
            prompt: How the text begins.
            max_tokens: The number of tokens at most.
            how: `temperature` (default 1), `top_k` (default: all) and `seed` (default 0).

        Raises:
            InputError: The run is no language model, or an option makes no sense.
        """
        if not self._task.generates_text:
            raise InputError(
                f"run {self._run.id} generates no text: its task is {self._task.name}; call predict"
            )
        return texts.generate(self.model, self.tokenizer, self.info, prompt, max_tokens, **how)

    @property
    def native(self) -> Any:
        """The model as its library's own object, such as a `torch.nn.Module`."""
        return self.model.native

    def outputs(self, rows: Any) -> Array:
        """Return class probabilities (rows, classes) float32, or values (rows,) / (rows, outputs).

        Values are in the precision in which the model answers.

        Of masks, the probabilities are (rows, classes, height, width).

        Args:
            rows: A data frame of pandas or Polars, an Arrow table or a sequence of mappings with the columns
                of the training data, or the path of a file of them; an array with just these columns, in
                their order; features (rows, ...) where the data set provided
                preprocessed arrays, or a mapping of arrays where it provided several; where it had images in
                files, a folder, or a sequence of paths, contents of image files, or (height, width,
                channels) uint8 arrays.

        Raises:
            InputError: The rows lack an input of the model, or it has another shape; or they lack the targets
                of a task whose predictions are sums over them.
        """
        parts = list(self._parts(self._given(rows)))
        return np.concatenate(parts) if parts else np.empty((0, self.info.outputs), dtype=np.float32)

    def outputs_or_errors(self, rows: Any) -> tuple[Array | None, dict[int, str]]:
        """Return the outputs of rows, and what is wrong with those that cannot be predicted, by position.

        The outputs of such rows are those of another row; None if there is no other.

        Raises:
            DataError: The rows cannot be predicted, whichever is left out.
            InputError: As in `outputs`.
        """
        try:
            return self.outputs(rows), {}
        except DataError:
            errors = row_errors(rows, self._rows.checks())
            if not errors:
                raise
        ids = np.arange(count_of(rows))
        good = np.delete(ids, [*errors])
        if not len(good):
            return None, errors
        ids[[*errors]] = good[0]  # rather than none: the others are predicted in the same chunks
        return self.outputs(take(rows, ids)), errors

    def placeholders(self, rows: int) -> Array:
        """Return outputs in the form of the model's, for rows of which none can be predicted."""
        if self.gives_masks or self._task.is_open:
            raise DataError("none of these rows can be read")
        shape = (rows,) if self.info.outputs == 1 else (rows, self.info.outputs)
        return np.zeros(shape, np.float32)

    def be_quiet(self) -> None:
        """Say nothing of oddities of rows, such as unseen categories; a service counts them."""
        self._rows.remarks = False

    def unusual(self) -> UnusualValues:
        """Return a new count of rows with values that no training row has, and let it alone warn of them."""
        self._rows.are_counted = True
        return UnusualValues(self.stored.data.ranges)

    def watched(self, rows: Any) -> dict[str, Array]:
        """Return the columns of rows that a window of served rows counts, (rows,) each, before encoding.

        Those of tables are read as their kinds; targets are among them if the rows have any. Of features in
        arrays, each is a column. Images and texts have none.
        """
        return self._rows.watched(self._given(rows))

    def encoded_targets(self, given: Mapping[str, Any]) -> Array:
        """Return targets, by the names of their columns, as metrics take them; see `labeled`."""
        return encoded_targets(given, self._rows)

    @property
    def column_names(self) -> list[str]:
        """The columns of tables that the model learned from, those of feature steps included; else none."""
        own = self._preparation
        return list(own.column_names) if isinstance(own, TabularPreparation | RawPreparation) else []

    @property
    def watched_targets(self) -> list[str]:
        """The names of the targets among the columns of `watched`."""
        return self._rows.watched_targets

    def count_unusual(self, rows: Any, counts: UnusualValues) -> None:
        """Add rows to such a count; those that cannot be predicted are left out."""
        self._rows.count_unusual(rows, counts)

    def _given(self, rows: Any) -> Any:
        """Return rows of Polars, Arrow or a file as those of pandas; others as they are."""
        takes_files = self._preparation is None or self._preparation.has_columns
        if takes_files and isinstance(rows, str | Path):
            return self.files.read(rows)
        return as_pandas(rows)

    def _parts(self, rows: Any) -> Iterator[Array]:
        """Yield what `outputs` returns, for some rows at a time."""
        arrays, size = self._rows.batch(rows), self.chunk_rows
        for start in range(0, len(next(iter(arrays.values()))), size):
            for part in self.model.predict(Arrays(rows_from(arrays, start, size))):
                yield part.outputs

    @property
    def chunk_rows(self) -> int:
        """The number of rows of a chunk: rows in memory and files are predicted in the same chunks.

        So a file that is read chunk by chunk gets the bits of the same rows in memory.
        """
        cells = sum(int(np.prod(spec.shape)) for spec in self._rows.specs.values())
        together = self.model.rows_together
        return together * max(1, min(_CHUNK_ROWS, _CHUNK_CELLS // max(1, cells)) // together)

    def predict(self, rows: Any, threshold: float | None = None, *, on_error: OnError = "stop") -> Any:
        """Return the predictions as a data frame, one row for each row given.

        The columns are `prediction` and, for classes, one `probability_<class>` each; for several targets
        `prediction_<i>`; for labels `prediction_<label>` and `probability_<label>`. A mask is an array
        (height, width) in a cell of `prediction`; it holds the numbers of the training masks.

        Args:
            rows: As in `outputs`.
            threshold: Predict the positive one of two classes, or a label, where its probability is at
                least this.
                Default: the most probable class, and labels whose probability is above 0.5.
            on_error: What becomes of a row that cannot be predicted, such as one with text in a column of
                numbers. `stop`: it is an error; `skip`: it is left out; `null`: its prediction is empty, and
                a column `error` says why. A warning says how many there are.

        Raises:
            InputError: A threshold is given, but decides nothing in this task; or as in `outputs`.
            DataError: A row cannot be predicted, and `on_error` is `stop`.
        """
        check_on_error(on_error)
        rows = self._given(rows)
        if on_error != "stop":
            return self._predict_some(rows, threshold, on_error)
        if self._task.gives_masks:  # which are smaller than the probabilities
            masks = [mask for part in self._parts(rows) for mask in self.table(part, threshold)["prediction"]]
            return self._frame(rows, {"prediction": masks})
        return self._frame(rows, self.table_of(rows, self.outputs(rows), threshold))

    def _predict_some(self, rows: Any, threshold: float | None, on_error: OnError) -> Any:
        """Return the predictions of the rows that can be predicted."""
        outputs, errors = self.outputs_or_errors(rows)
        failures = Failures(on_error)
        failures.add(count_of(rows), errors)
        failures.warn()
        values = self.placeholders(count_of(rows)) if outputs is None else outputs
        frame = self._frame(rows, self.table_of(rows, values, threshold))
        return with_errors(frame, errors, on_error, column=bool(errors))

    @property
    def gives_masks(self) -> bool:
        """True if a prediction is a mask."""
        return self._task.gives_masks

    def predict_proba(self, rows: Any) -> Array:
        """Return the probabilities of the classes or labels, (rows, classes) float32.

        Their order is that of the columns of `predict`. For masks they are (rows, classes, height, width).

        Raises:
            InputError: The task has no probabilities; or as in `outputs`.
        """
        self.check_probabilities()
        return self.outputs(rows)

    def predict_interval(self, rows: Any, level: float = 0.9) -> Any:
        """Return predictions with the ends of intervals, as a data frame: `prediction`, `lower`, `upper`.

        The intervals are calibrated on the run's validation rows; see `intervals`.

        Args:
            rows: As in `outputs`.
            level: The share of new rows whose interval holds their target.

        Raises:
            InputError: The run is no regression, has no validation rows or too few; or as in `outputs`.
            DataError: The validation rows cannot be read any more.
        """
        intervals, rows = self.intervals(level), self._given(rows)
        outputs = self.outputs(rows)
        return self._frame(rows, {**self.table(outputs), **intervals.columns(outputs)})

    def intervals(self, level: float) -> Intervals:
        """Return the intervals of a level, calibrated on the run's validation rows; see `Intervals`.

        The run keeps the residuals of these rows when it ends. Before that, the rows are read, in the working
        directory that the run was started in.

        Raises:
            InputError: The run is no regression, or has no validation rows or too few.
            DataError: The validation rows cannot be read any more.
        """
        check_level(level, self.info)
        if self._residuals is None:
            if self._run.result() is not None and (kept := self._run.read_json(FILE)):
                self._residuals = Residuals.from_json(kept)
            else:
                with contextlib.chdir(self._folder()):
                    self._residuals = residuals(self.evaluate("val"), self.info)
        if (note := chosen_on_validation(self._run, self.config)) is not None:
            log.info("%s", note)
        if (note := around_quantile(self.config)) is not None:
            log.warning("%s", note)
        return calibrated(self._residuals, level, self.info)

    def table(self, outputs: Array, threshold: float | None = None) -> dict[str, Any]:
        """Return the columns of the predictions, given what `outputs` returned.

        Raises:
            InputError: A threshold is given, but decides nothing in this task, or is no probability.
        """
        if threshold is None:
            return dict(self._task.columns(outputs))
        if not 0 <= threshold <= 1:
            raise InputError(f"a threshold of {threshold:g} given; a probability is from 0 to 1")
        return dict(self._task.columns_at(outputs, threshold))

    def table_of(self, rows: Any, outputs: Array, threshold: float | None = None) -> dict[str, Any]:
        """Return the same for rows; where these are lists of words, with an answer for each word."""
        table, preparation = self.table(outputs, threshold), self._preparation
        if not (isinstance(preparation, TextPreparation) and preparation.of_words):
            return table
        if not self._task.has_inner_labels:
            return table
        return {name: preparation.labels_of_words(rows, answers) for name, answers in table.items()}

    def check_probabilities(self) -> None:
        """Check that the task has probabilities.

        Raises:
            InputError: The task has no probabilities.
        """
        if not self._task.gives_probabilities:
            raise InputError(f"run {self._run.id} gives no probabilities: its task is {self._task.name}")

    @staticmethod
    def _frame(rows: Any, columns: Mapping[str, Any]) -> Any:
        """Return columns as a data frame with the index of the rows, if they are one themselves."""
        import pandas as pd

        return pd.DataFrame(dict(columns), index=rows.index if isinstance(rows, pd.DataFrame) else None)

    def evaluate(
        self,
        split: SplitName = "test",
        rows: Any = None,
        bundle: DataBundle | None = None,
        samples: Split | None = None,
        on_error: OnError = "stop",
    ) -> EvaluationResult:
        """Return the metrics on a split of the run's own data, or on other rows with the target column.

        Args:
            split: A split of the run's own data.
            rows: Other rows, instead of the split.
            bundle: The run's data, if it was given them as objects.
            samples: What `files.samples` returned, instead of the split.
            on_error: `skip` leaves out rows that cannot be evaluated, with a warning.

        Raises:
            InputError: The run has no such split, its data have changed, or the rows lack a column.
        """
        if samples is not None:
            chosen = samples
        elif rows is not None:
            refuse_masks(self.info, self._run.id)
            chosen = self._labeled(self._given(rows), on_error)
        else:
            chosen = self._own_split(split, bundle)
        metrics = wanted_metrics(self.config, self.info)
        predictions = self.model.evaluate(chosen, accumulators(metrics))
        return evaluate_predictions(predictions, metrics, self.info, split)

    def _labeled(self, rows: Any, on_error: OnError) -> Split:
        """Return rows with their targets; without those that cannot be used, if these are to be left out."""
        try:
            return labeled(rows, self._rows)
        except DataError:
            if on_error == "stop" or self._preparation is None:
                raise
            errors = row_errors(rows, [*self._rows.checks(), self._preparation.targets])
            if not errors or len(errors) == count_of(rows):
                raise
        failures = Failures("skip")
        failures.add(count_of(rows), errors)
        failures.warn("evaluated")
        return labeled(take(rows, np.delete(np.arange(count_of(rows)), [*errors])), self._rows)

    def explain(self, bundle: DataBundle | None = None) -> dict[str, Any]:
        """Explain the model by importance, SHAP values and partial dependence.

        See `evaluation.explanation.explain`. The result is written into the run directory, for the report.
        Where that cannot be written, the result says so in its entry `not_kept`.

        Args:
            bundle: The run's data, if it was given them as objects.

        Raises:
            InputError: The data have changed.
        """
        from trainwright.evaluation.explanation import Model, explain

        bundle = bundle or self.load_data()
        for split in bundle.splits:
            self._refuse_changed(bundle, split)
        model = Model(self.model.predict, self.native, self.model.importance())
        found = explain(model, bundle, explained_metric(self.config), self.config.experiment.seed)
        try:
            self._run.write_json("evaluation/explanation.json", found)
        except OSError as error:
            return {**found, "not_kept": f"{self._run.path} cannot be written ({error.strerror})"}
        return found

    def load_data(self) -> DataBundle:
        """Read and prepare the run's own data.

        Raises:
            InputError: They cannot be read, or were given as objects.
        """
        return self._load_data()

    def _own_split(self, split: SplitName, bundle: DataBundle | None) -> Split:
        bundle = bundle or self.load_data()
        if split not in bundle.splits:
            raise InputError(f"run {self._run.id} has no {split} split; it has {', '.join(bundle.splits)}")
        self._refuse_changed(bundle, split)
        return bundle.splits[split]

    def _refuse_changed(self, bundle: DataBundle, split: SplitName) -> None:
        recorded = self._run.require_manifest().split_sha256(split)
        if bundle.splits[split].fingerprint() != recorded:
            raise InputError(f"the {split} split is not that of run {self._run.id}: the data have changed")
