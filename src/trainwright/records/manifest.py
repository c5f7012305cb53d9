"""The manifest: every input of a run's computation, and how two manifests differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from trainwright.records.compression import CompressionRecord
from trainwright.records.document import Document, Name, Record
from trainwright.records.initial_weights import LoadedWeights
from trainwright.records.pins import Pin
from trainwright.redact import fingerprinted

Json = dict[str, Any]
KINDS = (
    "config",
    "data",
    "code",
    "file",
    "variable",
    "environment",
    "model",
    "weights",
)  # of inputs, as listed
SEMANTICS_OF = "semantics of "  # begins the name of a difference in our own code
WITHOUT_VALUE = "without a value"  # names, in `model`, the attributes that no two runs can be compared by
MISSING = "missing"  # instead of the hash of a file that was looked for
_SHOWN_CHARACTERS = 40  # of a value in a message
_SHOWN_FILES = 3  # that have changed


@dataclass(frozen=True)
class Difference:
    """An input that differs between two runs.

    `input` is one of `KINDS`.
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
    """The identity of a split: its number of rows, and the SHA-256 of what the model sees of them."""

    rows: int | None = None
    sha256: str | None = None


class RepeatedRows(Record):
    """The number of rows of a split that are also rows of another one."""

    split: str
    other: str
    count: int
    rows: int

    @property
    def warning(self) -> str:
        """The warning about them, in one line."""
        return (
            f"{self.count} of {self.rows} {self.split} rows are also {self.other} rows, which flatters the "
            "metrics"
        )


class DataIdentity(Record):
    """The identity of the data.

    `rows` identifies the rows of each split, however their features were prepared; `preparation` is the
    SHA-256 of what was fitted to prepare them: rows in another unit may have the same features. `files` has
    the beginning of the SHA-256 of each shard, by its name, to say which of them has changed. `repeated` are
    the rows that two splits share. `positive` is the label of the positive one of two classes. `pins` are the
    versions of the data, by the keys of the config that name them. `keys` has hashes of some of the keys that
    rows are split by, as `key_forms` returns them.
    """

    hash: str | None = None
    splits: dict[str, SplitIdentity] = Field(default_factory=dict)
    rows: dict[str, str] = Field(default_factory=dict)
    preparation: str | None = None
    task: str | None = None
    target: str | None = None
    features: list[str] = Field(default_factory=list)
    classes: list[str] | None = None
    positive: str | None = None
    content_hashed: bool = True
    files: dict[str, str] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)
    repeated: list[RepeatedRows] = Field(default_factory=list)
    pins: dict[str, Pin] = Field(default_factory=dict)
    keys: list[str] = Field(default_factory=list)


class GitState(Record):
    """The commit of the working tree, and a hash of how the tree differs from it."""

    commit: str
    dirty: bool = False
    diff_sha256: str | None = None


class CodeIdentity(Record):
    """The identity of the code: the SHA-256 of the source of each of the user's modules.

    The classes of objects that were given in Python, and the variables that their code names, are there as
    they were in memory: `module:name`; of those in `without_value`, the values cannot be compared. `edited`
    holds the SHA-256 of the sources on disk that were changed after their import: they did not run.

    Trainwright's version and the hash of its sources are records: they are never compared. Its code is
    identified by `Manifest.semantics`.
    """

    hash: str | None = None
    trainwright: str | None = None
    trainwright_sha256: str | None = None
    modules: dict[str, str] = Field(default_factory=dict)
    edited: dict[str, str] = Field(default_factory=dict)
    without_value: list[str] = Field(default_factory=list)
    git: GitState | None = None


class ObservedInputs(Record):
    """The inputs that nobody declared, and that the user's code was seen to read.

    `files` has the SHA-256 of each file by its path, which is relative within the working directory, or
    `missing`, or `there` where only that was asked; of a folder that was listed (`name/`), that of the names
    in it; of one from which very many files were read (`name/*`), that of all files in it; of a link that was
    asked where it leads (`name@`), that of the target. `variables` has the beginning of the SHA-256 of each
    environment variable, or `unset`; None where the name is like that of a credential: it is not compared.
    `unseen` names what was used and cannot be observed.
    """

    files: dict[str, str] = Field(default_factory=dict)
    variables: dict[str, str | None] = Field(default_factory=dict)
    unseen: list[str] = Field(default_factory=list)

    def differences(self, now: ObservedInputs) -> list[Difference]:
        """Return the files and variables that both have read, and that have changed.

        A file that is gone may be there under another name, where data have moved.
        """
        moved = {state for name, state in now.files.items() if name not in self.files}
        files = {
            name: state
            for name, state in self.files.items()
            if name in now.files and not (now.files[name] == MISSING and state in moved - {MISSING, "there"})
        }
        variables = {
            name: state
            for name, state in self.variables.items()
            if state is not None and now.variables.get(name) is not None
        }
        return [
            *_compare("file", files, {name: now.files[name] for name in files}),
            *_compare("variable", variables, {name: now.variables[name] for name in variables}),
        ]


