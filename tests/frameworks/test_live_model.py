"""The model of a learner, which several processes evaluate together."""

from typing import Any

import numpy as np
import pytest

from trainwright.config import load
from trainwright.frameworks.torch.parallel.strategy import Strategy
from trainwright.runs.catalog import Catalog
from trainwright.runs.objects import Objects
from trainwright.runs.wiring import build
from trainwright.world import Mesh, World

CONFIG: dict[str, Any] = {
    "data": {"type": "iris", "split": {"val": 0.2, "test": 0.2}},
    "model": {"type": "mlp", "hidden": [4]},
    "evaluation": {"batch_size": 2},
}


class Member(World):
    """One of some processes; it keeps what it would tell the others."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.mesh = rank, size, Mesh(data=size)
        self.told: list[Any] = []

    def gather(self, value: Any) -> list[Any]:
        """Keep the value."""
        self.told += value
        return [[] for _ in range(self.size)]


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_all_processes_make_as_many_forward_passes(size: int) -> None:
    """A pass may be a collective call of them all."""
    components = build(load(CONFIG, adapters=Catalog()).config, 1, Objects())
    split, live = components.bundle.splits["val"], components.learner.model()
    whole = list(live.predict(split))
    passes: list[int] = []
    live.native.register_forward_hook(lambda *_: passes.__setitem__(-1, passes[-1] + 1))
    told = []
    for rank in range(size):
        passes.append(0)
        member = Member(rank, size)
        live._strategy = Strategy(member)
        told.append([*live.predict(split), *member.told])
    assert set(passes) == {-(-len(whole) // size)}
    parts = [told[i % size][i // size] for i in range(len(whole))]
    assert sum(map(len, told)) == len(whole)
    for part, expected in zip(parts, whole, strict=True):
        assert np.array_equal(part.ids, expected.ids)
        assert np.array_equal(part.outputs, expected.outputs)
