"""The contract of frameworks: `Framework` describes, `Learner` trains, `Model` predicts.

A `Framework` is never instantiated, and importing its module must be cheap: its names and options are
readable without its library, which is imported when a learner or a model is made.

The result of a run must depend only on the learner's inputs and on the calls to `step`. It must not depend on
predictions, on snapshots, or on how often the process has died.

A run may have several processes (`LearnerInputs.world`). `LearnerInputs.order` still gives the global batch
of a step, and every process calls `step` with the same step number and learning rate; the framework decides
what they exchange. The result must not depend on their number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from pydantic import BaseModel

from trainwright.config.schema import RunConfig
from trainwright.config.spellings import Spellings
from trainwright.digest import WEIGHTS_FILE as WEIGHTS_FILE  # noqa: PLC0414 - adapters import it from here
from trainwright.errors import InputError
from trainwright.records.initial_weights import LoadedWeights
from trainwright.types import (
    Array,
    DataInfo,
    Determinism,
    FeatureForm,
    Ids,
    LoggedValues,
    Mode,
    NamedBuffer,
    Predictions,
    Proposal,
    SplitName,
    StepResult,
    Suggestion,
    TableShape,
)
from trainwright.world import ALONE, World

if TYPE_CHECKING:  # a config is checked without them
    from trainwright.datasets.base import Split
    from trainwright.digest import FileRecord
    from trainwright.order import SampleOrder
    from trainwright.records.compression import LayerRecord, Recipe
    from trainwright.records.mesh_estimate import Machines, MeshPlan
    from trainwright.tasks.support.accumulators import Accumulator


# Returns the learning rate as a function of the step, given the highest rate and the number of steps.
CustomRate = Callable[[float, int], Callable[[int], float]]


class Plan(NamedTuple):
    """The batch size, length and learning rate of a run, as its framework plans them.

    Attributes:
        batch_size: Number of samples in one step. A framework whose step uses all training rows gives their
            number, so that an epoch is one step.
        total_steps: Number of steps if the run is not stopped early.
        learning_rate: The peak learning rate; None if the model has none, in which case `step` receives 1.
        boundary: A run can be resumed exactly only from a step that is a multiple of this number. It must
            depend on the config alone, so that the model does not depend on when it was saved.
        cumulative: Whether the state after a step contains the model of every earlier step, as with additive
            trees. If so, the weights of the best step are extracted on demand, with `snapshot(step=...)`.
        scheduled: Whether `training.scheduler` varies the learning rate.
        custom_schedule: Makes the learning rate of a scheduler of the library that the config names by its
            import path; None for a function of the user's, and for all schedules of our own.
    """

    batch_size: int
    total_steps: int
    learning_rate: float | None
    boundary: int = 1
    cumulative: bool = False
    scheduled: bool = True
    custom_schedule: CustomRate | None = None


@dataclass(frozen=True)
class ModelInputs:
    """Everything that a model is built from.

    `model_params` are the validated options of `config.model.type`. `threads` is the number of CPU threads
    that the run was pinned to. `model` is the object that the user passed in Python, or None. It is trained
    and loaded in place where `Capabilities.trains_objects`, and defines the model elsewhere. To keep the
    object unchanged, pass a copy of it (`Framework.copied`).

    `world` are the processes: each has a learner, or a model that was loaded, and calls its methods in the
    same order with the same arguments.
    """

    config: RunConfig
    info: DataInfo
    model_params: Mapping[str, Any]
    threads: int
    model: Any = field(default=None, kw_only=True)
    world: World = field(default=ALONE, kw_only=True)


@dataclass(frozen=True)
class LearnerInputs(ModelInputs):
    """Everything that a learner is built from.

    `choices` are what `Learner.choices` returned in the first attempt, and are empty there. The main process
    of `world` alone calls the methods of snapshots.
    """

    splits: Mapping[SplitName, Split]
    order: SampleOrder
    choices: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def owns(self, split: Split) -> bool:
        """Return whether `split` is one of the run's own splits.

        These are evaluated repeatedly, so a learner may cache what it derives from them.
        """
        return any(split is own for own in self.splits.values())


class Snapshot(Protocol):
    """A copy of the state at one step, which training no longer changes.

    Its methods are called from the writer's thread.
    """

    def write(self, folder: Path) -> list[FileRecord]:
        """Write and fsync the files into the empty folder, hashing them while writing.

        After a failure it is called again with another folder. The weights go into `WEIGHTS_FILE`; files and
        tensors have the names that `Learner.state` gives them. Where several processes own parts of the
        state, each writes files of its own (`weights.1.safetensors`), and the records of tensors that are
        divided among them stand with one of these.
        """

    def release(self) -> None:
        """Release the copy: its memory may be reused for the next snapshot."""


@dataclass(frozen=True)
class Advice:
    """Advice on what to begin with, and to try, by the short names of a framework's models.

    Attributes:
        proposals: Returns proposals for a table (`trainwright init`).
        spaces: The keys of the config that are worth a search, with their ranges (`tune --suggest`). Those
            that a config does not take, or that have no effect, are left out. For others, the learning rate
            and the batch size are suggested where a model has both.
        unrestrained: Models without an option against overfitting, and the line of config for one, or for a
            similar model that has one: for the report of a run that overfits.
        unweighted: Models that take no weights of rows, so that they cannot weight classes either.
    """

    proposals: Callable[[TableShape], Mapping[str, Proposal]] = lambda _: {}
    spaces: Mapping[str, Mapping[str, Suggestion]] = field(default_factory=dict)
    unrestrained: Mapping[str, str] = field(default_factory=dict)
    unweighted: Collection[str] = ()


NO_ADVICE = Advice()


class Processes(ABC):
    """The start of a run's processes, and their rendezvous."""

    @abstractmethod
    def join(self, config: RunConfig) -> World:
        """Return the world of the processes that a launcher has started, this one being one of them.

        Raises:
            WorldError: The processes do not find each other.
        """

    @abstractmethod
    def launch(self, config: RunConfig, command: Sequence[str], folder: Path) -> int | None:
        """Start the processes of a run on this machine, and wait for their end.

        If one dies, all are ended, and started again, at most `distributed.max_restarts` times: with fewer
        processes where `distributed.nproc` is a range, and together with those of other nodes.

        Args:
            config: The resolved config.
            command: The command that each process executes.
            folder: A folder of their own, in which they can find each other.

        Returns:
            The number of the signal that has ended them, if one has.

        Raises:
            WorldError: A process has died, and no restarts are left.
        """

    @abstractmethod
    def check(self, nproc: int) -> Mapping[str, Any]:
        """Measure how processes reach each other: those of a launcher, or `nproc` that are started here.

        Returns:
            `processes`, `hosts`, `latency_seconds` and `bytes_per_second` of an all-reduce,
            `clock_skew_seconds`, and `problems` in words; empty in all processes but the main one.

        Raises:
            WorldError: The processes do not find each other, or die.
        """

    def plan(
        self,
        inputs: LearnerInputs,
        machines: Machines,  # noqa: ARG002 - for others
        *,
        is_free: bool,  # noqa: ARG002
        refusals: Sequence[str] = (),  # noqa: ARG002
    ) -> MeshPlan:
        """Estimate memory, communication and time of a step on the config's mesh and on the best others.

        Nothing of the size of the model is allocated, and no device is used.

        Args:
            inputs: What a learner would be built from.
            machines: The processes, and their machines.
            is_free: Whether the virtual mesh follows the mesh, since the config says nothing of it.
            refusals: Why the config cannot train in so many processes, in words; another mesh is then
                proposed in the place of its own.

        Raises:
            InputError: The config's own mesh is impossible, or this framework knows no estimates.
        """
        raise InputError(f"model.type: {inputs.config.model.type} is of a framework without estimates")


