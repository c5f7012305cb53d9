"""Build the data of a run from images and their targets."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from trainyard.announce import announced
from trainyard.config.schema import DataConfig
from trainyard.datasets.base import DataBundle, Identifiers, Reading
from trainyard.datasets.rows import objects
from trainyard.datasets.rows.images.pixels import CorruptImageError, Mode
from trainyard.datasets.rows.images.preparation import ImagePreparation
from trainyard.datasets.rows.images.sources import CachedImages, Images, log_corrupt
from trainyard.datasets.rows.images.split import ImageSplit, Pipeline
from trainyard.datasets.rows.target import Target
from trainyard.datasets.rows.threads import THREADS
from trainyard.errors import DataError
from trainyard.registry import task_of
from trainyard.types import FEATURES, TARGET, Array, Batch, Ids, SplitName

log = logging.getLogger("trainyard")


@dataclass(frozen=True)
class Labeled:
    """The images of one source, and what is known of each.

    Attributes:
        positions: (rows,) of the images.
        targets: (rows,), or (rows, outputs).
        weights: (rows,) float64; None: all count the same.
    """

    positions: Ids
    targets: Array
    weights: Array | None = None

    def take(self, rows: Ids) -> Labeled:
        """Return some of the rows."""
        weights = None if self.weights is None else self.weights[rows]
        return Labeled(self.positions[rows], self.targets[rows], weights)


@dataclass(frozen=True)
class ImageSource:
    """Images, and how they are told apart.

    Attributes:
        images: The images of all splits.
        mode: The colours that they are decoded to.
        column: The column that holds them, in rows to predict.
        divide_by: Columns of the training rows by which they may be divided, by name.
    """

    images: Images
    mode: Mode
    column: str = "image"
    divide_by: Mapping[str, Array] = field(default_factory=dict)


def bundle(source: ImageSource, parts: Mapping[SplitName, Labeled], config: DataConfig) -> DataBundle:
    """Build the data of a run.

    Args:
        source: The images.
        parts: The rows of each split that has a source of its own; `train` is always present.
        config: The data section.

    Raises:
        DataError: The data cannot be used; says what is wrong, and what to do.
    """
    pipeline = Pipeline(config.transforms)
    if pipeline.mixing and any(part.weights is not None for part in parts.values()):
        raise DataError(
            f"data.transforms: {pipeline.mixing[0].type} blends two images and their targets, and "
            "cannot blend weights (data.weight); leave one of them out"
        )
    images = CachedImages(source.images) if config.cache == "memory" else source.images
    whole, skipped = _whole(images, parts, config)
    rows = np.isin(parts["train"].positions, whole["train"].positions)
    divide_by = {name: values[rows] for name, values in source.divide_by.items()}
    parts = whole

    def serve(inputs: Batch, ids: Ids | None, targets: Array) -> ImageSplit:
        positions = inputs[FEATURES] if ids is None else inputs[FEATURES][ids]
        return ImageSplit(images, positions, {TARGET: targets}, pipeline, Reading("the images"))

    pairs = {name: ({FEATURES: part.positions}, part.targets) for name, part in parts.items()}
    weights = {name: part.weights for name, part in parts.items() if part.weights is not None}
    built = objects.from_arrays(pairs, config, serve, weights, divide_by)
    # The targets are indices of classes, or the values that a loss takes.
    classes = len(built.info.classes or ()) if task_of(built.info.task).labels(np.zeros(1)) else 0
    train = built.splits["train"]
    assert isinstance(train, ImageSplit), "`serve` made it"
    with announced(f"measuring {len(train):,} images"):
        pipeline = pipeline.measured(images, train.positions.tolist())
    splits = {
        name: split.finished(
            pipeline,
            classes,
            Reading(f"the {name} images", config.workers, config.prefetch, config.timeout, in_thread=True),
        )
        for name, split in built.splits.items()
        if isinstance(split, ImageSplit)
    }
    target = Target(
        built.info.target, built.info.task, built.info.classes, names=tuple(built.info.target_names)
    )
    shape = " x ".join(map(str, built.info.input_shape))
    return replace(
        built,
        splits=dict(splits),
        preparation=ImagePreparation(source.column, source.mode, pipeline, target),
        columns=f"{sum(map(len, splits.values())):,} images, {shape} each",
        identifiers={
            name: Identifiers(source.column, np.array([images.names[i] for i in split.positions], object))
            for name, split in splits.items()
        },
        skipped=skipped,
    )


def _whole(
    images: Images, parts: Mapping[SplitName, Labeled], config: DataConfig
) -> tuple[Mapping[SplitName, Labeled], list[str]]:
    """Return the rows whose images can be decoded, and the names of the others, if these are to be skipped.

    Raises:
        DataError: No image of a split can be decoded.
    """
    if config.on_corrupt == "error":
        return parts, []

    def is_whole(position: int) -> bool:
        try:
            images.image(position)
        except CorruptImageError as error:
            log.debug("data: %s", error)
            return False
        return True

    kept: dict[SplitName, Labeled] = {}
    skipped: list[str] = []
    for name, part in parts.items():
        with announced(f"looking for corrupt images among {len(part.positions):,}"):
            whole = np.array(THREADS.map(is_whole, part.positions.tolist()), bool)
        skipped += [images.names[i] for i in part.positions[~whole]]
        if not whole.any():
            raise DataError(f"none of the {len(whole)} {name} images can be decoded")
        kept[name] = part.take(np.flatnonzero(whole))
    log_corrupt(skipped)
    return kept, skipped
