"""Images with masks: what is read and refused, transforms of both alike, and the bits of runs on them."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import trainwright
from small_runs import SMALL, assert_same, whole_and_resumed
from trainwright.api import predict_chunks
from trainwright.config import load
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import DataBundle, Draw
from trainwright.datasets.image_folder import ImageFolderDataset
from trainwright.datasets.images.pixels import MASK, resized, transformed
from trainwright.datasets.samples.objects import from_objects
from trainwright.errors import DataError, InputError
from trainwright.runs.catalog import Catalog
from trainwright.runs.wiring import load_data
from trainwright.testing.dataset_suite import DatasetSuite
from trainwright.types import FEATURES, NO_LABEL, TARGET

SIDE = 8
MOVING = [
    {"type": "resize", "size": [12, 12], "interpolation": "nearest"},
    {"type": "random_crop", "size": 10, "padding": 3},
    "horizontal_flip",
    {"type": "vertical_flip", "p": 0.3},
]


def numbers(seed: int) -> np.ndarray:
    """Return a mask of 0, 40 and 200."""
    return np.random.default_rng(seed).choice([0, 40, 200], (SIDE, SIDE)).astype(np.uint8)


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def folders(root: Path, count: int = 20) -> Path:
    """Write images that are brighter by their own masks."""
    for i in range(count):
        save(root / "images" / str(i % 2) / f"{i:03}.png", numbers(i) + np.uint8(10))
        save(root / "masks" / str(i % 2) / f"{i:03}.bmp", numbers(i))
    return root


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders(tmp_path_factory.mktemp("masked"))


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))


def data_of(root: Path, **data: Any) -> dict[str, Any]:
    given = {"type": "image_folder", "path": str(root / "images"), "masks": str(root / "masks")}
    return {**given, "mode": "gray", **data}


def bundle_of(root: Path, **data: Any) -> DataBundle:
    return load_data(load({"data": data_of(root, **data), "model": "unet"}, adapters=Catalog()).config)


def first_rows(bundle: DataBundle) -> Any:
    split = bundle.splits["train"]
    return split.take(np.arange(len(split)))


class TestMaskedImages(DatasetSuite):
    """Images of one folder, with masks."""

    def make(self, folder: Path) -> ImageFolderDataset:
        data = DataConfig(type="image_folder", path=str(folders(folder, 60) / "images"), transforms=[])
        return ImageFolderDataset(data, ImageFolderDataset.Params(mode="gray", masks=str(folder / "masks")))


def test_masks_are_classes_beside_their_images(pictures: Path) -> None:
    bundle = bundle_of(pictures, ignore_index=40, split={"val": 0.2, "test": 0.2})
    assert (bundle.info.task, bundle.info.classes) == ("segmentation", [0, 200])
    assert bundle.info.target_shape == (SIDE, SIDE)
    seen = []
    for name, split in bundle.splits.items():
        batch, own = split.take(np.arange(len(split))), bundle.identifiers[name].values
        for image, mask, file in zip(batch[FEATURES], batch[TARGET], own, strict=True):
            true = numbers(int(Path(file).stem))
            np.testing.assert_allclose(image[0] * 255, true + np.float32(10), rtol=1e-6)
            assert mask.tolist() == np.select([true == 0, true == 200], [0, 1], NO_LABEL).tolist()
            seen.append(file)
    assert len(set(seen)) == 20


def test_the_identity_of_the_data_covers_masks_and_what_they_mean(tmp_path: Path) -> None:
    root, whole = folders(tmp_path), {"split": {"val": 0.0, "test": 0.0}}
    before = bundle_of(root, **whole).splits["train"].fingerprint()
    assert bundle_of(root, **whole).splits["train"].fingerprint() == before
    assert bundle_of(root, ignore_index=40, **whole).splits["train"].fingerprint() != before
    save(root / "masks" / "0" / "000.bmp", numbers(99))
    assert bundle_of(root, **whole).splits["train"].fingerprint() != before


def test_transforms_move_masks_as_their_images(pictures: Path) -> None:
    split = bundle_of(pictures, transforms=MOVING, split={"val": 0.0, "test": 0.0}).splits["train"]
    ids, seen = np.arange(len(split)), set()
    for epoch in range(3):
        batch = split.read(ids, Draw(5, epoch))  # type: ignore[attr-defined]
        levels = np.array([0, 40, 200])
        counted = batch[TARGET] != NO_LABEL
        true = np.where(counted, levels[np.where(counted, batch[TARGET], 0)] + 10, 0)  # a black border
        np.testing.assert_allclose(batch[FEATURES][:, 0] * 255, true, rtol=1e-6)
        assert (batch[TARGET] == NO_LABEL).any()
        alone = split.labels(ids, Draw(5, epoch))  # type: ignore[attr-defined]
        np.testing.assert_array_equal(alone, batch[TARGET])
        seen.add(batch[TARGET].tobytes())
    assert len(seen) == 3


def test_colors_change_images_alone(pictures: Path) -> None:
    colors = [
        {"type": "color_jitter", "brightness": 0.5},
        {"type": "random_erasing", "p": 1.0},
        "normalize",
    ]
    one, other = (
        bundle_of(pictures, transforms=some, split={"val": 0.0, "test": 0.0}).splits["train"]
        for some in ([], colors)
    )
    ids = np.arange(len(one))
    before, after = (split.read(ids, Draw(5, 0)) for split in (one, other))  # type: ignore[attr-defined]
    np.testing.assert_array_equal(before[TARGET], after[TARGET])
    assert not np.allclose(before[FEATURES], after[FEATURES])


@pytest.mark.parametrize("degrees", [17.3, -63.1, 141.7])
def test_masks_are_turned_and_resized_as_pillow_does_by_nearest(degrees: float) -> None:
    mask = np.random.default_rng(0).integers(1, 9, (15, 22, 1)).astype(MASK)
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    turned = transformed(mask, (cos, -sin, 0, sin, cos, 0))[:, :, 0]
    plain = Image.fromarray(mask[:, :, 0].astype(np.int32))
    # Pillow turns about the middle of the image.
    expected = np.asarray(plain.rotate(degrees, Image.Resampling.NEAREST, fillcolor=NO_LABEL))
    assert (turned != expected).mean() < 0.02  # pixels between two others
    assert (turned == NO_LABEL).any()
    for size in ((7, 40), (30, 5)):
        small = np.asarray(plain.resize(size[::-1], Image.Resampling.NEAREST))
        np.testing.assert_array_equal(resized(mask, *size)[:, :, 0], small)


def test_tables_name_or_hold_masks(pictures: Path, tmp_path: Path) -> None:
    files = sorted((pictures / "images").rglob("*.png"))
    masks = [pictures / "masks" / file.parent.name / f"{file.stem}.bmp" for file in files]
    both = pd.DataFrame({"image": map(str, files), "truth": map(str, masks)})
    both.to_csv(tmp_path / "t.csv", index=False)
    both.map(lambda path: Path(path).read_bytes()).to_parquet(tmp_path / "t.parquet")
    batches = []
    for name in ("t.csv", "t.parquet"):
        data = {"type": "image_table", "path": str(tmp_path / name), "mask": "truth", "mode": "gray"}
        config = load({"data": data, "model": "unet"}, adapters=Catalog()).config
        split = load_data(config).splits["train"]
        batches.append(split.take(np.arange(len(split))))
    np.testing.assert_array_equal(batches[0][TARGET], batches[1][TARGET])
    np.testing.assert_array_equal(batches[0][FEATURES], batches[1][FEATURES])


class Drawn:
    """A map-style data set of images and masks."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        mask = np.random.default_rng(position).choice([0, 1, 3, 255], (SIDE, SIDE))
        return mask[None].astype(np.float32), mask


