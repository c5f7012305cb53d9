"""The options of the built-in models and of the optimizers, which need no torch to be read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainyard.config.fields import Section
from trainyard.frameworks.support.optimizers import AdamParams, Betas, RmspropParams, Share

Activation = Literal["relu", "gelu", "silu", "tanh"]


class MlpParams(Section):
    """A multilayer perceptron."""

    hidden: list[Annotated[int, Field(gt=0)]] = Field(
        default_factory=lambda: [128, 64], description="width of each hidden layer"
    )
    dropout: Share = Field(0.0, description="after each hidden layer")
    activation: Activation = "relu"
    normalization: Literal["none", "batch", "layer"] = Field("none", description="before each activation")


class TransformerParams(Section):
    """A transformer encoder with a token for each feature (FT-Transformer, Gorishniy et al., 2021)."""

    hidden_size: int = Field(64, gt=0, description="width of a token")
    num_layers: int = Field(2, gt=0)
    num_heads: int | None = Field(
        None, gt=0, description="must divide hidden_size; default: heads of 64, or the nearest that divides"
    )
    dropout: Share = Field(0.1, description="in attention and feed-forward layers")


class GptParams(Section):
    """A decoder-only transformer for language modeling (GPT-2, Radford et al., 2019)."""

    hidden_size: int = Field(128, gt=0, description="width of a token")
    num_layers: int = Field(4, gt=0)
    num_heads: int = Field(4, gt=0, description="must divide hidden_size")
    dropout: Share = Field(0.0, description="of embeddings, attention and residual branches")


class RadamParams(Section):
    """RAdam (Liu et al., 2020) and Adamax (Kingma and Ba, 2015)."""

    betas: Betas = Field(default_factory=lambda: [0.9, 0.999])
    eps: float = Field(1e-8, gt=0)


class NadamParams(RadamParams):
    """NAdam (Dozat, 2016)."""

    momentum_decay: float | None = Field(
        None, ge=0, description="how fast the momentum rises to betas[0]; default: 0.004"
    )


class SgdParams(Section):
    """Stochastic gradient descent."""

    momentum: Share = 0.0
    dampening: Share = 0.0
    nesterov: bool = False


class AdagradParams(Section):
    """Adagrad (Duchi et al., 2011)."""

    lr_decay: float = Field(0.0, ge=0)
    eps: float = Field(1e-10, gt=0)
    initial_accumulator_value: float | None = Field(
        None, ge=0, description="the sum of squared gradients to begin with; default: 0"
    )


class LionParams(Section):
    """Lion (Chen et al., 2023): try a tenth of AdamW's learning rate, and ten times its decay."""

    betas: Betas = Field(default_factory=lambda: [0.9, 0.99])


class AdafactorParams(Section):
    """Adafactor (Shazeer and Stern, 2018) at a given learning rate, as torch has it."""

    beta2_decay: float = Field(-0.8, le=0, description="how fast the second moment forgets: step ** this")
    d: float = Field(1.0, ge=1, description="an update whose root mean square is above this is scaled down")


MODELS: dict[str, type[Section]] = {"gpt": GptParams, "mlp": MlpParams, "transformer": TransformerParams}

OPTIMIZERS: dict[str, type[Section]] = {
    "adamw": AdamParams,
    "adam": AdamParams,
    "sgd": SgdParams,
    "rmsprop": RmspropParams,
    "adagrad": AdagradParams,
    "nadam": NadamParams,
    "radam": RadamParams,
    "adamax": RadamParams,
    "adafactor": AdafactorParams,
    "lion": LionParams,
}

FORMATS = ("safetensors", "safetensors-bf16")
LOSSES = (
    *("auto", "cross_entropy", "binary_cross_entropy", "token_cross_entropy"),
    *("mse", "mae", "huber", "l1", "smooth_l1"),
)
