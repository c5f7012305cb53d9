"""Collective calls over the processes along one axis of the mesh, with sums by the binary tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainwright.errors import WorldError
from trainwright.frameworks.torch.parallel.stopwatch import waiting
from trainwright.frameworks.torch.parallel.virtual_ranks import tree_sum

# Before torch 2.13 it has another name.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_BUCKET = 25 << 20  # bytes


def gather(value: Tensor, group: Any) -> list[Tensor]:
    """Return the tensors, of one shape, that the processes of a group pass, by rank.

    Raises:
        WorldError: Another process is gone.
    """
    rows = [torch.empty_like(value, memory_format=torch.contiguous_format) for _ in range(group.size())]
    value = value.contiguous()
    try:
        with waiting:
            dist.all_gather(rows, value, group=group)
    except RuntimeError as error:
        raise WorldError(f"another process is gone ({error})") from error
    return rows


def tree_all_reduce(values: Sequence[Tensor], group: Any, *, is_exact: bool = True) -> None:
    """Set tensors, which all processes of a group have, to their sums by the binary tree.

    They travel in buckets: a reduce-scatter (an all-to-all, then the tree), and an all-gather. Where it need
    not be exact, the sums are those of the backend.

    Raises:
        WorldError: Another process is gone.
    """
    buckets: list[list[Tensor]] = []
    room = 0
    for value in values:
        if room <= 0 or buckets[-1][0].dtype != value.dtype:
            buckets.append([])
            room = _BUCKET
        buckets[-1].append(value)
        room -= value.nbytes
    size = group.size()
    for bucket in buckets:
        numels = [one.numel() for one in bucket]
        flat = bucket[0].new_zeros(-(-sum(numels) // size) * size)
        torch.cat([one.reshape(-1) for one in bucket], out=flat[: sum(numels)])
        try:
            if is_exact:
                received = torch.empty_like(flat)
                with waiting:
                    dist.all_to_all_single(received, flat, group=group)
                total = tree_sum(list(received.view(size, -1)))
                with waiting:
                    all_gather(flat, total, group=group)
            else:
                with waiting:
                    dist.all_reduce(flat, group=group)
        except RuntimeError as error:
            raise WorldError(f"another process is gone ({error})") from error
        for one, part in zip(bucket, torch.split(flat[: sum(numels)], numels), strict=True):
            one.copy_(part.view(one.shape))
