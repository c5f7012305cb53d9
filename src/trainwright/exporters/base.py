"""The contract of exporters: a run's model as a file or folder that its own runtime opens.

An exporter (`exporters/onnx/` -> `OnnxExporter`) writes an artifact, and names a module that opens one: its
runtime, which imports nothing of ours. Each export compares the artifact, opened in a process of its own,
with the run's predictor before it appears under its name; see `exporters.certify`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.errors import InputError
from trainwright.inference.predictor import Predictor
from trainwright.plugins import adapter, name_of_framework, names, task_for
from trainwright.require import require
from trainwright.types import Array, DataInfo


class Input(NamedTuple):
    """An input of an artifact.

    Attributes:
        name: Its name: that of a raw column, or of an array that the model takes.
        dtype: `float64`, `string`, `int64` (of times: microseconds since 1970), or that of the array.
        shape: The shape of one row: (1,) of a column.
        content: What it holds, in words.
        reads: How cells of text are read: the fields of `datasets.tables.typed.ColumnKind`; empty for arrays.
    """

    name: str
    dtype: str
    shape: Sequence[int]
    content: str = ""
    reads: Mapping[str, Any] = {}


def names_classes(info: DataInfo) -> bool:
    """Return whether a model predicts one of several classes, and their probabilities."""
    task = task_for(info)
    return task.gives_probabilities and not task.targets_are_labels


def inputs_of(predictor: Predictor) -> Sequence[Input]:
    """Return the raw columns that a model takes, or the arrays where the data set brought features.

    Raises:
        InputError: It takes files, such as images or texts.
    """
    preparation = predictor.preparation
    if isinstance(preparation, TabularPreparation):
        dtypes = {"number": "float64", "text": "string", "time": "int64"}
        kinds = preparation.kinds
        return [
            Input(
                column.name,
                dtypes[column.reads],
                (1,),
                column.content,
                asdict(kinds[column.name]) if column.name in kinds else {},
            )
            for column in preparation.columns
        ]
    if preparation is not None:
        raise InputError(
            f"run {predictor.run.id}: this format takes models of tables and of arrays; export with "
            "--format mlflow"
        )
    return [
        Input(name, spec.dtype, spec.shape, f"an array of {spec.dtype}")
        for name, spec in predictor.info.inputs.items()
    ]


class Exporter(ABC):
    """An exporter of one format."""

    suffix: ClassVar[str] = ""  # of the file that it writes; empty: it writes a folder
    runtime: ClassVar[str]  # the module whose `open_artifact` opens one; it imports nothing of ours
    packages: ClassVar[Sequence[str]]  # that the runtime imports
    extra: ClassVar[str]  # of ours, which brings them
    frameworks: ClassVar[Sequence[str]]  # whose models it takes
    successor: ClassVar[str] = ""  # of a legacy format: the one that took its place
    executes_code: ClassVar[bool] = False  # opening an artifact executes code in it
    choices: ClassVar[
        Mapping[str, Mapping[str, str]]
    ] = {}  # values of each option, explained; the first counts

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        """Check the options that a user gave.

        Raises:
            InputError: There is no such option, or it has no such value.
        """
        for name, value in (options or {}).items():
            if value not in self.choices.get(name, ()):
                known = ", ".join(f"{one}={'|'.join(values)}" for one, values in self.choices.items())
                raise InputError(f"option {name}={value}: this format has {known or 'no options'}")
        usual = {name: next(iter(values)) for name, values in self.choices.items()}
        self.options = {**usual, **(options or {})}

    @classmethod
    def check_framework(cls, form: str, predictor: Predictor) -> None:
        """Check that the format can hold models of a framework.

        Args:
            form: The name of the exporter.
            predictor: The model of a run.

        Raises:
            InputError: It cannot; the message names the formats that can.
        """
        framework = name_of_framework(predictor.framework)
        if framework not in cls.frameworks:
            able = [name for name in names("exporter") if framework in adapter("exporter", name).frameworks]
            raise InputError(
                f"--format {form} takes models of {', '.join(cls.frameworks)}; one of {framework} can be "
                f"exported with --format {' or '.join(able)}"
            )

    @classmethod
    def check_runtime(cls) -> None:
        """Check that the runtime is installed.

        Raises:
            MissingExtraError: It is not.
        """
        for name in cls.packages:
            require(name, cls.extra)

    def needs(self) -> Mapping[str, str]:
        """Return what a machine must have to open what `write` makes here, such as CPU instructions."""
        return {}

    @abstractmethod
    def write(self, predictor: Predictor, path: Path, metadata: Mapping[str, str]) -> None:
        """Write a model.

        Args:
            predictor: The model of a run.
            path: The file or folder to make.
            metadata: What to write into it where the format has a place for that.

        Raises:
            InputError: The format cannot hold this model; the message names the nearest one that can.
        """

    @abstractmethod
    def inputs(self, predictor: Predictor) -> Sequence[Input]:
        """Return the inputs of what `write` makes.

        Raises:
            InputError: As in `write`.
        """

    @abstractmethod
    def steps(self, path: Path, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return values inside an artifact for some rows, in order, to find the first that is wrong.

        They are called `column NAME` (the features of a column), `features`, and as the exporter likes.
        """
