"""Which modules of a model are gathered one at a time."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import _recursive_wrap, size_based_auto_wrap_policy

from trainwright.config.distributed import DistributedConfig
from trainwright.errors import ModelError
from trainwright.frameworks.torch.network import translated
from trainwright.frameworks.torch.parallel.wrapping import modules_to_wrap


class Encoder(nn.Module):
    """Layers without a list, of which one uses another's weight without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 2)
        self.inner = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Sequential(nn.Linear(64, 32, bias=False)))
        self.norm = nn.LayerNorm(32)


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 32), Encoder(), nn.ModuleList([Encoder(), nn.Linear(32, 8)]), nn.ReLU())


def names_of(module: nn.Module, **distributed: object) -> list[str]:
    names = {id(part): name for name, part in module.named_modules()}
    return [names[id(one)] for one in modules_to_wrap(module, DistributedConfig(**distributed))]


class Wrapped(nn.Module):
    """Stands for FSDP1's wrapper."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


@pytest.mark.parametrize("least", [1, 200, 2000, 2100, 4300, 6000, 9000, 10**6])
def test_sizes_are_those_of_torch(least: int) -> None:
    other = model()
    names = {id(part): name for name, part in other.named_modules()}

    def policy(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        return size_based_auto_wrap_policy(module, recurse, nonwrapped_numel, min_num_params=least)

    _recursive_wrap(other, policy, Wrapped, set(), set(), only_wrap_children=True)
    expected = [names[id(one.module)] for one in other.modules() if isinstance(one, Wrapped)]
    found = names_of(model(), min_num_params=least)
    assert set(found) == set(expected)
    assert all(not inner.startswith(f"{outer}.") for at, outer in enumerate(found) for inner in found[at:]), (
        "inner modules are wrapped first"
    )


def test_modules_that_share_a_weight_are_gathered_together() -> None:
    module = nn.ModuleDict({"body": nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), "head": nn.Linear(8, 8)})
    assert names_of(module, min_num_params=10) == ["body.0", "body.1", "head"]
    module["body"][1].weight = module["body"][0].weight
    assert names_of(module, min_num_params=10) == ["body", "head"]
    module["head"].weight = module["body"][0].weight
    assert names_of(module, min_num_params=10) == []


def test_embeddings_are_gathered_with_what_contains_them() -> None:
    module = nn.ModuleDict({"body": nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50))})
    assert names_of(module, min_num_params=10) == ["body.1", "body"]
    assert names_of(module, min_num_params=500) == ["body"]


def test_members_of_lists_are_the_default() -> None:
    assert names_of(model()) == ["2.1", "2.0"]
    with pytest.raises(ModelError, match="a ModuleList is not called itself"):
        names_of(model(), wrap=["2"])


class Uncalled(nn.Module):
    """Uses a weight of a layer that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, 4) to (batch, 4)."""
        return nn.functional.linear(self.first(x), self.second.weight)


def test_a_module_that_is_not_called_is_named_as_the_cause() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        module = Uncalled()
        mesh = init_device_mesh("cpu", (1,))
        for part in [*modules_to_wrap(module, DistributedConfig(min_num_params=10)), module]:
            fully_shard(part, mesh=mesh)
        with pytest.raises(RuntimeError) as caught:
            module(torch.ones(2, 4))
    finally:
        dist.destroy_process_group()
    assert "uses the weight of a module that it does not call" in str(translated(caught.value, "step 1"))
