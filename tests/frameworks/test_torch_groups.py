"""Parameter groups, freezing, clipping and averages beside torch's own optimizers and loops by hand."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from small_runs import SMALL, assert_same, journal_values, whole_and_resumed
from trainwright.config import load
from trainwright.errors import ConfigError, ModelError
from trainwright.frameworks.torch.learner import TorchLearner
from trainwright.frameworks.torch.optim.groups import layer_factors
from trainwright.frameworks.torch.patterns import matching_modules
from trainwright.frameworks.torch.precision import Precision
from trainwright.frameworks.torch.state.training import TrainingState
from trainwright.runs.catalog import Catalog
from trainwright.runs.objects import Objects
from trainwright.runs.wiring import Components, build

# Layers with parameters: Linear 1 (4 -> 8), LayerNorm 2, Linear 4 (8 -> 6), LayerNorm 5, Linear 7 (6 -> 3).
NET = {
    "model.params": {"hidden": [8, 6], "normalization": "layer", "dropout": 0.0},
    "training.weight_decay": 0.1,
}
STEPS, RATE = 6, 0.02


def parts_of(overrides: Mapping[str, Any]) -> Components:
    return build(load(SMALL, {**NET, **overrides}, adapters=Catalog()).config, 1, Objects())


def module_of(parts: Components) -> nn.Module:
    assert isinstance(parts.learner, TorchLearner)
    return parts.learner._module


def train(parts: Components, start: int = 0, stop: int = STEPS) -> None:
    for step in range(start, stop):
        parts.learner.step(step, RATE * (step + 1))


def gradients(parts: Components, model: nn.Module, step: int) -> list[torch.Tensor | None]:
    """Set the gradients of a step in a model of our own, and return them."""
    assert isinstance(parts.learner, TorchLearner)
    batch = parts.learner._train.take(parts.order.batch(step))
    model.zero_grad()
    functional.cross_entropy(model(batch["features"]), batch["target"]).backward()
    return [parameter.grad for parameter in model.parameters()]


def by_hand(
    parts: Components, settings: Callable[[str, nn.Parameter], dict[str, Any]], cls: Any = torch.optim.AdamW
) -> nn.Module:
    """Train a copy of the model with a group for each parameter, whose `lr` is a share."""
    model = copy.deepcopy(module_of(parts))
    groups = [{"params": [one], **settings(name, one)} for name, one in model.named_parameters()]
    shares = [group.pop("share", 1.0) for group in groups]
    optimizer = cls(groups, fused=True)
    for step in range(STEPS):
        gradients(parts, model, step)
        for group, share in zip(optimizer.param_groups, shares, strict=True):
            group["lr"] = RATE * (step + 1) * share
        optimizer.step()
    return model


def assert_equal(model: nn.Module, other: nn.Module) -> None:
    for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two), name


def bare(name: str, parameter: nn.Parameter) -> dict[str, Any]:
    return {"weight_decay": 0.0 if parameter.ndim == 1 else 0.1}


CASES: dict[str, tuple[dict[str, Any], Callable[[str, nn.Parameter], dict[str, Any]]]] = {
    "auto": ({}, bare),
    "none": ({"no_decay": "none"}, lambda name, one: {"weight_decay": 0.1}),
    "patterns": (
        {"no_decay": ["layers.?.bias", "layers.1"]},
        lambda name, one: {"weight_decay": 0.0 if "bias" in name or "layers.1." in name else 0.1},
    ),
    "the first that matches": (
        {
            "parameter_groups": [
                {"match": "*.1.weight", "learning_rate": 0.0},
                {"match": ["layers.1", "*.7.*"], "lr_ratio": 0.25, "weight_decay": 0.3},
                {"match": "*.7.bias", "lr_ratio": 9.0},
                {"match": "layers.5.*", "options": {"betas": [0.7, 0.8]}},
            ]
        },
        lambda name, one: {
            "weight_decay": 0.0 if one.ndim == 1 else 0.3 if name[7] == "7" else 0.1,
            "share": 0.0 if name == "layers.1.weight" else 0.25 if name[7] in "17" else 1.0,
            "betas": (0.7, 0.8) if name[7] == "5" else (0.9, 0.999),
        },
    ),
    "rates by layer": (
        {"layer_decay": 0.5, "parameter_groups": [{"match": "layers.7.*", "lr_ratio": 3.0}]},
        lambda name, one: bare(name, one) | {"share": {1: 1, 2: 2, 4: 4, 5: 8, 7: 48}[int(name[7])] / 16},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_groups_are_those_of_torch(case: str) -> None:
    given, settings = CASES[case]
    parts = parts_of({f"training.{key}": value for key, value in given.items()})
    model = by_hand(parts, settings)
    train(parts)
    assert_equal(module_of(parts), model)


class Vision(nn.Module):
    """Has what is below blocks, blocks in two lists, and what is above; own parameters come first."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 2))
        self.stem = nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU())
        self.stages = nn.ModuleList([nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))])
        self.scale = nn.Parameter(torch.ones(2))
        self.more = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
        self.head = nn.Linear(2, 2)


