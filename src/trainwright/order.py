"""Sample order and random streams, as functions of (seed, epoch, step, sample).

Nothing here has state that a resume would need: the ids of any step's samples, and the seed of any of its
random streams, are computed from counter-based keys. No library's random generator is involved, since their
streams may change from one version to the next. The version of these functions is in `runs/semantics.py`, and
in the manifest.

The mixing function is the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
generators", OOPSLA 2014).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwright.types import Ids

# The purpose of a stream is part of its key, so that no two purposes share random numbers.
INIT, STEP, EPOCH, SPLIT, PREDICT, EXPLAIN, SAMPLE = range(7)

# Up to here an epoch's order is sorted in memory (80 MB); beyond, it is computed block by block.
IN_MEMORY_ROWS = 10_000_000
_BLOCK_ROWS = 1 << 16
_ROUNDS = 6  # of the Feistel network; three already make a pseudorandom permutation (Luby and Rackoff, 1988)

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_A, _B = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

Keys = NDArray[np.uint64]


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * _A) & _MASK
    x = ((x ^ (x >> 27)) * _B) & _MASK
    return x ^ (x >> 31)


def stream_seed(*parts: int) -> int:
    """Return a 64-bit seed that depends on each part and on their order."""
    key = 0
    for part in parts:
        key = _mix((key ^ part) + _GOLDEN & _MASK)
    return key


def _mix_array(x: Keys) -> Keys:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_A)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_B)
    return x ^ (x >> np.uint64(31))


def random_keys(seed: int, n: int, start: int = 0) -> Keys:
    """Return (n,) uint64: the random keys from number `start` on; key i is a function of (seed, i) alone."""
    counter = np.arange(start + 1, start + n + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    return _mix_array(counter + np.uint64(_mix(seed & _MASK)))


def permutation(seed: int, n: int) -> Ids:
    """Return (n,) int64: the numbers 0 .. n-1 in random order, by sorting keys, in O(n) memory."""
    return np.argsort(random_keys(seed, n), kind="stable").astype(np.int64, copy=False)


class KeyedPermutation:
    """A random permutation of 0 .. n-1, of which any part can be computed in O(1) memory.

    It is a Feistel network over the smallest power of two that holds n, with cycle walking: a value of n or
    more is permuted again until it is below n (Black and Rogaway:
    "Ciphers with arbitrary finite domains", 2002).
    """

    def __init__(self, seed: int, n: int) -> None:
        bits = max(2, (n - 1).bit_length())
        self._n = np.uint64(n)
        self._low_bits = np.uint64(bits // 2)
        self._low = np.uint64((1 << (bits // 2)) - 1)
        self._high = np.uint64((1 << (bits - bits // 2)) - 1)
        self._keys = [np.uint64(stream_seed(seed, i)) for i in range(_ROUNDS)]

    def at(self, start: int, stop: int) -> Ids:
        """Return (stop - start,) int64: the images of the positions start .. stop-1."""
        x = self._once(np.arange(start, stop, dtype=np.uint64))
        while (outside := x >= self._n).any():
            x[outside] = self._once(x[outside])
        return x.astype(np.int64)

    def _once(self, x: Keys) -> Keys:
        high, low = x >> self._low_bits, x & self._low
        for i, key in enumerate(self._keys):
            if i % 2:
                low = low ^ (_mix_array(high ^ key) & self._low)
            else:
                high = high ^ (_mix_array(low ^ key) & self._high)
        return (high << self._low_bits) | low


class WeightedDraws:
    """Numbers drawn with replacement, each with a probability in proportion to its weight.

    Args:
        weights: (n,) finite numbers of at least 0, of which one is above 0.
    """

    def __init__(self, weights: NDArray[np.float64]) -> None:
        self._sums = np.cumsum(weights / weights.max())  # in order, so that machines agree

    def at(self, seed: int, start: int, stop: int) -> Ids:
        """Return (stop - start,) int64: the draws start .. stop-1; draw i is a function of (seed, i)."""
        shares = (random_keys(seed, stop - start, start) >> np.uint64(11)) * 2.0**-53  # in [0, 1)
        drawn: Ids = np.searchsorted(self._sums, shares * self._sums[-1], side="right").astype(np.int64)
        return drawn


class Cursor(NamedTuple):
    """A position in the data: before step `step`, `consumed` samples of epoch `epoch` are consumed."""

    step: int = 0
    epoch: int = 0
    consumed: int = 0


START = Cursor()


class _Block(NamedTuple):
    """A part of an epoch's order, which is kept: the ids from a position on."""

    epoch: int
    start: int
    ids: Ids

    def holds(self, epoch: int, position: int) -> bool:
        return epoch == self.epoch and self.start <= position < self.start + len(self.ids)


