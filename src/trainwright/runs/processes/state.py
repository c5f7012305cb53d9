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
    gathered = world.gather((records, bool(parts)))
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
    if not any(has_parts for _, has_parts in gathered):
        return list(known.values())
    # The main process hashes the chunks that blocks share: their bytes go nowhere else.
    of_all = world.to_main(parts)
    joined = world.from_main(lambda: join_parts(part for some in of_all for part in some))
    return [*known.values(), *joined]


def weights_digest(learner: Learner, world: World) -> str:
    """Return the digest of the model's weights as they are now, in every process; a collective call."""
    return digest(state_records(learner, world, weights_only=True))
