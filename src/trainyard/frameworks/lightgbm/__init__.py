"""LightGBM: each boosting round is a step."""

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
from trainyard.frameworks.lightgbm.boosting import RESET_INTERVAL, Boosting, RoundParams, bin_seed
from trainyard.frameworks.lightgbm.data import Rows, Scores, make_dataset
from trainyard.frameworks.lightgbm.estimators import model_spec
from trainyard.frameworks.lightgbm.layout import faster_layout
from trainyard.frameworks.lightgbm.model import Trees, join_model
from trainyard.frameworks.lightgbm.objective import build_objective
from trainyard.frameworks.lightgbm.params import LightgbmParams, library_params, monotone_signs
from trainyard.frameworks.support.definition import of_estimator
from trainyard.frameworks.support.estimators import check_estimator
from trainyard.frameworks.support.stored import Files, StoredSnapshot, buffers, bytes_array, read_arrays
from trainyard.require import require
from trainyard.types import Array, Determinism, NamedBuffer, Predictions, StepResult

_BLOCK = 1 << 16  # rows per yielded block of predictions
_READ_VALUES = 1 << 22  # predictions held at once for the losses of many rounds
_PROGRESS_FILE = "progress.safetensors"
_LAYOUT = "histograms"  # the name of the choice between `row_wise` and `col_wise`
_MEASURED_VALUES = (
    1 << 20
)  # rows times features: with fewer, a rule serves as well, and all runs get the same bits
_ROW_WISE_ROWS = 1000  # rows per feature from which the rule takes `row_wise`


