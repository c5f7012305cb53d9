"""The torch framework.

Every optimizer, precision, schedule and model trains, and resumes to the same bits.
"""

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as torch_file

import trainwright
from small_runs import (
    SMALL,
    assert_same,
    checkpoints,
    crashed,
    journal_values,
    preempted,
    whole_and_resumed,
)
from trainwright.config import load
from trainwright.config.schema import TrainingConfig
from trainwright.digest import digest, tensor_records
from trainwright.errors import ConfigError, InputError, ModelError, TrainingError
from trainwright.frameworks.torch.params import OPTIMIZERS
from trainwright.runs.catalog import Catalog
from trainwright.runs.run import Run
from trainwright.runs.wiring import Objects, build


def weights(run: Run) -> dict[str, np.ndarray]:
    return load_file(checkpoints(run)[-1] / "weights.safetensors")


def loss_of(run: Run) -> dict[int, float]:
    return journal_values(run)[0]


# -- what trains


OPTIMIZER_OPTIONS: list[dict[str, Any]] = [
    *({"type": name} for name in OPTIMIZERS),
    {"type": "adamw", "amsgrad": True},
    {"type": "sgd", "momentum": 0.9},
    {"type": "sgd", "momentum": 0.9, "nesterov": True},
    {"type": "sgd", "momentum": 0.9, "dampening": 0.5},
    {"type": "rmsprop", "momentum": 0.5, "centered": True},
    {"type": "adagrad", "lr_decay": 0.01},
]


@pytest.mark.parametrize(
    "options", OPTIMIZER_OPTIONS, ids=lambda options: "-".join(map(str, options.values()))
)
def test_every_optimizer_learns_and_resumes_to_the_same_bits(options: dict[str, Any], tmp_path: Path) -> None:
    whole, resumed = whole_and_resumed(
        tmp_path, {"training.optimizer": options, "training.learning_rate": 0.01}
    )
    assert_same(resumed, whole)
    losses = list(loss_of(whole).values())
    assert np.mean(losses[-5:]) < np.mean(losses[:5]), "it does not learn"


def test_optimizers_and_their_options_differ() -> None:
    digests = set()
    for some in OPTIMIZER_OPTIONS:
        overrides = {"training.weight_decay": 0.1, "training.optimizer": some}
        parts = build(load(SMALL, overrides, adapters=Catalog()).config, 1, Objects())
        for step in range(5):
            parts.learner.step(step, 0.01)
        digests.add(digest(tensor_records(parts.learner.state(weights_only=True))))
    assert len(digests) == len(OPTIMIZER_OPTIONS), "an option is ignored"


SCHEDULES: list[dict[str, Any]] = [
    {"type": "constant", "warmup_steps": 11},
    {"type": "linear"},
    {"type": "cosine", "warmup_steps": 4, "final_lr_ratio": 0.1},
    {"type": "step", "step_size": 7, "gamma": 0.5},
    {"type": "plateau", "metric": "val_loss", "patience": 0, "factor": 0.5, "mode": "max"},
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule["type"])
def test_every_schedule_resumes_to_the_same_bits(schedule: dict[str, Any], tmp_path: Path) -> None:
    whole, resumed = whole_and_resumed(tmp_path, {"training.scheduler": schedule}, at=23)
    assert_same(resumed, whole)
    rates = [row["learning_rate"] for row in whole.history() if "learning_rate" in row]
    assert len(set(rates)) > 1, "the learning rate never moved"
    assert [row["learning_rate"] for row in resumed.history() if "learning_rate" in row] == rates


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "mixed"])
@pytest.mark.parametrize("norm", [None, 0.5])
def test_every_precision_learns_and_resumes_to_the_same_bits(
    precision: str, norm: float | None, tmp_path: Path
) -> None:
    whole, resumed = whole_and_resumed(
        tmp_path, {"training.precision": precision, "training.max_grad_norm": norm}
    )
    assert_same(resumed, whole)
    losses = list(loss_of(whole).values())
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    assert {array.dtype for array in weights(whole).values()} == {np.dtype(np.float32)}, (
        "the weights themselves stay whole"
    )


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_updates_on_the_cpu_change_no_bits_there_and_resume(optimizer: str, tmp_path: Path) -> None:
    overrides = {"training.optimizer": optimizer, "training.ema": 0.9}
    whole, resumed = whole_and_resumed(tmp_path, overrides | {"distributed.offload": True})
    assert_same(resumed, whole)
    assert trainwright.train(SMALL, overrides, runs_dir=tmp_path / "else").digest == whole.digest


