"""A split of a map-style dataset, whose items are fetched on demand: see `map_style.py`.

What an item draws from the global generators of random numbers depends on the seed, the epoch and its
position alone.
"""

from __future__ import annotations

import copy
import errno
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Literal, Self

import numpy as np

from trainwright.datasets.base import Draw, Reading, unnoted
from trainwright.datasets.samples.array_names import usual_target
from trainwright.datasets.samples.arrays import as_array
from trainwright.datasets.samples.drawing import Drawing
from trainwright.datasets.samples.hanging import ended_if_hanging
from trainwright.datasets.samples.structures import STRUCTURE, flattened, leaves, restored
from trainwright.datasets.tables.target import beyond_float64, class_indices
from trainwright.digest import array_buffer, digest, sha256_json, tensor_records
from trainwright.errors import DataError
from trainwright.numerals import listed
from trainwright.tasks.base import Task
from trainwright.tasks.support.masks import class_indices as mask_indices
from trainwright.types import FEATURES, TARGET, Array, ArraySpec, Batch, Ids

log = logging.getLogger("trainwright")
Collate = Callable[[list[Any]], Any]
Note = Callable[[int], None]
READ_THROUGH = 100_000  # items whose targets are read to find the classes; a larger dataset must name them
_USER_ERRORS = (Exception, SystemExit)  # an exit from the user's code must not be one of ours
_SAMPLE = 64  # items that a fingerprint covers
_COLLATE = "the function that makes batches (data.collate, or collate_fn of a loader)"
_NOTICING = 16  # items that are read to find out whether they draw
_FIXED, _OTHER = Draw(0), Draw(1)


class BatchReader(ABC):
    """A map-style dataset of ours that can read a whole batch at once."""

    @abstractmethod
    def whole_batch(self, positions: Sequence[int]) -> dict[str, Array] | None:
        """Return items as arrays (rows, ...) by name, with the target; None: they must be read one by one."""


