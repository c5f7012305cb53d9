"""XGBoost: each boosting round is a step, and a run resumes bit-identically.

XGBoost seeds the randomness of a round by the round's number (`seed_per_iteration`), with one exception: the
generator that samples features is seeded when a booster grows its first tree and is never seeded again. A
resumed booster would therefore sample other features. So, where rows or features are sampled, the tree
updater is reset every 50 rounds: the uninterrupted run does there what a resume must do. A reset in every
round would cost 5 to 30% of the time; every 50 rounds it costs 0.1%. With a million rows or more, where a
round is slow, it happens every 10 rounds and costs 1%.

Everything else that a resume rebuilds has no memory. The margins of the rows are sums of leaf values in the
order of the trees, and have the same bits whether the trees are added one at a time or all at once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import BaseModel

from trainyard.config.schema import RunConfig
from trainyard.datasets.base import Split
from trainyard.errors import ModelError, TrainingError, TrainyardError
from trainyard.frameworks.base import WEIGHTS_FILE, Framework, FrameworkInputs, Plan, Snapshot, rounds_plan
from trainyard.frameworks.support.definition import of_estimator
from trainyard.frameworks.support.estimators import check_estimator
from trainyard.frameworks.support.stored import Files, StoredSnapshot, buffers, bytes_array, read_arrays
from trainyard.frameworks.xgboost.devices import chosen_device
from trainyard.frameworks.xgboost.library import xgboost
from trainyard.frameworks.xgboost.matrices import Matrices, feature_names
from trainyard.frameworks.xgboost.native import check_categories, check_initial_model, constraints
from trainyard.frameworks.xgboost.params import XgboostParams
from trainyard.frameworks.xgboost.spec import model_spec
from trainyard.order import STEP, stream_seed
from trainyard.require import require
from trainyard.types import Array, Determinism, NamedBuffer, Predictions, StepResult

if TYPE_CHECKING:
    import xgboost as xgb

DEFAULT_ROUNDS = 100
_STATE_FILE = "boosting.safetensors"
_OTHER_METHOD = {"hist": "approx", "approx": "hist", "exact": "hist"}
# The time, source file and line before the library's message.
_LOG_PREFIX = re.compile(r"^\[[\d:]+\] \S+:\d+: ")


def boundary(params: XgboostParams, rows: int) -> int:
    """Return how many rounds lie between two resets of the tree updater; part of the model's definition."""
    if not params.samples:
        return 1
    return 50 if rows < 1_000_000 else 10


