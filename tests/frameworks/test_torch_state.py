"""What a checkpoint of torch holds.

Memory layouts, buffers, extra state, and the warning about what it does not hold.
"""

import json
import random
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from test_torch_reference import INIT, seed_torch
from torch import nn

import trainwright
from small_runs import SMALL, assert_same, checkpoints, crashed, preempted
from trainwright.config import load
from trainwright.config.schema import TrainingConfig
from trainwright.digest import tensor_records
from trainwright.errors import CheckpointError, ModelError
from trainwright.frameworks.base import Learner, ModelInputs
from trainwright.frameworks.support import fingerprint
from trainwright.frameworks.torch.optim.build import build_optimizer
from trainwright.frameworks.torch.precision import Precision
from trainwright.frameworks.torch.state import optimizer as optimizer_state
from trainwright.frameworks.torch.state import training as training_state
from trainwright.frameworks.torch.state.layout import is_dense
from trainwright.frameworks.torch.state.optimizer import OptimizerState
from trainwright.frameworks.torch.state.training import TrainingState
from trainwright.frameworks.torch.state.unsaved import fingerprints
from trainwright.reports.summary import summary_table
from trainwright.runs.catalog import Catalog
from trainwright.runs.objects import Objects
from trainwright.runs.run import Run
from trainwright.runs.wiring import build, interruptible

