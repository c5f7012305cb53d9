"""The inputs of a run: what the manifest says of data, code and environment, and how two manifests differ."""

from __future__ import annotations

import ast
import itertools
import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from trainyard import registry
from trainyard.datasets.base import ArraySplit, DataBundle
from trainyard.digest import array_buffer, digest, sha256_bytes, sha256_file, sha256_json, tensor_records
from trainyard.types import SplitName
from trainyard.version import VERSION

Json = dict[str, Any]

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


def data_inputs(bundle: DataBundle) -> Json:
    """What identifies the data: a fingerprint of each split, as the model gets to see it."""
    info = bundle.info
    splits = {
        name: {"rows": len(split), "sha256": split.fingerprint()} for name, split in bundle.splits.items()
    }
    return {
        "hash": sha256_json(splits),
        "splits": splits,
        "rows": {name: same for name in splits if (same := _row_identity(bundle, name)) is not None},
        "task": info.task,
        "target": info.target,
        "features": list(info.feature_names),
        "classes": None if info.classes is None else [str(label) for label in info.classes],
        "content_hashed": bundle.content_hashed,
        "warnings": list(bundle.warnings),
    }


def _row_identity(bundle: DataBundle, name: SplitName) -> str | None:
    """SHA-256 over the targets of a split, and over its positions in the source: equal for the same rows, however their
    features were prepared; None where a split does not hold its targets."""
    split = bundle.splits[name]
    if not isinstance(split, ArraySplit):
        return None
    arrays = {"targets": split.targets} | ({"positions": bundle.rows[name]} if name in bundle.rows else {})
    return digest(tensor_records(array_buffer(key, array) for key, array in arrays.items()))


def code_inputs(roots: Collection[str], working_directory: Path) -> Json:
    """What identifies the code: Trainyard's own, and the user's modules that `roots` (module names) lead to.

    The git commit is a record: a change that touches none of these modules changes no result.
    """
    modules = {name: sha256_file(path) for name, path in sorted(_user_modules(roots).items())}
    own = {str(path.relative_to(_own_folder())): sha256_file(path) for path in _own_sources(roots)}
    code = {"trainyard": VERSION, "trainyard_sha256": sha256_json(own), "modules": modules}
    return {"hash": sha256_json(code)} | code | {"git": _git(working_directory)}


@cache
def _own_folder() -> Path:
    return Path(__file__).parent.parent


def _own_sources(roots: Collection[str]) -> list[Path]:
    """Our sources, but for those that no bit of a run comes from, other frameworks' adapters among them."""
    without = {"cli", "reports", "trackers", "callbacks", "testing", "integrations", "studies"}
    used = {root.split(".")[2] for root in roots if root.startswith("trainyard.frameworks.")}
    others = {("frameworks", name) for name in set(registry.BUILT_IN["framework"]) - used}
    inside = {
        path: path.relative_to(_own_folder()).with_suffix("").parts for path in _own_folder().rglob("*.py")
    }
    return sorted(
        path for path, parts in inside.items() if parts[0] not in without and parts[:2] not in others
    )


def _user_modules(roots: Iterable[str]) -> dict[str, Path]:
    """The sources of `roots` and of all that they use, as far as these are neither Python's, nor installed, nor ours."""
    found: dict[str, Path] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        path = _user_source(module)
        if module is None or path is None or name in found:
            continue
        found[name] = path
        waiting += [
            name[:i] for i, letter in enumerate(name) if letter == "."
        ]  # the packages that it lies in
        waiting += _imported(path, module.__package__ or "")
        for value in list(vars(module).values()):
            waiting.append(
                value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
            )
    return found


