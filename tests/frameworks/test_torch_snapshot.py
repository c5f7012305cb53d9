"""What snapshots hold, by name, and the memory of the first ones."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from trainwright.config.training import EmaConfig
from trainwright.errors import ModelError
from trainwright.frameworks.torch.optim.ema import Average
from trainwright.frameworks.torch.precision import Precision
from trainwright.frameworks.torch.state import snapshot as module
from trainwright.frameworks.torch.state.layout import overlap
from trainwright.frameworks.torch.state.training import TrainingState, saved_architecture

FP32 = Precision("fp32", torch.device("cpu"))


def state_of(elements: int) -> TrainingState:
    """The state of plain gradient descent: the weights alone, of four bytes each."""
    model = nn.Module()
    model.register_parameter("weight", nn.Parameter(torch.zeros(elements)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return TrainingState(model, optimizer, FP32)


@pytest.mark.parametrize(("elements", "is_much"), [((2 << 20) - 1, False), (2 << 20, True)])
def test_sixteen_mebibytes_are_reserved(elements: int, is_much: bool) -> None:
    """Of the state and of the weights alone."""
    state = state_of(elements)
    state.reserve()
    assert (state._memory._reserving is not None) == is_much
    if state._memory._reserving is not None:
        assert (state._memory._reserving.name, state._memory._reserving.daemon) == (
            "trainwright-reserve",
            True,
        )
        state._memory._reserving.join()
    assert {alone: len(spare) for alone, spare in state._memory._spare.items()} == {
        False: int(is_much),
        True: int(is_much),
    }


class Slow:
    """Reserves memory no sooner than somebody waits for it."""

    def __init__(self, spare: list[Any], memory: Any) -> None:
        self._spare, self._memory = spare, memory

    def join(self) -> None:
        self._spare.append(self._memory)


def test_a_copy_waits_for_the_memory_that_is_reserved() -> None:
    state = state_of(3)
    memory = {"weights.safetensors": {"weight": torch.ones(3)}}
    state._memory._reserving = Slow(state._memory._spare[True], memory)  # type: ignore[assignment]
    copied = state.copy(weights_only=True)._files["weights.safetensors"]["weight"]
    assert copied is memory["weights.safetensors"]["weight"]
    assert copied.tolist() == [0.0] * 3
    assert state._memory._reserving is None


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


class Counting(nn.Module):
    """Has buffers that are not persistent, of its own and of a part."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor([3.0]), persistent=False)
        self.inner = nn.Linear(2, 1)
        self.inner.register_buffer("mask", torch.tensor([1.0, 0.0]), persistent=False)


def test_the_files_name_tensors_by_their_modules(tmp_path: Path) -> None:
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    TrainingState(model, optimizer, FP32).copy(weights_only=False).write(tmp_path)
    assert load_file(tmp_path / "weights.safetensors").keys() == {"inner.weight", "inner.bias"}
    others = load_file(tmp_path / "module.safetensors")
    assert {name: value.tolist() for name, value in others.items()} == {
        "buffers/count": [3.0],
        "buffers/inner.mask": [1.0, 0.0],
    }


def test_weights_alone_say_nothing_of_what_was_trained() -> None:
    """Only a resume goes on with what the model itself has frozen meanwhile."""
    model = nn.Linear(2, 1)
    state = TrainingState(model, torch.optim.SGD(model.parameters(), 0.1), FP32)
    model.bias.requires_grad_(False)
    assert "module.safetensors" not in state.files(weights_only=True)
    changes = state.files(weights_only=False)["module.safetensors"]["changes"]
    assert json.loads(bytes(changes.tolist())) == {"requires_grad": {"bias": False}}


