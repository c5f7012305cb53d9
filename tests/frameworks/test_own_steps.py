"""Models that say themselves how they are trained: beside loops by hand, killed, and on several processes."""

import copy
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

import trainwright
from small_runs import SMALL, assert_same, checkpoints, journal_values, whole_and_resumed
from trainwright.errors import ModelError, TrainwrightError
from trainwright.records.journal import read
from trainwright.runs.run import Run

MODULES = """
import torch
from torch import nn
from torch.nn import functional


class Gan(nn.Module):
    "Learns classes, and to tell rows from generated ones (Salimans et al., 2016)."

    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 4))
        self.discriminator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))

    def forward(self, features):
        return self.discriminator(features)

    def training_step(self, batch, step):
        real, classes = batch["features"], batch["target"]
        noise = torch.randn(len(real), 2)
        if step.number % 3 != 2:
            fake = functional.softplus(-self.discriminator(self.generator(noise)).logsumexp(1)).mean()
            step.backward(fake)
            step.update("generator")
            step.log("generator_loss", fake)
        logits = self.discriminator(real)
        step.backward(functional.cross_entropy(logits, classes))
        known = functional.softplus(self.discriminator(self.generator(noise).detach()).logsumexp(1)).mean()
        step.backward(known)
        step.update("discriminator")
        return {"loss": known, "train_accuracy": (logits.argmax(1) == classes).float().mean()}


class Own(nn.Module):
    "Returns its loss, and what else is to be logged."

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(8, 3)

    def forward(self, features):
        return self.head(self.body(features))

    def training_step(self, batch, step):
        logits = self(batch["features"])
        loss = functional.cross_entropy(logits, batch["target"])
        step.log("size", logits.square().mean())
        return {"loss": loss, "epoch_seen": step.epoch}


class Configures(Own):
    def configure_optimizers(self):
        body = torch.optim.AdamW(self.body.parameters(), lr=3e-3, weight_decay=0.1)
        head = torch.optim.SGD(self.head.parameters(), lr=0.1, momentum=0.9)
        one_cycle = torch.optim.lr_scheduler.OneCycleLR(head, 0.1, 31)
        return {
            "body": {"optimizer": body, "lr_scheduler": torch.optim.lr_scheduler.StepLR(body, 1, 0.5)},
            "head": {"optimizer": head, "lr_scheduler": {"scheduler": one_cycle, "interval": "step"}},
        }
"""
PARTS = {
    "generator": {"type": "adam", "learning_rate": 2e-3, "betas": [0.5, 0.999], "match": "generator.*"},
    "discriminator": {"type": "sgd", "lr": 0.05, "momentum": 0.9, "match": ["discriminator"]},
}
GAN: dict[str, Any] = {
    **SMALL,
    "model": {"type": "steps_of_mine:Gan"},
    "training": {**SMALL["training"], "optimizers": PARTS},
}
OF_GAN = {"model": {"type": "steps_of_mine:Gan", "params": {}}, "training.optimizers": PARTS}
OF_OWN = {"model": {"type": "steps_of_mine:Own", "params": {}}}


@pytest.fixture(scope="module", autouse=True)
def own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A working directory with the module `steps_of_mine`."""
    folder = tmp_path_factory.mktemp("cwd")
    (folder / "steps_of_mine.py").write_text(textwrap.dedent(MODULES))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        yield
    sys.modules.pop("steps_of_mine", None)


def weights(run: Run) -> dict[str, Tensor]:
    return load_file(checkpoints(run)[-1] / "weights.safetensors")


def logged(run: Run) -> list[dict[str, float]]:
    """What a run logged in each step, without times."""
    records = [one["values"] for one in read(run.path / "journal") if one["kind"] == "metrics"]
    return [
        {name: value for name, value in one.items() if name != "samples_per_second"}
        for one in records
        if "train_loss" in one
    ]


class Alternating(nn.Module):
    """Two optimizers, without random numbers; notes its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self.seen: list[tuple[int, Tensor, Tensor]] = SEEN

    def forward(self, features: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(features)))

    def training_step(self, batch: Mapping[str, Tensor], step: Any) -> Tensor:
        SEEN.append((step.number, batch["features"], batch["target"]))
        step.backward(self(batch["features"]).square().mean())
        step.update("first")
        loss = functional.cross_entropy(self(batch["features"]), batch["target"])
        step.backward(loss)
        if step.number % 2:
            step.update("last")
            step.update("first")
        return loss