@dataclass(frozen=True)
class Library:
    """The library of a framework, and what may be imported of it for a config.

    Attributes:
        modules: The packages whose classes, and subclasses of these, are this framework's models.
        model_bases: The import paths of the classes that models derive from. A run directory, which may come
            from someone else, may name classes of the library that derive from them, and no others.
        optimizer_bases: The same of optimizers, whose classes are in the same package.
        data_classes: The library's own classes for data, which are refused.
        metric_modes: The ends of names of its metrics, and whether lower or higher is better.
        hub_name: The name of the library on model hubs, for model cards.
    """

    modules: Sequence[str]
    model_bases: Sequence[str] = ()
    optimizer_bases: Sequence[str] = ()
    data_classes: Collection[str] = ()
    metric_modes: Mapping[str, Mode] = field(default_factory=dict)
    hub_name: str = "trainwright"


@dataclass(frozen=True)
class Capabilities:
    """The abilities of a framework that not all have.

    Attributes:
        named_inputs: Models take other arrays than `features`.
        token_models: The models that take tokens, and nothing else.
        weights: A batch may have weights of its samples.
        workers: Worker processes may read samples (`data.workers`).
        accumulators: `Model.evaluate` lets metrics count the outputs.
        initial_weights: A run may begin with the weights of another one.
        chooses_weights: A run may begin with some of the tensors of a file, under other names, and with files
            of PyTorch.
        trains_objects: An object that is passed in Python is itself trained, from the weights that it has.
            Otherwise it is the definition of a model, whose training begins anew.
        target_encoding: Models encode categories themselves, by their targets.
        distillation: The import paths of losses of students, by the names of the tasks that have one.
    """

    named_inputs: bool = False
    token_models: Collection[str] = ()
    weights: bool = False
    workers: bool = False
    accumulators: bool = False
    initial_weights: bool = True
    chooses_weights: bool = False
    trains_objects: bool = False
    target_encoding: bool = False
    distillation: Mapping[str, str] = field(default_factory=dict)


