"""Build what a run is computed with: components are put together here and nowhere else."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType
from typing import Any, cast

from trainyard import registry
from trainyard.announce import announced
from trainyard.callbacks.base import Callback, RunView
from trainyard.callbacks.histograms import WeightHistograms
from trainyard.callbacks.resources import Resources
from trainyard.config.metrics import deciding_metrics, metric_path, undecided_modes
from trainyard.config.schema import DataConfig, RunConfig
from trainyard.datasets.base import DataBundle, KnownSplit, LabelSplit, SampleSplit, Split, prepared_as
from trainyard.engine.checkpoint import Checkpoints, RunCheckpoints
from trainyard.engine.journal import Journal
from trainyard.engine.lease import Lease
from trainyard.engine.loop import Loop, LoopParts
from trainyard.engine.outside import Outside
from trainyard.engine.recorder import Recorder
from trainyard.engine.rules import NOTHING_INHERITED, Inherited, Rules
from trainyard.engine.saver import FollowerSaver, Saver
from trainyard.engine.signals import Signals
from trainyard.engine.state import RunState, preserved_global_random
from trainyard.errors import DataError, InputError, ModelError
from trainyard.evaluation.metrics import (
    EvaluationResult,
    check_metric,
    default_metrics,
    evaluate_predictions,
    mode_in,
)
from trainyard.frameworks.base import Framework, Learner, LearnerInputs, Model, Plan
from trainyard.order import START, Cursor, SampleOrder, WeightedDraws
from trainyard.records.log import committed
from trainyard.records.run_dir import RunDir
from trainyard.registry import task_for
from trainyard.require import import_path
from trainyard.runs.learner_data import learner_splits
from trainyard.runs.objects import NO_DATA, Objects
from trainyard.runs.own_unit import own_unit
from trainyard.runs.sampling import check_sampling, drawing_weights, epoch_samples
from trainyard.runs.shared_data import loaded
from trainyard.semantics import in_force
from trainyard.types import FEATURES, Array, DataInfo, FeatureForm, Metrics, Predictions, SplitName
from trainyard.world import ALONE, World

log = logging.getLogger("trainyard")
SMALL_STEP = 30_000_000  # multiplications; one thread makes them in a few milliseconds


@dataclass(frozen=True)
class Components:
    """The components that a run is computed with; `inputs` are those of the learner."""

    inputs: LearnerInputs
    bundle: DataBundle
    framework: type[Framework]
    learner: Learner
    rules: Rules

    @property
    def config(self) -> RunConfig:
        """The resolved config, at the place of this attempt."""
        return self.inputs.config

    @property
    def model(self) -> Model:
        """A view of the live weights, whose predictions are in the target's own unit."""
        live, splits = self.learner.model(), self.bundle.splits
        return own_unit(live, self.bundle.info, splits, self.inputs.splits)

    @property
    def order(self) -> SampleOrder:
        """The order of the training samples."""
        return self.inputs.order

    @property
    def plan(self) -> Plan:
        """How the framework trains: batch size, number of steps, learning rate."""
        return self.rules.plan


