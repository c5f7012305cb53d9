"""Build the data of a run from images and their targets."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from pydantic import Field

from trainwright.config.schema import DataConfig
from trainwright.datasets.base import DataBundle, Draw, Identifiers, Reading, Skips
from trainwright.datasets.images.masks import MaskedImages, Masks, MaskSplit, found_classes
from trainwright.datasets.images.pixels import CorruptImageError, Mode
from trainwright.datasets.images.preparation import ImagePreparation
from trainwright.datasets.images.sources import CachedImages, Images, RawImages
from trainwright.datasets.images.split import ImageSplit, Pipeline
from trainwright.datasets.samples import preprocessed
from trainwright.datasets.samples.corrupt import log_corrupt
from trainwright.datasets.samples.sampling import sampling_weights
from trainwright.datasets.samples.threads import THREADS
from trainwright.datasets.tables.splitting import fractions, split_rows
from trainwright.datasets.tables.table import Table
from trainwright.datasets.tables.tabular import provided_splits
from trainwright.datasets.tables.target import Target
from trainwright.errors import DataError
from trainwright.plugins import task_of
from trainwright.process.alarms import announced
from trainwright.process.global_random import preserved_global_random
from trainwright.types import (
    FEATURES,
    SPLITS,
    TARGET,
    Array,
    ArraySpec,
    Batch,
    DataInfo,
    FeatureForm,
    Ids,
    SplitName,
)

log = logging.getLogger("trainwright")
_TASK = "segmentation"
_READ_AGAIN = 16  # samples; one of two outcomes, drawn for each, differs but once in 65,000
_UNREPEATABLE = "a function of data.transforms returns another image when it is called again"
_DRAW_FROM = "draw from the generator that it is given alone, to make runs repeatable"
CLASS_NAMES: Any = Field(
    default_factory=list,
    description="segmentation: names of the classes 0, 1 ... of masks; default: the classes are the numbers "
    "that masks hold",
)


@dataclass(frozen=True)
class Labeled:
    """The images of one source, and what is known of each.

    Attributes:
        positions: (rows,) of the images.
        targets: (rows,), or (rows, outputs), 0 of these without a target; empty where the images have masks.
        weights: (rows,) float64; None: all count the same.
    """

    positions: Ids
    targets: Array
    weights: Array | None = None

    def take(self, rows: Ids) -> Labeled:
        """Return some of the rows."""
        weights = None if self.weights is None else self.weights[rows]
        targets = self.targets[rows] if len(self.targets) else self.targets
        return Labeled(self.positions[rows], targets, weights)


@dataclass(frozen=True)
class ImageSource:
    """Images, and what identifies each.

    Attributes:
        images: The images of all splits.
        mode: The color mode that they are decoded to.
        column: The column that holds them, in rows to predict.
        columns: Columns of the training rows that `data.split` and `data.sampling` use.
    """

    images: Images
    mode: Mode
    column: str = "image"
    columns: Mapping[str, Array] = field(default_factory=dict)
    masks: MaskSource | None = None


@dataclass(frozen=True)
class MaskSource:
    """The masks of images.

    Attributes:
        files: At the positions of the images, decoded to numbers.
        class_names: The names of the classes 0, 1 ...; empty: the classes are the numbers that masks hold.
    """

    files: Images
    class_names: Sequence[str] = ()


def bundle(
    source: ImageSource, parts: Mapping[SplitName, Labeled], config: DataConfig, form: FeatureForm
) -> DataBundle:
    """Build the data of a run.

    Args:
        source: The images.
        parts: The rows of each split that has a source of its own; `train` is always present.
        config: The data section.
        form: The form in which the framework wants targets.

    Raises:
        DataError: The data cannot be used; says what is wrong, and what to do.
    """
    pipeline = Pipeline(config.transforms)
    if pipeline.mixing and any(part.weights is not None for part in parts.values()):
        raise DataError(
            f"data.transforms: {pipeline.mixing[0].type} blends two images and their targets, and "
            "cannot blend weights (data.weight); leave one of them out"
        )
    if pipeline.mixing and not config.targets:
        raise DataError(
            f"data.transforms: {pipeline.mixing[0].type} blends two images and their targets, but "
            "data.target is null; leave it out"
        )
    images = CachedImages(source.images) if config.cache == "memory" else source.images
    whole, skips = _whole([images, *([source.masks.files] if source.masks else [])], parts, config)
    skipped = [images.names[parts[split].positions[i]] for split, some in (skips or {}).items() for i in some]
    log_corrupt(skipped, "image")
    rows = np.isin(parts["train"].positions, whole["train"].positions)
    columns = {name: values[rows] for name, values in source.columns.items()}
    parts = whole
    if source.masks is not None:
        built = _with_masks(replace(source, images=images, columns=columns), source.masks, parts, config)
        return replace(built, skipped=skipped, skips=skips)

    def serve(inputs: Batch, ids: Ids | None, targets: Array) -> ImageSplit:
        positions = inputs[FEATURES] if ids is None else inputs[FEATURES][ids]
        known = {TARGET: targets} if config.targets else {}
        return ImageSplit(images, positions, known, pipeline, Reading("the images"))

    pairs = {name: ({FEATURES: part.positions}, part.targets) for name, part in parts.items()}
    weights = {name: part.weights for name, part in parts.items() if part.weights is not None}
    built = preprocessed.from_arrays(pairs, config, form, serve, weights, columns)
    # The targets are indices of classes, or the values that a loss takes.
    classes = len(built.info.classes or ()) if task_of(built.info.task).labels(np.zeros(1)) else 0
    train = built.splits["train"]
    assert isinstance(train, ImageSplit), "`serve` made it"
    with announced(f"measuring {len(train):,} images"):
        pipeline = pipeline.measured(images, train.positions.tolist())
    splits = {
        name: split.finished(pipeline, classes, _reading(name, config))
        for name, split in built.splits.items()
        if isinstance(split, ImageSplit)
    }
    return replace(_described(built, splits, source, pipeline), skipped=skipped, skips=skips)


def _described(
    built: DataBundle,
    splits: Mapping[SplitName, ImageSplit | MaskSplit],
    source: ImageSource,
    pipeline: Pipeline,
) -> DataBundle:
    """Return the data with these splits, and their description as images."""
    info = built.info
    target = Target(info.target, info.task, info.classes, names=tuple(info.target_names))
    shape = " x ".join(map(str, info.input_shape))
    reason = "" if _is_repeatable(splits["train"], pipeline) else _UNREPEATABLE
    masks = "" if source.masks is None else f" and masks of {info.outputs} classes"
    return replace(
        built,
        splits=dict(splits),
        preparation=ImagePreparation(source.column, source.mode, pipeline, target),
        columns=f"{sum(map(len, splits.values())):,} images{masks}, {shape} each",
        identifiers={
            name: Identifiers(
                source.column, np.array([source.images.names[i] for i in split.positions], object)
            )
            for name, split in splits.items()
        },
        unrepeatable=reason,
        examples={name: RawImages(source.images, split.positions) for name, split in splits.items()},
        warnings=[*built.warnings, *([f"{reason}; {_DRAW_FROM}"] if reason else [])],
    )


def _is_repeatable(train: ImageSplit | MaskSplit, pipeline: Pipeline) -> bool:
    """Return whether functions of the user's give some training samples again as they were."""
    if not pipeline.has_own:
        return True
    ids, draw = np.arange(min(len(train), _READ_AGAIN)), Draw(0, 0)
    with preserved_global_random():
        first, again = (train.read(ids, draw) for _ in range(2))
    return all(np.array_equal(first[name], again[name], equal_nan=True) for name in first)


