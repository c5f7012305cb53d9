"""Layers that hold their weights in fewer bits, as plain buffers, and compute with kernels of torch.

A compressed layer is made with the shapes of the layer that it replaces, and filled by `encode` or by the
tensors of a file: so a compressed model opens with torch alone. Activations between layers are float32.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

GROUP = 32  # of the weights that share a scale in 4 bits
_VECTOR = 32  # inputs, in whose multiples torch's kernels of few bits count
_COLUMNS = 16  # outputs, likewise
_MOST = 127  # of a symmetric int8


class Range(NamedTuple):
    """The least and greatest value that a layer has got, or given, for the calibration rows."""

    low: float
    high: float

    def parameters(self) -> tuple[float, int]:
        """Return the scale and zero point of unsigned 7 bits, which no kernel overflows with."""
        low, high = min(self.low, 0.0), max(self.high, 0.0)
        scale = max((high - low) / _MOST, torch.finfo(torch.float32).tiny)
        return scale, round(-low / scale)


class Source(NamedTuple):
    """A layer to take the weights of.

    Attributes:
        layer: The layer.
        values: Its weight as a matrix, quantized by `CompressedLayer.config`; None: it is only cast.
        ranges: The ranges of its inputs and outputs.
    """

    layer: Any
    values: Values | None
    ranges: tuple[Range, Range]


class Values(NamedTuple):
    """Quantized weights: integers or float8 (rows, columns), and the scales (rows, groups) of them."""

    quantized: Tensor
    scale: Tensor


def _options(layer: nn.Conv2d) -> dict[str, Any]:
    """Return the options of a convolution, the padding as numbers.

    Raises:
        ValueError: The padding is not the same on both sides, or is not of zeros.
    """
    padding: Any = layer.padding
    if padding == "valid":
        padding = (0, 0)
    elif padding == "same":
        sides = [step * (size - 1) for step, size in zip(layer.dilation, layer.kernel_size, strict=True)]
        if any(side % 2 for side in sides):
            raise ValueError("its padding differs on the two sides")
        padding = tuple(side // 2 for side in sides)
    if layer.padding_mode != "zeros":
        raise ValueError(f"its padding is {layer.padding_mode}")
    return {"stride": layer.stride, "padding": padding, "dilation": layer.dilation, "groups": layer.groups}


@contextmanager
def _as_planned() -> Iterator[None]:
    """Silence the warning that tensors of quantized types will go, which torch gives once in a process.

    The versions that we support have them, and no other eager kernels multiply in int8 as fast.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*quantized tensor creation functions", UserWarning)
        yield


def _constant(values: Tensor) -> nn.Parameter:
    """Return a parameter that is not trained."""
    return nn.Parameter(values, requires_grad=False)


class CompressedLayer(nn.Module):
    """A layer in place of a `Linear`, `Conv2d` or `Embedding`.

    Args:
        layer: The layer; only shapes and options are taken from it.
    """

    takes: ClassVar[tuple[type[nn.Module], ...]] = (nn.Linear,)
    has_own_kernel: ClassVar[bool] = True  # which only torch has

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.options = _options(layer) if isinstance(layer, nn.Conv2d) else {}
        self.shape = tuple(layer.weight.shape)
        self.is_table = isinstance(layer, nn.Embedding)
        bias = getattr(layer, "bias", None)
        self.bias = None if bias is None else _constant(torch.zeros_like(bias))

    is_table: bool
    shape: tuple[int, ...]
    options: dict[str, Any]

    def encode(self, source: Source) -> None:
        """Take over the weights of a layer."""
        if self.bias is not None:
            self.bias.copy_(source.layer.bias)
        self._encode(source)
        self.prepare()

    def _encode(self, source: Source) -> None:
        raise NotImplementedError

    @staticmethod
    def config(api: Any) -> Any:
        """Return the config by which torchao quantizes the weight; None: it is only cast.

        Args:
            api: The module `torchao.quantization`.
        """

    def prepare(self) -> None:
        """Pack the weights as a kernel wants them, where one does; called whenever they were set."""

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.prepare()

    def __deepcopy__(self, memo: dict[int, Any]) -> CompressedLayer:
        """Return a copy; what a kernel has packed cannot be copied, and is packed again."""
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        nn.Module.__init__(made)
        for name, buffer in self._buffers.items():
            made.register_buffer(name, None if buffer is None else buffer.clone())
        for name, value in self._parameters.items():
            made.register_parameter(name, None if value is None else _constant(value.clone()))
        made.options, made.shape, made.is_table = dict(self.options), self.shape, self.is_table
        made.train(self.training)
        made.prepare()
        return made

    def extra_repr(self) -> str:
        """Return the shape."""
        return str(self.shape)