class Compressed(NamedTuple):
    """The files of a compressed model, and what became of each of its layers."""

    files: Sequence[FileRecord]
    layers: Sequence[LayerRecord]


class Framework(ABC):
    """The description of a framework, such as `TorchFramework` in `frameworks/torch/`; never instantiated."""

    # -- what a config may name

    models: ClassVar[Mapping[str, type[BaseModel]]]  # short names of models -> their options
    optimizers: ClassVar[Mapping[str, type[BaseModel]]] = {}
    losses: ClassVar[Sequence[str]] = ()
    aliases: ClassVar[Collection[str]] = ()  # other names that a config may give the framework
    # Other names of options: the library's own, its aliases, and names that set something else.
    spellings: ClassVar[Spellings] = Spellings()
    optimizer_spellings: ClassVar[Spellings] = Spellings()

    # -- what it can do

    library: ClassVar[Library]
    tasks: ClassVar[Collection[str] | None] = None  # the names of the tasks that it supports; None: all
    capabilities: ClassVar[Capabilities] = Capabilities()

    # -- what users are told

    unsaved_hint: ClassVar[str] = ""  # how a user can save the state that `Learner.unsaved_state` reports
    advice: ClassVar[Advice] = NO_ADVICE

    # -- names, options and defaults

    @staticmethod
    def other_names() -> Mapping[str, tuple[str, str | None]]:
        """Return other names that people use for the models, such as the class names of the library.

        Returns:
            Each name with the short name of the model, and the task if the name implies one. Case, dashes and
            underscores do not matter.
        """
        return {}

    @staticmethod
    def defaults(model: str) -> Mapping[str, Any]:  # noqa: ARG004 - most models have no defaults of their own
        """Return the config defaults of a model that differ from the schema's, by dotted key.

        Args:
            model: `config.model.type`, a short name or an import path.
        """
        return {}

    @staticmethod
    @abstractmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:
        """Return the keys of `training` that have an effect on a model.

        Keys that the engine handles itself (`class_weights`, `early_stopping`, `threads` ...) need not be
        listed. The user is warned about any other key that is set. If `epochs` is listed and the config sets
        no length, `defaults` may give `training.epochs`.

        Args:
            model: `config.model.type`, a short name or an import path.
            params: The model's options.
        """

    @staticmethod
    def feature_form(config: RunConfig, model: Any = None) -> FeatureForm:  # noqa: ARG004 - for most it is one
        """Return the form in which a model gets the rows of tables.

        Args:
            config: The resolved config.
            model: The object that the user passed in Python, if any.

        Raises:
            ModelError: The model cannot be constructed.
        """
        return FeatureForm()

    # -- forks

    @staticmethod
    def change_refusal(option: str, config: RunConfig) -> str | None:  # noqa: ARG004 - most refuse none
        """Return why an option of a model cannot change once steps are trained; None if it can.

        Args:
            option: The option of `model.params` that differs from what the steps were trained with.
            config: The config in which it has changed.
        """
        return None

    @staticmethod
    def has_smaller_end(config: RunConfig) -> bool:  # noqa: ARG004 - most have not
        """Return whether the last step of a run would have been larger in a longer run."""
        return False

    # -- the plan of a run

    @staticmethod
    @abstractmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:
        """Return the plan of a run.

        Args:
            config: The resolved config.
            rows: Number of training rows.
            model: The object that the user passed in Python, if any.

        Raises:
            InputError: The config asks for something that this framework cannot do.
        """

    @staticmethod
    def step_work(
        config: RunConfig,  # noqa: ARG004 - most do not know
        info: DataInfo,  # noqa: ARG004
        plan: Plan,  # noqa: ARG004
        model: Any = None,  # noqa: ARG004
    ) -> float | None:
        """Return about how many multiplications a step takes, which decides the number of threads.

        None: it is not known before the model is built, or the number of threads cannot change; all
        processors are used then.
        """
        return None

    # -- what bits depend on

    @staticmethod
    @abstractmethod
    def determinism(config: RunConfig) -> Determinism:
        """Return how exactly the run can be repeated.

        This is called before anything is built, and may import the library.
        """

    @staticmethod
    def device_name(config: RunConfig) -> str | None:  # noqa: ARG004 - most need a learner
        """Return the device that a run of a config would compute on here, as `Learner.describe` names it.

        With it, inputs can be compared without building the model. None: only a learner knows.

        Args:
            config: The resolved config.
        """
        return None

    @staticmethod
    def quantile(config: RunConfig) -> float | None:  # noqa: ARG004 - most have no such objective
        """Return the quantile that the model of a config predicts, by whose pinball loss it is judged.

        None: its objective is another one.

        Args:
            config: The resolved config.
        """
        return None

    @staticmethod
    def neutral_changes(config: RunConfig) -> Collection[str]:  # noqa: ARG004 - most declare nothing
        """Return the parts of the numeric environment that change no bit of a run, such as `threads`.

        A run that is resumed with another value of them keeps its determinism tier. Declare only what a test
        of the adapter shows.

        Args:
            config: The resolved config.
        """
        return ()

    @staticmethod
    def pin(config: RunConfig, threads: int) -> None:  # noqa: ARG004 - not every library has such settings
        """Set what the bits depend on in the whole process, such as thread counts and determinism flags.

        It is called before `learner`, and before `load` by commands that promise the bits of the training. It
        must override what an earlier run in this process has set.

        Args:
            config: The resolved config.
            threads: Number of CPU threads.

        Raises:
            MissingExtraError: The library is not installed.
            ModelError: The process has begun with other settings, which the library cannot change any more.
        """
        return

    @staticmethod
    def reset() -> None:
        """Give the library the settings that it has after its import.

        A worker process that makes several runs calls it before each of them, if the library is imported:
        code of the user's may have changed what holds for the whole process (default types, precision ...).
        What each run sets anyway need not be reset.
        """
        return

    # -- several processes

    @staticmethod
    def processes() -> Processes | None:
        """Return what starts the processes of a run; None: this framework trains in one process."""
        return None

    # -- objects that are passed in Python

    @staticmethod
    def copied(model: Any) -> Any:
        """Return a copy of a model object that was passed in Python, which may be trained in its place.

        It is the object itself where training does not change it, or where it cannot be copied.
        """
        return model

    @staticmethod
    def check_sendable(model: Any) -> None:  # noqa: ARG004 - pickle refuses what most cannot send
        """Refuse a model object that would reach other processes incomplete.

        Raises:
            ModelError: It has parts that pickle leaves out without an error.
        """
        return

    @classmethod
    def fill(cls, inputs: ModelInputs, folder: Path) -> None:
        """Give the object `inputs.model`, which was passed in Python, the weights that a `Snapshot` wrote.

        Afterwards the object predicts as the model does that `load` returns; its settings stay as they are.

        Raises:
            ModelError: The weights do not fit it.
        """
        cls.load(inputs, folder)

    # -- learners and models

    @staticmethod
    @abstractmethod
    def learner(inputs: LearnerInputs) -> Learner:
        """Build a model with seeded initial weights, and all that is needed to train it.

        Raises:
            MissingExtraError: The library is not installed.
            ModelError: The model cannot be built, or does not fit the data.
        """

    @staticmethod
    def compress(
        inputs: ModelInputs,
        folder: Path,  # noqa: ARG004 - for others
        recipe: Recipe,  # noqa: ARG004
        rows: Split,  # noqa: ARG004
        target: Path,  # noqa: ARG004
    ) -> Compressed:
        """Compress a model, and write it so that `load` opens it. The same arguments give the same bits.

        Args:
            inputs: What the model is built from.
            folder: The folder with its weights.
            recipe: How to compress it.
            rows: Rows of the training split, for what is measured.
            target: The empty folder to write into.

        Raises:
            InputError: Models of this framework, or this one, cannot be compressed so.
            MissingExtraError: A library for it is not installed.
        """
        raise InputError(
            f"models of type {inputs.config.model.type} cannot be compressed; export the run instead: "
            "docs/export.md has what each format makes smaller"
        )

    @staticmethod
    @abstractmethod
    def load(inputs: ModelInputs, folder: Path) -> Model:
        """Return the model whose weights a `Snapshot` wrote into `folder`.

        It owns its weights and predicts in evaluation mode. Many threads may use it at once, together with
        other models, and get the outputs that one thread gets. Neither loading nor predicting changes
        anything in the process: no thread count, determinism flag or global generator. (The caller preserves
        the generators of Python and NumPy.) Its outputs have the bits of the training where the process is
        pinned as it was then, and agree to 1e-5 elsewhere. Where `Capabilities.trains_objects`, an object in
        `inputs.model` gets the weights, and is what the model predicts with.

        Args:
            inputs: What the model is built from.
            folder: The folder; its files have been verified.

        Raises:
            MissingExtraError: The library is not installed.
            ModelError: The model cannot be built, or the weights do not fit it.
        """


