"""A U-Net: a class for each pixel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainwright.frameworks.torch.models.cnn import normalization_of
from trainwright.frameworks.torch.models.drawing import Drawn
from trainwright.frameworks.torch.models.image_shape import Layout
from trainwright.frameworks.torch.models.images import ImageInput
from trainwright.frameworks.torch.models.mlp import ACTIVATIONS


class Unet(Drawn):
    """An encoder and a decoder with as many levels, and connections between levels of the same size.

    Ronneberger et al.: "U-Net: convolutional networks for biomedical image segmentation", MICCAI 2015. As is
    usual today, convolutions are padded, so that the output has the size of the image. An image whose sides
    are no multiples of 2 ** depth is padded with zeros below and on the right, and the output is cut.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        out_features: int,
        depth: int = 4,
        base_width: int = 32,
        dropout: float = 0.0,
        activation: str = "relu",
        normalization: str = "batch",
        layout: Layout = "auto",
    ) -> None:
        super().__init__()
        self.images = ImageInput(image_shape, layout)
        self.multiple = 2**depth
        widths = [base_width * 2**level for level in range(depth + 1)]
        block = partial(_block, activation=activation, normalization=normalization)
        inputs = [self.images.channels, *widths]
        self.down = nn.ModuleList(block(inputs[i], widths[i]) for i in range(depth))
        self.pool = nn.MaxPool2d(2)
        self.middle = block(inputs[depth], widths[depth])
        self.dropout = nn.Dropout(dropout)
        levels = range(depth - 1, -1, -1)
        self.up = nn.ModuleList(nn.ConvTranspose2d(widths[i + 1], widths[i], 2, stride=2) for i in levels)
        self.merge = nn.ModuleList(block(2 * widths[i], widths[i]) for i in levels)
        self.head = nn.Conv2d(widths[0], out_features, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Compute images (rows, ...) -> (rows, out_features, height, width)."""
        images = self.images(features)  # (rows, channels, height, width)
        height, width = images.shape[2:]
        maps = functional.pad(images, (0, -width % self.multiple, 0, -height % self.multiple))
        skipped: list[Tensor] = []
        for block in self.down:
            skipped.append(block(maps))  # (rows, width of the level, ...)
            maps = self.pool(skipped[-1])
        maps = self.dropout(self.middle(maps))
        for up, merge in zip(self.up, self.merge, strict=True):
            maps = merge(torch.cat([skipped.pop(), up(maps)], dim=1))
        outputs: Tensor = self.head(maps)[:, :, :height, :width]
        return outputs


def _block(inputs: int, outputs: int, activation: str, normalization: str) -> nn.Sequential:
    """Return two convolutions of 3 x 3, each followed by normalization and activation."""
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        layers.append(nn.Conv2d(width, outputs, 3, padding=1))
        if normalization != "none":
            layers.append(normalization_of(normalization, outputs))
        layers.append(ACTIVATIONS[activation]())
    return nn.Sequential(*layers)