MODULES = """
import array
import contextvars
import datetime
import functools
import itertools
import random
import threading
from collections import deque

import numpy as np
import stateful_helper
import torch
from torch import nn


class Net(nn.Module):
    "An input of four features to three classes, with something in between."

    def __init__(self, in_features, out_features):
        super().__init__()
        self.first = nn.Linear(in_features, 8)
        self.last = nn.Linear(8, out_features)

    def between(self, x):
        return x

    def forward(self, x):
        return self.last(self.between(torch.relu(self.first(x))))


# -- memory layouts

class Transposed(Net):
    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.first.weight = nn.Parameter(torch.randn(in_features, 8).t())


class ChannelsLast(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 2, padding=1)
        self.narrow = nn.Conv2d(6, 5, 1)
        self.norm = nn.BatchNorm2d(5)
        self.last = nn.Linear(45, out_features)
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        x = x.reshape(-1, 2, 2, 1).expand(-1, -1, -1, 2).contiguous(memory_format=torch.channels_last)
        return self.last(torch.relu(self.norm(self.narrow(self.conv(x)))).flatten(1))


class Lazy(Net):
    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.last = nn.LazyLinear(out_features)


class Gaps(Net):
    "A weight that is a view with gaps of a larger piece of memory."

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.first.weight = nn.Parameter(torch.randn(8, in_features + 3)[:, :in_features])


class OneStorage(Net):
    "Two parameters and a buffer that are views of one piece of memory."

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        memory = torch.randn(8 * in_features + 8)
        self.first.weight = nn.Parameter(memory[: 8 * in_features].view(8, in_features))
        self.first.bias = nn.Parameter(memory[8 * in_features :])
        self.register_buffer("same", self.first.weight.data.view(-1), persistent=False)

    def between(self, x):
        return x * (1 + 0.1 * self.same.sum())


class Expanded(Net):
    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.register_buffer("scale", torch.ones(1).expand(8))
        self.register_buffer("rows", torch.ones(1, 8).expand(3, 8), persistent=False)
        self.frozen = nn.Parameter(torch.ones(8, 1).expand(8, 2), requires_grad=False)

    def between(self, x):
        if self.training:
            self.scale[:1] *= 0.99
            self.rows[0] += 0.01
            self.frozen.data[:, 0] *= 0.98
        return x * self.scale * self.rows[1] * self.frozen[:, 1]


class Turning(Net):
    "Buffers whose layout, shape and dtype change in training."

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.register_buffer("table", torch.zeros(8, 2))
        self.register_buffer("history", torch.zeros(0), persistent=False)
        self.register_buffer("later", None, persistent=False)

    def between(self, x):
        if self.training:
            self.table = (self.table + 0.01).t().contiguous().t()
            self.history = torch.cat([self.history, x.detach().mean().reshape(1)])
            self.later = x.detach().mean(0).double()
            if not hasattr(self, "new"):
                self.register_buffer("new", torch.ones(2, 8).t(), persistent=False)
            self.new += 0.01
        noise = self.history.sum() + (0 if self.later is None else self.later.sum().float())
        return x * (1 + 0.01 * noise + self.table.sum()) * getattr(self, "new", torch.ones(8, 2))[:, 0]


class Growing(Net):
    "Persistent buffers that grow, appear, change their dtype, or vanish."

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.register_buffer("history", torch.zeros(0))
        self.register_buffer("later", None)
        self.register_buffer("precise", torch.zeros(8))
        self.register_buffer("gone", torch.ones(8))
        self.register_buffer("passing", torch.ones(8), persistent=False)

    def between(self, x):
        if self.training:
            self.history = torch.cat([self.history, x.detach().mean().reshape(1)])
            self.later = x.detach().mean(0) + (0 if self.later is None else self.later)
            self.precise = self.precise.double() + 0.1
            if not hasattr(self.last, "new"):
                self.last.register_buffer("new", torch.ones(2, 8).t())
            self.last.new += 0.01
        state = self.history.sum() + (0 if self.later is None else self.later) + self.precise.float()
        for one in (self.gone, self.passing):
            state = state if one is None else state + one
        if self.training:
            self.gone = self.passing = None
        return x * (1 + 0.01 * state) * getattr(self.last, "new", torch.ones(8, 2))[:, 0]


class Small(Net):
    "Parameters without dimensions and without elements, and one that is another's transpose."

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.scalar = nn.Parameter(torch.tensor(1.0))
        self.nothing = nn.Parameter(torch.zeros(0, 3))
        self.turned = nn.Parameter(self.last.weight.data.t())

    def between(self, x):
        return x * self.scalar + self.nothing.sum() + 0.1 * self.turned.sum()


class Half(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.last = nn.Linear(in_features, out_features)
        self.register_buffer("phase", torch.zeros(3, dtype=torch.complex64), persistent=False)

    def forward(self, x):
        return self.last(x)


class Odd(Net):
    "Has a tensor of a kind that needs care."

    def __init__(self, in_features, out_features, kind):
        super().__init__(in_features, out_features)
        self.kind = kind
        if kind == "sparse buffer":
            self.register_buffer("odd", torch.eye(8).to_sparse())
        if kind == "compressed":
            self.register_buffer("odd", torch.eye(8).to_sparse_csr())
        if kind == "sparse parameter":
            self.odd = nn.Parameter(torch.eye(8).to_sparse())
        if kind in ("meta", "meta buffer"):
            values = torch.zeros(8, device="meta")
            self.odd = nn.Parameter(values) if kind == "meta" else nn.Buffer(values)
        if kind == "negative view":
            self.register_buffer("odd", torch._neg_view(torch.ones(8)))
        if kind == "sparse gradients":
            self.odd = nn.Embedding(4, 8, sparse=True)
        if kind == "expanded":
            self.odd = nn.Parameter(torch.zeros(1).expand(8))

    def between(self, x):
        if self.kind == "sparse buffer":
            return torch.sparse.mm(self.odd, x.t()).t()
        return x + (self.odd((x[:, 0] > 1).long()) if self.kind == "sparse gradients" else self.odd)


# -- what is kept beside the weights

class Flags(Net):
    "A layer that is frozen until step 3, and a dropout that is turned off for good in step 2."

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.drop = nn.Dropout(0.5)
        self.first.requires_grad_(False)
        self.register_buffer("count", torch.zeros(()))

    def between(self, x):
        if self.training:
            self.count += 1
            if self.count == 2:
                self.drop.eval()
            if self.count == 3:
                self.first.requires_grad_(True)
        return self.drop(x)


class Counts(Net):
    "Counts in evaluations, too: in a buffer, in its extra state, and by a buffer that it replaces."

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(1).expand(8), persistent=False)
        self.extra = 0

    def between(self, x):
        self.count += 1
        self.replaced = self.replaced + 1
        self.extra += 1
        return x * (1 + 0.01 * self.count + 0.01 * self.extra) + 0.01 * self.replaced

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


class LateParameter(Net):
    def __init__(self, in_features, out_features, step):
        super().__init__(in_features, out_features)
        self.step, self.count = step, 0

    def between(self, x):
        self.count += self.training
        if self.count == self.step:
            self.late = nn.Parameter(torch.ones(8))
        return x


class Mean(Net):
    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.register_buffer("mean", torch.zeros(8), persistent=False)

    def between(self, x):
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x - self.mean


class Extra(Net):
    "Keeps a count, a generator and a table in its extra state."

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.count, self.table = 0, {"a": [1.5, None, "x"]}
        self.random = np.random.default_rng(5)

    def between(self, x):
        if self.training:
            self.count += 1
            self.table["a"][0] *= 0.9
            x = x + self.random.normal()
        return x * (1 + 0.1 * self.count + self.table["a"][0])

    def get_extra_state(self):
        return {"count": self.count, "table": self.table, "random": self.random.bit_generator.state}

    def set_extra_state(self, state):
        self.count, self.table = state["count"], state["table"]
        self.random.bit_generator.state = state["random"]


class ExtraTensor(Net):
    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.random = torch.Generator().manual_seed(3)

    def between(self, x):
        return x + torch.rand(8, generator=self.random) if self.training else x

    def get_extra_state(self):
        return self.random.get_state()

    def set_extra_state(self, state):
        self.random.set_state(state)


class ExtraTuple(Net):
    def get_extra_state(self):
        return {"pair": (1, 2)}

    def set_extra_state(self, state):
        pass


# -- what no checkpoint holds

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, x):
        self.count += self.training
        return x * (1 + 0.1 * self.count)


class Ema:
    def __init__(self):
        self.values = [torch.zeros(8)]


class Forgets(Net):
    "Has state of one kind, `kind`."

    def __init__(self, in_features, out_features, kind):
        super().__init__(in_features, out_features)
        self.kind = kind
        self.state = {
            "number": 0.0, "tensor": torch.zeros(8), "array": np.zeros(8), "list": [0, [1.0]], "deque": deque(maxlen=4),
            "dict": {"a": torch.zeros(8)}, "numpy": np.random.default_rng(1), "legacy": np.random.RandomState(1),
            "python": random.Random(1), "torch": torch.Generator().manual_seed(1), "text": "", "set": set(),
            "object": Ema(), "constant": 1.0, "global": torch.default_generator, "view": self.first.weight.data.view(-1),
            "parameters": [self.first.weight], "module": None, "unregistered": [nn.BatchNorm1d(8)], "int": np.int64(0),
        }[kind]
        if kind == "module":
            self.layer = nn.Sequential(Layer())

    def between(self, x):
        if not self.training:
            return x
        kind, state = self.kind, self.state
        if kind == "number":
            self.state = 0.9 * state + x.mean().item()
        elif kind == "int":
            self.state = state + 1
        elif kind == "tensor":
            self.state = 0.9 * state + x.detach().mean(0)
        elif kind == "array":
            state += 1
        elif kind == "list":
            state[1][0] += 1
        elif kind == "deque":
            state.append(x.mean().item())
        elif kind == "dict":
            state["a"] += 1
        elif kind == "numpy":
            x = x + state.normal()
        elif kind == "legacy":
            x = x + state.normal()
        elif kind == "python":
            x = x + state.random()
        elif kind == "torch":
            x = x + torch.rand(8, generator=state)
        elif kind == "global":
            x = x + torch.rand(8, generator=state) + random.random() + np.random.normal()
        elif kind == "text":
            self.state += "x"
        elif kind == "set":
            state.add(len(state))
        elif kind == "object":
            state.values[0] += 1
        elif kind == "module":
            x = self.layer(x)
        elif kind == "unregistered":
            state[0](x)
        return x


class Slots:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0

    def tick(self):
        self.count += 1


class Items(list):
    count = 0


class Hook:
    count = 0

    def __call__(self, module, inputs, outputs):
        self.count += module.training


def closure():
    count = 0

    def tick():
        nonlocal count
        count += 1

    return tick


def tick(state):
    state[0] += 1


def endless():
    while True:
        yield 1


class Statistics:
    count = 0


class Decays:
    count = 0

    def __call__(self, value):
        self.count += 1


calls, kept, local, context = 0, [0], threading.local(), contextvars.ContextVar("context", default=0)


def count_a_call():
    global calls
    calls += 1


class Hides(Net):
    "Has state in a place that is not a plain attribute, `kind`."

    seen = [0]

    def __init__(self, in_features, out_features, kind):
        super().__init__(in_features, out_features)
        self.kind = kind
        flat = torch.zeros(16)
        self.slice = nn.Parameter(flat[:8])
        self.state = {
            "rest of a storage": flat, "sparse": torch.eye(8).to_sparse(), "slots": Slots(), "items": Items(),
            "bytes": bytearray(2), "array": array.array("d", [0]), "partial": functools.partial(tick, [0]),
            "closure": closure(), "method": Slots().tick, "count": itertools.count(), "generator": endless(),
            "distribution": torch.distributions.Normal(torch.zeros(1), 1),
            "optimizer": torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1, momentum=0.9),
            "date": datetime.date(2000, 1, 1), "local": local, "context": context,
        }.get(kind)
        if kind == "hook":
            self.first.register_forward_hook(Hook())
        if kind == "hook of a gradient":
            self.first.weight.register_hook(Decays())
        if kind == "hook of a finished gradient":
            self.first.weight.register_post_accumulate_grad_hook(Decays())

    def between(self, x, counted=[0]):
        kind, state = self.kind, self.state
        if not self.training:
            return x
        if kind == "default":
            counted[0] += 1
        elif kind == "function":
            Hides.between.count = getattr(Hides.between, "count", 0) + 1
        elif kind == "global":
            kept[0] += 1
        elif kind == "global of another function":
            count_a_call()
        elif kind == "another class":
            Statistics.count += 1
        elif kind == "another module":
            stateful_helper.count += 1
        elif kind == "local":
            state.count = getattr(state, "count", 0) + 1
        elif kind == "context":
            state.set(state.get() + 1)
        elif kind == "rest of a storage":
            state[8:] += 1
        elif kind == "sparse":
            self.state = state * 2
        elif kind == "slots":
            state.tick()
        elif kind == "items":
            state.count += 1
        elif kind in ("bytes", "array"):
            state[0] += 1
        elif kind in ("partial", "closure", "method"):
            state()
        elif kind in ("count", "generator"):
            next(state)
        elif kind == "distribution":
            state.loc = state.loc + 1
        elif kind == "optimizer":
            state.param_groups[0]["params"][0].grad = torch.ones(1)
            state.step()
        elif kind == "date":
            self.state += datetime.timedelta(days=1)
        elif kind == "class":
            Hides.seen[0] += 1
        elif kind == "of a parameter":
            self.first.weight.count = getattr(self.first.weight, "count", 0) + 1
        return x + self.slice


class Normed(Net):
    "Weights that torch computes again in each forward pass."

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.first = nn.utils.weight_norm(self.first)
        self.middle = nn.utils.spectral_norm(nn.Linear(8, 8))
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.other = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))

    def between(self, x):
        return self.other(self.lstm(self.middle(x)[:, None])[0][:, 0])
"""