def test_an_export_may_round_to_bf16(tmp_path: Path) -> None:
    run = trainwright.train(SMALL, {"training.max_steps": 2}, runs_dir=tmp_path)
    exact = torch_file(trainwright.export(run, tmp_path / "exact.safetensors"))
    rounded = torch_file(trainwright.export(run, tmp_path / "rounded.safetensors", "safetensors-bf16"))
    state = trainwright.load(run).native.state_dict()
    torch.testing.assert_close(exact, dict(state), rtol=0, atol=0)
    expected = {name: one.bfloat16() for name, one in state.items()}
    torch.testing.assert_close(rounded, expected, rtol=0, atol=0)


def test_the_loss_scale_is_part_of_the_state(tmp_path: Path) -> None:
    """With values large enough that the scaled gradients overflow at first.

    The scale falls, and steps are left out.
    """
    overrides = {"training.precision": "fp16", "data.standardize": False}
    whole, resumed = whole_and_resumed(tmp_path, overrides)
    assert_same(resumed, whole)
    saved = load_file(checkpoints(whole)[-1] / "optimizer.safetensors")
    (scale,) = [float(value) for name, value in saved.items() if name.endswith("/scale")]
    assert scale > 0
    steps = next(int(value) for name, value in saved.items() if name.endswith("scaler/steps"))
    assert 0 < steps <= 30


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_gradient_that_is_clipped_is_not_a_scaled_one(precision: str, tmp_path: Path) -> None:
    """One step of plain gradient descent moves the weights by the limit of the norm."""
    overrides = {
        "model": {"type": "mlp", "params": {"hidden": [16]}},
        "training.precision": precision,
        "training.max_grad_norm": 0.25,
        "training.learning_rate": 1.0,
        "training.optimizer": "sgd",
        "training.weight_decay": 0.0,
        "training.max_steps": 1,
    }
    moved = weights(trainwright.train(SMALL, overrides, runs_dir=tmp_path))
    still = weights(
        trainwright.train(SMALL, overrides | {"training.learning_rate": 1e-30}, runs_dir=tmp_path)
    )
    distance = np.sqrt(sum(float(np.square(moved[name] - still[name]).sum()) for name in moved))
    assert distance == pytest.approx(0.25, rel=1e-3)


def test_a_scale_that_fell_is_taken_up_again(tmp_path: Path) -> None:
    from trainwright.frameworks.torch.precision import Precision

    first, second = (Precision("fp16", torch.device("cpu")) for _ in range(2))
    first.load({"scale": torch.tensor(128.0), "steps": torch.tensor(17)})
    second.load(first.state())
    assert second.state() == first.state() == {"scale": 128.0, "steps": 17}
    assert second.scale is not None
    assert second.scale.scaled(torch.ones(())) == 128.0


def test_the_loss_scale_moves_as_that_of_torch() -> None:
    from trainwright.frameworks.torch.precision import LossScale

    ours, theirs = LossScale(torch.device("cpu")), torch.amp.GradScaler("cpu")
    parameters = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))]
    optimizer = torch.optim.SGD(parameters, 0.1)
    theirs.scale(torch.ones(()))  # makes its scale
    for step in range(2010):
        value = float("inf") if step in (3, 4, 2008) else float(step)
        gradients = [torch.full_like(one, value) for one in parameters]
        for one, gradient in zip(parameters, gradients, strict=True):
            one.grad = gradient.clone()
        overflow = ours.unscale(gradients, lambda found: found)
        theirs.unscale_(optimizer)
        theirs.step(optimizer)
        theirs.update()
        assert bool(overflow) == (value == float("inf"))
        assert ours.state()["scale"] == theirs.get_scale(), step
        if not overflow:
            torch.testing.assert_close(gradients, [one.grad for one in parameters], rtol=0, atol=0)


@pytest.mark.parametrize("size", [8, 16])
def test_microbatches_give_the_same_step_up_to_rounding(size: int, tmp_path: Path) -> None:
    plain = {"model.params.dropout": 0.0, "training.batch_size": 50, "training.max_steps": 10}
    whole = trainwright.train(SMALL, plain, runs_dir=tmp_path)
    split = {**plain, "training.microbatch_size": size}
    parts, resumed = whole_and_resumed(tmp_path, split, at=7)
    assert_same(resumed, parts)
    assert parts.digest != whole.digest, "it took no microbatches"
    for name, array in weights(whole).items():
        np.testing.assert_allclose(weights(parts)[name], array, rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        list(loss_of(parts).values()), list(loss_of(whole).values()), rtol=0, atol=1e-6
    )


