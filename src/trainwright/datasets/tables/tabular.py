"""Turn tables into the data of a run: check, split, prepare, check again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from trainwright.config.sampling import sampling_column
from trainwright.config.schema import DataConfig
from trainwright.config.splits import SplitConfig
from trainwright.datasets.base import PLAIN, DataBundle, Examine, Identifiers, LoadRequest, refuse_unmet
from trainwright.datasets.samples import weights
from trainwright.datasets.samples.arrays import Arrays
from trainwright.datasets.samples.files import paths_by_split
from trainwright.datasets.samples.sampling import SAMPLING, sampling_weights
from trainwright.datasets.tables import checks, raw
from trainwright.datasets.tables.encoders.numbers import mean_and_scale
from trainwright.datasets.tables.expectations import examined
from trainwright.datasets.tables.feature_steps import FeatureSteps, opened_steps
from trainwright.datasets.tables.key_forms import key_forms
from trainwright.datasets.tables.kinds import IDENTIFIER, Inference, infer, infer_target, judge, kept_columns
from trainwright.datasets.tables.list_cells import with_label_columns
from trainwright.datasets.tables.preparation import TabularPreparation, fit
from trainwright.datasets.tables.ranges import ranges_of
from trainwright.datasets.tables.raw import RawPreparation
from trainwright.datasets.tables.split_keys import HASHED, hashes, read_as_text, with_hashes
from trainwright.datasets.tables.splitting import Rows, fractions, split_rows
from trainwright.datasets.tables.suspects import odd_spellings, row_of_sums
from trainwright.datasets.tables.table import Table, kind_of
from trainwright.datasets.tables.target import Target, class_indices, inspect, rows_with_target
from trainwright.datasets.tables.typed import ColumnKind, typed
from trainwright.errors import DataError
from trainwright.plugins import task_of
from trainwright.process.alarms import announced
from trainwright.tasks.support.precision import is_coarse, learned, offset_of
from trainwright.tasks.support.transforms import fit as fit_transform
from trainwright.tasks.support.transforms import transform_of
from trainwright.types import (
    FEATURES,
    SPLITS,
    TARGET,
    WEIGHT,
    Array,
    DataInfo,
    FeatureForm,
    Ids,
    SplitName,
    features_spec,
)

Tables = Mapping[SplitName, Table]
_MOST_IDENTIFIERS = 1_000_000  # texts that are kept to name rows in a report


class Reader(Protocol):
    """A function that reads one file; the columns in `text` are read as text."""

    def __call__(self, path: str, text: Collection[str] = ()) -> Table:
        """Return the rows of the file."""


def named_columns(table: Table, config: DataConfig) -> dict[str, Array]:
    """Return the columns that decide how the training rows are split and drawn; `HASHED` among them.

    Raises:
        DataError: One is missing.
    """
    split = config.split
    keys = {"data.split.group": split.group, "data.split.time": split.time}
    keys[SAMPLING] = sampling_column(config.sampling)
    hashed = {HASHED: hashes(table, split.keys, split.seed)} if split.by == "hash" else {}
    return {name: table.column(name, key) for key, name in keys.items() if name is not None} | hashed


def refuse_paths(config: DataConfig) -> None:
    """Refuse paths in the config of data that is not read from files.

    Raises:
        DataError: The config gives a path.
    """
    for name in ("path", "train_path", "val_path", "test_path"):
        if getattr(config, name) is not None:
            raise DataError(
                f"data.{name}: {config.type!r} reads no file; leave it out, or give data.type: csv, parquet "
                "or npz"
            )


def load_files(config: DataConfig, read: Reader, request: LoadRequest) -> DataBundle:
    """Read the files of the config, all with the types of the training file, and build the data of a run."""
    paths = paths_by_split(config)
    with announced(f"reading {paths['train']}"):
        train = read(paths["train"], read_as_text(config))
    text = [name for name, values in train.columns.items() if kind_of(values) == "text"]
    tables: dict[SplitName, Table] = {"train": train}
    for name in SPLITS[1:]:
        if name in paths:
            with announced(f"reading {paths[name]}"):
                tables[name] = read(paths[name], text)
    with announced(f"preparing {sum(map(len, tables.values())):,} rows"):
        return build(tables, config, request.form, examine=request.examine, examples=request.examples)


def provided_splits(tables: Collection[SplitName], config: DataConfig) -> set[SplitName]:
    """Return the splits that take no rows from the training rows.

    A single source is split in three. If the training rows have a source of their own, they give rows for
    validation only if there are none, and for the test only if `data.split.test` is set.
    """
    provided: set[SplitName] = set(tables)
    separate = config.train_path is not None or len(provided) > 1
    if separate and config.split.test is None:
        provided.add("test")
    return provided


def build(
    tables: Tables,
    config: DataConfig,
    form: FeatureForm,
    *,
    known: bool = False,
    given: bool = False,
    examine: Examine = refuse_unmet,
    examples: int = PLAIN.examples,
) -> DataBundle:
    """Build the data of a run: check, split and prepare the rows.

    Args:
        tables: The rows of each split that has a source of its own; `train` is always present.
        config: The data section.
        form: The form in which the framework wants the rows.
        known: Whether this is a well-known data set, whose columns are not checked for oddities.
        given: Whether the rows are objects of the user's, who knows which columns they have.
        examine: Judges how the rows compare with `data.expect`; see `LoadRequest`.
        examples: The number of first rows of each split that are kept.

    Raises:
        DataError: The data cannot be used; says what is wrong, where, and what to do.
    """
    expectations = examined(tables, config, examine)
    _refuse_empty(tables)
    original_target, as_read = config.target_name, tables["train"]
    tables, config = with_label_columns(tables, config)
    steps = opened_steps(config)
    names = checks.feature_columns(tables["train"], config) if steps is None else []
    judges = not known or bool(config.columns)
    before = _kinds_before_split(tables["train"], names, config) if judges else Inference({})
    tables = {name: typed(table, before.kinds) for name, table in tables.items()}
    if not judges and not form.frames:
        _refuse_mixtures(tables, names, config)
    tables, dropped = _with_targets(tables, config)
    train = tables["train"]
    task, warnings = inspect(train, config, form.dtype)
    provided = provided_splits(tables, config)
    target = _target(config, task, original_target)
    keyed = with_hashes(train, as_read, config.split)
    target, rows, more = _split(keyed, config, target, fractions(config.split, provided))
    tables, names = _derived(tables, names, steps, rows["train"], config)
    train = tables["train"]
    infers = judges and not form.frames
    keep = kept_columns(is_own=form.is_own, given=given)
    columns = infer(train, names, config, rows["train"], keep) if infers else Inference({})
    kinds = {**before.kinds, **columns.kinds}
    names = [name for name in names if name not in columns.kinds or columns.kinds[name].is_feature]
    tables = {name: replace(typed(table, columns.kinds), is_typed=judges) for name, table in tables.items()}
    if not form.frames:
        for table in tables.values():
            checks.refuse_bad_cells(table, names, config)
    parts = _parts(tables, rows)
    preparation, features = _prepare(parts, names, target, config, kinds, form)
    preparation.steps = steps
    splits = _weighted(_arrays(parts, features, target, form), tables, rows, config)
    read = [line for table in tables.values() for line in (*table.remarks, *row_of_sums(table))]
    odd = odd_spellings(train, kinds)
    warnings = [*read, *dropped, *before.warnings, *columns.warnings, *odd, *warnings, *more]
    targets = splits["train"].arrays.get(TARGET, np.empty((0, 0)))
    repeated = checks.repeated_rows(_compared(splits, preparation, parts["train"]), sources=tables)
    warnings += [*_unused_shares(tables, config), *(one.warning for one in repeated)]
    if not known and not form.frames:
        warnings += _odd_columns(parts["train"], names, targets, columns.kinds, is_own=form.is_own)
    if given:
        warnings += _not_standardized(splits["train"], config, form)
    info = _info(preparation, target, targets, config, form)
    return DataBundle(
        info=info,
        splits=dict(splits),
        preparation=preparation,
        rows=_positions(train, rows) if len(tables) == 1 else {},
        warnings=[*warnings, *rounded_targets(info, targets, form)],
        columns=columns.summary(),
        identifiers=_identifiers(parts, names, kinds),
        sampling=sampling_weights(tables["train"], rows["train"], config),
        repeated=repeated,
        expectations=expectations,
        ranges=ranges_of(parts["train"], getattr(preparation, "columns", ())),
        examples={name: _head(part, examples) for name, part in parts.items()},
        keys=key_forms(as_read, config.split),
    )


def _refuse_empty(tables: Tables) -> None:
    for table in tables.values():
        if not len(table):
            raise DataError(f"{table.source}: there are columns, but no rows")


def _derived(
    tables: Tables, names: list[str], steps: FeatureSteps | None, train: Ids, config: DataConfig
) -> tuple[Tables, list[str]]:
    """Return what the user's own steps, fitted to the training rows, make of the tables, and its features."""
    if steps is None:
        return tables, names
    tables = steps.fit(tables, train, config)
    return tables, checks.feature_columns(tables["train"], config)


