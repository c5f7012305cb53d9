"""XGBoost: each boosting round is a step, and one that can be resumed to the bit.

A round's randomness is seeded by its number (`seed_per_iteration`), but for the generator that samples features: it is
seeded when a booster grows its first tree, and goes on from there for the booster's life. So, where trees see samples
only, the growing of trees begins afresh every 50 rounds: the uninterrupted run does there what a resume must do. Done in
every round it would take 5 to 30% of the time, so it takes a thousandth; 1% with a million rows and more, where it is done
every 10 rounds, as they are slow.

What else a resume makes anew has no memory: the margins of the rows are sums of leaves in the order of the trees, added
one tree at a time, or all of them at once, to the same bits.
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
from trainyard.frameworks.definition import of_estimator
from trainyard.frameworks.estimators import check_estimator
from trainyard.frameworks.stored import Files, StoredSnapshot, buffers, bytes_array, read_arrays
from trainyard.frameworks.xgboost.devices import chosen_device
from trainyard.frameworks.xgboost.library import xgboost
from trainyard.frameworks.xgboost.matrices import Matrices, feature_names
from trainyard.frameworks.xgboost.native import constraints, refuse_categories, refuse_misfit
from trainyard.frameworks.xgboost.params import XgboostParams
from trainyard.frameworks.xgboost.recipe import resolve
from trainyard.order import STEP, stream_seed
from trainyard.require import require
from trainyard.types import Array, Determinism, NamedBuffer, Predictions, StepResult

if TYPE_CHECKING:
    import xgboost as xgb

DEFAULT_ROUNDS = 100
_STATE_FILE = "boosting.safetensors"
_ANOTHER = {"hist": "approx", "approx": "hist", "exact": "hist"}
_WHERE = re.compile(
    r"^\[[\d:]+\] \S+:\d+: "
)  # time and place in the library's source, before what it has to say


def boundary(params: XgboostParams, rows: int) -> int:
    """How many rounds lie between two fresh starts of the growing of trees; part of what the model is by definition."""
    if not params.samples:
        return 1
    return 50 if rows < 1_000_000 else 10


class XgboostFramework(Framework):
    """Trains an `xgboost.Booster`."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = {"xgboost": XgboostParams}
    base_modules: ClassVar[Sequence[str]] = ("xgboost",)
    model_bases: ClassVar[Sequence[str]] = ("xgboost:XGBModel",)
    formats: ClassVar[Sequence[str]] = ("ubj", "json")

    @staticmethod
    def defaults(model: str) -> Mapping[str, Any]:  # noqa: ARG004 - there is one
        return {
            "data.standardize": False,
            "data.encode": "category",
            "data.impute": "keep",
            "training.epochs": DEFAULT_ROUNDS,
        }

    @staticmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG004
        return {"device", "scheduler"} | (set() if params.get("n_estimators") else {"epochs", "max_steps"})

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:
        params = resolve(config, model).params
        plan = rounds_plan(config, rows, params.n_estimators, params.learning_rate)
        return plan._replace(boundary=boundary(params, rows), cumulative=params.booster != "dart")

    @staticmethod
    def determinism(config: RunConfig) -> Determinism:
        if chosen_device(config.training.device) != "cpu":
            reason = "on CUDA, nobody has seen to it that the same round gives the same bits; training.device: cpu does"
            return Determinism("order", reason)
        return Determinism(
            "bitwise",
            "rounds seeded by number, sampling begun afresh at fixed rounds, a pinned number of threads",
        )

    def __init__(self, inputs: FrameworkInputs) -> None:
        self._library = xgboost()
        require("safetensors", "xgboost")
        self._inputs = inputs
        self._recipe = resolve(inputs.config, inputs.model)
        self._device = chosen_device(inputs.config.training.device)
        check_estimator(inputs, self._recipe.task, self._recipe.unused)
        self._loss = self._recipe.loss(inputs.info)
        refuse_categories(self._recipe.params, inputs.info)
        self._matrices = Matrices(inputs, self._recipe.params)
        self._boundary = boundary(
            self._recipe.params, inputs.order.samples if inputs.order is not None else 0
        )
        self._first = 0  # how many rounds the initial weights brought
        self._grown = False  # whether this booster has grown a tree
        self._rate: float | None = None
        with _translated("this model cannot be built", ModelError):
            self._sample = self._matrices.sample() if inputs.order is not None else None
            self._booster = self._make()

    def describe(self) -> Mapping[str, str]:
        return {"xgboost": self._library.__version__, "device": self._device}

    def definition(self) -> Mapping[str, str]:
        return {} if self._inputs.model is None else of_estimator(self._inputs.model)

    def step(self, step: int, lr: float) -> StepResult:
        assert self._sample is not None, "made only to predict"
        # Only now the library looks at the targets, and at some options.
        with _translated(f"step {step + 1} failed", TrainingError if step else ModelError):
            if self._grown and self._boundary > 1 and step % self._boundary == 0:
                self._begin_afresh()
            self._grown = True
            if lr != self._rate:
                self._booster.set_param({"learning_rate": lr})
                self._rate = lr
            train = self._matrices.train
            if (
                self._recipe.gradients is not None
            ):  # here the library draws the trees that dart drops before it seeds the round
                self._booster.set_param({"seed": _seed(self._inputs, step)})
            self._booster.update(train, self._first + step, self._recipe.gradients)
            return StepResult(self._mean_loss(self._sample), len(self._inputs.splits["train"]))

    def predict(self, split: Split) -> Iterator[Predictions]:
        with _translated("a prediction failed", TrainingError):
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
        return StoredSnapshot(self._files(weights_only, step))

    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        weights = read_arrays(folder / WEIGHTS_FILE)
        if set(weights) != {"model"}:
            raise ModelError(
                f"these are not the weights of an XGBoost model: they have {', '.join(sorted(weights)[:5])}"
            )
        with _translated("these weights cannot be loaded", ModelError):
            self._booster = self._make(bytearray(weights["model"].tobytes()))
        self._grown, self._rate = False, None
        self._first = self._booster.num_boosted_rounds()
        if not weights_only:
            self._first = int(read_arrays(folder / _STATE_FILE)["first"][0])

    def state(self, *, weights_only: bool = False) -> Iterator[NamedBuffer]:
        return buffers(self._files(weights_only))

    @property
    def native(self) -> xgb.Booster:
        return self._booster

    def importance(self) -> Mapping[str, Array]:
        """`gain`: the mean of a feature's splits; `weight`: how many they are; `cover`: the mean of their second derivatives."""
        size = int(np.prod(self._inputs.info.input_shape))
        places = {
            name: i for i, name in enumerate(self._booster.feature_names or [f"f{i}" for i in range(size)])
        }
        found = {kind: np.zeros(size) for kind in ("gain", "weight", "cover")}
        with _translated("the importance of the features cannot be told", TrainingError):
            for kind, values in found.items():
                for name, value in self._booster.get_score(importance_type=kind).items():
                    values[places[name]] = value
        return found

    def export(self, path: Path, form: str) -> None:
        with _translated("the export failed", TrainingError):
            path.write_bytes(self._raw(self._booster, form))

    def _make(self, raw: bytearray | None = None) -> xgb.Booster:
        """A booster with the options of the run, and the trees in `raw`."""
        inputs, objective = self._inputs, self._recipe.objective(self._inputs.info)
        base = {"nthread": inputs.threads, "device": self._device, "eval_metric": self._loss.metric}
        if inputs.order is None:  # the file knows the rest
            found: xgb.Booster = self._library.Booster(
                base | {"num_feature": int(np.prod(inputs.info.input_shape))}, model_file=raw
            )
            return found
        options = self._recipe.params.native() | constraints(self._recipe.params, inputs.info) | base
        options |= {"objective": objective, "seed": _seed(inputs), "seed_per_iteration": True}
        if objective.startswith("multi:"):
            options["num_class"] = inputs.info.outputs
        if raw is not None:
            refuse_misfit(raw, inputs, self._recipe.params, objective)
            options.pop(
                "base_score", None
            )  # `raw` has it for each output; given again, it would be stored in another form
        booster: xgb.Booster = self._library.Booster(options, [self._matrices.train], raw)
        booster.save_config()  # only now it looks at the options, and says what is wrong with them
        booster.feature_names = None  # as the rows have none
        return booster

    def _begin_afresh(self) -> None:
        """Has the library forget the generator that samples features, as a resume does, but not the margins of the rows."""
        method = self._recipe.params.grown_by
        self._booster.set_param("tree_method", _ANOTHER[method])
        self._booster.save_config()  # only now it looks at the change, and makes new what grows trees
        self._booster.set_param("tree_method", method)
        if method == "approx":
            self._matrices.drop_train()  # its bins may be those of the rows that an earlier tree saw

    def _outputs(self, matrix: xgb.DMatrix) -> Array:
        """Probabilities (rows, classes), or values (rows,) or (rows, outputs); float32."""
        found = self._booster.predict(matrix)
        if self._inputs.info.task == "classification" and found.ndim == 1:
            found = np.stack([1 - found, found], axis=1)
        return np.asarray(found, dtype=np.float32)

    def _mean_loss(self, matrix: xgb.DMatrix) -> float:
        if self._recipe.metric is not None:
            return float(self._recipe.metric(self._booster.predict(matrix), matrix)[1])
        return float(self._booster.eval_set([(matrix, "")]).rpartition(":")[2]) ** self._loss.power

    def _files(self, weights_only: bool, step: int | None = None) -> Files:
        booster = self._booster
        with _translated("the model cannot be copied", TrainingError):
            if step is not None and self._first + step < booster.num_boosted_rounds():
                booster = booster[: self._first + step]
            files = {WEIGHTS_FILE: {"model": bytes_array(self._raw(booster, "ubj"))}}
        return files if weights_only else files | {_STATE_FILE: {"first": np.array([self._first])}}

    def _raw(self, booster: xgb.Booster, form: str) -> bytearray:
        """A booster in a format of the library's, with the names of the features."""
        booster.feature_names = feature_names(self._inputs.info)
        raw = booster.save_raw(form)
        booster.feature_names = None
        return raw


def _seed(inputs: FrameworkInputs, *parts: int) -> int:
    return stream_seed(inputs.config.experiment.seed, STEP, *parts) & 0x7FFFFFFF


@contextmanager
def _translated(what: str, kind: type[TrainyardError]) -> Iterator[None]:
    """Turns the errors of the library, and of the user's functions, into ours, without the stack of its own."""
    try:
        yield
    except TrainyardError:
        raise
    except Exception as error:
        lines = str(error).splitlines() or [""]
        said = _WHERE.sub("", lines[0])
        name = "" if type(error).__name__ == "XGBoostError" else f"{type(error).__name__}: "
        raise kind(f"{what}: {name}{said}; see where with --debug") from error