def test_clipping_limits_the_gradient(tmp_path: Path) -> None:
    sgd = {"training.optimizer": {"type": "sgd"}, "training.max_steps": 1, "training.learning_rate": 1.0}
    before = trainwright.train(SMALL, sgd | {"training.learning_rate": 1e-30}, runs_dir=tmp_path)
    after = trainwright.train(SMALL, sgd | {"training.max_grad_norm": 0.01}, runs_dir=tmp_path)
    moved = sum(float(((weights(after)[name] - array) ** 2).sum()) for name, array in weights(before).items())
    assert moved**0.5 == pytest.approx(0.01, rel=1e-4)


def test_the_transformer_trains_and_resumes(tmp_path: Path) -> None:
    params = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "dropout": 0.1}
    whole, resumed = whole_and_resumed(tmp_path, {"model": {"type": "transformer", "params": params}})
    assert_same(resumed, whole)


def test_the_example_of_a_regression_beats_a_linear_model(tmp_path: Path) -> None:
    """On the same rows, ridge regression is the measure: shorter than the example, it is as good at least."""
    from sklearn.linear_model import Ridge

    example = Path(__file__).parents[2] / "examples" / "diabetes.yaml"
    run = trainwright.train(example, {"training.epochs": 60, "tracking": []}, runs_dir=tmp_path)
    model = trainwright.load(run)
    splits = model.load_data().splits
    train, test = (splits[name].take(np.arange(len(splits[name]))) for name in ("train", "test"))
    linear = Ridge().fit(train["features"], train["target"]).score(test["features"], test["target"])
    assert run.metrics["test_r2"] > linear - 0.02 > 0.4


@pytest.mark.parametrize("loss", ["auto", "mse", "mae", "huber"])
def test_regression_with_every_loss(loss: str, tmp_path: Path) -> None:
    whole, resumed = whole_and_resumed(tmp_path, {"data.type": "diabetes", "training.loss": loss})
    assert_same(resumed, whole)
    assert whole.metrics.keys() >= {"test_rmse", "test_mae", "test_r2"}
    frame_rows = trainwright.load(whole).evaluate("test").outputs
    assert frame_rows.ndim == 1


@pytest.mark.parametrize(
    ("data", "loss", "allowed"),
    [("iris", "mse", "cross_entropy"), ("diabetes", "cross_entropy", "mse, mae, huber")],
)
def test_a_loss_of_another_task_is_refused(data: str, loss: str, allowed: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"{loss} is not a loss for .*allowed: auto, {allowed}"):
        trainwright.train(SMALL, {"data.type": data, "training.loss": loss}, runs_dir=tmp_path)
    assert not list(tmp_path.rglob("config.yaml"))


def test_early_stopping_resumes_to_the_same_end(tmp_path: Path) -> None:
    stop = {
        "training.early_stopping": {"metric": "val_loss", "patience": 2, "mode": "max"},
        "training.max_steps": 200,
    }
    whole, resumed = whole_and_resumed(tmp_path, stop)
    assert whole.result["steps"] < 200
    assert_same(resumed, whole)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError,
        match=r"training.device: cuda:0 was requested, but torch sees no CUDA device; use cpu or auto",
    ):
        trainwright.train(SMALL, {"training.device": "cuda:0"}, runs_dir=tmp_path)


# -- the user's own modules


