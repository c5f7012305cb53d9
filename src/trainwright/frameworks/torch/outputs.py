"""The arguments that a model is called with, and the outputs that it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from trainwright.errors import ModelError
from trainwright.frameworks.torch.data import Tensors
from trainwright.frameworks.torch.huggingface.module import base_of
from trainwright.frameworks.torch.parallel.tensor.cross_entropy import SplitLogits
from trainwright.types import FEATURES, LABELS, TARGET, Array, DataInfo

# What a model returns: a tensor, or several in a tuple or mapping, of which the first is the task's output.
Outputs: TypeAlias = Any


def first_output(outputs: Outputs) -> Tensor:
    """Return the output that is the task's own, (rows, ...).

    Raises:
        ModelError: There is no tensor.
    """
    first: Any = outputs
    if isinstance(outputs, Mapping | tuple | list):
        # Models of transformers give a loss first, or None in its place.
        first = next((one for one in _values(outputs) if one is not None and np.ndim(one)), None)
    if any(isinstance(one, SplitLogits) for one in _values(outputs)):
        raise ModelError(
            "distributed.plan.vocabulary: only the loss of language models can be computed from slices of "
            "logits; leave it out, or training.loss"
        )
    if not isinstance(first, Tensor):
        raise ModelError(
            f"the model returned {type(outputs).__name__}; it must return a tensor, or a tuple or mapping "
            "whose first value is one"
        )
    return first


def token_logits(outputs: Outputs) -> Tensor | SplitLogits:
    """Return the logits of tokens, (rows, length, tokens), or the slices of a split vocabulary."""
    split = next((one for one in _values(outputs) if isinstance(one, SplitLogits)), None)
    return first_output(outputs) if split is None else split


def model_loss(outputs: Outputs) -> Tensor:
    """Return the loss that the model returned itself, (): alone, first of several, or called `loss`.

    Raises:
        ModelError: There is none.
    """
    if isinstance(outputs, Mapping) or hasattr(outputs, "loss"):
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs.loss
    else:
        loss = outputs[0] if isinstance(outputs, tuple | list) and outputs else outputs
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss.reshape(())
    what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
    raise ModelError(
        f"training.loss: the model is to return its loss, but returned {what}: return one number, a tuple "
        "with it first, or a mapping with `loss`, in training and in evaluation mode; or name a loss of "
        "(outputs, batch), training.loss: MODULE:FUNCTION"
    )


def predicted(outputs: Outputs, rows: int) -> Array:
    """Return what a model returned for some rows: an array (rows, ...); of several a structured one, (rows,).

    Args:
        outputs: What it returned. Tensors of another length, such as its loss, are left out.
        rows: The number of rows.

    Raises:
        ModelError: There is nothing for each row.
    """
    named = outputs if isinstance(outputs, Mapping) else dict(enumerate(_values(outputs)))
    arrays = {
        str(name): one.cpu().numpy()
        for name, one in named.items()
        if isinstance(one, Tensor) and one.shape[:1] == (rows,) and name != "loss"
    }
    if not arrays:
        raise ModelError(f"the model returned no tensor with a value for each of {rows} rows to predict")
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    made = np.empty(rows, [(name, one.dtype, one.shape[1:]) for name, one in arrays.items()])
    for name, one in arrays.items():
        made[name] = one
    return made


def _values(outputs: Outputs) -> Iterable[Any]:
    """Return the outputs one by one."""
    if isinstance(outputs, Mapping):
        return outputs.values()
    return outputs if isinstance(outputs, tuple | list) else (outputs,)


def as_float(outputs: Outputs) -> Outputs:
    """Convert floating-point outputs to float32: autocast may have lowered their precision."""
    if isinstance(outputs, Tensor):
        return outputs.float() if outputs.is_floating_point() else outputs
    if isinstance(outputs, SplitLogits):
        return outputs.float()
    if isinstance(outputs, Mapping):
        return {name: as_float(value) for name, value in outputs.items()}
    return tuple(map(as_float, outputs)) if isinstance(outputs, tuple | list) else outputs


def in_float(loss: Callable[[Outputs, Tensors], Tensor]) -> Callable[[Outputs, Tensors], Tensor]:
    """Return a loss of outputs of any precision, computed in float32."""
    return lambda outputs, batch: loss(as_float(outputs), batch)


def class_logits(logits: Tensor) -> Tensor:
    """Return a logit for each class, (rows, classes); a single one, (rows, 1), is that of the second.

    The softmax of (0, z) is the logistic function of z, and the cross entropy is the binary one.
    """
    if logits.dim() > 1 and logits.shape[1] > 1:
        return logits
    return torch.stack([torch.zeros_like(single := logits.reshape(-1)), single], dim=1)


def input_names(model: torch.nn.Module, info: DataInfo, targets: Collection[str] = ()) -> list[str]:
    """Return the arrays of a batch that the model is called with: those that `forward` names.

    The others are for the loss. A single array beside `targets` is passed whatever its parameter is called.

    Raises:
        ModelError: `forward` names none of several arrays, or one that the data do not have.
    """
    inputs = [name for name in info.inputs if name not in targets]
    if len(inputs) == 1:
        return inputs
    # Models of transformers hand other arrays on to functions of theirs, and peft hides what they name.
    known = base_of(model)
    params = inspect.signature((model if known is None else known).forward).parameters
    takes_all = known is None and any(one.kind is one.VAR_KEYWORD for one in params.values())
    names = [name for name in inputs if takes_all or name in params]
    needed = [
        name
        for name, one in params.items()
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]
    if not names or set(needed) - set(names):
        advice = "name its parameters like the arrays that it needs"
        if needed == [FEATURES]:
            advice += ", or choose one of them in data.features"
        raise ModelError(
            f"the data have the arrays {', '.join(inputs)}, but {type(model).__name__}.forward takes "
            f"{', '.join(params)}: {advice}"
        )
    return names


def optional_names(model: torch.nn.Module, names: Sequence[str]) -> list[str]:
    """Return the targets that `forward` names, so that the model may return its loss.

    They are passed where a batch has them, which rows to predict do not.

    Args:
        model: The model.
        names: What `input_names` returned.
    """
    known = base_of(model)
    params = inspect.signature((model if known is None else known).forward).parameters
    return [name for name in (TARGET, LABELS) if name in params and [name] != [*names]]


def call_of(
    model: torch.nn.Module, names: Sequence[str], optional: Sequence[str] = ()
) -> Callable[[Tensors], Outputs]:
    """Return a function that calls the model with arrays of a batch: one by position, several by name.

    Those that are optional are passed by name where the batch has them.
    """
    if optional:
        given = [name for name in names if name not in optional]
        return lambda batch: model(
            *([batch[given[0]]] if len(given) == 1 else []),
            **{key: batch[key] for key in ([] if len(given) == 1 else given)},
            **{key: batch[key] for key in optional if key in batch},
        )
    if len(names) == 1:
        (name,) = names
        return lambda batch: model(batch[name])
    return lambda batch: model(**{name: batch[name] for name in names})
