"""The record of a compression: what was asked, and what became of each layer."""

from __future__ import annotations

from pydantic import Field

from trainwright.records.document import Record
from trainwright.records.schemes import Scheme

COMPRESSION = "evaluation/compression.json"  # of a compressed run: how it compares with its parent


class Recipe(Record):
    """A compression that can be repeated.

    `prune` is the share of the weights (of trees, in models made of them) to drop; `structured` drops whole
    channels. `leaves` is the share of the leaves of each tree to drop. `layers` are the names of the layers
    to compress; None: all that can be.
    """

    quantize: Scheme | None = None
    prune: float = 0.0
    structured: bool = False
    leaves: float = 0.0
    layers: list[str] | None = None

    def in_words(self) -> str:
        """Return what is done, for people."""
        parts: list[str] = [self.quantize] if self.quantize else []
        if self.prune:
            parts.append(f"{'structured ' if self.structured else ''}pruning of {self.prune:g}")
        if self.leaves:
            parts.append(f"cutting {self.leaves:g} of the leaves")
        return " after ".join(parts)


class LayerRecord(Record):
    """A layer, the scheme it is stored by (None: as it was), and the bytes of its tensors.

    `note` says why it was left as it was, or what was done beside the scheme.
    """

    name: str
    kind: str
    scheme: str | None
    before: int
    after: int
    note: str = ""


class CompressionRecord(Record):
    """The compression that made a run of its parent: an input of the run."""

    recipe: Recipe
    parent_digest: str | None = None
    gate: str | None = None
    searched: bool = False
    calibration_rows: int = 0
    layers: list[LayerRecord] = Field(default_factory=list)
