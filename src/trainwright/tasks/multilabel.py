"""Multilabel classification: each row has any number of labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from trainwright.errors import DataError, ModelError
from trainwright.tasks.base import (
    FROM_0,
    SHARE,
    Answers,
    Columns,
    ExplainedOutput,
    Floats,
    Json,
    Metric,
    Scores,
    Task,
)
from trainwright.tasks.support import labels, ranking
from trainwright.tasks.support.columns import ONE_HOT, as_json
from trainwright.tasks.support.links import sigmoid
from trainwright.tasks.support.worst import largest
from trainwright.types import Array, Ids


def _metrics() -> dict[str, Metric]:
    metrics = {
        "subset_accuracy": Metric(
            "max",
            "share of rows whose labels were all predicted correctly",
            labels.subset_accuracy,
            labels.is_exact,
            bounds=SHARE,
        ),
        "hamming_loss": Metric(
            "min",
            "share of the labels that were predicted wrongly",
            labels.hamming_loss,
            labels.wrong_share,
            bounds=SHARE,
        ),
        "log_loss": Metric(
            "min",
            "mean binary cross-entropy of the labels",
            labels.log_loss,
            labels.binary_cross_entropy,
            bounds=FROM_0,
        ),
        "roc_auc": Metric(
            "max", "area under the ROC curve, mean over the labels", labels.roc_auc, bounds=SHARE
        ),
        "average_precision": Metric(
            "max",
            "area under the precision-recall curve, mean over the labels",
            labels.average_precision,
            bounds=SHARE,
        ),
    }
    for field in ("f1", "precision", "recall"):
        metrics[field] = Metric(
            "max", f"{field}, mean over the labels", labels.averaged(field, "macro"), bounds=SHARE
        )
        for average in labels.AVERAGES:
            text = f"{field}, {average} average"
            metrics[f"{field}_{average}"] = Metric("max", text, labels.averaged(field, average), bounds=SHARE)
    return metrics


class MultilabelTask(Task):
    """Predict which labels each row has.

    Targets are (rows, labels) float32 of 0 and 1, predictions (rows, labels) float32 probabilities. A label
    is predicted if its probability is above 0.5.
    """

    name: ClassVar[str] = "multilabel"
    metrics: ClassVar[Mapping[str, Metric]] = _metrics()
    default_metrics: ClassVar[Sequence[str]] = ("f1", "subset_accuracy")
    judged_by: ClassVar[Sequence[str]] = ("hamming_loss", "log_loss")
    judged_in_words: ClassVar[Mapping[str, str]] = ranking.OF_PROBABILITIES
    usual_metric: ClassVar[str] = "log_loss"
    losses: ClassVar[Sequence[str]] = ("binary_cross_entropy", "focal", "dice")
    gives_probabilities: ClassVar[bool] = True
    targets_are_labels: ClassVar[bool] = True
    noun: ClassVar[str] = "labels"

    wants: ClassVar[str] = "0 or 1 for each label of a row"
    mistaken: ClassVar[str] = ONE_HOT

    @classmethod
    def accepts(cls, targets: Array) -> bool:
        """Return whether the targets are (rows, labels) of 0 and 1."""
        is_matrix = targets.ndim == 2 and targets.dtype.kind in "biuf"
        return is_matrix and bool(((targets == 0) | (targets == 1)).all())

    @classmethod
    def check_column(cls, values: Array, where: str) -> None:  # noqa: ARG003 - no column can be
        """Refuse a single column.

        Raises:
            DataError: Always.
        """
        raise DataError(
            f"{where} is one column, but the task is multilabel, whose targets are a matrix with a column of "
            "0 and 1 for each label; give arrays, or data.task: classification"
        )

    def blank_targets(self, rows: int) -> Array:
        """Return (rows, labels) float32 zeros."""
        return np.zeros((rows, self.info.outputs), np.float32)

    def predictions(self, outputs: Array) -> Array:
        """Return the logistic function of (rows, labels) logits."""
        return sigmoid(outputs)

    def check_outputs(self, outputs: Array, targets: Array) -> None:
        """Check that there is one probability per label.

        Raises:
            ModelError: There is not.
        """
        expected = (len(targets), self.info.outputs)
        if outputs.shape != expected:
            raise self._shape_error(outputs, expected, "one probability per label")
        if len(outputs) and (outputs.min() < 0 or outputs.max() > 1):
            raise ModelError(
                f"the model returned values from {outputs.min():.6g} to {outputs.max():.6g}; expected "
                "probabilities of the labels, from 0 to 1"
            )

    def scores(self, outputs: Array, targets: Array) -> Scores:
        """Return (rows, labels) float64 probabilities, and targets of 0 and 1."""
        return Scores(type(self), outputs.astype(np.float64), targets.astype(np.float64))

    @classmethod
    def answers(cls, scores: Scores) -> Answers:
        """Return 0 or 1 for each label of each row, (rows, labels) int64 twice, and their probabilities."""
        predicted = (scores.outputs > labels.THRESHOLD).astype(np.int64)
        return Answers(scores.targets.astype(np.int64), predicted, scores.outputs)

    # -- baselines

    def constant_in_words(self, constant: Floats) -> str:
        """Return the labels that most rows have."""
        usual = [str(name) for name, share in zip(self._labels, constant, strict=True) if share > 0.5]
        return f"always answering {', '.join(usual) or 'no label'}"

    def asked(self) -> str:
        """Return the labels, or their number."""
        names = [str(label) for label in self._labels]
        return f"tell which of {len(names)} labels a row has" + (
            f": {', '.join(names)}" if len(names) <= 4 else ""
        )

    # -- tables

    def columns(self, outputs: Array) -> Columns:
        """Return `prediction_<label>`, 0 or 1, and `probability_<label>` for each label."""
        return self._columns(outputs, outputs > labels.THRESHOLD)

    def columns_at(self, outputs: Array, threshold: float) -> Columns:
        """Return the same columns; a label is predicted from `threshold` on."""
        return self._columns(outputs, outputs >= threshold)

    def _columns(self, outputs: Array, is_chosen: Array) -> Columns:
        """Return the columns, given which labels are predicted, (rows, labels) bool."""
        chosen = is_chosen.astype(np.int64)
        predictions = {f"prediction_{label}": chosen[:, i].tolist() for i, label in enumerate(self._labels)}
        return predictions | {f"probability_{label}": outputs[:, i] for i, label in enumerate(self._labels)}

    def target_columns(self, targets: Array) -> Columns:
        """Return `target_<label>`, 0 or 1, for each label."""
        known = targets.astype(np.int64)
        return {f"target_{label}": known[:, i].tolist() for i, label in enumerate(self._labels)}

    def tables(self, scores: Scores, ids: Ids) -> Json:
        """Return `per_class` with a row for each label, `worst` with the surest mistakes, and figures."""
        table = labels.per_label(scores)
        names = [as_json(label) for label in self._labels]
        answers = [
            ranking.Answers(str(name), scores.targets[:, i] > 0, scores.outputs[:, i], scores.weights)
            for i, name in enumerate(names)
        ]
        return {
            "per_class": table.to_json(names),
            "worst": self._worst(scores, ids, names),
            "figures": ranking.figures(answers),
        }

    @staticmethod
    def _worst(scores: Scores, ids: Ids, names: list[Any]) -> list[Json]:
        """Return the rows with the greatest error of a single label."""
        errors = np.abs(scores.outputs - scores.targets)  # (rows, labels)
        at = errors.argmax(axis=1)  # (rows,)
        rows = np.arange(len(ids))
        wrong = np.flatnonzero(errors[rows, at] > labels.THRESHOLD)
        return [
            {
                "row": int(ids[row]),
                "true": f"{'' if scores.targets[row, at[row]] else 'not '}{names[at[row]]}",
                "predicted": f"{'not ' if scores.targets[row, at[row]] else ''}{names[at[row]]}",
                "probability": float(errors[row, at[row]]),
            }
            for row in wrong[largest(errors[wrong, at[wrong]])]
        ]

    # -- explanations

    def explained_outputs(self, targets: Array, limit: int) -> list[ExplainedOutput]:
        """Return the labels that most rows have, in their order."""
        every = [ExplainedOutput(i, str(as_json(label))) for i, label in enumerate(self._labels)]
        rows = targets.sum(axis=0)  # (labels,)
        return [every[i] for i in sorted(np.argsort(-rows, kind="stable")[:limit].tolist())]

    def links(self, *, binary: bool) -> Mapping[str, Callable[[Floats], Floats]]:  # noqa: ARG002 - each is
        """Return the identity and the logistic function."""
        return {"probability": lambda margins: margins, "log-odds": sigmoid}
