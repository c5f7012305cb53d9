"""Memory for the first snapshots, and what a snapshot says of a model's architecture."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from trainyard.errors import ModelError
from trainyard.frameworks.torch import snapshot as module
from trainyard.frameworks.torch.precision import Precision
from trainyard.frameworks.torch.snapshot import TrainingState, saved_architecture


def state_of(elements: int) -> TrainingState:
    """The state of plain gradient descent: the weights alone, of four bytes each."""
    model = nn.Module()
    model.register_parameter("weight", nn.Parameter(torch.zeros(elements)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return TrainingState(model, optimizer, Precision("fp32", torch.device("cpu")))


@pytest.mark.parametrize(
    ("elements", "weights", "is_much"),
    [
        ((4 << 20) - 1, False, False),
        (4 << 20, False, True),
        ((2 << 20) - 1, True, False),
        (2 << 20, True, True),
    ],
)
def test_sixteen_mebibytes_are_reserved(elements: int, weights: bool, is_much: bool) -> None:
    """Of the state, and of the weights alone if there will be snapshots of them."""
    state = state_of(elements)
    state.reserve(weights=weights)
    assert (state._reserving is not None) == is_much
    if state._reserving is not None:
        assert (state._reserving.name, state._reserving.daemon) == ("trainyard-reserve", True)
        state._reserving.join()
    assert {alone: len(spare) for alone, spare in state._spare.items()} == {
        False: int(is_much),
        True: int(is_much and weights),
    }


def test_a_copy_waits_for_the_memory_that_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MUCH", 0)
    state = state_of(3)
    state.reserve()
    reserving = state._reserving
    assert reserving is not None
    state.copy(weights_only=True)
    assert not reserving.is_alive()
    assert state._reserving is None
    assert [len(state._spare[alone]) for alone in (False, True)] == [1, 0]


def test_a_byte_is_written_into_each_page_that_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the tensor's kind; pages have 4096 bytes."""
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *args, **how: empty_like(*args, **how).fill_(-1.7))
    for tensor in (torch.ones(3, 5).t(), torch.ones(0), torch.ones(5000, dtype=torch.float64)):
        memory = module._touched(tensor)
        assert (memory.shape, memory.dtype, memory.stride()) == (tensor.shape, tensor.dtype, tensor.stride())
        content = memory.as_strided((memory.numel(),), (1,)).view(torch.uint8)
        written = torch.nonzero(content == 0).flatten()
        assert written.tolist() == list(range(0, memory.nbytes, 4096))


def test_an_architecture_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "module.safetensors"
    with pytest.raises(ModelError, match="does not say what model it is of"):
        saved_architecture(tmp_path)
    save_file({"other": torch.zeros(1)}, path)
    with pytest.raises(ModelError, match="does not say what model it is of"):
        saved_architecture(tmp_path)
    text = json.dumps({"model_type": "gpt2"}).encode()
    save_file({"architecture": torch.tensor(list(text), dtype=torch.uint8)}, path)
    assert saved_architecture(tmp_path) == {"model_type": "gpt2"}
