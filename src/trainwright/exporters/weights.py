"""The exporters of weights, which predict nothing by themselves, so that their tensors are compared."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from trainwright.exporters.base import Exporter, Input
from trainwright.inference.predictor import Predictor
from trainwright.types import Array


class WeightsExporter(Exporter):
    """An exporter of the weights in a checkpoint; its artifacts have no runtime, and so no predictions."""

    holds: ClassVar[str] = "weights"

    @abstractmethod
    def write_weights(self, checkpoint: Path, path: Path, most: int | None = None) -> Mapping[str, Any]:
        """Write the weights of a checkpoint, and compare what was written with it.

        Args:
            checkpoint: Its folder, whose files have been verified.
            path: The file to make; with `most` a folder.
            most: The bytes of tensors in a file of the folder.

        Returns:
            What was compared, for the certificate.

        Raises:
            CheckpointError: The tensors are not those that the checkpoint's manifest names.
        """

    @abstractmethod
    def difference(self, path: Path, compared: Mapping[str, Any]) -> str | None:
        """Return how the tensors of an artifact differ from what was compared, in words; None: they do not.

        Raises:
            ValueError: It is no artifact of this format.
        """

    def write(self, predictor: Predictor, path: Path, metadata: Mapping[str, str]) -> None:  # noqa: ARG002
        """Write the weights of a predictor's checkpoint; see `Exporter.write`."""
        self.write_weights(predictor.stored.folder, path)

    def inputs(self, predictor: Predictor) -> Sequence[Input]:  # noqa: ARG002
        """Return no inputs."""
        return ()

    def steps(self, path: Path, feeds: Mapping[str, Array]) -> Mapping[str, Array]:  # noqa: ARG002
        """Return no values."""
        return {}