class NumericEnvironment(Record):
    """The surroundings that an attempt's arithmetic depends on besides its inputs.

    `system` is operating system, machine and C library; `cpu` the processor's name, and `instructions` the
    extensions of its instruction set that arithmetic uses; `framework` the versions, device and precision
    that the framework names; `flags` the environment variables that change arithmetic, and `resolved` what
    the libraries that were imported have made of processor and variables; `imported` the version of each
    package that the run imported.
    """

    python: str | None = None
    system: str | None = None
    cpu: str | None = None
    instructions: list[str] | None = None
    threads: int | None = None
    framework: dict[str, str] = Field(default_factory=dict)
    flags: dict[str, str] = Field(default_factory=dict)
    resolved: dict[str, str] = Field(default_factory=dict)
    imported: dict[str, str] = Field(default_factory=dict)


class Environment(NumericEnvironment):
    """The numeric environment, which is compared, and records of what surrounds it, which are not.

    `mesh` has the sizes of the grid of processes along its axes: the bits are the same on any. `packages` are
    all that are installed.
    """

    hash: str | None = None
    platform: str | None = None
    mesh: dict[str, int] = Field(default_factory=dict)
    packages: dict[str, str] = Field(default_factory=dict)

    def numeric(self) -> NumericEnvironment:
        """Return the part that is compared."""
        return NumericEnvironment(**{name: getattr(self, name) for name in NumericEnvironment.model_fields})

    def differences(self, now: Environment) -> list[Difference]:
        """Return what differs. What one of the two does not record is not compared."""
        names = {*now.imported, *self.imported}
        before, after = self._view(names), now._view(names)
        for values, others in ((before, after), (after, before)):
            for key in [key for key in values if key.startswith(_IF_RECORDED) and others.get(key) is None]:
                del values[key]
        for key, libraries in _REPORTED.items():  # equal effects may have other spellings
            if any(name.startswith(libraries) for name in self.resolved if name in now.resolved):
                before.pop(f"flags {key}", None)
                after.pop(f"flags {key}", None)
        return _compare("environment", before, after)

    def _view(self, packages: set[str]) -> Json:
        versions = self.packages | self.imported
        return {
            "python": self.python,
            "system": self.system,
            "processor": self.cpu,
            "instructions": None if self.instructions is None else " ".join(self.instructions),
            "threads": self.threads,
            **{f"framework {key}": value for key, value in self.framework.items()},
            **{f"flags {key}": value for key, value in self.flags.items() if (key, value) not in _DEFAULTS},
            **{f"resolved {key}": value for key, value in self.resolved.items()},
            **{f"package {name}": versions[name] for name in sorted(packages) if name in versions},
        }


# Flags that adapters and their libraries set where they are absent.
_DEFAULTS = {
    ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
    ("KMP_DUPLICATE_LIB_OK", "True"),
    ("KMP_INIT_AT_FORK", "FALSE"),
}
# The libraries that report the effect of a variable, by the beginnings of their names in `resolved`.
_REPORTED = {
    "NPY_DISABLE_CPU_FEATURES": "numpy",
    "NPY_ENABLE_CPU_FEATURES": "numpy",
    "OPENBLAS_CORETYPE": "openblas",
    "ATEN_CPU_CAPABILITY": "aten",
    "MKL_CBWR": "mkl",
    "TF_ENABLE_ONEDNN_OPTS": "tensorflow onednn",
}
_IF_RECORDED = ("python", "system", "processor", "instructions", "threads", "framework ", "resolved ")


class InitialWeights(Record):
    """The digest of the initial weights.

    Another trainer may have continued from a step without a digest: `from_step`. Of weights that were read
    from files, `files` has their SHA-256 by name, and `loaded` what the model has taken of them.
    """

    initial: str | None = None
    from_step: int | None = None
    files: dict[str, str] = Field(default_factory=dict)
    loaded: LoadedWeights | None = None


class DeterminismRecord(Record):
    """The exactness with which the run can be repeated, and why not better."""

    tier: Literal["bitwise", "order", "statistical"] = "statistical"
    reason: str = "it was not recorded"


class Change(Record):
    """Inputs that changed before a resume and were accepted; `time` is in seconds since the epoch."""

    time: float
    differences: list[Difference]


class Parent(Record):
    """The run or study that this run belongs to, and how (`reproduce`, `benchmark` ...).

    `decisions` are those of the parent that this run replays. `untested` says that the model is not evaluated
    on the test split: it is a trial of a search, of which only the best one is.
    """

    run_id: Name
    relation: str
    decisions: list[Any] = Field(default_factory=list)
    untested: bool = False


