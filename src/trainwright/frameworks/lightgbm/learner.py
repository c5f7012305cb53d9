"""Training of gradient boosted trees; `boosting.py` runs the rounds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainwright.digest import FileRecord
from trainwright.errors import ModelError, TrainingError
from trainwright.frameworks.base import WEIGHTS_FILE, LearnerInputs, Snapshot
from trainwright.frameworks.boosting.learner import BoosterLearner
from trainwright.frameworks.lightgbm.boosting import Boosting, RoundParams, bin_seed
from trainwright.frameworks.lightgbm.data import Rows, Scores, make_dataset
from trainwright.frameworks.lightgbm.library import lightgbm, translated
from trainwright.frameworks.lightgbm.model import LiveModel
from trainwright.frameworks.lightgbm.objective import build_objective
from trainwright.frameworks.lightgbm.params import LightgbmParams, device_of, library_params, monotone_signs
from trainwright.frameworks.lightgbm.spec import model_spec
from trainwright.frameworks.lightgbm.trees import Trees, join_model
from trainwright.frameworks.support.inputs import loss_sample
from trainwright.frameworks.support.stored import Files, StoredSnapshot, bytes_array, read_arrays, read_model
from trainwright.tasks.support.class_weights import of_classes
from trainwright.tasks.support.precision import learned
from trainwright.types import Array, StepResult

log = logging.getLogger("trainwright")
_READ_VALUES = 1 << 22  # predictions held at once for the losses of many rounds
_PROGRESS_FILE = "progress.safetensors"
_LAYOUT = "histograms"  # the name of the choice between `row_wise` and `col_wise`
_MEASURED_VALUES = (
    1 << 20
)  # rows times features: with fewer, a rule serves as well, and all runs get the same bits
_ROW_WISE_ROWS = 1000  # rows per feature from which the rule takes `row_wise`


class LightgbmLearner(BoosterLearner[LightgbmParams]):
    """Gradient boosted trees in training."""

    def __init__(self, inputs: LearnerInputs) -> None:
        library, spec = lightgbm(), model_spec(inputs.config, inputs.model)
        super().__init__(library, inputs, spec, device_of(inputs.config, spec.params))
        self._objective = build_objective(spec, inputs.info)
        self._trees = Trees(library, self._objective.width, inputs.threads)
        # Whether a round changes the output of earlier ones, so that the loss of a step must be read at once.
        self._changes_trees = spec.params.boosting != "gbdt"
        self._choices = dict(inputs.choices)
        self._training_rows = len(inputs.splits["train"])
        self._sample = Scores(Rows(inputs.splits["train"], loss_sample(inputs, 100)), self._objective.width)
        with translated("this model cannot be trained", ModelError):
            self._boosting = self._build_boosting()
        self._model = LiveModel(inputs, spec, self._objective, self._trees, self._boosting)

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
        with translated(f"round {step + 1} failed", TrainingError if step else ModelError):
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
        values: list[float] = []
        count = max(1, _READ_VALUES // (len(self._sample.rows) * self._objective.width))
        with translated("a prediction failed", TrainingError):
            for part in (losses[start : start + count] for start in range(0, len(losses), count)):
                raw = np.stack([self._sample.advance(rounds, self._boosting).copy() for rounds in part])
                predictions = self._objective.predictions(raw.reshape(-1, raw.shape[2]))
                rows = self._sample.rows
                values += self._model.losses(predictions, rows.targets, len(part), rows.weights)
        return values

    def model(self) -> LiveModel:
        """Return the view of the present trees; it keeps the scores of the run's own splits."""
        return self._model

    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> Snapshot:
        """Copy the trees, or with `step` those of the first steps; the text is joined when it is written."""
        return _Snapshot(self._parts(weights_only, step))

    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        """Restore the trees, and the progress of the training, from the files in `folder`.

        Raises:
            ModelError: The weights are not a LightGBM model, or do not fit the run.
        """
        text = read_model(folder / WEIGHTS_FILE, "a LightGBM").decode()
        self._model.forget()
        with translated("these weights cannot be loaded", ModelError):
            self._trees.parse(text)
            progress = {} if weights_only else read_arrays(folder / _PROGRESS_FILE)
            rounds_after = progress["ends"].tolist() if progress else [self._trees.rounds]
            self._boosting.begin(rounds_after, int(progress["made"][0]) if progress else 0)

    def _custom_calls(self) -> Sequence[Callable[[], Any]]:
        rows, width = self._sample.rows, self._objective.width
        raw = np.zeros((len(rows), width))  # as before the first round
        label = learned(rows.targets, self._inputs.info)
        dataset = self._library.Dataset(np.empty((len(rows), 0)), label=label, weight=rows.weights)
        functions = [one for one in (self._spec.objective, self._spec.metric) if one is not None]
        return [partial(one, raw[:, 0] if width == 1 else raw, dataset) for one in functions]

    def _build_boosting(self) -> Boosting:
        inputs, params = self._inputs, self._params()
        if self._spec.params.subsample < 1 and not self._spec.params.subsample_freq:
            log.warning("model.subsample has no effect without model.subsample_freq: 1, as in LightGBM")
        train, seed = Rows(inputs.splits["train"]), inputs.config.experiment.seed
        weight = train.weights
        if by_class := self._spec.params.class_weight:
            own = (
                of_classes(by_class, inputs.info, "model.class_weight")[train.targets]
                if isinstance(by_class, dict)
                else _balanced_weights(train.targets)
            )
            weight = own * (1 if weight is None else weight)
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
            RoundParams(params, seed, self._spec.objective),
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
        device, _, number = self._device.partition(":")
        params |= {"device_type": device} | ({"gpu_device_id": int(number)} if number else {})
        return params

    def _sample_loss(self, boosting: Boosting) -> float:
        """Return the loss on the sample by LightGBM's own scores, where a round changes earlier trees."""
        values = boosting.sample_predictions()
        predictions = values if self._spec.objective is None else self._objective.predictions(values)
        return self._model.losses(predictions, self._sample.rows.targets, 1)[0]

    def _files(self, weights_only: bool, step: int | None = None) -> Files:
        return self._parts(weights_only, step).files()

    def _parts(self, weights_only: bool, step: int | None = None) -> _Parts:
        boosting = self._boosting
        boosting.collect()
        rounds = boosting.rounds if step is None else boosting.rounds_after[step]
        head, trees = self._trees.part(rounds)
        if weights_only:
            return _Parts(head, trees, None)
        ends, made = np.array(boosting.rounds_after), np.array([boosting.rounds_with_split])
        return _Parts(head, trees, {"ends": ends, "made": made})


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


def _balanced_weights(targets: Array) -> Array:
    """Return (rows,) weights that give all classes the same total weight."""
    counts = np.bincount(targets)
    weights: Array = len(targets) / (np.count_nonzero(counts) * counts[targets])
    return weights


def faster_layout(library: Any, dataset: Any, params: Mapping[str, Any]) -> str:
    """Return `row_wise` or `col_wise`, whichever LightGBM finds to be faster here.

    LightGBM times both when a booster is made, and only its log says which one it has taken. The layouts
    differ in the order of sums, and hence in the last bits of the trees.

    Args:
        library: The module `lightgbm`.
        dataset: The training rows as a constructed `lightgbm.Dataset`.
        params: The parameters of the training, without a layout.
    """
    messages = _Messages()
    library.register_logger(messages)
    try:
        library.Booster({**params, "verbosity": 1}, dataset)
    finally:
        library.register_logger(logging.getLogger("lightgbm"))
    return "row_wise" if "Auto-choosing row-wise" in messages.text else "col_wise"


class _Messages:
    """A logger that collects what LightGBM says."""

    def __init__(self) -> None:
        self.text = ""

    def info(self, message: str) -> None:
        """Collect a message; LightGBM requires this method."""
        self.text += message

    warning = info