def _imported(path: Path, package: str) -> Iterator[str]:
    """What a source says that it imports: a constant, once imported, does not tell any more where it came from."""
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:  # edited since it was imported; its hash tells
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
    paths = sysconfig.get_paths()
    installed = [Path(paths[key]).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    installed += [Path(sys.prefix).resolve(), _own_folder()]
    path = Path(file).resolve()
    is_ours = path.suffix == ".py" and path.is_file() and not any(map(path.is_relative_to, installed))
    return path if is_ours else None


def _git(folder: Path) -> Json | None:
    """The commit of the working tree, and a hash of how the tree differs from it; None outside a repository."""

    def ask(*words: str) -> bytes:
        return subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, check=True, timeout=10
        ).stdout

    try:
        commit = ask("rev-parse", "HEAD").decode().strip()
        changes = ask("diff", "HEAD", "--no-ext-diff")
    except (OSError, subprocess.SubprocessError):
        return None
    return {
        "commit": commit,
        "dirty": bool(changes),
        "diff_sha256": sha256_bytes(changes) if changes else None,
    }


def environment_inputs(threads: int, framework: Mapping[str, str]) -> Json:
    """What identifies the environment: Python, packages, processor, threads, flags, and what the framework runs on."""
    environment = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "threads": threads,
        "framework": dict(framework),
        "flags": {key: value for key, value in sorted(os.environ.items()) if key.startswith(_FLAGS)},
        "packages": packages(),
    }
    return {"hash": sha256_json(environment)} | environment


@cache
def packages() -> dict[str, str]:
    """The installed distributions and their versions.

    Read from the first lines of their metadata: `importlib.metadata` parses all of each file, a fifth of a second in all.
    """
    found: dict[str, str] = {}
    for metadata in (file for place in sys.path for file in sorted(Path(place).glob("*.dist-info/METADATA"))):
        with open(metadata, encoding="utf-8", errors="replace") as lines:
            head = dict(
                line.rstrip("\n").split(": ", 1)
                for line in itertools.takewhile(str.strip, lines)
                if ": " in line
            )
        if "Name" in head and "Version" in head:
            found.setdefault(head["Name"], head["Version"])
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


@dataclass(frozen=True)
class Difference:
    """An input that differs between two runs; `input` is config, data, code, environment, model or weights."""

    input: str
    what: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.input}: {self.what} was {_short(self.before)}, is {_short(self.now)}"

    def to_json(self) -> Json:
        return asdict(self)


def _short(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:16]}…"


def differences(before: Json, now: Json) -> list[Difference]:
    """What differs between the inputs of two manifests, in the order config, data, code, environment, model, weights."""
    found: list[Difference] = []
    found += _compare("config", before.get("computation", {}), now.get("computation", {}))
    found += _compare("data", _data_view(before), _data_view(now))
    found += _compare("code", _code_view(before), _code_view(now))
    found += _compare("environment", _flat_environment(before), _flat_environment(now))
    found += _compare("model", before.get("model", {}), now.get("model", {}))
    found += _compare("weights", before.get("weights", {}), now.get("weights", {}))
    return found


def _compare(kind: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    keys = [*before, *(key for key in now if key not in before)]
    return [
        Difference(kind, key, before.get(key), now.get(key))
        for key in keys
        if before.get(key) != now.get(key)
    ]


def _data_view(manifest: Json) -> Json:
    splits = manifest.get("data", {}).get("splits", {})
    return {f"{name} split, {key}": value for name, split in splits.items() for key, value in split.items()}


def _code_view(manifest: Json) -> Json:
    code = manifest.get("code", {})
    modules = {f"module {name}": sha256 for name, sha256 in code.get("modules", {}).items()}
    own = {"trainyard": code.get("trainyard"), "trainyard's sources": code.get("trainyard_sha256")}
    return own | {"semantics of the sample order": manifest.get("semantics")} | modules


def _flat_environment(manifest: Json) -> Json:
    environment = manifest.get("environment", {})
    flat = {key: environment.get(key) for key in ("python", "platform", "cpu", "threads")}
    for group in ("framework", "flags", "packages"):
        flat |= {f"{group} {key}": value for key, value in environment.get(group, {}).items()}
    return flat
