"""A split region of a model: its forward pass runs once for each slice of this process.

Each slice is computed by the module's own code, with the parameters of the slice in place of the whole ones.
So every operation has the same shapes on any number of processes. Kernels round alike then: they depend on
shapes, and a vectorized one treats the last elements of a tensor otherwise than the others.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from trainwright.config.emit import inline
from trainwright.errors import ModelError
from trainwright.frameworks.torch.generators import generators, seed_generators
from trainwright.frameworks.torch.parallel.tensor import plan
from trainwright.frameworks.torch.parallel.tensor.cross_entropy import SplitLogits
from trainwright.frameworks.torch.parallel.tensor.slices import Slices
from trainwright.frameworks.torch.state.layout import local
from trainwright.order import stream_seed

# Messages of torch about sizes that do not fit.
_SIZES = re.compile(r"is invalid for input of size|split_with_sizes|must match the size")
_ALIGNMENT = 64  # bytes: kernels may round by it, and new tensors have it


class _Weight(NamedTuple):
    """A parameter of a region.

    Attributes:
        owner: The module that has it.
        name: Its name there.
        dim: The dimension along which it is split; None: each slice has the whole.
        fused: The number of parameters side by side, of each of which a slice has a part. If it is not 1,
            each process has all of them.
    """

    owner: nn.Module
    name: str
    dim: int | None
    fused: int = 1

    def slices(self, slices: Slices) -> Sequence[Tensor]:
        """Return the tensors of the slices of this process, from what the module has at this moment."""
        parameter = self.owner._parameters[self.name]
        assert parameter is not None
        if self.dim is None:
            return slices.copy(parameter)
        if self.fused > 1:
            apart = parameter.unflatten(self.dim, (self.fused, slices.virtual, -1))
            ordered = apart.transpose(self.dim, self.dim + 1).flatten(self.dim, self.dim + 2)
            return slices.scatter(ordered, self.dim)
        block = local(parameter)
        parts = (block,) if slices.count == 1 else block.chunk(slices.count, self.dim)
        return [_aligned(part) for part in parts]


class Parts(NamedTuple):
    """Tensors of which this process has one for each of its slices."""

    tensors: Sequence[Tensor]


def _aligned(part: Tensor) -> Tensor:
    """Return a slice as it would lie in memory if its process had no others."""
    if part.is_contiguous() and _address(part) % _ALIGNMENT == 0:
        return part
    return part.clone(memory_format=torch.contiguous_format)


def _address(part: Tensor) -> int:
    """Return where a tensor lies in memory; of one without memory, where it begins in that of the whole."""
    if part.untyped_storage().device.type == "meta":
        return int(part.storage_offset()) * part.element_size()
    return part.data_ptr()


class SlicedForward:
    """A forward pass that runs once for each slice of this process, in place of the module's own.

    Args:
        module: The module.
        name: Its name, for messages.
        slices: The slices.
    """

    def __init__(self, module: nn.Module, name: str, slices: Slices) -> None:
        self._module = module
        self._name = name or type(module).__name__
        self._slices = slices
        self._forward = module.forward
        functools.update_wrapper(self, module.forward)
        self._modules = list(module.modules())
        self._weights = [
            _Weight(part, own, None)
            for part in self._modules
            for own, parameter in part._parameters.items()
            if parameter is not None
        ]
        self._lock = threading.RLock()  # the module has one slice's parameters at a time

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.RLock()

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Compute what the module does, of whole tensors."""
        leaves, structure = pytree.tree_flatten((inputs, named), lambda one: isinstance(one, Parts))
        if any(hasattr(one, "get_seq_length") for one in leaves):  # slices would add to the same cache
            raise ModelError(
                f"{plan.KEY}: {self._name} cannot keep keys and values: call it with use_cache=False"
            )
        parts = [self._argument(one) for one in leaves]
        arguments = list(zip(*parts, strict=True)) or [()] * self._slices.count
        with self._lock:
            outputs = self._computed(arguments, structure)
            return self._whole(outputs, leaves)

    def _argument(self, leaf: Any) -> Sequence[Any]:
        """Return what each slice gets of an argument."""
        if isinstance(leaf, Parts):
            return leaf.tensors
        return self._parts(leaf) if isinstance(leaf, Tensor) else [leaf] * self._slices.count

    def _parts(self, whole: Tensor) -> Sequence[Tensor]:
        """Return an input for each slice."""
        return self._slices.copy(whole)

    def _whole(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> Any:
        """Return the output for those of the slices, and the inputs of the whole."""
        raise NotImplementedError

    def _run(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return the output of a slice, whose parameters the module has."""
        return self._forward(*inputs, **named)

    def _computed(self, arguments: Sequence[Sequence[Any]], structure: Any) -> list[Any]:
        """Return the outputs of the slices; the module is as it was afterwards."""
        weights = [weight.slices(self._slices) for weight in self._weights]
        held = [dict(part._parameters) for part in self._modules]
        is_training = any(part.training for part in self._modules)
        streams = _Streams(self._slices, arguments[0]) if is_training else None
        outputs = []
        try:
            for index, leaves in enumerate(arguments):
                for weight, parts in zip(self._weights, weights, strict=True):
                    weight.owner._parameters[weight.name] = parts[index]  # type: ignore[assignment]
                if streams is not None:
                    streams.begin(index)
                inputs, named = pytree.tree_unflatten(list(leaves), structure)
                outputs.append(self._run(inputs, named))
        finally:
            for part, parameters in zip(self._modules, held, strict=True):
                part._parameters.update(parameters)
            if streams is not None:
                streams.end()
        return outputs


class SequenceForward(SlicedForward):
    """The forward pass of a module that computes each slice of the tokens, (rows, length, ...), by itself."""

    def _parts(self, whole: Tensor) -> Sequence[Tensor]:
        return self._slices.scatter(whole, 1)

    def _whole(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> Any:
        length = next(one.shape[1] for one in inputs if isinstance(one, Tensor))
        return self._slices.gather(outputs, 1, length)


class VocabularyForward(SlicedForward):
    """The forward pass of an output layer, split by the tokens that its outputs stand for."""

    def __init__(self, module: nn.Module, name: str, slices: Slices) -> None:
        super().__init__(module, name, slices)
        self._weights = [_Weight(module, own, 0) for own in plan.split_dims(module, plan.COLWISE)]

    def _whole(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> Any:  # noqa: ARG002
        """Return the logits: in training the parts, for the loss alone."""
        if self._module.training and torch.is_grad_enabled():
            return SplitLogits(outputs, self._slices)
        return self._slices.gather(outputs, -1, self._slices.virtual * outputs[0].shape[-1])


class RegionForward(SlicedForward):
    """The forward pass of a split region.

    Args:
        module: The region.
        region: The plan for it.
        slices: The slices.
    """

    def __init__(self, module: nn.Module, region: plan.Region, slices: Slices) -> None:
        super().__init__(module, region.name, slices)
        prefix = f"{region.name}." if region.name else ""
        self._weights = []
        self._biases: list[_Weight] = []  # of row-wise layers: added once, to the sum
        for name, part in module.named_modules():
            layer = f"{prefix}{name}".removesuffix(".")
            style = region.styles.get(layer)
            dims = {} if style is None else plan.split_dims(part, style)
            for own, parameter in part._parameters.items():
                if parameter is None:
                    continue
                is_bias = style == plan.ROWWISE and own == "bias"
                weight = _Weight(part, own, dims.get(own), region.fused.get(layer, 1))
                (self._biases if is_bias else self._weights).append(weight)
        self._divided = [
            (module.get_submodule(name[len(prefix) :]), attribute) for name, attribute in region.divided
        ]
        output = region.output
        self._output = None if output is None else module.get_submodule(output[len(prefix) :])
        self._dropouts = [part for part in self._modules if isinstance(part, nn.modules.dropout._DropoutNd)]
        self._seen: list[Any] = []  # the outputs of the row-wise layer, while a slice is computed
        self._late: list[nn.Module] = []  # the dropout of the sum, while a pass lasts

    def _argument(self, leaf: Any) -> Sequence[Any]:
        """Return what each slice gets of an argument.

        Raises:
            ModelError: A row-wise layer by itself gets a whole tensor.
        """
        if isinstance(leaf, Tensor) and self._output is self._module:
            raise ModelError(
                f"{plan.KEY}: {self._name} is {plan.ROWWISE}, but gets what no {plan.COLWISE} layer has given"
            )
        return super()._argument(leaf)

    def _computed(self, arguments: Sequence[Sequence[Any]], structure: Any) -> list[Any]:
        numbers = [getattr(part, attribute) for part, attribute in self._divided]
        biases = [bias.owner._parameters[bias.name] for bias in self._biases]
        forwards = [vars(dropout).get("forward") for dropout in self._dropouts]
        try:
            for bias in self._biases:
                bias.owner._parameters[bias.name] = _without(bias)
            for (part, attribute), number in zip(self._divided, numbers, strict=True):
                setattr(part, attribute, number // self._slices.virtual)
            for dropout in self._dropouts:
                _set_forward(dropout, functools.partial(self._dropped, dropout, dropout.forward))
            return super()._computed(arguments, structure)
        finally:
            for bias, parameter in zip(self._biases, biases, strict=True):
                bias.owner._parameters[bias.name] = parameter
            for (part, attribute), number in zip(self._divided, numbers, strict=True):
                setattr(part, attribute, number)
            for dropout, forward in zip(self._dropouts, forwards, strict=True):
                _set_forward(dropout, forward)

    def _run(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return the output of a slice, which must be that of the row-wise layer.

        Dropout of it is left to the sum.

        Raises:
            ModelError: The module goes on computing with a part of a sum.
        """
        if self._output is None or self._output is self._module:
            return self._sliced(inputs, named)
        self._late.clear()
        hook = self._output.register_forward_hook(self._see)
        try:
            output = self._sliced(inputs, named)
            first = output[0] if isinstance(output, tuple) else output
            is_last = len(self._seen) == 1 and isinstance(first, Tensor) and _is_same(first, self._seen[0])
        finally:
            hook.remove()
            self._seen.clear()
        if not is_last:
            raise ModelError(
                f"{plan.KEY}: {self._name} computes more after its {plan.ROWWISE} layer, whose outputs are "
                "only a part of the sum there: move norm and residual out of it, into a module around it"
            )
        return output

    def _sliced(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return the output of the module's own code for a slice.

        Raises:
            ModelError: That code counts with numbers of the whole, such as all heads.
        """
        try:
            return self._forward(*inputs, **named)
        except RuntimeError as error:
            if not _SIZES.search(str(error)) or not (numbers := self._whole_numbers()):
                raise
            pattern = re.sub(r"\d+", "*", self._name)
            raise ModelError(
                f"{plan.KEY}: {self._name} fails with slices of its layers: {str(error).splitlines()[0]}; if "
                "its code counts with a number of the whole, such as its heads, give it in "
                f"{plan.KEY}.divided: {{{inline(pattern)}: [{numbers[0]}]}}; it has {', '.join(numbers)}"
            ) from error

    def _whole_numbers(self) -> list[str]:
        """Return the integer attributes of the region that slices could have a share of, and have not."""
        divided = {(id(part), attribute) for part, attribute in self._divided}
        named = {
            name: None
            for part in self._modules
            if type(part).__module__.partition(".")[0] != "torch"
            for name, value in vars(part).items()
            if type(value) is int and value >= self._slices.virtual and value % self._slices.virtual == 0
            if not name.startswith("_") and (id(part), name) not in divided
        }
        return sorted(named, key=lambda name: "head" not in name)

    def _see(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        self._seen.append(output)

    def _dropped(self, dropout: nn.Module, forward: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
        """Return what a module of dropout gives; of a part of a sum, return it, and have the sum dropped."""
        if self._seen and _is_same(values, self._seen[-1]):
            self._late.append(dropout)
            return values
        return forward(values)

    def _whole(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> Any:  # noqa: ARG002
        """Return the sum; what a module returns besides it is that of some heads, and left out."""
        is_tuple = isinstance(outputs[0], tuple)
        parts = [output[0] for output in outputs] if is_tuple else outputs
        total: Any = Parts(parts) if self._output is None else self._slices.sum(parts)
        for bias in self._biases:
            added = bias.owner._parameters[bias.name]
            assert added is not None
            total = total + added.to(total.dtype)
        for dropout in self._late:
            total = dropout(total)
        self._late.clear()
        return (total, *[None] * (len(outputs[0]) - 1)) if is_tuple else total


def _without(bias: _Weight) -> Any:
    """Return what a layer has instead of its bias: nothing, or zeros where it needs one."""
    parameter = bias.owner._parameters[bias.name]
    assert parameter is not None
    return torch.zeros_like(parameter, requires_grad=False) if plan.is_conv1d(bias.owner) else None


def _set_forward(module: nn.Module, forward: Any) -> None:
    """Give a module a forward pass of its own; None: that of its class."""
    if forward is None:
        vars(module).pop("forward", None)
    else:
        vars(module)["forward"] = forward


def _is_same(output: Tensor, seen: Any) -> bool:
    """Return whether a tensor is another one, or a view of all of it with the same features."""
    return (
        isinstance(seen, Tensor)
        and output.numel() == seen.numel()
        and output.shape[-1] == seen.shape[-1]
        and output.untyped_storage()._cdata == seen.untyped_storage()._cdata
        and output.storage_offset() == seen.storage_offset()
    )


class _Streams:
    """The random numbers of the slices: each draws from generators that are seeded by its number.

    One number is drawn for all of them, from the generator of the processor; so whatever the slices draw, the
    generators are the same afterwards in all processes.
    """

    def __init__(self, slices: Slices, arguments: Sequence[Any]) -> None:
        self._own = slices.own
        device = next(one.device for one in arguments if isinstance(one, Tensor))
        self._generators = generators(device)
        self._key = slices.key()
        self._states = [one.get_state() for one in self._generators]

    def begin(self, index: int) -> None:
        """Seed the generators for a slice of this process."""
        seed_generators(self._generators, stream_seed(self._key, self._own[index]))

    def end(self) -> None:
        """Put back the generators."""
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set_state(state)
