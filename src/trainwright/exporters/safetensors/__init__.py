"""Safetensors: the weights of a PyTorch model, without making the model, in one file or in several."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from trainwright.digest import WEIGHTS, digest
from trainwright.errors import CheckpointError
from trainwright.exporters.weights import WeightsExporter
from trainwright.records import whole_weights
from trainwright.storage.portable import weights_digest


class SafetensorsExporter(WeightsExporter):
    """An exporter of safetensors files, whose tensors are those of the checkpoint."""

    summary = "the weights of a PyTorch model; in several files with --max-shard-size"
    suffix = ".safetensors"
    is_default = True
    extra = "torch"
    frameworks = ("torch",)
    rounds: ClassVar[bool] = False  # floats are rounded to bfloat16

    def write_weights(self, checkpoint: Path, path: Path, most: int | None = None) -> Mapping[str, Any]:
        """Write the weights; see `WeightsExporter.write_weights`."""
        try:
            if most is None:
                records = [whole_weights.write_whole(checkpoint, path, rounds=self.rounds)]
            else:
                path.mkdir()
                records = whole_weights.write_several(checkpoint, path, most, rounds=self.rounds)
        except ValueError as error:
            raise CheckpointError(f"{checkpoint}: {error}") from error
        tensors = [one for file in records for one in file.tensors]
        found = digest([one._replace(name=f"{WEIGHTS}{one.name}") for one in tensors])
        if not self.rounds and found != weights_digest(checkpoint):
            raise CheckpointError(f"the weights in {checkpoint} are not those that its manifest names")
        return {"tensors": len(tensors), "digest": found}

    def difference(self, path: Path, compared: Mapping[str, Any]) -> str | None:
        """Return how the tensors differ; see `WeightsExporter.difference`."""
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        tensors = whole_weights.records_of(files)
        found = digest([one._replace(name=f"{WEIGHTS}{one.name}") for one in tensors])
        wanted = compared["digest"]
        return None if found == wanted else f"the digest of its tensors is {found} instead of {wanted}"


class Bfloat16Exporter(SafetensorsExporter):
    """An exporter of safetensors files, whose floats are rounded to bfloat16: half the size."""

    summary = "the same, with floats rounded to bfloat16"
    is_default = False
    rounds = True
