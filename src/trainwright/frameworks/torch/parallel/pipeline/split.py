"""The division of a model's blocks into the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from trainwright.errors import ModelError

KEY = "distributed.virtual.pipeline"
SPLIT_KEY = "distributed.pipeline_split"
_NEEDED = (
    "a pipeline needs an nn.ModuleList or nn.Sequential of blocks that are called one after the other, each "
    "with the hidden state, which the one before has returned, as its first argument"
)


@dataclass(frozen=True)
class Stages:
    """The stages of a model.

    Attributes:
        blocks: The names of the blocks, in the order of the forward pass.
        firsts: The index of the first block of each stage, in order; the first one is 0.
    """

    blocks: tuple[str, ...]
    firsts: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of stages."""
        return len(self.firsts)

    def stage_of(self, block: int) -> int:
        """Return the stage of a block."""
        return sum(first <= block for first in self.firsts) - 1


def split(module: nn.Module, stages: int, first_blocks: Sequence[str] = ()) -> Stages:
    """Divide a model into stages; it may be on the device meta, since only names and shapes are read.

    The blocks are the members of an `nn.ModuleList` or `nn.Sequential`. The largest stage is made as small as
    can be, where a block counts by its parameters, and what comes before the first and after the last block
    (embeddings and the head) counts as an average block each.

    Args:
        module: The model.
        stages: How many stages it is to have.
        first_blocks: The names of the first blocks of all stages but the first one, if the user has given
            them.

    Raises:
        ModelError: The model has no blocks, or too few, or none of such a name.
    """
    if first_blocks:
        return _named(module, stages, first_blocks)
    levels = _sequences(module)
    if not levels:
        raise ModelError(f"{KEY}: {type(module).__name__} has no sequence of blocks; {_NEEDED}")
    # Blocks may have parts that are sequences, such as experts: the outermost sequence that is long enough.
    longest = [max(level, key=lambda names: _trained(module, names)) for level in levels]
    blocks = next((names for names in longest if len(names) >= stages), longest[0])
    if stages > len(blocks):
        raise ModelError(
            f"{KEY}: {stages} stages given, but {type(module).__name__} has {len(blocks)} blocks, from "
            f"{blocks[0]} to {blocks[-1]}; give {_up_to(len(blocks))}"
        )
    return Stages(tuple(blocks), tuple(_balanced(module, blocks, stages)))


def _named(module: nn.Module, stages: int, first_blocks: Sequence[str]) -> Stages:
    """Return the stages that begin with these blocks."""
    if len(first_blocks) != stages - 1:
        raise ModelError(
            f"{SPLIT_KEY}: {len(first_blocks)} blocks given for {stages} stages; name the first block of "
            f"each stage but the first one: {stages - 1}"
        )
    parent = first_blocks[0].rpartition(".")[0]
    known = dict(module.named_modules())
    container = known.get(parent)
    if not isinstance(container, nn.ModuleList | nn.Sequential):
        raise ModelError(f"{SPLIT_KEY}: {first_blocks[0]} is not a member of a sequence; {_NEEDED}")
    blocks = _members(container, parent)
    if wrong := [name for name in first_blocks if name not in blocks]:
        raise ModelError(f"{SPLIT_KEY}: {wrong[0]} is none of {blocks[0]} to {blocks[-1]}")
    firsts = [0, *(blocks.index(name) for name in first_blocks)]
    if any(one >= other for one, other in pairwise(firsts)):
        raise ModelError(
            f"{SPLIT_KEY}: name the first blocks of the stages in the order of the model, beginning with the "
            f"second stage, which cannot begin with {blocks[0]}"
        )
    return Stages(tuple(blocks), tuple(firsts))


def _sequences(module: nn.Module, name: str = "") -> list[list[list[str]]]:
    """Return the names of the members of all sequences: those at the top, those within their members ..."""
    levels: list[list[list[str]]] = []
    is_sequence = isinstance(module, nn.ModuleList | nn.Sequential) and _trained(
        module, list(module._modules)
    )
    if is_sequence and len(module._modules) > 1:
        levels.append([_members(module, name)])
    below = len(levels)
    for child_name, child in module.named_children():
        for depth, level in enumerate(_sequences(child, f"{name}.{child_name}" if name else child_name)):
            while len(levels) <= below + depth:
                levels.append([])
            levels[below + depth] += level
    return levels


def _members(module: nn.Module, name: str) -> list[str]:
    return [f"{name}.{member}" if name else member for member in module._modules]


def _trained(module: nn.Module, names: Sequence[str]) -> int:
    """Return how many of some submodules have parameters."""
    return sum(any(True for _ in module.get_submodule(name).parameters()) for name in names)


def _balanced(module: nn.Module, blocks: Sequence[str], stages: int) -> list[int]:
    """Return the index of the first block of each stage, by the numbers of parameters."""
    sizes = [sum(one.numel() for one in module.get_submodule(name).parameters()) for name in blocks]
    within = {id(one) for name in blocks for one in module.get_submodule(name).parameters()}
    has_others = any(id(one) not in within for one in module.parameters())
    end = sum(sizes) // len(sizes) if has_others else 0
    return balanced(sizes, stages, end, end)


def balanced(sizes: Sequence[int], stages: int, before: int, after: int) -> list[int]:
    """Return the index of the first block of each stage, so that the largest stage is as small as can be.

    Args:
        sizes: The sizes of the blocks, at least as many as stages.
        stages: The number of stages, each of which takes a block.
        before: What the first stage holds besides.
        after: What the last one does.
    """
    least, most = 0, sum(sizes) + before + after
    while least < most:  # the smallest limit on the size of a stage that can be kept
        limit = (least + most) // 2
        can_be = _filled(sizes, stages, before, after, limit) is not None
        least, most = (least, limit) if can_be else (limit + 1, most)
    firsts = _filled(sizes, stages, before, after, least)
    assert firsts is not None, "one stage may hold everything"
    return firsts


def _filled(sizes: Sequence[int], stages: int, before: int, after: int, limit: int) -> list[int] | None:
    """Return the first block of each stage if the first ones take as many as they may; None if some are left.

    Args:
        sizes: As for `balanced`, as are the next three.
        stages: See there.
        before: See there.
        after: See there.
        limit: The largest size of a stage.
    """
    firsts, at = [], 0
    for stage in range(stages):
        firsts.append(at)
        later = stages - stage - 1
        size = (before if stage == 0 else 0) + (after if later == 0 else 0)
        while at < len(sizes) - later and (at == firsts[-1] or size + sizes[at] <= limit):
            size += sizes[at]
            at += 1
        if size > limit:
            return None
    return firsts if at == len(sizes) else None


def _up_to(most: int) -> str:
    powers = [str(1 << power) for power in range(most.bit_length())]
    return f"at most {most}, such as {', '.join(powers)}"
