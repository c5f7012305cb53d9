"""Training of CatBoost models; `rounds.py` runs the rounds in chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.config.schema import RunConfig
from trainwright.digest import FileRecord, write_file
from trainwright.errors import ModelError, TrainingError, TrainwrightError
from trainwright.frameworks.base import WEIGHTS_FILE, LearnerInputs, Plan, Snapshot
from trainwright.frameworks.boosting.learner import BoosterLearner
from trainwright.frameworks.catboost.canonical import from_bytes
from trainwright.frameworks.catboost.data import make_pool, rows_of
from trainwright.frameworks.catboost.library import catboost, translated
from trainwright.frameworks.catboost.model import LiveModel
from trainwright.frameworks.catboost.objective import build_objective
from trainwright.frameworks.catboost.params import CatboostParams, catboost_params, changes_trees, model_spec
from trainwright.frameworks.catboost.rounds import Rounds
from trainwright.frameworks.support.inputs import loss_sample
from trainwright.frameworks.support.stored import Files, StoredSnapshot, bytes_array, read_arrays, read_model
from trainwright.tasks.support.precision import learned
from trainwright.types import FEATURES, TARGET, WEIGHT, StepResult

_PROGRESS_FILE = "progress.safetensors"
# CatBoost's own snapshot. It contains times, so it is a file of the checkpoint but no tensor of the state.
_SNAPSHOT_FILE = "training.snapshot"
_NEVER = 1 << 30  # rounds: CatBoost computes no metrics itself


class CatboostLearner(BoosterLearner[CatboostParams]):
    """A CatBoost model in training.

    Args:
        inputs: The inputs of the learner.
        plan: The plan of the run.
    """

    def __init__(self, inputs: LearnerInputs, plan: Plan) -> None:
        library, spec = catboost(), model_spec(inputs.config, inputs.model)
        device, _ = _device(inputs.config)
        super().__init__(library, inputs, spec, device.lower())
        self._objective = build_objective(spec, inputs.info)
        self._changes_trees = changes_trees(spec.params)
        self._training_rows = len(inputs.splits["train"])
        self._sample = rows_of(inputs.splits["train"], loss_sample(inputs, 50))
        self._sample_pool = make_pool(library, inputs.info, self._sample[FEATURES], None, inputs.threads)
        with translated("this model cannot be trained", ModelError):
            self._rounds = self._build_rounds(plan)
        self._model = LiveModel(library, inputs, self._objective, spec.metric, self._rounds)

    def step(self, step: int, lr: float) -> StepResult:  # noqa: ARG002 - it is constant
        """Ensure that the round exists; return its loss, or the number of rounds for `read`.

        Raises:
            ModelError: CatBoost rejects the options or the data in the first round.
            TrainingError: CatBoost fails later.
        """
        # CatBoost checks the options only in the first call of `fit`.
        kind: type[TrainwrightError] = TrainingError if step else ModelError
        with translated(f"round {step + 1} failed", kind):
            self._rounds.reach(step + 1)
        self._model.rounds = step + 1
        return StepResult(self._loss(step + 1) if self._changes_trees else step + 1, self._training_rows)

    def read(self, losses: Sequence[Any]) -> list[float]:
        """Return the losses of some steps; for a number of rounds, that of the model of these rounds."""
        return [loss if isinstance(loss, float) else self._loss(loss) for loss in losses]

    def model(self) -> LiveModel:
        """Return the view of the rounds up to the last step; it keeps the pools of the run's own splits."""
        return self._model

    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> Snapshot:
        """Copy the model, or with `step` its first rounds; add CatBoost's snapshot where it has one."""
        files, rounds = self._files(weights_only, step), self._rounds
        is_resumable = rounds.completed == self._model.rounds and not weights_only
        return _Snapshot(files, rounds.snapshot if is_resumable else b"")

    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        """Restore the model, and CatBoost's snapshot, from the files in `folder`.

        Raises:
            ModelError: The weights are not a CatBoost model.
        """
        data = read_model(folder / WEIGHTS_FILE, "a CatBoost")
        model = from_bytes(data, self._library.CatBoost) if data else None
        rounds, snapshot = model.tree_count_ if model is not None else 0, b""
        if not weights_only:
            rounds = int(read_arrays(folder / _PROGRESS_FILE)["rounds"][0])
            snapshot = (folder / _SNAPSHOT_FILE).read_bytes() if (folder / _SNAPSHOT_FILE).exists() else b""
        self._model.restore(rounds, data)
        self._rounds.resume(model, rounds, snapshot)

    def _custom_calls(self) -> Sequence[Callable[[], Any]]:
        targets, weights = self._sample[TARGET], self._sample.get(WEIGHT)
        raw = np.zeros((len(targets), self._objective.width))  # as before the first round
        calls: list[Callable[[], Any]] = [partial(self._model.loss, raw, targets, weights)]
        for name in ("calc_ders_range", "calc_ders_multi", "calc_ders_multi_target"):
            if (function := getattr(self._spec.objective, name, None)) is not None:
                rows = slice(None) if name == "calc_ders_range" else 0  # it takes all rows at once
                values = raw[:, 0] if name == "calc_ders_range" else raw[0]
                weight = None if weights is None else weights[rows]
                calls.append(partial(function, values, learned(targets, self._inputs.info)[rows], weight))
        return calls

    def _build_rounds(self, plan: Plan) -> Rounds:
        inputs, params = self._inputs, self._spec.params
        device, number = _device(inputs.config)
        options = catboost_params(self._spec, inputs.info) | {
            "random_seed": _seed(inputs),
            "thread_count": inputs.threads,
            "task_type": device,
        }
        options |= {"loss_function": self._spec.objective or self._objective.name, "metric_period": _NEVER}
        options |= {"eval_metric": self._objective.name} if self._spec.objective else {}
        options |= {"devices": number} if number else {}
        rows = rows_of(inputs.splits["train"])
        targets = learned(rows[TARGET], inputs.info)
        pool = make_pool(
            self._library, inputs.info, rows[FEATURES], targets, inputs.threads, rows.get(WEIGHT)
        )
        pool.quantize(
            border_count=params.max_bin, nan_mode=params.nan_mode, random_seed=_seed(inputs), task_type=device
        )
        return Rounds(self._library, options, pool, plan.total_steps, plan.boundary)

    def _loss(self, rounds: int) -> float:
        with translated("a prediction failed", TrainingError):
            raw = self._model.raw(self._sample_pool, rounds)
            return self._model.loss(raw, self._sample[TARGET], self._sample.get(WEIGHT))

    def _files(self, weights_only: bool, step: int | None = None) -> Files:
        rounds = self._model.rounds
        data = self._model.serialized(rounds if step is None else step)
        files = {WEIGHTS_FILE: {"model": bytes_array(data)}}
        return files if weights_only else files | {_PROGRESS_FILE: {"rounds": np.array([rounds])}}


class _Snapshot(StoredSnapshot):
    """Arrays, and CatBoost's own snapshot beside them where training can resume from there."""

    def __init__(self, files: Files, catboost_snapshot: bytes) -> None:
        super().__init__(files)
        self._catboost_snapshot = catboost_snapshot

    def write(self, folder: Path) -> list[FileRecord]:
        data = self._catboost_snapshot
        return super().write(folder) + ([write_file(folder / _SNAPSHOT_FILE, data)] if data else [])

    def release(self) -> None:
        super().release()
        self._catboost_snapshot = b""


def _device(config: RunConfig) -> tuple[str, str]:
    """Return CatBoost's task type and the device's number; `auto` is the CPU, the only exact device."""
    name, _, number = config.training.device.partition(":")
    return ("GPU", number or "0") if name == "cuda" else ("CPU", "")


def _seed(inputs: LearnerInputs) -> int:
    """Return the seed of the run itself, so that the library, given the same one, makes the same model."""
    return inputs.config.experiment.seed % (1 << 31)
