"""The contract of servers: a system that serves models, and the folder that is laid out for it.

A server (`servers/triton.py` -> `TritonServer`) takes models in some formats of exporters. `api.packaging`
exports a run in the first of them that holds the model, or takes an artifact that has one of them, and has
the server write the folder around it. The folder stands alone: it names no path, host or secret of the
machine that wrote it, and each of its files passes the checks of the tools that are to read it.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trainwright.plugins import adapter
from trainwright.records.artifact import artifact_reference
from trainwright.records.certificate import Certificate


@dataclass(frozen=True)
class Package:
    """A model that is to be served, and how.

    Attributes:
        name: The name of the service: lower-case letters, digits and hyphens.
        artifact: The exported model, in a folder of its own: a folder, or a file with all that is beside it.
        certificate: Its certificate.
        replicas: The processes that serve it.
    """

    name: str
    artifact: Path
    certificate: Certificate
    replicas: int

    @property
    def version(self) -> str:
        """The version of the service: the id of the run."""
        return str(self.certificate.run["id"])

    @property
    def executes_code(self) -> bool:
        """True if opening the artifact executes code that it holds."""
        return bool(adapter("exporter", self.certificate.format).executes_code)

    @property
    def model_bytes(self) -> int:
        """The size of the artifact."""
        return sum(one["bytes"] for one in self.certificate.files.values())

    def copy_artifact(self, target: Path) -> Path:
        """Copy the artifact, with what is beside it.

        Args:
            target: The folder to make: of an artifact that is a file, the folder around it.

        Returns:
            The path of the artifact there.
        """
        if self.artifact.is_dir():
            if (reference := artifact_reference(self.artifact)).exists():
                shutil.copyfile(reference, artifact_reference(target))
            return shutil.copytree(self.artifact, target)
        shutil.copytree(self.artifact.parent, target)
        return target / self.artifact.name

    @property
    def extras(self) -> list[str]:
        """The extras of Trainwright that read the rows of the model."""
        reads = {one.get("reads", {}).get("raw") for one in self.certificate.inputs}
        has_tokenizer = self.certificate.data.get("tokenizer") is not None
        is_table = "image" not in reads and not has_tokenizer  # also in CSV, Arrow and Parquet
        return ["image"] * ("image" in reads) + ["text"] * has_tokenizer + ["tabular"] * is_table


class Server(ABC):
    """A server, as `package --to NAME` lays out folders for it."""

    summary: ClassVar[str] = ""  # one line for `package --help`
    formats: ClassVar[Sequence[str]]  # of the models that it takes, the best one first
    predicts: ClassVar[bool] = True  # rows, so that the artifact must give predictions
    successor: ClassVar[str] = ""  # of a legacy system: the one that took its place

    @classmethod
    def takes(cls, framework: str) -> list[str]:
        """Return the formats in which it takes the models of a framework; empty: it takes none."""
        return [name for name in cls.formats if adapter("exporter", name).takes(framework)]

    @abstractmethod
    def write(self, package: Package, folder: Path) -> str:
        """Write the files of a package.

        Args:
            package: The model.
            folder: An empty folder.

        Returns:
            The command that starts the service, as typed in the folder.

        Raises:
            InputError: The system cannot serve this model, or a package index is needed and does not answer.
        """