class Half(CompressedLayer):
    """A layer that computes in 16 bits, and gives float32."""

    takes = (nn.Linear, nn.Conv2d, nn.Embedding)
    has_own_kernel = False
    dtype: ClassVar[torch.dtype] = torch.float16

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self.weight = _constant(torch.zeros(self.shape, dtype=self.dtype))
        if self.bias is not None:
            self.bias = _constant(self.bias.to(self.dtype))

    def _encode(self, source: Source) -> None:
        self.weight.copy_(source.layer.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs (..., columns), float32, of inputs (..., rows)."""
        if self.is_table:
            return functional.embedding(inputs, self.weight).float()
        inputs = inputs.to(self.dtype)
        if self.options:
            return functional.conv2d(inputs, self.weight, self.bias, **self.options).float()
        return functional.linear(inputs, self.weight, self.bias).float()


class BFloat(Half):
    """A layer that computes in bfloat16, and gives float32."""

    dtype = torch.bfloat16


class _Scaled(CompressedLayer):
    """A layer with a quantized weight, and a scale for each of its outputs."""

    scale: Tensor

    @staticmethod
    def config(api: Any) -> Any:
        """Return symmetric int8, with a scale for each row."""
        return api.Int8WeightOnlyConfig()

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self.weight = _constant(torch.zeros(self.shape, dtype=torch.int8))
        self.register_buffer("scale", torch.ones(self.shape[0]))

    def _encode(self, source: Source) -> None:
        values = source.values
        assert values is not None
        self.weight.copy_(values.quantized.reshape(self.shape))
        self.scale.copy_(values.scale.reshape(-1))

    def _per_channel(self) -> Tensor:
        """Return the weight as torch's kernels take it."""
        zeros = torch.zeros(self.shape[0], dtype=torch.int64)
        with _as_planned():
            quantized: Tensor = torch._make_per_channel_quantized_tensor(
                self.weight.cpu(), self.scale.double().cpu(), zeros, 0
            )
        return quantized

    def _expanded(self) -> Tensor:
        """Return the weight in float32."""
        ones = (1,) * (len(self.shape) - 1)
        return self.weight.float() * self.scale.reshape(-1, *ones)


class Int8Dynamic(_Scaled):
    """A linear layer that multiplies int8 by int8; inputs are quantized by the range of each batch."""

    def prepare(self) -> None:
        """Pack the weight for the kernel."""
        self._packed = torch.ops.quantized.linear_prepack(self._per_channel(), self.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs (..., columns) of inputs (..., rows), float32."""
        outputs: Tensor = torch.ops.quantized.linear_dynamic(inputs.float(), self._packed, True)
        return outputs


class Int8Static(_Scaled):
    """A layer that multiplies int8 by int8; the ranges of inputs and outputs were measured."""

    takes = (nn.Linear, nn.Conv2d)
    ranges: Tensor

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self.register_buffer("ranges", torch.zeros(2, 2, dtype=torch.float64))

    def _encode(self, source: Source) -> None:
        super()._encode(source)
        self.ranges.copy_(torch.tensor(source.ranges))

    def prepare(self) -> None:
        """Pack the weight for the kernel."""
        got, gives = (Range(*pair) for pair in self.ranges.tolist())
        self._input, self._output = got.parameters(), gives.parameters()
        if not self.options:
            self._packed = torch.ops.quantized.linear_prepack(self._per_channel(), self.bias)
            return
        options = [list(self.options[name]) for name in ("stride", "padding", "dilation")]
        self._packed = torch.ops.quantized.conv2d_prepack(
            self._per_channel(), self.bias, *options, self.options["groups"]
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs (..., columns) of inputs (..., rows), float32."""
        if not self.options:
            outputs: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
                inputs.float(), *self._input, self._packed
            )
            return outputs
        quantized = torch.quantize_per_tensor(inputs.float(), *self._input, torch.quint8)
        outputs = torch.ops.quantized.conv2d(quantized, self._packed, *self._output)
        return outputs.dequantize()


class Int8Weight(_Scaled):
    """A layer with an int8 weight; a linear one multiplies in bfloat16, the others in float32."""

    takes = (nn.Linear, nn.Conv2d, nn.Embedding)

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs (..., columns) of inputs (..., rows), float32."""
        if self.is_table:
            return functional.embedding(inputs, self.weight).float() * self.scale[inputs][..., None]
        if self.options:
            return functional.conv2d(inputs.float(), self._expanded(), self.bias, **self.options)
        if self.shape[1] % _VECTOR:  # the kernel would read beyond the rows
            return functional.linear(inputs.float(), self._expanded(), self.bias)
        rows = inputs.reshape(-1, self.shape[1]).bfloat16()
        outputs = torch._weight_int8pack_mm(rows, self.weight, self.scale.bfloat16()).float()
        outputs = outputs.reshape(*inputs.shape[:-1], self.shape[0])
        return outputs if self.bias is None else outputs + self.bias


class Int4Weight(CompressedLayer):
    """A linear layer with a weight of 4 bits, two in a byte, and a scale for each 32 of a row."""

    scale: Tensor

    @staticmethod
    def config(api: Any) -> Any:
        """Return symmetric int4, with a scale for each group of a row."""
        int4 = torch.int4  # type: ignore[attr-defined]
        return api.IntxWeightOnlyConfig(weight_dtype=int4, granularity=api.PerGroup(GROUP))

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        rows, columns = self.shape
        if rows % _COLUMNS or columns % _VECTOR:
            raise ValueError(
                f"{columns} inputs and {rows} outputs are no multiples of {_VECTOR} and {_COLUMNS}"
            )
        self.weight = _constant(torch.zeros(rows, columns // 2, dtype=torch.uint8))
        self.register_buffer("scale", torch.ones(rows, columns // GROUP))

    def _encode(self, source: Source) -> None:
        values = source.values
        assert values is not None
        codes = (values.quantized.int() + 8).to(torch.uint8)  # (rows, columns), 0 to 15
        self.weight.copy_(codes[:, ::2] | codes[:, 1::2] << 4)
        self.scale.copy_(values.scale)

    def prepare(self) -> None:
        """Pack the weight for the kernel."""
        codes = torch.stack([self.weight & 15, self.weight >> 4], -1).reshape(self.shape).int()
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        both = torch.stack([self.scale, torch.zeros_like(self.scale)], -1)  # scales and zero points
        self._scales = both.transpose(0, 1).contiguous().bfloat16()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs (..., columns), float32, of inputs (..., rows), multiplied in bfloat16."""
        rows = inputs.reshape(-1, self.shape[1]).bfloat16()
        outputs: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self._packed, GROUP, self._scales)
        outputs = outputs.float().reshape(*inputs.shape[:-1], self.shape[0])
        return outputs if self.bias is None else outputs + self.bias


