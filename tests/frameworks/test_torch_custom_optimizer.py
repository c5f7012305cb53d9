"""Muon, and optimizers by import path: beside torch's own classes, and restored to the last bit."""

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_torch_groups import NET, RATE, STEPS, assert_equal, gradients, module_of, parts_of, train
from torch import nn

import trainwright
from small_runs import SMALL, assert_same, whole_and_resumed
from trainwright.config import load
from trainwright.digest import tensor_records
from trainwright.errors import ModelError
from trainwright.frameworks.torch.optim.muon import hidden_matrices
from trainwright.runs.catalog import Catalog
from trainwright.testing.framework_suite import new_folder

OPTIMIZERS = """
import random

import numpy as np
import torch


class Odd(torch.optim.Optimizer):
    "Keeps numbers, lists and tuples for each parameter, and a number and a tensor in its groups."

    def __init__(self, params, lr=1e-3, rho=0.1):
        super().__init__(params, {"lr": lr, "rho": rho, "calls": 0, "scale": torch.ones(())})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["calls"] += 1
            group["scale"] = group["scale"] * 0.9
            for one in group["params"]:
                if one.grad is None:
                    continue
                state = self.state[one]
                if not state:
                    state.update(sum=torch.zeros_like(one), n=0, seen=(1.0, [2, None]))
                state["n"] += 1
                state["seen"] = (state["seen"][0] * 1.5 % 1.1, [state["n"], None])
                state["sum"].mul_(1 - group["rho"]).add_(one.grad)
                rate = group["lr"] * (1 + state["seen"][0]) / (state["n"] + group["calls"])
                one.sub_(state["sum"] * group["scale"] * rate)


class Boxes(Odd):
    "Keeps objects that it makes in training, which no new process has."

    def step(self, closure=None):
        self.boxes = [*getattr(self, "boxes", []), object()]
        super().step()


class Lookahead(torch.optim.Optimizer):
    "Wraps another optimizer, and keeps numbers, lists and tensors in attributes."

    def __init__(self, params, lr=1e-3):
        self.inner = torch.optim.SGD(params, lr=lr, momentum=0.9)
        super().__init__(self.inner.param_groups, {"lr": lr})
        self.calls, self.norms, self.slow = 0, [], {}

    @torch.no_grad()
    def step(self, closure=None):
        for own, group in zip(self.param_groups, self.inner.param_groups):
            group["lr"] = own["lr"]
        self.inner.step()
        self.calls += 1
        ones = [one for group in self.param_groups for one in group["params"]]
        self.norms.append(float(ones[0].norm()))
        if self.calls % 4 == 0:
            for one in ones:
                slow = self.slow.setdefault(one, one.detach().clone())
                slow.lerp_(one, 0.5 + 0.01 * (sum(self.norms) % 1))
                one.copy_(slow)


class Defaults(torch.optim.SGD):
    "Counts in what torch keeps of its options."

    def __init__(self, params, lr=1e-3):
        super().__init__(params, lr=lr)
        self.defaults["calls"] = 0

    def step(self, closure=None):
        self.defaults["calls"] += 1
        for group in self.param_groups:
            for one in group["params"]:
                one.grad.mul_(1 + self.defaults["calls"] % 3)
        super().step()


class Holds(Odd):
    "Keeps an object for a parameter."

    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for one in group["params"]:
                self.state[one]["tensors"] = [one.detach() * 2]


class Views(Odd):
    "Keeps its sums in one buffer, which each parameter's state holds a view of."

    def step(self, closure=None):
        ones = [one for group in self.param_groups for one in group["params"]]
        if not self.state[ones[0]]:
            flat = torch.zeros(sum(one.numel() for one in ones))
            for one, part in zip(ones, flat.split([one.numel() for one in ones])):
                self.state[one].update(sum=part.view_as(one), n=0, seen=(1.0, [2, None]))
        super().step()


class Aliases(Odd):
    "Reaches the weights through its state, from the beginning."

    def __init__(self, params, lr=1e-3):
        super().__init__(params, lr)
        for group in self.param_groups:
            for one in group["params"]:
                self.state[one].update(sum=torch.zeros_like(one), n=0, seen=(1.0, []), slow=one.detach())


SUMS = {}


class Globals(Odd):
    "Keeps its sums in a variable of the module."

    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for one in group["params"]:
                SUMS[id(one)] = SUMS.get(id(one), 0) + one.detach()


class Late(Odd):
    "Keeps slow weights from its third step on."

    def step(self, closure=None):
        super().step()
        ones = [one for group in self.param_groups for one in group["params"]]
        if self.state[ones[0]]["n"] == 3:
            self.slow = [(one.detach().clone(), object()) for one in ones]


class Draws(Odd):
    "Draws random numbers, and keeps those of the last update."

    def step(self, closure=None):
        drawn = [torch.rand(()).item(), np.random.rand(), random.random()]
        for group in self.param_groups:
            group["drawn"] = torch.tensor(drawn, dtype=torch.float64)
        super().step()


class Calls(Odd):
    def step(self, closure):
        closure()


def function(params):
    return None
"""


