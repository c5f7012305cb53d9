"""What identifies the data, the code and the environment of a run."""

from __future__ import annotations

import ast
import importlib.metadata
import itertools
import logging
import os
import platform
import re
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from trainyard import registry
from trainyard.datasets.base import DataBundle, known_arrays
from trainyard.datasets.rows.corrupt import in_words
from trainyard.digest import array_buffer, digest, sha256_bytes, sha256_file, sha256_json, tensor_records
from trainyard.module_sources import source_hash
from trainyard.records.manifest import (
    CodeIdentity,
    DataIdentity,
    Environment,
    GitState,
    NumericEnvironment,
    SplitIdentity,
)
from trainyard.registry import task_for
from trainyard.require import import_rule
from trainyard.types import SplitName
from trainyard.version import VERSION

log = logging.getLogger("trainyard")
Json = dict[str, Any]
_NOTED = 16  # digits of the SHA-256 of a shard: the whole ones are in that of its split
REMOVED = "removed"  # instead of the hash of a source that is gone

# Distributions that are not called like their modules.
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
)


# Where /proc/cpuinfo lists the extensions of instruction sets (x86, ARM), and how those for arithmetic begin.
_EXTENSIONS = {
    "flags": ("sse", "ssse", "avx", "fma", "f16c", "amx"),
    "Features": ("fp", "asimd", "sve", "sme", "bf16", "i8mm"),
}


def data_inputs(bundle: DataBundle) -> DataIdentity:
    """Return what identifies the data: a fingerprint of each split, as the model sees it."""
    info = bundle.info
    splits = {
        str(name): SplitIdentity(rows=len(split), sha256=split.fingerprint())
        for name, split in bundle.splits.items()
    }
    content: dict[str, Any] = {name: split.to_json() for name, split in splits.items()}
    if bundle.sampling is not None:
        content["sampling"] = digest(tensor_records([array_buffer("weights", bundle.sampling)]))
    return DataIdentity(
        hash=sha256_json(content),
        splits=splits,
        rows={name: same for name in bundle.splits if (same := _row_identity(bundle, name)) is not None},
        preparation=_fitted(bundle),
        task=info.task,
        target=info.target,
        features=[str(name) for name in info.feature_names],
        classes=None if info.classes is None else [str(label) for label in info.classes],
        content_hashed=bundle.content_hashed,
        files={name: sha256[:_NOTED] for name, sha256 in bundle.files.items()},
        warnings=[*bundle.warnings, *([in_words(bundle.skipped)] if bundle.skipped else [])],
        repeated=list(bundle.repeated),
    )


def _fitted(bundle: DataBundle) -> str | None:
    """Return the SHA-256 of what was fitted to the training rows to prepare rows; None if nothing was."""
    plain = {} if bundle.preparation is None else bundle.preparation.to_json()
    fitted = plain.get("columns", plain.get("tokenizer"))
    return None if fitted is None else sha256_json(fitted)


def _row_identity(bundle: DataBundle, name: SplitName) -> str | None:
    """Return the SHA-256 of the targets of a split and of its positions in the source.

    It is equal for the same rows, however their features were prepared; None if a split does not hold its
    targets.
    """
    known = known_arrays(bundle.splits[name])
    if known is None:
        return None
    targets = known[task_for(bundle.info).target]
    # Some frameworks get values in float64.
    arrays = {"targets": targets.astype(np.float32) if targets.dtype == np.float64 else targets}
    if name in bundle.rows:
        arrays["positions"] = bundle.rows[name]
    return digest(tensor_records(array_buffer(key, array) for key, array in arrays.items()))


def code_inputs(roots: Collection[str], working_directory: Path) -> CodeIdentity:
    """Return what identifies the code.

    It is the sources of the user's modules that `roots` (module names) lead to, as they were imported.

    Trainyard's sources and the git commit are records: a change that touches none of the user's modules does
    not change the run, unless it raises one of the `semantics` versions.
    """
    sources = dict(sorted(_user_modules(roots).items()))
    on_disk = {name: sha256_file(path) if path.is_file() else REMOVED for name, path in sources.items()}
    modules = {name: source_hash(name, path) or on_disk[name] for name, path in sources.items()}
    adapters = {root.split(".")[2] for root in roots if root.startswith("trainyard.frameworks.")}
    edited = {name: sha256 for name, sha256 in on_disk.items() if sha256 != modules[name]}
    for name in edited:
        log.warning(
            "module %s was edited after its import: the imported code runs, and its hash is recorded; "
            "restart Python to use what is on disk",
            name,
        )
    return CodeIdentity(
        hash=sha256_json(modules | {f"{name} on disk": sha256 for name, sha256 in edited.items()}),
        trainyard=VERSION,
        trainyard_sha256=own_hash(frozenset(adapters)),
        modules=modules,
        edited=edited,
        git=_git(working_directory),
    )


