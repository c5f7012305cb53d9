"""What another trainer is about to do, in our words: the config and the manifest of its run."""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from trainyard.config import load
from trainyard.config.emit import emit
from trainyard.digest import sha256_json
from trainyard.integrations.fingerprints import data_inputs, weights_digest
from trainyard.order import SEMANTICS
from trainyard.records.journal import finite
from trainyard.records.manifest import DeterminismRecord, ForeignTrainer, InitialWeights, Manifest
from trainyard.records.run_dir import RunDir
from trainyard.redact import redacted, redacted_value
from trainyard.runs.catalog import Catalog
from trainyard.runs.inputs import code_inputs, environment_inputs
from trainyard.types import Determinism

Json = dict[str, Any]
Tracking = Sequence[str | Mapping[str, Any]]
_LONGEST_LIST = 100  # values of a list that are written out; of a longer one, its length and hash


@dataclass(frozen=True)
class Description:
    """A training as its own trainer sets it up.

    `arguments` and `options` (of the model) are plain (see `plain`); `record` names the arguments that change no bits.
    A later process with the same `identity` means the same run. `data` are the data sets of each split; `checkpoints`
    are folders and name patterns of where the trainer puts its checkpoints; `libraries` are what it runs on.
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
        """`config.yaml`: it loads as a config, and says nothing that the trainer did not say."""
        params = {"trainer": self.trainer, "arguments": self.arguments, "options": self.options}
        seed = {} if self.seed is None else {"seed": self.seed}
        model = {"type": class_name(type(self.model)), "params": _without_variables(params)}
        return emit(
            {"experiment": {"name": experiment, **seed}, "model": model, "tracking": list(tracking)},
            templates,
        )

    def computation(self) -> Json:
        """What changes the bits, by dotted key."""
        bits = {key: value for key, value in self.arguments.items() if key not in self.record}
        model = {"type": class_name(type(self.model)), "options": self.options}
        return _flat({"trainer": self.trainer, "seed": self.seed, "arguments": bits, "model": model})

    def manifest(self, run: RunDir, sample: int, weights: InitialWeights | None) -> Manifest:
        """Return all inputs as they are now.

        Args:
            run: The run that they are the inputs of.
            sample: Items of each data set that are hashed.
            weights: What is known of the initial weights; None where the model still has them.
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
            semantics={"order": SEMANTICS},
            seed=self.seed,
            config_hash=sha256_json([computation, self.arguments]),
            computation_hash=sha256_json(computation),
            computation=computation,
            data=data_inputs(self.data, sample),
            code=code_inputs(roots, here),
            environment=environment_inputs(torch.get_num_threads(), self.libraries),
            weights=weights or InitialWeights(initial=weights_digest(self.model)),
            determinism=DeterminismRecord(**self.determinism._asdict()),
        )


def trackers(tracking: Tracking) -> tuple[list[Json], dict[str, str]]:
    """The `tracking` of a config, checked and in full; and where it holds `${env:NAME}`, by dotted key."""
    if not tracking:
        return [], {}
    given = [item if isinstance(item, str) else dict(item) for item in tracking]
    resolved = load({"model": {"type": "trainer:Model"}, "tracking": given}, adapters=Catalog())
    templates = {key: text for key, text in resolved.templates.items() if key.startswith("tracking.")}
    return [item.model_dump() for item in resolved.config.tracking], templates


def class_name(cls: type) -> str:
    """`package.module:Name`, as configs name classes; it need not lead to a class that is local to a function."""
    words = [*cls.__module__.split("."), cls.__qualname__.rpartition(".")[2]]
    *module, name = (re.sub(r"^(?![A-Za-z_])", "_", re.sub(r"\W", "_", word)) for word in words)
    return f"{'.'.join(module)}:{name}"


def plain(value: Any, key: str = "") -> Any:
    """A value as JSON can hold it, and a file may: secrets are gone, and of an object that is no value its class is left."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, str | Path):
        text = (
            str(value).encode(errors="replace").decode()
        )  # without what is not Unicode, as a file name may be
        return redacted_value(key, text) if key else redacted(text)
    if isinstance(value, Mapping):
        return {str(name) or "_": plain(child, str(name)) for name, child in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return _plain_list(sorted(value, key=str) if isinstance(value, set | frozenset) else value)
    return _plain_object(value, key)


def _plain_list(values: Sequence[Any]) -> Any:
    found = [plain(value) for value in values]
    return found if len(found) <= _LONGEST_LIST else f"{len(found)} values, sha256 {sha256_json(found)}"


def _plain_object(value: Any, key: str) -> Any:
    if type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device"):
        return str(value)
    if isinstance(value, type):
        return class_name(value)
    if hasattr(value, "to_dict"):
        return plain(value.to_dict(), key)
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain(getattr(value, field.name), field.name) for field in dataclasses.fields(value)
        }
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return plain(value.item(), key)
    return getattr(value, "__qualname__", class_name(type(value)))  # the former of a function


def _without_variables(value: Any) -> Any:
    """The same without `${`, which would be taken for a variable to fill in when the config is read."""
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
