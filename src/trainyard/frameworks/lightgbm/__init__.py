"""LightGBM: boosting rounds are steps."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pydantic import BaseModel

from trainyard.config.schema import RunConfig
from trainyard.datasets.base import Split
from trainyard.digest import FileRecord
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
from trainyard.frameworks.definition import of_estimator
from trainyard.frameworks.estimators import check_estimator
from trainyard.frameworks.lightgbm.boosting import EVERY, Boosting, Recipe, bin_seed
from trainyard.frameworks.lightgbm.data import Rows, Scores, make_dataset
from trainyard.frameworks.lightgbm.estimators import asked
from trainyard.frameworks.lightgbm.model import Trees, joined
from trainyard.frameworks.lightgbm.objective import build_objective
from trainyard.frameworks.lightgbm.params import LightgbmParams, directions, library_params
from trainyard.frameworks.stored import Files, StoredSnapshot, buffers, bytes_array, read_arrays
from trainyard.require import require
from trainyard.types import Array, Determinism, NamedBuffer, Predictions, StepResult

_BLOCK = 1 << 16  # rows of which predictions are given at once
_READ_VALUES = 1 << 22  # predictions that are held at once for the losses of many rounds
_PROGRESS_FILE = "progress.safetensors"
_ROW_WISE_ROWS = 1000  # for each feature: with fewer, histograms are made column by column


class LightgbmFramework(Framework):
    """Trains gradient boosted trees; `boosting.py` says how they are resumed exactly."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = {"lightgbm": LightgbmParams}
    base_modules: ClassVar[Sequence[str]] = ("lightgbm",)
    model_bases: ClassVar[Sequence[str]] = ("lightgbm:LGBMModel",)
    formats: ClassVar[Sequence[str]] = ("txt",)

    @staticmethod
    def defaults(model: str) -> Mapping[str, Any]:  # noqa: ARG004 - there is one
        return {
            "data.standardize": False,
            "data.encode": "category",
            "data.impute": "keep",
            "training.epochs": 100,
        }

    @staticmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG004
        return {"device", "scheduler"} | (set() if params.get("n_estimators") else {"epochs", "max_steps"})

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:
        params, schedule = asked(config, model).params, config.training.scheduler
        if (schedule.type != "constant" or schedule.warmup_steps) and (why := _fixed_rate(params)):
            raise InputError(
                f"training.scheduler: {why}, so the learning rate has to stay; leave the scheduler out"
            )
        if params.boosting == "rf" and config.model.init_from:
            raise InputError(
                "model.init_from: boosting: rf averages its trees, and cannot go on from those of another model"
            )
        plan = rounds_plan(config, rows, params.n_estimators, params.learning_rate)
        boundary = Recipe(library_params(params), config.experiment.seed).boundary
        return plan._replace(boundary=boundary, cumulative=params.boosting != "dart")

    @staticmethod
    def determinism(config: RunConfig) -> Determinism:
        device = _device(config, asked(config).params)
        if device != "cpu":
            return Determinism("order", f"on {device}, LightGBM adds up histograms in an order that varies")
        return Determinism(
            "bitwise",
            f"randomness begun afresh every {EVERY} rounds, a pinned number of threads and layout of histograms",
        )

    def __init__(self, inputs: FrameworkInputs) -> None:
        self._library = require("lightgbm", "lightgbm", spare="sklearn")
        require("safetensors", "lightgbm")
        self._library.register_logger(logging.getLogger("lightgbm"))  # else it prints
        self._inputs = inputs
        self._asked = asked(inputs.config, inputs.model)
        check_estimator(inputs, self._asked.task, self._asked.unused)
        params, custom = self._asked.params, self._asked.gradients is not None
        self._objective = build_objective(params.objective, params.alpha, inputs.info, custom=custom)
        self._trees = Trees(self._library, self._objective.width, inputs.threads)
        self._scores: dict[int, Scores] = {}
        self._boosting: Boosting | None = None
        self._changes, self._training_rows = (
            params.boosting != "gbdt",
            len(inputs.splits["train"]) if inputs.order else 0,
        )
        if inputs.order is not None:
            self._sample = Scores(
                Rows(inputs.splits["train"], loss_sample(inputs, 100)), self._objective.width
            )
            with self._translated("this model cannot be trained", ModelError):
                self._boosting = self._prepared()

    def describe(self) -> Mapping[str, str]:
        return {
            "lightgbm": self._library.__version__,
            "device": _device(self._inputs.config, self._asked.params),
        }

    def definition(self) -> Mapping[str, str]:
        return {} if self._inputs.model is None else of_estimator(self._inputs.model)

    def step(self, step: int, lr: float) -> StepResult:
        boosting = self._boosting
        assert boosting, "made only to predict"
        with self._translated(f"round {step + 1} failed", TrainingError if step else ModelError):
            if boosting.waits:  # the losses of the rounds to come build on these sums
                self._sample.take(self._trees)
            boosting.step(step, lr)
            loss = self._changing_loss(boosting) if self._changes else boosting.rounds
        return StepResult(loss, self._training_rows)

    def read(self, losses: Sequence[Any]) -> list[float]:
        """A round leaves its number; the trees up to there give its loss, for many rounds at once in little time."""
        if self._changes or not losses:
            return [float(loss) for loss in losses]
        assert self._boosting
        found: list[float] = []
        count = max(1, _READ_VALUES // (len(self._sample.rows) * self._objective.width))
        with self._translated("a prediction failed", TrainingError):
            for part in (losses[start : start + count] for start in range(0, len(losses), count)):
                raw = np.stack([self._sample.advance(rounds, self._boosting).copy() for rounds in part])
                predictions = self._objective.predictions(raw.reshape(-1, raw.shape[2]))
                found += self._losses(predictions, np.tile(self._sample.rows.targets, len(part)), len(part))
        return found

    def predict(self, split: Split) -> Iterator[Predictions]:
        scores = self._scores_of(split)
        with self._translated("a prediction failed", TrainingError):
            raw = self._up_to_date(scores)
            if self._asked.params.boosting == "rf":
                raw = raw / max(1, scores.rounds)
        for start in range(0, len(split), _BLOCK):
            targets = scores.rows.targets[start : start + _BLOCK]
            with self._translated("a prediction failed", TrainingError):
                predictions = self._objective.predictions(raw[start : start + _BLOCK])
                (loss,) = self._losses(predictions, targets, 1)
            ids = np.arange(start, start + len(predictions), dtype=np.int64)
            yield Predictions(
                ids, self._objective.outputs(predictions).astype(np.float32), targets, loss * len(predictions)
            )

    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> Snapshot:
        return _Snapshot(self._parts(weights_only, step))

    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        weights = read_arrays(folder / WEIGHTS_FILE)
        if set(weights) != {"model"}:
            raise ModelError(
                f"these are not the weights of a LightGBM model: they have {', '.join(sorted(weights)[:5])}"
            )
        self._scores.clear()
        with self._translated("these weights cannot be loaded", ModelError):
            self._trees.parse(weights["model"].tobytes().decode())
            if self._boosting:
                progress = {} if weights_only else read_arrays(folder / _PROGRESS_FILE)
                ends = progress["ends"].tolist() if progress else [self._trees.rounds]
                self._boosting.begin(ends, int(progress["made"][0]) if progress else 0)

    def state(self, *, weights_only: bool = False) -> Iterator[NamedBuffer]:
        return buffers(self._parts(weights_only).files())

    @property
    def native(self) -> Any:
        """A `lightgbm.Booster` of the trees that there are; to change it changes nothing here."""
        if self._boosting:
            self._boosting.collect()
        return self._trees.booster()

    def importance(self) -> Mapping[str, Array]:
        """`gain`: the sum of those of a feature's splits; `split`: how many they are."""
        return {kind: self.native.feature_importance(kind).astype(np.float64) for kind in ("gain", "split")}

    def export(self, path: Path, form: str) -> None:  # noqa: ARG002 - there is one
        self.native.save_model(str(path))

    def _prepared(self) -> Boosting:
        inputs, params = self._inputs, self._params()
        train, seed = Rows(inputs.splits["train"]), inputs.config.experiment.seed
        weight = _balanced(train.targets) if self._asked.params.class_weight else None
        dataset = make_dataset(self._library, train, inputs.info, params, weight=weight)
        sample = None
        if self._changes:
            sample = (
                make_dataset(self._library, self._sample.rows, inputs.info, params, reference=dataset),
                self._sample.rows,
            )
        return Boosting(
            self._library, Recipe(params, seed, self._asked.gradients), dataset, train, self._trees, sample
        )

    def _params(self) -> dict[str, Any]:
        """What LightGBM is told."""
        inputs, params, objective = self._inputs, self._asked.params, self._objective
        found = library_params(params) | directions(params, inputs.info.feature_names)
        found |= {"objective": objective.name, "metric": "None", "verbosity": -1, "deterministic": True}
        found |= {"num_threads": inputs.threads, "data_random_seed": bin_seed(inputs.config.experiment.seed)}
        if objective.width > 1:
            found["num_class"] = objective.width
        device, _, number = _device(inputs.config, params).partition(":")
        found |= {"device_type": device} | ({"gpu_device_id": int(number)} if number else {})
        if device == "cpu":  # left alone, LightGBM tries both and takes what is faster at the moment
            columns, rows = int(np.prod(inputs.info.input_shape)), len(inputs.splits["train"])
            found["force_row_wise" if rows >= _ROW_WISE_ROWS * columns else "force_col_wise"] = True
        return found

    def _scores_of(self, split: Split) -> Scores:
        """Kept for the run's own splits, of which predictions are asked again and again."""
        if not self._inputs.owns(split):
            return Scores(Rows(split), self._objective.width)
        if id(split) not in self._scores:
            self._scores[id(split)] = Scores(Rows(split), self._objective.width)
        return self._scores[id(split)]

    def _up_to_date(self, scores: Scores) -> Array:
        """The sums of all trees; where those that were there may have changed, anew."""
        boosting = self._boosting
        if boosting and 0 < scores.rounds <= boosting.rounds and self._asked.params.boosting != "dart":
            return scores.advance(boosting.rounds, boosting)
        if boosting:
            boosting.collect()
        return scores.take(self._trees)

    def _losses(self, predictions: Array, targets: Array, count: int) -> list[float]:
        """The means over the rows, for each of `count` models whose predictions stand one behind the other."""
        if self._asked.metric is None:
            found = self._objective.losses(self._objective.outputs(predictions), targets)
            return [float(mean) for mean in found.reshape(count, -1).mean(axis=1)]
        single = predictions[:, 0] if self._objective.width == 1 else predictions
        parts = zip(np.split(single, count), np.split(targets, count), strict=True)
        # A dataset with these targets, but no bins made: it is asked for the targets only.
        sets = [
            (part, self._library.Dataset(np.empty((len(wanted), 0)), label=wanted)) for part, wanted in parts
        ]
        values = [self._asked.metric(part, dataset) for part, dataset in sets]
        if any(higher for _, _, higher in values):
            raise ModelError(
                "model.params.metric: of it more is better, but it stands for the loss; return its negative, and False"
            )
        return [float(value) for _, value, _ in values]

    def _changing_loss(self, boosting: Boosting) -> float:
        """Of the rows that stand for all, by LightGBM's own sums: trees that are there may have changed."""
        found = boosting.converted()
        predictions = found if self._asked.gradients is None else self._objective.predictions(found)
        return self._losses(predictions, self._sample.rows.targets, 1)[0]

    def _parts(self, weights_only: bool, step: int | None = None) -> _Parts:
        boosting, rounds = self._boosting, self._trees.rounds
        if boosting is None:
            return _Parts(*self._trees.part(rounds), None)
        boosting.collect()
        progress = (
            None if weights_only else {"ends": np.array(boosting.ends), "made": np.array([boosting.made])}
        )
        return _Parts(*self._trees.part(boosting.rounds if step is None else boosting.ends[step]), progress)

    @contextmanager
    def _translated(self, what: str, kind: type[TrainyardError]) -> Iterator[None]:
        """Turns the errors of the library, and of the user's functions, into ours."""
        try:
            yield
        except TrainyardError:
            raise
        except Exception as error:
            name = "" if type(error).__name__ == "LightGBMError" else f"{type(error).__name__}: "
            said = (str(error).splitlines() or [""])[0].rstrip(".")
            hint = "see where with --debug"
            if "num_features" in said:
                said, hint = (
                    "no feature can be split",
                    "give more rows, or less model.params.min_child_samples",
                )
            if "was not enabled in this build" in said or "OpenCL" in said:
                hint = "take training.device: cpu, device_type: gpu (OpenCL), or a LightGBM that is built for the device"
            raise kind(f"{what}: {name}{said}; {hint}") from error


class _Parts(NamedTuple):
    """What the state consists of; the text of the model is put together only where it is wanted."""

    head: str
    trees: Sequence[str]
    progress: Mapping[str, Array] | None

    def files(self) -> Files:
        files = {WEIGHTS_FILE: {"model": bytes_array(joined(self.head, self.trees).encode())}}
        return files if self.progress is None else files | {_PROGRESS_FILE: self.progress}


class _Snapshot:
    def __init__(self, parts: _Parts) -> None:
        self._parts: _Parts | None = parts

    def write(self, folder: Path) -> list[FileRecord]:
        assert self._parts, "it was released"
        return StoredSnapshot(self._parts.files()).write(folder)

    def release(self) -> None:
        self._parts = None


def _fixed_rate(params: LightgbmParams) -> str | None:
    """Why the learning rate cannot change, if so."""
    kind = f"boosting: {params.boosting}" if params.boosting != "gbdt" else params.data_sample_strategy
    return None if kind == "bagging" else f"{kind} makes its rounds once more where it is resumed"


def _device(config: RunConfig, params: LightgbmParams) -> str:
    """`cpu`, `gpu` or `cuda`, and :NUMBER where one is asked for; auto is the CPU, the only one that is exact."""
    asked_for, _, number = config.training.device.partition(":")
    device = params.device_type or ("cuda" if asked_for == "cuda" else "cpu")
    return f"{device}:{number}" if number and device != "cpu" else device


def _balanced(targets: Array) -> Array:
    """(rows,) weights with which all classes weigh the same together."""
    counts = np.bincount(targets)
    found: Array = len(targets) / (np.count_nonzero(counts) * counts[targets])
    return found