class XgboostFramework(Framework):
    """Train an `xgboost.Booster`."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = {"xgboost": XgboostParams}
    tasks: ClassVar[Collection[str] | None] = ("classification", "multilabel", "regression")
    base_modules: ClassVar[Sequence[str]] = ("xgboost",)
    model_bases: ClassVar[Sequence[str]] = ("xgboost:XGBModel",)
    formats: ClassVar[Sequence[str]] = ("ubj", "json")

    @staticmethod
    def defaults(model: str) -> Mapping[str, Any]:  # noqa: ARG004 - the only model
        """Return config defaults: no scaling, category codes, missing values kept, 100 rounds."""
        return {
            "data.standardize": False,
            "data.encode": "category",
            "data.impute": "keep",
            "training.epochs": DEFAULT_ROUNDS,
        }

    @staticmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG004
        """Return the keys that have an effect; `n_estimators` replaces `epochs` and `max_steps`."""
        return {"device", "scheduler"} | (set() if params.get("n_estimators") else {"epochs", "max_steps"})

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:
        """Plan one step per boosting round; a dart model changes earlier trees, so it is not cumulative."""
        params = model_spec(config, model).params
        plan = rounds_plan(config, rows, params.n_estimators, params.learning_rate)
        return plan._replace(boundary=boundary(params, rows), cumulative=params.booster != "dart")

    @staticmethod
    def determinism(config: RunConfig) -> Determinism:
        """Return `bitwise` on the CPU and `order` on CUDA, where equal bits are not ensured."""
        if chosen_device(config.training.device) != "cpu":
            reason = (
                "on CUDA, XGBoost does not promise equal bits for equal rounds; training.device: cpu does"
            )
            return Determinism("order", reason)
        return Determinism(
            "bitwise",
            "rounds seeded by their number, sampling reset at fixed rounds, a pinned number of threads",
        )

    def __init__(self, inputs: FrameworkInputs) -> None:
        self._library = xgboost()
        require("safetensors", "xgboost")
        self._inputs = inputs
        self._spec = model_spec(inputs.config, inputs.model)
        self._device = chosen_device(inputs.config.training.device)
        check_estimator(inputs, self._spec.task, self._spec.unused)
        self._loss = self._spec.loss(inputs.info)
        check_categories(self._spec.params, inputs.info)
        self._matrices = Matrices(inputs, self._spec.params)
        self._boundary = boundary(self._spec.params, inputs.order.samples if inputs.order is not None else 0)
        self._initial_rounds = 0  # rounds that came with the initial weights
        self._has_grown = False  # whether this booster has grown a tree since it was built
        self._learning_rate: float | None = None
        with _translate_errors("this model cannot be built", ModelError):
            self._sample = self._matrices.sample() if inputs.order is not None else None
            self._booster = self._build_booster()

    @staticmethod
    def device_name(config: RunConfig) -> str:
        """Return `cpu`, or `cuda` with its number."""
        return chosen_device(config.training.device)

    def describe(self) -> Mapping[str, str]:
        """Return the library's version and the device."""
        return {"xgboost": self._library.__version__, "device": self._device}

    def definition(self) -> Mapping[str, str]:
        """Return the class and options of an estimator that was passed in Python, else nothing."""
        return {} if self._inputs.model is None else of_estimator(self._inputs.model)

    def step(self, step: int, lr: float) -> StepResult:
        """Run one boosting round and return the loss on a sample of the training rows.

        Raises:
            ModelError: XGBoost rejects the options or the data in the first round.
            TrainingError: XGBoost fails later.
        """
        assert self._sample is not None, "made only to predict"
        # The library checks the targets, and some options, only in the first update.
        with _translate_errors(f"step {step + 1} failed", TrainingError if step else ModelError):
            if self._has_grown and self._boundary > 1 and step % self._boundary == 0:
                self._reset_updater()
            self._has_grown = True
            if lr != self._learning_rate:
                self._booster.set_param({"learning_rate": lr})
                self._learning_rate = lr
            train = self._matrices.train
            if self._spec.gradients is not None:
                # With custom gradients the library draws the trees that dart drops before it seeds the round.
                self._booster.set_param({"seed": _seed(self._inputs, step)})
            self._booster.update(train, self._initial_rounds + step, self._spec.gradients)
            return StepResult(self._mean_loss(self._sample), len(self._inputs.splits["train"]))

    def predict(self, split: Split) -> Iterator[Predictions]:
        """Yield the outputs for all rows of a split, in one piece.

        Raises:
            TrainingError: XGBoost or the user's metric fails.
        """
        with _translate_errors("a prediction failed", TrainingError):
            matrix = self._matrices.of(split)
            outputs = self._outputs(matrix)
            loss = self._mean_loss(matrix) * len(split)
            targets = matrix.get_label()
        if self._inputs.info.task == "classification":
            targets = targets.astype(np.int64)
        elif self._inputs.info.outputs > 1:
            targets = targets.reshape(len(split), -1)
        yield Predictions(np.arange(len(split), dtype=np.int64), outputs, targets, loss)

    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> Snapshot:
        """Copy the model, or with `step` its first rounds, in XGBoost's UBJSON format."""
        return StoredSnapshot(self._files(weights_only, step))

    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        """Restore the model from the files in `folder`.

        Raises:
            ModelError: The weights are not an XGBoost model, or do not fit the run.
        """
        weights = read_arrays(folder / WEIGHTS_FILE)
        if set(weights) != {"model"}:
            raise ModelError(
                "these are not the weights of an XGBoost model: expected one tensor 'model', "
                f"got {', '.join(sorted(weights)[:5])}"
            )
        with _translate_errors("these weights cannot be loaded", ModelError):
            self._booster = self._build_booster(bytearray(weights["model"].tobytes()))
        self._has_grown, self._learning_rate = False, None
        self._initial_rounds = self._booster.num_boosted_rounds()
        if not weights_only:
            self._initial_rounds = int(read_arrays(folder / _STATE_FILE)["first"][0])

    def state(self, *, weights_only: bool = False) -> Iterator[NamedBuffer]:
        """Yield the serialized model, and the number of rounds that came with the initial weights."""
        return buffers(self._files(weights_only))

    @property
    def native(self) -> xgb.Booster:
        """The live booster."""
        return self._booster

    def importance(self) -> Mapping[str, Array]:
        """Return the importance of each feature, (features,) float64, by XGBoost's measures.

        `gain` is the mean gain of the feature's splits, `weight` the number of them, `cover` the mean sum of
        second derivatives that they cover.
        """
        size = int(np.prod(self._inputs.info.input_shape))
        positions = {
            name: i for i, name in enumerate(self._booster.feature_names or [f"f{i}" for i in range(size)])
        }
        scores = {kind: np.zeros(size) for kind in ("gain", "weight", "cover")}
        with _translate_errors("the feature importance cannot be computed", TrainingError):
            for kind, values in scores.items():
                for name, value in self._booster.get_score(importance_type=kind).items():
                    values[positions[name]] = value
        return scores

    def export(self, path: Path, form: str) -> None:
        """Write the model as UBJSON (`ubj`) or JSON (`json`), with the feature names."""
        with _translate_errors("the export failed", TrainingError):
            path.write_bytes(self._serialized(self._booster, form))

    def _build_booster(self, raw: bytearray | None = None) -> xgb.Booster:
        """Return a booster with the run's options; `raw` is a serialized model that it starts from."""
        inputs, objective = self._inputs, self._spec.objective(self._inputs.info)
        base = {"nthread": inputs.threads, "device": self._device, "eval_metric": self._loss.metric}
        if inputs.order is None:  # only to predict: the file holds the other options
            predictor: xgb.Booster = self._library.Booster(
                base | {"num_feature": int(np.prod(inputs.info.input_shape))}, model_file=raw
            )
            return predictor
        options = self._spec.params.native() | constraints(self._spec.params, inputs.info) | base
        options |= {"objective": objective, "seed": _seed(inputs), "seed_per_iteration": True}
        if objective.startswith("multi:"):
            options["num_class"] = inputs.info.outputs
        if raw is not None:
            check_initial_model(raw, inputs, self._spec.params, objective)
            # `raw` holds a base score for each output; set again, it would be stored in another form.
            options.pop("base_score", None)
        booster: xgb.Booster = self._library.Booster(options, [self._matrices.train], raw)
        booster.save_config()  # makes the library check the options now
        booster.feature_names = None  # the matrices have none
        return booster

    def _reset_updater(self) -> None:
        """Discard the tree updater and the state of its feature sampler, but keep the margins of the rows."""
        method = self._spec.params.grown_by
        self._booster.set_param("tree_method", _OTHER_METHOD[method])
        self._booster.save_config()  # applies the change: the library builds another updater
        self._booster.set_param("tree_method", method)
        if method == "approx":
            self._matrices.drop_train()  # its bins may come from the rows that an earlier tree was grown on

    def _outputs(self, matrix: xgb.DMatrix) -> Array:
        """Return float32 probabilities (rows, classes), or values (rows,) or (rows, outputs)."""
        outputs = self._booster.predict(matrix)
        if self._inputs.info.task == "classification" and outputs.ndim == 1:
            outputs = np.stack([1 - outputs, outputs], axis=1)
        return np.asarray(outputs, dtype=np.float32)

    def _mean_loss(self, matrix: xgb.DMatrix) -> float:
        """Return the mean over the rows of the user's metric, or of the objective's built-in loss."""
        if self._spec.metric is not None:
            return float(self._spec.metric(self._booster.predict(matrix), matrix)[1])
        return float(self._booster.eval_set([(matrix, "")]).rpartition(":")[2]) ** self._loss.power

    def _files(self, weights_only: bool, step: int | None = None) -> Files:
        booster = self._booster
        with _translate_errors("the model cannot be copied", TrainingError):
            if step is not None and self._initial_rounds + step < booster.num_boosted_rounds():
                booster = booster[: self._initial_rounds + step]
            files = {WEIGHTS_FILE: {"model": bytes_array(self._serialized(booster, "ubj"))}}
        return files if weights_only else files | {_STATE_FILE: {"first": np.array([self._initial_rounds])}}

    def _serialized(self, booster: xgb.Booster, form: str) -> bytearray:
        """Return the booster in one of XGBoost's formats, with the feature names."""
        booster.feature_names = feature_names(self._inputs.info)
        raw = booster.save_raw(form)
        booster.feature_names = None
        return raw


def _seed(inputs: FrameworkInputs, *parts: int) -> int:
    return stream_seed(inputs.config.experiment.seed, STEP, *parts) & 0x7FFFFFFF


@contextmanager
def _translate_errors(what: str, kind: type[TrainyardError]) -> Iterator[None]:
    """Raise errors of the library and of the user's functions as `kind`, in one line without a C++ stack."""
    try:
        yield
    except TrainyardError:
        raise
    except Exception as error:
        lines = str(error).splitlines() or [""]
        message = _LOG_PREFIX.sub("", lines[0])
        name = "" if type(error).__name__ == "XGBoostError" else f"{type(error).__name__}: "
        raise kind(f"{what}: {name}{message}; see where with --debug") from error