class Learner(ABC):
    """A model in training; all methods are called from the thread of the training loop.

    Building one may draw from global generators; `Framework.pin` has been called before. `weights` says which
    weights predict and are saved as the model: those that are `trained`, or `ema`, their average.
    """

    weights: str = "trained"

    @abstractmethod
    def step(self, step: int, lr: float) -> StepResult:
        """Train one step on the samples `order.batch(step)`.

        All randomness is derived from (seed, step, microbatch or sample), so that no earlier step has to be
        replayed (none before the last boundary, if `Plan.boundary` is above 1).

        Args:
            step: The step number, counted from 0.
            lr: The learning rate of the step.

        Raises:
            ModelError: The library rejects the options or the data in the first step. An adapter that checks
                both when it builds the learner does not raise it here.
            TrainingError: The step fails for another reason.
        """

    def read(self, losses: Sequence[Any]) -> list[float]:
        """Return the losses of some steps as floats; the loop waits for the device only here."""
        return [float(loss) for loss in losses]

    def measures(self) -> Mapping[str, float]:
        """Return what the last step measured besides its loss, by the names that the journal uses.

        It is called where a step is logged, after `read`.
        """
        return {}

    def logged(self) -> Sequence[LoggedValues]:
        """Return what the model has logged itself in each step since the last call; a collective call."""
        return ()

    @abstractmethod
    def model(self) -> Model:
        """Return a view of the live weights; each call returns the same object.

        It predicts with the weights as they are at the time, only in the loop's thread, and changes no state
        of the training.
        """

    @abstractmethod
    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> Snapshot:
        """Copy the state; the only part of a save that blocks training. A collective call.

        Each process copies the parts that it owns; the snapshot of the main one writes those of all.

        Args:
            weights_only: Leave out what only a resume needs.
            step: Copy the weights as they were after this many steps; only given to `cumulative` frameworks,
                together with `weights_only`.
        """

    @abstractmethod
    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        """Load the state that `Snapshot.write` wrote into `folder`.

        The files of checkpoints have been verified. With `weights_only`, the folder may hold nothing but
        `WEIGHTS_FILE`, which may come from elsewhere.

        Raises:
            ModelError: The weights do not fit the model, or their file is not in the safetensors format.
        """

    def begin(self, folder: Path) -> LoadedWeights | None:
        """Take the initial weights of `model.init_from`, and return what of them was taken.

        The folder holds files of safetensors, `WEIGHTS_FILE` and others, as several processes name theirs.
        If the framework `chooses_weights`, they may be of PyTorch, `*.pt`, or be beside the file of peft.

        Raises:
            ModelError: The weights do not fit the model, or their file cannot be read.
        """
        self.restore(folder, weights_only=True)
        return None

    @abstractmethod
    def state(self, *, weights_only: bool = False) -> Iterator[NamedBuffer]:
        """Yield the tensors of the state that this process holds, in a fixed order.

        Tensors named `weights.*` are the model; the others are needed only for a resume. With `weights_only`,
        yield the model alone. A tensor is either whole in each process that holds it, with the same bytes, or
        divided into blocks that do not overlap. The collective `runs.processes.state.state_records` puts the
        records together.
        """

    def unsaved_state(self) -> Mapping[str, str]:
        """Return a fingerprint of each thing that a step may change and no snapshot holds, by its name.

        It is called before and after the first step of an attempt, before its first saves and at its end.
        Where the fingerprints differ, a resume cannot be exact, and the run's determinism tier is lowered.
        """
        return {}

    def why_inexact(self) -> str:
        """Return why a resume is not exact, as far as that is seen before the first step; "": it is.

        It is where code of the user's, such as an objective, keeps state that no snapshot holds.
        """
        return ""

    @abstractmethod
    def describe(self) -> Mapping[str, str]:
        """Return the framework's part of the numeric environment.

        It holds the library's version, the model of the device, the resolved precision, and every other
        setting of the library that changes how numbers are computed.
        """

    def definition(self) -> Mapping[str, str]:
        """Return what determines the model beyond the config and the initial weights.

        Examples are the options of a model object, the digest of its file, and the import paths of its parts.
        A resume with a different definition is refused. Code that an import path names counts as an input of
        the run.
        """
        return {}

    def close(self) -> None:
        """End what the learner has started, such as processes that read samples; it is not used any more.

        An object that was passed in Python, and trained, is left with its new weights and its old settings.
        """
        return

    def changed_definition(self) -> Mapping[str, str]:
        """Return the parts of `definition` that training has changed in an object passed in Python.

        It is called after `close`. Examples are attributes in which `forward` keeps values. A resume in the
        same process meets the object as it is then.
        """
        return {}

    def step_seconds(self) -> Sequence[float]:
        """Return how long this process computed in each step since the last call, in seconds.

        Waiting for other processes does not count. It is called where there are several; empty: not measured.
        """
        return ()

    def choices(self) -> Mapping[str, str]:
        """Return what was chosen by measuring when the learner was built, such as a layout of histograms.

        Measurements vary, so the choices of the first attempt are recorded: every later attempt, and every
        repetition of the run, is built with them (`LearnerInputs.choices`).
        """
        return {}


