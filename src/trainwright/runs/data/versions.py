"""The versions of data that a config names: resolved to pins, and brought to this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwright import plugins
from trainwright.config.schema import DataConfig
from trainwright.config.versions import EMBEDDED, is_reference
from trainwright.datasets.samples.cache import data_cache
from trainwright.digest import sha256_json
from trainwright.errors import DataError
from trainwright.records.listing import runs_folder
from trainwright.records.pins import Pin
from trainwright.redact import remember
from trainwright.storage.urls import store_url
from trainwright.versions.base import Description, Reference, Version

_PATHS = ("path", "train_path", "val_path", "test_path")


def with_local_data(config: DataConfig) -> tuple[DataConfig, Mapping[str, Pin]]:
    """Return a section of data in which versions are files of this machine, and their pins by dotted key.

    Raises:
        DataError: A version is not there, was deleted, or is damaged.
        InputError: The system that keeps it cannot be used.
    """
    if not config.has_versions:
        return config, {}
    where = config.versions_in or store_url(runs_folder())
    pins: dict[str, Pin] = {}
    paths: dict[str, str] = {}
    for name in _PATHS:
        if (path := getattr(config, name)) is not None and is_reference(path):
            pins[f"data.{name}"], paths[name] = fetched(EMBEDDED, {"path": path}, where)
    if (system := config.version_system) is not None:
        kind, section = system
        if config.path is not None:
            raise DataError(f"data: both path and {kind} are given; keep one")
        pins[f"data.{kind}"], paths["path"] = fetched(kind, section.model_dump(), where)
    return config.model_copy(update=paths), pins


def fetched(kind: str, reference: Reference, where: str) -> tuple[Pin, str]:
    """Return the pin of a reference, and the path of its files in the cache of data, verified.

    Args:
        kind: The system that keeps the version.
        reference: The keys that name it.
        where: The URL of the folder of runs.
    """
    versions: Version = plugins.adapter("version", kind)(where)
    pin = versions.resolve(reference)
    identity = f"version {sha256_json([pin.kind, pin.identity, pin.file])}"
    path = data_cache().tree(
        identity,
        str(pin),
        lambda: versions.describe(pin).bytes,
        lambda new: versions.materialise(pin, new),
    )
    for spelling in {str(path), str(path.resolve())}:
        remember(spelling, shown=_name(pin))  # messages name the version, not its place in the cache
    return pin, str(path)


def _name(pin: Pin) -> str:
    """Return a version as a config names it: `churn@v3`, or the path in another system and its commit."""
    path = str(pin.reference.get("path", pin.source))
    return path if path == pin.revision else f"{path}@{pin.revision[:8]}"


def described(pin: Pin, runs_dir: Path) -> Description:
    """Return the content of a version in numbers.

    Raises:
        DataError: It was deleted, is damaged or cannot be read.
    """
    versions: Version = plugins.adapter("version", pin.kind)(store_url(runs_dir))
    return versions.describe(pin)


def local_path(path: Any, runs_dir: Path) -> Any:
    """Return data that a command was given: the path of the files of a version, if they name one.

    Raises:
        InputError: The version is not there, was deleted, or is damaged.
    """
    if not (isinstance(path, str) and is_reference(path)):
        return path
    return fetched(EMBEDDED, {"path": path}, store_url(runs_dir))[1]


def trained_on(pins: Mapping[str, Pin], path: str, runs_dir: Path) -> bool:
    """Return whether a path names the version that a run was trained on."""
    trained = [pins[key].identity for key in ("data.path", "data.train_path") if key in pins]
    if not trained or not is_reference(path):
        return False
    version: Version = plugins.adapter("version", EMBEDDED)(store_url(runs_dir))
    return version.resolve({"path": path}).identity in trained
