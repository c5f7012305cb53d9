"""Train on a folder of images: write handwritten digits as PNG files, and learn to read them.

Run it with `python examples/image_folder.py [FOLDER]`; the default is a folder `digits` here. It downloads
nothing, and takes a minute.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from sklearn.datasets import load_digits

import trainwright

SIDE = 16  # pixels


def main() -> None:
    """Write the images, train, and predict some of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("digits"))
    parser.add_argument("--images", type=int, default=1797)
    parser.add_argument("--epochs", type=int, default=15)
    given = parser.parse_args()
    write_images(given.folder, given.images)
    run = trainwright.train(config(given.folder, given.epochs))
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"accuracy on the test images: {run.result['metrics']['test_accuracy']:.3f}")
    console.print(trainwright.predict(run, given.folder / "7")[["image", "prediction"]].head().to_string())


def write_images(folder: Path, count: int) -> None:
    """Write the first digits as FOLDER/<digit>/<number>.png, (SIDE, SIDE) gray."""
    digits = load_digits()
    for number in range(count):
        pixels = np.rint(digits.images[number] * (255 / 16)).astype(np.uint8)  # (8, 8)
        path = folder / str(digits.target[number]) / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((SIDE, SIDE)).save(path)


def config(folder: Path, epochs: int) -> dict[str, object]:
    """Return the config: what a YAML file would hold."""
    return {
        "experiment": {"name": "digit-images", "seed": 1},
        "data": {
            "type": "image_folder",
            "path": str(folder),
            "mode": "gray",
            "cache": "memory",
            "transforms": [
                {"type": "random_crop", "size": SIDE, "padding": 2},
                {"type": "rotation", "degrees": 10},
                {"type": "color_jitter", "brightness": 0.2, "contrast": 0.2},
                "normalize",
            ],
        },
        "model": {"type": "cnn", "filters": [16, 32, 64], "normalization": "batch"},
        "training": {"epochs": epochs, "batch_size": 64, "learning_rate": 0.003, "threads": 1},
    }


if __name__ == "__main__":
    main()