def test_items_of_map_style_data_sets_may_be_masks() -> None:
    bundle = from_objects((Drawn(9), Drawn(4)), DataConfig(ignore_index=255))
    assert (bundle.info.task, bundle.info.outputs) == ("segmentation", 4)
    batch = bundle.splits["train"].take(np.arange(3))
    raw = batch[FEATURES][:, 0].astype(np.int64)
    np.testing.assert_array_equal(batch[TARGET], np.where(raw == 255, NO_LABEL, raw))
    data = Drawn(9)
    data.classes = ["ground", "road"]  # type: ignore[attr-defined]
    bundle = from_objects((data, Drawn(4)), DataConfig(ignore_index=255))
    with pytest.raises(
        DataError, match="in the masks of items 0, 1, 2 a pixel is 3, which is not a class; there are 2"
    ):
        bundle.splits["train"].take(np.arange(3))


def test_arrays_are_masks_where_pixels_have_whole_numbers() -> None:
    masks = np.stack([numbers(i) for i in range(20)])
    bundle = from_objects((masks[:, None].astype(np.float32), masks), DataConfig(ignore_index=40))
    assert (bundle.info.task, bundle.info.classes) == ("segmentation", [0, 200])
    batch = bundle.splits["val"].take(np.arange(2))
    raw = batch[FEATURES][:, 0]
    assert batch[TARGET].dtype == np.int64
    np.testing.assert_array_equal(batch[TARGET], np.select([raw == 0, raw == 200], [0, 1], NO_LABEL))


