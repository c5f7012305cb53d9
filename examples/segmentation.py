"""Learn which pixels belong to which shape: draw images and masks, and train a U-Net on them.

Run it with `python examples/segmentation.py [FOLDER]`; the default is a folder `shapes` here. It downloads
nothing, and takes less than a minute. `trainwright predict last FOLDER/images -o FOLDER/found` then writes
the masks that the model finds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from rich.console import Console

import trainwright

SIDE = 32  # pixels
NAMES = ["ground", "disc", "square"]  # the classes 0, 1 and 2
UNSURE = 255  # pixels of masks that do not count: the outlines


def main() -> None:
    """Draw the images, train, and show what the model finds in one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("shapes"))
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=12)
    given = parser.parse_args()
    draw_images(given.folder, given.images)
    run = trainwright.train(config(given.folder, given.epochs))
    console = Console(highlight=False, soft_wrap=True)
    metrics = run.metrics
    for name in NAMES:
        console.print(f"intersection over union of {name}: {metrics[f'test_iou_{name}']:.3f}")
    mask = trainwright.predict(run, given.folder / "images" / "000.png")["prediction"][0]  # (SIDE, SIDE)
    console.print("\n".join("".join(".o#"[number] for number in row) for row in mask))


def draw_images(folder: Path, count: int) -> None:
    """Write FOLDER/images/<number>.png, a disc and a square on noise, and FOLDER/masks/<number>.png."""
    random = np.random.default_rng(0)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        mask = Image.new("L", (SIDE, SIDE))
        for shape, draw in ((1, ImageDraw.Draw(mask).ellipse), (2, ImageDraw.Draw(mask).rectangle)):
            x, y, side = (int(value) for value in random.integers((0, 0, 6), (SIDE - 8, SIDE - 8, 14)))
            draw((x, y, x + side, y + side), fill=shape, outline=UNSURE)
        classes = np.asarray(mask) % UNSURE
        light = np.array([90, 130, 150])[classes] + random.normal(0, 25, (SIDE, SIDE))
        image = Image.fromarray(np.clip(light, 0, 255).astype(np.uint8))
        image.save(folder / "images" / f"{number:03}.png")
        mask.save(folder / "masks" / f"{number:03}.png")


def config(folder: Path, epochs: int) -> dict[str, object]:
    """Return the config: what a YAML file would hold."""
    return {
        "experiment": {"name": "shapes", "seed": 1},
        "data": {
            "type": "image_folder",
            "path": str(folder / "images"),
            "masks": str(folder / "masks"),
            "class_names": NAMES,
            "ignore_index": UNSURE,
            "mode": "gray",
            "cache": "memory",
            "transforms": [
                "horizontal_flip",
                "vertical_flip",
                {"type": "color_jitter", "brightness": 0.2},
                "normalize",
            ],
        },
        "model": {"type": "unet", "depth": 2, "base_width": 8},
        "training": {
            "epochs": epochs,
            "batch_size": 16,
            "loss": "dice",
            "learning_rate": 0.01,
            "scheduler": "cosine",
            "threads": 1,
        },
        "checkpoint": {"metric": "val_iou"},
    }


if __name__ == "__main__":
    main()
