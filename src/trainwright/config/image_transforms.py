"""Read the transforms of torchvision, albumentations and timm, by their names and options, as ours.

What follows their signatures is that of albumentations 1.3 and 2.0, torchvision 0.29 and timm 1.0.
"""

from __future__ import annotations

import re
from functools import cache
from typing import get_args

from trainwright.config.synonyms import fold, table
from trainwright.config.transforms import Transform
from trainwright.config.tree import Draft, Node, mapping

_PATH = "data.transforms"
# Transforms of images as torchvision, albumentations and timm call them.
_TRANSFORMS = table(
    {
        "resize": "Resize SmallestMaxSize",
        "center_crop": "CenterCrop",
        "random_crop": "RandomCrop",
        "random_resized_crop": "RandomResizedCrop RandomResizedCropAndInterpolation",
        "horizontal_flip": "HorizontalFlip RandomHorizontalFlip hflip flip flip_lr",
        "vertical_flip": "VerticalFlip RandomVerticalFlip vflip flip_ud",
        "rotation": "Rotation RandomRotation Rotate",
        "color_jitter": "ColorJitter ColourJitter",
        "rand_augment": "RandAugment",
        "random_erasing": "RandomErasing",
        "normalize": "Normalize Normalise",
        "mixup": "MixUp",
        "cutmix": "CutMix",
    }
)
# They make tensors of images, which needs no transform here.
_NO_TRANSFORMS = table({"tensor": "ToTensor ToTensorV2 PILToTensor ToImage ToDtype ConvertImageDtype"})
_IMAGE_LIBRARY = re.compile(
    r"^(((torchvision\.)?transforms|v2|[TA]|albumentations|pytorch|timm\.data)\.)+(?=\w+$)"
)
_ALBUMENTATIONS = re.compile(r"^(A|albumentations)\.")
_ITS_OWN = ("limit", "always_apply")  # options that albumentations alone has
# Options that change nothing at these values, as they are how ours work.
_IDLE = {
    "always_apply": False,
    "antialias": True,
    "center": None,
    "expand": False,
    "fill": 0,
    "hue": 0,
    "inplace": False,
    "max_pixel_value": 255,
    "num_magnitude_bins": 31,
    "p": 1,
    "pad_if_needed": False,
    "padding_mode": "constant",
    "value": 0,
}
# What to write instead of transforms of albumentations that do something else than ours of the same name.
_OTHERS = {
    "flip": "flips either way, or both: write horizontal_flip and vertical_flip",
    "rotate": "is left out at random (p: 0.5), as ours never is: write {type: rotation, degrees: 30}",
    "colorjitter": "is left out at random (p: 0.5), and has other defaults than ours: write {type: "
    "color_jitter, brightness: 0.2, contrast: 0.2, saturation: 0.2}",
}
# Options that have another default there than here, and must be given: by the name in the library.
_MUST_SAY = {
    "normalize": (
        "mean",
        "has the mean and std of ImageNet by default: write them ({type: normalize, mean: [0.485, "
        "0.456, 0.406], std: [0.229, 0.224, 0.225]}), or normalize for those of the training images",
    ),
    "mixup": ("alpha", "has alpha 1.0 by default, and ours 0.2: write {type: mixup, alpha: 1.0}"),
}


def read_transforms(draft: Draft, path: str, transforms: Node) -> None:  # noqa: ARG001 - a conversion
    """Read the transforms of libraries as ours, in place; leave out those that make tensors."""
    notes = draft.notes
    if not isinstance(transforms.value, list):
        return
    for item in list(transforms.value):
        kind = mapping(item).get("type", item)
        if not isinstance(kind.value, str) or ":" in kind.value:
            continue
        word = fold(_IMAGE_LIBRARY.sub("", kind.value))
        if word in _NO_TRANSFORMS:
            transforms.value.remove(item)
            notes.append(f"{kind.source}: {_PATH}: {kind.value} is left out; it always happens")
        elif (hint := _hint(word, kind.value, item)) is not None:
            transforms.value.remove(item)
            draft.problems.report(f"{kind.value} {hint}", _PATH, kind.source)
        elif (ours := _TRANSFORMS.get(word)) is not None:
            if word == "smallestmaxsize":
                _rename(mapping(item), "max_size", "size", notes)
            _options(ours, item, notes)
            if ours != kind.value:
                notes.append(f"{kind.source}: {_PATH}: {kind.value} is read as {ours}")
                kind.value = ours


def _hint(word: str, written: str, item: Node) -> str | None:
    """Return what to write instead of a transform that differs from ours of its name; None if none does."""
    options = mapping(item)
    is_albumentations = bool(_ALBUMENTATIONS.match(written) or any(name in options for name in _ITS_OWN))
    if is_albumentations and word in _OTHERS:
        return _OTHERS[word]
    option, hint = _MUST_SAY.get(word, ("", ""))
    has_defaults = is_albumentations if word == "normalize" else "." in written
    return hint if option and has_defaults and option not in options else None


def _options(ours: str, item: Node, notes: list[str]) -> None:
    """Read the options of one of our transforms, as a library writes them, as ours."""
    options, known = mapping(item), _fields()[ours]
    height, width = options.get("height"), options.get("width")
    if "size" in known and "size" not in options and height is not None and width is not None:
        del options["width"]
        options["height"] = Node([height, width], height.source, height.key)
        _rename(options, "height", "size", notes)
    angles = options.get("degrees")
    if angles is not None and isinstance(angles.value, list) and len(angles.value) == 2:
        low, high = (one.value for one in angles.value)
        if isinstance(low, int | float) and isinstance(high, int | float) and low == -high:
            options["degrees"] = Node(high, angles.source, angles.key)
    way = options.get("interpolation")
    if way is not None and isinstance(way.value, str):
        way.value = way.value.rpartition(".")[2].lower()
    for name, idle in _IDLE.items():
        node = options.get(name)
        if node is not None and name not in known and node.value == idle:
            del options[name]
            notes.append(f"{node.key_source}: {_PATH}: {name} is left out, as it changes nothing")


def _rename(options: dict[str, Node], old: str, new: str, notes: list[str]) -> None:
    """Read an option as another one."""
    if old in options and new not in options:
        node = options[new] = options.pop(old)
        notes.append(f"{node.key_source}: {_PATH}: {old} is read as {new}")


@cache
def _fields() -> dict[str, set[str]]:
    """Return the options of each of our transforms by its type."""
    kinds = get_args(get_args(Transform)[0])
    return {get_args(kind.model_fields["type"].annotation)[0]: set(kind.model_fields) for kind in kinds}
