"""The strategy that fits a model to its processes."""

from __future__ import annotations

import logging
import os

import torch
import torch.distributed as dist
from torch import nn

from trainwright.frameworks.torch.parallel.fsdp import FullySharded, replicated
from trainwright.frameworks.torch.parallel.strategy import Strategy
from trainwright.world import Mesh, World

log = logging.getLogger("trainwright")
_COPIES = 4  # of the parameters: they, their gradients, and two moments of an optimizer
_SHARE = 0.5  # of a device's memory that these may take; activations need the rest
_NAMES = {"cpu": "of memory", "cuda": "of memory on the GPU"}


class Automatic(Strategy):
    """Data parallel training if the whole state fits into each process; else as few shards as fit."""

    @classmethod
    def chosen(cls, module: nn.Module, world: World, virtual: Mesh) -> type[Strategy]:
        """Choose from the size of the state, and from the memory that every process has."""
        mesh, device = world.mesh, torch.device("cuda" if dist.get_backend() != "gloo" else "cpu")
        samples = mesh.data * mesh.shard  # groups of processes
        count = sum(one.nbytes for one in module.parameters()) / (mesh.tensor * mesh.pipeline)
        state = _COPIES * count
        room = min(world.gather(memory_here(device, world.size)))
        shard = shards_for(count, room, samples)
        name = "ddp" if shard == 1 else "fsdp" if shard == samples else "hsdp"
        if world.is_main:
            log.info(
                "strategy: %s, as parameters, gradients and moments are %s in each process, which has %s %s",
                name if shard in (1, samples) else f"{name} with shard: {shard}",
                _size(state / shard),
                _size(room),
                _NAMES.get(device.type, "of memory"),
            )
        if shard == 1:
            return replicated(world)
        world.mesh = mesh._replace(data=samples // shard, shard=shard)
        return FullySharded.chosen(module, world, virtual)


def shards_for(count: float, room: float, samples: int) -> int:
    """Return into how many shards the state is divided.

    Args:
        count: The bytes of the parameters of a process, if they are not divided.
        room: The bytes of memory that it has.
        samples: The most shards, a power of two.
    """
    shard = 1
    while _COPIES * count / shard > _SHARE * room and shard < samples:
        shard *= 2
    return shard


def memory_here(device: torch.device, processes: int) -> int:
    """Return the bytes of memory that a process has: those of its GPU, or its share of the machine's."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // here


def _size(count: float) -> str:
    return f"{count / 1e9:.2g} GB" if count >= 1e8 else f"{count / 1e6:.2g} MB"