@pytest.fixture(autouse=True)
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "odd_optimizers.py").write_text(OPTIMIZERS)
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.chdir(tmp_path / "code")
    yield
    import sys

    sys.modules.pop("odd_optimizers", None)


def own(name: str, **options: Any) -> dict[str, Any]:
    return {"training.optimizer": {"type": name, **options}, "training.weight_decay": 0.0}


def test_muon_is_that_of_torch_with_adamw_beside_it() -> None:
    parts = parts_of({"training.optimizer": {"type": "muon", "momentum": 0.9}})
    model = copy.deepcopy(module_of(parts))
    names = dict(model.named_parameters())
    hidden = [names.pop(name) for name in ("layers.1.weight", "layers.4.weight")]
    muon = torch.optim.Muon(hidden, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw")
    decaying = [{"params": [one], "weight_decay": 0.1 if one.ndim > 1 else 0.0} for one in names.values()]
    adamw = torch.optim.AdamW(decaying, fused=True)
    for step in range(STEPS):
        gradients(parts, model, step)
        for optimizer in (muon, adamw):
            for group in optimizer.param_groups:
                group["lr"] = RATE * (step + 1)
            optimizer.step()
    train(parts)
    assert_equal(module_of(parts), model)


def test_muon_takes_scaled_gradients() -> None:
    parts = parts_of({"training.optimizer": {"type": "muon"}, "training.precision": "fp16"})
    model = copy.deepcopy(module_of(parts))
    names = dict(model.named_parameters())
    hidden = [names.pop(name) for name in ("layers.1.weight", "layers.4.weight")]
    muon = torch.optim.Muon(hidden, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    decaying = [{"params": [one], "weight_decay": 0.1 if one.ndim > 1 else 0.0} for one in names.values()]
    scaler, optimizers = torch.amp.GradScaler("cpu"), (muon, torch.optim.AdamW(decaying, fused=True))
    for step in range(STEPS):
        batch = parts.learner._train.take(parts.order.batch(step))
        model.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(batch["features"]), batch["target"])
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = RATE * (step + 1)
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
        scaler.update()
    train(parts)
    assert_equal(module_of(parts), model)


def test_muon_leaves_embeddings_and_the_output_to_adamw() -> None:
    model = nn.ModuleDict(
        {
            "tokens": nn.Embedding(5, 4),
            "up": nn.Linear(4, 8),
            "down": nn.Linear(8, 4),
            "head": nn.Linear(4, 5),
        }
    )
    assert hidden_matrices(model) == {id(model["up"].weight), id(model["down"].weight)}
    assert hidden_matrices(model, ["down"]) == {id(model["up"].weight)}
    model["head"].weight = model["tokens"].weight
    assert hidden_matrices(model) == {id(model["up"].weight), id(model["down"].weight)}


def test_an_optimizer_of_torch_by_its_path() -> None:
    parts = parts_of(own("torch.optim:ASGD", lambd=0.01, t0=2.0))
    model = copy.deepcopy(module_of(parts))
    optimizer = torch.optim.ASGD(model.parameters(), lambd=0.01, t0=2.0)
    for step in range(STEPS):
        gradients(parts, model, step)
        optimizer.param_groups[0]["lr"] = RATE * (step + 1)
        optimizer.step()
    train(parts)
    assert_equal(module_of(parts), model)


def test_all_state_of_ones_own_optimizer_is_restored(tmp_path: Path) -> None:
    given = own("odd_optimizers:Odd", rho=0.3)
    groups = {"training.parameter_groups": [{"match": "layers.4", "options": {"rho": 0.5}}]}
    parts, fresh = parts_of({**given, **groups}), parts_of({**given, **groups})
    before = parts.learner.unsaved_state()
    train(parts)
    assert parts.learner.unsaved_state() == before
    parts.learner.snapshot().write(new_folder(tmp_path / "saved"))
    fresh.learner.restore(tmp_path / "saved")
    assert tensor_records(fresh.learner.state()) == tensor_records(parts.learner.state())
    for one in (parts, fresh):
        train(one, STEPS, STEPS + 3)
    assert_equal(module_of(parts), module_of(fresh))


@pytest.mark.parametrize("name", ["Odd", "Lookahead", "Defaults"])
def test_a_run_with_ones_own_optimizer_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    whole, resumed = whole_and_resumed(tmp_path, {**NET, **own(f"odd_optimizers:{name}")})
    assert_same(resumed, whole)
    assert whole.result["determinism"]["tier"] == "bitwise"


def test_what_an_update_draws_depends_on_its_step_alone() -> None:
    """In one process, or several: each has drawn other numbers before the update."""

    def drawn(microbatch_size: int, uses: int) -> list[list[float]]:
        parts = parts_of({**own("odd_optimizers:Draws"), "training.microbatch_size": microbatch_size})
        numbers = []
        for step in range(2):
            for _ in range(uses):
                random.random(), np.random.rand()
            before = random.getstate()
            train(parts, step, step + 1)
            assert random.getstate() == before
            state = {record.name: record for record in parts.learner.state()}["optimizer.groups/0.drawn"]
            numbers.append(np.frombuffer(state.buffer).tolist())
        return numbers

    first, second = drawn(16, 1)
    assert drawn(4, 3) == [first, second]
    assert len({*first, *second}) == 6


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("Boxes", "optimizer.boxes"),
        ("Globals", "optimizer.odd_optimizers.SUMS"),
        ("Holds", "optimizer.state of layers.1.weight: tensors"),
        ("Views", "optimizer.state of layers.1.weight: sum (which shares its memory)"),
        ("Aliases", "optimizer.state of layers.1.weight: slow (which shares its memory)"),
    ],
)
def test_state_that_no_checkpoint_holds_is_found(name: str, named: str) -> None:
    parts = parts_of(own(f"odd_optimizers:{name}"))
    before = parts.learner.unsaved_state()
    train(parts, 0, 1)
    after = parts.learner.unsaved_state()
    assert named in {name for name in {**before, **after} if before.get(name) != after.get(name)}


