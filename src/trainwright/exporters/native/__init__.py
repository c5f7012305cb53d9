"""A model in its library's own file: with the preparation of its rows beside it, or alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from trainwright.errors import InputError, TrainingError
from trainwright.exporters.base import names_classes
from trainwright.exporters.prepared import PreparedExporter
from trainwright.inference.predictor import Predictor
from trainwright.plugins import name_of_framework
from trainwright.types import FEATURES


class NativeExporter(PreparedExporter):
    """An exporter of folders with a booster's own file, and the preparation of its rows."""

    summary = "a folder: a booster's own file, and how columns become features, without Trainwright"
    runtime = "trainwright.exporters.native.runtime"
    packages: ClassVar[Sequence[str]] = ("numpy",)
    extra = "tabular"
    frameworks: ClassVar[Sequence[str]] = ("catboost", "lightgbm", "xgboost")

    @classmethod
    def packages_for(cls, framework: str) -> Sequence[str]:
        """Return the packages, and the library whose own file it is."""
        return list(dict.fromkeys([*cls.packages, framework]))

    def write_model(self, predictor: Predictor, folder: Path) -> None:
        """Write the file, whose suffix is the library's."""
        write_file(predictor, folder)


class SklearnExporter(NativeExporter):
    """An exporter of folders with an estimator of scikit-learn, and a pipeline of data frames around it."""

    summary = "a folder: a scikit-learn Pipeline that takes data frames, without Trainwright"
    runtime = "trainwright.exporters.native.estimators"
    packages: ClassVar[Sequence[str]] = ("skops", "sklearn", "numpy")
    extra = "sklearn"
    frameworks: ClassVar[Sequence[str]] = ("sklearn",)


class SkopsExporter(SklearnExporter):
    """An exporter of an estimator alone, as a file of skops, which takes features."""

    summary = "a scikit-learn estimator alone, which takes features"
    holds = "model"
    suffix = ".skops"
    is_default = True
    model_alone = True


class KerasExporter(NativeExporter):
    """An exporter of folders with a .keras file, whose outputs are predictions."""

    summary = "a folder: a .keras file, and how columns become features, without Trainwright"
    packages: ClassVar[Sequence[str]] = ("keras", "numpy")
    extra = "keras"
    frameworks: ClassVar[Sequence[str]] = ("keras",)


class SavedmodelExporter(PreparedExporter):
    """An exporter of folders with a SavedModel of TensorFlow, whose outputs are predictions."""

    summary = "a folder: a TensorFlow SavedModel, and how columns become features, without Trainwright"
    runtime = "trainwright.exporters.native.saved_models"
    packages: ClassVar[Sequence[str]] = ("tensorflow", "numpy")
    extra = "keras"
    frameworks: ClassVar[Sequence[str]] = ("keras",)
    executes_code = True  # its graph can read and write files

    def write_model(self, predictor: Predictor, folder: Path) -> None:
        """Write the folder `model`."""
        predicting(predictor).export(str(folder / "model"), format="tf_saved_model", verbose=False)


class LibraryExporter(NativeExporter):
    """An exporter of the library's own file alone, which takes features.

    It is compared in a folder, with the preparation beside it, of which the file alone is kept.
    """

    summary = "the library's own file, which takes features: .ubj, .json, .txt, .cbm or .keras"
    holds = "model"
    suffix = ".ubj"
    is_default = True
    model_alone = True
    frameworks: ClassVar[Sequence[str]] = ("catboost", "keras", "lightgbm", "xgboost")

    @classmethod
    def suffixes(cls, framework: str | None) -> Sequence[str]:
        """Return the suffixes of the files of a library, or of all."""
        known = [name for name in cls.frameworks if framework in (None, name)]
        return [suffix for name in known for suffix in _SUFFIXES[name]]

    def write_model(self, predictor: Predictor, folder: Path) -> None:
        """Write the model with the suffix of the folder's name, which is that of the file to make.

        Raises:
            InputError: The library has no such file.
        """
        framework = name_of_framework(predictor.framework)
        suffixes = list(_SUFFIXES[framework])
        if folder.suffix in self.suffixes(None) and folder.suffix not in suffixes:
            raise InputError(
                f"{folder.name}: files of {framework} end in {' or '.join(suffixes)}; name it so"
            )
        write_file(predictor, folder, folder.suffix if folder.suffix in suffixes else suffixes[0])


# The suffixes of each library's files, the usual one first, with what it calls the format.
_SUFFIXES: Mapping[str, Mapping[str, str]] = {
    "catboost": {".cbm": "cbm", ".json": "json"},
    "keras": {".keras": "keras"},
    "lightgbm": {".txt": "txt"},
    "sklearn": {".skops": "skops"},
    "xgboost": {".ubj": "ubj", ".json": "json"},
}


def write_file(predictor: Predictor, folder: Path, suffix: str | None = None) -> None:
    """Write a model as its library does, as `model` with a suffix of that library; default: the usual one.

    Raises:
        TrainingError: The library cannot write it.
    """
    writers: Mapping[str, Callable[[Predictor, Path, str], object]] = {
        "catboost": lambda predictor, path, form: predictor.native.save_model(str(path), format=form),
        "keras": lambda predictor, path, _: predicting(predictor).save(path),
        "lightgbm": lambda predictor, path, _: predictor.native.save_model(str(path)),
        "sklearn": lambda predictor, path, _: import_module("skops.io").dump(predictor.native, path),
        "xgboost": lambda predictor, path, form: path.write_bytes(_trained(predictor).serialized(form)),
    }
    framework = name_of_framework(predictor.framework)
    suffix = suffix or next(iter(_SUFFIXES[framework]))
    path = folder / f"model{suffix}"
    try:
        writers[framework](predictor, path, _SUFFIXES[framework][suffix])
    except Exception as error:
        raise TrainingError(f"the export failed: {type(error).__name__}: {error}") from error


def predicting(predictor: Predictor) -> Any:
    """Return a model of Keras from features to predictions: probabilities, or values in the target's unit.

    Raises:
        InputError: The model has a sigmoid for each of several classes, whose sums no layer makes 1.
    """
    keras, model = import_module("keras"), predictor.native
    meaning, info = _trained(predictor).meaning, predictor.info
    if not names_classes(info):
        layers = [keras.layers.Rescaling(info.target_scale, info.target_mean)]
    elif meaning.independent and not (meaning.single or meaning.logits):
        raise InputError(
            "the model has a sigmoid for each of several classes; export with --format onnx or mlflow, which "
            "divide by their sum"
        )
    elif meaning.single:
        layers = [keras.layers.Activation("sigmoid")] if meaning.logits else []
    else:
        layers = [keras.layers.Activation("log_sigmoid")] if meaning.independent else []
        layers += [keras.layers.Softmax()] if meaning.logits else []
    spec = info.inputs[FEATURES]
    inputs = outputs = keras.Input(spec.shape, dtype=spec.dtype, name=FEATURES)
    for one in [model, *layers]:
        outputs = one(outputs)
    return keras.Model(inputs, outputs)


def _trained(predictor: Predictor) -> Any:
    """Return the framework's own model, which has more than its contract."""
    return predictor.trained_model
