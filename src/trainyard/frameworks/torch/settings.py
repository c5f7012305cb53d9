"""The settings of torch that code of the user's may change for the whole process."""

from __future__ import annotations

from typing import Any

import torch


def reset() -> None:
    """Give torch the settings that it has after its import."""
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_float32_matmul_precision("highest")
    torch.set_deterministic_debug_mode("default")
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    torch.set_flush_denormal(False)
    torch.set_grad_enabled(True)
    torch.set_anomaly_enabled(False)
    for device in ("cpu", "cuda"):
        torch.set_autocast_enabled(device, False)
    _reset_backends()


def _reset_backends() -> None:
    cudnn: Any = torch.backends.cudnn
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = True, False, False, True
    cuda: Any = torch.backends.cuda
    cuda.matmul.allow_fp16_reduced_precision_reduction = True
    cuda.matmul.allow_bf16_reduced_precision_reduction = True
    for kernel in ("flash", "mem_efficient", "math", "cudnn"):  # of scaled dot-product attention
        getattr(cuda, f"enable_{kernel}_sdp")(True)
