"""The contract of exporters: a run's model as a file or folder that its own runtime opens.

An exporter (`exporters/onnx/` -> `OnnxExporter`) writes an artifact, and names a module that opens one: its
runtime, which imports nothing of ours. Each export compares the artifact, opened in a process of its own,
with the run's predictor before it appears under its name; see `exporters.certificates.export`. Files of
weights predict nothing by themselves, so that their tensors are compared: `exporters.weights`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from trainwright.errors import InputError
from trainwright.inference.predictor import Predictor
from trainwright.plugins import adapter, names, task_for
from trainwright.require import require
from trainwright.types import Array, DataInfo


class Input(NamedTuple):
    """An input of an artifact.

    Attributes:
        name: Its name: that of a raw column, or of an array that the model takes.
        dtype: `float64`, `string`, `int64` (of times: microseconds since 1970), or that of the array.
        shape: The shape of one row: (1,) of a column.
        content: What it holds, in words.
        reads: How cells of text are read: the fields of `datasets.tables.typed.ColumnKind`; or how an image
            or tokens are made, with `raw`: image, text or array (see `certificates.raw`).
    """

    name: str
    dtype: str
    shape: Sequence[int]
    content: str = ""
    reads: Mapping[str, Any] = {}


def names_classes(info: DataInfo) -> bool:
    """Return whether a model predicts one of several classes, of a row or of its parts, and probabilities."""
    task = task_for(info)
    return task.has_inner_labels or (task.gives_probabilities and not task.targets_are_labels)


def class_axis(info: DataInfo) -> int:
    """Return the axis of classes in probabilities: the second one, but of tokens the last."""
    return 2 if task_for(info).has_inner_labels else 1


class Exporter(ABC):
    """An exporter of one format."""

    summary: ClassVar[str] = ""  # one line for `export --help`
    holds: ClassVar[str] = "preparation, model"  # for the table in docs/export.md
    suffix: ClassVar[str] = ""  # of the file that it writes; empty: it writes a folder
    advice: ClassVar[str] = ""  # how to use what was written to `{path}`, in a line
    is_default: ClassVar[bool] = False  # taken for a path without a suffix where no format is asked for
    model_alone: ClassVar[bool] = False  # of a folder that was compared, the file `model.*` alone is kept
    runtime: ClassVar[str] = ""  # the module whose `open_artifact` opens one; empty: see `exporters.weights`
    packages: ClassVar[Sequence[str]] = ()  # that the runtime imports
    extra: ClassVar[str]  # of ours, which brings them
    frameworks: ClassVar[Sequence[str]]  # whose models it takes; empty: those of all
    executes_code: ClassVar[bool] = False  # where opening an artifact executes code that it holds
    successor: ClassVar[str] = ""  # of a legacy format: the one that took its place
    batches: ClassVar[Sequence[int]] = (1, 7, 1000)  # rows that are predicted together to compare it
    timed: ClassVar[Sequence[int]] = (1, 64)  # rows of a call that is timed
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
    def takes(cls, framework: str) -> bool:
        """Return whether the format can hold models of a framework."""
        return not cls.frameworks or framework in cls.frameworks

    @classmethod
    def suffixes(cls, framework: str | None) -> Sequence[str]:  # noqa: ARG003
        """Return the suffixes of the files that it writes for a framework, or for any; empty: folders."""
        return [cls.suffix] if cls.suffix else []

    @classmethod
    def check_framework(cls, form: str, framework: str) -> None:
        """Check that the format can hold models of a framework.

        Args:
            form: The name of the exporter.
            framework: The name of the framework.

        Raises:
            InputError: It cannot; the message names the formats that can.
        """
        if not cls.takes(framework):
            able = [name for name in names("exporter") if adapter("exporter", name).takes(framework)]
            raise InputError(
                f"--format {form} takes models of {', '.join(cls.frameworks)}; one of {framework} can be "
                f"exported with --format {' or '.join(able)}"
            )

    @classmethod
    def packages_for(cls, framework: str) -> Sequence[str]:  # noqa: ARG003
        """Return the packages that open the artifact of a framework's model."""
        return cls.packages

    @classmethod
    def check_runtime(cls) -> None:
        """Check that the runtime is installed.

        Raises:
            MissingExtraError: It is not.
        """
        for name in cls.packages:
            require(name, cls.extra)

    @property
    def rounds(self) -> bool:
        """Return whether what is written is rounded on purpose, so that outputs differ by more than 1e-5."""
        return False

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

    def own_rows(self, predictor: Predictor) -> Mapping[str, Mapping[str, Array]]:  # noqa: ARG002
        """Return inputs to compare an artifact on, by the name of a sample, of which one is `edge`.

        Empty, as here: synthetic rows, and rows of the test split.
        """
        return {}

    def expected(self, predictor: Predictor, rows: Mapping[str, Array]) -> Mapping[str, Array]:  # noqa: ARG002
        """Return the outputs that an artifact has to have for `own_rows`."""
        return {}

    @abstractmethod
    def steps(self, path: Path, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return values inside an artifact for some rows, in order, to find the first that is wrong.

        They are called `column NAME` (the features of a column), `features`, and as the exporter likes.
        """

    def inside(
        self,
        path: Path,  # noqa: ARG002 - this and the others: no default looks inside
        predictor: Predictor,  # noqa: ARG002
        feeds: Mapping[str, Array],  # noqa: ARG002
        features: Array,  # noqa: ARG002
    ) -> str:
        """Return the first layer or tree of an artifact's model that differs from the run's own.

        Args:
            path: The artifact.
            predictor: The model of the run.
            feeds: The inputs of the artifact.
            features: What the run's own model takes for them, (rows, ...).

        Returns:
            Its name, `layer NAME` or `tree NUMBER`; empty if none is known.
        """
        return ""
