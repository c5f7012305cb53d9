"""CatBoost: boosting rounds are steps, made some at a time through its own snapshots (`rounds.py`)."""

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
from trainyard.frameworks.catboost.params import CatboostParams, asked, native
from trainyard.frameworks.catboost.rounds import Rounds
from trainyard.frameworks.definition import of_estimator
from trainyard.frameworks.estimators import check_estimator
from trainyard.frameworks.stored import Files, StoredSnapshot, buffers, bytes_array, read_arrays
from trainyard.order import INIT, stream_seed
from trainyard.require import require
from trainyard.types import Array, Determinism, NamedBuffer, Predictions, StepResult

AHEAD = 10  # rounds that are made at a time; the time of a snapshot is then a tenth of theirs or less
_PROGRESS_FILE = "progress.safetensors"
_SNAPSHOT_FILE = "training.snapshot"  # CatBoost's own; it has times in it, so it is kept as a file and is no tensor of the state
_BLOCK = 1 << 16  # rows of which predictions are given at once
_NEVER = 1 << 30  # rounds: CatBoost computes no metrics of its own


class CatboostFramework(Framework):
    """Trains CatBoost's trees."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = {"catboost": CatboostParams}
    base_modules: ClassVar[Sequence[str]] = ("catboost",)
    model_bases: ClassVar[Sequence[str]] = ("catboost:CatBoost",)
    formats: ClassVar[Sequence[str]] = ("cbm", "json")

    @staticmethod
    def defaults(model: str) -> Mapping[str, Any]:  # noqa: ARG004 - there is one
        return {
            "training.epochs": 100,
            "data.standardize": False,
            "data.encode": "category",
            "data.impute": "keep",
        }

    @staticmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG004
        return {"device"} if params.get("n_estimators") else {"device", "epochs", "max_steps"}

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:
        params, schedule = asked(config, model).params, config.training.scheduler
        varies = schedule.type != "constant" or schedule.warmup_steps
        if varies and (model is not None or ":" in config.model.type):  # of the short name, the log tells
            raise InputError(
                "training.scheduler: CatBoost's learning rate stays the same; leave the scheduler out"
            )
        if config.model.init_from:
            raise InputError(
                "model.init_from: CatBoost goes on from its own snapshots only, not from a model; leave it out"
            )
        symmetric, on_cpu = (
            params.grow_policy == "SymmetricTree",
            not config.training.device.startswith("cuda"),
        )
        if not (symmetric or on_cpu):
            raise InputError(
                f"grow_policy: {params.grow_policy} is not trained on CUDA; take SymmetricTree, or the CPU"
            )
        if params.monotone_constraints and not on_cpu:
            raise InputError(
                "monotone_constraints: they need every round by itself, which CUDA does not give; take the CPU"
            )
        plan = rounds_plan(config, rows, params.n_estimators, params.learning_rate)
        cuttable = symmetric and not _shrinks(params)
        ahead = (AHEAD if cuttable else 1) if on_cpu else plan.total_steps  # on CUDA it cannot be stopped
        return plan._replace(boundary=ahead, cumulative=cuttable, scheduled=False)

    @staticmethod
    def determinism(config: RunConfig) -> Determinism:
        if config.training.device.startswith("cuda"):
            return Determinism("order", "on CUDA, CatBoost adds up in an order that varies")
        return Determinism(
            "bitwise",
            "CatBoost's own snapshots, which continue to the same bits, and a pinned number of threads",
        )

    def __init__(self, inputs: FrameworkInputs) -> None:
        self._library = require("catboost", "catboost")
        require("safetensors", "catboost")
        self._inputs = inputs
        self._asked = asked(inputs.config, inputs.model)
        check_estimator(inputs, self._asked.task, self._asked.unused)
        params, custom = self._asked.params, self._asked.objective
        self._objective = build_objective(
            params.objective, inputs.info, custom=custom, metric=self._asked.metric
        )
        self._pools: dict[int, tuple[Any, Array]] = {}
        self._done = 0
        self._rounds: Rounds | None = None
        self._kept: tuple[int, bytes] | None = None  # the model of so many rounds
        self._model: Any = None
        if inputs.order is not None:
            self._sample = rows_of(inputs.splits["train"], loss_sample(inputs, 50))
            self._sample_pool = self._pool(self._sample.features)
            with self._translated("this model cannot be trained", ModelError):
                self._rounds = self._prepared()

    def describe(self) -> Mapping[str, str]:
        return {"catboost": self._library.__version__, "device": self._device[0].lower()}

    def definition(self) -> Mapping[str, str]:
        return {} if self._inputs.model is None else of_estimator(self._inputs.model)

    def step(self, step: int, lr: float) -> StepResult:  # noqa: ARG002 - it stays
        assert self._rounds, "made only to predict"
        # Only now it looks at the options, and says what is wrong with them.
        kind: type[TrainyardError] = TrainingError if step else ModelError
        with self._translated(f"round {step + 1} failed", kind):
            self._rounds.reach(step + 1)
        self._done = step + 1
        loss = self._loss(self._done) if _shrinks(self._asked.params) else self._done
        return StepResult(loss, len(self._inputs.splits["train"]))

    def read(self, losses: Sequence[Any]) -> list[float]:
        """A round leaves its number, and the trees up to there give its loss; or its loss, where they will not stay."""
        return [loss if isinstance(loss, float) else self._loss(loss) for loss in losses]

    def predict(self, split: Split) -> Iterator[Predictions]:
        with self._translated("a prediction failed", TrainingError):
            pool, targets = self._pool_of(split)
            raw = self._raw(pool, self._done)
        for start in range(0, len(split), _BLOCK):
            values, wanted = raw[start : start + _BLOCK], targets[start : start + _BLOCK]
            with self._translated("a prediction failed", TrainingError):
                loss = self._objective.loss(values, wanted) * len(values)
            ids = np.arange(start, start + len(values), dtype=np.int64)
            yield Predictions(ids, self._objective.outputs(values).astype(np.float32), wanted, loss)

    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> Snapshot:
        files, rounds = self._files(weights_only, step), self._rounds
        resumable = rounds is not None and rounds.made == self._done and not weights_only
        return _Snapshot(files, rounds.snapshot if rounds and resumable else b"")

    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        weights = read_arrays(folder / WEIGHTS_FILE)
        if set(weights) != {"model"}:
            raise ModelError(
                f"these are not the weights of a CatBoost model: they have {', '.join(sorted(weights)[:5])}"
            )
        data = weights["model"].tobytes()
        self._model = from_bytes(data, self._library.CatBoost) if data else None
        self._done = self._model.tree_count_ if data else 0
        snapshot = b""
        if not weights_only:
            self._done = int(read_arrays(folder / _PROGRESS_FILE)["rounds"][0])
            snapshot = (folder / _SNAPSHOT_FILE).read_bytes() if (folder / _SNAPSHOT_FILE).exists() else b""
        self._kept = self._done, data
        if self._rounds:
            self._rounds.resume(self._model, self._done, snapshot)

    def state(self, *, weights_only: bool = False) -> Iterator[NamedBuffer]:
        return buffers(self._files(weights_only))

    @property
    def native(self) -> Any:
        """A `catboost.CatBoostClassifier` or `CatBoostRegressor`; to change it changes nothing here."""
        task = self._inputs.info.task
        cls = (
            self._library.CatBoostClassifier if task == "classification" else self._library.CatBoostRegressor
        )
        return from_bytes(self._bytes(self._done), cls)

    def importance(self) -> Mapping[str, Array]:
        """How much the predictions change with a feature, in percent of all of them."""
        return {"prediction_change": np.asarray(self.native.get_feature_importance(), dtype=np.float64)}

    def export(self, path: Path, form: str) -> None:
        self.native.save_model(str(path), format=form)

    @property
    def _device(self) -> tuple[str, str]:
        """CatBoost's word, and the device's number; auto is the CPU, the only one that is exact."""
        name, _, number = self._inputs.config.training.device.partition(":")
        return ("GPU", number or "0") if name == "cuda" else ("CPU", "")

    def _prepared(self) -> Rounds:
        inputs, params = self._inputs, self._asked.params
        device, number = self._device
        options = native(params) | {
            "random_seed": _seed(inputs),
            "thread_count": inputs.threads,
            "task_type": device,
        }
        options |= {"loss_function": self._asked.objective or self._objective.name, "metric_period": _NEVER}
        options |= {"eval_metric": self._objective.name} if self._asked.objective else {}
        options |= {"devices": number} if number else {}
        rows = rows_of(inputs.splits["train"])
        pool = make_pool(self._library, inputs.info, rows.features, rows.targets, inputs.threads)
        pool.quantize(
            border_count=params.max_bin, nan_mode=params.nan_mode, random_seed=_seed(inputs), task_type=device
        )
        plan = self.plan(inputs.config, len(rows.features), inputs.model)
        return Rounds(self._library, options, pool, plan.total_steps, plan.boundary)

    def _pool(self, features: Array) -> Any:
        return make_pool(self._library, self._inputs.info, features, None, self._inputs.threads)

    def _pool_of(self, split: Split) -> tuple[Any, Array]:
        """With the targets; kept for the run's own splits, of which predictions are asked again and again."""
        if id(split) in self._pools:
            return self._pools[id(split)]
        rows = rows_of(split)
        made = self._pool(rows.features), rows.targets
        if self._inputs.owns(split):
            self._pools[id(split)] = made
        return made

    def _raw(self, pool: Any, rounds: int) -> Array:
        """(rows, width) float64: what the trees of so many rounds give."""
        model = self._rounds.model if self._rounds else self._model
        if model is None or not rounds:
            info = self._inputs.info
            return np.zeros(
                (pool.num_row(), 1 if info.task == "classification" and info.outputs == 2 else info.outputs)
            )
        upto = min(rounds, model.tree_count_)
        found = model.predict(
            pool, prediction_type="RawFormulaVal", ntree_end=upto, thread_count=self._inputs.threads
        )
        return np.asarray(found, dtype=np.float64).reshape(pool.num_row(), -1)

    def _loss(self, rounds: int) -> float:
        with self._translated("a prediction failed", TrainingError):
            return self._objective.loss(self._raw(self._sample_pool, rounds), self._sample.targets)

    def _bytes(self, rounds: int) -> bytes:
        """The model of so many rounds."""
        if self._kept is None or self._kept[0] != rounds:
            model = self._rounds.model if self._rounds else self._model
            self._kept = rounds, to_bytes(model, rounds) if model is not None and rounds else b""
        return self._kept[1]

    def _files(self, weights_only: bool, step: int | None = None) -> Files:
        files = {WEIGHTS_FILE: {"model": bytes_array(self._bytes(self._done if step is None else step))}}
        return files if weights_only else files | {_PROGRESS_FILE: {"rounds": np.array([self._done])}}

    @contextmanager
    def _translated(self, what: str, kind: type[TrainyardError]) -> Iterator[None]:
        """Turns the errors of the library, and of the user's objects, into ours, without places in its source."""
        try:
            yield
        except TrainyardError:
            raise
        except Exception as error:
            name = "" if isinstance(error, self._library.CatBoostError) else f"{type(error).__name__}: "
            lines = [line for line in str(error).splitlines() if line.strip()] or [""]
            line = (
                lines[-1] if "Traceback" in lines[0] else lines[0]
            )  # what an object of the user's raised is behind
            said = re.sub(r"^\S+\.(cpp|h|cu\w*):\d+: ", "", line)
            raise kind(f"{what}: {name}{said}; see where with --debug") from error


class _Snapshot(StoredSnapshot):
    """With CatBoost's own snapshot beside the arrays, where training can go on from there."""

    def __init__(self, files: Files, own: bytes) -> None:
        super().__init__(files)
        self._own = own

    def write(self, folder: Path) -> list[FileRecord]:
        return super().write(folder) + ([write_file(folder / _SNAPSHOT_FILE, self._own)] if self._own else [])

    def release(self) -> None:
        super().release()
        self._own = b""


def _shrinks(params: CatboostParams) -> bool:
    """Whether a round changes the trees before it, too: with constraints, CatBoost makes them count less."""
    return bool(params.monotone_constraints)


def _seed(inputs: FrameworkInputs) -> int:
    return stream_seed(inputs.config.experiment.seed, INIT) % (1 << 31)
