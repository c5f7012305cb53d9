"""RunConfig -> wired objects: the only place where things are put together."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, cast

from trainyard import registry
from trainyard.callbacks.base import Callback, RunView
from trainyard.callbacks.histograms import WeightHistograms
from trainyard.callbacks.resources import Resources
from trainyard.config import load as load_config
from trainyard.config.schema import PlateauSchedule, RunConfig
from trainyard.datasets.base import DataBundle
from trainyard.engine.checkpoint import Checkpoints, Commit
from trainyard.engine.decisions import best_evaluations
from trainyard.engine.journal import Journal
from trainyard.engine.loop import Loop, LoopParts
from trainyard.engine.recorder import Recorder
from trainyard.engine.rules import Rules
from trainyard.engine.saver import RunCheckpoints, Saver
from trainyard.engine.signals import Signals
from trainyard.engine.state import RunState, evaluations_from_json, preserved_global_random
from trainyard.errors import DataError, InputError, ModelError
from trainyard.evaluation.metrics import EvaluationResult, check, default_metrics, evaluate, mode_of
from trainyard.frameworks.base import WEIGHTS_FILE, Framework, FrameworkInputs, Plan
from trainyard.order import SampleOrder
from trainyard.records.rundir import RunDir, find_run
from trainyard.require import import_path
from trainyard.runs.objects import Objects
from trainyard.stores.local import LocalStore
from trainyard.types import DataInfo, Metrics, Predictions, SplitName


@dataclass(frozen=True)
class Parts:
    """What a run is computed with."""

    config: RunConfig
    bundle: DataBundle
    framework: Framework
    plan: Plan
    order: SampleOrder
    rules: Rules
    threads: int


def default_threads() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load_data(config: RunConfig) -> DataBundle:
    """Reads and prepares what `data` names.

    Raises:
        DataError: there is no data section, or the data cannot be used.
    """
    if config.data is None:
        raise DataError(
            "no data section: train needs one, for example `data: {type: csv, path: data.csv, target: y}`"
        )
    cls = registry.dataset_of(config.data.type)
    bundle: DataBundle = cls(config.data, cls.Params(**config.data.params)).load()
    return bundle


def framework_name(config: RunConfig, model: Any = None) -> str:
    """The framework that the model belongs to.

    Raises:
        ModelError: the model's import path leads to no class, or no framework knows it.
    """
    if model is not None:
        return registry.framework_of_class(type(model))
    if config.model.framework:
        return config.model.framework
    if ":" in config.model.type:
        try:
            found = import_path(config.model.type)
        except InputError as error:
            raise ModelError(f"model.type: {error}") from error
        if isinstance(found, FunctionType):
            raise ModelError(
                f"model {config.model.type} is a function: say in model.framework what its models are made with"
            )
        return registry.framework_of_class(found if isinstance(found, type) else type(found))
    if (name := registry.framework_of(config.model.type)) is None:
        raise ModelError(f"model {config.model.type}: framework not installed")
    return name


def build_framework(
    config: RunConfig, bundle: DataBundle, threads: int, order: SampleOrder | None, model: Any = None
) -> Framework:
    """The framework with its model; only to predict where there is no `order`."""
    cls = registry.adapter("framework", framework_name(config, model))
    inputs = FrameworkInputs(config, bundle.info, bundle.splits, order, threads, config.model.params, model)
    return cast(Framework, cls(inputs))


def build(config: RunConfig, threads: int, objects: Objects) -> Parts:
    """Data, framework, order and rules.

    Raises:
        InputError: any of them cannot be had as configured.
    """
    bundle = objects.data if objects.data is not None else load_data(config)
    _check_metrics(config, bundle)
    rows = len(bundle.splits["train"])
    plan: Plan = registry.adapter("framework", framework_name(config, objects.model)).plan(
        config, rows, objects.model
    )
    order = SampleOrder(rows, plan.batch_size, config.experiment.seed)
    framework = build_framework(config, bundle, threads, order, objects.model)
    rules = Rules(config, plan, order.steps_per_epoch, cast(Callable[[str], Any], mode_of))
    return Parts(config, bundle, framework, plan, order, rules, threads)


def _deciding_metrics(config: RunConfig) -> dict[str, str]:
    """The metrics that decide something, by the key that names them."""
    training = config.training
    found = {"checkpoint.metric": config.checkpoint.metric} if config.checkpoint.save_top_k else {}
    if training.early_stopping:
        found["training.early_stopping.metric"] = training.early_stopping.metric
    if isinstance(training.scheduler, PlateauSchedule):
        found["training.scheduler.metric"] = training.scheduler.metric
    return found


def _check_metrics(config: RunConfig, bundle: DataBundle) -> None:
    for metric in config.evaluation.metrics or []:
        check(metric, bundle.info.task)
    for key, metric in _deciding_metrics(config).items():
        check(metric, bundle.info.task)
        if "val" not in bundle.splits and key != "checkpoint.metric":
            raise InputError(f"{key}: {metric} needs a validation split; set data.split.val or data.val_path")


def wanted_metrics(config: RunConfig, info: DataInfo) -> list[str]:
    """The metrics to compute: those that the config lists, or the task's usual ones, and those that decide something."""
    listed = config.evaluation.metrics
    chosen = list(default_metrics(info.task) if listed is None else listed)
    return list(dict.fromkeys([*chosen, *_deciding_metrics(config).values()]))


