"""A multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from trainwright.frameworks.torch.models.drawing import Drawn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}
_NORMALIZATIONS: dict[str, type[nn.Module]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


class Mlp(Drawn):
    """Linear layers of the widths `hidden`, each followed by normalization, activation and dropout."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        hidden: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        activation: str = "relu",
        normalization: str = "none",
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        width = in_features
        for size in hidden:
            layers.append(nn.Linear(width, size))
            if normalization in _NORMALIZATIONS:
                layers.append(_NORMALIZATIONS[normalization](size))
            layers.append(ACTIVATIONS[activation]())
            if dropout:
                layers.append(nn.Dropout(dropout))
            width = size
        self.layers = nn.Sequential(*layers, nn.Linear(width, out_features))

    def forward(self, features: Tensor) -> Tensor:
        """Compute (rows, ...) float32 -> (rows, out_features)."""
        outputs: Tensor = self.layers(features)  # (rows, out_features)
        return outputs