@pytest.fixture(scope="module", autouse=True)
def own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A working directory with the module `stateful_nets`."""
    folder = tmp_path_factory.mktemp("cwd")
    (folder / "stateful_nets.py").write_text(textwrap.dedent(MODULES))
    (folder / "stateful_helper.py").write_text("count = 0\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        yield
    sys.modules.pop("stateful_nets", None)


def own(name: str, **params: Any) -> dict[str, Any]:
    return {"model": {"type": f"stateful_nets:{name}", "params": params}}


def train(folder: Path, model: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Run:
    return trainwright.train(SMALL, {**model, **(overrides or {})}, runs_dir=folder)


# -- memory layouts

FUSED = ["adamw", "adam", "adagrad", "sgd"]
LAYOUTS = ["Transposed", "ChannelsLast", "Gaps", "OneStorage", "Expanded", "Turning", "Small"]
BESIDE = ["Mean", "Extra", "ExtraTensor", "Growing", "Flags"]


def learner(model: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Learner:
    """A learner at step 0, as a run has it."""
    config = load(SMALL, {**model, **(overrides or {})}, adapters=Catalog()).config
    return build(config, 1, Objects()).learner


def go_on(learner: Learner, start: int, stop: int) -> list[float]:
    return learner.read([learner.step(step, 0.01).loss for step in range(start, stop)])


def layouts(learner: Learner) -> dict[str, tuple[int, ...]]:
    files = learner._state.files(weights_only=False)  # type: ignore[attr-defined]
    return {
        f"{file}:{name}": tensor.stride() for file, some in files.items() for name, tensor in some.items()
    }


def assert_resumes(model: Mapping[str, Any], overrides: Mapping[str, Any], folder: Path) -> None:
    """That what is restored after five steps has the same state and layout, and makes the same steps."""
    whole = learner(model, overrides)
    go_on(whole, 0, 5)
    whole.snapshot().write(folder)
    resumed = learner(model, overrides)
    resumed.restore(folder)
    assert tensor_records(resumed.state()) == tensor_records(whole.state())
    assert layouts(resumed) == layouts(whole)
    assert go_on(resumed, 5, 9) == go_on(whole, 5, 9)
    assert tensor_records(resumed.state()) == tensor_records(whole.state())
    assert layouts(resumed) == layouts(whole)


@pytest.mark.parametrize("name", [*LAYOUTS, *BESIDE])
def test_what_is_restored_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    assert_resumes(own(name), {}, tmp_path)


@pytest.mark.parametrize("optimizer", FUSED)
@pytest.mark.parametrize("name", ["Transposed", "ChannelsLast"])
def test_every_fused_optimizer_goes_on_with_any_layout(name: str, optimizer: str, tmp_path: Path) -> None:
    options = {"type": optimizer, "momentum": 0.9} if optimizer == "sgd" else {"type": optimizer}
    assert_resumes(own(name), {"training.optimizer": options}, tmp_path)


@pytest.mark.parametrize("name", ["ChannelsLast", "Turning", "Extra"])
def test_a_run_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", own(name))
    assert_same(trainwright.resume(crashed(tmp_path / "cut", own(name))), whole)
    assert whole.result["determinism"]["tier"] == "bitwise"


def test_a_run_that_died_after_its_last_step_is_evaluated_alike(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", own("Turning"))
    assert_same(trainwright.resume(preempted(tmp_path / "late", own("Turning"), at=30)), whole)


@pytest.mark.parametrize("name", ["Transposed", "ChannelsLast", "Expanded", "Turning", "Lazy", *BESIDE])
def test_a_best_model_predicts_as_it_did_when_it_was_kept(name: str, tmp_path: Path) -> None:
    """In the process that trained on, and in one that only predicts."""
    parts = build(load(SMALL, own(name), adapters=Catalog()).config, 1, Objects())
    val = parts.bundle.splits["val"]
    go_on(parts.learner, 0, 3)
    kept = [part.outputs for part in parts.learner.model().predict(val)]
    parts.learner.snapshot(weights_only=True).write(tmp_path)
    go_on(parts.learner, 3, 6)
    parts.learner.restore(tmp_path, weights_only=True)
    inputs = ModelInputs(parts.config, parts.bundle.info, parts.config.model.params, 1)
    for one in (parts.learner.model(), parts.framework.load(inputs, tmp_path)):
        assert all(
            np.array_equal(now.outputs, then) for now, then in zip(one.predict(val), kept, strict=True)
        )


def trained_by_adamw(model: nn.Module, steps: int) -> torch.optim.Optimizer:
    """AdamW after some steps of a model."""
    optimizer = build_optimizer(TrainingConfig(), model, torch.device("cpu"))
    for step in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.sin(torch.arange(parameter.numel()) + step).reshape(parameter.shape)
        optimizer.step()
    return optimizer


def state_of(model: nn.Module, steps: int = 0) -> TrainingState:
    """The state of a model that AdamW has trained for some steps."""
    return TrainingState(model, trained_by_adamw(model, steps), Precision("fp32", torch.device("cpu")))


class Kept(nn.Module):
    """A weight, and a buffer that is not persistent, in one of two memory layouts."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3))
        rows = torch.arange(6.0).reshape(2, 3)
        self.register_buffer("kept", rows.t().contiguous().t() if transposed else rows, persistent=False)