class LightgbmFramework(Framework):
    """Train gradient boosted trees; `boosting.py` explains how they resume exactly."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = {"lightgbm": LightgbmParams}
    tasks: ClassVar[Collection[str] | None] = ("classification", "regression")
    base_modules: ClassVar[Sequence[str]] = ("lightgbm",)
    model_bases: ClassVar[Sequence[str]] = ("lightgbm:LGBMModel",)
    formats: ClassVar[Sequence[str]] = ("txt",)

    @staticmethod
    def defaults(model: str) -> Mapping[str, Any]:  # noqa: ARG004 - the only model
        """Return config defaults: no scaling, category codes, missing values kept, 100 rounds."""
        return {
            "data.standardize": False,
            "data.encode": "category",
            "data.impute": "keep",
            "training.epochs": 100,
        }

    @staticmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG004
        """Return the keys that have an effect; `n_estimators` replaces `epochs` and `max_steps`."""
        return {"device", "scheduler"} | (set() if params.get("n_estimators") else {"epochs", "max_steps"})

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:
        """Plan one step per boosting round; a dart model changes earlier trees, so it is not cumulative.

        Raises:
            InputError: The learning rate is to vary, or initial weights are given, where `boosting`
                forbids it.
        """
        params, schedule = model_spec(config, model).params, config.training.scheduler
        if (schedule.type != "constant" or schedule.warmup_steps) and (reason := _fixed_rate(params)):
            raise InputError(
                f"training.scheduler: {reason}, so the learning rate must stay constant; leave it out"
            )
        if params.boosting == "rf" and config.model.init_from:
            raise InputError(
                "model.init_from: boosting: rf averages its trees and cannot continue from another model; "
                "leave it out"
            )
        plan = rounds_plan(config, rows, params.n_estimators, params.learning_rate)
        boundary = RoundParams(library_params(params), config.experiment.seed).boundary
        return plan._replace(boundary=boundary, cumulative=params.boosting != "dart")

    @staticmethod
    def determinism(config: RunConfig) -> Determinism:
        """Return `bitwise` on the CPU and `order` on other devices."""
        device = _device(config, model_spec(config).params)
        if device != "cpu":
            return Determinism("order", f"on {device}, LightGBM sums histograms in an order that varies")
        return Determinism(
            "bitwise",
            f"generators reset every {RESET_INTERVAL} rounds, pinned threads and layout of histograms",
        )

    def __init__(self, inputs: FrameworkInputs) -> None:
        self._library = require("lightgbm", "lightgbm", spare="sklearn")
        require("safetensors", "lightgbm")
        self._library.register_logger(logging.getLogger("lightgbm"))  # it would print otherwise
        self._inputs = inputs
        self._spec = model_spec(inputs.config, inputs.model)
        check_estimator(inputs, self._spec.task, self._spec.unused)
        params, custom = self._spec.params, self._spec.gradients is not None
        self._objective = build_objective(params.objective, params.alpha, inputs.info, custom=custom)
        self._trees = Trees(self._library, self._objective.width, inputs.threads)
        self._scores: dict[int, Scores] = {}
        self._boosting: Boosting | None = None
        # Whether a round changes the output of earlier ones, so that the loss of a step must be read at once.
        self._changes_trees = params.boosting != "gbdt"
        self._choices = dict(inputs.choices)
        self._training_rows = len(inputs.splits["train"]) if inputs.order else 0
        if inputs.order is not None:
            self._sample = Scores(
                Rows(inputs.splits["train"], loss_sample(inputs, 100)), self._objective.width
            )
            with self._translate_errors("this model cannot be trained", ModelError):
                self._boosting = self._build_boosting()

    @staticmethod
    def device_name(config: RunConfig) -> str:
        """Return `cpu`, or `gpu` or `cuda` with its number."""
        return _device(config, model_spec(config).params)

    def describe(self) -> Mapping[str, str]:
        """Return the library's version and the device."""
        return {
            "lightgbm": self._library.__version__,
            "device": _device(self._inputs.config, self._spec.params),
        }

    def definition(self) -> Mapping[str, str]:
        """Return the class and options of an estimator that was passed in Python, else nothing."""
        return {} if self._inputs.model is None else of_estimator(self._inputs.model)

    def choices(self) -> Mapping[str, str]:
        """Return the layout of histograms, if LightGBM's own test chose it."""
        return self._choices

    def step(self, step: int, lr: float) -> StepResult:
        """Run one boosting round and return its loss, or the number of rounds for `read`.

        Raises:
            ModelError: LightGBM rejects the options or the data in the first round.
            TrainingError: LightGBM fails later.
        """
        boosting = self._boosting
        assert boosting, "made only to predict"
        with self._translate_errors(f"round {step + 1} failed", TrainingError if step else ModelError):
            if boosting.is_idle:  # `read` adds the values of later rounds to these scores
                self._sample.recompute(self._trees)
            boosting.step(step, lr)
            loss = self._sample_loss(boosting) if self._changes_trees else boosting.rounds
        return StepResult(loss, self._training_rows)

    def read(self, losses: Sequence[Any]) -> list[float]:
        """Return the losses of some steps, on a sample of the training rows.

        `step` returns a number of rounds, from whose trees the loss follows later: much cheaper for many
        rounds at once.
        """
        if self._changes_trees or not losses:
            return [float(loss) for loss in losses]
        assert self._boosting
        values: list[float] = []
        count = max(1, _READ_VALUES // (len(self._sample.rows) * self._objective.width))
        with self._translate_errors("a prediction failed", TrainingError):
            for part in (losses[start : start + count] for start in range(0, len(losses), count)):
                raw = np.stack([self._sample.advance(rounds, self._boosting).copy() for rounds in part])
                predictions = self._objective.predictions(raw.reshape(-1, raw.shape[2]))
                values += self._losses(predictions, np.tile(self._sample.rows.targets, len(part)), len(part))
        return values

    def predict(self, split: Split) -> Iterator[Predictions]:
        """Yield the outputs for all rows of a split, block by block.

        Raises:
            TrainingError: LightGBM or the user's metric fails.
        """
        scores = self._scores_of(split)
        with self._translate_errors("a prediction failed", TrainingError):
            raw = self._update_scores(scores)
            if self._spec.params.boosting == "rf":
                raw = raw / max(1, scores.rounds)
        for start in range(0, len(split), _BLOCK):
            targets = scores.rows.targets[start : start + _BLOCK]
            with self._translate_errors("a prediction failed", TrainingError):
                predictions = self._objective.predictions(raw[start : start + _BLOCK])
                (loss,) = self._losses(predictions, targets, 1)
            ids = np.arange(start, start + len(predictions), dtype=np.int64)
            yield Predictions(
                ids, self._objective.outputs(predictions).astype(np.float32), targets, loss * len(predictions)
            )

    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> Snapshot:
        """Copy the trees, or with `step` those of the first steps; the text is joined when it is written."""
        return _Snapshot(self._parts(weights_only, step))

    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        """Restore the trees, and the progress of the training, from the files in `folder`.

        Raises:
            ModelError: The weights are not a LightGBM model, or do not fit the run.
        """
        weights = read_arrays(folder / WEIGHTS_FILE)
        if set(weights) != {"model"}:
            raise ModelError(
                "these are not the weights of a LightGBM model: expected one tensor 'model', "
                f"got {', '.join(sorted(weights)[:5])}"
            )
        self._scores.clear()
        with self._translate_errors("these weights cannot be loaded", ModelError):
            self._trees.parse(weights["model"].tobytes().decode())
            if self._boosting:
                progress = {} if weights_only else read_arrays(folder / _PROGRESS_FILE)
                rounds_after = progress["ends"].tolist() if progress else [self._trees.rounds]
                self._boosting.begin(rounds_after, int(progress["made"][0]) if progress else 0)

    def state(self, *, weights_only: bool = False) -> Iterator[NamedBuffer]:
        """Yield the model's text as bytes, and the progress of the training."""
        return buffers(self._parts(weights_only).files())

    @property
    def native(self) -> Any:
        """A `lightgbm.Booster` with the present trees; a copy."""
        if self._boosting:
            self._boosting.collect()
        return self._trees.booster()

    def importance(self) -> Mapping[str, Array]:
        """Return the importance of each feature, (features,) float64.

        `gain` is the sum of the gains of the feature's splits, `split` the number of them.
        """
        return {kind: self.native.feature_importance(kind).astype(np.float64) for kind in ("gain", "split")}

    def export(self, path: Path, form: str) -> None:  # noqa: ARG002 - the only format
        """Write the model in LightGBM's text format."""
        self.native.save_model(str(path))

    def _build_boosting(self) -> Boosting:
        inputs, params = self._inputs, self._params()
        train, seed = Rows(inputs.splits["train"]), inputs.config.experiment.seed
        weight = _balanced_weights(train.targets) if self._spec.params.class_weight else None
        dataset = make_dataset(self._library, train, inputs.info, params, weight=weight)
        if params["device_type"] == "cpu":
            params[f"force_{self._layout(dataset, params)}"] = True
        sample = None
        if self._changes_trees:
            sample = (
                make_dataset(self._library, self._sample.rows, inputs.info, params, reference=dataset),
                self._sample.rows,
            )
        return Boosting(
            self._library,
            RoundParams(params, seed, self._spec.gradients),
            dataset,
            train,
            self._trees,
            sample,
        )

    def _layout(self, dataset: Any, params: Mapping[str, Any]) -> str:
        """Return the layout of histograms: with much data, LightGBM's own test chooses it once per run."""
        columns, rows = int(np.prod(self._inputs.info.input_shape)), self._training_rows
        if rows * columns < _MEASURED_VALUES:
            return "row_wise" if rows >= _ROW_WISE_ROWS * columns else "col_wise"
        if _LAYOUT not in self._choices:
            self._choices[_LAYOUT] = faster_layout(self._library, dataset, params)
        return self._choices[_LAYOUT]

    def _params(self) -> dict[str, Any]:
        """Return the parameters of the training, under LightGBM's names, without the layout of histograms."""
        inputs, options, objective = self._inputs, self._spec.params, self._objective
        params = library_params(options) | monotone_signs(options, inputs.info.feature_names)
        params |= {"objective": objective.name, "metric": "None", "verbosity": -1, "deterministic": True}
        params |= {"num_threads": inputs.threads, "data_random_seed": bin_seed(inputs.config.experiment.seed)}
        if objective.width > 1:
            params["num_class"] = objective.width
        device, _, number = _device(inputs.config, options).partition(":")
        params |= {"device_type": device} | ({"gpu_device_id": int(number)} if number else {})
        return params

    def _scores_of(self, split: Split) -> Scores:
        """Return the scores of a split; those of the run's own splits, predicted repeatedly, are kept."""
        if not self._inputs.owns(split):
            return Scores(Rows(split), self._objective.width)
        if id(split) not in self._scores:
            self._scores[id(split)] = Scores(Rows(split), self._objective.width)
        return self._scores[id(split)]

    def _update_scores(self, scores: Scores) -> Array:
        """Return (rows, width) sums of all trees; recompute them where earlier trees may have changed."""
        boosting = self._boosting
        if boosting and 0 < scores.rounds <= boosting.rounds and self._spec.params.boosting != "dart":
            return scores.advance(boosting.rounds, boosting)
        if boosting:
            boosting.collect()
        return scores.recompute(self._trees)

    def _losses(self, predictions: Array, targets: Array, count: int) -> list[float]:
        """Return the mean loss of each of `count` models.

        Args:
            predictions: (count * rows, width), one model after the other.
            targets: (count * rows,).
            count: The number of models.

        Raises:
            ModelError: Higher values of the user's metric are better.
        """
        if self._spec.metric is None:
            losses = self._objective.losses(self._objective.outputs(predictions), targets)
            return [float(mean) for mean in losses.reshape(count, -1).mean(axis=1)]
        single = predictions[:, 0] if self._objective.width == 1 else predictions
        parts = zip(np.split(single, count), np.split(targets, count), strict=True)
        # The metric gets a dataset that holds the targets, but neither features nor bins.
        datasets = [
            (part, self._library.Dataset(np.empty((len(labels), 0)), label=labels)) for part, labels in parts
        ]
        values = [self._spec.metric(part, dataset) for part, dataset in datasets]
        if any(higher for _, _, higher in values):
            raise ModelError(
                "model.params.metric: higher is better, but it is the loss; return its negative, and False"
            )
        return [float(value) for _, value, _ in values]

    def _sample_loss(self, boosting: Boosting) -> float:
        """Return the loss on the sample by LightGBM's own scores, where a round changes earlier trees."""
        values = boosting.sample_predictions()
        predictions = values if self._spec.gradients is None else self._objective.predictions(values)
        return self._losses(predictions, self._sample.rows.targets, 1)[0]

    def _parts(self, weights_only: bool, step: int | None = None) -> _Parts:
        boosting, rounds = self._boosting, self._trees.rounds
        if boosting is None:
            return _Parts(*self._trees.part(rounds), None)
        boosting.collect()
        progress = (
            None
            if weights_only
            else {
                "ends": np.array(boosting.rounds_after),
                "made": np.array([boosting.rounds_with_split]),
            }
        )
        rounds = boosting.rounds if step is None else boosting.rounds_after[step]
        return _Parts(*self._trees.part(rounds), progress)

    @contextmanager
    def _translate_errors(self, what: str, kind: type[TrainyardError]) -> Iterator[None]:
        """Raise errors of the library and of the user's functions as `kind`, in one line."""
        try:
            yield
        except TrainyardError:
            raise
        except Exception as error:
            name = "" if type(error).__name__ == "LightGBMError" else f"{type(error).__name__}: "
            message = (str(error).splitlines() or [""])[0].rstrip(".")
            hint = "see where with --debug"
            if "num_features" in message:
                message, hint = (
                    "no feature can be split",
                    "give more rows, or lower model.params.min_child_samples",
                )
            if "was not enabled in this build" in message or "OpenCL" in message:
                hint = (
                    "use training.device: cpu, device_type: gpu (OpenCL), or a LightGBM built for the device"
                )
            raise kind(f"{what}: {name}{message}; {hint}") from error


class _Parts(NamedTuple):
    """The parts of the state; they are joined into the model's text only when that is needed."""

    head: str
    trees: Sequence[str]
    progress: Mapping[str, Array] | None

    def files(self) -> Files:
        """Return the arrays of the state by file and name."""
        files = {WEIGHTS_FILE: {"model": bytes_array(join_model(self.head, self.trees).encode())}}
        return files if self.progress is None else files | {_PROGRESS_FILE: self.progress}


class _Snapshot:
    """A copy of the state, whose files are built when they are written."""

    def __init__(self, parts: _Parts) -> None:
        self._parts: _Parts | None = parts

    def write(self, folder: Path) -> list[FileRecord]:
        assert self._parts, "it was released"
        return StoredSnapshot(self._parts.files()).write(folder)

    def release(self) -> None:
        self._parts = None


def _fixed_rate(params: LightgbmParams) -> str | None:
    """Return why the learning rate cannot vary, or None if it can."""
    kind = f"boosting: {params.boosting}" if params.boosting != "gbdt" else params.data_sample_strategy
    return None if kind == "bagging" else f"{kind} replays its rounds at a resume"


def _device(config: RunConfig, params: LightgbmParams) -> str:
    """Return `cpu`, `gpu` or `cuda`, with `:NUMBER` if one is set; `auto` is the CPU, which is exact."""
    requested, _, number = config.training.device.partition(":")
    device = params.device_type or ("cuda" if requested == "cuda" else "cpu")
    return f"{device}:{number}" if number and device != "cpu" else device


def _balanced_weights(targets: Array) -> Array:
    """Return (rows,) weights that give all classes the same total weight."""
    counts = np.bincount(targets)
    weights: Array = len(targets) / (np.count_nonzero(counts) * counts[targets])
    return weights
