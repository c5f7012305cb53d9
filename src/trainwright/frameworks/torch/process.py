"""The device of a run, and what its bits depend on in the process."""

from __future__ import annotations

import os

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
    if torch.cuda.is_available():  # products of matrices; convolutions use TF32 by torch's default
        torch.backends.cuda.matmul.allow_tf32 = config.training.precision == "tf32"
