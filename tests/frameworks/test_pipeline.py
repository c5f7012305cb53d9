"""A pipeline ends with the bits of one process that adds up everything in order."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from staged_runs import BATCHES, SEED, Batches, Case, Result, digest, gpt, in_processes, loss_of, result_of
from torch import Tensor, nn
from torch.nn import functional

from trainwright.order import STEP, stream_seed

# --- a loop written out for a GPT with tied embeddings


def _stage(model: nn.Module, index: int, stages: int, given: Tensor, head: Tensor) -> Tensor:
    """One stage of equal numbers of blocks, of (rows, length) tokens or (rows, length, width)."""
    hidden, blocks = given, len(model.blocks) // stages
    if index == 0:
        positions = model.position_embedding(torch.arange(given.shape[1]))
        hidden = model.dropout(model.token_embedding(given) + positions)
    for block in model.blocks[index * blocks : (index + 1) * blocks]:
        hidden = block(hidden, None)
    return functional.linear(model.norm(hidden), head) if index == stages - 1 else hidden


def _microbatch(model: nn.Module, stages: int, batch: dict[str, Tensor], seed: int, factor: float) -> list:
    """The gradients of one microbatch: the parameters, and the embedding once more, as the output layer."""
    table = model.token_embedding.weight
    head = table.detach().clone().requires_grad_() if stages > 1 else table
    wanted = [*model.parameters(), head]
    begins, ends = [batch["input_ids"]], []
    for index in range(stages):
        key = seed if index == 0 else stream_seed(seed, index)
        torch.default_generator.manual_seed(key & 0xFFFFFFFF)
        end = _stage(model, index, stages, begins[-1], head)
        ends.append(end)
        begins.append(end.detach().clone().requires_grad_())
    loss = loss_of(ends.pop(), batch) * factor
    found: list[Tensor | None] = [None] * len(wanted)
    back = None
    for index in reversed(range(stages)):
        output = loss if index == stages - 1 else ends[index]
        inputs = [*wanted, *([begins[index]] if index else [])]
        got = list(torch.autograd.grad(output, inputs, back, allow_unused=True))
        back = got.pop() if index else None
        found = [one if other is None else other for one, other in zip(found, got, strict=True)]
    return found if stages > 1 else [*found[:-1], None]


def _plain(stages: int, ranks: int, microbatch: int) -> dict[str, Tensor]:
    torch.manual_seed(1)
    model, batches = gpt(), Batches()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, 1e-2, weight_decay=0.0, fused=True)
    for step, size in enumerate(BATCHES):
        ids, trees = batches.batch(step), []
        for rank in range(ranks):
            part = ids[size * rank // ranks : size * (rank + 1) // ranks]
            sums: list[Tensor | None] = [None] * (len(parameters) + 1)
            for number, start in enumerate(range(0, len(part), microbatch)):
                some = part[start : start + microbatch]
                stream = (step,) if ranks == 1 else (step, rank)
                seed = stream_seed(stream_seed(SEED, STEP), *stream, number)
                got = _microbatch(model, stages, batches.take(some), seed, len(some) / size)
                sums = [
                    one if two is None else two if one is None else one + two
                    for one, two in zip(sums, got, strict=True)
                ]
            if sums[-1] is not None and sums[0] is not None:
                sums[0] = sums[0] + sums[-1]  # the first parameter is the embedding
            trees.append([torch.zeros_like(p) if g is None else g for p, g in zip(parameters, sums[:-1])])
        while len(trees) > 1:
            pairs = zip(trees[::2], trees[1::2], strict=True)
            trees = [[a + b for a, b in zip(*pair, strict=True)] for pair in pairs]
        for parameter, gradient in zip(parameters, trees[0], strict=True):
            parameter.grad = gradient
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize(("stages", "ranks"), [(1, 1), (1, 4), (2, 1), (2, 2), (4, 4)])
def test_one_process_is_a_plain_loop(stages: int, ranks: int) -> None:
    result = result_of(Case(stages=stages, ranks=ranks))
    assert result.digest == digest(_plain(stages, ranks, 4))
