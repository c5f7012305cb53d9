"""Compressed layers compute what their stored numbers say."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from trainwright.frameworks.torch.compression import channels
from trainwright.frameworks.torch.compression.compressor import quantized
from trainwright.frameworks.torch.compression.layers import LAYERS, CompressedLayer, Range, Source
from trainwright.frameworks.torch.compression.structure import compress_structure, packed

LINEAR, CONV, TABLE = nn.Linear(64, 48), nn.Conv2d(3, 8, 3, padding="same"), nn.Embedding(10, 64)


def encoded(layer: Any, scheme: str, inputs: torch.Tensor) -> CompressedLayer:
    """Return a layer by a scheme, calibrated on some inputs."""
    made = LAYERS[scheme](layer)
    with torch.no_grad():
        outputs = layer(inputs)
        ranges = tuple(Range(float(one.min()), float(one.max())) for one in (inputs, outputs))
        made.encode(Source(layer, quantized(layer, type(made)), ranges))
    return made


def rows(count: int = 7) -> torch.Tensor:
    return torch.randn(count, 64, generator=torch.Generator().manual_seed(1))


def stored_weight(layer: Any, scheme: str) -> np.ndarray[Any, Any]:
    """Return the weight that the stored numbers mean, by NumPy, in float64."""
    weight, shape = layer.weight.detach(), layer.shape
    if scheme in ("fp16", "bf16"):
        return weight.double().numpy()
    scale = layer.scale.double().numpy()
    if scheme == "int4-weight-only":
        packed_codes = weight.numpy()
        codes = np.stack([packed_codes & 15, packed_codes >> 4], -1).reshape(shape[0], -1, 32)
        return ((codes.astype(np.float64) - 8) * scale[..., None]).reshape(shape)
    codes = (weight.view(torch.float8_e4m3fn) if scheme == "fp8" else weight).double().numpy()
    return codes * scale.reshape(-1, *[1] * (len(shape) - 1))


# The largest error of an output, relative to the largest output: of 7 bits of an input, of bfloat16, of none.
ERRORS = {"int8-dynamic": 0.02, "int8-static": 0.02, "int8-weight-only": 0.01, "int4-weight-only": 0.01}
ERRORS |= {"fp16": 2e-3, "bf16": 1e-2, "fp8": 1e-5}


@pytest.mark.parametrize("scheme", LAYERS)
@pytest.mark.parametrize("count", [1, 7, 64])
def test_a_linear_layer(scheme: str, count: int) -> None:
    inputs = rows(count)
    layer = encoded(LINEAR, scheme, inputs)
    with torch.no_grad():
        given = layer(inputs).double().numpy()
    expected = (
        inputs.double().numpy() @ stored_weight(layer, scheme).T + LINEAR.bias.detach().double().numpy()
    )
    assert np.abs(given - expected).max() <= ERRORS[scheme] * np.abs(expected).max()
    original = LINEAR(inputs).detach().double().numpy()
    assert np.abs(given - original).max() < 0.15 * np.abs(original).max()  # 4 bits are the coarsest


@pytest.mark.parametrize("scheme", ["int8-static", "int8-weight-only", "fp16", "bf16", "fp8"])
def test_a_convolution(scheme: str) -> None:
    images = torch.randn(4, 3, 9, 9, generator=torch.Generator().manual_seed(2))
    layer = encoded(CONV, scheme, images)
    with torch.no_grad():
        given = layer(images).double()
        weight = torch.from_numpy(stored_weight(layer, scheme))
        expected = functional.conv2d(images.double(), weight, CONV.bias.double(), padding=1)
    assert float((given - expected).abs().max()) <= 0.03 * float(expected.abs().max())
    assert given.shape == expected.shape


@pytest.mark.parametrize("scheme", ["int8-weight-only", "fp16", "bf16"])
def test_an_embedding(scheme: str) -> None:
    ids = torch.tensor([[0, 9], [3, 3]])
    layer = encoded(TABLE, scheme, ids) if scheme != "int8-weight-only" else _table(ids)
    with torch.no_grad():
        np.testing.assert_allclose(layer(ids).numpy(), stored_weight(layer, scheme)[ids.numpy()], rtol=1e-6)


def _table(ids: torch.Tensor) -> CompressedLayer:
    return encoded(TABLE, "int8-weight-only", ids)


def test_scales_are_those_of_torchao() -> None:
    """An int8 row has its largest magnitude at 127."""
    values = quantized(LINEAR, LAYERS["int8-dynamic"])
    assert values is not None
    largest = LINEAR.weight.detach().abs().amax(dim=1)
    torch.testing.assert_close(values.scale.reshape(-1), largest / 127.5, rtol=1e-2, atol=0)
    assert int(values.quantized.abs().max()) >= 127


def test_sizes_that_a_kernel_cannot_take() -> None:
    with pytest.raises(ValueError, match="33 inputs and 48 outputs are no multiples of 32 and 16"):
        LAYERS["int4-weight-only"](nn.Linear(33, 48))
    with pytest.raises(ValueError, match="its padding differs on the two sides"):
        LAYERS["int8-static"](nn.Conv2d(3, 8, 2, padding="same"))
    odd = nn.Linear(33, 5)  # the kernel of int8 weights would read beyond the rows
    inputs = torch.randn(3, 33)
    torch.testing.assert_close(
        encoded(odd, "int8-weight-only", inputs)(inputs), odd(inputs), rtol=0, atol=0.02
    )


@pytest.mark.parametrize("scheme", LAYERS)
def test_a_copy_predicts_alike(scheme: str) -> None:
    layer = encoded(LINEAR, scheme, rows())
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(rows()), layer(rows()))
    other = LAYERS[scheme](LINEAR)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(rows()), layer(rows()))


def test_zeros_are_not_stored() -> None:
    model = nn.Sequential(nn.Linear(64, 48))
    weight = torch.randn(48, 64)
    weight[torch.rand(48, 64) < 0.5] = 0
    kept = packed(weight)
    assert sum(one.nbytes for one in kept.values()) < 0.6 * weight.nbytes
    compress_structure(model, {"pruned": ["0"]})
    bias = torch.zeros(48)
    model.load_state_dict({"0.bias": bias, **{f"0.weight{end}": one for end, one in kept.items()}})
    assert torch.equal(model[0].weight, weight)


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 6, 3)
        self.flat = nn.Flatten()
        self.dense = nn.Linear(6 * 4 * 4, 10)
        self.skip = nn.Linear(10, 10)
        self.last = nn.Linear(10, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = torch.relu(self.second(torch.relu(self.norm(self.first(images)))))
        hidden = self.dense(self.flat(maps))
        outputs: torch.Tensor = self.last(torch.relu(hidden + self.skip(hidden)))
        return outputs


def test_a_narrow_model_is_the_wide_one_with_silent_channels() -> None:
    """A channel that is gone gives nothing: as if its weight, bias and normalization were zero."""
    torch.manual_seed(3)
    net = _Net().eval()
    nn.init.uniform_(net.norm.running_mean)
    wide, images = copy.deepcopy(net), torch.randn(5, 1, 8, 8)
    names = ["first", "second", "dense", "skip", "last"]
    shapes, zeroed, notes = channels.drop(net, names, 0.5)
    assert shapes == {
        "first": [4, 1, 3, 3],
        "norm": [4],
        "second": [3, 4, 3, 3],
        "dense": [10, 3 * 16],
    }
    assert zeroed == ["dense", "skip"]
    assert "latency is as before: its outputs" in notes["dense"]
    assert notes["last"] == "it gives the outputs of the model"
    with torch.no_grad():
        for name, norm in (("first", "norm"), ("second", None)):
            layer = wide.get_submodule(name)
            norms = layer.weight.flatten(1).norm(dim=1)
            silent = norms.argsort()[: len(norms) // 2]
            for one in (layer, *([wide.norm] if norm else [])):
                one.weight[silent], one.bias[silent] = 0, 0
            if norm:
                wide.second.weight[:, silent] = 0  # its norm does not count what goes
                wide.norm.running_mean[silent] = 0
        for name in ("dense", "skip"):
            rows = wide.get_submodule(name).weight.norm(dim=1).argsort()[:5]
            wide.get_submodule(name).weight[rows] = 0
        torch.testing.assert_close(net(images), wide(images), rtol=1e-5, atol=1e-6)
    again = _Net().eval()
    compress_structure(again, {"narrowed": shapes})
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(images), net(images))
