"""Pack the running Trainwright as a wheel, which lies beside a model: no package index has it."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from importlib import metadata
from pathlib import Path

_TAG = "py3-none-any"  # no part of Trainwright is compiled
_WHEEL = f"Wheel-Version: 1.0\nGenerator: trainwright\nRoot-Is-Purelib: true\nTag: {_TAG}\n"
_COPIED = ("METADATA", "entry_points.txt", "licenses/LICENSE")
_TIME = (1980, 1, 1, 0, 0, 0)  # the same files give the same bytes


def write_wheel(folder: Path) -> Path | None:
    """Write the wheel of the running Trainwright into a folder, and return its path.

    The files are those that this process imports from, whether they were installed from a wheel or are a
    clone's; the metadata are those of the installation.

    Returns:
        None if Trainwright is not installed as a package, or not imported from a folder.
    """
    package = Path(__file__).parents[2]
    try:
        installed = metadata.distribution("trainwright")
    except metadata.PackageNotFoundError:
        return None
    if not package.is_dir() or installed.read_text("METADATA") is None:
        return None
    name = f"trainwright-{installed.version}"
    contents = {
        f"trainwright/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    copied = {one: text for one in _COPIED if (text := installed.read_text(one)) is not None}
    for one, text in {**copied, "WHEEL": _WHEEL}.items():
        contents[f"{name}.dist-info/{one}"] = text.encode()
    record = f"{name}.dist-info/RECORD"
    lines = [f"{one},{_hash(content)},{len(content)}\n" for one, content in contents.items()]
    contents[record] = "".join([*lines, f"{record},,\n"]).encode()
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{_TAG}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for one, content in contents.items():
            entry = zipfile.ZipInfo(one, _TIME)
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return path


def _hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.decode().rstrip('=')}"
