"""The instructions that the numeric libraries resolved from the processor and the environment.

Only libraries that the process has already imported are asked; nothing is imported for it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_SUFFIXES = ("64_", "")  # of the names of OpenBLAS with integers of 64 bits, and of 32


def resolved() -> dict[str, str]:
    """Return the instructions and modes that libraries use, by library."""
    found: dict[str, str] = {}
    for name, ask in _QUESTIONS.items():
        with suppress(Exception):  # another version of a library may answer otherwise, or not at all
            if (answer := ask()) is not None:
                found[name] = answer
    for path in _loaded():
        with suppress(Exception):
            found |= _from_library(path)
    return found


def normalized(variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables without what changes no number, and each in one spelling."""
    kept = dict(variables)
    if (tunables := kept.pop("GLIBC_TUNABLES", None)) is not None:
        parts = dict(part.partition("=")[::2] for part in tunables.split(":"))
        of_cpu = {name: value for name, value in parts.items() if name.startswith("glibc.cpu.")}
        text = ":".join(f"{name}={','.join(sorted(of_cpu[name].split(',')))}" for name in sorted(of_cpu))
        kept |= {"GLIBC_TUNABLES": text} if text else {}
    if (flags := kept.get("XLA_FLAGS")) is not None:
        named = {flag.partition("=")[0]: flag for flag in flags.split()}  # the last one of a name counts
        kept["XLA_FLAGS"] = " ".join(named[name] for name in sorted(named))
    return {name: value for name, value in sorted(kept.items()) if value != ""}


def _numpy() -> str | None:
    umath = sys.modules.get("numpy._core._multiarray_umath")
    if umath is None:
        return None
    return " ".join(sorted(name for name, is_used in vars(umath)["__cpu_features__"].items() if is_used))


def _aten() -> str | None:
    torch: Any = sys.modules.get("torch")
    return None if torch is None else str(torch.backends.cpu.get_cpu_capability())


def _tensorflow() -> str | None:
    util: Any = sys.modules.get("tensorflow.python.util._pywrap_util_port")
    return None if util is None else ("on" if util.IsMklEnabled() else "off")


_QUESTIONS: Mapping[str, Callable[[], str | None]] = {
    "numpy": _numpy,
    "aten": _aten,
    "tensorflow onednn": _tensorflow,
}


def _loaded() -> list[str]:
    """Return the files of the libraries of linear algebra that the process has loaded; none where unknown."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # outside Linux
        return []
    paths = dict.fromkeys(
        line.split(maxsplit=5)[5] for line in lines if "openblas" in line or "torch_cpu" in line
    )
    return [path for path in paths if ".so" in path]


def _from_library(path: str) -> dict[str, str]:
    """Return what a loaded library of linear algebra says of the code that it runs."""
    found = {}
    library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    for symbol in (f"{scipy}openblas_get_corename{end}" for scipy in ("scipy_", "") for end in _SUFFIXES):
        if (core := getattr(library, symbol, None)) is not None:
            core.restype = ctypes.c_char_p
            found[f"openblas of {Path(path).parent.name}"] = core().decode()
            break
    if (mode := getattr(library, "mkl_serv_cbwr_get", None)) is not None:
        found["mkl"] = f"conditional numerical reproducibility {mode(-1)}"
    return found
