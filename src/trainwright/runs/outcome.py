"""The result of a run, and the evaluation of its best model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from trainwright.config.schema import RunConfig
from trainwright.datasets.base import ArraySplit, DataBundle, Split
from trainwright.datasets.samples.arrays import Arrays
from trainwright.engine.checkpoint import Checkpoints
from trainwright.engine.signals import Stopped
from trainwright.engine.state import RunState
from trainwright.errors import CheckpointError, InputError
from trainwright.evaluation import baselines
from trainwright.evaluation.baselines import Baseline, compared
from trainwright.evaluation.metrics import EvaluationResult, explained_metric, quantile_of
from trainwright.evaluation.profile import profile
from trainwright.evaluation.tables import tables, with_origin
from trainwright.inference import intervals
from trainwright.plugins import task_for
from trainwright.process.global_random import preserved_global_random
from trainwright.records.document import dump
from trainwright.records.manifest import Manifest
from trainwright.records.result import BestModel, Result
from trainwright.records.run_dir import RunDir
from trainwright.records.status import Ended
from trainwright.runs.wiring import Components, evaluate_rows, evaluate_split, interruptible
from trainwright.types import Metrics, SplitName

log = logging.getLogger("trainwright")
EVALUATED: tuple[SplitName, ...] = ("val", "test")


def result_so_far(
    manifest: Manifest, components: Components, state: RunState, status: Ended, attempt: int
) -> Result:
    """Return the result of an attempt that ends now, without a digest and an evaluation."""
    order = components.order
    epochs = order.epochs(state.step)
    return Result(
        status=status,
        run_id=manifest.run_id,
        experiment=manifest.experiment,
        computation_hash=manifest.computation_hash,
        steps=state.step,
        epochs=epochs,
        attempts=attempt,
        weights=components.learner.weights,
        skipped_samples=len(components.bundle.skipped),
        determinism=manifest.determinism,
        train_seconds=state.train_seconds,
        samples_per_second=(epochs - order.epochs(order.begin.step))
        * order.used
        / max(1e-9, state.train_seconds),
    )


def evaluate_outcome(
    run: RunDir,
    components: Components,
    state: RunState,
    best: Checkpoints,
    check_signals: Callable[[], None],
    *,
    splits: Sequence[SplitName] = EVALUATED,
) -> dict[str, Any]:
    """Evaluate the best model, or the final one if there is none; afterwards the learner holds its weights.

    Args:
        run: The run.
        components: Its components.
        state: Its state.
        best: Its best models.
        check_signals: Raises `Stopped` when a signal has come.
        splits: What is evaluated, where the data have such a split.

    Returns:
        `metrics`, `evaluated` and `best` of the result.

    Raises:
        CheckpointError: The best model is damaged.
        Stopped: A signal came in the meantime.
    """
    model = _restore_best(components, state, best)
    metrics: Metrics = {}
    describe = (
        Description(run, components.config, components.bundle) if components.inputs.world.is_main else None
    )
    for split in splits:
        if split in components.bundle.splits:
            result = evaluate_split(components, split, check_signals)
            if describe:
                describe.evaluation(result)
            metrics |= result.metrics
    sample = components.bundle.once(training_sample)
    if sample is not None:
        result = evaluate_rows(components, sample, "train", check_signals)
        if describe:
            describe.evaluation(result)
    if describe:
        describe.data()
        describe.write()
    _explain(run, components, check_signals)
    return {"metrics": metrics, "evaluated": "best" if model else "final", "best": model}


def _restore_best(components: Components, state: RunState, best: Checkpoints) -> BestModel | None:
    """Give the learner the weights of the best model, if the evaluations name one.

    Raises:
        CheckpointError: It is damaged. No other model stands in for it: a resume trains it again.
    """
    steps = components.rules.best_steps(state.evaluations)
    if not steps:
        return None
    try:
        commit = best.load_step(steps[0])
    except CheckpointError as error:
        raise CheckpointError(
            f"the best model, of step {steps[0]}, cannot be used: {error}; resume the run to train it again"
        ) from error
    if commit.step != state.step:
        components.learner.restore(best.folder(commit), weights_only=True)
    metric = components.config.checkpoint.metric
    values = {evaluation.step: evaluation.metrics for evaluation in state.evaluations}
    return BestModel(step=commit.step, metric=metric, value=values[commit.step][metric], digest=commit.digest)


def _explain(run: RunDir, components: Components, check_signals: Callable[[], None]) -> None:
    """Explain the model if the config asks for it, or the framework can for free.

    A failure is a warning only.

    Raises:
        Stopped: A signal came in the meantime.
    """
    from trainwright.evaluation.explanation import Model, explain

    view = components.model
    importance, in_full = view.importance(), components.config.evaluation.explain
    if not (importance or in_full):
        return
    model = Model(
        lambda split: interruptible(view.predict(split), check_signals, components.inputs.world),
        view.native,
        importance,
    )
    config = components.config
    try:
        with preserved_global_random():
            explanation = explain(
                model, components.bundle, explained_metric(config), config.experiment.seed, in_full=in_full
            )
        if components.inputs.world.is_main:
            run.write_json("evaluation/explanation.json", explanation)
    except Stopped:
        raise
    except Exception as error:
        log.warning("the model cannot be explained: %s: %s", type(error).__name__, error)


log = logging.getLogger("trainwright")
_TRAINING_ROWS = 2000  # that are evaluated; never more than the rows of validation and test
_FEWEST = 200


def training_sample(bundle: DataBundle) -> Split | None:
    """Return evenly spaced training rows to compare with those of validation and test.

    None where there is nothing to compare with, or predictions are costly: they do not fit in memory.
    """
    train, others = bundle.splits["train"], [len(bundle.splits.get(name, ())) for name in ("val", "test")]
    if not isinstance(train, ArraySplit) or task_for(bundle.info).sums or not any(others):
        return None
    rows = min(_TRAINING_ROWS, max(_FEWEST, *others))
    return Arrays(train.take(baselines.spaced(len(train), rows)))


class Description:
    """Make the tables of evaluations and the profile of the data, and write them into a run directory.

    Any failure but one of the tables is only a warning: no result depends on it.
    """

    def __init__(self, run: RunDir, config: RunConfig, bundle: DataBundle) -> None:
        self._run, self._config, self._bundle = run, config, bundle
        self._files: dict[str, bytes] = {}

    @cached_property
    def _baselines(self) -> list[Baseline]:
        found = self._bundle.once(baselines.fitted)
        if self._quantile is None:
            return found
        return baselines.at_quantile(found, self._bundle, self._quantile)

    @cached_property
    def _quantile(self) -> float | None:
        return quantile_of(self._config)

    def evaluation(self, result: EvaluationResult) -> None:
        """Make the tables of an evaluation, and say how baselines do on the same rows."""
        table, split = tables(result, self._bundle.info), result.split
        if split == "train":  # its rows are a sample, which no table names
            table |= {"worst": [], "sample": True}
        else:
            table = with_origin(table, self._bundle, self._config.data, split)
            try:
                rows = self._bundle.splits[split]
                known = self._bundle.once(baselines.kept_evaluations)
                table |= {"compared": self._compared(result, rows, known)}
            except Exception as error:
                log.warning("baselines cannot be computed: %s: %s", type(error).__name__, error)
        self._files[f"evaluation/{split}.json"] = dump(table)
        if split == "val" and task_for(self._bundle.info).gives_amounts:
            with suppress(InputError):  # predictions that are not finite
                self._files[intervals.FILE] = dump(intervals.residuals(result, self._bundle.info).to_json())

    def _compared(self, result: EvaluationResult, rows: Split, known: Any) -> Any:
        return compared(self._baselines, result, rows, self._bundle.info, known, self._quantile)

    def data(self) -> None:
        """Describe the distributions of the data."""
        try:
            described = self._bundle.once(_described)
        except Exception as error:
            log.warning("the data cannot be described: %s: %s", type(error).__name__, error)
            return
        if described is not None:
            self._files["evaluation/data.json"] = described

    def write(self) -> None:
        """Write all of it.

        Raises:
            OSError: It cannot be written.
        """
        if self._files:
            self._run.write_encoded(self._files)


def _described(bundle: DataBundle) -> bytes | None:
    """Return the file with the distributions of the data; None where there is nothing to describe."""
    described = profile(bundle)
    return None if described is None else dump(described)