@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize("then", [False, True])
def test_a_buffer_is_restored_in_its_layout_and_in_place_if_that_is_the_same(
    then: bool, now: bool, tmp_path: Path
) -> None:
    state_of(Kept(then), steps=1).copy(weights_only=False).write(tmp_path)
    model = Kept(now)
    address = model.kept.zero_().data_ptr()
    state_of(model).load(tmp_path, weights_only=False)
    assert model.kept.stride() == Kept(then).kept.stride()
    torch.testing.assert_close(model.kept, Kept(then).kept)
    assert (model.kept.data_ptr() == address) == (then == now)


def test_moments_keep_a_layout_of_their_own(tmp_path: Path) -> None:
    first, second = (nn.Linear(3, 2, bias=False) for _ in range(2))
    optimizer, again = trained_by_adamw(first, steps=1), trained_by_adamw(second, steps=0)
    moments = optimizer.state[first.weight]
    moments["exp_avg"] = moments["exp_avg"].t().contiguous().t()
    precision = Precision("fp32", torch.device("cpu"))
    TrainingState(first, optimizer, precision).copy(weights_only=False).write(tmp_path)
    TrainingState(second, again, precision).load(tmp_path, weights_only=False)
    restored = again.state[second.weight]["exp_avg"]
    assert restored.stride() == (1, 2)
    torch.testing.assert_close(restored, moments["exp_avg"])


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"capturable": True}])
def test_what_is_restored_lies_where_torch_puts_it(options: dict[str, bool]) -> None:
    """A device without memory stands for a GPU: moments go there, and step counters if the optimizer asks."""
    precision, trained = Precision("fp32", torch.device("cpu")), nn.Linear(3, 2)
    before = trained_by_adamw(trained, steps=1)
    tensors = OptimizerState(before, trained, precision).tensors()
    ours, theirs = (torch.optim.AdamW(nn.Linear(3, 2, device="meta").parameters()) for _ in range(2))
    ours.param_groups[0].update(options)
    saved = before.state_dict()
    saved["param_groups"][0] |= {"fused": None, "capturable": False, **options}
    theirs.load_state_dict(saved)
    model = nn.Linear(3, 2, device="meta")
    model.weight, model.bias = ours.param_groups[0]["params"]
    OptimizerState(ours, model, precision).load(tensors, {})
    places, expected = (
        [{key: value.device for key, value in moments.items()} for moments in optimizer.state.values()]
        for optimizer in (ours, theirs)
    )
    assert places == expected
    assert {str(device) for device in places[0].values()} == ({"meta"} if options else {"meta", "cpu"})