def _arrays(
    parts: Tables, features: Mapping[SplitName, Array], target: Target, form: FeatureForm
) -> dict[SplitName, Arrays]:
    """Return the features and encoded targets of each split; without a target the features alone."""
    return {
        name: Arrays(
            {FEATURES: features[name]}
            | ({TARGET: target.encode(parts[name], form.dtype)} if target.name else {})
        )
        for name in SPLITS
        if name in parts
    }


def _not_standardized(train: Arrays, config: DataConfig, form: FeatureForm) -> list[str]:
    """Return warnings about features of a user's own model that are far from standardized."""
    if config.standardize or not (form.is_own and form.by_gradients):
        return []
    return checks.far_from_standardized(train.arrays[FEATURES], "or set data.standardize: true")


def _target(config: DataConfig, task: str, original: str) -> Target:
    """Return the target before its classes are known; `original` is what the config called it."""
    several = tuple(config.targets) if len(config.targets) > 1 else ()
    # A column of lists has become a column for each label.
    lists = None if original == config.target_name else original
    return Target(config.target_name, task, names=several, lists=lists)


def _odd_columns(
    train: Table, names: Sequence[str], targets: Array, kinds: Mapping[str, ColumnKind], *, is_own: bool
) -> list[str]:
    """Return warnings about odd columns; a model of the user's own counts on constant ones, too."""
    # Free texts may well differ from row to row, and what is declared was looked at.
    differ = {name for name, kind in kinds.items() if kind.kind == "text" or kind.declared}
    told = [name for name in names if not (is_own and checks.is_constant(train.columns[name]))]
    return checks.odd_columns(train, told, targets, differ)