def watched(predictions: Iterator[Predictions], check_signals: Callable[[], None]) -> Iterator[Predictions]:
    """The same, looking for signals in between."""
    for found in predictions:
        check_signals()
        yield found


def evaluate_split(parts: Parts, split: SplitName, check_signals: Callable[[], None]) -> EvaluationResult:
    """Evaluates the model as it is; leaves no trace in the state, the global random generators included."""

    predictions = watched(parts.framework.predict(parts.bundle.splits[split]), check_signals)
    with preserved_global_random():
        return evaluate(
            predictions, wanted_metrics(parts.config, parts.bundle.info), parts.bundle.info, split
        )


def run_checkpoints(run: RunDir, attempt: int = 0) -> RunCheckpoints:
    """Where a run's checkpoints are."""
    store = LocalStore(run.path)
    return RunCheckpoints(Checkpoints(store, "checkpoints", attempt), Checkpoints(store, "best", attempt))


def build_loop(
    parts: Parts,
    state: RunState,
    journal: Journal,
    place: RunCheckpoints,
    signals: Signals,
    callbacks: Sequence[Callback],
) -> Loop:
    """The loop, ready to run."""
    config = parts.config
    recorder = Recorder(journal, callbacks)
    recorder.add(Resources(recorder.resources))
    if wants_histograms(config):
        recorder.add(WeightHistograms(parts.framework, recorder.histograms))
    saver = Saver(config.checkpoint, parts.framework, parts.plan, place, recorder)

    def evaluate_val() -> Metrics:
        return evaluate_split(parts, "val", signals.check).metrics if "val" in parts.bundle.splits else {}

    return Loop(
        LoopParts(parts.framework, parts.order, parts.rules, evaluate_val, recorder, saver, signals), state
    )


def wants_histograms(config: RunConfig) -> bool:
    """Whether someone looks at weight histograms."""
    return config.logging.histograms or any(
        registry.adapter("tracker", item.type).wants_histograms for item in config.tracking
    )


def run_view(parts: Parts, run: RunDir, state: RunState, attempt: int) -> RunView:
    """What callbacks are told at the start."""
    return RunView(
        run_id=run.id,
        experiment=run.experiment,
        start_step=state.step,
        total_steps=parts.rules.total_steps,
        steps_per_epoch=parts.order.steps_per_epoch,
        train_samples=parts.order.samples,
        batch_size=parts.order.batch_size,
        attempt=attempt,
    )


def initial_source(config: RunConfig, run: RunDir) -> Path | None:
    """The safetensors file or the run directory that the `model.init_from` of `run` means; `last` is the run before it.

    Raises:
        InputError: there is no such file or run.
    """
    source = config.model.init_from
    if source is None:
        return None
    if source.endswith(".safetensors"):
        if not Path(source).is_file():
            what = "this is no ordinary file:" if Path(source).exists() else "no file"
            raise InputError(f"model.init_from: {what} {source}")
        return Path(source).absolute()
    return find_run(source, run.path.parent.parent, before=run).path


def weights_file(run: RunDir) -> Path:
    """The verified weights that a run stands for: of its best model, or the newest.

    Raises:
        CheckpointError: they are damaged.
        InputError: the run has none.
    """
    if trainer := run.read("manifest.json").get("trainer"):
        raise InputError(
            f"run {run.id} was made by {trainer['name']}: name a safetensors file of its checkpoints instead"
        )
    place = run_checkpoints(run)
    newest, complaints = place.resume.newest()
    step = _best_step(run, place, newest)
    if step is not None:
        return place.best.folder(place.best.load_step(step)) / WEIGHTS_FILE
    if newest is None:
        reason = "; ".join(complaints) or f"it is {run.status()}, and was before its first checkpoint"
        raise InputError(f"run {run.id} has no weights yet: {reason}; resume it first")
    return place.resume.folder(newest) / WEIGHTS_FILE


def initialize(parts: Parts, source: Path) -> None:
    """Gives a model the weights of `initial_source`.

    Raises:
        ModelError: they do not fit the model.
    """
    file = source if source.is_file() else weights_file(RunDir(source))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / WEIGHTS_FILE).symlink_to(file)
        try:
            parts.framework.restore(Path(folder), weights_only=True)
        except ModelError as error:
            raise ModelError(f"model.init_from: {parts.config.model.init_from}: {error}") from error


def _best_step(run: RunDir, place: RunCheckpoints, newest: Commit | None) -> int | None:
    """The step of the best model: what a completed run's result says, else by the evaluations up to the newest commit."""
    result = run.read("result.json")
    if result.get("status") == "completed":
        return int(result["best"]["step"]) if result["best"] else None
    if newest is None:
        return None
    config = load_config(run.config_file).config.checkpoint
    history = evaluations_from_json(place.resume.state(newest)["evaluations"])
    mode = mode_of(config.metric) if config.mode == "auto" else config.mode
    best = best_evaluations(history, config.metric, mode, min(1, config.save_top_k))
    return best[0].step if best else None
