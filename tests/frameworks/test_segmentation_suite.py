"""Torch keeps the contract on masks beside images in files, augmented."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from trainwright.testing.framework_suite import FrameworkSuite

SIDE = 10


@cache
def pictures() -> Path:
    """Write images that are bright where their masks are 1."""
    root = Path(tempfile.mkdtemp(prefix="trainwright-masks-"))
    for i in range(40):
        drawn = np.random.default_rng(i)
        mask = (drawn.random((SIDE, SIDE)) < 0.3).astype(np.uint8)
        for name, pixels in (
            ("images", mask * 90 + drawn.integers(0, 90, mask.shape)),
            ("masks", np.where(drawn.random(mask.shape) < 0.1, 255, mask)),
        ):
            (root / name).mkdir(exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{i}.png")
    return root


@pytest.mark.soak
class TestSegmentation(FrameworkSuite):
    framework = "torch"
    starts_afresh: ClassVar[bool] = False

    @classmethod
    def config(cls) -> dict[str, Any]:
        root = pictures()
        return {
            "data": {
                "type": "image_folder",
                "path": str(root / "images"),
                "masks": str(root / "masks"),
                "mode": "gray",
                "ignore_index": 255,
                "transforms": [
                    {"type": "random_crop", "size": 9, "padding": 2},
                    "horizontal_flip",
                    {"type": "rotation", "degrees": 20},
                    {"type": "color_jitter", "brightness": 0.3},
                    "normalize",
                ],
            },
            "model": {"type": "unet", "params": {"depth": 1, "base_width": 3, "dropout": 0.1}},
            "training": {
                "loss": "focal",
                "max_steps": 31,
                "batch_size": 8,
                "microbatch_size": 4,
                "learning_rate": 0.01,
                "early_stopping": {"metric": "val_iou", "patience": 30},
                "threads": 1,
            },
            "evaluation": {"every_n_steps": 3},
        }
