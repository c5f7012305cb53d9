"""Options of optimizers that several frameworks share; readable without any framework's library."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainyard.config.fields import Section

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
