"""Import Keras with a backend, find its device, and pin the backend's threads and determinism.

No other module imports Keras before this one does.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainwright.config.schema import RunConfig
from trainwright.errors import ModelError
from trainwright.order import INIT, stream_seed
from trainwright.process.environ import temporary_environment
from trainwright.require import installed_version, require, spared

log = logging.getLogger("trainwright")
# What TensorFlow logs at its start: `I0000 ...`, and the lines around it.
_CHATTER = re.compile(rb"I\d{4} |WARNING: All log messages before absl|To enable the following instructions")
# The supported backends in order of preference -> the extra that installs each.
BACKENDS = {"tensorflow": "keras", "jax": "keras-jax", "torch": "torch"}
_JAX_ON_CUDA = ("jax_cuda12_plugin", "jax_cuda13_plugin")


@dataclass(frozen=True)
class Backend:
    """A running backend of Keras.

    `keras` is the imported module, `name` one of `BACKENDS`, `device` is `cpu` or `gpu:0` ..., and `gpus`
    lists the GPUs that the backend sees.
    """

    keras: Any
    name: str
    device: str
    gpus: tuple[str, ...]

    def scope(self) -> AbstractContextManager[Any]:
        """Return a context inside which Keras creates variables and computes on the device."""
        if not self.gpus:
            # The CPU is the only device, and Keras's own context costs time in every step.
            return nullcontext()
        name = self.device.replace("gpu", "cuda") if self.name == "torch" else self.device
        context: AbstractContextManager[Any] = self.keras.device(name)
        return context

    def describe(self) -> Mapping[str, str]:
        """Return the versions and settings of Keras and its backend that the bits depend on."""
        config = self.keras.config
        versions = (installed_version(package) for package in (self.name, f"{self.name}-cpu"))
        return {
            "keras": self.keras.__version__,
            "backend": " ".join([self.name, *[text for text in versions if text][:1]]),
            "device": self.device,
            "floatx": f"{config.floatx()}, epsilon {config.epsilon()}, {config.image_data_format()}",
        }


def current(config: RunConfig) -> Backend:
    """Import Keras with the backend that the config names, and find its device.

    Raises:
        MissingExtraError: Keras or the backend is not installed.
        ModelError: This process already uses another backend, or the device does not exist.
    """
    keras = import_keras(_configured_backend(config))
    name = keras.config.backend()
    gpus = _gpus(name)
    return Backend(keras, name, _device(config.training.device, name, gpus), gpus)


def pin(config: RunConfig, threads: int) -> None:
    """Pin the number of threads of the backend that the config names, and its determinism.

    Raises:
        MissingExtraError: Keras or the backend is not installed.
        ModelError: This process already uses another backend or number of threads, or the device does not
            exist.
    """
    if import_keras(_configured_backend(config)).config.backend() == "jax":
        _pin_jax(threads)  # which `current` would start with other threads
    backend, strict = current(config), config.training.determinism == "bitwise"
    if backend.name == "tensorflow":
        _pin_tensorflow(
            threads,
            deterministic=strict or backend.device == "cpu",
            seed=init_seed(config),
        )
    elif backend.name == "torch":
        _pin_torch(threads, strict=strict)


def may_use_gpu(config: RunConfig) -> tuple[str, bool]:
    """Return the backend's name, and whether it may compute on a GPU, without starting the backend."""
    name = import_keras(_configured_backend(config)).config.backend()
    if config.training.device == "cpu":
        return name, False
    if name == "jax":  # listing its devices would start it before its threads are pinned
        return name, any(find_spec(module) is not None for module in _JAX_ON_CUDA)
    return name, _device(config.training.device, name, _gpus(name)) != "cpu"


def import_keras(backend: str | None = None) -> Any:
    """Import and return the module `keras`.

    Args:
        backend: One of `BACKENDS`; None takes KERAS_BACKEND or, without it, an installed backend.

    Raises:
        MissingExtraError: Keras or the backend is not installed.
        ModelError: Keras already uses another backend in this process, or one that cannot train.
    """
    if "keras" not in sys.modules:
        chosen = backend or os.environ.get("KERAS_BACKEND") or _installed()
        level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow logs errors only
        # Keras imports sklearn and matplotlib for wrappers and plots, and TensorFlow imports JAX. That takes
        # seconds, and a run should import no framework but its own.
        hidden = spared("sklearn", "matplotlib", *([] if (chosen or _preferred()) == "jax" else ["jax"]))
        variables = {"TF_CPP_MIN_LOG_LEVEL": level, "KERAS_BACKEND": chosen}
        with hidden, _without_chatter(), temporary_environment(variables):
            if chosen in BACKENDS:
                require(chosen, BACKENDS[chosen])
            require("keras", "keras")
    keras: Any = require("keras", "keras")
    current = keras.config.backend()
    if backend is None and current != (wanted := _default_backend()):
        raise ModelError(
            f"Keras already uses {current} in this process, and this run would use {wanted}, as nothing "
            f"names another: start a new process, or set KERAS_BACKEND={current}"
        )
    if backend not in (None, current):
        raise ModelError(
            f"model.params.backend: {backend} given, but Keras already uses {current} in this process; "
            f"start a new process (with KERAS_BACKEND={backend}, if your own code imports keras)"
        )
    if current not in BACKENDS:
        raise ModelError(
            f"Keras uses the backend {current}, which cannot train; "
            f"set KERAS_BACKEND to one of {', '.join(BACKENDS)}"
        )
    return keras


def _configured_backend(config: RunConfig) -> str | None:
    """Return the backend that the options of a built-in model name; a user's model has options of its own."""
    return None if ":" in config.model.type else config.model.params.get("backend")