def _identifiers(
    parts: Tables, features: Sequence[str], kinds: Mapping[str, ColumnKind]
) -> dict[SplitName, Identifiers]:
    """Return the first column that identifies rows; none where keeping its texts would take much memory."""
    judged = [name for name, kind in kinds.items() if kind.kind == "identifier"]
    left_out = [name for name in parts["train"].columns if name not in features and IDENTIFIER.search(name)]
    for name in [*judged, *left_out]:
        columns = {split: part.columns[name] for split, part in parts.items() if name in part.columns}
        rows = sum(map(len, columns.values()))
        if len(columns) == len(parts) and (rows <= _MOST_IDENTIFIERS or not _holds_objects(columns)):
            return {split: Identifiers(name, values) for split, values in columns.items()}
    return {}


def _head(table: Table, count: int) -> Table:
    """Return copies of the first rows, which keep no others in memory."""
    rows = table.take(np.arange(min(len(table), count)))
    return replace(rows, columns=dict(rows.columns), frame=None)


def _holds_objects(columns: Mapping[SplitName, Array]) -> bool:
    return any(values.dtype.kind == "O" for values in columns.values())


def _prepare(
    parts: Tables,
    names: Sequence[str],
    target: Target,
    config: DataConfig,
    kinds: Mapping[str, ColumnKind],
    form: FeatureForm,
) -> tuple[TabularPreparation | RawPreparation, dict[SplitName, Array]]:
    """Return the preparation, fitted on the training rows, and the features of each split."""
    if form.frames:
        raw.refuse_settings(config)
        as_it_is = raw.fit(parts["train"], names, target)
        return as_it_is, {name: as_it_is.features(part) for name, part in parts.items()}
    preparation = fit(parts["train"], names, target, config, kinds, form.dtype)
    features = {
        name: preparation.features(part) if name != "train" else preparation.training_features(part, config)
        for name, part in parts.items()
    }
    return preparation, features