class SampleOrder:
    """The samples of each step.

    Each epoch is a new random order of all samples, or as many draws with replacement, cut into batches; the
    last batch of an epoch may be smaller, or is left out.

    Args:
        samples: Number of samples in an epoch: that of the training samples, or of draws.
        batch_size: Samples per step.
        seed: The run's seed.
        begin: Where the first step begins. A fork of a run that had another batch size begins within an
            epoch: its first batches are cut from the samples that are left of it.
        drop_last: Leave out the last batch of an epoch if it would be smaller. Other samples are left out in
            each epoch.
        draws: What is drawn with replacement; None: each sample comes once.
    """

    def __init__(
        self,
        samples: int,
        batch_size: int,
        seed: int,
        begin: Cursor = START,
        *,
        drop_last: bool = False,
        draws: WeightedDraws | None = None,
    ) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.steps_per_epoch = _batches(samples, batch_size, drop_last)
        self.used = min(samples, self.steps_per_epoch * batch_size)  # samples of an epoch that are trained on
        self._seed = seed
        self.begin = begin
        # The first step at which an epoch ends.
        self.first_end = begin.step + _batches(samples - begin.consumed, batch_size, drop_last)
        self._in_memory = samples <= IN_MEMORY_ROWS
        self._draws = draws
        self._kept: _Block | None = None

    @property
    def batch_sizes(self) -> set[int]:
        """The numbers of samples in the batches of an epoch."""
        return {min(self.batch_size, self.used), self.used % self.batch_size} - {0}

    def batch(self, step: int) -> Ids:
        """Return (<= batch_size,) int64: the ids of the samples of step number `step`, counted from 0."""
        _, epoch, start = self.cursor(step)
        if self._kept is None or not self._kept.holds(epoch, start):
            self._kept = self._compute(epoch, start)
        offset = start - self._kept.start
        return self._kept.ids[offset : offset + self.batch_size]

    def draw_numbers(self, step: int) -> Ids | None:
        """Return (<= batch_size,) int64: which draws of their epoch the samples of a step are.

        They tell apart a sample that is drawn several times. None: each sample comes once.
        """
        if self._draws is None:
            return None
        start = self.cursor(step).consumed
        return np.arange(start, min(start + self.batch_size, self.samples), dtype=np.int64)

    def cursor(self, step: int) -> Cursor:
        """Return the position before a step, which is not before that of the first step."""
        if step < self.first_end:
            begin = self.begin
            return Cursor(step, begin.epoch, begin.consumed + (step - begin.step) * self.batch_size)
        epoch, in_epoch = divmod(step - self.first_end, self.steps_per_epoch)
        return Cursor(step, self.begin.epoch + 1 + epoch, in_epoch * self.batch_size)

    def _compute(self, epoch: int, start: int) -> _Block:
        """Compute the order of an epoch: all of it, or some batches from a position on."""
        seed = stream_seed(self._seed, EPOCH, epoch)
        if self._in_memory and self._draws is None:
            return _Block(epoch, 0, permutation(seed, self.samples))
        end = start + max(1, _BLOCK_ROWS // self.batch_size) * self.batch_size
        if self._draws is not None:
            return _Block(epoch, start, self._draws.at(seed, start, min(end, self.samples)))
        ids = KeyedPermutation(seed, self.samples).at(start, min(end, self.samples))
        return _Block(epoch, start, ids)

    def epochs(self, steps: int) -> float:
        """Return how many epochs the first `steps` steps are."""
        _, epoch, consumed = self.cursor(steps)
        return epoch + consumed / self.used

    def end_of(self, epochs: int) -> int:
        """Return the step after which `epochs` epochs are over; that of the first step if they are before."""
        more = epochs - self.begin.epoch - 1
        return self.begin.step if more < 0 else self.first_end + more * self.steps_per_epoch


def _batches(samples: int, batch_size: int, drop_last: bool) -> int:
    """Return into how many batches samples are cut."""
    return samples // batch_size if drop_last else -(-samples // batch_size)
