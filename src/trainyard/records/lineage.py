"""Where a run comes from: its parent, and the state of it that the run starts from."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from trainyard.order import START, Cursor
from trainyard.records.document import Document
from trainyard.records.manifest import DataIdentity, InitialState

FOLDER = "initial"  # of a run: the checkpoint that it starts from, and the config of its parent


class Lineage(Document):
    """The parent of a run, written when the run is created.

    A `fork` is trained otherwise from `step` on, a `continue` is only trained longer, and `reproduce` repeats
    the parent from its start. `changed` holds the settings that differ from the parent's. The other fields
    describe the parent: its data, where its own steps began, and where its initial weights came from.
    `irregular` are the steps of its evaluations that try no patience: all of them, and those that it had from
    a parent of its own.
    """

    FILE: ClassVar[str] = "parent.json"

    run_id: str
    relation: Literal["fork", "continue", "reproduce"]
    step: int | None = None
    changed: list[str] = Field(default_factory=list)
    initial: InitialState | None = None
    data: DataIdentity = Field(default_factory=DataIdentity)
    begin: Cursor = START
    irregular: list[int] = Field(default_factory=list)
    inherited_irregular: list[int] = Field(default_factory=list)
    init_from: str | None = None

    def own_begin(self, data: DataIdentity) -> Cursor:
        """Return where the run's own steps begin on its data: with other rows, at the start of an epoch."""
        initial = self.initial
        if initial is None:
            return START
        same = self.has_same(data, "train")
        return Cursor(initial.step, initial.epoch, initial.consumed) if same else Cursor(initial.step)

    def has_same(self, data: DataIdentity, split: str) -> bool:
        """Return whether a split has the rows that the parent's has, however they were prepared."""
        if self.data.rows.get(split) is not None:
            return self.data.rows[split] == data.rows.get(split)
        return self.data.splits.get(split) == data.splits.get(split)

    def brief(self) -> dict[str, Any]:
        """Return the parent, the relation and the step, for JSON."""
        return {"run_id": self.run_id, "relation": self.relation, "step": self.step}

    def in_words(self) -> str:
        """Return the relation to the parent for people."""
        words = {"fork": "forked from", "continue": "goes on after", "reproduce": "repeats"}[self.relation]
        at = "" if self.step is None else f" at step {self.step}"
        return f"{words} {self.run_id}{at}"