def _weighted(
    splits: dict[SplitName, Arrays], tables: Tables, rows: Rows, config: DataConfig
) -> dict[SplitName, Arrays]:
    """Return the splits with the weights of their rows, if the config names a column of weights."""
    if config.weight is None:
        return splits
    by_source = {name: weights.encode(table, config.weight) for name, table in tables.items()}
    by_split = weights.of_splits(by_source, rows, config.weight)
    return {name: Arrays({**split.arrays, WEIGHT: by_split[name]}) for name, split in splits.items()}


def _compared(
    splits: Mapping[SplitName, Arrays], preparation: TabularPreparation | RawPreparation, train: Table
) -> Mapping[SplitName, Arrays]:
    """Return the splits, with training rows that are encoded like all others: equal rows are equal then."""
    if not preparation.encodes_training_otherwise:
        return splits
    own = splits["train"].arrays
    return {**splits, "train": Arrays({**own, FEATURES: preparation.features(train)})}


def _kinds_before_split(train: Table, names: Sequence[str], config: DataConfig) -> Inference:
    """Return the kinds of the columns that the split depends on: the target, and a time in text."""
    kinds: dict[str, ColumnKind] = {}
    warnings: list[str] = []
    time = config.split.time
    if time is not None and time in train.columns and kind_of(train.columns[time]) == "text":
        inference = judge(train, [time], config)
        warnings += [] if time in names else inference.warnings
        kinds |= {name: kind for name, kind in inference.kinds.items() if kind.kind in ("number", "time")}
    for name in config.targets:
        kinds[name] = infer_target(train, config.model_copy(update={"target": name}))
    return Inference(kinds, warnings)


def _refuse_mixtures(tables: Tables, names: Sequence[str], config: DataConfig) -> None:
    checks.refuse_mixtures(tables["train"], config.targets)
    for table in tables.values():
        checks.refuse_mixtures(table, names)


def _with_targets(tables: Tables, config: DataConfig) -> tuple[Tables, list[str]]:
    """Return the tables, without the rows that have no target if these are to be dropped, and warnings."""
    if config.missing_target != "drop":
        return tables, []
    kept, warnings = {}, []
    for name, table in tables.items():
        kept[name] = table
        for column in config.targets:
            kept[name], warning = rows_with_target(kept[name], column)
            warnings += [warning] if warning else []
    return kept, warnings


def _parts(tables: Tables, rows: Rows) -> Tables:
    """Return the rows of each split."""
    train = tables["train"]
    parts = {name: train.take(ids) if len(ids) < len(train) else train for name, ids in rows.items()}
    return parts | {name: table for name, table in tables.items() if name != "train"}


def _positions(table: Table, rows: Rows) -> Rows:
    """Return the positions of the splits' rows in the source."""
    return rows if table.numbers is None else {name: table.numbers[ids] for name, ids in rows.items()}


