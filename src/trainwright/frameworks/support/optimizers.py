"""Options of optimizers that several frameworks share; readable without any framework's library."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainwright.config.fields import Section
from trainwright.config.spellings import Refusal, Setting, Spellings, each, spelled

Share = Annotated[float, Field(ge=0, lt=1)]
Betas = Annotated[list[Share], Field(min_length=2, max_length=2)]


class AdamParams(Section):
    """Adam (Kingma and Ba, 2015), and AdamW with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    betas: Betas = Field(default_factory=lambda: [0.9, 0.999])
    eps: float = Field(1e-8, gt=0)
    amsgrad: bool = False


class RmspropParams(Section):
    """RMSprop (Tieleman and Hinton, 2012)."""

    alpha: Share = 0.99
    eps: float = Field(1e-8, gt=0)
    momentum: Share = 0.0
    centered: bool = False


_KERNEL = "the fastest kernel is chosen, as long as its bits are the same"

# The names of torch and of Keras. Those of Keras mean the same under torch, and the other way round.
SPELLINGS = Spellings(
    aliases={
        **spelled({"eps": "epsilon", "alpha": "rho smoothing_constant", "momentum": "momentum_factor"}),
        **each("beta_1 beta1 b1 adam_beta1", "betas.0"),
        **each("beta_2 beta2 b2 adam_beta2", "betas.1"),
        "adam_epsilon": "eps",
    },
    settings={
        **each("lr learning_rate", Setting("training.learning_rate")),
        **each("weight_decay", Setting("training.weight_decay")),
        **each(
            "clipnorm global_clipnorm max_grad_norm clip_norm gradient_clip_val",
            Setting("training.max_grad_norm"),
        ),
        **each("clipvalue clip_value", Setting("training.max_grad_value")),
    },
    unused={
        **each("foreach fused capturable differentiable jit_compile", _KERNEL),
        "name": "the optimizer needs no name",
    },
    refused={
        **each("decay schedule", Refusal("write training.scheduler: linear, cosine, step ...", (0, 0.0))),
        "maximize": Refusal("a loss is minimized; return its negative", (False,)),
        **each(
            "use_ema ema_momentum ema_overwrite_frequency",
            Refusal("write training.ema: 0.999, under torch", (False, None)),
        ),
        "loss_scale_factor": Refusal("losses are scaled by training.precision: fp16"),
        "gradient_accumulation_steps": Refusal("write training.microbatch_size: a part of batch_size"),
    },
)
