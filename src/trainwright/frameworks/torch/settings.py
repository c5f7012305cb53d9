"""The settings of torch that code of the user's may change for the whole process."""

from __future__ import annotations

from functools import cache
from importlib import import_module
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
    _remove_global_hooks()


def _reset_backends() -> None:
    cudnn: Any = torch.backends.cudnn
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = True, False, False, True
    cuda: Any = torch.backends.cuda
    cuda.matmul.allow_fp16_reduced_precision_reduction = True
    cuda.matmul.allow_bf16_reduced_precision_reduction = True
    for kernel in ("flash", "mem_efficient", "math", "cudnn"):  # of scaled dot-product attention
        getattr(cuda, f"enable_{kernel}_sdp")(True)
    torch.backends.mha.set_fastpath_enabled(True)
    mkldnn: Any = torch.backends.mkldnn
    mkldnn.set_flags(True)
    for part in (mkldnn.conv, mkldnn.rnn):
        part.fp32_precision = "none"


def _remove_global_hooks() -> None:
    """Remove the hooks that run for every module and every optimizer of the process."""
    for hooks in _global_hooks():
        hooks.clear()
    torch.nn.modules.module._global_is_full_backward_hook = None


@cache
def _global_hooks() -> list[dict[Any, Any]]:
    modules = map(import_module, ("torch.nn.modules.module", "torch.optim.optimizer"))
    held = (item for module in modules for item in vars(module).items())
    return [hooks for name, hooks in held if name.startswith("_global_") and isinstance(hooks, dict)]