def test_depths_of_layers() -> None:
    factors = layer_factors(Vision(), 0.5)
    depths = {name.removesuffix(".bias").removesuffix(".weight"): 5 - one for name, one in factors.items()}
    heights = {"token": 5, "stem.0": 5, "stages.0": 4, "stages.1.0": 3, "stages.1.1": 3, "scale": 5}
    heights |= {"more.0": 2, "more.2": 1, "head": 0}
    assert depths == {name: 5 - 0.5**height for name, height in heights.items()}
    with pytest.raises(ModelError, match=r"layer_decay: the model has no nn\.ModuleList"):
        layer_factors(nn.Sequential(nn.Linear(2, 2)), 0.5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"no_decay": ["layer.1.*"]},
            r"no_decay: 'layer.1.\*' matches no parameter; nearest: layers.1.\w+, ",
        ),
        ({"parameter_groups": [{"match": "x"}]}, r"parameter_groups.0.match: 'x' matches no parameter"),
        ({"freeze": "backbone.*"}, r"freeze.0.match: 'backbone.\*' matches no parameter"),
        ({"freeze": "layers"}, r"freeze: nothing is left to train in the first step"),
        ({"activation_checkpointing": "blocks.*"}, r"'blocks.\*' matches no module; nearest: layers"),
    ],
)
def test_a_pattern_that_matches_nothing(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parts_of({f"training.{key}": value for key, value in given.items()})


def test_mistakes_in_the_config(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "model: mlp\n"
        "data: iris\n"
        "training:\n"
        "  max_grad_norm: 1.0\n"
        "  max_grad_value: 0.5\n"
        "  ema: 1.5\n"
        "  compile: true\n"
        "  activation_checkpointing: layers.*\n"
        "  parameter_groups: [{match: a, lr_ratio: 1.0, learning_rate: 1.0}, {match: b, options: {beta: 1}}]\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(file, adapters=Catalog())
    lines = str(caught.value)
    assert "c.yaml:5:3: training.max_grad_value: both max_grad_norm and max_grad_value are given" in lines
    assert "c.yaml:6:8: training.ema.decay: expected a number above 0 and below 1, got 1.5" in lines
    assert "c.yaml:8:3: training.activation_checkpointing: cannot be combined with training.compile" in lines
    assert "learning_rate and lr_ratio are both given" in lines
    assert (
        "c.yaml:9:90: training.parameter_groups.1.options.beta: unknown key; did you mean 'betas'?" in lines
    )


def test_short_forms() -> None:
    config = load(
        {"model": "mlp", "data": "iris", "training": {"ema_decay": 0.9, "freeze": "layers.1.*"}},
        (),
        Catalog(),
    ).config.training
    assert (config.ema and config.ema.decay, config.freeze[0].match) == (0.9, "layers.1.*")


# -- freezing, clipping, averages


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_frozen_gets_no_update_no_decay_and_no_state(ranks: int) -> None:
    freeze = [{"match": "layers.1", "until_step": 3}, {"match": "*.4.weight"}]
    parts = parts_of({"training.freeze": freeze, "distributed.virtual.data": ranks})
    model = copy.deepcopy(module_of(parts))
    names = dict(model.named_parameters())
    groups = [{"params": [one], **bare(name, one)} for name, one in names.items()]
    optimizer = torch.optim.AdamW(groups, lr=RATE)
    train(parts, 0, 3)
    assert isinstance(parts.learner, TorchLearner)
    state = {tensor.name for tensor in parts.learner.state()}
    assert not any("optimizer.layers.1" in name or "optimizer.layers.4.weight" in name for name in state)
    train(parts, 3, STEPS)
    for step in range(STEPS):
        names["layers.4.weight"].requires_grad_(False)
        for name in ("layers.1.weight", "layers.1.bias"):
            names[name].requires_grad_(step >= 3)
        gradients(parts, model, step)
        for group in optimizer.param_groups:
            group["lr"] = RATE * (step + 1)
        optimizer.step()
    for (name, one), two in zip(module_of(parts).named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7, msg=name)
    assert torch.equal(names["layers.4.weight"], module_of(parts).get_parameter("layers.4.weight"))


@pytest.mark.parametrize(
    ("key", "clip"),
    [
        ("max_grad_value", nn.utils.clip_grad_value_),
        ("max_grad_norm", nn.utils.clip_grad_norm_),
        ("log_grad_norm", lambda parameters, limit: None),
    ],
)
def test_gradients_are_clipped_and_measured_as_by_torch(key: str, clip: Callable[..., Any]) -> None:
    parts = parts_of(
        {f"training.{key}": True if key == "log_grad_norm" else 0.05, "training.weight_decay": 0}
    )
    model = copy.deepcopy(module_of(parts))
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0, fused=True)
    for step in range(STEPS):
        norm = nn.utils.get_total_norm([one for one in gradients(parts, model, step) if one is not None])
        clip(model.parameters(), 0.05)
        optimizer.param_groups[0]["lr"] = RATE
        optimizer.step()
        parts.learner.step(step, RATE)
        assert parts.learner.measures() == ({} if key == "max_grad_value" else {"grad_norm": float(norm)})
    assert_equal(module_of(parts), model)


@pytest.mark.parametrize("warmup", [False, True])
def test_the_average_is_that_of_torch(warmup: bool, tmp_path: Path) -> None:
    parts = parts_of({"training.ema": {"decay": 0.8, "warmup": warmup}})
    averaged = AveragedModel(module_of(parts), multi_avg_fn=get_ema_multi_avg_fn(0.8))
    averaged.n_averaged.fill_(1)  # else it would begin with the weights after the first step
    for step in range(STEPS):
        train(parts, step, step + 1)
        if warmup:
            averaged.multi_avg_fn = get_ema_multi_avg_fn(min(0.8, (2 + step) / (11 + step)))
        averaged.update_parameters(module_of(parts))
    weights = {name: one.clone() for name, one in module_of(parts).named_parameters()}
    split = parts.bundle.splits["val"]
    assert isinstance(parts.learner, TorchLearner)
    averaged.eval()
    outputs = averaged(parts.learner._source(split).take(torch.arange(len(split)).numpy())["features"])
    predicted = [part.outputs for part in parts.learner.model().predict(split)]
    torch.testing.assert_close(
        torch.cat([torch.from_numpy(one) for one in predicted]), outputs.softmax(1), rtol=1e-6, atol=1e-6
    )
    for name, one in module_of(parts).named_parameters():
        assert torch.equal(one, weights[name]), "the weights that are trained were not put back"
    written = [(tmp_path / "all"), (tmp_path / "weights")]
    for folder, alone in zip(written, (False, True), strict=True):
        folder.mkdir()
        parts.learner.snapshot(weights_only=alone).write(folder)
    train(parts, STEPS, STEPS + 2)
    for folder, alone in zip(written, (False, True), strict=True):
        parts.learner.restore(folder, weights_only=alone)
        with parts.learner._state.evaluated():
            assert_equal(module_of(parts), averaged.module)
        if not alone:
            for name, one in module_of(parts).named_parameters():
                assert torch.equal(one, weights[name])


def test_many_features_at_once_resume_to_the_same_bits(tmp_path: Path) -> None:
    overrides = {
        "model.params.dropout": 0.2,
        "training.ema": 0.9,
        "training.freeze": [{"match": "layers.1.*", "until_step": 12}],
        "training.parameter_groups": [{"match": "layers.5.*", "lr_ratio": 0.5}],
        "training.max_grad_norm": 0.5,
        "training.microbatch_size": 3,
        "training.activation_checkpointing": "layers",
        "training.optimizer": "muon",
        "distributed.virtual.data": 2,
    }
    whole, resumed = whole_and_resumed(tmp_path, {**NET, **overrides})
    assert_same(resumed, whole)
    assert (whole.result["weights"], whole.result["determinism"]["tier"]) == ("ema", "bitwise")
    assert journal_values(whole)


# -- memory of the first saves, precision


def test_the_first_snapshot_finds_its_memory() -> None:
    model = nn.Linear(1500, 1500)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 1500)).sum().backward()
    optimizer.step()
    state = TrainingState(model, optimizer, Precision("fp32", torch.device("cpu")))
    state.reserve()
    assert state._memory._reserving is not None
    state._memory._reserving.join()
    pointers = {
        alone: {one.data_ptr() for file in spare[0].values() for one in file.values()}
        for alone, spare in state._memory._spare.items()
    }
    for alone in (False, True):
        copied = state.copy(weights_only=alone)._files
        assert {one.data_ptr() for file in copied.values() for one in file.values()} == pointers[alone]
        assert all(
            torch.equal(one, state.files(weights_only=alone)[file][name])
            for file, tensors in copied.items()
            for name, one in tensors.items()
        )


def test_tf32_is_a_precision_of_cuda() -> None:
    assert Precision("tf32", torch.device("cpu")).name == "fp32"
    assert Precision("tf32", torch.device("cuda")).name == "tf32"


def test_the_outermost_modules_are_matched() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(1, 1), nn.ReLU()), nn.Linear(1, 1))
    assert matching_modules(model, ["*"], "") == ["0", "1"]
    assert matching_modules(model, ["0.*"], "") == ["0.0", "0.1"]
