"""Forward passes of models on the device meta, whose tensors have shapes and no values."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode


class WithoutValues(TorchFunctionMode):
    """A context in which a condition on values that are not there is false.

    Transformers asks whether a mask leaves anything out; where it may, the shapes are the same.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, but for the truth of a tensor on the device meta."""
        if function is Tensor.__bool__ and args[0].is_meta:
            return False
        return function(*args, **(kwargs or {}))
