"""The precision of a step: autocast to 16 bits, the gradient scaler of fp16, and TF32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """One of `fp32`, `tf32`, `bf16`, `fp16` and `mixed` (fp16 on CUDA, bf16 elsewhere) on a device.

    `name` is the precision that is used, never `mixed`; `tf32` is that of CUDA alone, set by `pin`. Weights
    stay in float32. fp16 scales the loss, so that small gradients do not vanish, and skips steps whose
    gradients overflow (Micikevicius et al., 2018).
    """

    def __init__(self, name: str, device: torch.device) -> None:
        if name == "mixed":
            name = "fp16" if device.type == "cuda" else "bf16"
        if name == "tf32" and device.type != "cuda":
            name = "fp32"
        self.name = name
        self._device = device.type
        self._dtype = _DTYPES.get(name)
        self.scaler: Any = torch.amp.GradScaler(self._device) if name == "fp16" else None

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context manager of a forward pass."""
        return torch.autocast(self._device, dtype=self._dtype) if self._dtype else nullcontext()

    def state(self) -> dict[str, torch.Tensor]:
        """Return the scaler's state as tensors."""
        if self.scaler is None:
            return {}
        return {
            key: torch.tensor(value, dtype=torch.float64) for key, value in self.scaler.state_dict().items()
        }

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Restore the scaler; keep a fresh one if the parent had none."""
        if self.scaler is not None and state:
            integers = {"growth_interval", "_growth_tracker"}
            self.scaler.load_state_dict(
                {k: int(v.item()) if k in integers else v.item() for k, v in state.items()}
            )