def available_threads(config: RunConfig) -> int:
    """Return how many CPU threads each virtual rank can have.

    They share the processors that may be used. So it is the same for each number of processes, as it
    may change bits.
    """
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks = config.distributed.virtual_ranks
    assert isinstance(ranks, int), "config.load resolves auto"
    return max(1, available // ranks)


def default_threads(
    framework: type[Framework], config: RunConfig, info: DataInfo, plan: Plan, model: Any = None
) -> int:
    """Return the number of CPU threads of a process where the config sets none: one for small steps.

    The threads of a small step wait for each other longer than they compute, and ten times as long as one
    thread computes where other programs use the processors, too.
    """
    work = framework.step_work(config, info, plan, model)
    return 1 if work is not None and work < SMALL_STEP else available_threads(config)


def load_data(config: RunConfig, model: Any = None) -> DataBundle:
    """Read the data that the config names, and prepare them as the model's framework asks for.

    Raises:
        DataError: There is no data section, or the data cannot be used.
        ModelError: No framework knows the model.
    """
    if config.data is None:
        raise DataError(NO_DATA)
    cls = registry.dataset_of(config.data.type)
    form = form_for(config, model)
    with prepared_as(form):
        return loaded(cls(config.data, cls.Params(**config.data.params)), config.data, form)


def form_for(config: RunConfig, model: Any = None) -> FeatureForm:
    """Return the form in which the model's framework wants the rows of tables.

    Raises:
        ModelError: No framework knows the model, or it cannot be constructed.
    """
    framework = cast(type[Framework], registry.adapter("framework", framework_name(config, model)))
    return framework.feature_form(config, model)


def framework_name(config: RunConfig, model: Any = None) -> str:
    """Return the name of the framework that the model belongs to.

    Raises:
        ModelError: The model's import path leads to no class, or no framework knows it.
    """
    if model is not None:
        return registry.framework_of_class(type(model))
    if config.model.framework:
        return config.model.framework
    if (known := registry.framework_of(config.model.type)) is not None:
        return known
    if ":" in config.model.type:
        try:
            model_type = import_path(config.model.type)
        except InputError as error:
            raise ModelError(f"model.type: {error}") from error
        if isinstance(model_type, FunctionType):
            raise ModelError(
                f"model {config.model.type} is a function: name its framework in model.framework: "
                "torch, keras or sklearn"
            )
        return registry.framework_of_class(model_type if isinstance(model_type, type) else type(model_type))
    raise ModelError(
        f"model.type: no installed framework has a model {config.model.type!r}; "
        "see `trainyard doctor`, or give package.module:Class"
    )


def framework_for(config: RunConfig, info: DataInfo, model: Any = None) -> type[Framework]:
    """Return the framework of a model, if it can do what the data ask for.

    Raises:
        ModelError: It does not do this task, or takes only an array of features; or no framework knows the
            model.
    """
    name = framework_name(config, model)
    framework = cast(type[Framework], registry.adapter("framework", name))
    _check_task(framework, name, config, info)
    ranks = config.distributed.virtual_ranks
    if ranks != 1 and not framework.has_virtual_ranks:
        raise ModelError(
            f"distributed.virtual_ranks: {ranks} given, but {name} computes a step as a whole; leave it out"
        )
    return framework


def _check_task(framework: type[Framework], name: str, config: RunConfig, info: DataInfo) -> None:
    """Check that a framework can do what the data ask for.

    Raises:
        ModelError: It does not do this task, or takes only an array of features.
    """
    model = f"model {config.model.type}" + (f" ({name})" if config.model.type != name else "")
    if framework.tasks is not None and info.task not in framework.tasks:
        raise ModelError(
            f"{model} does not do {info.task}, but the data are for it; {name} does "
            f"{', '.join(framework.tasks)}, and torch does every task"
        )
    if not framework.takes_named_inputs and list(info.inputs) != [FEATURES]:
        raise ModelError(
            f"{model} takes one array of features, but the data have {', '.join(info.inputs)}; use a model "
            "of torch, or put them into one array"
        )


def build(
    config: RunConfig,
    threads: int | None,
    objects: Objects,
    choices: Mapping[str, str] | None = None,
    begin: Callable[[DataBundle], tuple[Cursor, Inherited]] | None = None,
    world: World = ALONE,
) -> Components:
    """Build data, sample order, learner and rules.

    Args:
        config: The config.
        threads: The number of CPU threads; None: as many as the step can use.
        objects: What was given in Python.
        choices: What an earlier attempt has chosen.
        begin: Returns where the run begins on these data, and what it takes over; default: at step 0.
        world: The processes of the attempt.

    Raises:
        InputError: One of them cannot be built as configured.
    """
    bundle = objects.data if objects.data is not None else load_data(config, objects.model)
    if bundle.info.semantics != in_force():  # data given as objects were prepared before it was known
        bundle = replace(bundle, info=replace(bundle.info, semantics=in_force()))
    _check_metrics(config, bundle)
    model, rows = objects.model, len(bundle.splits["train"])
    framework = framework_for(config, bundle.info, model)
    _check_reading(config, bundle, framework)
    plan: Plan = framework.plan(config, epoch_samples(config, rows), model)
    check_sampling(config, framework, plan)
    if threads is None:
        threads = world.from_main(lambda: default_threads(framework, config, bundle.info, plan, model))
    cursor, past = begin(bundle) if begin else (START, NOTHING_INHERITED)
    order, rules = order_and_rules(config, plan, rows, cursor, past, drawing_weights(config, bundle))
    inputs = LearnerInputs(
        config,
        bundle.info,
        config.model.params,
        threads,
        learner_splits(config, bundle, framework, model),
        order,
        model=model,
        choices=choices or {},
        world=world,
    )
    framework.pin(config, threads)
    with announced(f"building the model, and handing it {rows:,} rows"):
        learner = framework.learner(inputs)
    return Components(inputs, bundle, framework, learner, rules)


def order_and_rules(
    config: RunConfig,
    plan: Plan,
    rows: int,
    begin: Cursor = START,
    past: Inherited = NOTHING_INHERITED,
    weights: Array | None = None,
) -> tuple[SampleOrder, Rules]:
    """Return the order of the samples and the rules of a run that begins at a cursor.

    `training.epochs` counts whole passes over the data. A run that begins elsewhere than its config alone
    would be at that step, since it was forked with another batch size or other data, has other steps.

    Args:
        config: The config.
        plan: How the framework trains.
        rows: The number of training rows.
        begin: Where the run begins.
        past: What it takes over.
        weights: (rows,) in proportion to which samples are drawn; None: they are not, or only cursors matter.
    """
    seed, drop_last, samples = config.experiment.seed, config.training.drop_last, epoch_samples(config, rows)
    draws = None if weights is None else WeightedDraws(weights)
    order = SampleOrder(samples, plan.batch_size, seed, begin, drop_last=drop_last, draws=draws)
    usual = SampleOrder(samples, plan.batch_size, seed, drop_last=drop_last).cursor(begin.step)
    if begin != usual and config.training.epochs and not config.training.max_steps:
        plan = plan._replace(total_steps=order.end_of(config.training.epochs))
    mode_of = partial(mode_in, config)
    ends = {"epoch_end": order.first_end, "epoch": order.begin.epoch + 1}
    return order, Rules(config, plan, order.steps_per_epoch, mode_of, **ends, past=past)


def _check_metrics(config: RunConfig, bundle: DataBundle) -> None:
    for metric in config.evaluation.metrics or []:
        check_metric(metric, bundle.info.task)
    undecided = undecided_modes(config)
    for key, metric in deciding_metrics(config).items():
        check_metric(metric_path(config, metric), bundle.info.task)
        if key in undecided:
            try:
                mode_in(config, metric)
            except InputError as error:
                raise InputError(f"{key}: {error}") from error
        if "val" not in bundle.splits and key != "checkpoint.metric":
            raise InputError(f"{key}: {metric} needs a validation split; set data.split.val or data.val_path")


def _check_reading(config: RunConfig, bundle: DataBundle, framework: type[Framework]) -> None:
    """Check the settings that say how samples are read one by one; say so where they have no effect.

    Raises:
        DataError: The samples are in memory, so that there is nothing to collate.
        ModelError: The framework has no worker processes.
    """
    data = config.data
    if data is None:
        return
    _check_images(data, bundle, config, framework)
    is_read = any(isinstance(split, SampleSplit) for split in bundle.splits.values())
    if data.collate is not None and not is_read:
        raise DataError("data.collate is for map-style data sets, but these rows are in memory; leave it out")
    if data.on_corrupt != "error" and not is_read:
        raise DataError(
            "data.on_corrupt is for samples that are read one by one (images in files, map-style data sets, "
            "shards), but these rows are in memory; leave it out"
        )
    if data.workers and not is_read:
        log.warning("data.workers: %d has no effect, as the rows are in memory", data.workers)
    elif data.workers and not framework.has_workers:
        raise ModelError(
            f"data.workers: {data.workers} given, but {config.model.type} reads its samples itself; leave it "
            "out, or use a model of torch"
        )


def _check_images(
    data: DataConfig, bundle: DataBundle, config: RunConfig, framework: type[Framework]
) -> None:
    """Check the settings of images.

    Raises:
        DataError: The data are no images in files.
        ModelError: The framework cannot draw random numbers for each image.
    """
    if not any(isinstance(split, KnownSplit | LabelSplit) for split in bundle.splits.values()):
        given = {"transforms": data.transforms, "cache": data.cache != "none"}
        for key in (key for key, is_given in given.items() if is_given):
            raise DataError(
                f"data.{key} is for images in files (data.type: image_folder or image_table); leave it out"
            )
    if data.ignore_index is not None and not task_for(bundle.info).gives_masks:
        raise DataError("data.ignore_index is for masks (data.task: segmentation); leave it out")
    if not framework.has_workers and (drawing := [one.type for one in data.transforms if one.is_random]):
        raise ModelError(
            f"data.transforms: {drawing[0]} changes images at random in each epoch, which "
            f"{config.model.type} cannot have; leave it out, or use a model of torch"
        )


def wanted_metrics(config: RunConfig, info: DataInfo) -> list[str]:
    """Return the metrics to compute: the config's or the task's own, and those that decide something.

    A user's own are import paths.
    """
    listed = config.evaluation.metrics
    chosen = list(default_metrics(info.task) if listed is None else listed)
    deciding = (metric_path(config, metric) for metric in deciding_metrics(config).values())
    return list(dict.fromkeys([*chosen, *deciding]))


def interruptible(
    predictions: Iterator[Predictions], check_signals: Callable[[], None], world: World = ALONE
) -> Iterator[Predictions]:
    """Yield the predictions; raise `Stopped` between two of them if a signal came.

    Several processes finish them: they stop together, at a step.
    """
    if world.size > 1:
        yield from predictions
        return
    try:
        for part in predictions:
            check_signals()
            yield part
    finally:
        if isinstance(predictions, Generator):  # let it undo an unfinished evaluation before the next save
            predictions.close()


def evaluate_split(
    components: Components, split: SplitName, check_signals: Callable[[], None]
) -> EvaluationResult:
    """Evaluate the model; neither its state nor the global random generators change."""
    return evaluate_rows(components, components.bundle.splits[split], split, check_signals)


def evaluate_rows(
    components: Components, rows: Split, split: SplitName, check_signals: Callable[[], None]
) -> EvaluationResult:
    """Evaluate the model on some rows of a split; see `evaluate_split`."""
    predictions = interruptible(
        components.model.predict(rows),
        check_signals,
        components.inputs.world,
    )
    with preserved_global_random():
        return evaluate_predictions(
            predictions,
            wanted_metrics(components.config, components.bundle.info),
            components.bundle.info,
            split,
        )


def run_checkpoints(
    run: RunDir, run_files: Mapping[str, str] | None = None, lease: Lease | None = None
) -> RunCheckpoints:
    """Return the checkpoints of a run that its log names.

    Args:
        run: The run directory.
        run_files: Files that new ones cover (SHA-256 by name).
        lease: The right to commit new ones; None: they are only read.
    """
    store = registry.adapter("store", "file")(run.path)
    attempt, fetch = (lease.attempt, lease.fetch) if lease else (0, None)
    resume, best = (
        Checkpoints(store, kind, attempt, run_files, committed(store, kind), fetch)
        for kind in ("checkpoints", "best")
    )
    return RunCheckpoints(resume, best, lease)


def build_loop(
    components: Components,
    state: RunState,
    journal: Journal,
    checkpoints: RunCheckpoints,
    signals: Signals,
    callbacks: Sequence[Callback],
    outside: Outside,
    pause_at: int | None = None,
) -> Loop:
    """Build the loop, which pauses at step `pause_at`, if given."""
    config, world = components.config, components.inputs.world
    recorder = Recorder(journal, callbacks if world.is_main else ())
    if world.is_main:
        recorder.add(Resources(recorder.resources))
    if wants_histograms(config) and world.is_main:
        recorder.add(WeightHistograms(components.learner, recorder.histograms))
    make = Saver if world.is_main else FollowerSaver
    saver = make(config.checkpoint, components.learner, components.plan, checkpoints, recorder, world.size)

    def evaluate_val() -> Metrics:
        return (
            evaluate_split(components, "val", signals.check).metrics
            if "val" in components.bundle.splits
            else {}
        )

    return Loop(
        LoopParts(
            components.learner,
            components.order,
            components.rules,
            recorder,
            saver,
            signals,
            evaluate_val,
            _remedies(components),
            outside,
            pause_at,
            world,
        ),
        state,
    )


def warn_unjudged(components: Components, step: int) -> None:
    """Warn that the verdict will not be asked, where no evaluation comes between `step` and the last one."""
    rules, reason = components.rules, ""
    if "val" not in components.bundle.splits:
        reason = "the run has no validation split; set data.split.val or data.val_path"
    elif rules.total_steps == 1:
        reason = "this model is made in one step"
    elif rules.next_evaluation(step) >= rules.total_steps:
        after = f" from step {step} on," if step else ""
        reason = f"{after} the validation split is evaluated at the end only; see evaluation.every_n_steps"
    if reason and components.inputs.world.is_main:
        log.warning("the verdict will not be asked: %s", reason.strip())


def _remedies(components: Components) -> list[str]:
    """Return the settings of this framework that may keep the loss finite."""
    model = components.config.model
    keys = components.framework.training_keys(model.type, model.params)
    advice = {
        "learning_rate": "lower training.learning_rate",
        "max_grad_norm": "set or lower training.max_grad_norm",
    }
    return [text for key, text in advice.items() if key in keys] or ["check the options of the model"]


def wants_histograms(config: RunConfig) -> bool:
    """Return whether the config or a tracker asks for weight histograms."""
    return config.logging.histograms or any(
        registry.adapter("tracker", item.type).wants_histograms for item in config.tracking
    )


def run_view(components: Components, run: RunDir, state: RunState, attempt: int) -> RunView:
    """Return what callbacks receive at the start."""
    return RunView(
        run_id=run.id,
        experiment=run.experiment,
        start_step=state.step,
        total_steps=components.rules.total_steps,
        steps_per_epoch=components.order.steps_per_epoch,
        train_samples=len(components.bundle.splits["train"]),
        batch_size=components.order.batch_size,
        attempt=attempt,
    )
