"""Batch normalization over a whole batch that is computed in virtual ranks.

Its statistics are sums over all virtual ranks (Ioffe and Szegedy, ICML 2015), as those of torch's
SyncBatchNorm are sums over all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from trainwright.errors import ModelError
from trainwright.frameworks.base import LearnerInputs
from trainwright.frameworks.torch.generators import generators
from trainwright.frameworks.torch.parallel.lockstep import Lockstep
from trainwright.frameworks.torch.parallel.strategy import Strategy
from trainwright.frameworks.torch.state.unsaved import INTERNAL, recomputed

T = TypeVar("T")
_OWN_FORWARDS = {_BatchNorm.forward, nn.SyncBatchNorm.forward}


def _layers(module: nn.Module) -> dict[str, _BatchNorm]:
    """Return the layers that normalize over the batch, by name."""
    return {name: part for name, part in module.named_modules() if isinstance(part, _BatchNorm)}


def has_batch_norms(module: nn.Module) -> bool:
    """Return whether a model normalizes over the batch."""
    return bool(_layers(module))


def batch_norms_of(
    module: nn.Module, inputs: LearnerInputs, device: torch.device, strategy: Strategy
) -> BatchNorms | None:
    """Return the batch normalization of a model over virtual ranks, or None if it needs none.

    Raises:
        ModelError: The model normalizes over the batch in a way that cannot be divided.
    """
    ranks, layers = inputs.config.distributed.virtual.data, _layers(module)
    assert isinstance(ranks, int), "config.load resolves auto"
    if ranks == 1 or not layers:
        return None
    key = "distributed.virtual.data"
    for name, layer in layers.items():
        if type(layer).forward not in _OWN_FORWARDS or "forward" in vars(layer):
            raise ModelError(
                f"{key}: {name} ({type(layer).__name__}) normalizes over the batch in its own "
                "way, which cannot be split into virtual ranks; leave virtual out, or use torch's "
                "own batch normalization"
            )
    name = next(iter(layers))  # for the messages below
    for parameter_name, parameter in module.named_parameters():
        if parameter._post_accumulate_grad_hooks:
            raise ModelError(
                f"{key}: {name} normalizes over the batch, and then post-accumulate hooks, as "
                f"on the gradient of {parameter_name}, would not be called; leave out virtual, or "
                "the hooks"
            )
    mine = ranks // strategy.groups
    if mine > 1 and (device.type == "cuda" or strategy.passes_communicate):
        where = "on a GPU" if device.type == "cuda" else f"under {inputs.config.distributed.strategy}"
        raise ModelError(
            f"{key}: {name} normalizes over the batch; {where} each process then computes one virtual rank; "
            f"set distributed.nproc to {ranks}, or virtual.data to {strategy.groups}"
        )
    training, rows = inputs.config.training, inputs.order.samples
    micro = training.largest_microbatch
    for batch in inputs.order.batch_sizes:
        sizes = {batch // ranks, -(-batch // ranks)}
        if 0 in sizes or len({-(-size // micro) for size in sizes}) > 1:
            raise ModelError(
                f"{key}: {name} normalizes over the batch, so all {ranks} parts of a batch need equally many "
                f"microbatches; {rows} rows in batches of {training.batch_size} leave one of {batch}; "
                "change training.batch_size or microbatch_size, or set training.drop_last"
            )
    return BatchNorms(module, layers, Lockstep(generators(device), inputs.world, mine))


class BatchNorms:
    """The batch normalization layers of a model, synchronized over all virtual ranks by a `Lockstep`."""

    def __init__(self, module: nn.Module, layers: Mapping[str, _BatchNorm], lockstep: Lockstep) -> None:
        self._module = module
        self._layers = list(layers.values())
        self._lockstep = lockstep
        self._attributes: dict[str, Any] | None = None  # of the modules, before the first step
        self._is_checked = False

    def run(self, functions: Sequence[Callable[[], T]]) -> list[T]:
        """Call one function for each virtual rank of this process, with the layers synchronized meanwhile.

        Raises:
            ModelError: Some normalize more often than others, or `forward` keeps values in attributes.
        """
        self._attributes = None if self._is_checked else _attributes(self._module)
        for layer in self._layers:
            layer.__dict__["forward"] = partial(self._normalize, layer)
        try:
            results = self._lockstep.run(functions)
            self._is_checked = True
            return results
        finally:
            for layer in self._layers:
                del layer.__dict__["forward"]

    def _normalize(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Do what `layer.forward` does; x and the result are (samples, channels, ...)."""
        has_statistics = layer.running_mean is not None and layer.running_var is not None
        if not layer.training and has_statistics:
            return type(layer).forward(layer, x)
        self._check_attributes()
        layer._check_input_dim(x)
        total = partial(self._lockstep.total, self._layers.index(layer))
        normalized: Tensor
        normalized, mean, variance, count = _Normalize.apply(x, layer.weight, layer.bias, layer.eps, total)  # type: ignore[no-untyped-call]
        if has_statistics and self._lockstep.rank == 0:  # once in each process
            _update_statistics(layer, mean, variance, count)
        return normalized

    def _check_attributes(self) -> None:
        """Refuse values that `forward` keeps in attributes here: the virtual ranks would mix them up."""
        if self._attributes is None:
            return
        for name, (value, size) in _attributes(self._module).items():
            before, size_before = self._attributes.get(name, (None, 0))
            if value is not before or size != size_before:
                raise ModelError(
                    f"distributed.virtual.data: forward keeps {name} in an attribute while it normalizes "
                    "over the batch, and the virtual ranks would mix it up; use a local variable, or leave "
                    "distributed.virtual out"
                )