SEEN: list[tuple[int, Tensor, Tensor]] = []
ALTERNATING = {
    "first": {"type": "adam", "learning_rate": 3e-3, "match": "first"},
    "last": {"type": "sgd", "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.01, "match": "last"},
}


def make_update(optimizer: torch.optim.Optimizer) -> None:
    """Call `step` without what torch wraps around it, which imports its compiler: that takes 10 s."""
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(optimizer)


def by_hand(net: nn.Module, steps: int) -> nn.Module:
    """Train as `Alternating` says, with the batches that it saw, in plain torch."""
    first = torch.optim.Adam(net.first.parameters(), lr=3e-3, fused=True)  # type: ignore[union-attr]
    decay = [{"params": [net.last.weight], "weight_decay": 0.01}, {"params": [net.last.bias]}]  # type: ignore[union-attr]
    last = torch.optim.SGD(decay, lr=0.1, momentum=0.9, fused=True)
    for number in range(steps):
        x = torch.cat([one for at, one, _ in SEEN if at == number])
        y = torch.cat([one for at, _, one in SEEN if at == number])
        net.zero_grad()
        net(x).square().mean().backward()
        nn.utils.clip_grad_norm_(net.first.parameters(), 0.3)  # type: ignore[union-attr]
        make_update(first)
        net.zero_grad()
        functional.cross_entropy(net(x), y).backward()
        if number % 2:
            for optimizer, part in ((last, net.last), (first, net.first)):
                nn.utils.clip_grad_norm_(part.parameters(), 0.3)  # type: ignore[union-attr]
                make_update(optimizer)
    return net


@pytest.mark.parametrize("cut", [{}, {"training.microbatch_size": 5}, {"distributed.virtual.data": 4}])
def test_manual_updates_are_those_of_a_loop_by_hand(cut: dict[str, Any], tmp_path: Path) -> None:
    SEEN.clear()
    net = Alternating()
    initial = copy.deepcopy(net)
    settings = {"training.optimizers": ALTERNATING, "training.max_steps": 9, "training.max_grad_norm": 0.3}
    config = {key: value for key, value in SMALL.items() if key != "model"}
    settings |= {"training.learning_rate": 0.1} | cut
    run = trainwright.train(config, settings, model=net, runs_dir=tmp_path)
    expected = by_hand(initial, 9)
    for name, value in weights(run).items():
        if cut:
            torch.testing.assert_close(value, expected.state_dict()[name])
        else:
            assert torch.equal(value, expected.state_dict()[name]), name


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"training.microbatch_size": 5},
        {"distributed.virtual.data": 4, "training.microbatch_size": 3, "training.ema": 0.9},
    ],
)
def test_a_gan_resumes_to_the_same_bits(overrides: dict[str, Any], tmp_path: Path) -> None:
    run, resumed = whole_and_resumed(tmp_path, OF_GAN | overrides)
    assert_same(resumed, run)
    assert [one for one in logged(resumed) if one["epoch"] > 11 / 8] == [
        one for one in logged(run) if one["epoch"] > 11 / 8
    ]
    assert "generator_loss" in logged(run)[0]
    assert "generator_loss" not in logged(run)[2]
    assert trainwright.reproduce(run).verdict == "identical"


@pytest.mark.parametrize("model", [OF_GAN, OF_OWN], ids=["manual", "automatic"])
@pytest.mark.services
def test_two_processes_have_the_bits_of_one(model: dict[str, Any], tmp_path: Path) -> None:
    settings = model | {
        "distributed.virtual.data": 4,
        "training.microbatch_size": 3,
        "training.drop_last": True,
    }
    alone = trainwright.train(SMALL, settings, runs_dir=tmp_path)
    two = trainwright.train(SMALL, settings | {"distributed.nproc": 2}, runs_dir=tmp_path)
    assert two.digest == alone.digest
    assert journal_values(two) == journal_values(alone)
    assert logged(two) == logged(alone)
    assert trainwright.reproduce(two).verdict == "identical"


