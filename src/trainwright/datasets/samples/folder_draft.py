"""Draft a config for a folder: of images or texts with a subfolder for each class, or of texts alone."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from trainwright.config.emit import emit
from trainwright.config.schema import DataConfig
from trainwright.datasets.images.class_folders import folders_by_split
from trainwright.datasets.images.pixels import ENDINGS
from trainwright.datasets.samples.files import TEXT_ENDING, as_text, files_in
from trainwright.errors import DataError
from trainwright.numerals import listed
from trainwright.require import require

_LOOKED_AT = 200  # files, spread evenly, whose sizes are read
_SMALL = 32  # pixels: a few convolutions do for images of this side
_MEDIUM = 96
_CROPS = (224, 160, 128, 96, 64, 32)  # sides of images of many sizes, the largest that most of them have
_BYTES_PER_TOKEN = 3.0  # of byte pairs, about
_WORTH_PAIRS = 200_000  # bytes of text from which byte pairs are learned
_MAX_LENGTH = 512
_WINDOW = 128  # tokens that a language model reads at once
_EPOCHS = 10  # at least, and ten times as many at most
_STEPS = 500  # wanted, of few files
_IMBALANCE = 5.0  # the largest class to the smallest


class _Classes(NamedTuple):
    """The files of each class, those of the training split where there are several."""

    files: Mapping[str, Sequence[Path]]
    splits: Sequence[str]

    @property
    def all(self) -> list[Path]:
        return [file for files in self.files.values() for file in files]

    def sample(self) -> list[Path]:
        """Return up to `_LOOKED_AT` files, spread evenly."""
        return _spread(self.all)

    def describe(self, what: str) -> str:
        sizes = {name: len(files) for name, files in self.files.items()}
        largest, smallest = max(sizes, key=sizes.__getitem__), min(sizes, key=sizes.__getitem__)
        of = f"{sizes[smallest]} to {sizes[largest]} of each"
        if sizes[smallest] == sizes[largest]:
            of = f"{sizes[largest]} of each"
        where = f"; splits: {', '.join(self.splits)}" if len(self.splits) > 1 else ""
        return f"{len(self.all)} {what} of {len(sizes)} classes, {of}{where}"

    def training(self, batch_size: int, **settings: Any) -> dict[str, Any]:
        """Return the section `training`: longer for few files, weighted where a class is rare."""
        sizes = [len(files) for files in self.files.values()]
        while batch_size > max(1, sum(sizes) // 2):  # the training split has more than half of the files
            batch_size //= 2
        epochs = int(np.clip(_STEPS * batch_size / sum(sizes), _EPOCHS, 10 * _EPOCHS))
        weights = {"class_weights": "balanced"} if max(sizes) > _IMBALANCE * min(sizes) else {}
        return {"epochs": epochs, "batch_size": batch_size, **settings, **weights}


def draft_of_folder(path: str) -> str:
    """Return a commented config that trains on a folder.

    Raises:
        DataError: There are neither images nor texts in it, or only one class of them.
    """
    folders = folders_by_split(DataConfig(path=path))
    train = Path(folders["train"]).expanduser()
    images, texts = (_classes(train, endings, list(folders)) for endings in (ENDINGS, [TEXT_ENDING]))
    if len(images.files) > 1 and len(images.all) >= len(texts.all):
        about, config = _of_images(path, images)
    elif len(texts.files) > 1:
        about, config = _of_texts(path, texts)
    elif len(folders) == 1 and (files := files_in(train, [TEXT_ENDING])[0]):
        about, config = _of_language(path, files)
    else:
        raise DataError(
            f"{path} is a folder without data: it needs images ({listed(ENDINGS)}) or texts ({TEXT_ENDING}) "
            "in a subfolder for each class; of texts alone, a language model is trained"
        )
    return "".join(f"# {line}\n" for line in about) + emit(_named(path) | config)


def _classes(folder: Path, endings: Sequence[str], splits: Sequence[str]) -> _Classes:
    inside = sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))
    found = {as_text(one.name): files_in(one, endings)[0] for one in inside}
    return _Classes({name: files for name, files in found.items() if files}, splits)


def _of_images(path: str, classes: _Classes) -> tuple[list[str], dict[str, Any]]:
    sizes = _sizes(classes.sample())
    side = int(median(min(size) for size in sizes))
    if len(sizes) == 1 and side <= _MEDIUM:
        width, height = next(iter(sizes))
        about = f"All images that were looked at have {width} x {height} pixels."
        transforms: list[Any] = ["normalize"]
    else:
        crop = next((each for each in _CROPS if each <= side), _CROPS[-1])
        about = f"Images of several sizes or of many pixels: parts of {crop} x {crop} are trained on."
        transforms, side = [{"type": "random_resized_crop", "size": crop}, "normalize"], crop
    model: dict[str, Any] = {"type": "resnet18"}
    rate = 1e-3
    if side <= _SMALL:
        model, rate = {"type": "cnn", "filters": [32, 64, 128], "normalization": "batch"}, 3e-3
    return [
        f"Written by `trainwright init` for {classes.describe('images')}.",
        f"{about} Where left and right mean nothing,",
        "put horizontal_flip before normalize; docs/images.md has more transforms.",
    ], {
        "data": {"type": "image_folder", "path": path, "transforms": transforms},
        "model": model,
        "training": classes.training(64, learning_rate=rate, scheduler="cosine"),
    }


def _sizes(files: Sequence[Path]) -> set[tuple[int, int]]:
    """Return the (width, height) of images.

    Raises:
        DataError: None of them can be read.
    """
    pillow = require("PIL.Image", "image")
    found = set()
    for file in files:
        try:
            with pillow.open(file) as image:
                found.add(image.size)
        except (OSError, ValueError, SyntaxError):
            continue  # the training names it, or skips it
    if not found:
        raise DataError(f"{files[0]} cannot be read as an image, nor can {len(files) - 1} others")
    return found


def _of_texts(path: str, classes: _Classes) -> tuple[list[str], dict[str, Any]]:
    sizes = [file.stat().st_size for file in classes.sample()]
    tokenizer, per_token = _tokenizer(float(np.mean(sizes)) * len(classes.all))
    length = float(np.quantile(sizes, 0.95)) / per_token
    return [
        f"Written by `trainwright init` for {classes.describe('texts')}.",
        f"A text has {median(sizes):.0f} bytes (median); of longer ones, max_length tokens are read.",
    ], {
        "data": {
            "type": "text_folder",
            "path": path,
            **tokenizer,
            "max_length": int(np.clip(32 * np.ceil(length / 32), 32, _MAX_LENGTH)),
        },
        "model": {"type": "lstm", "bidirectional": True, "pooling": "max", "dropout": 0.2},
        "training": classes.training(32, learning_rate=2e-3),
    }


def _of_language(path: str, files: Sequence[Path]) -> tuple[list[str], dict[str, Any]]:
    size = sum(file.stat().st_size for file in files)
    tokenizer, _ = _tokenizer(size)
    below = "" if any(file.parent == Path(path).expanduser() for file in files) else "**/"
    return [
        f"Written by `trainwright init` for {len(files)} texts of {size:,} bytes in all, without classes:",
        "a language model, which continues texts (`trainwright generate`): better with more steps and a",
        "larger model.",
    ], {
        "data": {
            "type": "text",
            "path": f"{path.rstrip('/')}/{below}*{TEXT_ENDING}",
            **tokenizer,
            "length": _WINDOW,
        },
        "model": {"type": "gpt", "hidden_size": 128, "num_layers": 4, "num_heads": 4},
        "training": {
            "max_steps": 1000,
            "batch_size": min(16, max(1, size // (2 * _WINDOW))),  # more than half of the windows train
            "learning_rate": 3e-3,
            "scheduler": {"type": "cosine", "warmup_steps": 100},
        },
    }


def _tokenizer(size: float) -> tuple[dict[str, Any], float]:
    """Return the settings of the tokenizer for `size` bytes of text, and about how many bytes a token has."""
    if size < _WORTH_PAIRS or importlib.util.find_spec("tokenizers") is None:
        return {"tokenizer": "bytes"}, 1.0
    return {"tokenizer": "bpe", "vocab_size": 4096 if size < 20 * _WORTH_PAIRS else 8192}, _BYTES_PER_TOKEN


def _spread(files: Sequence[Path]) -> list[Path]:
    chosen = np.linspace(0, len(files) - 1, min(len(files), _LOOKED_AT)).astype(int)
    return [files[i] for i in chosen.tolist()]


def _named(path: str) -> dict[str, Any]:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(path).expanduser().resolve().name).strip("._-")
    return {"experiment": {"name": name}} if name else {}