def _with_masks(
    source: ImageSource, mask_source: MaskSource, parts: Mapping[SplitName, Labeled], config: DataConfig
) -> DataBundle:
    """Build the data of images with masks; arguments and errors are those of `bundle`."""
    pipeline = Pipeline(config.transforms)
    _refuse_for_masks(pipeline, parts, config)
    classes = _classes(mask_source, parts, config)
    masks: Images = Masks(mask_source.files, classes, config.ignore_index)
    if config.cache == "memory":
        masks = CachedImages(masks)
    images = MaskedImages(source.images, masks, classes, config.ignore_index)
    train = parts["train"].positions
    table = Table({source.column: train, **source.columns}, "the train rows")
    shares = fractions(config.split, provided_splits(parts.keys(), config))
    rows = split_rows(table, config.split, *shares, None)
    positions = {name: train[ids] for name, ids in rows.items()}
    positions |= {name: part.positions for name, part in parts.items() if name != "train"}
    with announced(f"measuring {len(train):,} images"):
        pipeline = pipeline.measured(source.images, positions["train"].tolist())
    splits = {
        name: MaskSplit(images, positions[name], pipeline, _reading(name, config))
        for name in SPLITS
        if name in positions
    }
    sample = splits["train"].take(np.zeros(1, np.int64))
    info = DataInfo(
        _TASK,
        {FEATURES: ArraySpec(sample[FEATURES].shape[1:], str(sample[FEATURES].dtype))},
        len(classes),
        list(mask_source.class_names or classes),
        target=config.target_name,
        target_shape=sample[TARGET].shape[1:],
    )
    drawn = sampling_weights(table, rows["train"], config)
    built = DataBundle(info, {}, rows=rows if len(parts) == 1 else {}, sampling=drawn)
    return _described(built, splits, source, pipeline)


