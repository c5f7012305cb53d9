"""The transforms of images: against Pillow, NumPy and formulas, and as functions of seed, epoch and sample."""

from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance
from pydantic import TypeAdapter, ValidationError

from trainwright.config.transforms import Transform
from trainwright.datasets.base import Draw, Reading
from trainwright.datasets.images import transforms
from trainwright.datasets.images.pixels import resized
from trainwright.datasets.images.split import ImageSplit, Pipeline, generator
from trainwright.errors import DataError
from trainwright.types import FEATURES, TARGET

LISTED: TypeAdapter[list[Any]] = TypeAdapter(list[Transform])


def picture(height: int = 20, width: int = 14, channels: int = 3, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def pipeline(*items: dict[str, Any]) -> Pipeline:
    return Pipeline(LISTED.validate_python(list(items)))


class Pictures:
    """Images in memory."""

    def __init__(self, images: list[Any]) -> None:
        self.images = images
        self.names = [f"image {i}" for i in range(len(images))]

    def image(self, position: int) -> Any:
        return self.images[position]

    def hashes(self, positions: Any) -> list[str]:
        return [str(self.images[i].sum()) for i in positions]


def split(*items: dict[str, Any], count: int = 12, classes: int = 3) -> ImageSplit:
    images = Pictures([picture(seed=i) for i in range(count)])
    known = {TARGET: np.arange(count) % classes if classes else np.arange(count, dtype=np.float32)}
    return ImageSplit(images, np.arange(count), known, pipeline(*items), Reading("the images"), classes)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_a_resize_is_pillows_plane_by_plane(channels: int) -> None:
    image = picture(channels=channels)
    planes = [
        Image.fromarray(image[:, :, i]).resize((7, 9), Image.Resampling.BILINEAR) for i in range(channels)
    ]
    assert np.array_equal(resized(image, 9, 7), np.stack(planes, axis=2))


def test_a_resize_to_one_number_keeps_the_shape() -> None:
    made = pipeline({"type": "resize", "size": 7})(picture(20, 14))
    assert made.shape == (3, 10, 7)
    assert pipeline({"type": "resize", "size": [5, 6]})(picture()).shape == (3, 5, 6)


def test_a_center_crop_pads_what_is_too_small() -> None:
    image = picture(20, 14)
    made = transforms.center_crop(image, [10, 18])
    assert np.array_equal(made[:, 2:16], image[5:15])
    assert not made[:, :2].any()
    assert not made[:, 16:].any()


def test_random_crops_reach_every_place_and_are_of_the_middle_outside_of_training() -> None:
    image = np.arange(36, dtype=np.uint8).reshape(6, 6, 1)
    crop = pipeline({"type": "random_crop", "size": 4, "padding": 1})
    padded = np.pad(image[:, :, 0], 1)
    places = {(i, j): padded[i : i + 4, j : j + 4].tolist() for i in range(5) for j in range(5)}
    seen = {
        next(
            place
            for place, cut in places.items()
            if cut == np.rint(crop(image, generator(i))[0] * 255).tolist()
        )
        for i in range(300)
    }
    assert seen == set(places)
    assert np.array_equal(crop(image), pipeline({"type": "center_crop", "size": 4})(image))


@pytest.mark.parametrize(("kind", "axis"), [("horizontal_flip", 2), ("vertical_flip", 1)])
def test_flips_come_as_often_as_asked(kind: str, axis: int) -> None:
    image, plain = picture(), pipeline()(picture())
    flip = pipeline({"type": kind, "p": 0.3})
    made = [flip(image, generator(i)) for i in range(400)]
    flipped = [np.array_equal(one, np.flip(plain, axis)) for one in made]
    assert all(
        is_flipped or np.array_equal(one, plain) for is_flipped, one in zip(flipped, made, strict=True)
    )
    assert 80 < sum(flipped) < 160
    assert np.array_equal(flip(image), plain)


@pytest.mark.parametrize("side", [6, 7])
def test_a_rotation_by_right_angles_is_numpys(side: int) -> None:
    image = picture(side, side)
    for turns in (1, 2, 3):
        made = transforms.rotated(image, 90 * turns).astype(int)
        assert np.abs(made - np.rot90(image, turns)).max() <= 1  # the cosine of a right angle is not quite 0
    assert np.array_equal(transforms.rotated(image, 0), image)


@pytest.mark.parametrize(
    ("function", "reference"),
    [
        (transforms.brighter, ImageEnhance.Brightness),
        (transforms.contrasted, ImageEnhance.Contrast),
        (transforms.saturated, ImageEnhance.Color),
    ],
)
@pytest.mark.parametrize("factor", [0.3, 1.6])
def test_colors_are_those_of_pillow_up_to_rounding(function: Any, reference: Any, factor: float) -> None:
    image = picture()
    expected = np.asarray(reference(Image.fromarray(image)).enhance(factor)).astype(int)
    assert np.abs(function(image, factor).astype(int) - expected).max() <= 2
    floats = function(transforms.as_floats(image), factor)
    assert np.abs(floats * 255 - expected).max() <= 2.5


def test_an_erased_rectangle_is_of_the_size_asked_for() -> None:
    image = np.full((40, 40, 3), 255, np.uint8)
    erase = pipeline({"type": "random_erasing", "p": 1.0, "scale": [0.1, 0.2], "ratio": [0.5, 2.0]})
    shares = [1 - erase(image, generator(i)).mean() for i in range(50)]
    assert 0.08 < min(shares) < max(shares) < 0.22


def test_resized_crops_have_one_size() -> None:
    crop = pipeline({"type": "random_resized_crop", "size": [8, 6]})
    made = [crop(picture(), generator(i)) for i in range(30)]
    assert {one.shape for one in made} == {crop(picture()).shape} == {(3, 8, 6)}
    assert len({one.tobytes() for one in made}) == 30


@pytest.mark.parametrize("channels", [1, 3])
def test_every_operation_of_rand_augment_keeps_the_form(channels: int) -> None:
    for image in (picture(channels=channels), transforms.as_floats(picture(channels=channels))):
        for operation in transforms._OPERATIONS:
            for strength in (-1, 0.3, 1):
                made = operation(image, strength)
                assert (made.shape, made.dtype) == (image.shape, image.dtype)
                assert 0 <= made.min() <= made.max() <= (255 if made.dtype == np.uint8 else 1)
    augment = pipeline({"type": "rand_augment"})
    image = picture(channels=channels)
    assert len({augment(image, generator(i)).tobytes() for i in range(30)}) > 20
    assert np.array_equal(augment(image), pipeline()(image))


def test_normalize_has_the_mean_and_deviation_of_the_training_images() -> None:
    images = Pictures([picture(seed=i) for i in range(5)])
    made = pipeline({"type": "normalize"}, {"type": "horizontal_flip"}).measured(images, [0, 2, 3])
    values = np.stack([images.images[i] / 255 for i in (0, 2, 3)])
    assert made.mean == pytest.approx(values.mean(axis=(0, 1, 2)), abs=1e-6)
    assert made.std == pytest.approx(values.std(axis=(0, 1, 2)), abs=1e-6)
    one = (images.images[4] / 255 - values.mean(axis=(0, 1, 2))) / values.std(axis=(0, 1, 2))
    np.testing.assert_allclose(made(images.images[4]), one.transpose(2, 0, 1), atol=1e-5)
    given = pipeline({"type": "normalize", "mean": [0.5] * 3, "std": [0.2] * 3}).measured(images, [0])
    np.testing.assert_allclose(
        given(images.images[1]), (images.images[1].transpose(2, 0, 1) / 255 - 0.5) / 0.2, atol=1e-5
    )


ALL = (
    {"type": "random_crop", "size": 12, "padding": 2},
    {"type": "horizontal_flip"},
    {"type": "rotation", "degrees": 20.0},
    {"type": "color_jitter", "brightness": 0.2, "contrast": 0.2, "saturation": 0.2},
    {"type": "rand_augment"},
    {"type": "random_erasing"},
    {"type": "mixup"},
)


def test_a_sample_is_a_function_of_seed_epoch_and_position_alone() -> None:
    one, ids = split(*ALL), np.arange(12)
    whole = one.read(ids, Draw(5, 2))
    for some in (ids[::-1], ids[3:4], np.array([7, 7, 0])):
        part = split(*ALL).read(some, Draw(5, 2))
        assert all(np.array_equal(part[name], whole[name][some]) for name in whole)
    for other in (Draw(5, 3), Draw(6, 2)):
        assert not any(
            np.array_equal(*pair)
            for pair in zip(one.read(ids, other)[FEATURES], whole[FEATURES], strict=True)
        )
    plain = one.take(ids)
    assert np.array_equal(plain[FEATURES], split({"type": "center_crop", "size": 12}).take(ids)[FEATURES])
    assert plain[TARGET].dtype == np.int64


@pytest.mark.parametrize("classes", [3, 0])
def test_mixup_blends_images_and_targets_by_the_same_share(classes: int) -> None:
    mixes, plain = split({"type": "mixup", "alpha": 1.0}, classes=classes), split(classes=classes)
    ids = np.arange(12)
    batch, images = mixes.read(ids, Draw(1, 0)), plain.take(ids)[FEATURES]
    targets = plain.known[TARGET]
    known = np.eye(3, dtype=np.float32)[targets] if classes else targets
    for i in range(12):  # the only partner and share that explain the image
        fits = []
        for j in range(12):
            delta = images[i] - images[j]
            share = float((delta * (batch[FEATURES][i] - images[j])).sum() / max((delta * delta).sum(), 1e-9))
            if np.allclose(share * images[i] + (1 - share) * images[j], batch[FEATURES][i], atol=1e-5):
                fits.append(share * known[i] + (1 - share) * known[j])
        assert any(np.allclose(one, batch[TARGET][i], atol=1e-4) for one in fits)
    assert batch[TARGET].dtype == (np.float32 if classes else np.float64)


def test_cutmix_counts_pixels() -> None:
    mixes, plain = split({"type": "cutmix"}), split()
    ids = np.arange(12)
    batch, images = mixes.read(ids, Draw(1, 0)), plain.take(ids)[FEATURES]
    for i in range(12):
        own = (batch[FEATURES][i] == images[i]).all(axis=0).mean()
        assert batch[TARGET][i].sum() == pytest.approx(1)
        assert batch[TARGET][i, i % 3] >= own - 0.02


def test_of_mixup_and_cutmix_each_sample_gets_one() -> None:
    mixes, plain = split({"type": "mixup", "alpha": 1.0}, {"type": "cutmix"}, count=60), split(count=60)
    ids = np.arange(60)
    batch, images = mixes.read(ids, Draw(1, 0))[FEATURES], plain.take(ids)[FEATURES]
    cut = sum(
        bool(any((np.isclose(batch[i], images[i]) | np.isclose(batch[i], one)).all() for one in images))
        for i in ids
    )
    assert 15 <= cut <= 45  # 30 of 60 are expected: four standard deviations


def test_a_color_jitter_of_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="changes nothing; give brightness, contrast or saturation"):
        LISTED.validate_python([{"type": "color_jitter"}])


def test_images_of_several_sizes_are_named() -> None:
    images = Pictures([picture(), picture(9, 9)])
    one = ImageSplit(images, np.arange(2), {TARGET: np.zeros(2)}, pipeline(), Reading("the images"))
    with pytest.raises(DataError, match="image 0 has 20 x 14 pixels, but image 1 9 x 9: give them one size"):
        one.take(np.arange(2))