def test_a_released_snapshot_gives_its_memory_to_one_later_snapshot() -> None:
    state = state_of(nn.Linear(3, 2), steps=1)
    first = state.copy(weights_only=False)
    addresses = {t.data_ptr() for tensors in first._files.values() for t in tensors.values()}
    first.release()
    first.release()
    second, third = (state.copy(weights_only=False) for _ in range(2))
    taken, other = (
        {t.data_ptr() for tensors in copy._files.values() for t in tensors.values()}
        for copy in (second, third)
    )
    assert taken == addresses
    assert not other & addresses


def test_the_weights_alone_are_without_the_optimizer() -> None:
    state = state_of(nn.Linear(3, 2), steps=1)
    assert list(state.files(weights_only=True)) == ["weights.safetensors"]
    assert list(state.files(weights_only=False)) == ["weights.safetensors", "optimizer.safetensors"]


def test_weights_that_do_not_fit_are_said_without_a_hint_about_buffers(tmp_path: Path) -> None:
    state_of(nn.Linear(3, 2), steps=1).copy(weights_only=False).write(tmp_path)
    for other in (nn.Linear(4, 2), nn.Sequential(nn.Linear(3, 2))):
        with pytest.raises(ModelError, match="the weights do not fit the model") as error:
            state_of(other).load(tmp_path, weights_only=True)
        assert "all parameters fit" not in str(error.value)
    (tmp_path / "weights.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(ModelError, match="this is not a safetensors file"):
        state_of(nn.Linear(3, 2)).load(tmp_path, weights_only=True)


def channels_last() -> nn.Module:
    torch.manual_seed(0)
    return nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)


def strides(state: TrainingState) -> dict[str, tuple[int, ...]]:
    files = state.files(weights_only=False)
    return {
        f"{file}:{name}": tensor.stride() for file, some in files.items() for name, tensor in some.items()
    }


def test_moments_come_back_in_the_strides_of_their_parameter(tmp_path: Path) -> None:
    before = state_of(channels_last(), steps=2)
    before.copy(weights_only=False).write(tmp_path)
    after = state_of(channels_last())
    after.load(tmp_path, weights_only=False)
    assert strides(after) == strides(before)
    assert strides(after)["optimizer.safetensors:weight.exp_avg"] == (27, 1, 9, 3)


def test_the_state_tells_a_layout_from_another(tmp_path: Path) -> None:
    before = state_of(channels_last(), steps=1)
    recorded = bytes(before.files(weights_only=False)[training_state.MODULE_FILE]["strides"].tolist())
    assert json.loads(recorded)["optimizer.weight.exp_avg"] == [27, 1, 9, 3]
    contiguous = state_of(nn.Conv2d(3, 4, 3), steps=1)
    assert list(contiguous.files(weights_only=False)) == ["weights.safetensors", "optimizer.safetensors"]


def test_a_restored_layout_that_is_another_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = crashed(tmp_path, own("Transposed"))
    with monkeypatch.context() as patch:
        for module in (training_state, optimizer_state):
            patch.setattr(module, "with_strides", lambda source, strides, device: source)
        patch.setattr(optimizer_state, "like", lambda source, parameter, device: source)
        with pytest.raises(CheckpointError, match="was restored with digest"):
            trainwright.resume(cut)