def test_folders_of_splits_have_masks_in_folders_of_these_names(tmp_path: Path) -> None:
    for split, count in (("train", 6), ("val", 3)):
        for i in range(count):
            save(tmp_path / "images" / split / f"{i}.png", numbers(i))
            save(tmp_path / "masks" / split / f"{i}.png", numbers(i))
    by_path = bundle_of(tmp_path)
    config: dict[str, Any] = {"type": "image_folder", "mode": "gray"}
    for split in ("train", "val"):
        config |= {f"{split}_path": str(tmp_path / "images" / split)}
    config["masks"] = {split: str(tmp_path / "masks" / split) for split in ("train", "val")}
    by_split = load_data(load({"data": config, "model": "unet"}, adapters=Catalog()).config)
    for bundle in (by_path, by_split):
        assert {name: len(split) for name, split in bundle.splits.items()} == {"train": 6, "val": 3}
    assert by_path.splits["val"].fingerprint() == by_split.splits["val"].fingerprint()


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    root = folders(tmp_path, 12)
    names = {"class_names": ["a", "b"]}
    with pytest.raises(
        DataError, match=r"\d\.bmp: a pixel is (40|200), which is not a class; the classes are 0, 1"
    ):
        first_rows(bundle_of(root, **names))
    with pytest.raises(DataError, match="mixup blends two images, and cannot blend their masks"):
        bundle_of(root, transforms=["mixup"])
    with pytest.raises(DataError, match="the images have masks"):
        bundle_of(root, task="regression")
    with pytest.raises(DataError, match="ignore_index is for masks"):
        trainwright.train({"data": {"type": "iris", "ignore_index": 3}, "model": "mlp"}, runs_dir=tmp_path)
    save(root / "masks" / "0" / "000.bmp", np.zeros((SIDE, 3), np.uint8))
    with pytest.raises(DataError, match=r"000\.bmp has 8 x 3 pixels, but its image .*000\.png 8 x 8"):
        first_rows(bundle_of(root))
    save(
        root / "masks" / "0" / "000.bmp", np.random.default_rng(0).integers(0, 9, (8, 8, 3)).astype(np.uint8)
    )
    with pytest.raises(DataError, match=r"000\.bmp is not a mask: its pixels are colors"):
        bundle_of(root)
    (root / "masks" / "0" / "000.bmp").unlink()
    with pytest.raises(DataError, match=r"000\.png must have one mask .*000\.\*, but has none"):
        bundle_of(root)


def run_settings(root: Path, **data: Any) -> dict[str, Any]:
    moving = [{"type": "rotation", "degrees": 30}, {"type": "rand_augment", "magnitude": 9}]
    listed = [*MOVING, *moving, {"type": "color_jitter", "brightness": 0.2}, "normalize"]
    return {
        "data": data_of(root, transforms=listed, on_corrupt="skip", **data),
        "model": {"type": "unet", "depth": 1, "base_width": 2, "dropout": 0.1},
        "training.batch_size": 4,
        "training.microbatch_size": 2,
        "training.drop_last": True,
        "training.max_steps": 8,
        "evaluation.every_n_steps": 3,
        "checkpoint.every_n_steps": 3,
        "checkpoint.metric": "val_iou",
    }


