"""`trainwright init FOLDER`: drafts that train as they stand."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainwright
from trainwright.config import load as load_config
from trainwright.errors import DataError, InputError
from trainwright.runs.catalog import Catalog
from trainwright.runs.wiring import load_data


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(files: dict[str, Any]) -> None:
    """Write texts, and arrays as images, (height, width, 3)."""
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            Path(name).write_text(content)
        else:
            pytest.importorskip("PIL.Image").fromarray(content).save(name)


def images(count: int, *sides: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        f"{name}/{i}.png": random.integers(0, 256, (sides[i % len(sides)],) * 2 + (3,), np.uint8)
        for name in ("cats", "dogs")
        for i in range(count)
    }


def drafted(folder: str = ".") -> tuple[str, Any, Any]:
    """Return the draft, its config and its data."""
    text = trainwright.init(folder)
    Path("config.yaml").write_text(text)
    config = load_config(Path("config.yaml"), adapters=Catalog()).config
    data = load_data(config)
    assert config.training.batch_size <= len(data.splits["train"])
    return text, config, data


def test_small_images_of_one_size() -> None:
    write(images(10, 16))
    text, config, data = drafted()
    assert "20 images of 2 classes, 10 of each" in text
    assert "All images that were looked at have 16 x 16 pixels" in text
    assert (config.model.type, data.info.input_shape, data.info.classes) == (
        "cnn",
        (3, 16, 16),
        ["cats", "dogs"],
    )


def test_images_of_several_sizes_and_few_of_a_class() -> None:
    write({f"train/{name}": image for name, image in images(24, 100, 140).items()})
    write({f"val/{name}": image for name, image in images(2, 100).items()})
    for i in range(3, 24):
        Path(f"train/dogs/{i}.png").unlink()
    text, config, data = drafted()
    assert "27 images of 2 classes, 3 to 24 of each; splits: train, val" in text
    assert (config.data.transforms[0].type, config.data.transforms[0].size) == ("random_resized_crop", 96)
    assert (config.model.type, config.training.class_weights) == ("resnet18", "balanced")
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 27, "val": 4}


def test_texts_with_classes() -> None:
    write({f"{name}/{i}.txt": name * 20 for name in ("yes", "no", "so") for i in range(12)})
    text, config, data = drafted()
    assert "36 texts of 3 classes, 12 of each" in text
    assert (config.data.params["max_length"], config.data.params["tokenizer"]) == (
        64,
        "bytes",
    )  # the longest has 60 bytes
    assert (config.model.type, config.training.epochs, data.info.outputs) == ("lstm", 100, 3)


@pytest.mark.skipif(importlib.util.find_spec("tokenizers") is None, reason="tokenizers is not installed")
def test_many_bytes_of_text_are_read_as_pairs() -> None:
    write({f"{name}/{i}.txt": f"{name} {i} " * 2000 for name in ("yes", "no") for i in range(10)})
    assert "tokenizer: bpe" in trainwright.init(".")


def test_texts_alone_are_for_a_language_model() -> None:
    write({f"deep/{name}.txt": "all work and no play " * 40 for name in "abc"})
    text, config, data = drafted()
    assert "3 texts of 2,520 bytes in all, without classes" in text
    assert (config.model.type, config.data.path) == ("gpt", "./**/*.txt")
    assert data.info.task == "language_modeling"


def test_what_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "empty" / "inside").mkdir(parents=True)
    with pytest.raises(DataError, match="empty is a folder without data: it needs images"):
        trainwright.init("empty")
    with pytest.raises(
        InputError, match="empty is a folder, whose files say what they need; leave --target out"
    ):
        trainwright.init("empty", "y")
    write({"table.csv": "a,b\n1,2\n"})
    with pytest.raises(
        InputError, match=r"table\.csv is a table: say which column to predict, with --target COLUMN: a, b"
    ):
        trainwright.init("table.csv")