def _default_backend() -> str:
    """Return the backend that a fresh process uses where the config names none."""
    return os.environ.get("KERAS_BACKEND") or _installed() or _preferred() or next(iter(BACKENDS))


def _installed() -> str | None:
    """Return an installed backend to use if TensorFlow, Keras's default, is missing; None if it is not."""
    if find_spec("tensorflow") is not None:
        return None
    return next((name for name in BACKENDS if find_spec(name) is not None), None)


def own_settings() -> Mapping[str, Any]:
    """Return the content of Keras's own settings file; empty if there is none."""
    file = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "keras.json"
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def reset_settings() -> None:
    """Restore the settings that Keras and JAX have after their import, and forget the names of layers."""
    keras, mine = require("keras", "keras"), own_settings()
    keras.utils.clear_session(free_memory=False)
    keras.config.set_floatx(mine.get("floatx", "float32"))
    keras.config.set_epsilon(mine.get("epsilon", 1e-7))
    keras.config.set_image_data_format(mine.get("image_data_format", "channels_last"))
    keras.config.set_dtype_policy(keras.config.floatx())
    keras.saving.get_custom_objects().clear()
    if (jax := sys.modules.get("jax")) is not None:
        jax.config.update("jax_enable_x64", os.environ.get("JAX_ENABLE_X64", "0").lower() in ("1", "true"))
        jax.config.update("jax_default_matmul_precision", os.environ.get("JAX_DEFAULT_MATMUL_PRECISION"))


def _preferred() -> str | None:
    """Return the backend named in Keras's own settings file, if there is one."""
    backend = own_settings().get("backend")
    return None if backend is None else str(backend)


def _gpus(backend: str) -> tuple[str, ...]:
    """Return Keras's names of the GPUs that the backend sees."""
    library: Any = require(backend, BACKENDS[backend])
    if backend == "tensorflow":
        count = len(library.config.list_physical_devices("GPU"))
    elif backend == "jax":
        count = sum(device.platform == "gpu" for device in library.devices())
    else:
        count = library.cuda.device_count()
    return tuple(f"gpu:{number}" for number in range(count))


def _device(configured: str, backend: str, gpus: tuple[str, ...]) -> str:
    """Return Keras's name of the device that `training.device` means."""
    if configured == "auto":
        return gpus[0] if gpus else "cpu"
    device = "cpu" if configured == "cpu" else f"gpu:{configured.partition(':')[2] or 0}"
    if device not in ("cpu", *gpus):
        available = ", ".join(gpus) or "no CUDA device"
        raise ModelError(
            f"training.device: {configured} given, but Keras ({backend}) sees {available}; use cpu or auto"
        )
    return device


def init_seed(config: RunConfig) -> int:
    """Return the seed under which a run's model is built; backends accept seeds of 31 bits."""
    return stream_seed(config.experiment.seed, INIT) & 0x7FFFFFFF


def _pin_tensorflow(threads: int, *, deterministic: bool, seed: int) -> None:
    """Set TensorFlow's thread counts and seed, and turn deterministic kernels on or off."""
    tensorflow: Any = require("tensorflow", "keras")
    config = tensorflow.config
    tensorflow.random.set_seed(seed)  # a layer of the user's may draw constants when it is built
    if deterministic:
        config.experimental.enable_op_determinism()
    else:  # an earlier run may have turned them on; the public API cannot turn them off
        require("tensorflow.python.framework.config", "keras").disable_op_determinism()
    try:
        config.threading.set_intra_op_parallelism_threads(threads)
        config.threading.set_inter_op_parallelism_threads(threads)  # does not affect the bits
    except RuntimeError:  # TensorFlow has already started, after which its thread counts are fixed
        _refuse_other_threads("TensorFlow", threads, config.threading.get_intra_op_parallelism_threads())


def _pin_torch(threads: int, *, strict: bool) -> None:
    """Set torch's thread count and determinism; if `strict`, operations that are not deterministic raise."""
    torch: Any = require("torch", "torch")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS is not deterministic
    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode("error" if strict else "warn")
    torch.backends.cudnn.benchmark = False


_jax_threads = 0  # the thread count with which this module started JAX


def _pin_jax(threads: int) -> None:
    """Start JAX with a thread count; it reads NPROC when it starts, and cannot change the count later."""
    global _jax_threads  # noqa: PLW0603 - the thread pool belongs to the process
    bridge = require("jax._src.xla_bridge", "keras-jax")
    if bridge.backends_are_initialized():
        _refuse_other_threads("JAX", threads, _jax_threads)
        return
    with temporary_environment({"NPROC": str(threads)}):
        require("jax", "keras-jax").devices()
    _jax_threads = threads


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Keep back what TensorFlow logs while it is imported, unless the log shows debugging messages.

    It writes to the descriptor before its own log levels hold. Anything else that is written is shown.
    """
    if log.isEnabledFor(logging.DEBUG):
        yield
        return
    with tempfile.TemporaryFile() as kept:
        stderr = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            kept.seek(0)
            for line in kept:
                if not _CHATTER.match(line):
                    os.write(2, line)


def _refuse_other_threads(library: str, configured: int, current: int) -> None:
    """Raise a ModelError if a running library has another thread count; 0 means one per available CPU."""
    current = current or len(os.sched_getaffinity(0))
    if current != configured:
        raise ModelError(
            f"training.threads: {configured} given, but {library} already runs with {current} threads in "
            f"this process and cannot change that; set {current}, or start a new process in which "
            f"{library} has not been used yet"
        )
