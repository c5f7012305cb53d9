"""Copies of tensors that keep their strides, dtypes and shared elements."""

import pytest
import torch

from trainwright.frameworks.torch.state.layout import (
    copy_into,
    is_dense,
    is_expanded,
    like,
    with_strides,
    writable,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("tensor", "dense"),
    [
        (torch.empty(0, 3)[:, ::2], True),  # of no element, none is missing
        (torch.zeros(4)[::2][:1], True),
        (torch.zeros(4, 4)[:1, ::2], False),
        (torch.zeros(4, 4)[:, :1], False),
        (torch.zeros(1, 4)[:, ::2], False),
        (torch.zeros(1, 3, 1, 2), True),
        (torch.zeros(3, 1, 2).transpose(0, 2), True),
        (torch.zeros(1).expand(1), True),
        (torch.zeros(1).expand(2), False),
    ],
)
def test_dense_tensors_fill_one_block(tensor: torch.Tensor, dense: bool) -> None:
    elements = {
        tensor.storage_offset() + sum(i * s for i, s in zip(index, tensor.stride(), strict=True))
        for index in torch.cartesian_prod(*[torch.arange(n) for n in tensor.shape])
        .reshape(-1, tensor.dim())
        .tolist()
    }
    fills = len(elements) == tensor.numel() and (
        not elements or max(elements) - min(elements) + 1 == len(elements)
    )
    assert fills == dense, "the case itself"
    assert is_dense(tensor) == dense


@pytest.mark.parametrize(
    ("tensor", "expanded"),
    [
        (torch.zeros(2, 3), False),
        (torch.zeros(1, 3).expand(2, 3), True),
        (torch.zeros(2, 1).expand(2, 3), True),
        (torch.zeros(3).expand(1, 3), False),
        (torch.zeros(1).as_strided((1, 1), (0, 0)), False),
        (torch.nn.parameter.UninitializedParameter(), False),
    ],
)
def test_expanded_tensors_share_elements(tensor: torch.Tensor, expanded: bool) -> None:
    assert is_expanded(tensor) == expanded


def test_elements_that_share_memory_get_the_first_value() -> None:
    source = torch.arange(24.0).reshape(2, 3, 4)
    target = torch.zeros(2, 1, 1).expand(2, 3, 4)
    copy_into(target, source)
    assert torch.equal(target[:, 0, 0], source[:, 0, 0])
    assert torch.equal(target, source[:, :1, :1].expand(2, 3, 4))
    one = torch.zeros(1).as_strided((1, 1), (0, 0))  # a stride of 0 over a single element
    copy_into(one, torch.full((1, 1), 7.0))
    assert one.item() == 7.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_a_copy_has_the_strides_and_the_dtype_that_are_asked_for(dtype: torch.dtype) -> None:
    source = torch.arange(6).reshape(2, 3).to(dtype)
    copy = with_strides(source, [1, 2], CPU)
    assert (copy.stride(), copy.dtype) == ((1, 2), dtype)
    assert torch.equal(copy, source)
    rows = with_strides(copy, None, CPU)
    assert (rows.stride(), rows.dtype) == ((3, 1), dtype)
    assert torch.equal(rows, source)


def test_copies_are_made_on_the_device_that_is_asked_for() -> None:
    meta = torch.device("meta")
    source = torch.zeros(2, 3, dtype=torch.float64)
    for copy in (
        with_strides(source, [1, 2], meta),
        with_strides(source, None, meta),
        like(source, source, meta),
    ):
        assert copy.device == meta


def test_moments_have_the_layout_of_their_parameter_and_their_own_dtype() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last))
    moment = like(torch.arange(96, dtype=torch.float64).reshape(2, 3, 4, 4), parameter, CPU)
    expected = torch.zeros_like(parameter)
    assert (moment.stride(), moment.dtype) == (expected.stride(), torch.float64)
    assert not moment.requires_grad
    assert torch.equal(moment, torch.arange(96, dtype=torch.float64).reshape(2, 3, 4, 4))
    step = like(torch.tensor(3.0), parameter, CPU)
    assert (step.shape, step.item()) == (torch.Size([]), 3.0)


def test_expanded_tensors_can_be_written_and_stay_expanded() -> None:
    expanded, plain = torch.zeros(1, 3).expand(2, 3), torch.zeros(2)
    before = expanded.data_ptr()
    values = torch.arange(6.0).reshape(2, 3)
    with pytest.raises(RuntimeError, match="single memory location"):
        expanded.copy_(values)
    with writable([expanded, plain]):
        expanded.copy_(values)
        plain.fill_(6.0)
    assert (expanded.stride(), expanded.data_ptr()) == ((0, 1), before)
    assert expanded.tolist() == [[0.0, 1.0, 2.0]] * 2
    assert plain.tolist() == [6.0, 6.0]
