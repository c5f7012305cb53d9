"""What a run writes about its evaluation and its data, for the report."""

from __future__ import annotations

import logging
from functools import cached_property

from trainwright.datasets.base import ArraySplit, DataBundle, Split
from trainwright.datasets.samples.arrays import Arrays
from trainwright.evaluation import baselines
from trainwright.evaluation.baselines import Baseline, compared
from trainwright.evaluation.metrics import EvaluationResult
from trainwright.evaluation.origin import with_origin
from trainwright.evaluation.profile import profile
from trainwright.evaluation.tables import tables
from trainwright.plugins import task_for
from trainwright.records.document import dump
from trainwright.records.run_dir import RunDir
from trainwright.runs.wiring import Components

log = logging.getLogger("trainwright")
_TRAINING_ROWS = 2000  # that are evaluated; never more than the rows of validation and test
_FEWEST = 200


def training_sample(bundle: DataBundle) -> Split | None:
    """Return evenly spaced training rows to compare with those of validation and test.

    None where there is nothing to compare with, or predictions are costly: they do not fit in memory.
    """
    train, others = bundle.splits["train"], [len(bundle.splits.get(name, ())) for name in ("val", "test")]
    if not isinstance(train, ArraySplit) or task_for(bundle.info).sums or not any(others):
        return None
    rows = min(_TRAINING_ROWS, max(_FEWEST, *others))
    return Arrays(train.take(baselines.spaced(len(train), rows)))


class Description:
    """Make the tables of evaluations and the profile of the data, and write them into a run directory.

    Any failure but one of the tables is only a warning: no result depends on it.
    """

    def __init__(self, run: RunDir, components: Components) -> None:
        self._run = run
        self._components = components
        self._bundle = components.bundle
        self._files: dict[str, bytes] = {}

    @cached_property
    def _baselines(self) -> list[Baseline]:
        return self._bundle.once(baselines.fitted)

    def evaluation(self, result: EvaluationResult) -> None:
        """Make the tables of an evaluation, and say how baselines do on the same rows."""
        table, split = tables(result, self._bundle.info), result.split
        if split == "train":  # its rows are a sample, which no table names
            table |= {"worst": [], "sample": True}
        else:
            table = with_origin(table, self._bundle, self._components.config.data, split)
            try:
                rows = self._bundle.splits[split]
                known = self._bundle.once(baselines.kept_evaluations)
                table |= {"compared": compared(self._baselines, result, rows, self._bundle.info, known)}
            except Exception as error:
                log.warning("baselines cannot be computed: %s: %s", type(error).__name__, error)
        self._files[f"evaluation/{split}.json"] = dump(table)

    def data(self) -> None:
        """Describe the distributions of the data."""
        try:
            described = self._bundle.once(_described)
        except Exception as error:
            log.warning("the data cannot be described: %s: %s", type(error).__name__, error)
            return
        if described is not None:
            self._files["evaluation/data.json"] = described

    def write(self) -> None:
        """Write all of it.

        Raises:
            OSError: It cannot be written.
        """
        if self._files:
            self._run.write_encoded(self._files)


def _described(bundle: DataBundle) -> bytes | None:
    """Return the file with the distributions of the data; None where there is nothing to describe."""
    described = profile(bundle)
    return None if described is None else dump(described)
