"""The packages that serve a model: pinned, with the hashes of their files, and Trainwright as a wheel."""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainwright.errors import InputError
from trainwright.records.certificate import Certificate

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"  # which the files of packages are for
_MACHINES = ("x86_64", "aarch64")  # for which images are built
_GLIBC = range(17, 37)  # minor versions that Debian 12 runs
_DATE = (1980, 1, 1, 0, 0, 0)  # of the files in a wheel, so that its hash is that of its content
_OPTIONS = ("--dry-run", "--ignore-installed", "--only-binary", ":all:", "--quiet", "--no-input")
_NAME = re.compile(r"[\w.-]+")
_VERSION = re.compile(r"\d[\w.+!-]*")

Pinned = Mapping[str, tuple[str, set[str]]]  # name -> version, and the SHA-256 of its files


def write_requirements(folder: Path, certificate: Certificate, extras: Sequence[str], *packages: str) -> Path:
    """Write `requirements.txt` and, into `wheels/`, Trainwright as it is installed here.

    The versions are those of the certificate, then those that are installed here, then the newest. There are
    hashes of files for this machine, and for Linux on x86-64 and ARM.

    Args:
        folder: Where they are written.
        certificate: That of the model.
        extras: Of Trainwright.
        packages: Other packages, by the names of their distributions.

    Returns:
        The path of the wheel.

    Raises:
        InputError: Trainwright or pip is not installed as a package, or pip finds no such packages.
    """
    wheel = write_wheel(folder / "wheels")
    names = [name for name in certificate.versions if name != "trainwright"]
    named = {_distribution(name): certificate.versions[name] for name in names}
    _check_known(named)
    wanted = [f"{name}=={version}" for name, version in named.items()] + list(packages)
    wanted.append(f"trainwright[{','.join(extras)}] @ {wheel.absolute().as_uri()}")
    pins = _resolved(wanted, _limits(named, extras if packages else None))
    lines = [
        f"# Python {PYTHON}: python -m pip install --require-hashes --only-binary=:all: -r requirements.txt"
    ]
    for name, (version, hashes) in sorted(pins.items(), key=lambda one: one[0].lower()):
        what = f"./wheels/{wheel.name}" if name == "trainwright" else f"{name}=={version}"
        lines.append(" \\\n    ".join([what, *(f"--hash=sha256:{one}" for one in sorted(hashes))]))
    (folder / "requirements.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return wheel


def _check_known(named: Mapping[str, str]) -> None:
    """Refuse packages that no model of ours needs: a certificate may come from anyone, and names what is run.

    Raises:
        InputError: There is one, or it has an odd version.
    """
    known = {
        _normal(found[0]) for line in metadata.requires("trainwright") or [] if (found := _NAME.match(line))
    }
    for name, version in named.items():
        if _normal(name) not in known or not _VERSION.fullmatch(version):
            raise InputError(
                f"the certificate asks for {name[:80]!r} {version[:80]!r}, which no model of Trainwright "
                "needs: export its run again"
            )


def _distribution(module: str) -> str:
    """Return the name of the distribution that a module of a certificate's versions is of."""
    known = metadata.packages_distributions().get(module, [module])
    return module if module in known else known[0]


def _limits(named: Mapping[str, str], extras: Sequence[str] | None) -> dict[str, str]:
    """Return the versions that pip may take, by name.

    Args:
        named: Those that are known.
        extras: Of Trainwright: what it needs itself keeps the version that is installed, and another system
            may need another version of all else; None: all that is installed keeps its version.
    """
    installed = {one.metadata["Name"]: one.version for one in metadata.distributions()}
    if extras is not None:
        listed = [line for line in metadata.requires("trainwright") or [] if _is_asked(line, extras)]
        names = {_normal(match[0]) for line in listed if (match := _NAME.match(line))}
        installed = {name: version for name, version in installed.items() if _normal(name) in names}
    installed.pop("trainwright", None)
    return {**installed, **named}


def _is_asked(line: str, extras: Sequence[str]) -> bool:
    """Return whether a requirement is one of Trainwright itself, or of one of these extras."""
    extra = re.search(r"extra\s*==\s*['\"]([\w-]+)", line)
    return extra is None or extra[1] in extras


def _resolved(wanted: Sequence[str], limits: Mapping[str, str]) -> Pinned:
    """Return what pip would install, with the hashes for all machines that take the same versions."""
    if find_spec("pip") is None:
        raise InputError(
            "a package lists the hashes of what it needs, which pip asks its index for: install pip"
        )
    own = platform.machine() if sys.platform == "linux" else ""
    targets = ["", *(machine for machine in _MACHINES if machine != own)]
    with tempfile.TemporaryDirectory(prefix="trainwright-package-") as place:
        limited = Path(place, "constraints.txt")
        lines = [f"{name}=={version}\n" for name, version in limits.items()]
        limited.write_text("".join(lines), encoding="utf-8")
        command = [sys.executable, "-m", "pip", "install", *_OPTIONS, "--constraint", str(limited), *wanted]
        processes = []
        for machine in targets:
            more = [*_tags(machine), "--target", str(Path(place, "none"))] if machine else []
            report = ["--report", str(Path(place, f"report{machine}.json"))]
            processes.append(subprocess.Popen([*command, *report, *more], stderr=subprocess.PIPE, text=True))
        errors = [process.communicate()[1] for process in processes]
        if processes[0].returncode != 0:
            said = "\n  ".join(line for line in errors[0].splitlines() if line.startswith("ERROR"))
            raise InputError(f"pip finds no packages to serve this model:\n  {said or errors[0][-500:]}")
        first, *rest = [
            _pins(json.loads(Path(place, f"report{machine}.json").read_text(encoding="utf-8")))
            for machine, process in zip(targets, processes, strict=True)
            if process.returncode == 0
        ]
    for pins in rest:  # other builds of a release, such as those for GPUs, have versions of their own
        if _versions(pins) == _versions(first):
            first = {name: (version, hashes | pins[name][1]) for name, (version, hashes) in first.items()}
    return first


def _versions(pins: Pinned) -> dict[str, str]:
    return {name: version for name, (version, _) in pins.items()}


def _tags(machine: str) -> list[str]:
    tags = [f"manylinux_2_{minor}_{machine}" for minor in reversed(_GLIBC)] + [f"manylinux2014_{machine}"]
    return [word for tag in tags for word in ("--platform", tag)]


def _normal(name: str) -> str:
    """Return the name of a distribution as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _pins(report: Mapping[str, Any]) -> Pinned:
    """Return the packages of a report of pip."""
    return {
        _normal(one["metadata"]["name"]): (
            one["metadata"]["version"],
            {one["download_info"]["archive_info"]["hashes"]["sha256"]},
        )
        for one in report["install"]
    }


def write_wheel(folder: Path) -> Path:
    """Write Trainwright, as it is installed here, as a wheel into a folder, and return its path.

    Raises:
        InputError: Its metadata are not installed.
    """
    try:
        known = metadata.distribution("trainwright")
    except metadata.PackageNotFoundError:
        raise InputError(
            "a package holds Trainwright as a wheel, which needs its metadata: install it (pip install .)"
        ) from None
    root = Path(__file__).parents[1]
    about = f"trainwright-{known.version}.dist-info"
    files = {
        path.relative_to(root.parent).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    for name in ("METADATA", "entry_points.txt"):
        files[f"{about}/{name}"] = (known.read_text(name) or "").encode()
    files[f"{about}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: trainwright\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    lines = [f"{name},{_record_hash(content)},{len(content)}" for name, content in files.items()]
    files[f"{about}/RECORD"] = "\n".join([*lines, f"{about}/RECORD,,", ""]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"trainwright-{known.version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return wheel


def _record_hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"
