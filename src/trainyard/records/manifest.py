"""The manifest: every input of a run's computation, and how two manifests differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from trainyard.records.document import Document, Record
from trainyard.redact import fingerprinted

Json = dict[str, Any]
_SHOWN_CHARACTERS = 40  # of a value in a message


@dataclass(frozen=True)
class Difference:
    """An input that differs between two runs.

    `input` is config, data, code, environment, model or weights.
    """

    input: str
    what: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.input}: {self.what} was {_short(self.before)}, is {_short(self.now)}"

    def to_json(self) -> Json:
        """Return the difference for JSON."""
        return asdict(self)


class SplitIdentity(Record):
    """What identifies a split: its number of rows, and the SHA-256 of what the model sees of them."""

    rows: int | None = None
    sha256: str | None = None


class DataIdentity(Record):
    """What identifies the data.

    `rows` identifies the rows of each split, however their features were prepared.
    """

    hash: str | None = None
    splits: dict[str, SplitIdentity] = Field(default_factory=dict)
    rows: dict[str, str] = Field(default_factory=dict)
    task: str | None = None
    target: str | None = None
    features: list[str] = Field(default_factory=list)
    classes: list[str] | None = None
    content_hashed: bool = True
    warnings: list[str] = Field(default_factory=list)


class GitState(Record):
    """The commit of the working tree, and a hash of how the tree differs from it."""

    commit: str
    dirty: bool = False
    diff_sha256: str | None = None


class CodeIdentity(Record):
    """What identifies the code: the SHA-256 of the source that each of the user's modules was imported from.

    `edited` holds the SHA-256 of the sources on disk that were changed after their import: they did not run.

    Trainyard's version and the hash of its sources are records: they are never compared. Its code is
    identified by `Manifest.semantics`.
    """

    hash: str | None = None
    trainyard: str | None = None
    trainyard_sha256: str | None = None
    modules: dict[str, str] = Field(default_factory=dict)
    edited: dict[str, str] = Field(default_factory=dict)
    git: GitState | None = None


class Environment(Record):
    """What identifies the environment.

    Of `packages`, those that the run imported are compared; the rest is a record.
    """

    hash: str | None = None
    python: str | None = None
    platform: str | None = None
    cpu: str | None = None
    threads: int | None = None
    framework: dict[str, str] = Field(default_factory=dict)
    flags: dict[str, str] = Field(default_factory=dict)
    imported: list[str] | None = None
    packages: dict[str, str] = Field(default_factory=dict)


class InitialWeights(Record):
    """The digest of the initial weights.

    Another trainer may have continued from a step without a digest: `from_step`.
    """

    initial: str | None = None
    from_step: int | None = None


class DeterminismRecord(Record):
    """How exactly the run can be repeated, and why not better."""

    tier: Literal["bitwise", "order", "statistical"] = "statistical"
    reason: str = "it was not recorded"


class Change(Record):
    """Inputs that changed before a resume and were accepted; `time` is in seconds since the epoch."""

    time: float
    differences: list[Difference]


class Parent(Record):
    """The run or study that this run belongs to, and how (`reproduce`, `benchmark` ...).

    `decisions` are those of the parent that this run replays.
    """

    run_id: str
    relation: str
    decisions: list[Any] = Field(default_factory=list)


class ForeignTrainer(Record):
    """The trainer of another library that made the run, and where it keeps its checkpoints."""

    name: str
    identity: Json = Field(default_factory=dict)
    checkpoints: list[tuple[str, str]] = Field(default_factory=list)


class Manifest(Document):
    """Every input of a run's computation; written before step 1, and compared at each resume.

    `config_sha256` is that of the file `config.yaml`; `config_hash` is that of its values.
    """

    FILE: ClassVar[str] = "manifest.json"

    run_id: str
    experiment: str
    created: str | None = None
    working_directory: str = "."
    command: list[str] = Field(default_factory=list)
    objects: list[str] = Field(default_factory=list)
    semantics: dict[str, int] | int | None = None
    seed: int | None = None
    config_hash: str | None = None
    config_sha256: str | None = None
    computation_hash: str | None = None
    computation: Json = Field(default_factory=dict)
    data: DataIdentity = Field(default_factory=DataIdentity)
    code: CodeIdentity = Field(default_factory=CodeIdentity)
    environment: Environment = Field(default_factory=Environment)
    model: dict[str, str] = Field(default_factory=dict)
    weights: InitialWeights = Field(default_factory=InitialWeights)
    determinism: DeterminismRecord = Field(default_factory=DeterminismRecord)
    changes: list[Change] = Field(default_factory=list)
    init_from: str | None = None
    data_file: str = "data.json"
    parent: Parent | None = None
    trainer: ForeignTrainer | None = None

    @field_validator("computation", "model")
    @classmethod
    def _without_secrets(cls, inputs: Json) -> Json:
        return {key: fingerprinted(key, value) for key, value in inputs.items()}

    @property
    def demands_bitwise(self) -> bool:
        """Whether the config refuses every change that could change a bit."""
        return self.computation.get("training.determinism") == "bitwise"

    def split_sha256(self, split: str) -> str | None:
        """Return the SHA-256 of what the model saw of a split, or None if it has no such split."""
        identity = self.data.splits.get(split)
        return identity.sha256 if identity else None

    def differences(self, now: Manifest) -> list[Difference]:
        """Return the inputs that differ, in the order config, data, code, environment, model, weights."""
        views = (
            ("config", lambda manifest: manifest.computation),
            ("data", _data_view),
            ("code", _code_view),
            ("environment", lambda manifest: _environment_view(manifest, self._imported(now))),
            ("model", lambda manifest: manifest.model),
            ("weights", lambda manifest: _without_none(manifest.weights.to_json())),
        )
        found = [difference for kind, view in views for difference in _compare(kind, view(self), view(now))]
        return [*found, *_edited(self.code, now.code)]

    def _imported(self, now: Manifest) -> set[str]:
        """Return the packages that count: version 1 did not record which ones a run imported."""
        before = self.environment.imported
        names = {*(now.environment.imported or ()), *(before or ())}
        return names if before is not None else names & self.environment.packages.keys()

    def with_change(self, now: Manifest, change: Change, determinism: DeterminismRecord) -> Manifest:
        """Return the manifest after inputs changed: a later resume is compared with what they are now."""
        names = (
            "seed",
            "config_hash",
            "config_sha256",
            "computation_hash",
            "computation",
            "data",
            "code",
            "environment",
            "model",
        )
        inputs = {name: getattr(now, name) for name in (*names, "semantics", "weights", "data_file")}
        return self.model_copy(
            update=inputs | {"changes": [*self.changes, change], "determinism": determinism}
        )


def _compare(kind: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    keys = [*before, *(key for key in now if key not in before)]
    return [
        Difference(kind, key, before.get(key), now.get(key))
        for key in keys
        if before.get(key) != now.get(key)
    ]


def _data_view(manifest: Manifest) -> Json:
    return {
        f"{name} split, {key}": value
        for name, split in manifest.data.splits.items()
        for key, value in _without_none(split.to_json()).items()
    }


def _code_view(manifest: Manifest) -> Json:
    return {f"module {name}": sha256 for name, sha256 in manifest.code.modules.items()} | {
        f"semantics of {name}": version for name, version in _semantics(manifest).items()
    }


def _edited(before: CodeIdentity, now: CodeIdentity) -> list[Difference]:
    """Return the modules that run as they did, but were edited on disk in the meantime.

    It cannot be known which of the two the user means, so it counts as a difference.
    """
    return [
        Difference("code", f"module {name}", now.modules[name], "edited on disk since its import")
        for name, sha256 in now.edited.items()
        if sha256 != before.edited.get(name) and before.modules.get(name) == now.modules[name]
    ]


def _semantics(manifest: Manifest) -> dict[str, int]:
    """Return the semantics versions above 1, by part: absent means 1.

    Manifests of format 1 hold one number, which is that of the sample order.
    """
    if isinstance(manifest.semantics, dict):
        return {name: version for name, version in manifest.semantics.items() if version != 1}
    return {} if manifest.semantics in (None, 1) else {"order": manifest.semantics}


def _environment_view(manifest: Manifest, packages: set[str]) -> Json:
    environment = manifest.environment
    flat: Json = {key: getattr(environment, key) for key in ("python", "platform", "cpu", "threads")}
    for group in ("framework", "flags"):
        flat |= {f"{group} {key}": value for key, value in getattr(environment, group).items()}
    versions = environment.packages
    return flat | {f"package {name}": versions[name] for name in sorted(packages) if name in versions}


def _without_none(data: Json) -> Json:
    return {key: value for key, value in data.items() if value is not None}


def _short(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:16]}…"