@pytest.mark.parametrize(
    ("kind", "optimizer", "message"),
    [
        ("sparse buffer", {"type": "adam"}, "'odd' of the model is sparse"),
        ("compressed", {"type": "adam"}, "'odd' of the model is sparse"),
        ("sparse parameter", {"type": "adam"}, "'odd' of the model is sparse"),
        ("meta", {"type": "adam"}, "'odd' of the model is on the device meta, so it has no values"),
        ("meta buffer", {"type": "adam"}, "'odd' of the model is on the device meta"),
        ("expanded", {"type": "adam"}, "parameter odd is expanded"),
        ("sparse gradients", {"type": "adam"}, "the gradients of odd are sparse: .*sgd without momentum"),
        ("sparse gradients", {"type": "sgd", "momentum": 0.9}, "the gradients of odd are sparse"),
    ],
)
def test_tensors_that_cannot_be_trained_or_saved_are_refused_by_name_before_step_1(
    kind: str, optimizer: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        train(tmp_path, own("Odd", kind=kind), {"training.optimizer": optimizer, "training.weight_decay": 0})
    assert not list(tmp_path.rglob("*.jsonl"))


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [("negative view", "adam"), ("sparse gradients", "sgd"), ("sparse gradients", "adagrad")],
)
def test_a_model_with_odd_tensors_resumes(kind: str, optimizer: str, tmp_path: Path) -> None:
    options = {"training.optimizer": {"type": optimizer}, "training.weight_decay": 0}
    assert_resumes(own("Odd", kind=kind), options, tmp_path)


def test_a_complex_buffer_is_refused_before_a_step(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"'phase' of the model is of torch.complex64"):
        train(tmp_path, own("Half"))


@pytest.mark.parametrize(
    ("tensor", "dense"),
    [
        (torch.zeros(3, 4), True),
        (torch.zeros(3, 4).t(), True),
        (torch.zeros(3, 4)[1:], True),
        (torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last), True),
        (torch.zeros(2, 1, 4, 1).to(memory_format=torch.channels_last), True),
        (torch.zeros(()), True),
        (torch.zeros(0, 3).t(), True),
        (torch.zeros(3, 4)[:, :2], False),
        (torch.zeros(3, 4)[::2], False),
        (torch.zeros(3, 1).expand(3, 4), False),
        (torch.zeros(9).as_strided((4, 3), (2, 1)), False),
    ],
)
def test_dense_tensors_are_told_from_others(tensor: torch.Tensor, dense: bool) -> None:
    assert is_dense(tensor) is dense
    if dense:
        assert torch.zeros_like(tensor).stride() == tensor.stride()


def test_a_weight_with_gaps_learns_as_a_dense_one_does() -> None:
    """Fused kernels walk through memory, and would read the gaps of such a weight."""
    torch.manual_seed(0)
    values = torch.randn(5, 7)
    results = []
    for view in (values.clone()[:, :3], values[:, :3].clone()):
        parameter = nn.Parameter(view)
        optimizer = build_optimizer(
            TrainingConfig(), torch.nn.ParameterList([parameter]), torch.device("cpu")
        )
        for step in range(4):
            parameter.grad = torch.sin(torch.arange(15.0) + step).reshape(5, 3)
            optimizer.step()
        results.append(parameter.detach())
    torch.testing.assert_close(*results)


# -- what a checkpoint holds beside the weights


def test_buffers_that_are_not_persistent_leave_the_weights_as_they_are(tmp_path: Path) -> None:
    run = train(tmp_path, own("Mean"))
    folder = checkpoints(run)[-1]
    assert "mean" not in load_file(folder / "weights.safetensors")
    assert list(load_file(folder / "module.safetensors")) == ["buffers/mean"]


def test_extra_state_that_json_would_change_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"'_extra_state', a dict: .* but no tuples"):
        train(tmp_path, own("ExtraTuple"))


def test_weights_alone_initialize_a_model_with_extra_state(tmp_path: Path) -> None:
    first = train(tmp_path, own("Extra"))
    file = tmp_path / "weights.safetensors"
    save_file(load_file(checkpoints(first)[-1] / "weights.safetensors"), file)
    second = train(tmp_path, own("Extra"), {"model.init_from": str(file)})
    assert second.manifest["weights"]["initial"] == first.digest


