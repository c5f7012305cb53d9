"""Images that a column of a CSV or Parquet file names or holds.

The column has paths, relative to the file; in a Parquet file it may also have the contents of image files, as
bytes or as Hugging Face's data sets hold them ({bytes, path}). Other columns are the target (`data.target`),
weights, and what rows are divided by. A column of masks, in the same form, takes the place of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, Field

from trainwright.config.fields import Section
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import DataBundle, LoadRequest
from trainwright.datasets.images.bundle import CLASS_NAMES, ImageSource, Labeled, MaskSource, bundle
from trainwright.datasets.images.pixels import Mode
from trainwright.datasets.images.sources import ByteImages, FileImages, Images
from trainwright.datasets.samples.files import existing_file, is_url, paths_by_split
from trainwright.datasets.samples.preprocessed import refuse_column_settings
from trainwright.datasets.samples.weights import encode as encode_weights
from trainwright.datasets.tables.expectations import examined
from trainwright.datasets.tables.frames import read_table
from trainwright.datasets.tables.split_keys import read_as_text
from trainwright.datasets.tables.table import Table, as_table, nearest, objects
from trainwright.datasets.tables.tabular import named_columns
from trainwright.errors import DataError
from trainwright.require import require
from trainwright.types import Array, SplitName

Cell = str | bytes


class ImageTableParams(Section):
    """Tables with a column of images."""

    image: str = Field("image", description="the column of images: paths, or the bytes of image files")
    mode: Mode = Field("rgb", description="colors to decode to: rgb, gray or rgba")
    mask: str | None = Field(
        None, description="segmentation: the column of masks: paths, or the bytes of image files"
    )
    class_names: list[str] = CLASS_NAMES


class ImageTableDataset:
    """A CSV or Parquet file with a column of images, to be split; or one for each split."""

    names: ClassVar[Sequence[str]] = ("image_table",)
    Params: ClassVar[type[BaseModel]] = ImageTableParams
    has_tokens: ClassVar[bool] = False

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, ImageTableParams)
        require("PIL.Image", "image")
        self._config = config
        self._params = params

    def load(self, request: LoadRequest) -> DataBundle:
        """Load the data; see `Dataset.load`."""
        config, mode = self._config, self._params.mode
        plain = config.model_copy(
            update={
                "weight": None,
                "sampling": None,
                "split": config.split.without_columns,
            }
        )
        refuse_column_settings(plain, "images are", "Leave it out")
        if self._params.class_names and self._params.mask is None:
            raise DataError(
                "data.class_names are those of masks (data.mask), which are not given; give "
                "data.mask, or leave class_names out"
            )
        cells: dict[str, list[Cell]] = {column: [] for column in self._columns}
        parts: dict[SplitName, Labeled] = {}
        named: dict[str, Array] = {}
        paths = paths_by_split(config)
        read = {name: self._read(path) for name, path in paths.items()}
        tables = {name: table for name, (table, _) in read.items()}
        expectations = examined(tables, config, request.examine)
        for name, (table, found) in read.items():
            start = len(cells[self._params.image])
            positions = np.arange(start, start + len(found[self._params.image]), dtype=np.int64)
            weights = None if config.weight is None else encode_weights(table, config.weight)
            targets = self._targets(table) if self._params.mask is None else np.empty(0)
            parts[name] = Labeled(positions, targets, weights)
            for column, some in found.items():
                cells[column] += some
            if name == "train":
                named = named_columns(table, config)
        images, *masks = (
            _images(
                some, mode if column == self._params.image else None, f"{column} {{}} of {paths['train']}"
            )
            for column, some in cells.items()
        )
        mask_source = MaskSource(masks[0], self._params.class_names) if masks else None
        source = ImageSource(images, mode, self._params.image, named, mask_source)
        return replace(bundle(source, parts, config, request.form), expectations=expectations)

    @property
    def _columns(self) -> list[str]:
        """The columns of images and of masks."""
        return [column for column in (self._params.image, self._params.mask) if column is not None]

    def _targets(self, table: Table) -> Array:
        """Return the targets, (rows,), or (rows, columns) of several or none."""
        names = self._config.targets
        if not names:
            return np.empty((len(table), 0))
        if len(names) == 1:
            return table.column(names[0], "data.target")
        return np.stack([table.column(name, "data.target").astype(np.float32) for name in names], axis=1)

    def _read(self, path: str) -> tuple[Table, dict[str, list[Cell]]]:
        """Return the other columns of a file, and those of images and masks: absolute paths, or bytes."""
        columns = self._columns
        if Path(path).suffix.lower() in (".parquet", ".pq"):
            arrow: Any = require("pyarrow.parquet", "tabular")
            with existing_file(path).open("rb") as stream:
                whole = arrow.ParquetFile(stream).read()
            _require_columns(columns, whole.column_names, path)
            values = {column: whole.column(column).to_pylist() for column in columns}
            rest = whole.drop_columns(columns)
            table = as_table(rest.to_pandas(), path) if rest.num_columns else Table({}, path)
            if self._config.split.by == "hash":
                for column, some in values.items():
                    table = table.with_column(column, objects(some))
            else:
                table = replace(table, unread=[*table.unread, *columns])
        else:
            table = read_table(path, text=[*columns, *read_as_text(self._config)])
            _require_columns(columns, list(table.columns), path)
            values = {column: list(table.columns[column]) for column in columns}
        return table, {column: [_cell(value, path) for value in some] for column, some in values.items()}


def _images(cells: Sequence[Cell], mode: Mode | None, name: str) -> Images:
    """Return what cells name or hold; without a mode as masks."""
    if any(isinstance(cell, bytes) for cell in cells):
        contents = [cell if isinstance(cell, bytes) else existing_file(cell).read_bytes() for cell in cells]
        return ByteImages(contents, [name.format(i) for i in range(len(cells))], mode)
    return FileImages([str(cell) for cell in cells], mode)


def _require_columns(needed: Sequence[str], columns: Sequence[str], path: str) -> None:
    for column in needed:
        if column not in columns:
            raise DataError(
                f"{path} has no column {column!r} of images (data.image, data.mask); "
                f"{nearest(column, columns)}"
            )


def _cell(value: Any, path: str) -> Cell:
    """Return the path, relative paths being those from the file, or the content of an image.

    Raises:
        DataError: It is neither.
    """
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if not isinstance(value, str | bytes) or not value:
        raise DataError(
            f"{path}: {value!r} is given as an image; each row needs a path, or the bytes of an image file"
        )
    if isinstance(value, bytes):
        return value
    if is_url(path):
        return f"{path.rpartition('/')[0]}/{value}"
    return str(Path(path).expanduser().parent / value)