class Items:
    """A split whose samples are fetched on demand.

    Args:
        dataset: Map-style; its `__getitems__(list of positions)` is used if it has one, unless it draws
            random numbers.
        reading: How it is read, and its name in messages.
        target: The name of the target in items that are mappings.
        collate: Makes a batch from a list of items; None: their arrays are stacked.
        is_open: Whether an item may be anything, as the task asks for no form of its target, or for none.
    """

    def __init__(
        self,
        dataset: Any,
        reading: Reading,
        target: str,
        collate: Collate | None = None,
        *,
        is_open: bool = False,
    ) -> None:
        self._dataset = dataset
        self._is_open = is_open
        self.reading = reading
        self._name = reading.name
        self._target = target
        self._collate = collate
        self._drawing = Drawing()
        self._task: type[Task] | None = None
        self._classes: Sequence[Any] | None = None
        self._indices = False
        self._ignored: int | None = None
        self._is_renamed = False  # whether a line says which of an item's names is the target
        self._kept: Ids | None = None  # positions in the data set, where some are left out

    def without(self, left_out: Sequence[int]) -> Self:
        """Return the same split without the items at some positions of the data set."""
        same = copy.copy(self)
        same._kept = np.setdiff1d(np.arange(len(self._dataset)), np.array(left_out, np.int64))
        return same

    def at(self, ids: Ids) -> Ids:
        """Return the positions in the data set of the samples `ids`, for messages and random numbers."""
        return ids if self._kept is None else self._kept[ids]

    def fault(self, position: int, *, drawn: bool = True) -> str | None:
        """Return why an item of the data set cannot be read; None if it can.

        Args:
            position: Its position.
            drawn: Whether it may draw random numbers.

        Raises:
            DataError: The machine is to blame, and not the item: memory, a disk, the network.
        """
        try:
            item = self._fetched([position], _FIXED if drawn else None, unnoted)[0]
            if self._is_open:
                self._open(item, f"{self._name}: item {position}")
            elif self._collate is None:
                self._arrays(item, f"{self._name}: item {position}")
        except DataError as error:
            if is_of_machine(error.__cause__):
                raise
            return str(error)
        return None

    def of_task(
        self, task: type[Task], classes: Sequence[Any] | None, indices: bool, ignored: int | None = None
    ) -> Items:
        """Return the same split with encoded targets.

        Args:
            task: The task.
            classes: The labels in the order of their indices; None for regression.
            indices: Whether targets are indices of `classes` rather than labels.
            ignored: The number of pixels of masks that do not count.
        """
        same = copy.copy(self)
        same._task, same._classes, same._indices, same._ignored = task, classes, indices, ignored
        return same

    def __len__(self) -> int:
        return len(self._dataset) if self._kept is None else len(self._kept)

    @property
    def _target_array(self) -> str:
        """The name of the targets in a batch."""
        return TARGET if self._task is None else self._task.target

    def take(self, ids: Ids) -> Batch:
        """Fetch the samples and stack them.

        Raises:
            DataError: An item cannot be read, lacks an input or the target, or has another shape than the
                others; the message names its position.
        """
        return self._batch(ids, None)

    def read(self, ids: Ids, draw: Draw, note: Note = unnoted) -> Batch:
        """Fetch samples as `take` does, each with random numbers of its own; see `SampleSplit`."""
        return self._batch(ids, draw, note)

    def _batch(self, ids: Ids, draw: Draw | None, note: Note = unnoted) -> Batch:
        ids = self.at(ids)
        positions = ids.tolist()
        if self._is_open:
            return self._open_batch(positions, draw, note)
        if self._collate is not None:
            inputs, target = self._collated(positions, draw, note)
            return {**inputs, self._target_array: self._encode(target, ids)}
        if (whole := self._whole(positions, note)) is not None:
            target = whole.pop(self._target)
            return {**whole, self._target_array: self._encode(target, ids)}
        items, targets = zip(*self._items(positions, draw, note), strict=True)
        return {
            **{name: self._stacked([item.get(name) for item in items], name, ids) for name in items[0]},
            self._target_array: self._encode(np.stack(targets), ids),
        }

    def _open_batch(self, positions: Sequence[int], draw: Draw | None, note: Note) -> Batch:
        """Return a batch of any form: what the user's function makes of items, or their arrays, stacked."""
        fetched = self._fetched(positions, draw, note)
        if self._collate is not None:
            return self._open(self._called(self._collate, fetched, positions, draw), f"{self._name}: a batch")
        flat = [
            self._open(item, f"{self._name}: item {i}") for i, item in zip(positions, fetched, strict=True)
        ]
        trees = [one.pop(STRUCTURE, np.empty(0, np.uint8)).tobytes() for one in flat]
        if odd := [
            i
            for i, one, tree in zip(positions, flat, trees, strict=True)
            if tree != trees[0] or one.keys() != flat[0].keys()
        ]:
            raise DataError(
                f"{self._name}: items {positions[0]} and {odd[0]} differ in what they hold; give a function "
                "that makes a batch of them: data.collate: MODULE:FUNCTION"
            )
        stacked = {
            name: self._stacked([one[name] for one in flat], name, np.array(positions)) for name in flat[0]
        }
        return stacked | ({STRUCTURE: np.frombuffer(trees[0], np.uint8)} if trees[0] else {})

    def _open(self, item: Any, what: str) -> dict[str, Array]:
        """Return the arrays of an item, or a batch, of any form, as `flattened` does.

        What is no mapping is `features`, or a pair of these and the target.
        """
        if self._target and isinstance(item, tuple | list) and len(item) == 2:
            item = {FEATURES: item[0], TARGET: item[1]}
        elif not isinstance(item, Mapping):
            item = {FEATURES: item[0] if isinstance(item, tuple | list) and len(item) == 1 else item}
        named = {TARGET if name == self._target else str(name): value for name, value in item.items()}
        return flattened(named, lambda name, value: as_array(value, f"{what}: {name}"))

    def specs(self) -> dict[str, ArraySpec]:
        """Return the inputs of the model, of items of any form; of one with several arrays the first."""
        found: dict[str, ArraySpec] = {}
        for name, value in restored(self.take(np.zeros(1, np.int64)), lambda _, array: array).items():
            first = next(leaves(value), None)
            if name != TARGET and first is not None:
                shape = first.shape[1:] if first is value or self._collate is None else first.shape
                found[name] = ArraySpec(shape, str(first.dtype))
        return found

    def _whole(self, positions: Sequence[int], note: Note) -> dict[str, Array] | None:
        """Return items as one batch of arrays; None if they must be read one by one.

        That is also the case if a value is not finite: reading them one by one finds it.
        """
        if not isinstance(self._dataset, BatchReader) or not positions:
            return None
        note(positions[0])
        if (batch := self._dataset.whole_batch(positions)) is None:
            return None
        arrays = {name: as_array(values, name, self._floats(name)) for name, values in batch.items()}
        is_finite = all(np.isfinite(one).all() for one in arrays.values() if one.dtype.kind == "f")
        return arrays if is_finite else None

    def _collated(
        self, positions: Sequence[int], draw: Draw | None, note: Note = unnoted
    ) -> tuple[dict[str, Array], Array]:
        """Return the batch that the user's function makes from some items: the inputs, and the targets."""
        items, what = self._fetched(positions, draw, note), f"{self._name}: {_COLLATE}"
        assert self._collate is not None, "the caller checks it"
        inputs, target = self._arrays(self._called(self._collate, items, positions, draw), what)
        for name, array in {**inputs, self._target: target}.items():
            if array.shape[:1] != (len(positions),):
                raise DataError(
                    f"{what}: {name} has shape {array.shape}, but there are {len(positions)} samples"
                )
        return inputs, target

    def _called(self, collate: Collate, items: list[Any], positions: Sequence[int], draw: Draw | None) -> Any:
        """Return what the user's function makes of items."""
        try:
            return self._drawing.call(collate, items, draw, positions[0])
        except _USER_ERRORS as error:
            which = f"items {listed(positions)}"
            raise DataError(
                f"{self._name}: {_COLLATE} failed on {which}: {type(error).__name__}: {error}"
            ) from error

    def _stacked(self, arrays: Sequence[Array | None], name: str, ids: Ids) -> Array:
        """Stack the arrays of one name, (...) each, to (rows, ...)."""
        shapes = [None if array is None else array.shape for array in arrays]
        if len(set(shapes)) > 1:
            odd = next(i for i, shape in zip(ids.tolist(), shapes, strict=True) if shape != shapes[0])
            remedy = "or pad them for each batch: data.collate: MODULE:FUNCTION"
            raise DataError(
                f"{self._name}: item {ids[0]} has {name} of shape {shapes[0]}, and item {odd} "
                f"of another; pad or cut them to one shape; {remedy}"
            )
        return np.stack([array for array in arrays if array is not None])

    def items(
        self, positions: Sequence[int], draw: Draw | None = None, note: Note = unnoted
    ) -> list[tuple[dict[str, Array], Array]]:
        """Return samples, each as the inputs by name, and the target."""
        return self._items(self.at(np.array(positions, np.int64)).tolist(), draw, note)

    def _items(
        self, positions: Sequence[int], draw: Draw | None, note: Note
    ) -> list[tuple[dict[str, Array], Array]]:
        """Return the items at some positions of the data set; see `items`."""
        if self._is_open:  # as they are before they are collated
            fetched, nothing = self._fetched(positions, draw, note), np.empty(0)
            return [
                (self._open(item, f"{self._name}: item {i}"), nothing)
                for i, item in zip(positions, fetched, strict=True)
            ]
        if self._collate is None:
            fetched = self._fetched(positions, draw, note)
            return [
                self._arrays(item, f"{self._name}: item {i}")
                for i, item in zip(positions, fetched, strict=True)
            ]
        batches = (self._collated([i], draw) for i in positions)
        return [({name: one[0] for name, one in inputs.items()}, target[0]) for inputs, target in batches]

    def _fetched(self, positions: Sequence[int], draw: Draw | None, note: Note) -> list[Any]:
        """Return what the data set has at some positions; a worker, which says what it reads, is watched."""
        if note is not unnoted:
            return self._read(positions, draw, note)
        with ended_if_hanging(self.reading) as begin:
            return self._read(positions, draw, begin)

    def _read(self, positions: Sequence[int], draw: Draw | None, note: Note) -> list[Any]:
        together, single = partial(self._together, note=note), partial(self._single, note=note)
        if draw is None:
            return together(positions)
        return self._drawing.read(positions, draw, together, single)

    def _together(self, positions: Sequence[int], note: Note) -> list[Any]:
        if not hasattr(self._dataset, "__getitems__"):
            return [self._single(i, note) for i in positions]
        note(positions[0])
        try:
            return list(self._dataset.__getitems__(list(positions)))
        except _USER_ERRORS as error:
            raise self._unreadable(positions, error) from error

    def _single(self, position: int, note: Note) -> Any:
        note(position)
        try:
            return self._dataset[position]
        except _USER_ERRORS as error:
            raise self._unreadable([position], error) from error

    def _unreadable(self, positions: Sequence[int], error: BaseException) -> DataError:
        which = f"item {positions[0]}" if len(positions) == 1 else f"items {listed(positions)}"
        kind = "" if isinstance(error, DataError) else f"{type(error).__name__}: "
        advice = "; data.on_corrupt: skip leaves such samples out" if self._kept is None else ""
        return DataError(f"{self._name}: {which} cannot be read: {kind}{error}{advice}")

    def _arrays(self, item: Any, what: str) -> tuple[dict[str, Array], Array]:
        """Return the inputs by name, and the target, of an item, or of a batch that was collated."""
        if isinstance(item, tuple | list) and len(item) == 2:
            item = self._named(item[0], item[1], what)
        elif isinstance(item, Mapping) and self._target not in item:
            item = self._with_target(item)
        if not isinstance(item, Mapping) or self._target not in item or len(item) < 2:
            names = f" of {listed(item)}" if isinstance(item, Mapping) else ""
            names += f" of {len(item)}" if isinstance(item, tuple | list) else ""
            raise DataError(
                f"{what} is {type(item).__name__}{names}; it must be a pair (features, target), or a mapping "
                f"of named inputs with the target {self._target!r} among them (data.target names it)"
            )
        arrays = {
            str(name): as_array(value, f"{what}: {name}", self._floats(name)) for name, value in item.items()
        }
        for name, array in arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise DataError(f"{what}: {name} hold NaN or infinite values; fix or remove them")
        return arrays, arrays.pop(self._target)

    def _with_target(self, item: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Return an item with its target under the name of the config, where it has the only usual one."""
        usual = usual_target(item, self._target)
        if usual is None or isinstance(self._dataset, BatchReader):
            return item
        if not self._is_renamed:
            self._is_renamed = True
            log.info("data: %r is the target of %s (data.target names another)", usual, self._name)
        return {self._target if name == usual else name: value for name, value in item.items()}

    def _floats(self, name: str) -> Literal["float32", "float64"]:
        """Return what the floats of an array become."""
        return "float64" if name == self._target else "float32"

    def _named(self, inputs: Any, targets: Any, what: str) -> dict[str, Any]:
        """Return the parts of a pair as one mapping; each of them may be one by itself."""
        first = inputs if isinstance(inputs, Mapping) else {FEATURES: inputs}
        second = targets if isinstance(targets, Mapping) else {self._target: targets}
        if both := first.keys() & second.keys():
            raise DataError(f"{what} has {min(both)!r} among its inputs and among its targets; rename one")
        if isinstance(targets, tuple) and len({getattr(one, "shape", ()) for one in targets}) > 1:
            raise DataError(
                f"{what} has a tuple of several targets; name them: (features, {{name: target, ...}}), with "
                "data.target for the first, and training.heads for the others"
            )
        return {**first, **second}

    def _encode(self, targets: Array, ids: Ids) -> Array:
        if self._classes is None:
            if self._task is not None and not self._task.accepts(targets):
                raise DataError(
                    f"{self._name}: the targets of items {listed(ids.tolist())} are {targets.dtype} of shape "
                    f"{targets.shape[1:]}; give {self._task.wants}"
                )
            if self._task is not None and self._task.targets_are_labels:
                return targets.astype(np.float32)
            by_item = beyond_float64(targets.reshape(-1)).reshape(len(targets), -1).any(axis=1)
            if by_item.any():
                raise DataError(
                    f"{self._name}: the target of item {ids[by_item][0]} is {targets[by_item][0]}, which "
                    "float64 cannot hold exactly; subtract a constant from all, or give data.task: "
                    "classification if they are classes"
                )
            return targets.astype(np.float64)
        if self._task is not None and self._task.has_inner_labels:
            return self._task.encode_inner(
                targets, self._classes, f"{self._name}: items {listed(ids.tolist())}"
            )
        if self._task is not None and self._task.gives_masks:
            try:
                return mask_indices(targets, range(len(self._classes)), self._ignored)
            except DataError as error:
                raise DataError(
                    f"{self._name}: in the masks of items {listed(ids.tolist())} {error}; there are "
                    f"{len(self._classes)}, from 0 (data.ignore_index: pixels that do not count)"
                ) from error
        if self._indices:
            codes = targets.astype(np.int64)
            codes = np.where((codes >= 0) & (codes < len(self._classes)), codes, -1)
        else:
            codes = class_indices(
                targets.astype(object) if targets.dtype.kind == "U" else targets, self._classes
            )
        if (unknown := codes < 0).any():
            raise DataError(
                f"{self._name}: the target of item {ids[unknown][0]} is {targets[unknown][0]!r}, which is "
                f"not a class; there are {len(self._classes)}: {listed(self._classes)}"
            )
        return codes

    def sample(self) -> Ids:
        """Return positions spread evenly over the dataset, including the first and the last."""
        return np.unique(np.linspace(0, len(self) - 1, _SAMPLE).astype(np.int64))

    def fingerprint(self) -> str:
        """Return the digest over class, length and content.

        The content is the dataset's own `fingerprint` (a text, or a method that returns one), or a sample of
        64 items.
        """
        own = declared_fingerprint(self._dataset)
        kind = type(self._dataset)
        known = [f"{kind.__module__}.{kind.__qualname__}", len(self), own or self.content]
        all_are = self._kept is None or len(self._kept) == len(self._dataset)
        return sha256_json(known if all_are else [*known, self.at(np.arange(len(self))).tolist()])

    @cached_property
    def content(self) -> str | None:
        """The digest of a sample of the items; None if they change when read again."""
        if not self._drawing.draws:
            content = self._sample_digest(None)
            if content == self._sample_digest(None):
                return content
        content = self._sample_digest(_FIXED)
        return content if content == self._sample_digest(_FIXED) else None

    def notice_draws(self) -> None:
        """Find out whether items draw random numbers, even by code that restores the generators.

        If they draw within `torch.random.fork_rng`, only the items show it: a few are read with two seeds.
        """
        few = self.sample()[:: _SAMPLE // _NOTICING].tolist()
        self._drawing.draws = True  # the generators are seeded for each item
        self._drawing.draws = self._sample_digest(_FIXED, few) != self._sample_digest(_OTHER, few)

    def _sample_digest(self, draw: Draw | None, positions: Sequence[int] | None = None) -> str:
        items = self.items(self.sample().tolist() if positions is None else positions, draw)
        arrays = [array for inputs, target in items for array in (*inputs.values(), target)]
        return digest(tensor_records(array_buffer(f"{i:04}", array) for i, array in enumerate(arrays)))

    @property
    def has_classes(self) -> bool:
        """True where each sample is of one class."""
        return self._task is not None and self._task.has_classes()

    def codes(self, setting: str) -> tuple[Array, int]:
        """Return the class of each sample, (rows,), and the number of classes; see `ClassSplit`."""
        assert self._classes is not None, "the caller asks for it"
        if len(self) > READ_THROUGH and getattr(self._dataset, "targets", None) is None:
            raise DataError(
                f"{setting}: {self._name} has {len(self)} items, too many to read all for their classes; "
                "give it an attribute `targets`, the class of each"
            )
        return self._encode(self.targets(), self.at(np.arange(len(self)))), len(self._classes)

    def targets(self) -> Array:
        """Return the targets, (rows,): the attribute `targets` if there is one, else read from all items."""
        known = getattr(self._dataset, "targets", None)
        if known is not None and len(known) == len(self._dataset):
            return as_array(known, f"{self._name}: targets", "float64")[self.at(np.arange(len(self)))]
        return np.stack([target for _, target in self.items(range(len(self)))])


def is_of_machine(error: BaseException | None) -> bool:
    """Return whether the machine is to blame for an error, and not a sample: memory, a disk, the network."""
    cause = error.__cause__ if isinstance(error, DataError) else error
    if isinstance(cause, OSError):
        return cause.errno not in (None, errno.ENOENT)
    return isinstance(cause, MemoryError | SystemExit)


def declared_fingerprint(dataset: Any) -> str | None:
    """Return the dataset's own `fingerprint`, or None if it has none."""
    own = getattr(dataset, "fingerprint", None)
    own = own() if callable(own) else own
    return own if isinstance(own, str) else None
