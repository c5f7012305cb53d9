"""Classification: each row is of one class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from trainwright.errors import DataError, InputError
from trainwright.tasks.base import (
    CORRELATION,
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
from trainwright.tasks.support import classes, ranking
from trainwright.tasks.support.columns import FEW, are_integers, as_json, distinct_labels, is_few, is_numeric
from trainwright.tasks.support.links import sigmoid, softmax
from trainwright.tasks.support.positive import KEY, PositiveClass, positive_of_two
from trainwright.tasks.support.worst import largest
from trainwright.types import Array, Ids

MAX_CONFUSION = 200  # classes; a larger matrix is unreadable


def _metrics() -> dict[str, Metric]:
    metrics = {
        "accuracy": Metric(
            "max",
            "share of rows whose class was predicted correctly",
            classes.accuracy,
            classes.is_correct,
            bounds=SHARE,
        ),
        "balanced_accuracy": Metric(
            "max", "mean recall of the classes", classes.balanced_accuracy, bounds=SHARE
        ),
        "roc_auc": Metric("max", "area under the ROC curve, one-vs-rest", classes.roc_auc, bounds=SHARE),
        "average_precision": Metric(
            "max", "area under the precision-recall curve", classes.average_precision, bounds=SHARE
        ),
        "log_loss": Metric(
            "min",
            "mean negative log of the true class's probability",
            classes.log_loss,
            classes.negative_log_likelihood,
            bounds=FROM_0,
        ),
        "brier": Metric(
            "min",
            "Brier score: squared error of the probabilities",
            classes.brier,
            classes.squared_probability_error,
            bounds=(0.0, 2.0),
        ),
        "mcc": Metric("max", "Matthews correlation coefficient", classes.mcc, bounds=CORRELATION),
        "kappa": Metric("max", "Cohen's kappa: agreement beyond chance", classes.kappa, bounds=CORRELATION),
    }
    text = "Jaccard index of the positive class; macro average of 3 or more"
    metrics["jaccard"] = _of_classes(text, "jaccard", "auto")
    text = "recall of the negative class; of 3 or more the mean true negative rate"
    metrics["specificity"] = _of_classes(text, "specificity", "auto")
    for k in (3, 5):
        text = f"share of rows whose class is among the {k} most probable"
        metrics[f"top_{k}_accuracy"] = Metric("max", text, classes.top_k_accuracy(k), bounds=SHARE)
    of_a_class: tuple[Literal["f1", "precision", "recall"], ...] = ("f1", "precision", "recall")
    for field in of_a_class:
        text = f"{field} of the positive class (evaluation.positive); macro average of 3 or more"
        metrics[field] = _of_classes(text, field, "auto")
        for average in classes.AVERAGES:
            text = (
                f"{field} of the positive one of two classes"
                if average == "binary"
                else f"{field}, {average} average"
            )
            metrics[f"{field}_{average}"] = _of_classes(text, field, average)
    return metrics


def _of_classes(description: str, field: classes.Field, average: classes.Average) -> Metric:
    share = classes.rows_of_share(field, average)
    return Metric("max", description, classes.averaged(field, average), share=share, bounds=SHARE)


class ClassificationTask(Task):
    """Predict the class of each row.

    Targets are (rows,) int64 indices of the classes, predictions (rows, classes) float32 probabilities.
    """

    name: ClassVar[str] = "classification"
    metrics: ClassVar[Mapping[str, Metric]] = _metrics()
    default_metrics: ClassVar[Sequence[str]] = ("accuracy", "f1")
    judged_by: ClassVar[Sequence[str]] = ("accuracy", "log_loss")
    judged_in_words: ClassVar[Mapping[str, str]] = ranking.OF_PROBABILITIES
    usual_metric: ClassVar[str] = "log_loss"
    losses: ClassVar[Sequence[str]] = ("cross_entropy", "focal")
    gives_probabilities: ClassVar[bool] = True
    noun: ClassVar[str] = "classes"
    hub_tag: ClassVar[str] = "tabular-classification"

    # -- targets

    wants: ClassVar[str] = "whole numbers or text, one for each row"

    @classmethod
    def accepts(cls, targets: Array) -> bool:
        """Return whether there is one label for each row."""
        return targets.ndim == 1 and targets.dtype.kind in "biuUO"

    @classmethod
    def check_column(cls, values: Array, where: str) -> None:
        """Refuse continuous values, and columns with hardly one row per class."""
        distinct = len(distinct_labels(values))
        if is_numeric(values) and not are_integers(values) and not is_few(values, distinct):
            raise DataError(
                f"{where} is continuous ({distinct} different values such as {values[0]:g}), but the task is "
                "classification; give data.task: regression, or a column of classes"
            )
        if distinct > max(FEW, len(values) // 2):
            raise DataError(
                f"{where} has {distinct} classes in {len(values)} rows, hardly one row per class; "
                "give data.task: regression if these are amounts, or another column"
            )

    @classmethod
    def labels(cls, values: Array) -> list[Any] | None:
        """Return the sorted labels."""
        return distinct_labels(values)

    def positive_class(self, named: Any, counts: Callable[[], Array | None]) -> PositiveClass | None:
        """Return the positive one of two classes; of more, none is."""
        labels = self._labels
        if len(labels) == 2:
            return positive_of_two(named, labels, counts)
        if named is not None:
            raise InputError(
                f"{KEY}: {named} given, which is for two classes, but {self.info.target} has {len(labels)}; "
                "leave it out"
            )
        return None

    @property
    def _positive(self) -> int:
        """The index of the positive one of two classes; where nothing was said of it, the second."""
        return 1 if self.info.positive is None else self.info.positive

    def blank_targets(self, rows: int) -> Array:
        """Return (rows,) int64 zeros."""
        return np.zeros(rows, np.int64)

    # -- outputs

    def predictions(self, outputs: Array) -> Array:
        """Return the softmax of (rows, classes) logits."""
        return softmax(outputs)

    def check_outputs(self, outputs: Array, targets: Array) -> None:
        """Check that there is one probability per class."""
        expected = (len(targets), self.info.outputs)
        if outputs.shape != expected:
            raise self._shape_error(outputs, expected, "one probability per class")

    def scores(self, outputs: Array, targets: Array) -> Scores:
        """Return (rows, classes) probabilities in their own dtype, and (rows,) int64 class indices."""
        return Scores(
            type(self),
            outputs,
            targets.astype(np.int64, copy=False),
            labels=self.info.classes,
            positive=self._positive,
        )

    @classmethod
    def answers(cls, scores: Scores) -> Answers:
        """Return the labels of the true and of the most probable classes, (rows,), and probabilities.

        Labels are as in the data; probabilities are those of the positive one of two classes, (rows,), or of
        each class, (rows, classes).
        """
        labels = np.arange(scores.outputs.shape[1]) if scores.labels is None else np.asarray(scores.labels)
        probabilities = scores.outputs[:, scores.positive] if len(labels) == 2 else scores.outputs
        return Answers(labels[scores.targets], labels[scores.predicted], probabilities)

    # -- baselines

    def as_values(self, targets: Array) -> Floats | None:
        """Return (rows, classes) of 0 and 1: the mean holds the shares of the classes."""
        return np.asarray(targets[:, None] == np.arange(self.info.outputs), np.float64)

    def constant_in_words(self, constant: Floats) -> str:
        """Return the class that occurs most."""
        label = self._labels[int(constant.argmax())]
        answer = f"“{label}”" if isinstance(label, str) else label
        return f"always answering {answer}, the most frequent class"

    def asked(self) -> str:
        """Return the classes to tell apart, or their number."""
        labels = [str(label) for label in self._labels]
        few = f"{', '.join(labels[:-1])} or {labels[-1]}" if 1 < len(labels) <= 4 else ""
        return f"tell which of {len(labels)} classes {self.info.target} is" + (f": {few}" if few else "")

    # -- tables

    def columns(self, outputs: Array) -> Columns:
        """Return `prediction`, the label of the most probable class, and a `probability_<class>` for each."""
        return self._columns(outputs, outputs.argmax(axis=1))

    def columns_at(self, outputs: Array, threshold: float) -> Columns:
        """Return the same columns; the positive one of two classes is predicted from `threshold` on.

        Raises:
            InputError: There are more than two classes.
        """
        if len(self._labels) != 2:
            raise InputError(
                f"a threshold decides between two classes, but there are {len(self._labels)}: leave it "
                "out, and the most probable class is predicted"
            )
        is_positive = outputs[:, self._positive] >= threshold
        return self._columns(outputs, np.where(is_positive, self._positive, 1 - self._positive))

    def _columns(self, outputs: Array, chosen: Array) -> Columns:
        """Return the columns, given the index of the class that is predicted for each row, (rows,)."""
        labels = self._labels
        probabilities = {f"probability_{label}": outputs[:, i] for i, label in enumerate(labels)}
        return {"prediction": [labels[i] for i in chosen], **probabilities}

    def target_columns(self, targets: Array) -> Columns:
        """Return the labels of the true classes."""
        labels = self._labels
        return {"target": [labels[index] for index in targets]}

    def tables(self, scores: Scores, ids: Ids) -> Json:
        """Return `confusion` (for at most 200 classes), what is of two classes, and the other tables."""
        labels = [as_json(value) for value in self._labels]
        table = classes.per_class(scores.confusion)
        answers = self._answers_by_class(scores, labels)
        return {
            "confusion": {"labels": labels, "matrix": scores.confusion.tolist()}
            if len(labels) <= MAX_CONFUSION
            else None,
            "positive": labels[scores.positive] if len(labels) == 2 else None,
            "positive_reason": self.info.positive_reason,
            "per_class": table.to_json(labels),
            "worst": self._worst(scores, ids, labels),
            "figures": ranking.figures(answers),
            "thresholds": ranking.thresholds(answers[0]) if len(labels) == 2 else None,
        }

    @staticmethod
    def _answers_by_class(scores: Scores, labels: list[Any]) -> list[ranking.Answers]:
        """Return the answers for each class; of two classes for the positive one only."""
        shown = [scores.positive] if len(labels) == 2 else range(len(labels))
        return [
            ranking.Answers(str(labels[i]), scores.targets == i, scores.outputs[:, i], scores.weights)
            for i in shown
        ]

    @staticmethod
    def _worst(scores: Scores, ids: Ids, labels: list[Any]) -> list[Json]:
        """Return the wrong predictions with the highest probabilities."""
        confidence = scores.outputs[np.arange(len(ids)), scores.predicted]
        wrong = np.flatnonzero(scores.predicted != scores.targets)
        return [
            {
                "row": int(ids[index]),
                "true": labels[scores.targets[index]],
                "predicted": labels[scores.predicted[index]],
                "probability": float(confidence[index]),
            }
            for index in wrong[largest(confidence[wrong])]
        ]

    # -- explanations

    def explained_outputs(self, targets: Array, limit: int) -> list[ExplainedOutput]:
        """Return the positive one of two classes, or those with the most rows, in their order."""
        every = [ExplainedOutput(i, str(as_json(label))) for i, label in enumerate(self._labels)]
        if len(every) == 2:  # the other one is its complement
            return [every[self._positive]]
        rows = np.bincount(targets, minlength=len(every))
        return [every[i] for i in sorted(np.argsort(-rows, kind="stable")[:limit].tolist())]

    def links(self, *, binary: bool) -> Mapping[str, Callable[[Floats], Floats]]:
        """Return the identity, and the logistic function or the softmax."""
        if binary:
            return {"probability": lambda margins: margins, "log-odds": sigmoid}
        return {"probability": lambda margins: margins, "score": softmax}
