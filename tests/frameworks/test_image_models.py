"""The models of images: against layers by hand, other libraries' weights, and themselves after a crash."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import trainwright
from small_runs import SMALL, assert_same, whole_and_resumed
from trainwright.errors import ModelError
from trainwright.frameworks.torch.models import build_model
from trainwright.frameworks.torch.models.image_shape import size_of
from trainwright.frameworks.torch.params import MODELS
from trainwright.types import DataInfo, features_spec

CNN = {"data": {"type": "digits"}, "model": {"type": "cnn", "filters": [4, 6], "hidden": [8]}}


def built(name: str, shape: tuple[int, ...], classes: int = 10, **params: Any) -> nn.Module:
    torch.manual_seed(0)
    given = MODELS[name](**params).model_dump()
    return build_model(name, given, DataInfo("classification", features_spec(shape), classes)).eval()


@pytest.mark.parametrize(
    ("shape", "layout", "size"),
    [
        ((8, 5), "auto", (1, 8, 5)),
        ((3, 8, 5), "auto", (3, 8, 5)),
        ((8, 5, 3), "auto", (3, 8, 5)),
        ((16, 8, 5), "channels_first", (16, 8, 5)),
        ((3, 8, 3), "channels_last", (3, 3, 8)),
    ],
)
def test_images_are_taken_as_the_data_hold_them(shape: Any, layout: Any, size: Any) -> None:
    assert size_of(shape, layout) == size
    model = built("cnn", shape, layout=layout)
    images = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    seen = model.images(images)
    assert (seen.shape, seen.dtype) == ((2, *size), torch.float32)
    first = images[1].numpy()
    expected = first if len(shape) == 3 and size == shape else np.moveaxis(np.atleast_3d(first), -1, 0)
    assert np.array_equal(seen[1].numpy(), expected.astype(np.float32) / np.float32(255))
    assert torch.equal(model.images(images.flatten(1).double()), seen * 255)


@pytest.mark.parametrize(
    ("name", "shape", "params", "message"),
    [
        ("cnn", (64,), {}, r"\(64,\) are not images"),
        ("cnn", (3, 8, 3), {}, "set layout to channels_first"),
        ("resnet18", (9, 8, 8), {}, "set layout to channels_first"),
    ],
)
def test_what_is_no_image_is_refused(name: str, shape: Any, params: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        built(name, shape, **params)


@pytest.mark.parametrize("normalization", ["none", "batch", "group"])
def test_a_cnn_is_its_layers_one_after_the_other(normalization: str) -> None:
    model = built("cnn", (9, 7), filters=[16, 12], hidden=[5], normalization=normalization, activation="gelu")
    w: dict[str, Any] = dict(model.named_parameters())
    images = torch.randn(3, 9, 7)
    x, at = images[:, None], 0
    for groups in (8, 6):
        x = functional.conv2d(x, w[f"features.{at}.weight"], w[f"features.{at}.bias"], padding=1)
        if normalization != "none":
            x = x / np.sqrt(1 + 1e-5) if normalization == "batch" else functional.group_norm(x, groups)
        x = functional.max_pool2d(functional.gelu(x), 2, ceil_mode=True)
        at += 3 if normalization == "none" else 4
    assert x.shape[2:] == (3, 2)
    hidden = functional.gelu(x.mean(dim=(2, 3)) @ w["head.0.weight"].T + w["head.0.bias"])
    expected = hidden @ w["head.2.weight"].T + w["head.2.bias"]
    torch.testing.assert_close(model(images), expected)


# The numbers of weights of torchvision's models of 1,000 classes.
@pytest.mark.parametrize(("depth", "weights"), [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032)])
def test_resnets_are_as_large_as_torchvisions(depth: int, weights: int) -> None:
    with torch.device("meta"):
        model = built(f"resnet{depth}", (3, 224, 224), 1000)
        same = built("resnet", (3, 224, 224), 1000, depth=depth, stem="imagenet")
    assert sum(one.numel() for one in model.parameters()) == weights
    assert {name: one.shape for name, one in same.state_dict().items()} == {
        name: one.shape for name, one in model.state_dict().items()
    }
    assert "layer2.0.downsample.0.weight" in model.state_dict()


@pytest.mark.soak  # it imports transformers
@pytest.mark.parametrize(
    ("depth", "kind", "depths"), [(18, "basic", [2, 2, 2, 2]), (50, "bottleneck", [3, 4, 6, 3])]
)
def test_resnets_compute_what_those_of_transformers_do(depth: int, kind: str, depths: list[int]) -> None:
    from transformers import ResNetConfig, ResNetForImageClassification

    widths = [64, 128, 256, 512] if kind == "basic" else [256, 512, 1024, 2048]
    config = ResNetConfig(layer_type=kind, depths=depths, hidden_sizes=widths, num_labels=7)
    theirs = ResNetForImageClassification(config).eval()
    ours = built(f"resnet{depth}", (3, 64, 96), 7, stem="imagenet")
    state = theirs.state_dict()
    names = [name for name in ours.state_dict() if "downsample" not in name]
    shortcuts = [name for name in ours.state_dict() if "downsample" in name]
    others = [name for name in state if "shortcut" not in name]
    matched = dict(zip(names, others, strict=True)) | dict(
        zip(shortcuts, (name for name in state if "shortcut" in name), strict=True)
    )
    ours.load_state_dict({name: state[other] for name, other in matched.items()}, strict=True)
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images).logits, atol=1e-4, rtol=1e-4)


def test_the_small_stem_keeps_the_size_of_small_images() -> None:
    sizes = []
    for side in (64, 65):
        model = built("resnet18", (3, side, side))
        model.layer1.register_forward_hook(lambda module, given, out: sizes.append(tuple(out.shape[2:])))
        model(torch.randn(1, 3, side, side))
    assert sizes == [(64, 64), (17, 17)]


def test_digits_are_images_of_known_shape(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        run = trainwright.train(CNN, {"training.max_steps": 2, "training.threads": 1}, runs_dir=tmp_path)
    assert "64 pixels, the rows of images of 8 x 8" in caplog.text
    assert trainwright.load(run).native.images.shape == (8, 8)
    with pytest.raises(ModelError, match=r"\(63,\) are not images"):
        trainwright.train(CNN, {"data.exclude": ["pixel_0_1"]}, runs_dir=tmp_path)


def test_a_cnn_ends_with_the_same_bits(tmp_path: Path) -> None:
    model = {"type": "cnn", "filters": [4, 6], "hidden": [8], "dropout": 0.2, "normalization": "batch"}
    settings = {"data.type": "digits", "model": model, "training.microbatch_size": 5}
    whole, resumed = whole_and_resumed(tmp_path, settings)
    assert_same(resumed, whole)


@pytest.mark.soak
def test_a_resnet_ends_with_the_same_bits_in_virtual_ranks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60, 12, 10, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", X=images, y=images.mean(axis=(1, 2, 3)) > 127)
    settings = {
        "data": {"type": "npz", "path": str(tmp_path / "images.npz")},
        "model": {"type": "resnet18", "dropout": 0.1},
        "training.max_steps": 16,
        "training.batch_size": 12,
        "training.drop_last": True,
        "distributed.virtual.data": 2,
    }
    whole, resumed = whole_and_resumed(tmp_path / "runs", settings)
    assert_same(resumed, whole)
    other = trainwright.train(SMALL, {**settings, "distributed.nproc": 2}, runs_dir=tmp_path / "other")
    assert other.digest == whole.digest
