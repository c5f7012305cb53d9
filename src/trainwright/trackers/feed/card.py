"""Read a run's config and manifest for its feeders: its trackers, and what they show of the run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainwright.config.env import VARIABLE, names_outside, texts_in
from trainwright.errors import CheckpointError, InputError
from trainwright.records.manifest import Manifest
from trainwright.records.run_dir import RunDir
from trainwright.records.study import KINDS
from trainwright.redact import redacted, redacted_value, remember_passwords
from trainwright.safe_files import read_regular
from trainwright.storage.ownership import foreign_error, is_own
from trainwright.trackers.base import DatasetCard, RunCard

_CONTEXTS = {"train": "training", "val": "validation", "test": "test"}  # as MLflow calls the splits


class FeedInputs(NamedTuple):
    """The inputs of a feeder: `trackers` are the type and options of each, secrets unexpanded."""

    card: RunCard
    trackers: list[tuple[str, dict[str, Any]]]
    working_directory: Path


def read_feed_inputs(run_dir: Path) -> FeedInputs:
    """Read `config.yaml` and `manifest.json` of a run.

    Raises:
        InputError: One of them is missing or damaged.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        config = YAML(typ="safe", pure=True).load(read_regular(run_dir / "config.yaml"))
        return _feed_inputs(run_dir, config, RunDir(run_dir).require_manifest())
    except (
        CheckpointError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        YAMLError,
    ) as error:
        raise InputError(
            f"the trackers of {run_dir} cannot be fed: its config.yaml or manifest.json is missing or "
            f"damaged: {error}"
        ) from error


def _feed_inputs(run_dir: Path, config: Any, manifest: Manifest) -> FeedInputs:
    created = RunDir(run_dir).creation()
    settings = created.settings if created else None
    flat = [(key, value) for key, value in _flat("", config) if settings is None or _is_set(key, settings)]
    card = RunCard(
        run_id=manifest.run_id,
        experiment=manifest.experiment,
        run_dir=run_dir,
        params={key: redacted_value(key, value) for key, value in flat},
        tags=_tags(manifest),
        datasets=_datasets(config.get("data"), manifest),
        study=manifest.parent.run_id if manifest.parent and manifest.parent.relation in KINDS else None,
    )
    return FeedInputs(
        card,
        [_tracker(entry) for entry in config.get("tracking") or ()],
        Path(manifest.working_directory),
    )


def _is_set(key: str, settings: Sequence[str]) -> bool:
    """Return whether the user set a value, or a part of it; the model's type is always shown."""
    return key in (*settings, "model.type") or any(key.startswith(f"{one}.") for one in settings)


def _tracker(entry: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, str):
        return entry, {}
    return entry["type"], dict(entry.get("params") or {})


def _tags(manifest: Manifest) -> dict[str, str]:
    """Return what identifies the inputs of the run; what is not known gives no tag."""
    git = manifest.code.git
    tags = {
        "trainwright.config_hash": manifest.config_hash,
        "trainwright.computation_hash": manifest.computation_hash,
        "trainwright.seed": manifest.seed,
        "trainwright.data_hash": manifest.data.hash,
        "trainwright.code_hash": manifest.code.hash,
        "trainwright.git_commit": git.commit if git else None,
    }
    return {tag: str(value) for tag, value in tags.items() if value is not None}


def _datasets(data: Any, manifest: Manifest) -> list[DatasetCard]:
    """Return the splits that the run has read, by the file or the data set that the config names."""
    data = data if isinstance(data, dict) else {}
    paths = {split: data.get(f"{split}_path") or data.get("path") for split in _CONTEXTS}
    kind = str(data.get("type") or "objects")
    sources = {split: redacted(str(path or kind)) for split, path in paths.items()}
    return [
        DatasetCard(
            name=Path(sources[split]).name,
            source=sources[split],
            context=context,
            digest=identity.sha256,
            rows=identity.rows or 0,
        )
        for split, context in _CONTEXTS.items()
        if (identity := manifest.data.splits.get(split)) is not None and identity.sha256
    ]


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the text of each value; a list of plain values is one value."""
    if isinstance(value, list) and any(isinstance(child, dict | list) for child in value):
        value = {str(index): child for index, child in enumerate(value)}
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _flat(f"{path}.{key}" if path else str(key), child)
    elif path:
        yield path, value if isinstance(value, str) else json.dumps(value, default=str)


def check_trackers(run_dir: Path, trackers: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Refuse trackers to which another one's run would send the user's secrets.

    Raises:
        InputError: Options use variables or name a host, and the run is not the user's own.
    """
    for name, options in trackers:
        for text in texts_in(options):
            if names_outside(text) and not is_own(run_dir):
                raise foreign_error(run_dir, f"tracking.{name}", text)


def expanded(value: Any) -> Any:
    """Return options with `${env:NAME}` filled in.

    Raises:
        InputError: A variable is not set.
    """
    if isinstance(value, dict):
        return {key: expanded(child) for key, child in value.items()}
    if isinstance(value, list):
        return [expanded(child) for child in value]
    if not isinstance(value, str):
        return value
    remember_passwords(value)
    missing = [name for name in VARIABLE.findall(value) if name not in os.environ]
    if missing:
        raise InputError(f"the environment variable {missing[0]} is not set; export {missing[0]}=... first")
    return VARIABLE.sub(lambda match: os.environ[match[1]], value)


def without_secrets(text: str, options: Mapping[str, Any]) -> str:
    """Return the text with the secrets that `expanded` filled in, and the passwords in URIs, hidden again."""
    for name in VARIABLE.findall(json.dumps(options)):
        secret = os.environ.get(name, "")
        text = text.replace(secret, f"${{env:{name}}}") if secret else text
    return redacted(text)
