"""Images as arrays hold them, as the models of images take them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainwright.frameworks.torch.models.image_shape import Layout, is_channels_last, size_of


class ImageInput(nn.Module):
    """Turn samples into float32 images with the channels first; it has no weights.

    Bytes are divided by 255; other numbers stay as they are.

    Args:
        shape: The shape of a sample: (height, width), or with channels as `layout` says.
        layout: Which axis of three holds the channels.

    Raises:
        ValueError: These are no images, or the layout must be given.
    """

    def __init__(self, shape: Sequence[int], layout: Layout = "auto") -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.channels, self.height, self.width = size_of(self.shape, layout)
        self.is_last = is_channels_last(self.shape, layout)

    def forward(self, samples: Tensor) -> Tensor:
        """Compute (rows, ...) of any numbers -> (rows, channels, height, width) float32."""
        images = samples.reshape(samples.shape[0], *self.shape)  # flat rows, such as the columns of a table
        if samples.dtype == torch.uint8:
            images = images.float() / 255
        elif not images.is_floating_point():
            images = images.float()
        if len(self.shape) == 2:
            return images.unsqueeze(1)
        return images.permute(0, 3, 1, 2) if self.is_last else images