def test_runs_resume_to_the_same_bits_and_corrupt_masks_are_skipped(tmp_path: Path) -> None:
    root = folders(tmp_path / "data", 20)
    (root / "masks" / "1" / "003.bmp").write_bytes(b"no mask")
    whole, resumed = whole_and_resumed(tmp_path, run_settings(root), at=7)
    assert_same(resumed, whole)
    journal = (line for path in (whole.path / "journal").iterdir() for line in path.open())
    (skipped,) = (one["detail"] for one in map(json.loads, journal) if one.get("name") == "skip")
    assert (skipped["count"], [Path(name).name for name in skipped["samples"]]) == (1, ["003.png"])
    assert {"val_iou", "test_dice", "test_pixel_accuracy_200"} <= set(whole.result["metrics"])
    # Masks that the model predicts, in Python and as files.
    found = trainwright.predict(whole, root / "images")
    written = trainwright.predict_file(whole, root / "images", tmp_path / "found")
    assert (written.rows, len(found)) == (20, 20)
    for file, mask in zip(found["image"], found["prediction"], strict=True):
        saved = tmp_path / "found" / Path(file).relative_to(root / "images")
        np.testing.assert_array_equal(np.asarray(Image.open(saved)), mask)
        assert set(np.unique(mask)) <= {0, 40, 200}
    probabilities = trainwright.load(whole).predict_proba(root / "images")
    assert probabilities.shape == (20, 3, 10, 10)
    np.testing.assert_array_equal(
        np.array([0, 40, 200])[probabilities.argmax(axis=1)], np.stack(found["prediction"])
    )
    with pytest.raises(InputError, match="is evaluated on its own splits only"):
        trainwright.evaluate(whole, data=root / "images")
    with pytest.raises(InputError, match="which do not fit into a table: write them to a folder"):
        list(predict_chunks(whole, root / "images"))


def test_virtual_ranks_give_the_loss_of_the_batch(pictures: Path, tmp_path: Path) -> None:
    """Without normalization over the batch and dropout, which see other parts of it."""
    given = {**run_settings(pictures), "training.optimizer": "sgd", "training.learning_rate": 0.1}
    given |= {"model": {"type": "unet", "depth": 1, "base_width": 2, "normalization": "group"}}
    weights = []
    for ranks, size in ((1, 4), (2, 1)):
        given["training.microbatch_size"] = size
        run = trainwright.train(
            {**_nested(given), "distributed": {"virtual": {"data": ranks}}}, runs_dir=tmp_path / str(ranks)
        )
        weights.append([one.detach().numpy() for one in trainwright.load(run).native.parameters()])
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def _nested(given: dict[str, Any]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for key, value in given.items():
        section, _, name = key.partition(".")
        if name:
            whole.setdefault(section, {})[name] = value
        else:
            whole[section] = value
    return whole


@pytest.mark.soak
@pytest.mark.parametrize(
    "other", [{"data.workers": 2}, {"data.cache": "memory"}, {"distributed.nproc": 2}], ids=str
)
def test_how_masks_are_read_changes_no_bit(other: dict[str, Any], pictures: Path, tmp_path: Path) -> None:
    given = {**run_settings(pictures), "distributed.virtual.data": 2, "training.microbatch_size": 1}
    whole, resumed = whole_and_resumed(tmp_path / "one", given, at=7)
    assert_same(resumed, whole)
    again = trainwright.train(SMALL, {**given, **other}, runs_dir=tmp_path / "two")
    assert again.digest == whole.digest
    assert trainwright.reproduce(whole).verdict == "identical"


EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_example_runs_in_a_small_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["segmentation.py", "--images", "40", "--epochs", "1"])
    runpy.run_path(str(EXAMPLES / "segmentation.py"), run_name="__main__")
    assert "intersection over union of disc" in capsys.readouterr().out


def test_a_transform_that_draws_from_another_generator_is_found(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "noise_aug.py").write_text(
        "import numpy as np\n\n\ndef theirs(image, rng):\n    return image + np.random.rand() / 255\n\n\n"
        "def ours(image, rng):\n    return image + rng.random() / 255\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    theirs, ours = (
        bundle_of(pictures, transforms=[{"type": f"noise_aug:{name}"}]) for name in ("theirs", "ours")
    )
    assert "returns another image" in theirs.unrepeatable
    assert [warning for warning in theirs.warnings if "draw from the generator that it is given" in warning]
    assert not ours.unrepeatable
