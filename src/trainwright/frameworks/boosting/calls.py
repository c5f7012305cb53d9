"""Calls of a library and of the user's functions: blocks of predictions, and errors in our words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np

from trainwright.errors import TrainwrightError
from trainwright.types import Array, Predictions

HINT = "see where with --debug"
_BLOCK = 1 << 16  # rows per yielded block of predictions

# (what is done, the kind of our error) -> a context in which other errors become one of that kind.
Translated = Callable[[str, type[TrainwrightError]], AbstractContextManager[None]]


def translator(library_error: str, readable: Callable[[str], tuple[str, str]]) -> Translated:
    """Return a context that raises errors of a library and of the user's functions as ours, in one line.

    Args:
        library_error: The name of the library's class of errors.
        readable: Returns the essential line of an error's text, and a hint.
    """

    @contextmanager
    def translated(what: str, kind: type[TrainwrightError]) -> Iterator[None]:
        try:
            yield
        except TrainwrightError:
            raise
        except Exception as error:
            name = type(error).__name__
            message, hint = readable(str(error))
            raise kind(f"{what}: {'' if name == library_error else f'{name}: '}{message}; {hint}") from error

    return translated


def predicted_in_blocks(
    raw: Array,
    targets: Array,
    weights: Array | None,
    evaluate: Callable[[Array, Array, Array | None], tuple[Array, float]],
) -> Iterator[Predictions]:
    """Yield the outputs for all rows, block by block.

    Args:
        raw: (rows, width) raw values.
        targets: (rows,) or (rows, outputs) targets, as the data hold them.
        weights: (rows,) weights of the rows; None: all count the same.
        evaluate: Returns the outputs and the mean loss of a block of these three.
    """
    for start in range(0, len(raw), _BLOCK):
        rows = slice(start, start + _BLOCK)
        counts = None if weights is None else weights[rows]
        outputs, loss = evaluate(raw[rows], targets[rows], counts)
        total = len(outputs) if counts is None else float(counts.sum())
        ids = np.arange(start, start + len(outputs), dtype=np.int64)
        yield Predictions(ids, outputs, targets[rows], loss * total, weights=counts)
