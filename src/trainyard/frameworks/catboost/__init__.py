"""CatBoost: each boosting round is a step; `rounds.py` runs them in chunks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel

from trainyard.config.schema import RunConfig
from trainyard.datasets.base import Split
from trainyard.digest import FileRecord, write_file
from trainyard.errors import InputError, ModelError, TrainingError, TrainyardError
from trainyard.frameworks.base import (
    WEIGHTS_FILE,
    Framework,
    FrameworkInputs,
    Plan,
    Snapshot,
    loss_sample,
    rounds_plan,
)
from trainyard.frameworks.catboost.data import make_pool, rows_of
from trainyard.frameworks.catboost.model import from_bytes, to_bytes
from trainyard.frameworks.catboost.objective import build_objective
from trainyard.frameworks.catboost.params import CatboostParams, catboost_params, model_spec
from trainyard.frameworks.catboost.rounds import Rounds
from trainyard.frameworks.support.definition import of_estimator
from trainyard.frameworks.support.estimators import check_estimator
from trainyard.frameworks.support.stored import Files, StoredSnapshot, buffers, bytes_array, read_arrays
from trainyard.order import INIT, stream_seed
from trainyard.require import require
from trainyard.types import FEATURES, TARGET, Array, Determinism, NamedBuffer, Predictions, StepResult

CHUNK = 10  # rounds per call of `fit`; a snapshot then takes at most a tenth of their time
_PROGRESS_FILE = "progress.safetensors"
# CatBoost's own snapshot. It contains times, so it is a file of the checkpoint but no tensor of the state.
_SNAPSHOT_FILE = "training.snapshot"
_BLOCK = 1 << 16  # rows per yielded block of predictions
_NEVER = 1 << 30  # rounds: CatBoost computes no metrics itself


class CatboostFramework(Framework):
    """Train a CatBoost model."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = {"catboost": CatboostParams}
    tasks: ClassVar[Collection[str] | None] = ("classification", "regression")
    base_modules: ClassVar[Sequence[str]] = ("catboost",)
    model_bases: ClassVar[Sequence[str]] = ("catboost:CatBoost",)
    formats: ClassVar[Sequence[str]] = ("cbm", "json")

    @staticmethod
    def defaults(model: str) -> Mapping[str, Any]:  # noqa: ARG004 - the only model
        """Return config defaults: no scaling, category codes, missing values kept, 100 rounds."""
        return {
            "training.epochs": 100,
            "data.standardize": False,
            "data.encode": "category",
            "data.impute": "keep",
        }

    @staticmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG004
        """Return the keys that have an effect; `n_estimators` replaces `epochs` and `max_steps`."""
        return {"device"} if params.get("n_estimators") else {"device", "epochs", "max_steps"}

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:
        """Plan one step per boosting round, at a constant learning rate.

        Raises:
            InputError: A scheduler, initial weights, or an option that the device does not support is set.
        """
        params, schedule = model_spec(config, model).params, config.training.scheduler
        varies = schedule.type != "constant" or schedule.warmup_steps
        # For the short name the run logs that the scheduler has no effect.
        if varies and (model is not None or ":" in config.model.type):
            raise InputError("training.scheduler: CatBoost's learning rate is constant; leave it out")
        if config.model.init_from:
            raise InputError(
                "model.init_from: CatBoost continues only from its own snapshots, not a model; leave it out"
            )
        symmetric = params.grow_policy == "SymmetricTree"
        on_cpu = not config.training.device.startswith("cuda")
        if not (symmetric or on_cpu):
            raise InputError(
                f"grow_policy: {params.grow_policy} is not supported on CUDA; use SymmetricTree, or "
                "training.device: cpu"
            )
        if params.monotone_constraints and not on_cpu:
            raise InputError(
                "monotone_constraints: on CUDA CatBoost cannot stop after each round, as they need; use "
                "training.device: cpu"
            )
        plan = rounds_plan(config, rows, params.n_estimators, params.learning_rate)
        truncatable = symmetric and not _changes_trees(params)
        # On CUDA, training cannot be stopped.
        chunk = (CHUNK if truncatable else 1) if on_cpu else plan.total_steps
        return plan._replace(boundary=chunk, cumulative=truncatable, scheduled=False)

    @staticmethod
    def determinism(config: RunConfig) -> Determinism:
        """Return `bitwise` on the CPU and `order` on CUDA."""
        if config.training.device.startswith("cuda"):
            return Determinism("order", "on CUDA, CatBoost sums in an order that varies")
        return Determinism(
            "bitwise",
            "CatBoost's own snapshots, which continue to the same bits, and a pinned number of threads",
        )

    def __init__(self, inputs: FrameworkInputs) -> None:
        self._library = require("catboost", "catboost")
        require("safetensors", "catboost")
        self._inputs = inputs
        self._spec = model_spec(inputs.config, inputs.model)
        check_estimator(inputs, self._spec.task, self._spec.unused)
        params, custom = self._spec.params, self._spec.objective
        self._objective = build_objective(
            params.objective, inputs.info, custom=custom, metric=self._spec.metric
        )
        self._pools: dict[int, tuple[Any, Array]] = {}
        self._steps_done = 0
        self._rounds: Rounds | None = None
        self._serialized: tuple[int, bytes] | None = None  # (rounds, the model of these rounds)
        self._model: Any = None  # the restored model
        if inputs.order is not None:
            self._sample = rows_of(inputs.splits["train"], loss_sample(inputs, 50))
            self._sample_pool = self._pool(self._sample[FEATURES])
            with self._translate_errors("this model cannot be trained", ModelError):
                self._rounds = self._build_rounds()

    @staticmethod
    def device_name(config: RunConfig) -> str:
        """Return `cpu` or `gpu`."""
        return "gpu" if config.training.device.startswith("cuda") else "cpu"

    @staticmethod
    def neutral_changes(config: RunConfig) -> Collection[str]:
        """Return the threads: on the CPU, CatBoost sums over blocks whose number does not depend on them."""
        return () if config.training.device.startswith("cuda") else ("threads",)

    def describe(self) -> Mapping[str, str]:
        """Return the library's version and the device."""
        return {"catboost": self._library.__version__, "device": self._device[0].lower()}

    def definition(self) -> Mapping[str, str]:
        """Return the class and options of an estimator that was passed in Python, else nothing."""
        return {} if self._inputs.model is None else of_estimator(self._inputs.model)

    def step(self, step: int, lr: float) -> StepResult:  # noqa: ARG002 - it is constant
        """Ensure that the round exists; return its loss, or the number of rounds for `read`.

        Raises:
            ModelError: CatBoost rejects the options or the data in the first round.
            TrainingError: CatBoost fails later.
        """
        assert self._rounds, "made only to predict"
        # CatBoost checks the options only in the first call of `fit`.
        kind: type[TrainyardError] = TrainingError if step else ModelError
        with self._translate_errors(f"round {step + 1} failed", kind):
            self._rounds.reach(step + 1)
        self._steps_done = step + 1
        loss = self._loss(self._steps_done) if _changes_trees(self._spec.params) else self._steps_done
        return StepResult(loss, len(self._inputs.splits["train"]))

    def read(self, losses: Sequence[Any]) -> list[float]:
        """Return the losses of some steps; for a number of rounds, that of the model of these rounds."""
        return [loss if isinstance(loss, float) else self._loss(loss) for loss in losses]

    def predict(self, split: Split) -> Iterator[Predictions]:
        """Yield the outputs for all rows of a split, block by block.

        Raises:
            TrainingError: CatBoost or the user's metric fails.
        """
        with self._translate_errors("a prediction failed", TrainingError):
            pool, targets = self._pool_of(split)
            raw = self._raw(pool, self._steps_done)
        for start in range(0, len(split), _BLOCK):
            values, labels = raw[start : start + _BLOCK], targets[start : start + _BLOCK]
            with self._translate_errors("a prediction failed", TrainingError):
                loss = self._objective.loss(values, labels) * len(values)
            ids = np.arange(start, start + len(values), dtype=np.int64)
            yield Predictions(ids, self._objective.outputs(values).astype(np.float32), labels, loss)

    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> Snapshot:
        """Copy the model, or with `step` its first rounds; add CatBoost's snapshot where it has one."""
        files, rounds = self._files(weights_only, step), self._rounds
        resumable = rounds is not None and rounds.completed == self._steps_done and not weights_only
        return _Snapshot(files, rounds.snapshot if rounds and resumable else b"")

    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        """Restore the model, and CatBoost's snapshot, from the files in `folder`.

        Raises:
            ModelError: The weights are not a CatBoost model.
        """
        weights = read_arrays(folder / WEIGHTS_FILE)
        if set(weights) != {"model"}:
            raise ModelError(
                "these are not the weights of a CatBoost model: expected one tensor 'model', "
                f"got {', '.join(sorted(weights)[:5])}"
            )
        data = weights["model"].tobytes()
        self._model = from_bytes(data, self._library.CatBoost) if data else None
        self._steps_done = self._model.tree_count_ if data else 0
        snapshot = b""
        if not weights_only:
            self._steps_done = int(read_arrays(folder / _PROGRESS_FILE)["rounds"][0])
            snapshot = (folder / _SNAPSHOT_FILE).read_bytes() if (folder / _SNAPSHOT_FILE).exists() else b""
        self._serialized = self._steps_done, data
        if self._rounds:
            self._rounds.resume(self._model, self._steps_done, snapshot)

    def state(self, *, weights_only: bool = False) -> Iterator[NamedBuffer]:
        """Yield the serialized model and the number of rounds."""
        return buffers(self._files(weights_only))

    @property
    def native(self) -> Any:
        """A `catboost.CatBoostClassifier` or `CatBoostRegressor`; a copy."""
        task = self._inputs.info.task
        cls = (
            self._library.CatBoostClassifier if task == "classification" else self._library.CatBoostRegressor
        )
        return from_bytes(self._bytes(self._steps_done), cls)

    def importance(self) -> Mapping[str, Array]:
        """Return CatBoost's `PredictionValuesChange`, (features,) float64; it sums to 100."""
        importance = self.native.get_feature_importance()
        return {"prediction_change": np.asarray(importance, dtype=np.float64)}

    def export(self, path: Path, form: str) -> None:
        """Write the model in CatBoost's binary (`cbm`) or JSON format."""
        self.native.save_model(str(path), format=form)

    @property
    def _device(self) -> tuple[str, str]:
        """CatBoost's task type and the device's number; `auto` is the CPU, the only exact device."""
        name, _, number = self._inputs.config.training.device.partition(":")
        return ("GPU", number or "0") if name == "cuda" else ("CPU", "")

    def _build_rounds(self) -> Rounds:
        inputs, params = self._inputs, self._spec.params
        device, number = self._device
        options = catboost_params(params) | {
            "random_seed": _seed(inputs),
            "thread_count": inputs.threads,
            "task_type": device,
        }
        options |= {"loss_function": self._spec.objective or self._objective.name, "metric_period": _NEVER}
        options |= {"eval_metric": self._objective.name} if self._spec.objective else {}
        options |= {"devices": number} if number else {}
        rows = rows_of(inputs.splits["train"])
        pool = make_pool(self._library, inputs.info, rows[FEATURES], rows[TARGET], inputs.threads)
        pool.quantize(
            border_count=params.max_bin, nan_mode=params.nan_mode, random_seed=_seed(inputs), task_type=device
        )
        plan = self.plan(inputs.config, len(rows[FEATURES]), inputs.model)
        return Rounds(self._library, options, pool, plan.total_steps, plan.boundary)

    def _pool(self, features: Array) -> Any:
        return make_pool(self._library, self._inputs.info, features, None, self._inputs.threads)

    def _pool_of(self, split: Split) -> tuple[Any, Array]:
        """Return the pool and targets of a split; those of the run's own splits are kept."""
        if id(split) in self._pools:
            return self._pools[id(split)]
        rows = rows_of(split)
        pool = self._pool(rows[FEATURES]), rows[TARGET]
        if self._inputs.owns(split):
            self._pools[id(split)] = pool
        return pool

    def _raw(self, pool: Any, rounds: int) -> Array:
        """Return (rows, width) float64 raw values of the first `rounds` rounds."""
        model = self._rounds.model if self._rounds else self._model
        if model is None or not rounds:
            info = self._inputs.info
            return np.zeros(
                (pool.num_row(), 1 if info.task == "classification" and info.outputs == 2 else info.outputs)
            )
        end = min(rounds, model.tree_count_)
        raw = model.predict(
            pool, prediction_type="RawFormulaVal", ntree_end=end, thread_count=self._inputs.threads
        )
        return np.asarray(raw, dtype=np.float64).reshape(pool.num_row(), -1)

    def _loss(self, rounds: int) -> float:
        with self._translate_errors("a prediction failed", TrainingError):
            return self._objective.loss(self._raw(self._sample_pool, rounds), self._sample[TARGET])

    def _bytes(self, rounds: int) -> bytes:
        """Return the serialized model of the first `rounds` rounds; empty without any."""
        if self._serialized is None or self._serialized[0] != rounds:
            model = self._rounds.model if self._rounds else self._model
            self._serialized = rounds, to_bytes(model, rounds) if model is not None and rounds else b""
        return self._serialized[1]

    def _files(self, weights_only: bool, step: int | None = None) -> Files:
        files = {
            WEIGHTS_FILE: {"model": bytes_array(self._bytes(self._steps_done if step is None else step))}
        }
        return files if weights_only else files | {_PROGRESS_FILE: {"rounds": np.array([self._steps_done])}}

    @contextmanager
    def _translate_errors(self, what: str, kind: type[TrainyardError]) -> Iterator[None]:
        """Raise errors of the library and of the user's objects as `kind`, without C++ source positions."""
        try:
            yield
        except TrainyardError:
            raise
        except Exception as error:
            name = "" if isinstance(error, self._library.CatBoostError) else f"{type(error).__name__}: "
            lines = [line for line in str(error).splitlines() if line.strip()] or [""]
            line = lines[-1] if "Traceback" in lines[0] else lines[0]  # a user's error ends a traceback
            message = re.sub(r"^\S+\.(cpp|h|cu\w*):\d+: ", "", line)
            raise kind(f"{what}: {name}{message}; see where with --debug") from error


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


def _changes_trees(params: CatboostParams) -> bool:
    """Return whether a round changes earlier trees: with monotone constraints, CatBoost shrinks them."""
    return bool(params.monotone_constraints)


def _seed(inputs: FrameworkInputs) -> int:
    return stream_seed(inputs.config.experiment.seed, INIT) % (1 << 31)
