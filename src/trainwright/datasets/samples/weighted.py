"""Samples that are read one by one, with a weight for each that is known beforehand."""

from __future__ import annotations

from collections.abc import Callable

from trainwright.datasets.base import Draw, ReadFromFiles, Reading, SampleSplit, unnoted
from trainwright.types import WEIGHT, Array, Batch, Ids


class WeightedSamples:
    """A `KnownSplit`: the samples of another split, and their weights, (rows,) float64."""

    def __init__(self, split: SampleSplit, weights: Array) -> None:
        self._split = split
        self.known: Batch = {WEIGHT: weights}

    def __len__(self) -> int:
        return len(self._split)

    @property
    def reading(self) -> Reading:
        """How the samples are read."""
        return self._split.reading

    def with_known(self, known: Batch) -> WeightedSamples:
        """Return the same samples with other weights."""
        return WeightedSamples(self._split, known[WEIGHT])

    def take(self, ids: Ids) -> Batch:
        """Return the samples `ids`, with their weights."""
        return {**self._split.take(ids), WEIGHT: self.known[WEIGHT][ids]}

    def read(self, ids: Ids, draw: Draw, note: Callable[[int], None] = unnoted) -> Batch:
        """Return the same, with random numbers of each sample's own."""
        return {**self._split.read(ids, draw, note), WEIGHT: self.known[WEIGHT][ids]}

    @property
    def files_read(self) -> list[str]:
        """The files of the samples; see `ReadFromFiles`."""
        return list(self._split.files_read) if isinstance(self._split, ReadFromFiles) else []

    def fingerprint(self) -> str:
        """Return that of the samples: their weights follow from their classes and the config."""
        return self._split.fingerprint()