MODULES = """
import random
import numpy
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, in_features, out_features, width=8):
        super().__init__()
        self.first = nn.Linear(in_features, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(width, out_features)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


class Drawing(Net):
    "Draws from every global generator, in training and in evaluation."

    def forward(self, x):
        noise = random.random() + float(numpy.random.normal()) + torch.rand(())
        return super().forward(x) * (1 + 0.01 * noise)


class Caching(Net):
    "Keeps what it computed at first, as rotary embeddings are kept."
    scale = None

    def forward(self, x):
        hidden = self.first(x)
        if self.scale is None:
            self.scale = torch.linspace(0.5, 1.5, hidden.shape[1])
        return self.last(torch.relu(hidden * self.scale))


class Scaler(nn.Module):
    "A parameter called scaler, and layers in one of that name."

    def __init__(self, in_features, out_features):
        super().__init__()
        self.scaler = nn.ModuleDict({"scale": nn.Linear(in_features, out_features)})
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.scaler["scale"](x) * self.scale


class BareScaler(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.scaler = nn.Parameter(torch.ones(1))
        self.layer = nn.Linear(in_features, out_features)

    def forward(self, x):
        return self.layer(x) * self.scaler


class Frozen(Net):
    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.first.requires_grad_(False)


class Tied(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.a = nn.Linear(in_features, in_features)
        self.b = nn.Linear(in_features, in_features)
        self.b.weight = self.a.weight
        self.c = nn.Linear(in_features, out_features)

    def forward(self, x):
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))))


class Half(Net):
    "Counts its calls in an integer buffer, and has one of no elements."

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("nothing", torch.zeros(0))
        self.register_buffer("flags", torch.tensor([True, False]))

    def forward(self, x):
        if self.training:
            self.calls += 1
        return super().forward(x)


class Wide(Net):
    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features + 4)


class Fails(Net):
    def __init__(self, in_features, out_features, width=8):
        raise ValueError("no such width")


class Calls(Net):
    def __init__(self, act, in_features=4, out_features=3):
        super().__init__(in_features, out_features)
        self.act = act()


class Empty(nn.Module):
    def forward(self, x):
        return x[:, :3]


class Choking(Net):
    def forward(self, x):
        if self.training:
            raise RuntimeError("choked")
        return super().forward(x)


class Tuple(Net):
    def forward(self, x):
        return None, None


def function(in_features):
    return Net(in_features, 3)


def says_what_it_makes(in_features) -> "Net":
    return Net(in_features, 3)


def says_too_little(in_features) -> "nowhere.Net":
    return Net(in_features, 3)


class Lightning(Net):
    def training_step(self, batch, index):
        raise AssertionError

    def configure_optimizers(self):
        raise AssertionError


class NoModel:
    pass


SIZE = 3
OBJECT = Net(4, 3)
"""