def test_the_scale_of_gradients_is_restored(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    saved, restored = (Precision("fp16", torch.device("cpu")) for _ in range(2))
    saved.load({"scale": torch.tensor(4096.0), "steps": torch.tensor(0)})
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    TrainingState(model, optimizer, saved).copy(weights_only=False).write(tmp_path)
    assert load_file(tmp_path / "optimizer.safetensors").keys() == {"scaler/scale", "scaler/steps"}
    TrainingState(model, optimizer, restored).load(tmp_path, weights_only=False)
    assert restored.state()["scale"] == 4096.0


def test_a_tensor_that_becomes_sparse_while_it_trains_is_named() -> None:
    with pytest.raises(ModelError, match="tensor 'moments' of the model is sparse"):
        module.named_buffer("moments", torch.eye(2).to_sparse())


def test_an_empty_snapshot_writes_nothing(tmp_path: Path) -> None:
    """It is that of a process which owns no part of what is saved."""
    empty = module.TorchSnapshot(module.Owned({}), [])
    assert empty.write(tmp_path) == []
    empty.release()
    assert list(tmp_path.iterdir()) == []


def test_the_architecture_of_a_model_is_saved_with_it(tmp_path: Path) -> None:
    architecture = {"model_type": "bert", "hidden_size": 8}
    state = TrainingState(nn.Linear(2, 1), None, FP32, architecture=architecture)
    state.copy(weights_only=True).write(tmp_path)
    assert saved_architecture(tmp_path) == architecture


def test_an_average_begins_with_the_weights_that_are_given(tmp_path: Path) -> None:
    """A file of weights alone says nothing of an average."""
    given, model = nn.Linear(2, 1), nn.Linear(2, 1)
    TrainingState(given, None, FP32).copy(weights_only=True).write(tmp_path)
    average = Average(model, EmaConfig(decay=0.5))
    TrainingState(model, None, FP32, average=average).load(tmp_path, weights_only=True)
    with average.in_place():
        assert torch.equal(model.weight, given.weight)


class OwnOptimizer(torch.optim.SGD):
    """An optimizer of the user's own."""


class Cut(nn.Linear):
    """A module with a `state_dict` of its own: some tensors only, of another type, under other names."""

    def __init__(self, names: Mapping[str, str], dtype: torch.dtype = torch.float32) -> None:
        super().__init__(3, 2)
        self.register_buffer("mean", torch.ones(2))
        self.names, self.dtype = names, dtype

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        state = super().state_dict(*args, **kwargs)
        return {new: state[old].to(self.dtype) for old, new in self.names.items()}


@pytest.mark.parametrize(
    ("names", "dtype", "message"),
    [
        ("weight mean", torch.float32, r"leaves out bias, .* requires_grad=False"),
        ("weight bias", torch.float32, r"leaves out mean, .* persistent=False"),
        ("weight bias mean", torch.bfloat16, r"changes weight"),
    ],
)
def test_a_state_dict_that_loses_something_is_refused(names: str, dtype: torch.dtype, message: str) -> None:
    model = Cut({name: name for name in names.split()}, dtype)
    with pytest.raises(ModelError, match=f"the model's own state_dict {message}"):
        TrainingState(model, torch.optim.SGD(model.parameters(), 0.1), FP32).files(weights_only=True)
    # A model that is not trained loses nothing.
    assert TrainingState(model, None, FP32).files(weights_only=True)


def test_a_state_dict_may_have_other_names_and_leave_out_what_is_not_trained() -> None:
    model = Cut({"weight": "net.weight", "mean": "net.mean"})
    optimizer = torch.optim.SGD([model.weight], 0.1)
    files = TrainingState(model, optimizer, FP32).files(weights_only=True)
    assert list(files["weights.safetensors"]) == ["net.weight", "net.mean"]


def test_an_average_refuses_a_buffer_that_is_a_view_of_a_parameter() -> None:
    """A restore would write the weights into the average, or the average into the weights."""
    model = nn.Linear(4, 3)
    flat = torch.zeros(12)
    model.weight.data = flat[:12].view(3, 4)
    model.register_buffer("beside", torch.zeros(3))
    Average(model, EmaConfig(decay=0.5))
    model.register_buffer("row", model.weight.data[2], persistent=False)
    with pytest.raises(ModelError, match="buffer row shares its memory with the parameter weight"):
        Average(model, EmaConfig(decay=0.5))


def test_views_of_one_storage_overlap_where_their_elements_do() -> None:
    flat = torch.zeros(12)
    assert overlap(flat[:4], flat[3:])
    assert not overlap(flat[:4], flat[4:])
    assert not overlap(flat[:0], flat)
    assert not overlap(flat, torch.zeros(12))
    assert overlap(flat.view(3, 4).t(), flat[11:])