def _split(
    table: Table, config: DataConfig, target: Target, shares: tuple[float, float]
) -> tuple[Target, Rows, list[str]]:
    val, test = shares
    labels = None
    if target.name and not target.names:
        labels = task_of(target.task).labels(values := table.column(target.name))
    if labels is None:
        return target, split_rows(table, config.split, val, test, None), []
    codes = class_indices(values, labels)
    rows = split_rows(table, config.split, val, test, codes)
    checks.refuse_untrained_classes(table, rows, codes, labels, config)
    is_split = len(rows) > 1
    return (
        replace(target, classes=labels),
        rows,
        checks.single_rows(codes, labels, config) if is_split else [],
    )


def _unused_shares(tables: Collection[SplitName], config: DataConfig) -> list[str]:
    """Return warnings about shares that are set but have no effect."""
    shares = {"val": config.split.val, "test": config.split.test}
    unused = [
        name for name in shares if name in tables and shares[name] not in (0, getattr(SplitConfig(), name))
    ]
    return [f"data.split.{name} is not used: the {name} rows are given" for name in unused]


def _info(
    preparation: TabularPreparation | RawPreparation,
    target: Target,
    targets: Array,
    config: DataConfig,
    form: FeatureForm,
) -> DataInfo:
    names, categories = preparation.feature_names, preparation.categories
    outputs = len(target.names or target.classes or [target.name]) if target.name else len(names)
    are_labels = bool(target.names) and task_of(target.task).targets_are_labels
    dtype = preparation.dtype if isinstance(preparation, TabularPreparation) else "object"
    info = DataInfo(
        target.task,
        features_spec((len(names),), dtype),
        outputs,
        list(target.names) if are_labels else target.classes,
        names,
        target.name,
        categories=categories,
        target_names=() if are_labels else target.names,
    )
    return scaled(info, targets, config, form)


def scaled(info: DataInfo, targets: Array, config: DataConfig, form: FeatureForm) -> DataInfo:
    """Return `info` with the transformation, and then offset, mean and scale, of the training targets.

    Args:
        info: The description of the data.
        targets: The training targets, (rows,) or (rows, outputs).
        config: The data section.
        form: The form in which the framework wants targets.

    Raises:
        DataError: They cannot be transformed.
    """
    values, kind = targets, config.target_transform
    if kind is not None:
        if not task_of(info.task).scales_target:
            raise DataError(
                f"data.target_transform: {kind} is for amounts, but the task is {info.task}; leave it out, "
                "or give data.task: regression"
            )
        transform = fit_transform(kind, targets)
        info, values = replace(info, target_transform=transform.to_json()), transform.forward(targets)
    if not task_of(info.task).scales_target:
        return info
    standardizes = config.standardize and values.ndim == 1
    if form.target == "centered" or (form.target == "standardized" and standardizes):
        info = replace(info, target_offset=offset_of(values))
    if not standardizes:
        return info
    mean, scale = mean_and_scale(learned(values, info))
    usable = np.isfinite([mean, scale]).all() and scale > 0
    return replace(info, target_mean=mean, target_scale=scale) if usable else info


def rounded_targets(info: DataInfo, targets: Array, form: FeatureForm) -> list[str]:
    """Return a warning about training targets that a model learns rounded by a noticeable amount, if it does.

    Args:
        info: The description of the data.
        targets: The training targets, (rows,) or (rows, outputs).
        form: The form in which the framework wants targets.
    """
    if form.target == "float64" or info.target_offset or not task_of(info.task).scales_target:
        return []
    transform = transform_of(info)
    if not is_coarse(targets if transform is None else transform.forward(targets)):
        return []
    return [
        f"the target {info.target!r} differs by little beside its size, and the model learns it in float32, "
        "which rounds these differences; it is not shifted, since this loss, metric or model depends on the "
        "values themselves: use a loss that depends on differences alone, or subtract a constant from the "
        "target"
    ]