def test_a_loss_that_a_step_returns_resumes_to_the_same_bits(tmp_path: Path) -> None:
    run, resumed = whole_and_resumed(tmp_path, OF_OWN | {"logging.every_n_steps": 3}, at=12)
    assert_same(resumed, run)
    assert logged(resumed)[-1] == logged(run)[-1]
    assert logged(run)[-1]["epoch_seen"] == 3.0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"training.optimizers.discriminator.match": ["discriminator.0"]},
            "no optimizer updates the parameter",
        ),
        ({"training.optimizers.discriminator.match": ["*"]}, "both match the parameter generator.0.weight"),
        ({"training.precision": "fp16"}, "precision: fp16: not with a model"),
        ({"training.compile": True}, "compile: true: not with a model"),
    ],
)
def test_what_cannot_be_is_refused(overrides: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        trainwright.train(SMALL, OF_GAN | overrides, runs_dir=tmp_path)


class Uneven(Alternating):
    """Asks for its updates by its rows."""

    def training_step(self, batch: Mapping[str, Tensor], step: Any) -> None:  # type: ignore[override]
        step.backward(self(batch["features"]).square().mean())
        step.update("first" if batch["target"][0] == 0 else "last")


class Unknown(Alternating):
    """Asks for an optimizer that is not there."""

    def training_step(self, batch: Mapping[str, Tensor], step: Any) -> None:  # type: ignore[override]
        step.backward(self(batch["features"]).square().mean())
        step.update("frist")


@pytest.mark.parametrize(
    ("net", "message"),
    [(Uneven, "other updates in one part"), (Unknown, "'frist' given; the optimizers are")],
)
def test_wrong_updates_are_named(net: type[nn.Module], message: str, tmp_path: Path) -> None:
    config = {key: value for key, value in SMALL.items() if key != "model"}
    settings = {"training.optimizers": ALTERNATING, "training.microbatch_size": 2}
    with pytest.raises(TrainwrightError, match=message):
        trainwright.train(config, settings, model=net(), runs_dir=tmp_path)


class Configures(nn.Module):
    """Says itself what it is trained with; notes its batches."""

    def __init__(self, form: str = "dict") -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self.form = form

    def forward(self, features: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(features)))

    def training_step(self, batch: Mapping[str, Tensor], step: Any) -> Tensor:
        SEEN.append((step.number, batch["features"], batch["target"]))
        return functional.cross_entropy(self(batch["features"]), batch["target"])

    def configure_optimizers(self) -> Any:
        adam = torch.optim.Adam(self.first.parameters(), lr=3e-3)
        sgd = torch.optim.SGD(self.last.parameters(), lr=0.1, momentum=0.9)
        halved = torch.optim.lr_scheduler.StepLR(adam, 1, 0.5)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, 30)
        if self.form == "plateau":
            return {"optimizer": adam, "lr_scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(adam)}
        if self.form == "closure":
            return torch.optim.LBFGS(self.parameters())
        if self.form == "lists":
            return [adam, sgd], [halved, {"scheduler": cosine, "interval": "step"}]
        return (
            {"optimizer": adam, "lr_scheduler": halved},
            {"optimizer": sgd, "lr_scheduler": {"scheduler": cosine, "interval": "step", "frequency": 2}},
        )


@pytest.mark.parametrize("form", ["dict", "lists"])
def test_configured_optimizers_are_those_of_a_loop_by_hand(form: str, tmp_path: Path) -> None:
    SEEN.clear()
    net, config = Configures(form), {key: value for key, value in SMALL.items() if key != "model"}
    hand = copy.deepcopy(net)
    run = trainwright.train(config, {"training.learning_rate": 1e-3}, model=net, runs_dir=tmp_path)
    first = torch.optim.Adam(hand.first.parameters(), lr=3e-3)
    last = torch.optim.SGD(hand.last.parameters(), lr=0.1, momentum=0.9)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(last, 30)
    rates = []
    for number, x, y in SEEN:
        hand.zero_grad()
        functional.cross_entropy(hand(x), y).backward()
        first.param_groups[0]["lr"] = 3e-3 * 0.5 ** (number // 8)
        make_update(first)
        make_update(last)
        rates.append((first.param_groups[0]["lr"], last.param_groups[0]["lr"]))
        if form == "lists" or (number + 1) % 2 == 0:
            cosine.step()
    for name, value in weights(run).items():
        assert torch.equal(value, hand.state_dict()[name]), name
    assert [(one["learning_rate_0"], one["learning_rate_1"]) for one in logged(run)] == rates


def test_configured_optimizers_resume_to_the_same_bits(tmp_path: Path) -> None:
    settings = {"model": {"type": "steps_of_mine:Configures", "params": {}}, "training.learning_rate": 1e-3}
    run, resumed = whole_and_resumed(tmp_path, settings)
    assert_same(resumed, run)
    rates = [
        (one["learning_rate"], one["learning_rate_body"], one["learning_rate_head"]) for one in logged(run)
    ]
    assert len({*rates}) > 20
    assert [
        (one["learning_rate"], one["learning_rate_body"], one["learning_rate_head"])
        for one in logged(resumed)
    ] == rates
    assert trainwright.reproduce(run).verdict == "identical"
    assert "torch.optim.sgd:SGD(lr=0.1" in str([*map(str, run.manifest["environment"].values())])


@pytest.mark.parametrize(
    ("form", "overrides", "message"),
    [
        ("plateau", {}, "returned a ReduceLROnPlateau, which needs the evaluations"),
        ("closure", {}, "returned LBFGS, which calls the model itself"),
        (
            "dict",
            {"training.scheduler": "cosine"},
            "training.scheduler: the model's configure_optimizers sets it",
        ),
    ],
)
def test_what_cannot_be_configured_is_refused(
    form: str, overrides: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = {key: value for key, value in SMALL.items() if key != "model"}
    settings = {"training.learning_rate": 1e-3, **overrides}
    with pytest.raises(ModelError, match=message):
        trainwright.train(config, settings, model=Configures(form), runs_dir=tmp_path)


LIGHTNING = """
import pytorch_lightning
import torch
from torch import nn
from torch.nn import functional


class Classes(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        self.log_dict({"place": float(100 * self.current_epoch + batch_idx), "step": float(self.global_step)})
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", 2 * functional.cross_entropy(self(x), y))
        self.log("val_share", (y == 0).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]

    def on_train_epoch_end(self):
        raise AssertionError


class Gan(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4))
        self.discriminator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x):
        return self.discriminator(x)

    def training_step(self, batch, batch_idx):
        (x, y), (g, d) = batch, self.optimizers()
        fake = self.generator(torch.randn(len(x), 2))
        self.toggle_optimizer(g)
        loss = functional.softplus(-self(fake).logsumexp(1)).mean()
        self.log("g_loss", loss)
        self.manual_backward(loss)
        g.step()
        g.zero_grad()
        self.untoggle_optimizer(g)
        d.zero_grad()
        self.manual_backward(functional.cross_entropy(self(x), y))
        self.manual_backward(functional.softplus(self(fake.detach()).logsumexp(1)).mean())
        d.step()

    def configure_optimizers(self):
        g = torch.optim.Adam(self.generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
        return g, torch.optim.SGD(self.discriminator.parameters(), lr=0.05)


class Accumulating(Gan):
    def training_step(self, batch, batch_idx):
        _, d = self.optimizers()
        self.manual_backward(functional.cross_entropy(self(batch[0]), batch[1]))
        if batch_idx % 2:
            d.step()
            d.zero_grad()


class OwnStep(Classes):
    def optimizer_step(self, *arguments, **options):
        pass


class Plain(nn.Module):
    "The same GAN, by our step."

    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4))
        self.discriminator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x):
        return self.discriminator(x)

    def training_step(self, batch, step):
        fake = self.generator(torch.randn(len(batch["features"]), 2))
        step.backward(functional.softplus(-self(fake).logsumexp(1)).mean())
        step.update("0")
        step.backward(functional.cross_entropy(self(batch["features"]), batch["target"]))
        step.backward(functional.softplus(self(fake.detach()).logsumexp(1)).mean())
        step.update("1")

    configure_optimizers = Gan.configure_optimizers
"""


@pytest.fixture
def lightning(own_modules: None) -> Iterator[None]:
    """A module `lightning_of_mine` in the working directory."""
    pytest.importorskip("pytorch_lightning")
    Path("lightning_of_mine.py").write_text(textwrap.dedent(LIGHTNING))
    yield
    sys.modules.pop("lightning_of_mine", None)


def of_lightning(name: str) -> dict[str, Any]:
    return {"model": {"type": f"lightning_of_mine:{name}", "params": {}}, "training.learning_rate": 1e-3}


@pytest.mark.services
@pytest.mark.usefixtures("lightning")
def test_a_lightning_module_trains_as_it_stands(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, resumed = whole_and_resumed(tmp_path, of_lightning("Classes"))
    assert_same(resumed, run)
    assert "the model's on_train_epoch_end: not called here" in caplog.text
    assert [(one["place"], one["step"], one["learning_rate"]) for one in logged(run)] == [
        (100 * (step // 8) + step % 8, step, 3e-3 * 0.5 ** (step // 16)) for step in range(30)
    ]
    final = run.result["metrics"]
    assert final["val_share"] == pytest.approx(1 / 3)
    assert trainwright.evaluate(run)["test_loss"] == final["test_loss"]
    assert trainwright.reproduce(run).verdict == "identical"


@pytest.mark.services
@pytest.mark.usefixtures("lightning")
def test_a_lightning_module_with_manual_optimization_is_one_of_ours(tmp_path: Path) -> None:
    cut = {"training.microbatch_size": 3, "distributed.virtual.data": 2}
    run, resumed = whole_and_resumed(tmp_path, of_lightning("Gan") | cut)
    assert_same(resumed, run)
    plain = trainwright.train(SMALL, of_lightning("Plain") | cut, runs_dir=tmp_path)
    assert plain.digest == run.digest
    assert "g_loss" in logged(run)[0]


@pytest.mark.services
@pytest.mark.usefixtures("lightning")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Accumulating", "optimizer 1 has gradients of an earlier step"),
        ("OwnStep", "the model's optimizer_step is for Lightning's trainer"),
    ],
)
def test_what_lightning_alone_can_do_is_refused(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TrainwrightError, match=message):
        trainwright.train(SMALL, of_lightning(name), runs_dir=tmp_path)


class WithoutTarget(nn.Module):
    """An autoencoder that is trained, evaluated and asked by steps of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4))

    def training_step(self, batch: Mapping[str, Tensor]) -> Tensor:
        return functional.mse_loss(self.net(batch["features"]), batch["features"])

    def validation_step(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"loss": self.training_step(batch), "size": batch["features"].mean()}

    def predict_step(self, batch: Mapping[str, Tensor]) -> Tensor:
        return batch["features"].sum(1)


def test_a_model_without_a_target_needs_no_forward(tmp_path: Path) -> None:
    config = {key: value for key, value in SMALL.items() if key != "model"}
    settings = {"data.target": None, "data.exclude": ["target"]}
    run = trainwright.train(config, settings, model=WithoutTarget(), runs_dir=tmp_path)
    assert {*run.result["metrics"]} == {"val_loss", "val_size", "test_loss", "test_size"}
    rows = [[1.0, 2.0, 3.0, 4.0], [0.5, 0.5, 0.5, 0.5]]
    predicted = trainwright.load(run, model=WithoutTarget()).predict(rows)
    assert len(predicted) == 2
    assert list(predicted) == ["prediction"]
