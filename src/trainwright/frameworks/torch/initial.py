"""The initial weights of a model, made where the model is placed: no process needs memory for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from trainwright.errors import ModelError
from trainwright.frameworks.torch.huggingface import build as huggingface
from trainwright.frameworks.torch.huggingface.module import base_of
from trainwright.frameworks.torch.huggingface.source import Source
from trainwright.frameworks.torch.huggingface.weights import SavedWeights, rule_of
from trainwright.frameworks.torch.models import build_model, draws_by_name
from trainwright.frameworks.torch.models.drawing import Rule, draw, undrawn
from trainwright.frameworks.torch.params import TRANSFORMERS
from trainwright.types import DataInfo


class InitialWeights:
    """A model, and where its initial weights come from.

    They are drawn module by module (see `models.drawing`) for a built-in model, one of transformers, or a
    class of the user's that has a method `draw_parameters(module, name)`. Those of a folder of transformers
    are read. Any other model draws its own when it is made, whole, in each process, from torch's generators.

    The bits depend neither on whether the model was made without memory, nor on how it is placed.

    Attributes:
        module: The model. Its tensors are on the device `meta` until `fill`, unless it had to be made whole.
        why_whole: Why it had to be; empty if it was not.
    """

    def __init__(
        self,
        module: nn.Module,
        rule: Callable[[nn.Module], Rule] | None = None,
        saved: SavedWeights | None = None,
        why_whole: str = "",
    ) -> None:
        self.module = module
        self.why_whole = why_whole
        self._rule = rule  # of the model when it has been placed
        self._saved = saved

    @classmethod
    def of(
        cls, type_name: str, params: Mapping[str, Any], info: DataInfo, *, divided: bool = False
    ) -> InitialWeights:
        """Make the model that `model.type` names, without memory where that is possible.

        Args:
            type_name: The name.
            params: Its options.
            info: The data.
            divided: Whether each process is to have parts of it. Else transformers reads the weights of a
                folder, whole.

        Raises:
            ModelError: It cannot be made; see `models.build_model`.
        """
        if not (why_whole := _why_whole(type_name, params, divided=divided)):
            try:
                with torch.device("meta"):
                    module, source = _built(type_name, params, info, read=False)
                saved = None if source is None else SavedWeights.of(module, source)
                why_whole = _why_unset(module) or (saved.why_whole if saved else "")
            except ModelError as error:
                why_whole = f"it cannot be made on the device meta: {error}"
            else:
                if not why_whole:
                    if saved is not None:
                        saved.check(module)
                    return cls(module, _rule_of, saved)
        module, source = _built(type_name, params, info, read=True)
        saved = None if source is None else SavedWeights.of(module, source)
        return cls(module, _rule_of if _draws_by_name(type_name, params) else None, saved, why_whole)

    def fill(self, device: torch.device, seed: int) -> None:
        """Give the model its initial weights on a device: of each tensor, the block that this process has.

        Args:
            device: The device of tensors that have no memory yet.
            seed: The seed of the run.

        Raises:
            ModelError: A file is damaged, or the model's rule leaves elements without a value.
        """
        if not self.why_whole:  # else what has no values is the model's own mistake
            materialise(self.module, device)
        if self._rule is None:
            return
        only = None
        if self._saved is not None:
            only = self._saved.missing
            if not self.why_whole:
                self._saved.read(self.module)
                only = only | self._saved.unsaved(self.module)
        draw(self.module, self._rule(self.module), seed, only)


def materialise(module: nn.Module, device: torch.device) -> None:
    """Give the tensors of a module that are on the device `meta` memory on another one, without values.

    Of a `DTensor`, that is the block of this process. Parameters that are one stay one.
    """
    places = [
        (part._parameters, key, parameter)
        for part in module.modules()
        for key, parameter in part._parameters.items()
        if parameter is not None
    ]

    def with_memory(tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor

    if not any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers())):
        return
    module._apply(with_memory)  # not only each tensor: LSTMs and FSDP2 keep more of it
    first: dict[int, nn.Parameter] = {}
    for holder, key, before in places:
        holder[key] = first.setdefault(id(before), holder[key])  # type: ignore[arg-type]


def _built(
    type_name: str, params: Mapping[str, Any], info: DataInfo, *, read: bool
) -> tuple[nn.Module, Source | None]:
    if type_name in TRANSFORMERS:
        return huggingface.build(type_name, params, info, read=read)
    return build_model(type_name, params, info), None


def _why_whole(type_name: str, params: Mapping[str, Any], *, divided: bool) -> str:
    """Return why a model cannot be made without memory, as far as its options say; empty if it can."""
    if not _draws_by_name(type_name, params):
        if type_name in TRANSFORMERS:
            return "adapters (model.lora) are put into whole weights"
        return "it draws its weights when it is made; a method draw_parameters(module, name) would draw parts"
    if params.get("path") is not None and type_name in TRANSFORMERS and not divided:
        return "its weights are read whole, for this process"
    return ""


def _draws_by_name(type_name: str, params: Mapping[str, Any]) -> bool:
    if type_name in TRANSFORMERS:
        return params.get("lora") is None
    return draws_by_name(type_name)


def _rule_of(module: nn.Module) -> Rule:
    if base_of(module) is not None:
        return rule_of(module)
    rule: Rule = module.draw_parameters  # type: ignore[assignment]
    return rule


def _why_unset(module: nn.Module) -> str:
    """Return which tensor of a model would have no value, since only its constructor gives it one."""
    lazy = [name for name, one in module.named_parameters() if is_lazy(one)]
    if left := [*lazy, *undrawn(module, _rule_of(module))]:
        return f"only its constructor gives {left[0]} a value"
    return ""
