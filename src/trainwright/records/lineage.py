"""The lineage of a run: its parent, and the state of it that the run starts from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, get_args

from pydantic import Field

from trainwright.records.document import Document, Name
from trainwright.records.manifest import DataIdentity, InitialState

RETRAINING = "evaluation/retraining.json"  # of a run: how it compares with the one whose config it trains
FOLDER = "initial"  # of a run: the checkpoint that it starts from, and the config of its parent
Relation = Literal["fork", "continue", "reproduce", "compress", "distill", "retrain"]
RELATIONS: tuple[str, ...] = get_args(Relation)
# A step, its epoch, and how many samples of that are consumed: an `order.Cursor`.
Begin = tuple[int, int, int]


class Lineage(Document):
    """The parent of a run, written when the run is created.

    A `fork` is trained otherwise from `step` on, a `continue` is only trained longer, `reproduce` repeats the
    parent from its start, `compress` makes it smaller (`changed` says how), `distill` trains another model
    with it as the teacher, and `retrain` trains its config on other data. Elsewhere, `changed` holds the
    settings that differ from the parent's. The other fields describe the parent: its data, where its own
    steps began, and where its initial weights came from.
    `irregular` are the steps of its evaluations that try no patience: all of them, and those that it had from
    a parent of its own.
    """

    FILE: ClassVar[str] = "parent.json"

    run_id: Name
    relation: Relation
    step: int | None = None
    changed: list[str] = Field(default_factory=list)
    initial: InitialState | None = None
    data: DataIdentity = Field(default_factory=DataIdentity)
    begin: Begin = (0, 0, 0)
    irregular: list[int] = Field(default_factory=list)
    inherited_irregular: list[int] = Field(default_factory=list)
    init_from: str | None = None

    def own_begin(self, data: DataIdentity) -> Begin:
        """Return where the run's own steps begin on its data.

        With other rows, or rows that are drawn otherwise, that is the start of an epoch.
        """
        initial = self.initial
        if initial is None:
            return 0, 0, 0
        drawn_alike = not any(one.startswith("data.sampling") for one in self.changed)
        same = drawn_alike and self.has_same(data, "train")
        return (initial.step, initial.epoch, initial.consumed) if same else (initial.step, 0, 0)

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
        words = {
            "fork": "is a fork of",
            "continue": "goes on after",
            "reproduce": "repeats",
            "compress": "is compressed from",
            "distill": "is distilled from",
            "retrain": "trains on other data than",
        }[self.relation]
        at = "" if self.step is None else f" at step {self.step}"
        return f"{words} {self.run_id}{at}"


def as_forest(summaries: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the summaries of runs so that each follows its parent, the older of two children first.

    A run whose parent is not among them is like one without a parent. Each summary has its depth added.

    Args:
        summaries: Those of `storage.index`, newest first; this is also the order of the runs without parents.

    Returns:
        The summaries and the depth of each: 0 for a run without a parent.
    """
    known = {one["run_id"] for one in summaries}
    children: dict[str | None, list[dict[str, Any]]] = {}
    for one in reversed(summaries):
        parent = one.get("parent", {}).get("run_id")
        children.setdefault(parent if parent in known else None, []).append(one)
    rows: list[dict[str, Any]] = []
    waiting = [(one, 0) for one in children.get(None, ())]
    while waiting:  # a chain of runs may be longer than the stack of calls
        one, depth = waiting.pop()
        rows.append(one | {"depth": depth})
        waiting += [(child, depth + 1) for child in reversed(children.get(one["run_id"], ()))]
    return rows, [row["depth"] for row in rows]