def _refuse_for_masks(pipeline: Pipeline, parts: Mapping[SplitName, Labeled], config: DataConfig) -> None:
    """Refuse settings that do not go with masks.

    Raises:
        DataError: There is one.
    """
    if config.task not in ("auto", _TASK):
        raise DataError(f"data.task: {config.task} given, but the images have masks: leave it out")
    if pipeline.mixing:
        raise DataError(
            f"data.transforms: {pipeline.mixing[0].type} blends two images, and cannot blend their masks; "
            "leave it out"
        )
    if any(part.weights is not None for part in parts.values()):
        raise DataError("data.weight: sample weights are not supported with masks; remove it")


def _classes(masks: MaskSource, parts: Mapping[SplitName, Labeled], config: DataConfig) -> list[int]:
    """Return the number of each class in the files of masks.

    Raises:
        DataError: A mask cannot be decoded, or all masks hold one class.
    """
    if masks.class_names:
        return list(range(len(masks.class_names)))
    positions = np.concatenate([part.positions for part in parts.values()]).tolist()
    with announced(f"looking for the classes of {len(positions):,} masks"):
        return found_classes(masks.files, positions, config.ignore_index)


def _reading(name: SplitName, config: DataConfig) -> Reading:
    return Reading(f"the {name} images", config.workers, config.prefetch, config.timeout, in_thread=True)


def _whole(
    files: Sequence[Images], parts: Mapping[SplitName, Labeled], config: DataConfig
) -> tuple[Mapping[SplitName, Labeled], Skips | None]:
    """Return the rows whose files can be decoded, and which others are skipped, if any are to be.

    Args:
        files: The images; and their masks, if they have some.
        parts: The rows of each split.
        config: The data section.

    Raises:
        DataError: No image of a split can be decoded.
    """
    if config.on_corrupt == "error":
        return parts, None

    def is_whole(position: int) -> bool:
        try:
            for some in files:
                some.image(position)
        except CorruptImageError as error:
            log.debug("data: %s", error)
            return False
        return True

    kept: dict[SplitName, Labeled] = {}
    skips: dict[SplitName, Sequence[int]] = {}
    for name, part in parts.items():
        with announced(f"looking for corrupt images among {len(part.positions):,}"):
            whole = np.array(THREADS.map(is_whole, part.positions.tolist()), bool)
        if not whole.any():
            raise DataError(f"none of the {len(whole)} {name} images can be decoded")
        kept[name], skips[name] = part.take(np.flatnonzero(whole)), np.flatnonzero(~whole).tolist()
    return kept, skips
