"""An exported model in the place of a run's: what `predict`, `evaluate` and `compare` take a path for.

Rows are read as the run's predictor reads them; the model is the artifact, called by its own runtime with raw
columns or arrays.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from trainwright.config import load as load_config
from trainwright.datasets.base import DataBundle, Split
from trainwright.datasets.images.preparation import ImagePreparation
from trainwright.datasets.tables.preparation import AnyPreparation, TabularPreparation
from trainwright.errors import DataError, DifferentArtifactError, InputError, ModelError
from trainwright.evaluation.metrics import LOSS, EvaluationResult
from trainwright.exporters.base import Exporter, Input
from trainwright.exporters.certificates import reader
from trainwright.exporters.certificates.raw import raw_array
from trainwright.exporters.certificates.samples import cells_of
from trainwright.frameworks.base import Framework, Model, ModelInputs
from trainwright.inference.bad_rows import OnError
from trainwright.inference.intervals import Intervals
from trainwright.inference.predictor import Predictor
from trainwright.plugins import adapter, task_for
from trainwright.records.artifact import ArtifactDir
from trainwright.records.certificate import Certificate
from trainwright.records.data import DataDescription, StoredModel, understanding
from trainwright.types import Array, ArraySpec, DataInfo, Predictions, SplitName, weights_of

_BATCH = 4096  # rows that are predicted together
_COLUMN = "column "  # before the names of raw columns in a batch, which has a `target`, too


def open_artifact(directory: ArtifactDir, *, trust: bool = False) -> Predictor:
    """Return the predictor of an exported model.

    Args:
        directory: The model.
        trust: Whether the user trusts it, where opening it executes code that it holds.

    Raises:
        InputError: It holds code, and is neither the user's own nor trusted; or its runtime is missing.
        DifferentArtifactError: Its files are not those of its certificate.
    """
    known = directory.certificate
    exporter: type[Exporter] = adapter("exporter", known.format)
    refuse_code(directory, exporter, trust=trust)
    exporter.check_runtime()
    if wrong := list(reader.changed_files(directory.path, known.to_json())):
        raise DifferentArtifactError("\n  ".join([f"{directory.path} is not as certified:", *wrong]))
    if not known.data:
        raise InputError(
            f"{directory.path} holds weights alone, and predicts nothing; name run {known.run['id']} itself"
        )
    if not {"probabilities", "prediction"} & {one["name"] for one in known.outputs}:
        outputs = ", ".join(one["name"] for one in known.outputs)
        raise InputError(
            f"{directory.path} gives {outputs}, which are no predictions of rows: call its reader.py, or "
            f"name run {known.run['id']} itself"
        )
    return ArtifactPredictor(directory, importlib.import_module(exporter.runtime).open_artifact)


def refuse_code(directory: ArtifactDir, exporter: type[Exporter], *, trust: bool) -> None:
    """Refuse to open an artifact that holds code, if it is neither the user's own nor trusted.

    Raises:
        InputError: It is neither.
    """
    if exporter.executes_code and not (trust or directory.is_own):
        raise InputError(
            f"{directory.path} is a model in the format {directory.certificate.format}, which executes code "
            "when it is opened, and none of your runs here has recorded its export: give --trust if you "
            "trust who made it, or --runs-dir where its run is"
        )


class ArtifactPredictor(Predictor):
    """The predictor of an exported model; it has no run's data, and so no intervals and explanations.

    Args:
        directory: The model.
        open_model: Returns the function from inputs to outputs; see the runtimes of exporters.
    """

    def __init__(self, directory: ArtifactDir, open_model: Callable[[Path], reader.Model]) -> None:
        known = self._certificate = directory.certificate
        self._inputs = [
            Input(one["name"], one["dtype"], tuple(one["shape"]), one["content"], one["reads"])
            for one in known.inputs
        ]
        self._open_model = open_model
        with understanding(directory.path):
            data = DataDescription.model_validate(known.data)
            is_raw = {"columns", "images"} & (data.preparation or {}).keys()
            self._prefix = _COLUMN if is_raw else ""
            info = _as_exported(DataInfo.from_json(data.info), self._inputs, self._prefix)
            config = load_config(known.config).config
            _check_classes(known, info)
        super().__init__(
            directory,
            StoredModel(directory.path, data, directory.path),
            Framework,  # type: ignore[type-abstract] # none takes part
            ModelInputs(config, info, config.model.params, threads=1),
            self._refuse,
            Path.cwd,
        )

    @property
    def run_id(self) -> str:
        """The id of the run that the model was exported from."""
        return str(self._certificate.run["id"])

    def _loaded(self, inputs: ModelInputs) -> Model:
        names = {self._prefix + one.name: one.name for one in self._inputs}
        try:
            return ArtifactModel(self._open_model(self._run.path), names, inputs.info)
        except Exception as error:  # each runtime has its own
            raise InputError(f"{self._run.path} cannot be opened: {error}") from error

    def _prepared(self, stored: StoredModel) -> AnyPreparation | None:
        preparation = super()._prepared(stored)
        if isinstance(preparation, TabularPreparation):
            return _RawColumns(preparation, self._inputs)
        if isinstance(preparation, ImagePreparation):
            return _RawImages(preparation, self._inputs[0])
        return preparation

    def evaluate(
        self,
        split: SplitName = "test",
        rows: Any = None,
        bundle: DataBundle | None = None,
        samples: Split | None = None,
        on_error: OnError = "stop",
    ) -> EvaluationResult:
        """Return the metrics on rows, without the framework's own loss; see `Predictor.evaluate`."""
        found = super().evaluate(split, rows, bundle, samples, on_error)
        kept = {name: one for name, one in found.metrics.items() if name != f"{split}_{LOSS}"}
        return replace(found, metrics=kept)

    def intervals(self, level: float) -> Intervals:  # noqa: ARG002
        """Refuse, as the run keeps what intervals are calibrated on."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        origin = self._run.certificate.run["id"] if isinstance(self._run, ArtifactDir) else ""
        raise InputError(
            f"{self._run.path} is an exported model, which has no data of its own: give a file of rows, or "
            f"name its run, {origin}"
        )


class ArtifactModel(Model):
    """An exported model; the arrays of a split are its inputs.

    Args:
        call: The function from inputs to outputs.
        names: The names of its inputs, by the names of arrays in a batch.
        info: The description of the data.
    """

    def __init__(self, call: reader.Model, names: Mapping[str, str], info: DataInfo) -> None:
        self._call = call
        self._names = names
        self._info = info

    @property
    def native(self) -> Any:
        """The function from inputs, (rows, ...) by name, to outputs."""
        return self._call

    def outputs(self, feeds: Mapping[str, Array]) -> Array:
        """Return probabilities (rows, classes), or values (rows,) or (rows, targets), for some rows.

        Raises:
            ModelError: The runtime fails.
        """
        try:
            found = self._call({name: feeds[key] for key, name in self._names.items()})
        except ValueError as error:  # a missing value, say, which the rows' own check would have named
            raise DataError(str(error)) from error
        except Exception as error:  # each runtime has its own
            raise ModelError(f"the exported model failed: {error}") from error
        name = next(one for one in ("probabilities", "prediction") if one in found)
        outputs = np.asarray(found[name])
        is_single = name == "prediction" and outputs.ndim == 2 and self._info.outputs == 1
        return outputs[:, 0] if is_single else outputs

    def predict(self, split: Split) -> Iterator[Predictions]:
        """Yield the outputs for all rows of a split, in order."""
        for start in range(0, len(split), _BATCH):
            ids = np.arange(start, min(start + _BATCH, len(split)), dtype=np.int64)
            batch = split.take(ids)
            targets = batch.get(task_for(self._info).target, np.empty(len(ids)))
            weights = weights_of(batch, self._info)
            yield Predictions(ids, self.outputs(batch), targets, loss=float("nan"), weights=weights)


class _RawColumns(TabularPreparation):
    """The preparation of a run's rows whose arrays are raw columns: the artifact encodes them itself.

    Args:
        own: The preparation of the run.
        inputs: The inputs of the artifact.
    """

    def __init__(self, own: TabularPreparation, inputs: list[Input]) -> None:
        super().__init__(own.columns, own.target, own.kinds, own.dtype)
        self._inputs = inputs

    def arrays(self, rows: Any) -> dict[str, Array]:
        """Return the raw columns, (rows, 1) each; what the run would refuse is refused in its words."""
        self.features(rows)
        table = self._table(rows, {column.name for column in self.columns})
        return {_COLUMN + one.name: cells_of(table.columns[one.name], one.dtype) for one in self._inputs}


class _RawImages(ImagePreparation):
    """The preparation of images whose arrays are colors in the model's size: the artifact scales them itself.

    Args:
        own: The preparation of the run.
        one: The input of the artifact.
    """

    def __init__(self, own: ImagePreparation, one: Input) -> None:
        super().__init__(own.column, own._mode, own._pipeline, own.target)
        self._one = one

    def arrays(self, rows: Any) -> dict[str, Array]:
        """Return the images, (rows, height, width, channels) uint8."""
        pixels = [self._image(one) for one in self._values(rows)]
        return {_COLUMN + self._one.name: raw_array(self._one._asdict(), pixels, None)}


def _check_classes(known: Certificate, info: DataInfo) -> None:
    """Check that a certificate names the same classes where it describes the data and the outputs.

    Raises:
        ValueError: It does not.
    """
    columns = next((one["columns"] for one in known.outputs if one["name"] == "probabilities"), None)
    labels = [f"probability_{label}" for label in info.classes or range(info.outputs)]
    if columns is not None and len(columns) > 1 and list(columns) != labels:
        raise ValueError(f"its classes are {', '.join(labels)} and {', '.join(columns)}")


def _as_exported(info: DataInfo, inputs: list[Input], prefix: str) -> DataInfo:
    """Return the description of what an artifact takes and gives: outputs are in the target's own unit."""
    dtypes = {"string": "object"}
    specs = {
        prefix + one.name: ArraySpec(tuple(one.shape), dtypes.get(one.dtype, one.dtype)) for one in inputs
    }
    return replace(info, inputs=specs, target_transform=None, target_offset=())