def _attributes(module: nn.Module) -> dict[str, tuple[Any, int]]:
    """Return the modules' own attributes by dotted name, each with its length if it is a container."""
    return {
        f"{prefix}.{name}" if prefix else name: (
            value,
            len(value) if isinstance(value, list | dict | set) else 0,
        )
        for prefix, part in module.named_modules()
        for name, value in vars(part).items()
        if name not in INTERNAL | recomputed(part) and not isinstance(part, _BatchNorm)
    }


class _Normalize(torch.autograd.Function):
    """Normalize the channels of one virtual rank by the mean and variance over all virtual ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        total: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, ...]:
        """Return x normalized, (samples, channels, ...), with mean, variance, (channels,), and count, ()."""
        axes, shape = [0, *range(2, x.dim())], [1, -1, *[1] * (x.dim() - 2)]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        count = wide.new_tensor([x.numel() // x.shape[1]])
        sums = total(torch.cat([wide.sum(axes), count]))  # (channels + 1,)
        mean, count = sums[:-1] / sums[-1], sums[-1].clone()  # (channels,), ()
        centered = wide - mean.view(shape)
        variance = total((centered * centered).sum(axes)) / count  # (channels,)
        scale = torch.rsqrt(variance + eps)
        normalized = centered * scale.view(shape)
        ctx.save_for_backward(normalized, scale, weight, count)
        ctx.total, ctx.has_bias = total, bias is not None
        result = normalized
        if weight is not None:
            result = result * weight.view(shape)
        if bias is not None:
            result = result + bias.view(shape)
        ctx.mark_non_differentiable(mean, variance, count)
        return result.to(x.dtype), mean, variance, count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients; mean and variance depend on the samples of all virtual ranks."""
        normalized, scale, weight, count = ctx.saved_tensors
        axes, shape = [0, *range(2, gradient.dim())], [1, -1, *[1] * (gradient.dim() - 2)]
        wide = gradient.to(normalized.dtype)
        for_bias = wide.sum(axes)  # (channels,)
        for_weight = (wide * normalized).sum(axes)  # (channels,)
        means = ctx.total(torch.cat([for_bias, for_weight])) / count  # (2 channels,)
        of_bias, of_weight = (one.view(shape) for one in means.chunk(2))
        factor = scale if weight is None else scale * weight
        for_x = (wide - of_bias - normalized * of_weight) * factor.view(shape)
        return (
            for_x.to(gradient.dtype),
            None if weight is None else for_weight.to(weight.dtype),
            for_bias if ctx.has_bias else None,
            None,
            None,
        )


def _update_statistics(layer: _BatchNorm, mean: Tensor, variance: Tensor, count: Tensor) -> None:
    """Update the running mean and the running (unbiased) variance, as `_BatchNorm.forward` does."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    momentum = layer.momentum
    if layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
        if momentum is None:
            momentum = 1.0 / float(layer.num_batches_tracked)
    unbiased = variance * (count / (count - 1))
    layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), momentum or 0.0)
    layer.running_var.lerp_(unbiased.to(layer.running_var.dtype), momentum or 0.0)
