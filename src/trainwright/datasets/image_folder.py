"""Folders of images, one for each class.

    PATH/cat/1.jpg, PATH/cat/more/2.jpg, PATH/dog/3.png ...   images to be split
    PATH/train/cat/1.jpg ... [PATH/val/...] [PATH/test/...]   images of each split

Or `data.train_path`, `val_path` and `test_path` name a folder of classes each. The classes are the names of
the folders, in alphabetical order. With masks, folders have no meaning but those of splits:

    PATH/1.jpg, PATH/more/2.jpg ...   and   MASKS/1.png, MASKS/more/2.png ...

Images are decoded when they are needed; their files are read once when a
run is built, to hash them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, Field

from trainwright.config.fields import Section
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import DataBundle, LoadRequest
from trainwright.datasets.images.bundle import CLASS_NAMES, ImageSource, Labeled, MaskSource, bundle
from trainwright.datasets.images.class_folders import classes_in, folders_by_split
from trainwright.datasets.images.masks import masks_of
from trainwright.datasets.images.pixels import ENDINGS, Mode
from trainwright.datasets.images.preparation import files_of
from trainwright.datasets.images.sources import FileImages
from trainwright.datasets.samples.files import as_text, files_in, log_left_out
from trainwright.datasets.samples.preprocessed import refuse_column_settings
from trainwright.errors import DataError
from trainwright.numerals import listed
from trainwright.require import require
from trainwright.types import FeatureForm, SplitName


class ImageFolderParams(Section):
    """Folders of images."""

    mode: Mode = Field("rgb", description="colors to decode to: rgb, gray or rgba")
    masks: str | dict[SplitName, str] | None = Field(
        None,
        description="segmentation: the folder of masks, which have the names of the images of "
        "`path` but for their endings; with train_path, a mapping: {train: folder, val: folder}",
    )
    class_names: list[str] = CLASS_NAMES


class ImageFolderDataset:
    """A folder of images for each class, to be split; or such folders for each split."""

    names: ClassVar[Sequence[str]] = ("image_folder",)
    Params: ClassVar[type[BaseModel]] = ImageFolderParams
    has_tokens: ClassVar[bool] = False

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, ImageFolderParams)
        require("PIL.Image", "image")
        self._config = config
        self._params = params

    def load(self, request: LoadRequest) -> DataBundle:
        """Load the data; see `Dataset.load`."""
        config = self._config
        refuse_column_settings(config, "images in folders have no columns, and are", "Leave it out")
        if self._params.masks is not None:
            return self._with_masks(self._params.masks, request.form)
        if self._params.class_names:
            raise DataError("data.class_names: the classes are the names of folders; leave it out")
        files: list[str] = []
        parts: dict[SplitName, Labeled] = {}
        for name, folder in folders_by_split(config).items():
            found = _files(folder) if config.targets else _all_files(folder)
            positions = np.arange(len(files), len(files) + len(found), dtype=np.int64)
            labels = np.array([label for _, label in found], dtype=object)
            parts[name] = Labeled(positions, labels if config.targets else np.empty((len(found), 0)))
            files += [file for file, _ in found]
        source = ImageSource(FileImages(files, self._params.mode), self._params.mode)
        return bundle(source, parts, config, request.form)

    def _with_masks(self, given: str | dict[SplitName, str], form: FeatureForm) -> DataBundle:
        config, mode = self._config, self._params.mode
        files: list[Path] = []
        masks: list[Path] = []
        parts: dict[SplitName, Labeled] = {}
        for name, folder in folders_by_split(config).items():
            found = files_of(folder)
            assert found is not None, "`_folders` checks it"
            root = config.path or folder
            masks += masks_of(found, Path(root).expanduser(), _mask_folder(given, name, config))
            positions = np.arange(len(files), len(files) + len(found), dtype=np.int64)
            parts[name] = Labeled(positions, np.empty(0))
            files += found
        images, decoded = FileImages(_paths(files), mode), FileImages(_paths(masks), None)
        source = ImageSource(images, mode, masks=MaskSource(decoded, self._params.class_names))
        return bundle(source, parts, config, form)


def _paths(files: Sequence[Path]) -> list[str]:
    return [str(file) for file in files]


def _mask_folder(given: str | dict[SplitName, str], split: SplitName, config: DataConfig) -> Path:
    """Return the folder of the masks of a split.

    Raises:
        DataError: It is not there, or not given.
    """
    if isinstance(given, str) != (config.path is not None):
        raise DataError(
            "data.masks: give one folder with data.path, or with data.train_path a "
            "mapping: {train: folder, val: folder}"
        )
    folder = given if isinstance(given, str) else given.get(split)
    if folder is None:
        raise DataError(f"data.masks names no folder of the {split} split; it has {listed(given)}")
    if not Path(folder).expanduser().is_dir():
        raise DataError(f"data.masks: {folder} is not a folder on this machine; give the folder of the masks")
    return Path(folder).expanduser()


def _all_files(folder: str) -> list[tuple[str, str]]:
    """Return the images of a folder, and of folders in it, without a class.

    Raises:
        DataError: There are none.
    """
    if not (found := files_of(folder)):
        raise DataError(f"{folder} holds no images; their names end in {listed(ENDINGS)}")
    return [(str(file), "") for file in found]


def _files(folder: str) -> list[tuple[str, str]]:
    """Return the images below a folder of classes, each with its class, sorted.

    Raises:
        DataError: There are no folders of classes, or one holds no image.
    """
    found: list[tuple[str, str]] = []
    left_out: Counter[str] = Counter()
    for one in classes_in(folder, "images"):
        files, others = files_in(one, ENDINGS)
        left_out += others
        if not files:
            raise DataError(f"{one} holds no images; their names end in {listed(ENDINGS)}")
        found += [(str(file), as_text(one.name)) for file in files]
    log_left_out(folder, left_out, "images")
    return found
