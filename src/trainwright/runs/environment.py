"""The numeric environment of a run: what its arithmetic depends on besides its inputs."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import platform
import re
import sys
from collections.abc import Collection, Mapping
from functools import cache, lru_cache
from pathlib import Path

from trainwright.digest import sha256_json
from trainwright.process.module_sources import imported_so_far
from trainwright.records.manifest import Environment, NumericEnvironment
from trainwright.runs.resolved_cpu import normalized, resolved
from trainwright.world import ALONE, Mesh

# Distributions whose names are not those of their modules.
_DISTRIBUTIONS = {"sklearn": "scikit-learn", "PIL": "pillow", "google": "protobuf", "cv2": "opencv-python"}

_NAME = re.compile(r"[A-Za-z0-9._-]+")  # of a distribution, at the start of a requirement

# Environment variables that may change what libraries compute.
_FLAGS = (
    "XLA_",
    "JAX_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "CUBLAS_",
    "CUDA_VISIBLE",
    "NVIDIA_TF32",
    "TF_ENABLE_",
    "TF_DETERMINISTIC",
    "TF_CUDNN",
    "TF_XLA",
    "ONEDNN_",
    "DNNL_",
    "ATEN_",
    "KMP_",
    "TORCH_",
    "PYTORCH_",
    "PYTHONHASHSEED",
    "NPY_",
    "GLIBC_TUNABLES",
    "GOTO_",
    "GOMP_",
    "BLIS_",
    "VECLIB_",
    "MKLDNN_",
    "LIBXSMM_",
    "ARM_PL_",
    "CUDNN_",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "ROCBLAS_",
    "MIOPEN_",
    "TORCHINDUCTOR_",
    "TRITON_",
    "TF_USE_",
    "TF_CPU_",
    "TF_DISABLE_",
    "TF_NUM_",
)
# Folders of what was compiled; torch sets those of its compilers itself, sooner or later in a process.
_FOLDERS = ("_CACHE_DIR", "_HOME")


# Where /proc/cpuinfo lists the extensions of instruction sets (x86, ARM), and how those for arithmetic begin.
_EXTENSIONS = {
    "flags": ("sse", "ssse", "avx", "fma", "f16c", "amx"),
    "Features": ("fp", "asimd", "sve", "sme", "bf16", "i8mm"),
}


@cache
def machine_identity() -> str:
    """Return the SHA-256 of what arithmetic depends on besides the run: Python, packages, processor."""
    return sha256_json([platform.python_version(), _system(), _cpu(), _instructions(), packages()])


def environment_inputs(
    threads: int, framework: Mapping[str, str], prepared_by: Collection[str] = (), mesh: Mesh = ALONE.mesh
) -> Environment:
    """Return the numeric environment, and what surrounds it.

    Args:
        threads: The number of CPU threads that the run is pinned to.
        framework: The framework's own part.
        prepared_by: The distributions that another process imported to prepare the data.
        mesh: The processes of the attempt.
    """
    installed = packages()
    imported = sorted({*imported_packages(), *(name for name in prepared_by if name in installed)})
    numeric = NumericEnvironment(
        python=platform.python_version(),
        system=_system(),
        cpu=_cpu(),
        instructions=_instructions(),
        threads=threads,
        framework=dict(framework),
        flags=normalized(_flags()),
        resolved=resolved(),
        imported={name: installed[name] for name in imported},
    )
    return Environment(
        **dict(numeric),
        hash=sha256_json(numeric.to_json()),
        platform=platform.platform(),
        mesh=mesh._asdict(),
        packages=installed,
    )


def _flags() -> dict[str, str]:
    named = {key: value for key, value in os.environ.items() if key.startswith(_FLAGS)}
    return {key: value for key, value in named.items() if not key.endswith(_FOLDERS)}


@cache
def packages() -> dict[str, str]:
    """Return the installed distributions and their versions.

    Only the first lines of their metadata are read: `importlib.metadata` parses all of each file, which takes
    a fifth of a second in total.
    """
    found: dict[str, str] = {}
    for metadata in (
        file for folder in sys.path for file in sorted(Path(folder).glob("*.dist-info/METADATA"))
    ):
        with open(metadata, encoding="utf-8", errors="replace") as lines:
            head = dict(
                line.rstrip("\n").split(": ", 1)
                for line in itertools.takewhile(str.strip, lines)
                if ": " in line
            )
        if "Name" in head and "Version" in head:
            found.setdefault(head["Name"], head["Version"])
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def imported_packages() -> list[str]:
    """Return the distributions whose modules this process has imported, as far as their names tell.

    Trainwright, which `semantics` identify, is left out. So is what only its records and commands need (a
    report imports Jinja2): it changes no number, and depends on what the process did before. A distribution
    is found by the name of its module, so one that is called otherwise must be in `_DISTRIBUTIONS`;
    `importlib.metadata.packages_distributions` knows all, but reads the list of files of every installed
    package.
    """
    return list(_imported_packages(imported_so_far()))


@lru_cache(maxsize=1)
def _imported_packages(so_far: tuple[int, str, int]) -> list[str]:  # noqa: ARG001 - the key of the cache
    """Return the packages; a process of many runs has imported all of them for the first one."""
    known = {_normalized(name): name for name in packages()}
    tops = {name.partition(".")[0] for name in list(sys.modules)}
    names = {_normalized(_DISTRIBUTIONS.get(top, top)) for top in tops} - _own_requirements()
    return sorted(known[name + suffix] for name in names for suffix in ("", "-cpu") if name + suffix in known)


@cache
def _own_requirements() -> frozenset[str]:
    """Return Trainwright, what it requires without any extra, and what that requires, but for NumPy."""
    names, waiting = {"trainwright"}, ["trainwright"]
    while waiting:
        requirements = _requirements(waiting.pop())
        needed = {_normalized(_NAME.match(text)[0]) for text in requirements if "extra ==" not in text}  # type: ignore[index]
        waiting += needed - names - {"numpy"}
        names |= needed
    return frozenset(names - {"numpy"})


def _requirements(name: str) -> list[str]:
    """Return what an installed distribution requires; as in `packages`, only the head of a file is read."""
    try:
        installed = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return []
    text = installed.read_text("METADATA")
    if text is None:  # another format
        return installed.requires or []
    head = itertools.takewhile(str.strip, text.splitlines())
    return [line.partition(": ")[2] for line in head if line.startswith("Requires-Dist: ")]


def _normalized(name: str) -> str:
    return name.lower().replace("_", "-")


@cache
def _system() -> str:
    """Return operating system, machine and C library, whose `exp` or `log` may differ in the last bits."""
    library = " ".join(platform.libc_ver()).strip() or platform.release()
    return f"{platform.system()} {platform.machine()}, {library}"


def _cpu() -> str:
    names = _cpuinfo("model name")
    return names[0] if names else platform.processor() or platform.machine()


def _instructions() -> list[str] | None:
    """Return the extensions of the instruction set that arithmetic uses; None where the system does not say.

    A virtual machine may hide some, so processors of one name can compute differently.
    """
    for key, beginnings in _EXTENSIONS.items():
        if values := _cpuinfo(key):
            return sorted(name for name in values[0].split() if name.startswith(beginnings))
    return None


@cache
def _cpuinfo(key: str) -> list[str]:
    """Return the values of a key of /proc/cpuinfo, one for each processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [
        value.strip() for name, _, value in (line.partition(":") for line in lines) if name.strip() == key
    ]
