"""Packages of other people: real modules with real metadata, installed into a folder by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from trainwright import plugins

SOURCES = Path(plugins.__file__).parent.parent


def install(site: Path, package: str, entry_points: str, modules: Mapping[str, str]) -> None:
    """Write a package with its dist-info folder, as pip leaves them, into a folder of the import path."""
    info = site / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    for name, source in modules.items():
        (site / f"{name}.py").write_text(source, encoding="utf-8")


def python(site: Path, *words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages of `site` installed."""
    path = os.pathsep.join([str(site), str(SOURCES)])
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def trainwright(site: Path, *words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of ours with the packages of `site` installed."""
    return python(site, "-m", "trainwright", *words, cwd=cwd)
