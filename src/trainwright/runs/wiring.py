"""Build the components of a run, and the loop from them; nothing else puts components together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from trainwright import plugins
from trainwright.callbacks.base import Callback, RunView
from trainwright.callbacks.histograms import WeightHistograms
from trainwright.callbacks.resources import Resources
from trainwright.config import flatten
from trainwright.config.env import texts_in
from trainwright.config.schema import RunConfig
from trainwright.datasets.base import PLAIN, DataBundle, Examine, LoadRequest, Settle, Split
from trainwright.datasets.samples.arrays import Arrays
from trainwright.datasets.samples.file_hashes import FilesRead
from trainwright.datasets.samples.structures import STRUCTURE
from trainwright.engine.checkpoint import Checkpoints, RunCheckpoints
from trainwright.engine.journal import Journal
from trainwright.engine.loop import Loop, LoopParts
from trainwright.engine.outside import Outside
from trainwright.engine.recorder import Recorder
from trainwright.engine.rules import NOTHING_INHERITED, Inherited, Rules
from trainwright.engine.saver import FollowerSaver, Saver
from trainwright.engine.signals import Signals
from trainwright.engine.state import RunState
from trainwright.errors import DataError
from trainwright.evaluation.metrics import (
    EvaluationResult,
    accumulators,
    evaluate_predictions,
    mode_in,
    wanted_metrics,
)
from trainwright.frameworks.base import Framework, Learner, LearnerInputs, Model, Plan
from trainwright.inference.original_units import in_original_units
from trainwright.order import START, Cursor, SampleOrder, WeightedDraws
from trainwright.process.alarms import announced
from trainwright.process.global_random import preserved_global_random
from trainwright.records.run_dir import RunDir
from trainwright.require import ImportRule, import_rule
from trainwright.runs.data.checks import (
    check_accumulators,
    check_batch_size,
    check_expectations,
    check_features,
    check_metrics,
    check_reading,
)
from trainwright.runs.data.learner_splits import learner_splits
from trainwright.runs.data.positive import with_positive_class
from trainwright.runs.data.sampling import check_sampling, drawing_weights, epoch_samples
from trainwright.runs.data.shared import loaded
from trainwright.runs.data.versions import with_local_data
from trainwright.runs.frameworks import form_for, framework_for
from trainwright.runs.objects import NO_DATA, Objects
from trainwright.runs.processes.threads import default_threads
from trainwright.storage.lease import Lease
from trainwright.storage.log import readable_head
from trainwright.tasks.support.accumulators import Accumulator
from trainwright.types import Array, Metrics, Predictions, SplitName
from trainwright.world import ALONE, World

log = logging.getLogger("trainwright")


@dataclass(frozen=True)
class Components:
    """The parts that a run is computed with.

    `inputs` are the arguments of the learner, `files` those that samples are read from, as they were when the
    data were loaded.
    """

    inputs: LearnerInputs
    bundle: DataBundle
    files: FilesRead
    framework: type[Framework]
    learner: Learner
    rules: Rules

    @property
    def config(self) -> RunConfig:
        """The resolved config, with the placement of this attempt."""
        return self.inputs.config

    @property
    def model(self) -> Model:
        """A view of the live weights, whose predictions are in the target's original units."""
        live, splits = self.learner.model(), self.bundle.splits
        return in_original_units(live, self.bundle.info, splits, self.inputs.splits)

    @cached_property
    def accumulators(self) -> list[Accumulator]:
        """The user's own metrics that add up by themselves."""
        return accumulators(self.metrics)

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics to compute; see `wanted_metrics`."""
        return wanted_metrics(self.config, self.bundle.info)

    @property
    def order(self) -> SampleOrder:
        """The order of the training samples."""
        return self.inputs.order

    @property
    def plan(self) -> Plan:
        """The plan of the framework: batch size, number of steps, learning rate."""
        return self.rules.plan


def load_data(
    config: RunConfig,
    model: Any = None,
    settle: Settle = PLAIN.settle,
    examine: Examine = PLAIN.examine,
    examples: int = PLAIN.examples,
) -> DataBundle:
    """Read the data that the config names, and prepare them as the model's framework asks for.

    Args:
        config: The config.
        model: The model, if it was given in Python.
        settle: Settles which corrupt samples are left out; see `LoadRequest`.
        examine: Judges how the rows compare with `data.expect`; see `LoadRequest`.
        examples: The number of first rows of each split that are kept as they were read.

    Raises:
        DataError: There is no data section, or the data cannot be used.
        ModelError: No framework knows the model.
    """
    if config.data is None:
        raise DataError(NO_DATA)
    if (rule := import_rule()) is not None:
        _check_sources(config, rule)
    cls = plugins.dataset_of(config.data.type)
    request = LoadRequest(form_for(config, model), settle, examine, examples)
    data, pins = with_local_data(config.data)
    bundle = loaded(cls(data, cls.Params(**data.params)), data, request)
    return with_positive_class(bundle.with_pins(pins) if pins else bundle, config)


def _check_sources(config: RunConfig, rule: ImportRule) -> None:
    """Refuse data at a host, or named by a variable, that the run must not use."""
    for key, value in flatten(config).items():
        if key.startswith("data."):
            for text in texts_in(value):
                rule.check_outside(key, text)


def build(
    config: RunConfig,
    threads: int | None,
    objects: Objects,
    choices: Mapping[str, str] | None = None,
    begin: Callable[[DataBundle], tuple[Cursor, Inherited]] | None = None,
    world: World = ALONE,
    settle: Settle = PLAIN.settle,
) -> Components:
    """Build data, sample order, learner and rules.

    Args:
        config: The config.
        threads: The number of CPU threads; None: as many as the step can use.
        objects: What was given in Python.
        choices: What an earlier attempt has chosen by measuring.
        begin: Returns where the run begins on these data, and what it inherits; default: at step 0.
        world: The processes of the attempt.
        settle: Settles which corrupt samples are left out; see `LoadRequest`.

    Raises:
        InputError: One of them cannot be built as configured.
    """
    bundle = objects.data if objects.data is not None else load_data(config, objects.model, settle)
    check_expectations(config, bundle)
    check_features(config, bundle)
    files = FilesRead(bundle.files_read)
    check_metrics(config, bundle)
    model, rows = objects.model, len(bundle.splits["train"])
    framework = framework_for(config, bundle.info, model)
    check_accumulators(config, framework)
    check_reading(config, bundle, framework)
    check_batch_size(config, bundle, framework)
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
    components = Components(inputs, bundle, files, framework, learner, rules)
    try_accumulators(components)
    return components


def order_and_rules(
    config: RunConfig,
    plan: Plan,
    rows: int,
    begin: Cursor = START,
    past: Inherited = NOTHING_INHERITED,
    weights: Array | None = None,
) -> tuple[SampleOrder, Rules]:
    """Return the order of the samples and the rules of a run that begins at a cursor.

    `training.epochs` counts whole passes over the data. A fork with another batch size or other data begins
    at another place in the data than its config alone would be at that step; its total number of steps
    follows.

    Args:
        config: The config.
        plan: How the framework trains.
        rows: The number of training rows.
        begin: Where the run begins.
        past: What it inherits.
        weights: (rows,) the sampling weights; None: samples are not drawn, or only cursors matter.
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