class Float8(CompressedLayer):
    """A layer with a float8 (e4m3) weight in its file, and one of float32 in memory.

    No kernel for the CPU takes float8, and to expand it at each call would take longer than the product.
    """

    takes = (nn.Linear, nn.Conv2d)
    has_own_kernel = False
    scale: Tensor

    @staticmethod
    def config(api: Any) -> Any:
        """Return e4m3, with a scale for each row."""
        return api.Float8WeightOnlyConfig()

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self.weight = _constant(torch.zeros(self.shape, dtype=torch.uint8))  # the bits of float8
        self.register_buffer("scale", torch.ones(self.shape[0]))

    def _encode(self, source: Source) -> None:
        values = source.values
        assert values is not None
        self.weight.copy_(values.quantized.view(torch.uint8).reshape(self.shape))
        self.scale.copy_(values.scale.reshape(-1))

    def prepare(self) -> None:
        """Expand the weight."""
        ones = (1,) * (len(self.shape) - 1)
        self._expanded = self.weight.view(torch.float8_e4m3fn).float() * self.scale.reshape(-1, *ones)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs (..., columns) of inputs (..., rows), float32."""
        if self.options:
            return functional.conv2d(inputs, self._expanded, self.bias, **self.options)
        return functional.linear(inputs, self._expanded, self.bias)


LAYERS: Mapping[str, type[CompressedLayer]] = {
    "int8-dynamic": Int8Dynamic,
    "int8-static": Int8Static,
    "int8-weight-only": Int8Weight,
    "int4-weight-only": Int4Weight,
    "fp16": Half,
    "bf16": BFloat,
    "fp8": Float8,
}
