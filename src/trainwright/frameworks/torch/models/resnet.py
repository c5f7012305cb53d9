"""Residual networks (He et al., "Deep residual learning for image recognition", CVPR 2016)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from trainwright.frameworks.torch.models.drawing import Drawn
from trainwright.frameworks.torch.models.image_shape import Layout
from trainwright.frameworks.torch.models.images import ImageInput

_SMALL = 64  # pixels; images with a side that is no longer get the small stem by default
_WIDTHS = (64, 128, 256, 512)  # of the four stages


class _Conv(nn.Conv2d):
    """A convolution without biases whose weights are drawn as He et al. do."""

    def __init__(self, inside: int, outside: int, size: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__(inside, outside, size, stride, padding, bias=False)

    def reset_parameters(self) -> None:
        """Draw the weights."""
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")


class _Basic(nn.Module):
    """Two 3 x 3 convolutions, and a shortcut around them."""

    expansion = 1

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _Conv(inside, width, 3, stride, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _Conv(width, width, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inside, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Compute (rows, inside, height, width) -> (rows, width, height / stride, width / stride)."""
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return functional.relu(out + self.downsample(x))


class _Bottleneck(nn.Module):
    """A 3 x 3 convolution between two of 1 x 1, and a shortcut around them; the 3 x 3 has the stride."""

    expansion = 4

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _Conv(inside, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _Conv(width, width, 3, stride, padding=1)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _Conv(width, width * self.expansion, 1)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.downsample = _shortcut(inside, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Compute (rows, inside, height, width) -> (rows, 4 width, height / stride, width / stride)."""
        out = functional.relu(self.bn1(self.conv1(x)))
        out = functional.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return functional.relu(out + self.downsample(x))


_KINDS: dict[int, tuple[type[_Basic | _Bottleneck], tuple[int, int, int, int]]] = {
    18: (_Basic, (2, 2, 2, 2)),
    34: (_Basic, (3, 4, 6, 3)),
    50: (_Bottleneck, (3, 4, 6, 3)),
}


class Resnet(Drawn):
    """A residual network of 18, 34 or 50 layers.

    Its weights have the names and shapes of torchvision's, whose files `model.init_from` takes where the stem
    and the number of classes are the same. The imagenet stem is a 7 x 7 convolution and a pooling, each with
    stride 2; the small one a 3 x 3 convolution with stride 1, for images such as those of CIFAR.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        out_features: int,
        depth: int = 18,
        stem: str = "auto",
        dropout: float = 0.0,
        layout: Layout = "auto",
    ) -> None:
        super().__init__()
        self.images = ImageInput(image_shape, layout)
        sizes = (self.images.height, self.images.width)
        block, counts = _KINDS[depth]
        is_small = stem == "small" or (stem == "auto" and min(sizes) <= _SMALL)
        kernel, stride = (3, 1) if is_small else (7, 2)
        self.conv1 = _Conv(self.images.channels, 64, kernel, stride, padding=kernel // 2)
        self.bn1 = nn.BatchNorm2d(64)
        self.pool = nn.Identity() if is_small else nn.MaxPool2d(3, 2, padding=1)
        inside = 64
        for i, (width, count) in enumerate(zip(_WIDTHS, counts, strict=True)):
            blocks = [block(inside, width, 1 if i == 0 else 2)]
            inside = width * block.expansion
            blocks += [block(inside, width, 1) for _ in range(count - 1)]
            self.add_module(f"layer{i + 1}", nn.Sequential(*blocks))
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.fc = nn.Linear(inside, out_features)

    def forward(self, features: Tensor) -> Tensor:
        """Compute images (rows, ...) -> (rows, out_features)."""
        maps = functional.relu(self.bn1(self.conv1(self.images(features))))
        maps = self.pool(maps)  # (rows, 64, height, width)
        for i in range(len(_WIDTHS)):
            maps = self.get_submodule(f"layer{i + 1}")(maps)
        outputs: Tensor = self.fc(self.dropout(maps.mean(dim=(2, 3))))  # (rows, out_features)
        return outputs


def resnet18(image_shape: Sequence[int], out_features: int, **options: object) -> Resnet:
    """Build a network of 18 layers."""
    return Resnet(image_shape, out_features, depth=18, **options)  # type: ignore[arg-type]


def resnet34(image_shape: Sequence[int], out_features: int, **options: object) -> Resnet:
    """Build a network of 34 layers."""
    return Resnet(image_shape, out_features, depth=34, **options)  # type: ignore[arg-type]


def resnet50(image_shape: Sequence[int], out_features: int, **options: object) -> Resnet:
    """Build a network of 50 layers."""
    return Resnet(image_shape, out_features, depth=50, **options)  # type: ignore[arg-type]


def _shortcut(inside: int, outside: int, stride: int) -> nn.Module:
    """Return the identity, or a projection where the shape changes."""
    if inside == outside and stride == 1:
        return nn.Identity()
    return nn.Sequential(_Conv(inside, outside, 1, stride), nn.BatchNorm2d(outside))
