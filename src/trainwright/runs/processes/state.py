"""The records of the state of a learner, which several processes may hold in parts."""

from __future__ import annotations

from trainwright.digest import TensorRecord, digest, hashed, join_parts
from trainwright.errors import DivergedError
from trainwright.frameworks.base import Learner
from trainwright.world import World


def state_records(learner: Learner, world: World, *, weights_only: bool = False) -> list[TensorRecord]:
    """Return the records of the tensors of the state, in every process; a collective call.

    Raises:
        DivergedError: Processes that should hold the same state differ.
    """
    records, parts = hashed(learner.state(weights_only=weights_only))
    if world.size == 1:
        return records
    known: dict[str, TensorRecord] = {}
    gathered = world.gather((records, parts))
    others: dict[int, str] = {}  # the first tensor that differs, by process
    for rank, (theirs, _) in enumerate(gathered):
        for record in theirs:
            if known.setdefault(record.name, record) != record:
                others.setdefault(rank, record.name)
    if others:
        raise DivergedError(
            f"process {', '.join(map(str, others))} has a different state from process 0; first difference: "
            f"{next(iter(others.values()))}; compare the versions of packages and the processors of their "
            "machines"
        )
    return [*known.values(), *join_parts(part for _, some in gathered for part in some)]


def weights_digest(learner: Learner, world: World) -> str:
    """Return the digest of the model's weights as they are now, in every process; a collective call."""
    return digest(state_records(learner, world, weights_only=True))
