"""The contract suite of tasks: shapes that fit together, metrics that are what they claim, sums that add up.

    class TestMine(TaskSuite):
        def make(self) -> MineTask:
            return MineTask(DataInfo(...))

        def drawn(self, rows: int, seed: int) -> tuple[Array, Array]:
            return outputs, targets      # predictions of a mediocre model, and the targets

The contract is in `tasks/base.py`.
"""

from __future__ import annotations

import json
import math

import numpy as np

from trainwright.evaluation.metrics import evaluate_predictions
from trainwright.evaluation.tables import tables
from trainwright.tasks.base import Task
from trainwright.types import Array, DataInfo, Predictions

_ROWS = 60


class TaskSuite:
    """Tests of the contract; subclass it in a test module of the task."""

    def make(self) -> Task:
        """Return the task for some data."""
        raise NotImplementedError

    def drawn(self, rows: int, seed: int) -> tuple[Array, Array]:
        """Return predictions of a mediocre model, and the targets, as the task states them."""
        raise NotImplementedError

    def _predictions(self, rows: int = _ROWS, seed: int = 1) -> list[Predictions]:
        """Return the predictions in two parts of unequal length."""
        outputs, targets = self.drawn(rows, seed)
        cut, ids = rows // 3, np.arange(rows)
        return [
            Predictions(ids[part], outputs[part], targets[part], 1.0)
            for part in (slice(0, cut), slice(cut, rows))
        ]

    def test_its_names_are_known(self) -> None:
        """The default metrics and the usual one exist, and there is a default loss."""
        task = self.make()
        assert task.name
        usual = (
            {task.usual_metric} if task.metrics else set()
        )  # a task without any is judged by its loss alone
        assert {*task.default_metrics, *usual} <= set(task.metrics)
        assert task.losses
        assert all(metric.mode in ("min", "max") and metric.description for metric in task.metrics.values())

    def test_the_description_of_the_data_is_read_back(self) -> None:
        """The description that data.json holds makes the same task."""
        info = self.make().info
        assert DataInfo.from_json(json.loads(json.dumps(info.to_json()))).to_json() == info.to_json()

    def test_an_evaluation_in_parts_is_that_of_all_rows(self) -> None:
        """The metrics do not depend on how the rows were divided, and those by default are finite."""
        task, parts = self.make(), self._predictions()
        outputs, targets = self.drawn(_ROWS, 1)
        at_once = [Predictions(np.arange(_ROWS), outputs, targets, 2.0)]
        metrics, expected = (
            evaluate_predictions(predictions, list(task.metrics), task.info, "val").metrics
            for predictions in (parts, at_once)
        )
        np.testing.assert_equal(metrics, expected)  # a NaN equals a NaN
        assert all(math.isfinite(metrics[f"val_{name}"]) for name in task.default_metrics)
        for name, metric in task.metrics.items():
            value, (low, high) = metrics[f"val_{name}"], metric.bounds
            assert math.isnan(value) or low <= value <= high, name
        assert math.isfinite(metrics["val_loss"])
        alone = task.by_target(task.scores(outputs, targets))
        names = [*task.metrics, *(f"{name}_{target}" for name in task.metrics for target in alone)]
        assert set(metrics) == {"val_loss", *(f"val_{name}" for name in names)}

    def test_without_rows_all_metrics_are_nan(self) -> None:
        """An empty split gives NaN, not an error."""
        task = self.make()
        metrics = evaluate_predictions([], list(task.metrics), task.info, "val").metrics
        assert all(math.isnan(value) for value in metrics.values())

    def test_outputs_that_are_not_finite_give_nan(self) -> None:
        """A model that diverged has no metrics, and no rows in its tables."""
        task, parts = self.make(), self._predictions()
        broken = parts[0].outputs.copy()
        broken.reshape(-1)[0] = np.nan
        parts[0] = parts[0]._replace(outputs=broken)
        result = evaluate_predictions(parts, list(task.metrics), task.info, "val")
        assert all(math.isnan(result.metrics[f"val_{name}"]) for name in task.metrics)
        assert tables(result, task.info)["worst"] == []

    def test_means_over_rows_are_means_over_rows(self) -> None:
        """`Metric.by_row` returns what the metric is the mean of, for these rows and for others."""
        task = self.make()
        scores = task.scores(*self.drawn(_ROWS, 1))
        for name, metric in task.metrics.items():
            for by_row in filter(None, (metric.by_row, metric.parts)):
                values = by_row(scores)
                assert values.shape == (_ROWS,), name
                assert values.dtype == np.float64, name
                assert math.isclose(float(values.mean()), metric.function(scores), rel_tol=1e-6), name

    def test_paired_values_agree_with_the_metric(self) -> None:
        """Check that the mean of `Metric.paired` prefers the same one of two models as the metric does."""
        task = self.make()
        outputs, targets = self.drawn(_ROWS, 1)
        others, _ = self.drawn(_ROWS, 2)
        one, other = task.scores(outputs, targets), task.scores(others, targets)
        for name, metric in task.metrics.items():
            values = [metric.paired(scores) if metric.paired else None for scores in (one, other)]
            if values[0] is not None and values[1] is not None:
                gap = float(values[0].mean() - values[1].mean())
                effect = metric.function(one) - metric.function(other)
                assert effect == 0 or (gap < 0) == ((effect < 0) == (metric.mode == "min")), name

    def test_columns_have_a_value_for_each_row(self) -> None:
        """The tables of predictions and of targets are rectangular, and stand side by side."""
        task = self.make()
        outputs, targets = self.drawn(_ROWS, 1)
        columns, true = task.columns(outputs), task.target_columns(targets)
        assert columns
        assert all(len(values) == _ROWS for values in (*columns.values(), *true.values()))
        assert not set(columns) & set(true)

    def test_tables_are_json(self) -> None:
        """The tables of the report hold plain values, and name rows by their ids."""
        task = self.make()
        result = evaluate_predictions(self._predictions(), list(task.metrics), task.info, "test")
        table = tables(result, task.info)
        assert json.loads(json.dumps(table, allow_nan=False)) == table
        assert {row["row"] for row in table["worst"]} <= set(range(_ROWS))

    def test_figures_are_of_known_kinds(self) -> None:
        """The page can draw each figure of the tables, which stay small."""
        task = self.make()
        result = evaluate_predictions(self._predictions(), list(task.metrics), task.info, "test")
        figures = tables(result, task.info)["figures"]
        assert {figure["kind"] for figure in figures} <= {"lines", "scatter", "histogram"}
        assert all(figure["title"] and figure["x"] and figure["caption"] for figure in figures)

    def test_a_constant_answer_has_words(self) -> None:
        """Targets as values have a mean that is an answer, and the task says both in words."""
        task = self.make()
        _, targets = self.drawn(_ROWS, 1)
        values = task.as_values(targets)
        assert task.asked()
        assert set(task.judged_by) <= set(task.metrics)
        if values is not None:
            assert values.shape == (_ROWS, task.info.outputs)
            assert task.constant_in_words(values.mean(axis=0))

    def test_blank_targets_can_be_batched(self) -> None:
        """Rows whose target is unknown have targets of the shape and dtype of known ones."""
        task = self.make()
        assert len(task.blank_targets(3)) == 3
        if not task.sums:
            _, targets = self.drawn(_ROWS, 1)
            blank = task.blank_targets(3)
            assert (blank.dtype, blank.shape[1:]) == (targets.dtype, targets.shape[1:])

    def test_explained_outputs_are_among_the_outputs(self) -> None:
        """`explained_outputs` keeps to the limit, and to the outputs that there are."""
        task = self.make()
        outputs, targets = self.drawn(_ROWS, 1)
        for most in (1, 20):
            shown = task.explained_outputs(targets, most)
            assert len(shown) <= most
            width = outputs.reshape(_ROWS, -1).shape[1]
            assert all(0 <= output.position < width and output.name for output in shown)