def interruptible(
    predictions: Iterator[Predictions], check_signals: Callable[[], None], world: World = ALONE
) -> Iterator[Predictions]:
    """Yield the predictions; raise `Stopped` between two parts if a signal came.

    With several processes, all parts are yielded: the processes stop together, at a step.
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
        components.model.evaluate(rows, components.accumulators),
        check_signals,
        components.inputs.world,
    )
    working = components.inputs.world.working(f"the evaluation of {split}")
    with preserved_global_random(), working:
        return evaluate_predictions(predictions, components.metrics, components.bundle.info, split)


def try_accumulators(components: Components) -> None:
    """Let a user's own metrics that add up by themselves count one row, so that errors come before training.

    Raises:
        ModelError: One of them fails, or does not add up.
    """
    if not components.accumulators:
        return
    split = components.bundle.splits.get("val", components.bundle.splits["train"])
    row = split.take(np.zeros(1, np.int64))
    if STRUCTURE in row:  # which no arrays hold: an error then comes with the first evaluation
        return
    for _ in components.model.evaluate(Arrays(row), components.accumulators):
        pass


def run_checkpoints(
    run: RunDir, run_files: Mapping[str, str] | None = None, lease: Lease | None = None
) -> RunCheckpoints:
    """Return the checkpoints of a run that its log names.

    Args:
        run: The run directory.
        run_files: Files that new ones cover (SHA-256 by name).
        lease: The right to commit new ones; None: they are only read.
    """
    store = plugins.adapter("store", "file")(run.path)
    attempt, fetch = (lease.attempt, lease.fetch) if lease else (0, None)
    head = readable_head(store)
    files = head.files if head else None
    resume, best = (
        Checkpoints(store, kind, attempt, run_files, head.names(kind) if head else None, fetch, files)
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
        if "val" not in components.bundle.splits:
            return {}
        return evaluate_split(components, "val", signals.check).metrics

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


_OWN_RATES = ("learning_rate", "learning_rate_init", "eta0")  # options of models


def _remedies(components: Components) -> list[str]:
    """Return what a user can change with this framework to keep the loss finite."""
    model = components.config.model
    keys = components.framework.training_keys(model.type, model.params)
    clips = "lower" if components.config.training.max_grad_norm else "set"
    advice = {
        "learning_rate": "lower training.learning_rate",
        "max_grad_norm": f"{clips} training.max_grad_norm",
    }
    own = [f"lower model.params.{name}" for name in _OWN_RATES if isinstance(model.params.get(name), float)]
    found = [text for key, text in advice.items() if key in keys] or own
    return found or ["check the options of the model"]


def wants_histograms(config: RunConfig) -> bool:
    """Return whether the config or a tracker asks for weight histograms."""
    return config.logging.histograms or any(
        plugins.adapter("tracker", item.type).wants_histograms for item in config.tracking
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
