"""The contract of datasets: from rows to splits.

A dataset adapter (`datasets/csv.py` -> `CsvDataset`) reads its source once, when a run is built. What it
returns is immutable, and every method may be called from any thread. Its only randomness comes from
`config.split.seed`, so equal inputs give equal splits on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel

from trainwright.config.schema import DataConfig
from trainwright.errors import ExpectationError
from trainwright.order import SAMPLE, stream_seed
from trainwright.types import Array, Batch, DataInfo, FeatureForm, Ids, SplitName

if TYPE_CHECKING:
    from trainwright.records.manifest import RepeatedRows
    from trainwright.records.pins import Pin

T = TypeVar("T")

# The positions of the samples of each split that are left out, as they cannot be read.
Skips = Mapping[SplitName, Sequence[int]]
Settle = Callable[[Callable[[], Skips]], Skips]


@dataclass(frozen=True)
class Outcome:
    """An expectation of `data.expect`, and what was found.

    Attributes:
        key: What is expected of what, such as `age.between`.
        expected: What the config says.
        met: Whether that is so.
        found: What is there: a number, a share, the number of cells that are wrong, or names.
        said: The same in words, for messages.
        rows: The number of rows that are wrong, where each row is judged by itself.
        examples: The first of them: `source`, `row`, `line` of the file (or None) and `value`.
    """

    key: str
    expected: Any
    met: bool
    found: Any
    said: str = ""
    rows: int = 0
    examples: Sequence[Mapping[str, Any]] = ()


Examine = Callable[[Sequence[Outcome]], None]


def refuse_unmet(outcomes: Sequence[Outcome]) -> None:
    """Refuse rows that do not meet what the config expects of them.

    Raises:
        ExpectationError: They do not; says all that is wrong.
    """
    if unmet := [one for one in outcomes if not one.met]:
        lines = [f"  {one.key}: {one.said}" for one in unmet]
        count = f"{len(unmet)} of {len(outcomes)} expectations {'is' if len(unmet) == 1 else 'are'}"
        raise ExpectationError("\n".join([f"data.expect: {count} not met", *lines]))


class LoadRequest(NamedTuple):
    """The form of the data that a run asks for, and the samples that it leaves out.

    Attributes:
        form: The form in which the run's framework wants the rows of tables.
        settle: Settles which corrupt samples are left out. It gets the function that finds them, and returns
            what that finds, or what was found before.
        examine: Gets what `data.expect` demands of the rows, as soon as they are read; it raises an error
            where the data must not be used.
        examples: The number of first rows of each split that are kept as they were read.
    """

    form: FeatureForm = FeatureForm()
    settle: Settle = lambda find: find()
    examine: Examine = refuse_unmet
    examples: int = 1000


PLAIN = LoadRequest()  # the default form; corrupt samples are looked for


class Split(Protocol):
    """A sequence of samples; a sample's id is its position."""

    def __len__(self) -> int: ...

    def take(self, ids: Ids) -> Batch:
        """Return the samples `ids` (in any order, possibly repeated), stacked along a new first axis."""

    def fingerprint(self) -> str:
        """Return the SHA-256 (hex) of what the model sees; equal content gives equal fingerprints."""


def unnoted(position: int) -> None:
    """Ignore which sample is read."""


class Draw(NamedTuple):
    """The key of the random numbers of samples, besides their positions.

    Attributes:
        seed: The seed of the run.
        epoch: The epoch, counted from 0; None outside of training, where a sample is the same each time.
        numbers: Which draws of the epoch the samples are, (n,), if they are drawn with replacement: a sample
            that is drawn twice has other random numbers each time. None: each comes once in an epoch.
    """

    seed: int
    epoch: int | None = None
    numbers: Ids | None = None

    def of(self, sample: int, index: int = 0) -> int:
        """Return the 64-bit seed of a sample's random numbers.

        Args:
            sample: Its position in the split.
            index: Its position among the samples that are read together.
        """
        number = () if self.numbers is None else (int(self.numbers[index]),)
        return stream_seed(self.seed, SAMPLE, 0 if self.epoch is None else self.epoch + 1, sample, *number)


