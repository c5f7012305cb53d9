"""The precision of a step: autocast to 16 bits, the loss scale of fp16, and TF32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_FIRST_SCALE = 65536.0
_GROWTH, _BACKOFF = 2.0, 0.5  # of the scale: after `_PATIENCE` steps without overflow, and after one with
_PATIENCE = 2000


class LossScale:
    """The factor on the loss of fp16, a power of 2; steps whose gradients overflow are skipped.

    Small gradients do not vanish so (Micikevicius et al., 2018). The rule is that of torch's `GradScaler`,
    which knows no gradients that several processes have together.

    Args:
        device: Where the losses are.
    """

    def __init__(self, device: torch.device) -> None:
        self._scale = torch.full((), _FIRST_SCALE, device=device)
        self._steps = torch.zeros((), dtype=torch.int32, device=device)  # without overflow, since it changed

    def scaled(self, loss: Tensor) -> Tensor:
        """Return a loss, (), times the factor."""
        return loss * self._scale

    def unscale(self, gradients: Sequence[Tensor], agree: Callable[[Tensor], Tensor]) -> Tensor:
        """Divide gradients by the factor, in place, and set that of the next step.

        Args:
            gradients: Those that this process has.
            agree: Returns the largest of the values, (), that all processes pass.

        Returns:
            () 1.0 if any process has a gradient that is not finite, else 0.0.
        """
        overflow, inverse = torch.zeros_like(self._scale), self._scale.double().reciprocal().float()
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for one in gradients:
            by_dtype.setdefault(one.dtype, []).append(one._values() if one.is_sparse else one)
        for some in by_dtype.values():
            torch._amp_foreach_non_finite_check_and_unscale_(some, overflow, inverse)
        overflow = agree(overflow)
        torch._amp_update_scale_(self._scale, self._steps, overflow, _GROWTH, _BACKOFF, _PATIENCE)
        return overflow

    def state(self) -> dict[str, Tensor]:
        """Return the state as tensors."""
        return {"scale": self._scale.double(), "steps": self._steps.double()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore the state."""
        self._scale.copy_(state["scale"])
        self._steps.copy_(state["steps"])


class Precision:
    """One of `fp32`, `tf32`, `bf16`, `fp16` and `mixed` (fp16 on CUDA, bf16 elsewhere) on a device.

    `name` is the precision that is used, never `mixed`; `tf32` is that of CUDA alone, set by `pin`. Weights
    stay in float32. fp16 has a `scale` of the loss.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        if name == "mixed":
            name = "fp16" if device.type == "cuda" else "bf16"
        if name == "tf32" and device.type != "cuda":
            name = "fp32"
        self.name = name
        self._device = device.type
        self._dtype = _DTYPES.get(name)
        self.scale = LossScale(device) if name == "fp16" else None

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context manager of a forward pass."""
        return torch.autocast(self._device, dtype=self._dtype) if self._dtype else nullcontext()

    def state(self) -> dict[str, torch.Tensor]:
        """Return the state of the loss scale as tensors."""
        return {} if self.scale is None else self.scale.state()

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Restore the loss scale; keep a fresh one if the parent had none."""
        if self.scale is not None and state:
            self.scale.load(state)