class InitialState(Record):
    """The state of another run that a run starts from: an input of its computation.

    It is a checkpoint of run `run_id`, of step `checkpoint_step`; without a `state_digest`, the start of that
    run. From there to `step`, the run trains under the config of the other one, whose computation hash is
    `replays`; from `step` on, where `consumed` samples of `epoch` are consumed, it trains under its own.

    `loop_sha256` is that of the loop's state: evaluations and random generators. `replayed` is the digest of
    the state at `step`, once the steps before it are replayed. `differs` says, of a run that goes on after
    another, why it will not have the bits of a run that had its length from the start.
    """

    run_id: Name
    relation: str
    step: int
    epoch: int = 0
    consumed: int = 0
    checkpoint_step: int = 0
    state_digest: str | None = None
    loop_sha256: str | None = None
    replays: str | None = None
    replayed: str | None = None
    differs: list[str] = Field(default_factory=list)

    def identity(self) -> Json:
        """Return what bits depend on; whose state it is does not change them."""
        names = ("step", "epoch", "consumed", "checkpoint_step", "state_digest", "loop_sha256", "replays")
        return {f"initial state, {name}": getattr(self, name) for name in names}


class ForeignTrainer(Record):
    """The trainer of another library that made the run, and where it keeps its checkpoints."""

    name: str
    identity: Json = Field(default_factory=dict)
    checkpoints: list[tuple[str, str]] = Field(default_factory=list)


class Manifest(Document):
    """Every input of a run's computation; written before step 1, and compared at each resume.

    `config_sha256` is that of the file `config.yaml`, and `earlier_configs` are those that it had at earlier
    attempts; `config_hash` is that of its values. `placement` is
    where the newest attempt computes, by dotted config key: the next one computes there, too, unless it is
    told otherwise. `compression` says how the run was made of its parent, where nothing was trained.
    `changed_model` has the parts of `model` that training has changed in an object that was
    given in Python: whoever gives it again may give it as it is then.
    """

    FILE: ClassVar[str] = "manifest.json"

    run_id: str
    experiment: str
    created: str | None = None
    working_directory: str = "."
    command: list[str] = Field(default_factory=list)
    objects: list[str] = Field(default_factory=list)
    semantics: dict[str, int] = Field(default_factory=dict)
    seed: int | None = None
    config_hash: str | None = None
    config_sha256: str | None = None
    earlier_configs: list[str] = Field(default_factory=list)
    computation_hash: str | None = None
    computation: Json = Field(default_factory=dict)
    data: DataIdentity = Field(default_factory=DataIdentity)
    code: CodeIdentity = Field(default_factory=CodeIdentity)
    observed: ObservedInputs = Field(default_factory=ObservedInputs)
    environment: Environment = Field(default_factory=Environment)
    placement: Json = Field(default_factory=dict)
    model: dict[str, str] = Field(default_factory=dict)
    changed_model: dict[str, str] = Field(default_factory=dict)
    weights: InitialWeights = Field(default_factory=InitialWeights)
    determinism: DeterminismRecord = Field(default_factory=DeterminismRecord)
    changes: list[Change] = Field(default_factory=list)
    init_from: str | None = None
    data_file: Name = "data.json"
    parent: Parent | None = None
    initial: InitialState | None = None
    trainer: ForeignTrainer | None = None
    compression: CompressionRecord | None = None

    @field_validator("computation", "model")
    @classmethod
    def _without_secrets(cls, inputs: Json) -> Json:
        return {key: fingerprinted(key, value) for key, value in inputs.items()}

    def objects_in_words(self, names: Sequence[str] | None = None) -> str:
        """Return a clause for messages that names the Python objects that the run received, or `names`."""
        names = self.objects if names is None else names
        what = "a model object" if list(names) == ["model"] else f"{' and '.join(names)} objects"
        return f"run {self.run_id} was trained with {what} passed from Python"

    @property
    def demands_bitwise(self) -> bool:
        """True if the config refuses every change that could change a bit."""
        return self.computation.get("training.determinism") == "bitwise"

    def split_sha256(self, split: str) -> str | None:
        """Return the SHA-256 of what the model saw of a split, or None if it has no such split."""
        identity = self.data.splits.get(split)
        return identity.sha256 if identity else None

    def differences(self, now: Manifest) -> list[Difference]:
        """Return the inputs that differ, in the order of `KINDS`."""
        views = (
            ("config", lambda manifest: manifest.computation),
            ("model", self._model_view),
            ("weights", _weights_view),
        )
        differences = {kind: _compare(kind, view(self), view(now)) for kind, view in views}
        differences["data"] = _compare("data", _data_view(self, now), _data_view(now, self))
        differences["code"] = _compare_code(self, now)
        differences["environment"] = self.environment.differences(now.environment)
        for one in self.observed.differences(now.observed):
            differences.setdefault(one.input, []).append(one)
        return [difference for kind in KINDS for difference in differences.get(kind, ())]

    def _model_view(self, manifest: Manifest) -> Json:
        """Return the model of a manifest, without what the training of this run has changed in an object."""
        changed = {key for key, value in self.changed_model.items() if manifest.model.get(key) == value}
        own = {key: self.model[key] for key in changed & self.model.keys()}
        return {key: value for key, value in manifest.model.items() if key not in changed} | own

    def shared_differences(self, other: Manifest) -> list[Difference]:
        """Return what differs in the inputs that this run shares with another one of its study.

        It is what the user's code was seen to read in both; the data, as far as both prepare the same; the
        sources that both have imported; and, where the models are the same and `init_from` names their
        weights, the initial weights.
        """
        found = self.observed.differences(other.observed)
        if self._values_of("data.", "experiment.seed") == other._values_of("data.", "experiment.seed"):
            found += _compare("data", _data_view(self, other), _data_view(other, self))
            initialised = bool(self.init_from) and self.init_from == other.init_from
            if initialised and self._values_of("model.") == other._values_of("model."):
                found += _compare("weights", _weights_view(self), _weights_view(other))
        then, now = _code_view(self), _code_view(other)
        shared = then.keys() & now.keys()
        return found + _compare(
            "code", *({key: one[key] for key in then if key in shared} for one in (then, now))
        )

    def _values_of(self, *beginnings: str) -> Json:
        """Return the values of the config whose keys begin so."""
        return {key: value for key, value in self.computation.items() if key.startswith(beginnings)}

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
            "observed",
            "environment",
            "placement",
            "model",
        )
        inputs = {name: getattr(now, name) for name in (*names, "semantics", "weights", "data_file")}
        inputs["earlier_configs"] = self.configs_before(now)
        return self.model_copy(
            update=inputs | {"changes": [*self.changes, change], "determinism": determinism}
        )

    def configs_before(self, now: Manifest) -> list[str]:
        """Return the hashes that `config.yaml` had before the present one."""
        known = [*self.earlier_configs, self.config_sha256]
        return [one for one in dict.fromkeys(known) if one is not None and one != now.config_sha256]


