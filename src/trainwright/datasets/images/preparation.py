"""The preparation of images that are to be predicted: paths, bytes or arrays become what the model takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from trainwright.config.transforms import Transform
from trainwright.datasets.images.pixels import (
    CHANNELS,
    ENDINGS,
    PILLOW_MODES,
    CorruptImageError,
    Image,
    Mode,
    as_bytes,
    decode,
)
from trainwright.datasets.images.split import ImageSplit, Pipeline
from trainwright.datasets.images.transforms import sizes_outside_training
from trainwright.datasets.samples.corrupt import log_corrupt
from trainwright.datasets.samples.files import files_in, log_left_out
from trainwright.datasets.samples.threads import THREADS
from trainwright.datasets.tables.raw import FORMAT
from trainwright.datasets.tables.table import Table, as_table
from trainwright.datasets.tables.target import Target
from trainwright.errors import DataError
from trainwright.types import FEATURES, Array

_TRANSFORMS: TypeAdapter[list[Any]] = TypeAdapter(list[Transform])


class ImagePreparation:
    """Turn images into features; see `trainwright.datasets.base.Preparation`.

    An image is a path, the contents of an image file, an image of Pillow, or an array (height, width[,
    channels]) uint8.

    Args:
        column: The column of images.
        mode: The colors to decode to.
        pipeline: The transforms, of which those outside of training are used.
        target: The target.
    """

    encodes_training_otherwise = False
    has_columns = False
    noun = "images"
    feature_names: Sequence[str] = ()
    categories: Sequence[int] = ()

    def __init__(self, column: str, mode: Mode, pipeline: Pipeline, target: Target) -> None:
        self.column = column
        self.target = target
        self._mode = mode
        self._pipeline = pipeline

    def samples(self, split: ImageSplit) -> ImageSplit:
        """Return the images of a split, which another model's data have, as this one takes them."""
        return split.with_pipeline(self._pipeline)

    @property
    def column_names(self) -> list[str]:
        """The columns that rows must have."""
        return [self.column]

    @property
    def path_column(self) -> str:
        """The column of predictions that holds the paths of the images."""
        return self.column

    @property
    def scaling(self) -> tuple[Sequence[float] | None, Sequence[float] | None]:
        """The mean and standard deviation of each channel of floats from 0 to 1, if they are normalized."""
        return self._pipeline.mean, self._pipeline.std

    @property
    def reading(self) -> dict[str, Any]:
        """The colors and the changes of size of an image, as plain values, for readers of exported models."""
        steps = sizes_outside_training(self._pipeline.listed)
        return {"mode": PILLOW_MODES[self._mode], "steps": steps}

    @property
    def contents(self) -> list[str]:
        """A line for each column that rows must have: its name, and what it holds."""
        return [f"{self.column}: image"]

    @property
    def text_columns(self) -> list[str]:
        """The columns to read as text from files without types."""
        return [self.column]

    def arrays(self, rows: Any) -> dict[str, Array]:
        """Return the features by their name; see `features`."""
        return {FEATURES: self.features(rows)}

    def features(self, rows: Any) -> Array:
        """Return (rows, channels, height, width) float32.

        Args:
            rows: A table or mappings with the column of images; a folder, or a file; or a sequence of paths,
                contents of image files, or arrays.

        Raises:
            DataError: There is no column of images, one cannot be decoded, or they have several sizes.
        """
        made = THREADS.map(lambda value: self._pipeline(self._image(value)), self._values(rows))
        if len({image.shape for image in made}) > 1:
            raise DataError("the images have several sizes, and data.transforms gives them no common one")
        return np.stack(made)

    def files_at(self, path: Path | str) -> list[Path] | None:
        """Return the image at a path, or those in a folder; None if it is neither."""
        return images_at(path)

    def rows_of_files(self, files: Sequence[Path]) -> Sequence[Any]:
        """Return files as rows: an image may be a path."""
        return files

    def readable(self, files: Sequence[Path]) -> list[Path]:
        """Return the files that can be decoded; warn of the others.

        Raises:
            DataError: None can be.
        """

        def is_whole(file: Path) -> bool:
            try:
                self._image(file)
            except CorruptImageError:
                return False
            return True

        are_whole = THREADS.map(is_whole, files)
        if not any(are_whole):
            raise DataError(f"none of the {len(files):,} images can be decoded, such as {files[0]}")
        log_corrupt([str(file) for file, is_so in zip(files, are_whole, strict=True) if not is_so], "image")
        return [file for file, is_so in zip(files, are_whole, strict=True) if is_so]

    def rows_in(self, table: Table) -> list[Any]:
        """Return the images of a file's table; their paths are relative to the file."""
        folder = Path(table.source).expanduser().absolute().parent
        return [folder / value if isinstance(value, str) else value for value in self._values(table)]

    def _values(self, rows: Any) -> Sequence[Any]:
        if isinstance(rows, str | Path):
            return files_of(rows) or [rows]
        if isinstance(rows, Table) or hasattr(rows, "columns"):
            columns = rows.columns
            if self.column not in columns:
                raise DataError(f"the rows have no column {self.column!r}, which holds the images")
            return list(columns[self.column] if isinstance(rows, Table) else rows[self.column])
        values = list(rows)
        if not values:
            raise DataError("there are no images")
        is_row = [isinstance(value, Mapping) and self.column in value for value in values]
        return [value[self.column] for value in values] if all(is_row) else values

    def _image(self, value: Any) -> Image:
        if hasattr(value, "convert") and hasattr(value, "mode"):  # an image of Pillow
            value = as_bytes(value, PILLOW_MODES[self._mode])
        if isinstance(value, Mapping):  # as Hugging Face's data sets hold them
            value = value.get("bytes") or value.get("path")
        if isinstance(value, str | Path):
            path = Path(value).expanduser()
            try:
                return decode(path.read_bytes(), self._mode, str(value))
            except OSError as error:
                raise DataError(f"{path} cannot be read: {error.strerror}") from error
        if isinstance(value, bytes | bytearray):
            return decode(bytes(value), self._mode, "an image")
        array = np.asarray(value)
        array = array[:, :, None] if array.ndim == 2 else array
        if array.ndim != 3 or array.shape[2] != CHANNELS[self._mode] or array.dtype != np.uint8:
            raise DataError(
                f"{array.dtype} of shape {array.shape} given as an image; give a path, the bytes of a file, "
                f"or (height, width, {CHANNELS[self._mode]}) uint8"
            )
        return array

    def remarks(self, rows: Any, known: Collection[str]) -> dict[str, str]:  # noqa: ARG002
        """Return nothing: an image has no columns that could differ."""
        return {}

    def with_targets(self, rows: Any) -> Table:
        """Return the rows as they are."""
        return as_table(rows)

    def targets(self, rows: Any) -> Array | None:
        """Return the targets as in training; None without such a column."""
        table = as_table(rows, only=set(self.target.columns))
        return self.target.encode(table) if set(self.target.columns) <= set(table.columns) else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        return {
            "version": FORMAT,
            "images": self.column,
            "mode": self._mode,
            "transforms": [one.model_dump() for one in self._pipeline.listed],
            "mean": self._pipeline.mean,
            "std": self._pipeline.std,
            "target": self.target.to_json(),
        }


def images_at(path: Path | str) -> list[Path] | None:
    """Return the image at a path, or those in a folder; None if it is neither."""
    return [Path(path)] if Path(path).suffix.lower() in ENDINGS else files_of(path)


def files_of(folder: str | Path) -> list[Path] | None:
    """Return the images in a folder and those below it, sorted; None if it is no folder.

    Raises:
        DataError: There are none.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        return None
    found, others = files_in(root, ENDINGS)
    log_left_out(folder, others, "images")
    if not found:
        raise DataError(f"{folder} holds no images; their names end in {', '.join(ENDINGS)}")
    return found


def from_json(data: dict[str, Any]) -> ImagePreparation:
    """Restore the preparation that `to_json` was called on; only what it does outside of training is used."""
    kept = [one for one in data["transforms"] if one["type"] != "custom"]
    listed = _TRANSFORMS.validate_python(kept)
    pipeline = Pipeline(listed, data["mean"], data["std"])
    return ImagePreparation(data["images"], data["mode"], pipeline, Target.from_json(data["target"]))
