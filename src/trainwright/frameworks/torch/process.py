"""The device of a run, and what its bits depend on in the process."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import Any

import torch

from trainwright.config.schema import RunConfig
from trainwright.errors import ModelError


def device_of(name: str) -> torch.device:
    """Return the device that `training.device` means.

    Raises:
        ModelError: There is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(
            f"training.device: {name} was requested, but torch sees no CUDA device; use cpu or auto"
        )
    return torch.device(name)


def device_model(device: torch.device) -> str:
    """Return `cpu`, or the model of the GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def pin(config: RunConfig, threads: int) -> None:
    """Set the number of threads and the determinism of algorithms."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS is not deterministic
    torch.set_num_threads(threads)
    # The same as use_deterministic_algorithms(True), which takes two seconds since it imports the compiler.
    torch.set_deterministic_debug_mode("error" if config.training.determinism == "bitwise" else "warn")
    # Filling memory costs time, and we read none that is uninitialized.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    # Another kernel of attention for evaluations, which torch takes or not by whether layers have hooks.
    torch.backends.mha.set_fastpath_enabled(False)
    if torch.cuda.is_available():  # products of matrices; convolutions use TF32 by torch's default
        torch.backends.cuda.matmul.allow_tf32 = config.training.precision == "tf32"


def reset_settings() -> None:
    """Give torch the settings that it has after its import, which code of the user's may have changed."""
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
