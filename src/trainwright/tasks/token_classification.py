"""Token classification: each token of a row is of one class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from trainwright.errors import DataError
from trainwright.tasks.base import (
    FROM_0,
    SHARE,
    Answers,
    Columns,
    ExplainedOutput,
    Floats,
    Guess,
    Json,
    Metric,
    Scores,
    Task,
)
from trainwright.tasks.support import classes
from trainwright.tasks.support.columns import as_json
from trainwright.tasks.support.guesses import PairTable, shares
from trainwright.tasks.support.links import softmax
from trainwright.types import INPUT_IDS, LABELS, NO_LABEL, Array, Batch, Ids, SplitName

Span = tuple[str, int, int]  # an entity: its kind, the first token, and the one after the last
_OUTSIDE = "O"
_MOST_CLASSES = 50  # whose probabilities given each token are computed


def _counted(scores: Scores) -> Scores:
    """Return the scores of the tokens that have a label, as those of rows: (tokens, classes), (tokens,)."""
    has_label = scores.targets != NO_LABEL  # (rows, length)
    return Scores(scores.task, scores.outputs[has_label], scores.targets[has_label], labels=scores.labels)


def _of_tokens(metric: Callable[[Scores], float]) -> Callable[[Scores], float]:
    """Return a metric of classes, computed over all tokens that have a label; NaN without any."""

    def of_tokens(scores: Scores) -> float:
        tokens = _counted(scores)
        return metric(tokens) if len(tokens.targets) else float("nan")

    return of_tokens


def _added(by_token: Callable[[Scores], Floats]) -> Callable[[Scores], Floats]:
    """Return what each row adds to the mean over all tokens that have a label: (rows,) values."""

    def added(scores: Scores) -> Floats:
        has_label = scores.targets != NO_LABEL  # (rows, length)
        values = np.zeros(has_label.shape)
        values[has_label] = by_token(_counted(scores))
        sums: Floats = values.sum(axis=1) * (len(values) / max(1, has_label.sum()))
        return sums

    return added


def _hits(tokens: Scores) -> Floats:
    hits: Floats = (tokens.predicted == tokens.targets).astype(np.float64)
    return hits


def are_tags(labels: Sequence[Any]) -> bool:
    """Return whether labels mark entities: B-PER begins a person, I-PER continues it, O is outside."""
    others = [str(label) for label in labels if label != _OUTSIDE]
    return bool(others) and all(label[:2] in ("B-", "I-") for label in others)


def spans(tags: Sequence[str]) -> set[Span]:
    """Return the entities in a row of tags; an I- of another kind than the previous tag begins one, too.

    Tjong Kim Sang and De Meulder: "Introduction to the CoNLL-2003 shared task", 2003.
    """
    found: set[Span] = set()
    kind, start = "", 0
    for i, tag in enumerate([*tags, _OUTSIDE]):
        goes_on = tag.startswith("I-") and tag[2:] == kind
        if kind and not goes_on:
            found.add((kind, start, i))
            kind = ""
        if tag != _OUTSIDE and not goes_on:
            kind, start = tag[2:], i
    return found


def entity_f1(rows: Iterable[tuple[Sequence[str], Sequence[str]]]) -> float:
    """Return the F1 of the entities of all rows, (true, predicted) tags each; 0 where there are none."""
    true = predicted = both = 0
    for tags, answers in rows:
        one, other = spans(tags), spans(answers)
        true, predicted, both = true + len(one), predicted + len(other), both + len(one & other)
    return 2 * both / (true + predicted) if true + predicted else 0.0


def _span_f1(scores: Scores) -> float:
    """Return the F1 of the entities that tags such as B-PER, I-PER and O mark; NaN for other labels."""
    if scores.labels is None or not are_tags(scores.labels):
        return float("nan")
    predicted = scores.outputs.argmax(axis=2)  # (rows, length)
    has_label = scores.targets != NO_LABEL
    tags = np.array(scores.labels, dtype=object)
    pairs = [
        (tags[true[counted]].tolist(), tags[answer[counted]].tolist())
        for true, answer, counted in zip(scores.targets, predicted, has_label, strict=True)
    ]
    return entity_f1(pairs)


def _metrics() -> dict[str, Metric]:
    metrics = {
        "token_accuracy": Metric(
            "max",
            "share of the labels that were predicted correctly",
            _of_tokens(classes.accuracy),
            parts=_added(_hits),
            bounds=SHARE,
        ),
        "log_loss": Metric(
            "min",
            "mean negative log of the true label's probability",
            _of_tokens(classes.log_loss),
            parts=_added(classes.negative_log_likelihood),
            bounds=FROM_0,
        ),
        "span_f1": Metric(
            "max", "F1 of whole entities, of labels such as B-PER, I-PER, O", _span_f1, bounds=SHARE
        ),
    }
    for field in ("f1", "precision", "recall"):
        macro = _of_tokens(classes.averaged(field, "macro"))
        metrics[field] = Metric("max", f"{field} of the labels, macro average", macro, bounds=SHARE)
        for average in ("macro", "micro", "weighted"):
            function = _of_tokens(classes.averaged(field, average))
            text = f"{field} of the labels, {average} average"
            metrics[f"{field}_{average}"] = Metric("max", text, function, bounds=SHARE)
    return metrics


class TokenClassificationTask(Task):
    """Predict the class of each token.

    A batch holds `labels`, (rows, length) int64 indices of the classes; NO_LABEL marks tokens that do not
    count. A model returns (rows, length, classes) logits. Predictions are probabilities of the same shape.
    The loss and the metrics count each label the same, in whatever row it is.
    """

    name: ClassVar[str] = "token_classification"
    metrics: ClassVar[Mapping[str, Metric]] = _metrics()
    default_metrics: ClassVar[Sequence[str]] = ("token_accuracy", "f1")
    judged_by: ClassVar[Sequence[str]] = ("token_accuracy", "log_loss")
    usual_metric: ClassVar[str] = "log_loss"
    losses: ClassVar[Sequence[str]] = ("token_cross_entropy",)
    target: ClassVar[str] = LABELS
    has_inner_labels: ClassVar[bool] = True
    noun: ClassVar[str] = "classes"

    wants: ClassVar[str] = f"(rows, length): a class for each token, {NO_LABEL} or an empty text for none"

    @classmethod
    def accepts(cls, targets: Array) -> bool:
        """Return whether there is a label for each token of each row."""
        return targets.ndim == 2 and targets.dtype.kind in "iuUO"

    @classmethod
    def check_column(cls, values: Array, where: str) -> None:  # noqa: ARG003 - no column can be
        """Refuse a single column.

        Raises:
            DataError: Always.
        """
        raise DataError(
            f"{where} is one column, but the task is {cls.name}, whose targets are {cls.wants}; give arrays"
        )

    @classmethod
    def encode_arrays(
        cls,
        targets: Mapping[SplitName, Array],
        ignored: int | None,  # noqa: ARG003 - NO_LABEL marks tokens that do not count
    ) -> tuple[list[Any] | None, dict[SplitName, Array]]:
        """Return the classes of the training rows, and labels as indices of them, (rows, length) int64."""
        labels = cls.inner_labels(next(iter(targets.values())))
        return labels, {
            name: cls.encode_inner(one, labels, f"the {name} targets") for name, one in targets.items()
        }

    @classmethod
    def inner_labels(cls, targets: Array) -> list[Any]:
        """Return the classes: the different texts, or all numbers up to the highest.

        Raises:
            DataError: No token has a class.
        """
        if targets.dtype.kind in "iu":
            if int(targets.max()) < 0:
                raise DataError(
                    f"no token has a class: all labels are {NO_LABEL} or below 0; give some tokens a class"
                )
            return list(range(int(targets.max()) + 1))
        known = sorted({str(label) for label in targets.reshape(-1) if label})
        if not known:
            raise DataError("no token has a class: all labels are empty; give some tokens a class")
        return known

    @classmethod
    def encode_inner(cls, targets: Array, labels: Sequence[Any], where: str) -> Array:
        """Return (rows, length) labels as int64 indices of the classes.

        Raises:
            DataError: One is not a class.
        """
        if targets.dtype.kind in "iu":
            codes = targets.astype(np.int64)
        else:
            index = {label: i for i, label in enumerate(labels)}
            flat = [index.get(str(one), -1) if one else NO_LABEL for one in targets.reshape(-1)]
            codes = np.array(flat, np.int64).reshape(targets.shape)
        if (unknown := (codes != NO_LABEL) & ((codes < 0) | (codes >= len(labels)))).any():
            raise DataError(
                f"{where}: the label {targets[unknown].tolist()[0]!r} is not a class of the "
                f"training rows; they have {len(labels)}; {NO_LABEL} marks tokens without a label"
            )
        return codes

    def blank_targets(self, rows: int) -> Array:
        """Return (rows, length) int64 of NO_LABEL."""
        return np.full((rows, *self._length), NO_LABEL, np.int64)

    @property
    def _length(self) -> tuple[int, ...]:
        return (
            self.info.inputs[INPUT_IDS].shape if INPUT_IDS in self.info.inputs else self.info.input_shape[:1]
        )

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(length, classes)."""
        return (*self._length, self.info.outputs)

    def predictions(self, outputs: Array) -> Array:
        """Return the softmax of (rows, length, classes) logits."""
        return softmax(outputs.reshape(-1, self.info.outputs)).reshape(outputs.shape)

    def check_outputs(self, outputs: Array, targets: Array) -> None:
        """Check that there is a probability for each class of each token."""
        expected = (len(targets), *self.output_shape)
        if outputs.shape != expected:
            raise self._shape_error(outputs, expected, "one probability per class of each token")

    def scores(self, outputs: Array, targets: Array) -> Scores:
        """Return (rows, length, classes) probabilities, and (rows, length) int64 class indices."""
        return Scores(type(self), outputs, targets.astype(np.int64, copy=False), labels=self.info.classes)

    def loss(self, scores: Scores) -> float | None:
        """Return the mean negative log-likelihood of a label."""
        return self.metrics["log_loss"].function(scores)

    @classmethod
    def answers(cls, scores: Scores) -> Answers:
        """Return the true and the predicted class of each token that has a label, (tokens,), in order."""
        tokens = _counted(scores)
        labels = np.arange(scores.outputs.shape[2]) if scores.labels is None else np.asarray(scores.labels)
        return Answers(labels[tokens.targets], labels[tokens.predicted], tokens.outputs)

    def as_values(self, targets: Array) -> Floats | None:  # noqa: ARG002 - rows have several classes
        """Return None."""
        return None

    def guesses(self, batch: Batch) -> list[Guess]:
        """Return the most frequent label of all, and that of each token if batches hold tokens."""
        labels, classes = batch[LABELS], self.info.outputs
        frequencies = shares(labels, classes)

        def by_frequency(rows: Callable[[], Batch], own: Array) -> Array:  # noqa: ARG001 - none is read
            return np.broadcast_to(frequencies, own.shape).astype(own.dtype)

        (most,) = self._named(np.array([frequencies.argmax()]))
        words = f"always answering {f'“{most}”' if isinstance(most, str) else most}, the most frequent label"
        made = [Guess("constant", words, by_frequency)]
        tokens = batch.get(INPUT_IDS)
        if tokens is None or tokens.shape != labels.shape or classes > _MOST_CLASSES:
            return made
        pairs = PairTable(tokens, labels, frequencies)

        def by_token(rows: Callable[[], Batch], own: Array) -> Array:
            ids = rows()[INPUT_IDS]
            each = [pairs.probabilities(ids, np.full(ids.shape, label)) for label in range(classes)]
            return np.stack(each, axis=-1).astype(own.dtype)

        return [*made, Guess("table", "giving each token the label that it has most often", by_token)]

    def asked(self) -> str:
        """Return the number of classes."""
        return f"tell which of {self.info.outputs} classes each token is"

    def _named(self, codes: Array) -> list[Any]:
        """Return class indices as labels, in nested lists; None where there is none."""
        labels = np.array([*map(as_json, self._labels), None], dtype=object)
        named: list[Any] = labels[np.where(codes == NO_LABEL, len(labels) - 1, codes)].tolist()
        return named

    def columns(self, outputs: Array) -> Columns:
        """Return `prediction`, the labels of all tokens of a row, those of padding too."""
        return {"prediction": self._named(outputs.argmax(axis=-1))}

    def target_columns(self, targets: Array) -> Columns:
        """Return `target`, the true labels of a row, None where there is none."""
        return {"target": self._named(targets)}

    def tables(self, scores: Scores, ids: Ids) -> Json:  # noqa: ARG002 - of all tokens together
        """Return `per_class`, with a row for each label that occurs."""
        tokens = _counted(scores)
        if not len(tokens.targets):
            return {}
        return {"per_class": classes.per_class(tokens.confusion).to_json([*map(as_json, self._labels)])}

    def explained_outputs(self, targets: Array, limit: int) -> list[ExplainedOutput]:  # noqa: ARG002
        """Return no outputs."""
        return []