@runtime_checkable
class SampleSplit(Split, Protocol):
    """A split whose samples are read one by one, in worker processes if the config says so.

    Reading may draw random numbers, as augmentation does. Each sample has numbers of its own, so that it does
    not matter with which others, in which order and in which process it is read.
    """

    def read(self, ids: Ids, draw: Draw, note: Callable[[int], None] = unnoted) -> Batch:
        """Return the samples `ids` as `take` does.

        Args:
            ids: Their positions.
            draw: What their random numbers depend on, besides the position of each.
            note: Is called with the position of each sample before it is read, or of the first of several
                that are read at once.

        Raises:
            DataError: A sample cannot be read; names its position.
        """

    @property
    def reading(self) -> Reading:
        """The way in which the samples are read."""


class Reading(NamedTuple):
    """The way in which the samples of a split are read.

    Attributes:
        name: The name of the split in messages.
        workers: The number of worker processes; 0: they are read where they are used.
        prefetch: The number of batches that each worker reads ahead.
        timeout: Seconds after which a worker that has not finished a sample is taken to hang.
        in_thread: Whether another thread of this process reads ahead, if there are no workers.
    """

    name: str
    workers: int = 0
    prefetch: int = 2
    timeout: float = 300.0
    in_thread: bool = False


@runtime_checkable
class KnownSplit(SampleSplit, Protocol):
    """A split whose samples are read one by one, but for some arrays that are known of all: the targets."""

    known: Batch

    def with_known(self, known: Batch) -> Split:
        """Return the same samples with other known arrays, such as weights."""


@runtime_checkable
class ArraySplit(Split, Protocol):
    """A split that fits in memory: frameworks slice its arrays instead of calling `take`."""

    arrays: Batch


def known_arrays(split: Split) -> Batch | None:
    """Return the arrays of a split that are in memory for all samples; None if it has none."""
    if isinstance(split, ArraySplit):
        return split.arrays
    return split.known if isinstance(split, KnownSplit) else None


@runtime_checkable
class ReadFromFiles(Protocol):
    """A split whose samples are read from files while a run trains, where others may write to them."""

    @property
    def files_read(self) -> Sequence[str]:
        """The files, as paths or URLs."""


class Preparation(Protocol):
    """Turn raw rows into features; fitted on the training split, and used again for predictions."""

    def features(self, rows: Any) -> Array:
        """Return the features, (rows, features) float32, of a data frame or a sequence of mappings.

        Extra columns are ignored.

        Raises:
            DataError: A column is missing, or a value cannot be used; names both column and row.
        """

    def targets(self, rows: Any) -> Array | None:
        """Return the targets as in `Batch`, or None if the rows have no target column."""

    def to_json(self) -> dict[str, Any]:
        """Return everything that is needed to apply it elsewhere, as plain values."""


class Identifiers(NamedTuple):
    """The names of the rows of a split to their owner: a column, and its (rows,) values."""

    column: str
    values: Array