def test_state_that_appears_late_is_found(tmp_path: Path) -> None:
    short = {"training.max_steps": 6, "evaluation.every_n_steps": None}
    run = trainwright.train(SMALL, own("odd_optimizers:Late") | short, runs_dir=tmp_path)
    assert run.result["determinism"]["tier"] == "statistical"
    assert "optimizer.slow" in run.result["determinism"]["reason"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (own("odd_optimizers:Calls"), "calls the model itself"),
        (own("odd_optimizers:function"), "is not a subclass of torch.optim.Optimizer"),
        (own("odd_optimizers:Gone"), "odd_optimizers has no 'Gone'"),
        (own("odd_optimizers:Odd", mu=3), r"rejects its options \(mu\): TypeError"),
        (own("odd_optimizers:Odd") | {"training.weight_decay": 0.1}, "has no weight_decay; leave it out"),
    ],
)
def test_what_cannot_be_used_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parts_of(given)


def test_its_options_keep_their_names() -> None:
    options = {"type": "my_optim:Sophia", "rho": 0.04, "decay": 1, "eps": 1e-6}
    config = load(SMALL, {"training.optimizer": options}, adapters=Catalog()).config.training.optimizer
    assert (config.type, config.params) == ("my_optim:Sophia", {"rho": 0.04, "decay": 1, "eps": 1e-6})
