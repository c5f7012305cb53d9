"""Folders of images, one for each class.

    PATH/cat/1.jpg, PATH/cat/more/2.jpg, PATH/dog/3.png ...   images to be split
    PATH/train/cat/1.jpg ... [PATH/val/...] [PATH/test/...]   images of each split

Or `data.train_path`, `val_path` and `test_path` name a folder of classes each. The classes are the names of
the folders, in alphabetical order. Images are decoded when they are needed; their files are read once when a
run is built, to hash them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, Field

from trainyard.config.fields import Section
from trainyard.config.schema import DataConfig
from trainyard.datasets.base import DataBundle
from trainyard.datasets.rows.files import is_url, names_in
from trainyard.datasets.rows.images.bundle import ImageSource, Labeled, bundle
from trainyard.datasets.rows.images.pixels import ENDINGS, Mode
from trainyard.datasets.rows.images.sources import FileImages, image_files, log_left_out
from trainyard.datasets.rows.objects import refuse_column_settings
from trainyard.datasets.rows.table import listed
from trainyard.datasets.rows.tabular import paths_by_split
from trainyard.errors import DataError
from trainyard.require import require
from trainyard.types import SplitName

_FOLDERS: dict[str, SplitName] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}


class ImageFolderParams(Section):
    """Folders of images."""

    mode: Mode = Field("rgb", description="colours to decode to: rgb, gray or rgba")


class ImageFolderDataset:
    """A folder of images for each class, to be split; or such folders for each split."""

    names: ClassVar[Sequence[str]] = ("image_folder",)
    Params: ClassVar[type[BaseModel]] = ImageFolderParams

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, ImageFolderParams)
        require("PIL.Image", "image")
        self._config = config
        self._params = params

    def load(self) -> DataBundle:
        """Load the data; see `Dataset.load`."""
        config = self._config
        refuse_column_settings(config, "images in folders have no columns, and are", "Leave it out")
        files: list[str] = []
        parts: dict[SplitName, Labeled] = {}
        for name, folder in _folders(config).items():
            found = _files(folder)
            positions = np.arange(len(files), len(files) + len(found), dtype=np.int64)
            parts[name] = Labeled(positions, np.array([label for _, label in found], dtype=object))
            files += [file for file, _ in found]
        return bundle(ImageSource(FileImages(files, self._params.mode), self._params.mode), parts, config)


def _folders(config: DataConfig) -> dict[SplitName, str]:
    """Return the folder of classes of each split that has its own."""
    paths = paths_by_split(config)
    for path in paths.values():
        if is_url(path) or not Path(path).expanduser().is_dir():
            raise DataError(f"data: {path} is not a folder on this machine; image_folder reads such folders")
    if config.path is None:
        return paths
    inside = {
        _FOLDERS[name]: name
        for name in names_in(str(Path(config.path).expanduser())) or ()
        if name in _FOLDERS
    }
    if "train" not in inside:
        return paths
    return {split: str(Path(config.path, name)) for split, name in inside.items()}


def _files(folder: str) -> list[tuple[str, str]]:
    """Return the images below a folder of classes, each with its class, sorted.

    Raises:
        DataError: There are no folders of classes, or one holds no image.
    """
    root = Path(folder).expanduser()
    classes = sorted(one.name for one in root.iterdir() if one.is_dir() and not one.name.startswith("."))
    if not classes:
        raise DataError(f"{folder}: there is no folder for each class of images in it")
    found: list[tuple[str, str]] = []
    left_out: Counter[str] = Counter()
    for label in classes:
        files, others = image_files(root / label)
        left_out += others
        if not files:
            raise DataError(f"{root / label} holds no image; their endings are {listed(ENDINGS)}")
        found += [(str(file), label) for file in files]
    log_left_out(folder, left_out)
    return found
