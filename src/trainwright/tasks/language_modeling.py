"""Language modeling: predict the next token at each position of a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np

from trainwright.errors import DataError
from trainwright.tasks.base import (
    FROM_0,
    SHARE,
    Columns,
    ExplainedOutput,
    Floats,
    Guess,
    Json,
    Metric,
    Scores,
    Task,
)
from trainwright.tasks.support.guesses import PairTable, shares
from trainwright.types import INPUT_IDS, LABELS, NO_LABEL, Array, Batch, Ids

_NATS, _TOKENS, _HITS, _BYTES = range(4)  # the columns of the sums; without the last, tokens are bytes


def _ratio(column: int, unit: int) -> Callable[[Scores], float]:
    def metric(scores: Scores) -> float:
        totals = scores.outputs.sum(axis=0)  # (3,) or (4,)
        count = totals[unit if unit < len(totals) else _TOKENS]
        return float(totals[column] / count) if count else float("nan")

    return metric


def _added(column: int, unit: int, scale: float = 1.0) -> Callable[[Scores], Floats]:
    """Return what each row adds to a ratio of sums: (rows,) values whose mean it is."""

    def added(scores: Scores) -> Floats:
        count = scores.outputs[:, unit if unit < scores.outputs.shape[1] else _TOKENS].mean()
        values: Floats = scores.outputs[:, column] * (scale / count if count else float("nan"))
        return values

    return added


_nats_per_token = _ratio(_NATS, _TOKENS)
_nats_per_byte = _ratio(_NATS, _BYTES)


def _bits_per_byte(scores: Scores) -> float:
    return float(_nats_per_byte(scores) / np.log(2))


def _perplexity(scores: Scores) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(_nats_per_token(scores)))


def _row_nats(scores: Scores) -> Floats | None:
    """Return the nats of each row, (rows,), which pair models; None unless all rows have one length."""
    tokens = scores.outputs[:, _TOKENS]
    return scores.outputs[:, _NATS] if (tokens == tokens[0]).all() else None


def _sums(own: Array, labels: Array, likely: Array, hits: Array) -> Array:
    """Return the sums of rows, as `own` has them, for another model.

    Args:
        own: The sums of the model, (rows, 3) or (rows, 4): those of tokens and bytes are the same.
        labels: The labels, (rows, length); where there is none, nothing counts.
        likely: The probability that the other model gave each of them, (rows, length).
        hits: Whether it is its most probable one, (rows, length).
    """
    counted, sums = labels != NO_LABEL, own.astype(np.float64)
    sums[:, _NATS] = -(np.log(likely) * counted).sum(axis=1)
    sums[:, _HITS] = (hits & counted).sum(axis=1)
    return sums


class LanguageModelingTask(Task):
    """Predict the next token at each position.

    A batch holds `input_ids` and `labels`, (rows, length) int64; a model returns (rows, length, tokens)
    logits. The labels are shifted by one position already: `labels[:, i]` follows `input_ids[:, i]`. NO_LABEL
    marks positions that do not count. The outputs of a row are too large to keep. Three sums over its
    positions stand for them: the negative log-likelihood in nats, the number of tokens, and the number of
    hits, which are tokens that had the highest logit. If tokens are not bytes, there is a fourth one: the
    bytes of the text that the tokens stand for, which the batch holds as `text_bytes`. So `bits_per_byte` of
    models with different tokenizers can be compared; the loss and `perplexity`, per token, cannot.
    """

    name: ClassVar[str] = "language_modeling"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "bits_per_byte": Metric(
            "min",
            "bits to encode a byte of the text",
            _bits_per_byte,
            paired=_row_nats,
            parts=_added(_NATS, _BYTES, 1 / np.log(2)),
            bounds=FROM_0,
        ),
        "perplexity": Metric(
            "min",
            "exponential of the mean negative log-likelihood of a token",
            _perplexity,
            paired=_row_nats,
            bounds=(1.0, np.inf),
        ),
        "token_accuracy": Metric(
            "max",
            "share of tokens that had the highest logit",
            _ratio(_HITS, _TOKENS),
            parts=_added(_HITS, _TOKENS),
            bounds=SHARE,
        ),
    }
    default_metrics: ClassVar[Sequence[str]] = ("bits_per_byte", "token_accuracy")
    usual_metric: ClassVar[str] = "bits_per_byte"
    losses: ClassVar[Sequence[str]] = ("token_cross_entropy",)
    target: ClassVar[str] = LABELS
    sums: ClassVar[Sequence[str]] = ("nats", "tokens", "hits")
    generates_text: ClassVar[bool] = True
    noun: ClassVar[str] = "tokens"
    samples: ClassVar[str] = "windows"
    hub_tag: ClassVar[str] = "text-generation"

    wants: ClassVar[str] = "text (data.type: text)"

    @classmethod
    def accepts(cls, targets: Array) -> bool:  # noqa: ARG003 - none are
        """Return False: the targets are the text itself."""
        return False

    @classmethod
    def check_column(cls, values: Array, where: str) -> None:  # noqa: ARG003 - no column can be
        """Refuse a column.

        Raises:
            DataError: Always.
        """
        raise DataError(f"{where} is a column, but the task is {cls.name}, which needs {cls.wants}")

    @property
    def metrics_by_default(self) -> Sequence[str]:
        """Without the bytes of tokens, the perplexity instead of the bits of a byte."""
        return self.default_metrics if self.info.counts_bytes else ("perplexity", "token_accuracy")

    def blank_targets(self, rows: int) -> Array:
        """Return (rows, length) int64 zeros."""
        return np.zeros((rows, *self.info.inputs[INPUT_IDS].shape), np.int64)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(length, tokens)."""
        return (*self.info.inputs[INPUT_IDS].shape, self.info.outputs)

    def check_outputs(self, outputs: Array, targets: Array) -> None:
        """Check that there is a value for each of the sums.

        Raises:
            ModelError: There is not.
        """
        expected = (len(targets), len(self.sums))
        if outputs.shape not in (expected, (len(targets), len(self.sums) + 1)):
            raise self._shape_error(outputs, expected, " and ".join(self.sums))

    def scores(self, outputs: Array, targets: Array) -> Scores:
        """Return the sums, (rows, 3) or (rows, 4) float64; the targets are in them."""
        return Scores(type(self), outputs.astype(np.float64), targets)

    def loss(self, scores: Scores) -> float | None:
        """Return the mean negative log-likelihood of a token, in nats."""
        return _nats_per_token(scores)

    def as_values(self, targets: Array) -> Floats | None:  # noqa: ARG002 - a text has no mean
        """Return None."""
        return None

    @property
    def has_parts(self) -> bool:
        """True: the tokens."""
        return True

    def guesses(self, batch: Batch) -> list[Guess]:
        """Return guesses by the frequencies of tokens, and of pairs of tokens that follow each other."""
        frequencies = shares(batch[LABELS], self.info.outputs)
        pairs = PairTable(batch[INPUT_IDS], batch[LABELS], frequencies)

        def by_frequency(rows: Callable[[], Batch], own: Array) -> Array:
            labels = rows()[LABELS]
            return _sums(own, labels, frequencies[labels], labels == frequencies.argmax())

        def by_pairs(rows: Callable[[], Batch], own: Array) -> Array:
            tokens, labels = rows()[INPUT_IDS], rows()[LABELS]
            likely = pairs.probabilities(tokens, np.where(labels == NO_LABEL, 0, labels))
            return _sums(own, labels, likely, labels == pairs.best(tokens))

        return [
            Guess("constant", f"guessing by how often each {self._token} occurs", by_frequency),
            Guess("table", f"a table of which {self._token} follows which", by_pairs),
        ]

    def asked(self) -> str:
        """Return that the text goes on."""
        return "predict how a text goes on, token by token"

    @property
    def _token(self) -> str:
        return "byte" if self.info.outputs == 1 << 8 else "token"

    def columns(self, outputs: Array) -> Columns:
        """Return the sums of each row, the loss in `nats` first, and `bits_per_byte` and `token_accuracy`."""
        tokens = np.maximum(outputs[:, _TOKENS], 1)
        text_bytes = tokens if outputs.shape[1] <= _BYTES else np.maximum(outputs[:, _BYTES], 1)
        text_bytes = text_bytes if self.info.counts_bytes else np.full(len(tokens), np.nan)
        return {
            "nats": outputs[:, _NATS],
            **{name: outputs[:, i].astype(np.int64) for i, name in enumerate(self.sums) if i != _NATS},
            **({} if outputs.shape[1] <= _BYTES else {"text_bytes": outputs[:, _BYTES].astype(np.int64)}),
            "bits_per_byte": outputs[:, _NATS] / text_bytes / np.log(2),
            "token_accuracy": outputs[:, _HITS] / tokens,
        }

    def target_columns(self, targets: Array) -> Columns:  # noqa: ARG002 - a text is no column
        """Return no columns."""
        return {}

    def tables(self, scores: Scores, ids: Ids) -> Json:  # noqa: ARG002 - the metrics say it all
        """Return no tables."""
        return {}

    def explained_outputs(self, targets: Array, limit: int) -> list[ExplainedOutput]:  # noqa: ARG002
        """Return no outputs."""
        return []