@cache
def _own_folder() -> Path:
    return Path(__file__).parent.parent


@cache  # once in a process, which runs what it has imported
def own_hash(frameworks: Collection[str]) -> str:
    """Return the hash of our sources that can affect a run's bits; of adapters, only these `frameworks`."""
    without = {"cli", "reports", "trackers", "callbacks", "testing", "integrations", "studies"}
    others = {("frameworks", name) for name in set(registry.BUILT_IN["framework"]) - set(frameworks)}
    inside = {path.relative_to(_own_folder()): path for path in sorted(_own_folder().rglob("*.py"))}
    return sha256_json(
        {
            str(name): sha256_file(path)
            for name, path in inside.items()
            if name.parts[0] not in without and name.with_suffix("").parts[:2] not in others
        }
    )


def _user_modules(roots: Iterable[str]) -> dict[str, Path]:
    """Return the user's own sources among the modules `roots` and all that these import."""
    found: dict[str, Path] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        path = _user_source(module)
        if module is None or path is None or name in found:
            continue
        found[name] = path
        # The packages that contain it.
        waiting += [name[:i] for i, letter in enumerate(name) if letter == "."]
        waiting += _imported(path, module.__package__ or "")
        for value in list(vars(module).values()):
            waiting.append(
                value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
            )
    return found


def _imported(path: Path, package: str) -> Iterator[str]:
    """Yield the modules that a source imports.

    A constant does not remember the module that it was imported from, so the source is parsed.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, OSError):  # edited or removed since it was imported; its hash tells
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _user_source(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    path = Path(file).resolve()
    is_there = path.is_file() or source_hash(str(getattr(module, "__name__", "")), path) is not None
    is_ours = path.suffix == ".py" and is_there and not any(map(path.is_relative_to, _installed()))
    return path if is_ours else None


@cache
def _installed() -> list[Path]:
    """Return the folders whose sources are not the user's."""
    paths = sysconfig.get_paths()
    installed = [Path(paths[key]).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    return [*installed, Path(sys.prefix).resolve(), _own_folder()]


def _git(folder: Path) -> GitState | None:
    """Return the commit of the working tree and how the tree differs from it, or None outside a repository.

    A repository's own settings can make git run programs: one that may be someone else's is not asked.
    """
    if (rule := import_rule()) is not None and not rule.owns(folder):
        return None
    inside = folder.resolve()
    is_repository = any((each / ".git").exists() for each in (inside, *inside.parents))
    if not is_repository and "GIT_DIR" not in os.environ:
        return None  # as git would say, but without a process

    def ask(*words: str) -> bytes:
        return subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, check=True, timeout=10
        ).stdout

    try:
        commit = ask("rev-parse", "HEAD").decode().strip()
        changes = ask("diff", "HEAD", "--no-ext-diff")
    except (OSError, subprocess.SubprocessError):
        return None
    return GitState(
        commit=commit, dirty=bool(changes), diff_sha256=sha256_bytes(changes) if changes else None
    )


@cache
def machine_identity() -> str:
    """Return the SHA-256 of what arithmetic depends on beside the run: Python, packages, processor."""
    return sha256_json([platform.python_version(), _system(), _cpu(), _instructions(), packages()])


def environment_inputs(
    threads: int, framework: Mapping[str, str], prepared_by: Collection[str] = ()
) -> Environment:
    """Return the numeric environment, and what surrounds it.

    Args:
        threads: The number of CPU threads that the run is pinned to.
        framework: The framework's own part.
        prepared_by: The distributions that another process imported to prepare the data.
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
        flags={key: value for key, value in sorted(os.environ.items()) if key.startswith(_FLAGS)},
        imported={name: installed[name] for name in imported},
    )
    return Environment(
        **dict(numeric), hash=sha256_json(numeric.to_json()), platform=platform.platform(), packages=installed
    )


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

    Trainyard, which `semantics` identify, is left out. So is what only its records and commands need (a
    report imports Jinja2): it changes no number, and depends on what the process did before. A distribution
    is found by the name of its module, so one that is called otherwise must be in `_DISTRIBUTIONS`;
    `importlib.metadata.packages_distributions` knows all, but reads the list of files of every installed
    package.
    """
    known = {_normalized(name): name for name in packages()}
    modules = {name.partition(".")[0] for name in list(sys.modules)}
    names = {_normalized(_DISTRIBUTIONS.get(module, module)) for module in modules} - _own_requirements()
    return sorted(known[name + suffix] for name in names for suffix in ("", "-cpu") if name + suffix in known)


@cache
def _own_requirements() -> frozenset[str]:
    """Return Trainyard, what it requires without any extra, and what that requires, but for NumPy."""
    names, waiting = {"trainyard"}, ["trainyard"]
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