def test_a_tensor_that_shrinks_is_not_written_into_the_memory_of_the_last_snapshot(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("rows", torch.ones(3))
    state = state_of(model)
    first = state.copy(weights_only=True)
    first.release()
    model.rows = torch.tensor(5.0)
    state.copy(weights_only=True).write(tmp_path)
    assert load_file(tmp_path / "weights.safetensors")["rows"].shape == ()


def test_an_evaluation_that_is_cut_short_leaves_buffers_and_extra_state_as_they_were() -> None:
    parts = build(load(SMALL, own("Counts"), adapters=Catalog()).config, 1, Objects())
    go_on(parts.learner, 0, 2)
    before = tensor_records(parts.learner.state())
    predictions = interruptible(parts.learner.model().predict(parts.bundle.splits["val"]), lambda: None)
    next(predictions)
    next(predictions)
    predictions.close()
    assert tensor_records(parts.learner.state()) == before
    list(parts.learner.model().predict(parts.bundle.splits["val"]))
    assert tensor_records(parts.learner.state()) != before


def test_modes_that_training_has_set_outlast_an_evaluation() -> None:
    parts = build(load(SMALL, own("Flags"), adapters=Catalog()).config, 1, Objects())
    go_on(parts.learner, 0, 2)
    list(parts.learner.model().predict(parts.bundle.splits["val"]))
    module = parts.learner.model().native
    assert (module.training, module.drop.training) == (True, False)


@pytest.mark.parametrize("step", [1, 3])
def test_a_parameter_that_training_adds_is_refused_by_name(step: int, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="training added, replaced or removed the parameter late"):
        train(tmp_path, own("LateParameter", step=step))


def test_a_parameter_that_the_first_steps_add_is_refused_before_a_checkpoint_is_due() -> None:
    one = learner(own("LateParameter", step=2))  # after the memory for checkpoints is reserved
    go_on(one, 0, 2)
    with pytest.raises(ModelError, match="training added, replaced or removed the parameter late"):
        one.unsaved_state()


def test_weights_with_a_grown_buffer_cannot_initialize_and_the_way_on_is_named(tmp_path: Path) -> None:
    first = train(tmp_path, own("Growing"), {"training.max_steps": 2})
    with pytest.raises(ModelError, match="all parameters fit, but some buffers do not"):
        train(tmp_path, own("Growing"), {"model.init_from": first.id})


# -- what no checkpoint holds

DRAWING = ["numpy", "legacy", "python", "torch"]
CHANGING = [
    "number",
    "tensor",
    "array",
    "list",
    "deque",
    "dict",
    "text",
    "set",
    "object",
    "module",
    "unregistered",
]
FORGOTTEN = [*DRAWING, *CHANGING, "int"]


@pytest.mark.parametrize("kind", [*FORGOTTEN, "constant", "global", "view", "parameters"])
def test_state_that_no_checkpoint_holds_is_found(kind: str) -> None:
    model = learner(own("Forgets", kind=kind))
    before = model.unsaved_state()
    assert model.unsaved_state() == before
    model.step(0, 0.01)
    changed = [name for name, value in model.unsaved_state().items() if before[name] != value]
    name = "layer.0.count" if kind == "module" else "state"
    assert changed == ([name] if kind in FORGOTTEN else [])


NOT_READ = "whose position cannot be read)"
HIDDEN = {
    **dict.fromkeys(["rest of a storage", "sparse", "slots", "items", "bytes", "array", "partial"], "state"),
    **dict.fromkeys(["closure", "method", "distribution", "optimizer", "date", "local", "context"], "state"),
    **dict.fromkeys(["default", "function"], "stateful_nets.Hides.between"),
    "global": "stateful_nets.kept",
    "another class": "Statistics.count",
    "another module": "stateful_helper.count",
    "global of another function": "stateful_nets.calls",
    "count": f"state (a count, {NOT_READ}",
    "generator": f"state (a generator, {NOT_READ}",
    "hook": "first._forward_hooks",
    "hook of a gradient": "first.weight._backward_hooks",
    "hook of a finished gradient": "first.weight._post_accumulate_grad_hooks",
    "class": "Hides.seen",
    "of a parameter": "first.weight.count",
}


@pytest.mark.parametrize("kind", [*HIDDEN, "none"])
def test_state_in_hidden_places_is_found(kind: str) -> None:
    model = learner(own("Hides", kind=kind))
    before = model.unsaved_state()
    model.step(0, 0.01)
    after = model.unsaved_state()
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    assert changed == ([HIDDEN[kind]] if kind in HIDDEN else [])


def test_the_search_for_state_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "LIMIT", 100)
    model = nn.Linear(1, 1)
    model.table = table = [[number] for number in range(1000)]  # type: ignore[assignment]
    before = fingerprints(model)
    table[900][0] = -1
    assert fingerprints(model) == before
    table[10][0] = -1
    assert fingerprints(model) != before


def test_it_lowers_the_tier_and_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = train(tmp_path, own("Forgets", kind="tensor"), {"training.max_steps": 3})
    tier = run.result["determinism"]
    assert tier == run.manifest["determinism"]
    assert tier["tier"] == "statistical"
    assert tier["reason"] == "training changes state of the model, which no checkpoint holds"
    for words in ("training changes state of the model", "register_buffer", "get_extra_state"):
        assert words in caplog.text
    assert ("determinism", "statistical") in summary_table(run.path)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
def test_weights_that_torch_computes_anew_keep_the_tier(tmp_path: Path) -> None:
    model = learner(own("Normed"))
    before = model.unsaved_state()
    model.step(0, 0.01)
    assert model.unsaved_state() == before
    assert_resumes(own("Normed"), {}, tmp_path)


def test_a_resume_finds_it_again_and_the_tier_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cut = crashed(tmp_path, own("Forgets", kind="number"))
    assert cut.manifest["determinism"]["tier"] == "statistical"
    caplog.clear()
    resumed = trainwright.resume(cut)
    assert resumed.result["determinism"]["tier"] == "statistical"
    assert caplog.text.count("training changes state of the model") == 1


def test_a_demand_for_bits_refuses_state_that_no_checkpoint_holds(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="bitwise was requested, but training changes state of the model"):
        train(tmp_path, own("Forgets", kind="number"), {"training.determinism": "bitwise"})


def test_fingerprints_are_taken_six_times_however_many_steps_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []

    def counted(*args: Any) -> dict[str, str]:
        calls.append(None)
        return fingerprints(*args)

    monkeypatch.setattr("trainwright.frameworks.torch.state.training.fingerprints", counted)
    train(tmp_path, own("Mean"))
    assert len(calls) == 6  # before and after the first step, before three saves, and at the end