@pytest.fixture(scope="module", autouse=True)
def own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A working directory with the module `nets_of_mine`."""
    folder = tmp_path_factory.mktemp("cwd")
    (folder / "nets_of_mine.py").write_text(textwrap.dedent(MODULES))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield
    sys.modules.pop("nets_of_mine", None)


def own(name: str, **params: Any) -> dict[str, Any]:
    return {"model": {"type": f"nets_of_mine:{name}", "params": params}}


@pytest.mark.parametrize(
    "name", ["Net", "Drawing", "Caching", "Scaler", "BareScaler", "Frozen", "Tied", "Half"]
)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_module_of_the_users_resumes_to_the_same_bits(name: str, precision: str, tmp_path: Path) -> None:
    config = {**SMALL, **own(name)}
    whole = trainwright.train(config, {"training.precision": precision}, runs_dir=tmp_path / "whole")
    overrides = {"model.type": f"nets_of_mine:{name}", "model.params": {}, "training.precision": precision}
    resumed = trainwright.resume(crashed(tmp_path / "cut", overrides))
    assert_same(resumed, whole)
    assert "nets_of_mine" in whole.manifest["code"]["modules"]


def test_an_evaluation_that_draws_is_the_same_after_a_resume(tmp_path: Path) -> None:
    """Even where the run died after its last step.

    The final evaluation is made by a process that made no step.
    """
    overrides = {"model.type": "nets_of_mine:Drawing", "model.params": {}}
    whole = trainwright.train(SMALL, overrides, runs_dir=tmp_path / "whole")
    assert_same(trainwright.resume(preempted(tmp_path / "cut", overrides, at=30)), whole)


def test_params_reach_the_users_constructor(tmp_path: Path) -> None:
    run = trainwright.train({**SMALL, **own("Net", width=5)}, runs_dir=tmp_path)
    assert weights(run)["first.weight"].shape == (5, 4)


def test_a_function_makes_a_model(tmp_path: Path) -> None:
    model = {"type": "nets_of_mine:function", "framework": "torch"}
    run = trainwright.train({**SMALL, "model": model}, runs_dir=tmp_path)
    assert weights(run)["first.weight"].shape[1] == 4
    annotated = {**SMALL, "model": {"type": "nets_of_mine:says_what_it_makes"}}
    assert weights(trainwright.train(annotated, runs_dir=tmp_path)).keys() == weights(run).keys()
    with pytest.raises(InputError, match=r"it returned a NoModel, not a torch\.nn\.Module"):
        trainwright.train({**SMALL, "model": {**model, "type": "nets_of_mine:NoModel"}}, runs_dir=tmp_path)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "nets_of_mine:Wide",
            r"for one sample it gives \(1, 7\), but the data has 3 classes: a tensor of shape \(1, 3\) is expected",
        ),
        ("nets_of_mine:Fails", r"Fails\(in_features=4, out_features=3\) failed: ValueError: no such width"),
        ("nets_of_mine:Empty", "it has no parameters to train"),
        ("nets_of_mine:Tuple", "the model returned tuple; it must return a tensor, or a tuple or mapping"),
        ("nets_of_mine:function", "is a function: name its framework in model.framework"),
        ("nets_of_mine:says_too_little", "is a function: name its framework in model.framework"),
        ("nets_of_mine:SIZE", "int belongs to no known framework"),
        ("nets_of_mine:OBJECT", "an object, whose weights no seed determines"),
        ("nets_of_mine:NoModel", "belongs to no known framework"),
        ("nets_of_mine:Nets", "nets_of_mine has no 'Nets'"),
        ("os:system", "belongs to Python's standard library"),
        ("posixpath:os.system", "belongs to Python's standard library"),
        ("nets_of_mine:random.shuffle", "'random' belongs to Python's standard library"),
        ("nowhere_to_be_found:Net", "there is no module 'nowhere_to_be_found'"),
        ("nets_of_mine:", "package.module:"),
    ],
)
def test_a_model_that_cannot_be_is_refused(model: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as error:
        trainwright.train({**SMALL, "model": {"type": model}}, runs_dir=tmp_path)
    assert error.value.exit_code == 2
    assert not list(tmp_path.rglob("config.yaml")), "a run is left behind"


def test_a_constructor_that_does_not_take_the_params(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"Net\(in_features=4, out_features=3, widht=\.\.\.\) failed: TypeError: .*'widht'"
    ):
        trainwright.train({**SMALL, **own("Net", widht=5)}, runs_dir=tmp_path)


def test_a_path_in_the_params_is_text(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match="act is text: options of a class of one's own are passed as they are"
    ):
        trainwright.train({**SMALL, **own("Calls", act="torch.nn:GELU")}, runs_dir=tmp_path)


def test_a_params_typo_of_a_built_in_model_is_an_error_of_the_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hiden"):
        trainwright.train({**SMALL, "model": {"type": "mlp", "params": {"hiden": [3]}}}, runs_dir=tmp_path)


def test_a_model_that_fails_in_training_names_the_step(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="step 1 failed: RuntimeError: choked"):
        trainwright.train({**SMALL, **own("Choking")}, runs_dir=tmp_path)
    assert trainwright.get("last", runs_dir=tmp_path).status == "failed"


def test_a_last_batch_of_one_row_is_named_where_a_norm_cannot_take_it(tmp_path: Path) -> None:
    """120 rows in batches of 17 leave one over."""
    with pytest.raises(ModelError, match=r"120 rows in batches of 17 .* leave one of a single sample"):
        trainwright.train({**SMALL, **own("Net")}, {"training.batch_size": 17}, runs_dir=tmp_path)
    dropped = {"training.batch_size": 17, "training.drop_last": True}
    assert trainwright.train({**SMALL, **own("Net")}, dropped, runs_dir=tmp_path).status == "completed"


# -- what a step must not depend on


def test_what_was_drawn_before_changes_nothing(tmp_path: Path) -> None:
    import random

    first = trainwright.train(SMALL, runs_dir=tmp_path)
    torch.manual_seed(99)
    random.seed(99)
    np.random.seed(99)
    torch.rand(7)
    assert trainwright.train(SMALL, runs_dir=tmp_path).digest == first.digest


def test_the_seed_changes_the_weights_and_the_order(tmp_path: Path) -> None:
    first, second = (
        trainwright.train(SMALL, {"experiment.seed": seed}, runs_dir=tmp_path) for seed in (1, 2**62)
    )
    assert first.digest != second.digest
    assert first.manifest["weights"] != second.manifest["weights"]
    assert first.manifest["data"]["hash"] == second.manifest["data"]["hash"]


def test_cadences_change_no_weight(tmp_path: Path) -> None:
    plain = trainwright.train(SMALL, runs_dir=tmp_path)
    other = {
        "evaluation.every_n_steps": 1,
        "evaluation.batch_size": 7,
        "checkpoint.every_n_steps": 3,
        "logging.every_n_steps": 11,
    }
    assert trainwright.train(SMALL, other, runs_dir=tmp_path).digest == plain.digest


# -- data that are fetched


class Noisy:
    """A map-style dataset that draws from every global generator whenever an item is read."""

    num_classes = 3

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.reads = 0

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        import random

        self.reads += 1
        noise = random.random() + np.random.normal() + float(torch.rand(()))
        return np.array([i % 3 + noise, i % 5, 1.0], dtype=np.float32), i % 3


def noisy_splits() -> tuple[Noisy, Noisy, Noisy]:
    return Noisy(120), Noisy(20), Noisy(20)


@pytest.mark.parametrize("at", [13, 30])
def test_a_dataset_that_draws_resumes_to_the_same_bits(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(SMALL, "data")
    whole = trainwright.train(SMALL, runs_dir=tmp_path / "whole", data=noisy_splits())
    cut = crashed(tmp_path / "cut", at=at, data=noisy_splits())
    assert_same(trainwright.resume(cut, data=noisy_splits()), whole)
    assert whole.manifest["data"]["warnings"] == [], "each item draws the same numbers when it is read again"


HUGE = """
READS = []