@dataclass(frozen=True)
class DataBundle:
    """The data that a run trains on.

    Attributes:
        info: Task, shapes and classes.
        splits: The samples of each split.
        preparation: How raw rows become features; None for datasets of preprocessed arrays.
        rows: The positions of each split's rows in the source, for tables of predictions; empty if there are
            several sources.
        warnings: Problems that do not prevent training.
        columns: What the columns of a table are, in one line.
        content_hashed: False if the fingerprints cover only a sample of the rows.
        identifiers: The column that names the rows of each split, if there is one.
        sampling: The weights with which training rows are drawn, (rows,) float64, if `data.sampling` names
            them; None: for `balanced`, they are computed from the targets.
        skipped: The names of corrupt samples that were left out.
        skips: Their positions in each source; None: nobody looked for any.
        tokenizer: What made tokens of text, as `rows.tokenizers` writes it; None: there is no text, or its
            bytes are the tokens.
        unrepeatable: Why samples cannot be read again as they were, so that no run can be repeated to the
            bit; empty: they can.
        files: The SHA-256 of each shard by its name, to tell which one has changed.
        shards_read: The shards that samples are read from while a run trains; of converted ones, none.
        packages: The distributions that were imported to prepare the data, if another process did that.
        repeated: The rows that two splits share; `warnings` say so, too.
        ranges: The least and greatest values of columns of numbers and times in the training rows.
        code: The user's objects whose code makes the samples, such as map-style data sets.
        batch_size: That of the user's data loaders, if the samples were given as such.
        expectations: The number of expectations that were examined.
        examples: The first rows of each split, as predictions take them, before they became features: tables
            read as their kinds, texts, or images (`images.sources.RawImages`).
        pins: The versions of the data, by the keys of the config that name them.
        keys: A sample of the keys that the rows are split by, as `key_forms` returns it.
    """

    info: DataInfo
    splits: Mapping[SplitName, Split]
    preparation: Preparation | None = None
    rows: Mapping[SplitName, Ids] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    columns: str = ""
    content_hashed: bool = True
    identifiers: Mapping[SplitName, Identifiers] = field(default_factory=dict)
    sampling: Array | None = field(default=None, repr=False)
    skipped: Sequence[str] = ()
    skips: Skips | None = None
    tokenizer: dict[str, Any] | None = field(default=None, repr=False)
    unrepeatable: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    shards_read: Sequence[str] = ()
    packages: Sequence[str] = ()
    repeated: Sequence[RepeatedRows] = ()
    ranges: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    code: Sequence[Any] = field(default=(), repr=False)
    batch_size: int | None = None
    expectations: int = 0
    examples: Mapping[SplitName, Any] = field(default_factory=dict, repr=False)
    pins: Mapping[str, Pin] = field(default_factory=dict)
    keys: Sequence[str] = ()
    _known: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, compute: Callable[[DataBundle], T]) -> T:
        """Return what a function of these data alone computes; it is called once for all that share them."""
        name = f"{compute.__module__}.{compute.__qualname__}"
        if name not in self._known:
            self._known[name] = compute(self)
        known: T = self._known[name]
        return known

    @property
    def files_read(self) -> list[str]:
        """The files that samples are read from while a run trains, as paths or URLs."""
        splits = [split for split in self.splits.values() if isinstance(split, ReadFromFiles)]
        return [*self.shards_read, *(file for split in splits for file in split.files_read)]

    def with_pins(self, pins: Mapping[str, Pin]) -> DataBundle:
        """Return the same data with the versions that they are."""
        pinned = replace(self, pins=pins)
        pinned.share(self._known)
        return pinned

    def described_as(self, info: DataInfo) -> DataBundle:
        """Return the same data with another description, which `once` does not depend on."""
        described = replace(self, info=info)
        described.share(self._known)
        return described

    def share(self, known: dict[str, Any]) -> None:
        """Share what `once` computes with others that have the same data."""
        object.__setattr__(self, "_known", known)


class Dataset(Protocol):
    """An adapter, constructed with the data section and its own validated `Params`."""

    names: ClassVar[Sequence[str]]  # the values of data.type that it answers to
    Params: ClassVar[type[BaseModel]]

    def __init__(self, config: DataConfig, params: BaseModel) -> None: ...

    def load(self, request: LoadRequest) -> DataBundle:
        """Read, check, split and prepare the data.

        Args:
            request: The form to prepare them in, and which corrupt samples are left out.

        Raises:
            DataError: The data cannot be used; says what is wrong, where (file, column, row), and what to do.
            MissingExtraError: The library that reads this format is not installed.
        """


@runtime_checkable
class KnownSources(Protocol):
    """A data set that depends on nothing but its section and files, so that runs can share what it reads."""

    def sources(self) -> Sequence[str] | None:
        """Return the files that `load` reads, as paths or URLs; None: it reads others, too."""


@runtime_checkable
class FileSamples(Protocol):
    """A data set that makes samples of files that are no tables; `evaluate` and `predict` take such files."""

    def samples(self, path: str, tokenizer: Mapping[str, Any] | None) -> Split:
        """Return a file, or one at a URL, in samples with their targets, like those of a validation split.

        The data section says how the run's own data are read; where they are has no meaning here.

        Args:
            path: The file, or what else `data.path` may name.
            tokenizer: `DataBundle.tokenizer` of the run.

        Raises:
            DataError: The file cannot be read, or gives no sample.
        """


@runtime_checkable
class EvenLabels(Split, Protocol):
    """A split of token sequences that knows whether all rows have as many labels."""

    @property
    def labels_per_row(self) -> int | None:
        """The number of labels of each row; None if rows differ."""


@runtime_checkable
class ClassSplit(SampleSplit, Protocol):
    """A split of which the classes of all samples can be told before they are trained on."""

    @property
    def has_classes(self) -> bool:
        """True where each sample is of one class."""

    def codes(self, setting: str) -> tuple[Array, int]:
        """Return the class of each sample, (rows,) int64, and the number of classes.

        Args:
            setting: The key of the config that needs them, for messages.

        Raises:
            DataError: All of too many samples would have to be read for it.
        """


@runtime_checkable
class LabelSplit(SampleSplit, Protocol):
    """A split that reads the labels of samples alone faster than the samples."""

    def labels(self, ids: Ids, draw: Draw) -> Array:
        """Return the labels that `read` returns, (n, ...)."""
