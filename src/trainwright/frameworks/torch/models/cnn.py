"""A plain convolutional network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from trainwright.frameworks.torch.models.drawing import Drawn
from trainwright.frameworks.torch.models.image_shape import Layout
from trainwright.frameworks.torch.models.images import ImageInput
from trainwright.frameworks.torch.models.mlp import ACTIVATIONS

_GROUPS = 8  # of channels that are normalized together; fewer where these do not divide


class Cnn(Drawn):
    """Convolutions, each followed by normalization, activation and a pooling of 2 x 2; then dense layers.

    The mean over all positions is taken before the dense layers, so images may have any size.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        out_features: int,
        filters: Sequence[int] = (32, 64),
        kernel_size: int = 3,
        hidden: Sequence[int] = (64,),
        dropout: float = 0.0,
        activation: str = "relu",
        normalization: str = "none",
        layout: Layout = "auto",
    ) -> None:
        super().__init__()
        self.images = ImageInput(image_shape, layout)
        act = ACTIVATIONS[activation]
        layers: list[nn.Module] = []
        width = self.images.channels
        for count in filters:
            layers.append(nn.Conv2d(width, count, kernel_size, padding="same"))
            if normalization != "none":
                layers.append(normalization_of(normalization, count))
            layers += [act(), nn.MaxPool2d(2, ceil_mode=True)]
            width = count
        self.features = nn.Sequential(*layers)
        dense: list[nn.Module] = []
        for size in hidden:
            dense += [nn.Linear(width, size), act(), *([nn.Dropout(dropout)] if dropout else [])]
            width = size
        self.head = nn.Sequential(*dense, nn.Linear(width, out_features))

    def forward(self, features: Tensor) -> Tensor:
        """Compute images (rows, ...) -> (rows, out_features)."""
        maps = self.features(self.images(features))  # (rows, channels, height, width)
        outputs: Tensor = self.head(maps.mean(dim=(2, 3)))  # (rows, out_features)
        return outputs


def normalization_of(name: str, channels: int) -> nn.Module:
    """Return a layer that normalizes maps over the batch (`batch`), or in up to 8 groups of channels."""
    if name == "batch":
        return nn.BatchNorm2d(channels)
    groups = next(count for count in range(min(_GROUPS, channels), 0, -1) if channels % count == 0)
    return nn.GroupNorm(groups, channels)
