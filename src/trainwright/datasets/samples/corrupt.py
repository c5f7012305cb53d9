"""Samples of map-style data sets and shards that cannot be read, and are left out (`data.on_corrupt: skip`).

All samples are read once, when a run is built. So it is known before the first step which ones are left out:
all batches are full, and losses are divided by the samples that are there. For shards, which are identified
by their content, the outcome is kept in the user's cache. The run records it as a decision, which a resume
and a repetition take instead of reading all samples again.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

import numpy as np

from trainwright.datasets.base import Settle, Skips
from trainwright.datasets.samples.shards import keep_in_cache, kept_in_cache
from trainwright.datasets.samples.threads import THREADS
from trainwright.digest import sha256_json
from trainwright.errors import DataError
from trainwright.process.alarms import announced
from trainwright.storage.urls import cache_folder
from trainwright.types import Ids, SplitName

log = logging.getLogger("trainwright")
_FORMAT = "corrupt-1"
_SHOWN = 3  # reasons in the log


@runtime_checkable
class StoredSamples(Protocol):
    """A map-style data set that we read from files: by threads, and `fingerprint` covers its samples."""

    @property
    def is_stored(self) -> bool:
        """True where no code of the user's takes part in reading, so that this holds."""

    @property
    def is_converted(self) -> bool:
        """True where samples are read from copies in the cache, and not from `files`."""

    def fingerprint(self) -> str:
        """Return the SHA-256 of the contents, and of how they are decoded."""

    @property
    def files(self) -> Mapping[str, str]:
        """The SHA-256 of each file, by its name."""

    def name_of(self, position: int) -> str:
        """Return the name of a sample in messages: the file, and its position there."""


class Faulty(Protocol):
    """A split of a map-style data set, some of whose items may be corrupt."""

    def __len__(self) -> int: ...

    def fault(self, position: int, /, *, drawn: bool = True) -> str | None:
        """Return why an item cannot be read; None if it can."""

    def without(self, left_out: Sequence[int], /) -> Self:
        """Return the same split without some items."""


AnySplit = TypeVar("AnySplit", bound=Faulty)


@dataclass(frozen=True)
class Whole(Generic[AnySplit]):
    """The readable items of each split of map-style data sets, and those that are left out."""

    items: Mapping[SplitName, AnySplit]
    names: list[str]
    skips: Skips


def without_corrupt(
    raw: Mapping[SplitName, AnySplit], datasets: Mapping[SplitName, Any], settle: Settle
) -> Whole[AnySplit]:
    """Return the items that can be read: as the run has recorded, or else by reading all of them.

    Args:
        raw: The items of each split.
        datasets: The data sets that they are of.
        settle: See `LoadRequest`.

    Raises:
        DataError: No item of a split can be read.
    """
    skips = settle(lambda: {name: _unreadable(items, datasets[name]) for name, items in raw.items()})
    kept, names = dict(raw), list[str]()
    for split, positions in skips.items():
        names += [_name(datasets[split], split, position) for position in positions]
        kept[split] = raw[split].without(positions)
    log_corrupt(names)
    return Whole(kept, names, skips)


def log_corrupt(names: Sequence[str], what: str = "sample") -> None:
    """Warn of samples that are left out."""
    if names:
        log.warning("data: %s", in_words(names, what))


def in_words(names: Sequence[str], what: str = "sample") -> str:
    """Return how many samples are left out, and the first of them."""
    count = f"1 corrupt {what} is" if len(names) == 1 else f"{len(names):,} corrupt {what}s are"
    first = ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
    return f"{count} left out: {first} (data.on_corrupt: skip)"


def _name(dataset: Any, split: SplitName, position: int) -> str:
    if isinstance(dataset, StoredSamples):
        return dataset.name_of(position)
    return f"item {position} of the {split} dataset"


def _unreadable(items: Faulty, dataset: Any) -> list[int]:
    """Return the positions of the items that cannot be read."""
    if not (isinstance(dataset, StoredSamples) and dataset.is_stored):
        return _found(items, [items.fault(position) for position in _announced(items)])
    path = cache_folder() / "shards" / f"{_FORMAT}-{sha256_json(dataset.fingerprint())}.npz"
    if (data := kept_in_cache(path)) is not None:
        with suppress(Exception), np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return [int(position) for position in arrays["positions"]]
    found = _found(items, THREADS.map(lambda position: items.fault(position, drawn=False), _announced(items)))
    keep_in_cache(path, _stored(np.array(found, np.int64)))
    return found


def _announced(items: Faulty) -> Iterator[int]:
    """Yield all positions, and announce the work."""
    with announced(f"looking for corrupt samples among {len(items):,}"):
        yield from range(len(items))


def _found(items: Faulty, faults: Sequence[str | None]) -> list[int]:
    """Return the positions of the items with a fault, and log the first faults.

    Raises:
        DataError: No item can be read.
    """
    reasons = [fault for fault in faults if fault is not None]
    if len(reasons) == len(items):
        raise DataError(f"none of {len(items):,} samples can be read; the first one: {reasons[0]}")
    for reason in reasons[:_SHOWN]:
        log.info("data: %s", reason)
    return [position for position, fault in enumerate(faults) if fault is not None]


def _stored(positions: Ids) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, positions=positions)
    return buffer.getvalue()