def test_a_list_that_contains_itself_has_a_fingerprint() -> None:
    model = nn.Linear(1, 1)
    endless: list[Any] = [1]
    endless.append(endless)
    model.endless = endless  # type: ignore[assignment]
    before = fingerprints(model)
    endless[0] = 2
    assert {name for name, value in fingerprints(model).items() if before[name] != value} == {"endless"}


def test_attributes_that_cannot_be_read_fail_no_run() -> None:
    class Missing(dict[str, int]):
        def items(self) -> Any:
            raise ValueError("a value is missing")

    model, deep = nn.Linear(1, 1), []
    for _ in range(10_000):
        deep = [deep]
    model.missing, model.deep = Missing(a=1), deep  # type: ignore[assignment]
    assert fingerprints(model) == fingerprints(model)


# -- large models


class CountedTensors(dict[str, torch.Tensor]):
    """The tensors of a file, with a count of how many were looked at one after the other."""

    looked_at = 0

    def items(self) -> Any:
        for item in super().items():
            CountedTensors.looked_at += 1
            yield item


def test_restoring_an_optimizer_looks_at_each_tensor_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = 2_000
    before = state_of(nn.ParameterList([torch.ones(1) * i for i in range(parameters)]), steps=1)
    before.copy(weights_only=False).write(tmp_path)
    after = state_of(nn.ParameterList([torch.ones(1) for _ in range(parameters)]))
    read = training_state.load_tensors
    monkeypatch.setattr(
        training_state, "load_tensors", lambda *where, **how: CountedTensors(read(*where, **how))
    )
    after.load(tmp_path, weights_only=False)
    assert CountedTensors.looked_at <= 2 * 4 * parameters  # a weight, two moments and a counter for each
    expected, restored = (
        state.files(weights_only=False)["optimizer.safetensors"] for state in (before, after)
    )
    assert len(restored) == 3 * parameters
    assert all(torch.equal(restored[name], tensor) for name, tensor in expected.items())


def test_names_that_contain_one_another_keep_their_own_moments(tmp_path: Path) -> None:
    def model() -> nn.Module:
        inner = nn.Module()
        inner.step = nn.Parameter(torch.ones(2))
        inner.exp_avg = nn.Parameter(torch.ones(3))
        outer = nn.Module()
        outer.a, outer.ab = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(5))
        outer.inner = inner
        outer.inner_a = nn.Parameter(torch.ones(6))
        return outer

    before = state_of(model(), steps=2)
    before.copy(weights_only=False).write(tmp_path)
    after = state_of(model())
    after.load(tmp_path, weights_only=False)
    expected, restored = (
        state.files(weights_only=False)["optimizer.safetensors"] for state in (before, after)
    )
    assert list(restored) == list(expected)
    assert all(torch.equal(restored[name], tensor) for name, tensor in expected.items())
    assert {name.rpartition(".")[0] for name in expected} == {
        "a",
        "ab",
        "inner.step",
        "inner.exp_avg",
        "inner_a",
    }


def test_a_gpu_has_a_generator_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the device, or of the current one where the device has no number; it takes 64 bits of a seed."""
    from trainwright.frameworks.torch.step import generators, seed_generators

    gpus = [torch.Generator() for _ in range(3)]
    monkeypatch.setattr(torch.cuda, "default_generators", gpus)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    assert generators(torch.device("cpu")) == [torch.default_generator]
    for device, index in (("cuda", 2), ("cuda:1", 1)):
        own = generators(torch.device(device))
        assert [id(one) for one in own] == [id(torch.default_generator), id(gpus[index])]
    seed_generators([torch.default_generator, gpus[0]], 0x123456789A)
    assert [torch.default_generator.initial_seed(), gpus[0].initial_seed()] == [0x3456789A, 0x123456789A]


# -- the generators that initial weights are drawn from

DRAWING = """
import random

import torch

unused = torch.nn.Linear(2, 2)


class Scaled(torch.nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = torch.nn.Linear(in_features, out_features)
        self.scale = torch.nn.Parameter(torch.tensor(random.random()))

    def forward(self, x):
        return self.linear(x) * self.scale


def make(in_features, out_features) -> torch.nn.Module:
    return Scaled(in_features, out_features)
"""


@pytest.mark.parametrize("framework", ["torch", None])
def test_initial_weights_do_not_depend_on_what_the_process_did_before(
    framework: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module is imported once in a process, and draws when it is."""
    (tmp_path / "drawing_net.py").write_text(textwrap.dedent(DRAWING))
    monkeypatch.syspath_prepend(tmp_path)
    model = {"model": {"type": "drawing_net:make", "framework": framework}}
    try:
        made = [learner(model), learner(model)]
        module = sys.modules["drawing_net"]
    finally:
        sys.modules.pop("drawing_net", None)
    seed_torch(SMALL["experiment"]["seed"], INIT)
    random.seed(SMALL["experiment"]["seed"])
    expected = module.make(4, 3).state_dict()
    for one in made:
        weights = {buffer.name: bytes(buffer.buffer) for buffer in one.state(weights_only=True)}
        assert weights == {f"weights.{name}": tensor.numpy().tobytes() for name, tensor in expected.items()}