class Huge:
    num_classes = 2

    def __len__(self):
        return 10**8

    def __getitem__(self, i):
        READS.append(i)
        return [float(i % 17), float(i % 2)], i % 2


def load():
    return {"train": Huge(), "val": [([1.0, float(i % 2)], i % 2) for i in range(8)]}
"""


def test_a_hundred_million_items_are_not_read_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("huge_of_mine.py").write_text(HUGE)
    overrides = {"data.type": "huge_of_mine:load", "model.params.hidden": [4]}
    whole = trainwright.train(SMALL, overrides, runs_dir=tmp_path / "whole")
    reads = sys.modules["huge_of_mine"].READS
    assert len(reads) < 1500
    assert len(set(reads[-100:])) == 100
    cut = crashed(tmp_path / "cut", overrides)
    reads.clear()
    resumed = trainwright.resume(cut)
    assert_same(resumed, whole)
    assert len(reads) < 1000
    assert resumed.result["epochs"] == pytest.approx(30 * 16 / 10**8)


@pytest.mark.parametrize("dampening", [0.0, 0.3])
def test_a_parameter_gets_its_first_momentum_late(dampening: float) -> None:
    """As where layers are unfrozen while a model trains: torch's fused kernel refuses that."""
    from trainwright.frameworks.torch.optim.build import build_optimizer, update_of

    options = {"momentum": 0.9, "dampening": dampening}
    training = TrainingConfig.model_validate(
        {"optimizer": {"type": "sgd", "params": options}, "weight_decay": 0.1, "no_decay": "none"}
    )
    torch.manual_seed(0)
    models = [torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    ours = build_optimizer(training, models[1], torch.device("cpu"))
    assert ours.param_groups[0]["fused"]
    torchs = torch.optim.SGD(models[0].parameters(), lr=0.01, weight_decay=0.1, **options)
    torchs.param_groups[0]["lr"] = ours.param_groups[0]["lr"]
    update = update_of(ours)
    for step in range(6):
        inputs = torch.randn(5, 4)
        for model in models:
            model[0].requires_grad_(step not in (0, 1, 4))
            model.zero_grad()
            model(inputs).square().sum().backward()
        torchs.step()
        with torch.no_grad():
            update()
        for one, other in zip(*(model.parameters() for model in models), strict=True):
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_the_gathered_update_gives_the_bits_of_torchs_own_step(name: str) -> None:
    """Also where a parameter has no gradient at first, and after the state was replaced as a restore does it."""
    from trainwright.frameworks.torch.optim.build import FusedAdam, build_optimizer, update_of

    training = TrainingConfig.model_validate({"optimizer": {"type": name}, "weight_decay": 0.1})
    torch.manual_seed(0)
    models = [
        torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)) for _ in range(2)
    ]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [build_optimizer(training, model, torch.device("cpu")) for model in models]
    update = update_of(optimizers[1])
    assert isinstance(update, FusedAdam)
    for step in range(12):
        inputs = torch.randn(5, 4)
        for model in models:
            model[0].requires_grad_(step not in (0, 5))
            model.zero_grad()
            model(inputs).square().sum().backward()
        optimizers[0].step()
        with torch.no_grad():
            update()
        if step == 8:
            for state in optimizers[1].state.values():
                state.update({key: value.clone() for key, value in state.items()})
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(*(optimizer.state.values() for optimizer in optimizers), strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)
