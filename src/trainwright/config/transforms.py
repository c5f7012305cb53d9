"""The items of `data.transforms`: what happens to images before a model sees them, a class for each type."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from trainwright.config.fields import Section, bits

Length = Annotated[int, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
Size = Length | Annotated[list[Length], Field(min_length=2, max_length=2)]
Range = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=2, max_length=2)]
_SIZE = "pixels: one number for a square, or [height, width]"


class _Item(Section):
    """An item of the list of transforms."""

    is_random: ClassVar[bool] = True  # whether it draws random numbers in training
    moves: ClassVar[bool] = False  # whether it moves pixels, so that it changes masks, too
    may_pad: ClassVar[bool] = False  # whether it may add pixels at the border, which masks do not count


class Resize(_Item):
    """A resize: of the shorter side to one number, or of both sides."""

    is_random: ClassVar[bool] = False
    moves: ClassVar[bool] = True
    type: Literal["resize"] = bits("resize")
    size: Size = bits(description="length of the shorter side, or [height, width]")
    interpolation: Literal["bilinear", "nearest", "bicubic"] = bits(
        default="bilinear", description="how pixels are computed, as Pillow does"
    )


class CenterCrop(_Item):
    """A cut-out of the middle; a smaller image gets a black border."""

    is_random: ClassVar[bool] = False
    moves: ClassVar[bool] = True
    may_pad: ClassVar[bool] = True
    type: Literal["center_crop"] = bits("center_crop")
    size: Size = bits(description=_SIZE)


class RandomCrop(_Item):
    """A cut-out at random; of the middle outside of training."""

    moves: ClassVar[bool] = True
    may_pad: ClassVar[bool] = True
    type: Literal["random_crop"] = bits("random_crop")
    size: Size = bits(description=_SIZE)
    padding: int = bits(default=0, ge=0, description="pixels of black padding on each side before the crop")


class RandomResizedCrop(_Item):
    """A cut-out of random size and shape, resized; outside of training the middle, after a resize."""

    moves: ClassVar[bool] = True
    type: Literal["random_resized_crop"] = bits("random_resized_crop")
    size: Size = bits(description=_SIZE)
    scale: Range = bits(default_factory=lambda: [0.08, 1.0], description="share of the area, at random")
    ratio: Range = bits(default_factory=lambda: [0.75, 4 / 3], description="width / height, at random")


class HorizontalFlip(_Item):
    """A swap of left and right."""

    moves: ClassVar[bool] = True
    type: Literal["horizontal_flip"] = bits("horizontal_flip")
    p: Probability = bits(default=0.5, description="the probability that it is applied")


class VerticalFlip(_Item):
    """A swap of top and bottom."""

    moves: ClassVar[bool] = True
    type: Literal["vertical_flip"] = bits("vertical_flip")
    p: Probability = bits(default=0.5, description="the probability that it is applied")


class Rotation(_Item):
    """A rotation about the middle, by an angle of up to `degrees` in either direction."""

    moves: ClassVar[bool] = True
    may_pad: ClassVar[bool] = True
    type: Literal["rotation"] = bits("rotation")
    degrees: float = bits(gt=0, le=180, description="the largest angle, in either direction")


class ColorJitter(_Item):
    """Factors on brightness, contrast and saturation, each from 1 - x to 1 + x at random."""

    type: Literal["color_jitter"] = bits("color_jitter")
    brightness: Probability = bits(default=0.0, description="x of the factor on all values")
    contrast: Probability = bits(default=0.0, description="x of the factor on the distance from mean gray")
    saturation: Probability = bits(default=0.0, description="x of the factor on the distance from gray")

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not (self.brightness or self.contrast or self.saturation):
            raise ValueError("changes nothing; give brightness, contrast or saturation, such as 0.4")
        return self


class RandAugment(_Item):
    """Some of the operations that docs/images.md lists, at random (Cubuk et al., 2020)."""

    moves: ClassVar[bool] = True
    may_pad: ClassVar[bool] = True
    type: Literal["rand_augment"] = bits("rand_augment")
    num_ops: int = bits(default=2, gt=0, description="operations, one after the other")
    magnitude: float = bits(default=9.0, ge=0, le=30, description="strength; 30 is the greatest")


class RandomErasing(_Item):
    """A rectangle that becomes black (Zhong et al., 2020)."""

    type: Literal["random_erasing"] = bits("random_erasing")
    p: Probability = bits(default=0.5, description="the probability that it is applied")
    scale: Range = bits(default_factory=lambda: [0.02, 0.33], description="share of the area, at random")
    ratio: Range = bits(default_factory=lambda: [0.3, 3.3], description="width / height, at random")


class Normalize(_Item):
    """(x - mean) / std for each channel, after all others; pixels are from 0 to 1 before."""

    is_random: ClassVar[bool] = False
    type: Literal["normalize"] = bits("normalize")
    mean: list[float] | None = bits(
        default=None, description="mean of each channel; default: that of the training images"
    )
    std: list[Annotated[float, Field(gt=0)]] | None = bits(
        default=None, description="standard deviation of each channel; default: that of the training images"
    )

    @model_validator(mode="after")
    def _check_both(self) -> Normalize:
        if (self.mean is None) != (self.std is None):
            raise ValueError("give both mean and std, or neither")
        return self


class Mixup(_Item):
    """A blend with another training image, and of their targets (Zhang et al., 2018)."""

    type: Literal["mixup"] = bits("mixup")
    alpha: float = bits(default=0.2, gt=0, description="the share is drawn from Beta(alpha, alpha)")
    p: Probability = bits(default=1.0, description="the probability that it is applied")


class Cutmix(_Item):
    """A rectangle of another training image, and a blend of their targets (Yun et al., 2019)."""

    type: Literal["cutmix"] = bits("cutmix")
    alpha: float = bits(default=1.0, gt=0, description="the share is drawn from Beta(alpha, alpha)")
    p: Probability = bits(default=1.0, description="the probability that it is applied")


class CustomTransform(_Item):
    """A function of your own of (image, rng) in training; `package.module:name` is short for it."""

    type: Literal["custom"] = bits("custom")
    function: str = bits(description="package.module:name")
    params: dict[str, Any] = bits(default_factory=dict, description="the other arguments, by name")


Transform = Annotated[
    Resize
    | CenterCrop
    | RandomCrop
    | RandomResizedCrop
    | HorizontalFlip
    | VerticalFlip
    | Rotation
    | ColorJitter
    | RandAugment
    | RandomErasing
    | Normalize
    | Mixup
    | Cutmix
    | CustomTransform,
    Field(discriminator="type"),
]
