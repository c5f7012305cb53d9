"""The options of the built-in models and of the optimizers, which need no torch to be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from trainwright.config.fields import Section
from trainwright.frameworks.support.optimizers import AdamParams, Betas, RmspropParams, Share

Activation = Literal["relu", "gelu", "silu", "tanh"]


class MlpParams(Section):
    """A multilayer perceptron."""

    hidden: list[Annotated[int, Field(gt=0)]] = Field(
        default_factory=lambda: [128, 64], description="width of each hidden layer"
    )
    dropout: Share = Field(0.0, description="share of the values that are dropped after each hidden layer")
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
    position: Literal["learned", "rotary"] = Field(
        "learned", description="a vector for each position, or rotations in each head (RoPE)"
    )
    rotary_base: float = Field(10_000.0, gt=1, description="base of the wavelengths of rotary positions")
    normalization: Literal["layer", "rms"] = Field("layer", description="LayerNorm or RMSNorm")
    activation: Literal["gelu", "swiglu"] = "gelu"
    intermediate_size: int | None = Field(
        None, gt=0, description="width of a feed-forward layer; default: 4 hidden_size, with swiglu 8/3 of it"
    )
    num_kv_heads: int | None = Field(
        None,
        gt=0,
        description="heads of keys and values, shared by groups of heads (grouped-query attention); must "
        "divide num_heads; default: num_heads",
    )
    bias: bool = Field(True, description="whether linear layers and LayerNorm have biases")
    tie_embeddings: bool = Field(True, description="use the token embedding as the output layer, too")


_VOCABULARY = "number of different tokens; default: that of the data"
Vocabulary = Annotated[int, Field(gt=0)] | None


class LstmParams(Section):
    """A recurrent network over tokens (LSTM, Hochreiter and Schmidhuber, 1997)."""

    embedding_dim: int = Field(128, gt=0, description="width of the vector of a token")
    hidden_size: int = Field(128, gt=0, description="width of the state, of each direction")
    num_layers: int = Field(1, gt=0)
    bidirectional: bool = Field(False, description="read each text from its end, too")
    dropout: Share = Field(0.0, description="of embeddings, between layers, and before the last one")
    pooling: Literal["last", "mean", "max"] = Field(
        "last", description="what stands for a text: the last state of each direction, or all of them"
    )
    vocab_size: Vocabulary = Field(None, description=_VOCABULARY)


class TextTransformerParams(Section):
    """A transformer encoder over tokens, with pre-norm layers and learned positions."""

    hidden_size: int = Field(128, gt=0, description="width of a token")
    num_layers: int = Field(2, gt=0)
    num_heads: int = Field(4, gt=0, description="must divide hidden_size")
    intermediate_size: int | None = Field(
        None, gt=0, description="width of a feed-forward layer; default: 4 hidden_size"
    )
    dropout: Share = Field(0.1, description="of embeddings, attention and residual branches")
    pooling: Literal["mean", "max", "cls"] = Field(
        "mean", description="what stands for a text: all tokens, or one of its own, which is learned"
    )
    vocab_size: Vocabulary = Field(None, description=_VOCABULARY)


Layout = Literal["auto", "channels_first", "channels_last"]
_IMAGE_SHAPE = "shape of the images in flat rows, such as [8, 8]; default: that of the data"
_LAYOUT = "which axis of images holds the channels; auto: the one of length 1 to 4, if the other is longer"
Sides = Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=2, max_length=3)]


class CnnParams(Section):
    """A convolutional network for images (height, width), with channels first or last."""

    filters: list[Annotated[int, Field(gt=0)]] = Field(
        default_factory=lambda: [32, 64],
        min_length=1,
        description="number of filters of each convolution; each is followed by a 2 x 2 pooling",
    )
    kernel_size: int = Field(3, gt=0)
    hidden: list[Annotated[int, Field(gt=0)]] = Field(
        default_factory=lambda: [64], description="width of each dense layer after the convolutions"
    )
    dropout: Share = Field(0.0, description="share of the values that are dropped after each dense layer")
    activation: Activation = "relu"
    normalization: Literal["none", "batch", "group"] = Field(
        "none", description="before each activation of a convolution"
    )
    image_shape: Sides | None = Field(None, description=_IMAGE_SHAPE)
    layout: Layout = Field("auto", description=_LAYOUT)


class ResnetParams(Section):
    """A residual network for images (He et al., 2016)."""

    stem: Literal["auto", "small", "imagenet"] = Field(
        "auto",
        description="small: a 3 x 3 convolution; imagenet: a 7 x 7 one and a pooling, which quarter the "
        "sides; auto: small for images with a side of up to 64 pixels",
    )
    dropout: Share = Field(0.0, description="before the last layer")
    image_shape: Sides | None = Field(None, description=_IMAGE_SHAPE)
    layout: Layout = Field("auto", description=_LAYOUT)


class AnyResnetParams(ResnetParams):
    """A residual network for images (He et al., 2016); resnet18, resnet34 and resnet50 say its depth."""

    depth: Literal[18, 34, 50] = Field(18, description="number of layers")


class UnetParams(Section):
    """A U-Net for the segmentation of images (Ronneberger et al., 2015); images may have any size."""

    depth: int = Field(4, gt=0, le=10, description="how often the sides are halved")
    base_width: int = Field(
        32, gt=0, description="filters of the first level; each level below has twice as many"
    )
    dropout: Share = Field(0.0, description="after the lowest level")
    activation: Activation = "relu"
    normalization: Literal["none", "batch", "group"] = Field("batch", description="before each activation")
    image_shape: Sides | None = Field(None, description=_IMAGE_SHAPE)
    layout: Layout = Field("auto", description=_LAYOUT)


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


class MuonParams(Section):
    """Muon (Keller Jordan, 2024) for hidden matrices, AdamW for the other parameters, as torch has them."""

    momentum: Share = Field(0.95, description="of Muon")
    nesterov: bool = Field(True, description="of Muon")
    ns_steps: int = Field(5, gt=0, lt=100, description="steps of the Newton-Schulz iteration")
    adjust_lr_fn: Literal["original", "match_rms_adamw"] = Field(
        "match_rms_adamw",
        description="the size of Muon's updates; match_rms_adamw: as AdamW's, so that one learning rate "
        "serves both (Liu et al., 2025); original: as Jordan has it, several times larger",
    )
    exclude: list[str] = Field(
        default_factory=list,
        description="matrices that AdamW trains, besides embeddings and output (patterns)",
    )
    betas: Betas = Field(default_factory=lambda: [0.9, 0.999], description="of AdamW")
    eps: float = Field(1e-8, gt=0, description="of AdamW")


OURS: dict[str, type[Section]] = {
    "cnn": CnnParams,
    "gpt": GptParams,
    "lstm": LstmParams,
    "mlp": MlpParams,
    "resnet": AnyResnetParams,
    "resnet18": ResnetParams,
    "resnet34": ResnetParams,
    "resnet50": ResnetParams,
    "text_transformer": TextTransformerParams,
    "transformer": TransformerParams,
    "unet": UnetParams,
}
CLASSIFIER = "transformers:AutoModelForSequenceClassification"
LANGUAGE_MODEL = "transformers:AutoModelForCausalLM"
TRANSFORMERS = (CLASSIFIER, LANGUAGE_MODEL)


class Models(Mapping[str, type[BaseModel]]):
    """The options of each model; those of transformers are imported when they are asked for."""

    def __getitem__(self, name: str) -> type[BaseModel]:
        if name not in TRANSFORMERS:
            return OURS[name]
        from trainwright.frameworks.torch.huggingface.params import HuggingFaceParams

        return HuggingFaceParams

    def __contains__(self, name: object) -> bool:
        return name in OURS or name in TRANSFORMERS

    def __iter__(self) -> Iterator[str]:
        return iter((*OURS, *TRANSFORMERS))

    def __len__(self) -> int:
        return len(OURS) + len(TRANSFORMERS)


MODELS = Models()
OF_TOKENS = ("gpt", "lstm", "text_transformer")  # ours that read `input_ids`
TOKEN_MODELS = (*OF_TOKENS, *TRANSFORMERS)

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
    "muon": MuonParams,
}

LOSSES = (
    *("auto", "cross_entropy", "binary_cross_entropy", "token_cross_entropy"),
    *("focal", "dice"),
    *("mse", "mae", "huber", "l1", "smooth_l1"),
    "model",
)
