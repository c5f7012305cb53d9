"""The config and the manifest of a run that another trainer makes."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from trainwright.config import load
from trainwright.config.emit import emit
from trainwright.digest import sha256_json
from trainwright.integrations.fingerprints import data_inputs, weights_digest
from trainwright.records.journal import finite
from trainwright.records.manifest import DeterminismRecord, ForeignTrainer, InitialWeights, Manifest
from trainwright.records.run_dir import RunDir
from trainwright.redact import redacted, redacted_value
from trainwright.require import class_name
from trainwright.runs.catalog import Catalog
from trainwright.runs.code_identity import code_inputs
from trainwright.runs.environment import environment_inputs
from trainwright.types import Determinism

Json = dict[str, Any]
Tracking = Sequence[str | Mapping[str, Any]]
_LONGEST_LIST = 100  # values of a list that are written out; of a longer one, its length and hash


@dataclass(frozen=True)
class Description:
    """A training as its own trainer sets it up.

    `arguments` (of the trainer) and `options` (of the model) are JSON values (see `to_json_value`). `record`
    names the arguments that change no bits. A later process with the same `identity` continues the same run.
    `data` holds the data sets of each split. `checkpoints` holds the folders of the trainer's checkpoints,
    each with a name pattern. `libraries` holds versions and devices.
    """

    trainer: str
    model: Any
    arguments: Json
    identity: Json
    determinism: Determinism
    libraries: Mapping[str, str]
    options: Json = field(default_factory=dict)
    record: frozenset[str] = frozenset()
    seed: int | None = None
    data: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    checkpoints: Sequence[tuple[str, str]] = ()

    def config(self, experiment: str, tracking: Sequence[Json], templates: Mapping[str, str]) -> str:
        """Return the content of `config.yaml`; it loads as a config, and adds no defaults of ours.

        Args:
            experiment: The name that groups runs.
            tracking: The trackers, as in a config.
            templates: Values that hold `${env:NAME}`, by dotted key; they are written unexpanded.
        """
        params = {"trainer": self.trainer, "arguments": self.arguments, "options": self.options}
        seed = {} if self.seed is None else {"seed": self.seed}
        model = {"type": class_name(type(self.model)), "params": _without_variables(params)}
        return emit(
            {"experiment": {"name": experiment, **seed}, "model": model, "tracking": list(tracking)},
            templates,
        )

    def computation(self) -> Json:
        """Return what changes the bits, by dotted key."""
        bits = {key: value for key, value in self.arguments.items() if key not in self.record}
        model = {"type": class_name(type(self.model)), "options": self.options}
        return _flat({"trainer": self.trainer, "seed": self.seed, "arguments": bits, "model": model})

    def manifest(self, run: RunDir, sample: int, weights: InitialWeights | None) -> Manifest:
        """Return the manifest, with all inputs as they are now.

        Args:
            run: The run.
            sample: The number of items of each data set to hash.
            weights: The record of the initial weights; None if the model still has them.
        """
        import torch

        here, computation = Path.cwd(), self.computation()
        roots = [
            "__main__",
            type(self.model).__module__,
            *(type(one).__module__ for sets in self.data.values() for one in sets),
        ]
        return Manifest(
            run_id=run.id,
            experiment=run.experiment,
            created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            working_directory=str(here),
            command=[redacted(word) for word in sys.argv],
            objects=["model", "data"],
            trainer=ForeignTrainer(
                name=self.trainer, identity=self.identity, checkpoints=list(self.checkpoints)
            ),
            seed=self.seed,
            config_hash=sha256_json([computation, self.arguments]),
            config_sha256=run.config_sha256(),
            computation_hash=sha256_json(computation),
            computation=computation,
            data=data_inputs(self.data, sample),
            code=code_inputs(roots, here),
            environment=environment_inputs(torch.get_num_threads(), self.libraries),
            weights=weights or InitialWeights(initial=weights_digest(self.model)),
            determinism=DeterminismRecord(**self.determinism._asdict()),
        )


def trackers(tracking: Tracking) -> tuple[list[Json], dict[str, str]]:
    """Return the `tracking` section, checked and in full, and its values with `${env:NAME}` by dotted key."""
    if not tracking:
        return [], {}
    section = [item if isinstance(item, str) else dict(item) for item in tracking]
    resolved = load({"model": {"type": "trainer:Model"}, "tracking": section}, adapters=Catalog())
    templates = {key: text for key, text in resolved.templates.items() if key.startswith("tracking.")}
    return [item.model_dump() for item in resolved.config.tracking], templates


def to_json_value(value: Any, key: str = "") -> Any:
    """Return a value as JSON with secrets redacted; other objects are replaced by their class names.

    Args:
        value: Any value.
        key: Its name, which may say that it is a secret.
    """
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, str | Path):
        text = str(value).encode(errors="replace").decode()  # a file name need not be valid Unicode
        return redacted_value(key, text) if key else redacted(text)
    if isinstance(value, Mapping):
        return {str(name) or "_": to_json_value(child, str(name)) for name, child in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return _list_to_json(sorted(value, key=str) if isinstance(value, set | frozenset) else value)
    return _object_to_json(value, key)


def _list_to_json(values: Sequence[Any]) -> Any:
    items = [to_json_value(value) for value in values]
    return items if len(items) <= _LONGEST_LIST else f"{len(items)} values, sha256 {sha256_json(items)}"


def _object_to_json(value: Any, key: str) -> Any:
    if f"{type(value).__module__}.{type(value).__name__}" in ("torch.dtype", "torch.device"):
        return str(value)
    if isinstance(value, type):
        return class_name(value)
    if hasattr(value, "to_dict"):
        return to_json_value(value.to_dict(), key)
    if dataclasses.is_dataclass(value):
        return {
            field.name: to_json_value(getattr(value, field.name), field.name)
            for field in dataclasses.fields(value)
        }
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return to_json_value(value.item(), key)
    return getattr(value, "__qualname__", class_name(type(value)))  # functions have a __qualname__


def _without_variables(value: Any) -> Any:
    """Break up `${` in texts: the config reader would take it for a variable."""
    if isinstance(value, dict):
        return {key: _without_variables(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_without_variables(child) for child in value]
    return value.replace("${", "$ {") if isinstance(value, str) else value


def _flat(value: Any, path: str = "") -> Json:
    if isinstance(value, Mapping) and value:
        return {
            key: leaf
            for name, child in value.items()
            for key, leaf in _flat(child, f"{path}.{name}" if path else str(name)).items()
        }
    return {path: value}
