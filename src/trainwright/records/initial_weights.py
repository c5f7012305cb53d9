"""The record of the weights that a run begins with: what of their source the model has taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import Field

from trainwright.records.document import Record

_LISTED = 5  # names that a sentence lists


class LoadedWeights(Record):
    """The tensors of a source of weights, and what became of them in a model, by their names.

    Attributes:
        loaded: The number of those that the model has taken.
        renamed: How many of these had another name in the source, by what was done to their names.
        skipped: Those that `skip` leaves out.
        new_head: Tensors of the model that begin anew, as the source has them for other classes.
        missing: Tensors of the model that the source lacks.
        unused: Tensors of the source that the model does not have.
    """

    loaded: int = 0
    renamed: dict[str, int] = Field(default_factory=dict)
    skipped: list[str] = Field(default_factory=list)
    new_head: list[str] = Field(default_factory=list)
    missing: list[str] = Field(default_factory=list)
    unused: list[str] = Field(default_factory=list)

    def in_words(self) -> str:
        """Return what was loaded, for people."""
        return "; ".join(self._clauses())

    def _clauses(self) -> Iterator[str]:
        yield f"{self.loaded} tensors loaded"
        if self.renamed:
            yield f"renamed: {', '.join(f'{rule} ({count})' for rule, count in self.renamed.items())}"
        texts = {
            "new head, for another number of classes": self.new_head,
            "skipped": self.skipped,
            "not in the source, with their own initial values": self.missing,
            "not in the model": self.unused,
        }
        for text, names in texts.items():
            if names:
                yield f"{text}: {some(names)}"


def some(names: Sequence[str]) -> str:
    """Return the first of some names, for a message."""
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
