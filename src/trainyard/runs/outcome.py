"""What came out of a run: `result.json`, the evaluation of the best model, and the report."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainyard.digest import digest, tensor_records
from trainyard.engine.checkpoint import Checkpoints, Commit
from trainyard.engine.signals import Stopped
from trainyard.engine.state import RunState, preserved_global_random
from trainyard.errors import CheckpointError
from trainyard.evaluation.tables import tables
from trainyard.records.journal import finite
from trainyard.records.rundir import RunDir
from trainyard.runs.manifest import NAME
from trainyard.runs.wiring import Parts, evaluate_split, watched
from trainyard.types import Metrics, SplitName

log = logging.getLogger("trainyard")
Json = dict[str, Any]
EVALUATED: tuple[SplitName, ...] = ("val", "test")


def standing(run: RunDir, parts: Parts, state: RunState, status: str, attempt: int) -> Json:
    """How the run stands: all of `result.json` but the evaluation."""
    return {
        "status": status,
        "run_id": run.id,
        "experiment": run.experiment,
        "steps": state.step,
        "epochs": parts.order.epochs(state.step),
        "metrics": {},
        "evaluated": None,
        "best": None,
        "digest": digest(tensor_records(parts.framework.state(weights_only=True))),
        "attempts": attempt,
        "determinism": run.read(NAME)["determinism"],
        "train_seconds": state.train_seconds,
        "samples_per_second": parts.order.epochs(state.step)
        * parts.order.samples
        / max(1e-9, state.train_seconds),
    }


def evaluate_outcome(
    run: RunDir, parts: Parts, state: RunState, best: Checkpoints, check_signals: Callable[[], None]
) -> Json:
    """Evaluates the best model where there is one, else the final one; the framework is left with that one's weights.

    Raises:
        Stopped: a signal came meanwhile.
    """
    chosen = _best(parts, state, best)
    if chosen is not None and chosen[0].step != state.step:
        parts.framework.restore(best.folder(chosen[0]), weights_only=True)
    metrics: Metrics = {}
    for split in EVALUATED:
        if split in parts.bundle.splits:
            result = evaluate_split(parts, split, check_signals)
            run.write(f"evaluation/{split}.json", tables(result, parts.bundle.info))
            metrics |= result.metrics
    _explain(run, parts, check_signals)
    found: Json = {"metrics": {name: finite(value) for name, value in metrics.items()}}
    return found | {"evaluated": "best" if chosen else "final", "best": chosen[1] if chosen else None}


def _explain(run: RunDir, parts: Parts, check_signals: Callable[[], None]) -> None:
    """What the model looks at; that it cannot be told is worth a warning, and nothing more.

    Raises:
        Stopped: a signal came meanwhile.
    """
    from trainyard.evaluation.explanation import Model, explain

    importance, in_full = parts.framework.importance(), parts.config.evaluation.explain
    if not (importance or in_full):
        return
    model = Model(
        lambda split: watched(parts.framework.predict(split), check_signals),
        parts.framework.native,
        importance,
    )
    config = parts.config
    try:
        with preserved_global_random():
            found = explain(
                model, parts.bundle, config.checkpoint.metric, config.experiment.seed, in_full=in_full
            )
        run.write("evaluation/explanation.json", found)
    except Stopped:
        raise
    except Exception as error:
        log.warning("the model cannot be explained: %s: %s", type(error).__name__, error)


def _best(parts: Parts, state: RunState, best: Checkpoints) -> tuple[Commit, Json] | None:
    """The best model that is whole on disk; one that is not is named in a warning."""
    metric = parts.config.checkpoint.metric
    values = {evaluation.step: evaluation.metrics for evaluation in state.evaluations}
    for step in parts.rules.best_steps(state.evaluations):
        try:
            commit = best.load_step(step)
        except CheckpointError as error:
            log.warning("the best model, of step %d, cannot be used: %s", step, error)
            continue
        return commit, {
            "step": step,
            "metric": metric,
            "value": finite(values[step][metric]),
            "digest": commit.digest,
        }
    return None


def write_report(run: RunDir) -> Path | None:
    """Writes `report.html`; that it cannot be written is worth a warning, and nothing more."""
    from trainyard.reports.html import write_report as write

    try:
        return write(run.path)
    except Exception as error:
        log.warning("the report cannot be written: %s: %s", type(error).__name__, error)
        return None
