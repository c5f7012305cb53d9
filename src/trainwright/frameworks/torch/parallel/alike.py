"""Processes that share parameters out must gather and reduce the same ones, in the same order.

FSDP2 gathers the parameters of a module where it is called, and reduces the gradients that there are. A model
that calls some modules only for some samples, as a mixture of experts may, would make its processes exchange
different things: they would hang, abort, or add up the gradients of different parameters. The first pass is
compared between the processes, later ones with the first, so that training sends nothing for it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from trainwright.errors import ModelError
from trainwright.frameworks.torch.parallel import collectives

_ADVICE = "fsdp and hsdp need the same ones for all; use strategy: ddp"


class SamePasses:
    """Checks that all processes call the same modules and train the same parameters in each virtual rank.

    Args:
        units: What FSDP2 knows of each module that is gathered, the whole model first: its name, and its
            groups of parameters with their names.
        groups: The process groups whose processes exchange them.
        device: Where these communicate from.
    """

    def __init__(
        self,
        units: Sequence[tuple[str, Sequence[tuple[Any, Sequence[str]]]]],
        groups: Sequence[Any],
        device: torch.device,
    ) -> None:
        self._groups, self._device = [one for one in groups if one.size() > 1], device
        self._calls: list[str] = []  # of the first pass
        self._at = -1  # the calls of this pass so far; -1 before the first pass
        self._is_known = False
        self._trained: dict[
            tuple[int, int], tuple[str, ...]
        ] = {}  # by group and reduction, of the first rank
        self._reductions: Counter[int] = Counter()  # of this virtual rank, by group
        follows = bool(units[0][1])  # calls of the whole model can be told
        for name, kept in units:
            for group, parameters in kept:
                if follows and group is kept[0][0]:
                    self._follow_calls(group, name)
                self._watch(group, parameters)

    def forget(self) -> None:
        """Begin anew, since other parameters are trained from now on."""
        self._trained.clear()

    def end_part(self, whole: Sequence[str]) -> None:
        """Check which parameters that are not divided have a gradient at the end of a virtual rank."""
        self.require_same(0, whole)
        self._reductions.clear()

    def require_same(self, group: int, names: Sequence[str]) -> None:
        """Check that all processes have gradients of these parameters, and had them in the first pass.

        Raises:
            ModelError: They have not.
        """
        found = tuple(names)
        key = group, self._reductions[group]
        self._reductions[group] += 1
        if key not in self._trained:
            self._compare(["gradients", *found])
            self._trained[key] = found
        if self._trained[key] != found:
            differs = sorted({*found} ^ {*self._trained[key]})
            raise ModelError(
                f"distributed.strategy: {differs[0]} is trained with some parts of a batch and not with "
                f"others; {_ADVICE}"
            )

    def _follow_calls(self, group: Any, name: str) -> None:
        """Check the calls of a module, whose parameters FSDP2 gathers first."""
        gather = group.pre_forward

        def checked(module: nn.Module, *inputs: Any) -> Any:
            if module.training and torch.is_grad_enabled():
                self._follow(name)
            return gather(module, *inputs)

        group.pre_forward = checked

    def _follow(self, name: str) -> None:
        """Check that a module has its turn; the whole model (no name) begins a pass."""
        if not name:
            if self._at >= 0:
                self._is_known = True
            if self._is_known and self._at < len(self._calls):
                self._refuse(self._calls[self._at])
            self._at = 0
        if not self._is_known:
            self._compare(["calls", name])
            self._calls.append(name)
        elif self._at >= len(self._calls) or self._calls[self._at] != name:
            self._refuse(name)
        self._at += 1

    def _watch(self, group: Any, parameters: Sequence[str]) -> None:
        """Check what a group of parameters is about to reduce."""
        reduce = group.post_backward

        def checked(*inputs: Any) -> Any:
            if group.reduce_grads:
                pairs = zip(group.fsdp_params, parameters, strict=True)
                self.require_same(id(group), [name for one, name in pairs if _has_gradient(one)])
            return reduce(*inputs)

        group.post_backward = checked

    def _compare(self, words: Sequence[str]) -> None:
        """Compare what processes are about to do; collective."""
        digest = hashlib.sha256("\0".join(words).encode()).digest()
        mine = torch.tensor(list(digest), dtype=torch.uint8, device=self._device)  # (32,)
        for group in self._groups:
            if any(not torch.equal(one, mine) for one in collectives.gather(mine, group)):
                self._refuse(words[-1])

    def _refuse(self, name: str) -> None:
        raise ModelError(
            f"distributed.strategy: the model uses {name or 'modules'} with some parts of a batch and not "
            f"with others; {_ADVICE}"
        )


def _has_gradient(one: Any) -> bool:
    """Return whether a parameter, as FSDP2 keeps it, has a gradient that is not reduced yet."""
    if not hasattr(one, "_unsharded_param"):
        return False
    return one.unsharded_accumulated_grad is not None or one._unsharded_param.grad is not None
