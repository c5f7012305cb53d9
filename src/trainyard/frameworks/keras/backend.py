"""Which backend Keras computes with, and what it is pinned to; Keras is imported here, and nowhere before."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainyard.config.schema import RunConfig
from trainyard.errors import ModelError
from trainyard.require import require, spared

# The backends in the order in which they are looked for, and the extra that brings each.
BACKENDS = {"tensorflow": "keras", "jax": "keras-jax", "torch": "torch"}
_JAX_ON_CUDA = ("jax_cuda12_plugin", "jax_cuda13_plugin")


@dataclass(frozen=True)
class Backend:
    """`keras` is the module; `name` one of `BACKENDS`; `device` is `cpu` or `gpu:0` ...; `gpus` are those there are."""

    keras: Any
    name: str
    device: str
    gpus: tuple[str, ...]

    def scope(self) -> AbstractContextManager[Any]:
        """Where Keras makes variables and computes, inside the context."""
        if not self.gpus:
            return nullcontext()  # there is no choice, and Keras's own context would cost time in every step
        name = self.device.replace("gpu", "cuda") if self.name == "torch" else self.device
        context: AbstractContextManager[Any] = self.keras.device(name)
        return context

    def describe(self) -> Mapping[str, str]:
        """What of Keras and its backend the bits depend on."""
        config = self.keras.config
        found = (_version(package) for package in (self.name, f"{self.name}-cpu"))
        return {
            "keras": self.keras.__version__,
            "backend": " ".join([self.name, *[text for text in found if text][:1]]),
            "device": self.device,
            "floatx": f"{config.floatx()}, epsilon {config.epsilon()}, {config.image_data_format()}",
        }


def start(config: RunConfig, threads: int, *, trains: bool) -> Backend:
    """Imports Keras on the backend that the config asks for, and pins what the bits depend on besides the inputs.

    Args:
        trains: where it is only to predict, other threads will do.

    Raises:
        MissingExtraError: Keras or the backend is not installed.
        ModelError: Keras or the backend runs in this process already, and in another way; or there is no such device.
    """
    keras = import_keras(_asked(config))
    name = keras.config.backend()
    if name == "jax":
        _pin_jax(threads, trains=trains)
    found = _gpus(name)
    device = _device(config.training.device, name, found)
    strict = config.training.determinism == "bitwise"
    if name == "tensorflow":
        _pin_tensorflow(threads, deterministic=strict or device == "cpu", trains=trains)
    elif name == "torch":
        _pin_torch(threads, strict=strict)
    return Backend(keras, name, device, found)


def may_use_gpu(config: RunConfig) -> tuple[str, bool]:
    """The backend, and whether it would compute on a GPU; it is not started yet."""
    name = import_keras(_asked(config)).config.backend()
    if config.training.device == "cpu":
        return name, False
    if name == "jax":  # to ask it would start it, before its threads are pinned
        return name, any(find_spec(module) is not None for module in _JAX_ON_CUDA)
    return name, _device(config.training.device, name, _gpus(name)) != "cpu"


def import_keras(backend: str | None = None) -> Any:
    """The module `keras`, which computes with `backend`; None leaves the choice to KERAS_BACKEND, and to what is installed."""
    if "keras" not in sys.modules:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's errors alone, not its remarks
        chosen = backend or os.environ.get("KERAS_BACKEND") or _installed()
        if chosen is not None:
            os.environ["KERAS_BACKEND"] = chosen  # read once, while Keras is imported
        # Only its wrappers and its pictures need these, and TensorFlow takes JAX along: seconds, and a run should import no
        # framework but its own.
        with spared("sklearn", "matplotlib", *([] if (chosen or _preferred()) == "jax" else ["jax"])):
            if chosen in BACKENDS:
                require(chosen, BACKENDS[chosen])
            require("keras", "keras")
    keras: Any = require("keras", "keras")
    current = keras.config.backend()
    if backend not in (None, current):
        raise ModelError(
            f"model.params.backend: {backend} was asked for, but Keras computes with {current} already in this process; "
            f"start a new one (with KERAS_BACKEND={backend}, where your own code imports keras)"
        )
    if current not in BACKENDS:
        raise ModelError(
            f"Keras computes with {current}, which cannot train; set KERAS_BACKEND to {', '.join(BACKENDS)}"
        )
    return keras


def _asked(config: RunConfig) -> str | None:
    """The backend that the options of one of our models name; those of the user's own are not for us to read."""
    return None if ":" in config.model.type else config.model.params.get("backend")


def _installed() -> str | None:
    """What to take instead of TensorFlow, Keras's own choice, where that is not installed."""
    if find_spec("tensorflow") is not None:
        return None
    return next((name for name in BACKENDS if find_spec(name) is not None), None)


def _preferred() -> str | None:
    """What Keras's own settings name, as it reads them."""
    file = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "keras.json"
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["backend"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _gpus(backend: str) -> tuple[str, ...]:
    """The GPUs that the backend sees, as Keras calls them."""
    library: Any = require(backend, BACKENDS[backend])
    if backend == "tensorflow":
        count = len(library.config.list_physical_devices("GPU"))
    elif backend == "jax":
        count = sum(device.platform == "gpu" for device in library.devices())
    else:
        count = library.cuda.device_count()
    return tuple(f"gpu:{number}" for number in range(count))


def _device(asked: str, backend: str, found: tuple[str, ...]) -> str:
    """What `training.device` means here."""
    if asked == "auto":
        return found[0] if found else "cpu"
    wanted = "cpu" if asked == "cpu" else f"gpu:{asked.partition(':')[2] or 0}"
    if wanted not in ("cpu", *found):
        raise ModelError(
            f"training.device: {asked} was asked for, but Keras ({backend}) sees {', '.join(found) or 'no CUDA device'}; "
            "use cpu or auto"
        )
    return wanted


def _pin_tensorflow(threads: int, *, deterministic: bool, trains: bool) -> None:
    config: Any = require("tensorflow", "keras").config
    try:
        config.threading.set_intra_op_parallelism_threads(threads)
        config.threading.set_inter_op_parallelism_threads(
            threads
        )  # operations side by side: of these no bit depends
    except RuntimeError:  # TensorFlow has begun to compute, and these are settled
        if trains:
            _refuse_other_threads("TensorFlow", threads, config.threading.get_intra_op_parallelism_threads())
    if deterministic:
        config.experimental.enable_op_determinism()


def _pin_torch(threads: int, *, strict: bool) -> None:
    torch: Any = require("torch", "torch")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS is not deterministic
    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode("error" if strict else "warn")
    torch.backends.cudnn.benchmark = False


_jax_threads = 0  # those that it was started with by us


def _pin_jax(threads: int, *, trains: bool) -> None:
    """JAX makes its threads with its first array: as many as NPROC says then."""
    global _jax_threads  # noqa: PLW0603 - it is the process that has them
    bridge = require("jax._src.xla_bridge", "keras-jax")
    if bridge.backends_are_initialized():
        if trains:
            _refuse_other_threads("JAX", threads, _jax_threads)
        return
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = str(threads)
    try:
        require("jax", "keras-jax").devices()
        _jax_threads = threads
    finally:
        os.environ.pop("NPROC")
        if before is not None:
            os.environ["NPROC"] = before


def _refuse_other_threads(library: str, asked: int, now: int) -> None:
    """`now` is 0 where the library took all processors."""
    now = now or len(os.sched_getaffinity(0))
    if now != asked:
        raise ModelError(
            f"training.threads: {asked} are asked for, but {library} computes with {now} already in this process, and cannot "
            f"change that; set {now}, or start a new process and tell {library} before anything is made with it"
        )