def _compare(kind: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    keys = [*before, *(key for key in now if key not in before)]
    return [
        Difference(kind, key, before.get(key), now.get(key))
        for key in keys
        if before.get(key) != now.get(key)
    ]


def _data_view(manifest: Manifest, other: Manifest) -> Json:
    """Return what identifies the data, as far as it can be compared with another manifest."""
    splits = {
        f"{name} split, {key}": value
        for name, split in manifest.data.splits.items()
        for key, value in _without_none(split.to_json()).items()
    }
    fitted = {} if manifest.data.preparation is None else {"preparation": manifest.data.preparation}
    return splits | fitted | _changed_files(manifest, other) | _changed_pins(manifest, other)


def _changed_files(manifest: Manifest, other: Manifest) -> dict[str, str]:
    """Return the first files whose content is not that of the same name in another manifest.

    Files may have other names there, and the same content: then they are no difference.
    """
    files, others = manifest.data.files, other.data.files
    changed = [name for name in files if others.get(name, files[name]) != files[name]]
    return {f"file {name}": files[name] for name in changed[:_SHOWN_FILES]}


def _changed_pins(manifest: Manifest, other: Manifest) -> dict[str, str]:
    """Return the versions that both manifests name, and whose content differs."""
    pins, others = manifest.data.pins, other.data.pins
    changed = [key for key in pins if key in others and others[key].identity != pins[key].identity]
    return {f"version of {key}": str(pins[key]) for key in changed}


def _weights_view(manifest: Manifest) -> Json:
    initial = manifest.initial.identity() if manifest.initial else {}
    weights = {"initial": manifest.weights.initial, "from_step": manifest.weights.from_step}
    files = {f"file {name}": sha256 for name, sha256 in manifest.weights.files.items()}
    return _without_none(weights | files | initial)


def _code_view(manifest: Manifest) -> Json:
    return {f"module {name}": sha256 for name, sha256 in manifest.code.modules.items()} | {
        f"{SEMANTICS_OF}{name}": version for name, version in manifest.semantics.items()
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


def _compare_code(before: Manifest, now: Manifest) -> list[Difference]:
    return _compare("code", _code_view(before), _code_view(now)) + _edited(before.code, now.code)


def _without_none(data: Json) -> Json:
    return {key: value for key, value in data.items() if value is not None}


def _short(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:16]}…"
