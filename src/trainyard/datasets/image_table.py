"""Images that a column of a CSV or Parquet file names or holds.

The column has paths, relative to the file; in a Parquet file it may also have the contents of image files, as
bytes or as Hugging Face's data sets hold them ({bytes, path}). Other columns are the target (`data.target`),
weights, and what rows are divided by.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, Field

from trainyard.config.fields import Section
from trainyard.config.schema import DataConfig
from trainyard.datasets.base import DataBundle
from trainyard.datasets.rows.files import existing_file, is_url
from trainyard.datasets.rows.frames import read_table
from trainyard.datasets.rows.images.bundle import ImageSource, Labeled, bundle
from trainyard.datasets.rows.images.pixels import Mode
from trainyard.datasets.rows.images.sources import ByteImages, FileImages
from trainyard.datasets.rows.objects import refuse_column_settings
from trainyard.datasets.rows.table import Table, as_table, nearest
from trainyard.datasets.rows.tabular import paths_by_split
from trainyard.datasets.rows.weights import encode as encode_weights
from trainyard.errors import DataError
from trainyard.require import require
from trainyard.types import Array, SplitName

Cell = str | bytes


class ImageTableParams(Section):
    """Tables with a column of images."""

    image: str = Field("image", description="the column of images: paths, or the bytes of image files")
    mode: Mode = Field("rgb", description="colours to decode to: rgb, gray or rgba")


class ImageTableDataset:
    """A CSV or Parquet file with a column of images, to be split; or one for each split."""

    names: ClassVar[Sequence[str]] = ("image_table",)
    Params: ClassVar[type[BaseModel]] = ImageTableParams

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, ImageTableParams)
        require("PIL.Image", "image")
        self._config = config
        self._params = params

    def load(self) -> DataBundle:
        """Load the data; see `Dataset.load`."""
        config, mode = self._config, self._params.mode
        plain = config.model_copy(
            update={"weight": None, "split": config.split.model_copy(update={"group": None, "time": None})}
        )
        refuse_column_settings(plain, "images are", "Leave it out")
        cells: list[Cell] = []
        parts: dict[SplitName, Labeled] = {}
        divide_by: dict[str, Array] = {}
        paths = paths_by_split(config)
        for name, path in paths.items():
            table, found = self._read(path)
            positions = np.arange(len(cells), len(cells) + len(found), dtype=np.int64)
            weights = None if config.weight is None else encode_weights(table, config.weight)
            parts[name] = Labeled(positions, self._targets(table), weights)
            cells += found
            if name == "train":
                keys = {config.split.group, config.split.time} - {None}
                divide_by = {key: table.column(key, "data.split") for key in keys if key is not None}
        if any(isinstance(cell, bytes) for cell in cells):
            names = [f"image {i} of {paths['train']}" for i in range(len(cells))]
            images: Any = ByteImages([_bytes(cell) for cell in cells], names, mode)
        else:
            images = FileImages([str(cell) for cell in cells], mode)
        source = ImageSource(images, mode, self._params.image, divide_by)
        return bundle(source, parts, config)

    def _targets(self, table: Table) -> Array:
        """Return the targets, (rows,), or (rows, columns) of several."""
        names = self._config.targets
        if len(names) == 1:
            return table.column(names[0], "data.target")
        return np.stack([table.column(name, "data.target").astype(np.float32) for name in names], axis=1)

    def _read(self, path: str) -> tuple[Table, list[Cell]]:
        """Return the columns of a file but for the images, and the images: absolute paths, or bytes."""
        column, folder = self._params.image, Path(path).expanduser().parent
        if Path(path).suffix.lower() in (".parquet", ".pq"):
            arrow: Any = require("pyarrow.parquet", "tabular")
            with existing_file(path).open("rb") as stream:
                whole = arrow.ParquetFile(stream).read()
            _require_column(column, whole.column_names, path)
            cells = [_cell(value, path) for value in whole.column(column).to_pylist()]
            table = as_table(whole.drop_columns([column]).to_pandas(), path)
        else:
            table = read_table(path, text=[column])
            _require_column(column, list(table.columns), path)
            cells = [_cell(value, path) for value in table.columns[column]]
        if is_url(path):
            base = path.rpartition("/")[0]
            return table, [f"{base}/{cell}" if isinstance(cell, str) else cell for cell in cells]
        return table, [str(folder / cell) if isinstance(cell, str) else cell for cell in cells]


def _require_column(column: str, columns: Sequence[str], path: str) -> None:
    if column not in columns:
        raise DataError(f"{path} has no column {column!r} of images (data.image); {nearest(column, columns)}")


def _cell(value: Any, path: str) -> Cell:
    """Return the path or the content of an image.

    Raises:
        DataError: It is neither.
    """
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if not isinstance(value, str | bytes) or not value:
        raise DataError(
            f"{path}: an image is {value!r}; give paths, or the bytes of image files, in each row"
        )
    return value


def _bytes(cell: Cell) -> bytes:
    return cell if isinstance(cell, bytes) else existing_file(cell).read_bytes()
