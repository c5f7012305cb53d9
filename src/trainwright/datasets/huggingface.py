"""Data sets that Hugging Face's library has saved to disk (`save_to_disk`), read without it.

A folder holds Arrow files, which are mapped into memory, so that they may be larger than it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, Field

from trainwright.config.fields import Section
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import DataBundle, LoadRequest
from trainwright.datasets.images.decoders import ImageForm
from trainwright.datasets.samples.arrow_rows import ArrowFile, arrow_bundle
from trainwright.datasets.samples.file_hashes import hashes_of
from trainwright.datasets.samples.files import paths_by_split
from trainwright.errors import DataError
from trainwright.require import require
from trainwright.types import SplitName

_DICT, _STATE = "dataset_dict.json", "state.json"
_SPLITS: Mapping[str, SplitName] = {
    "train": "train",
    "validation": "val",
    "val": "val",
    "valid": "val",
    "dev": "val",
    "test": "test",
}


class HuggingfaceParams(Section):
    """The options of reading columns."""

    images: ImageForm = Field("torchrgb", description="how images are decoded; see webdataset")


class HuggingfaceDataset:
    """A saved data set for each split, or one folder with several (a `DatasetDict`)."""

    names: ClassVar[Sequence[str]] = ("huggingface",)
    Params: ClassVar[type[BaseModel]] = HuggingfaceParams

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, HuggingfaceParams)
        require("pyarrow", "tabular")
        self._config = config
        self._images = params.images

    def load(self, request: LoadRequest) -> DataBundle:
        """Load the data; see `Dataset.load`."""
        folders = {name: Path(path).expanduser() for name, path in paths_by_split(self._config).items()}
        if len(folders) == 1 and (folders["train"] / _DICT).is_file():
            folders = _splits(folders["train"])
        files = {name: _files(folder) for name, folder in folders.items()}
        return arrow_bundle(files, self._config, self._images, request)


def _splits(folder: Path) -> dict[SplitName, Path]:
    names = [str(name) for name in _read(folder / _DICT).get("splits", [])]
    folders = {_SPLITS[name]: folder / name for name in names if name in _SPLITS}
    if "train" not in folders:
        raise DataError(f"{folder} has no split named train, but {', '.join(names)}; give data.train_path")
    return folders


def _files(folder: Path) -> list[ArrowFile]:
    """Return the files of a saved data set, in its order."""
    state = _read(folder / _STATE)
    if state.get("_indices_data_files"):
        raise DataError(f"{folder} was saved with a selection of rows; save dataset.flatten_indices()")
    paths = [folder / str(one["filename"]) for one in state.get("_data_files", [])]
    if not paths:
        raise DataError(f"{folder} names no files with rows; save the data set again with save_to_disk")
    sha256s = hashes_of([str(path) for path in paths])
    return [ArrowFile(str(path), path, sha256) for path, sha256 in zip(paths, sha256s, strict=True)]


def _read(file: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(
            f"{file} cannot be read ({error}); give a folder that datasets' save_to_disk has written"
        ) from error
    return state