class Model(ABC):
    """A model that predicts: one that `Framework.load` made, or the view of a learner's live weights."""

    @property
    def input_names(self) -> Sequence[str] | None:
        """The arrays of a batch that the model is called with; None for all of `DataInfo.inputs`."""
        return None

    @property
    def rows_together(self) -> int:
        """The number of rows that are predicted together, on which their bits depend; 1 if they do not."""
        return 1

    @abstractmethod
    def predict(self, split: Split) -> Iterator[Predictions]:
        """Yield the outputs for all rows of a split, in order.

        A model that draws random numbers derives them from the seed and the position of the rows, so that the
        outputs depend only on the config, the weights and the split.

        Raises:
            TrainingError: The library fails.
        """

    def evaluate(self, split: Split, accumulators: Sequence[Accumulator] = ()) -> Iterator[Predictions]:
        """Yield the outputs for all rows of a split, with their targets, as `predict` does.

        Args:
            split: The rows.
            accumulators: A user's own metrics that count what the model returns; each part has their counts.
                Empty unless `Capabilities.accumulators`.
        """
        assert not accumulators, "Capabilities.accumulators is checked before"
        return self.predict(split)

    def next_token(self, tokens: Ids) -> Array:  # noqa: ARG002 - most models read no text
        """Return the logits of the token that follows some tokens, (vocabulary,) float64, of text.

        Args:
            tokens: (length,) int64, at most as many as a training sample has.

        Raises:
            InputError: The model reads no text.
        """
        raise InputError("this model generates no text: its framework has no language models")

    def token_logits(self, tokens: Ids) -> Array:  # noqa: ARG002 - as above
        """Return the logits of the token after each one, (rows, length, vocabulary) float32, of texts.

        Args:
            tokens: (rows, length) int64; see `next_token`.

        Raises:
            InputError: The model reads no text.
        """
        raise InputError("this model generates no text: its framework has no language models")

    @property
    @abstractmethod
    def native(self) -> Any:
        """The model as the library's own object, such as a `torch.nn.Module` or an `xgboost.Booster`."""

    @property
    def link(self) -> str:
        """The function from what the native model returns to the outputs: identity, exp, sigmoid, softmax.

        Other than `identity` where the library leaves it to the caller.
        """
        return "identity"

    @property
    def parameter_count(self) -> int | None:
        """The number of trained parameters, for searches among small models; None for trees and the like."""
        return None

    def importance(self) -> Mapping[str, Array]:
        """Return the library's own feature importances: kind of measure -> (features,) float64."""
        return {}
