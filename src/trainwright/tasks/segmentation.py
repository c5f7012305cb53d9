"""Segmentation: each pixel of an image is of one class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from trainwright.errors import DataError, InputError
from trainwright.tasks.base import SHARE, Columns, ExplainedOutput, Floats, Guess, Json, Metric, Scores, Task
from trainwright.tasks.support import classes
from trainwright.tasks.support.columns import as_json
from trainwright.tasks.support.guesses import shares
from trainwright.tasks.support.masks import class_indices, class_numbers, classes_of
from trainwright.types import Array, Batch, Ids, SplitName

_LOSS, _COUNTED, _CLASSES = range(3)  # the first columns of the sums; from the third on there are counts
_KINDS = 3  # of counts for each class: hits, predicted pixels and true pixels
_FEW = 20  # classes, of which each has metrics of its own


def _counts(scores: Scores) -> tuple[Floats, Floats, Floats]:
    """Return the pixels of each class that are hits, are predicted and are true, (classes,) each."""
    totals = scores.outputs[:, _CLASSES:].sum(axis=0).reshape(_KINDS, -1)  # (3, classes)
    return totals[0], totals[1], totals[2]


def _mean_over_classes(by_class: Callable[[Scores], Floats]) -> Callable[[Scores], float]:
    """Return the mean over the classes that occur, in the masks or among the predictions."""

    def metric(scores: Scores) -> float:
        values = by_class(scores)
        return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")

    return metric


def _iou(scores: Scores) -> Floats:
    """Return the intersection over union of each class, (classes,); NaN of one that does not occur."""
    hits, predicted, true = _counts(scores)
    return _ratio(hits, predicted + true - hits)


def _dice(scores: Scores) -> Floats:
    """Return the Dice coefficient of each class, (classes,), which is its F1; NaN as above."""
    hits, predicted, true = _counts(scores)
    return _ratio(2 * hits, predicted + true)


def _ratio(part: Floats, whole: Floats) -> Floats:
    share: Floats = np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
    return share


def _pixel_accuracy(scores: Scores) -> float:
    hits, _, true = _counts(scores)
    return float(hits.sum() / true.sum()) if true.sum() else float("nan")


def _misses(scores: Scores) -> Floats:
    """Return the number of wrong pixels in each row, (rows,), which pairs models of the same pixels."""
    counts = scores.outputs[:, _CLASSES:].reshape(len(scores.outputs), _KINDS, -1).sum(axis=2)  # (rows, 3)
    misses: Floats = counts[:, 2] - counts[:, 0]
    return misses


def _hits(scores: Scores) -> Floats:
    """Return what each row adds to the share of pixels that are hits, (rows,) values whose mean it is."""
    counts = scores.outputs[:, _CLASSES:].reshape(len(scores.outputs), _KINDS, -1).sum(axis=2)  # (rows, 3)
    hits: Floats = counts[:, 0] / max(1.0, counts[:, 2].mean())
    return hits


class SegmentationTask(Task):
    """Predict the class of each pixel.

    Targets are masks, (rows, height, width) int64 indices of the classes, NO_LABEL for pixels that do not
    count; a model returns (rows, classes, height, width) logits. The outputs of an evaluation are too large
    to keep. Sums stand for those of a row: its loss, and how much it counts in the mean (its pixels, or 1
    where the loss is one of rows); and for each class the numbers of pixels that are hits, that are predicted
    and that are true. Of rows without targets, the predictions are the probabilities themselves.
    """

    name: ClassVar[str] = "segmentation"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "iou": Metric(
            "max",
            "intersection over union (Jaccard index), mean over the classes",
            _mean_over_classes(_iou),
            bounds=SHARE,
        ),
        "dice": Metric(
            "max",
            "Dice coefficient (F1 of the pixels), mean over the classes",
            _mean_over_classes(_dice),
            bounds=SHARE,
        ),
        "pixel_accuracy": Metric(
            "max",
            "share of pixels whose class was predicted",
            _pixel_accuracy,
            paired=_misses,
            parts=_hits,
            bounds=SHARE,
        ),
    }
    default_metrics: ClassVar[Sequence[str]] = ("iou", "dice", "pixel_accuracy")
    usual_metric: ClassVar[str] = "pixel_accuracy"
    losses: ClassVar[Sequence[str]] = ("cross_entropy", "dice", "focal")
    sums: ClassVar[Sequence[str]] = ("loss", "counted", "hits", "predicted pixels", "true pixels")
    gives_masks: ClassVar[bool] = True
    gives_probabilities: ClassVar[bool] = True
    noun: ClassVar[str] = "classes"
    hub_tag: ClassVar[str] = "image-segmentation"

    # -- targets

    wants: ClassVar[str] = "masks: whole numbers, (rows, height, width)"

    @classmethod
    def accepts(cls, targets: Array) -> bool:
        """Return whether there is a number for each pixel of each row."""
        return targets.ndim == 3 and targets.dtype.kind in "biu"

    @classmethod
    def check_column(cls, values: Array, where: str) -> None:  # noqa: ARG003 - no column can be
        """Refuse a column.

        Raises:
            DataError: Always.
        """
        raise DataError(f"{where} is a column, but the task is {cls.name}, which needs {cls.wants}")

    @classmethod
    def encode_arrays(
        cls, targets: Mapping[SplitName, Array], ignored: int | None
    ) -> tuple[list[Any] | None, dict[SplitName, Array]]:
        """Return the numbers of the classes, those of all splits, and masks of their positions, int64."""
        found = {number for masks in targets.values() for number in class_numbers(masks).tolist()}
        values = classes_of(found, ignored)
        return values, {name: class_indices(masks, values, ignored) for name, masks in targets.items()}

    def blank_targets(self, rows: int) -> Array:
        """Return (rows, height, width) int64 zeros."""
        return np.zeros((rows, *self.info.target_shape), np.int64)

    # -- outputs

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(classes, height, width)."""
        return (self.info.outputs, *self.info.target_shape)

    def check_outputs(self, outputs: Array, targets: Array) -> None:
        """Check that there is a value for each of the sums.

        Raises:
            ModelError: There is not.
        """
        expected = (len(targets), _CLASSES + _KINDS * self.info.outputs)
        if outputs.shape != expected:
            raise self._shape_error(outputs, expected, "the sums over its pixels")

    def scores(self, outputs: Array, targets: Array) -> Scores:
        """Return the sums, (rows, 2 + 3 classes) float64; the targets are in them."""
        return Scores(type(self), outputs.astype(np.float64), targets, labels=self._labels)

    def loss(self, scores: Scores) -> float | None:
        """Return the mean loss of a pixel that counts, or of a row."""
        counted = scores.outputs[:, _COUNTED].sum()
        return float(scores.outputs[:, _LOSS].sum() / counted) if counted else float("nan")

    def by_target(self, scores: Scores) -> Mapping[str, Scores]:
        """Return the scores of each class alone, by its label; of many classes none."""
        if self.info.outputs > _FEW:
            return {}
        first = scores.outputs[:, :_CLASSES]
        counts = scores.outputs[:, _CLASSES:].reshape(len(scores.outputs), _KINDS, -1)
        return {
            str(label): Scores(scores.task, np.concatenate([first, counts[:, :, i]], axis=1), scores.targets)
            for i, label in enumerate(self._labels)
        }

    def as_values(self, targets: Array) -> Floats | None:  # noqa: ARG002 - masks have no mean
        """Return None."""
        return None

    @property
    def has_parts(self) -> bool:
        """True: the pixels."""
        return True

    def guesses(self, batch: Batch) -> list[Guess]:
        """Return the most frequent class for each pixel."""
        frequencies = shares(batch[self.target], self.info.outputs)
        most = int(frequencies.argmax())

        def outputs(rows: Callable[[], Batch], own: Array) -> Array:  # noqa: ARG001 - the counts tell it
            counts = np.zeros((len(own), _KINDS, self.info.outputs))
            true = own[:, _CLASSES:].reshape(counts.shape)[:, 2]  # (rows, classes)
            counts[:, 0, most], counts[:, 1, most], counts[:, 2] = true[:, most], true.sum(axis=1), true
            made = own.astype(np.float64)
            made[:, _CLASSES:] = counts.reshape(len(own), -1)
            return made

        words = f"always answering {self._labels[most]}, the most frequent class"
        return [Guess("constant", words, outputs, reads_rows=False)]

    def asked(self) -> str:
        """Return the number of the classes."""
        return f"tell which of {self.info.outputs} classes each pixel of an image is"

    # -- tables

    @property
    def _labels(self) -> list[Any]:
        """The numbers or names of the classes in index order."""
        return [as_json(label) for label in self.info.classes or range(self.info.outputs)]

    def columns(self, outputs: Array) -> Columns:
        """Return `prediction`: masks, (height, width) each, of the most probable classes.

        They hold the numbers of the training masks. Of the sums of an evaluation, return its hits and pixels.
        """
        if outputs.ndim == 2:
            counts = outputs[:, _CLASSES:].reshape(len(outputs), _KINDS, -1).sum(axis=2)  # (rows, 3)
            return {"hits": counts[:, 0].astype(np.int64), "pixels": counts[:, 2].astype(np.int64)}
        return {"prediction": list(self._masks(outputs.argmax(axis=1)))}

    def columns_at(self, outputs: Array, threshold: float) -> Columns:
        """Return the same; the second of two classes is predicted from `threshold` on.

        Raises:
            InputError: There are more than two classes.
        """
        if self.info.outputs != 2:
            raise InputError(
                f"a threshold decides between two classes, but there are {self.info.outputs}: leave it out, "
                "and the most probable class is predicted"
            )
        return {"prediction": list(self._masks((outputs[:, 1] >= threshold).astype(np.int64)))}

    def _masks(self, indices: Array) -> Array:
        """Return masks of the classes' numbers, in the smallest unsigned integers that hold them."""
        numbers = np.array(
            [label if isinstance(label, int) else i for i, label in enumerate(self._labels)], np.int64
        )
        is_plain = numbers.min() >= 0 and numbers.max() < 1 << 16
        dtype = np.min_scalar_type(int(numbers.max())) if is_plain else np.int64
        masks: Array = numbers.astype(dtype)[indices]
        return masks

    def target_columns(self, targets: Array) -> Columns:  # noqa: ARG002 - a mask is no column
        """Return no columns."""
        return {}

    def tables(self, scores: Scores, ids: Ids) -> Json:  # noqa: ARG002 - no image is named
        """Return `per_class`, whose supports are pixels."""
        hits, predicted, true = _counts(scores)
        table = classes.PerClass(
            classes.ratio(hits, predicted),
            classes.ratio(hits, true),
            classes.ratio(2 * hits, true + predicted),
            true.astype(np.int64),
            predicted.astype(np.int64),
        )
        return {"per_class": table.to_json(self._labels)}

    def explained_outputs(self, targets: Array, limit: int) -> list[ExplainedOutput]:  # noqa: ARG002
        """Return no outputs."""
        return []
