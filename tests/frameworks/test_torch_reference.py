"""Runs of torch beside a training loop by hand, which shares no code with Trainwright.

Every number must have the same bits.

The loop follows the documents: the order of the samples and the seeds as `order.py` describes them, the
formulas of the learning rate, microbatches that weigh as many samples as they have, dropout seeded for (seed,
step, microbatch).
"""

import copy
import dataclasses
import hashlib
import math
import random
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

import trainwright
from small_runs import checkpoints
from trainwright.records.journal import read
from trainwright.runs.run import Run

MODULES = """
import random

import numpy as np
import torch
from torch import nn

MASKS = []


class Recorded(nn.Dropout):
    "Dropout that notes its masks."

    def forward(self, x):
        kept = super().forward(torch.ones_like(x))
        if self.training:
            MASKS.append(kept.detach().clone())
        return x * kept


class Net(nn.Module):
    "Draws from every global generator: when it is built, in training, and in evaluation."

    def __init__(self, in_features, out_features):
        super().__init__()
        self.register_buffer("offset", torch.tensor([random.random(), float(np.random.normal())]))
        self.first = nn.Linear(in_features, 9)
        self.norm = nn.BatchNorm1d(9)
        self.drop = Recorded(0.4)
        self.last = nn.Linear(9, out_features)

    def forward(self, x):
        x = self.drop(torch.relu(self.norm(self.first(x)))) + self.offset.sum()
        noise = torch.rand(()) + random.random() + float(np.random.normal())
        return self.last(x * (1 + 0.01 * noise))


class Layered(Net):
    "Normalizes each sample by itself, as virtual ranks need it."

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.norm = nn.LayerNorm(9)


class Plain(nn.Module):
    "Draws its weights, and nothing else from torch when it is built."

    def __init__(self, in_features, out_features):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(in_features, 7), nn.Tanh(), Recorded(0.2), nn.Linear(7, out_features))

    def forward(self, x):
        return self.layers(x) + 0.01 * torch.rand(())
"""


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The module `reference_nets`, as users have theirs."""
    folder = tmp_path_factory.mktemp("cwd")
    (folder / "reference_nets.py").write_text(textwrap.dedent(MODULES))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        import reference_nets

        yield reference_nets
    sys.modules.pop("reference_nets", None)


# -- the order and the seeds, as `order.py` describes them

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
INIT, STEP, EPOCH, _, PREDICT = range(5)


def mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def stream(*parts: int) -> int:
    key = 0
    for part in parts:
        key = mix((key ^ part) + GOLDEN & MASK)
    return key


def epoch_order(seed: int, epoch: int, rows: int) -> list[int]:
    keys = [mix(i * GOLDEN + mix(stream(seed, EPOCH, epoch)) & MASK) for i in range(1, rows + 1)]
    return sorted(range(rows), key=keys.__getitem__)


def seed_torch(*parts: int) -> None:
    torch.default_generator.manual_seed(stream(*parts) & 0xFFFFFFFF)


Net = TypeVar("Net", bound=nn.Module)


def draw_weights(model: Net, seed: int, residual_std: float | None = None) -> Net:
    """Draw the initial weights of a built-in model: those of each module from a stream of its own.

    Args:
        model: The model.
        seed: That of the run.
        residual_std: Of a GPT; its matrices have a standard deviation of 0.02, but for those with this one.
    """
    for name, part in reversed(list(model.named_modules())):
        seed_torch(seed, INIT, int(hashlib.sha256(name.encode()).hexdigest()[:16], 16))
        if residual_std is None:
            getattr(part, "reset_parameters", getattr(part, "_reset_parameters", int))()
            continue
        for parameter in part.parameters(recurse=False):
            if parameter.dim() > 1:
                is_residual = name.endswith(("out_proj", "down_proj"))
                nn.init.normal_(parameter, 0.0, residual_std if is_residual else 0.02)
    return model


# -- the loop

Optimizer = Callable[[Any, float], torch.optim.Optimizer]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Task:
    """What is trained, with the settings under the names of the config."""

    net: str
    rows: tuple[tuple[Tensor, Tensor], ...]  # training, validation and test split
    outputs: int
    loss: Loss
    predicted: Callable[[Tensor], Tensor]
    optimizer: Optimizer
    rate: Callable[[int], float]
    steps: int
    batch: int
    micro: int
    evaluated_rows: int
    evaluate_every: int
    log_every: int
    clip: float | None = None
    seed: int = 11
    ranks: int = 1  # virtual ranks
    drop_last: bool = False
    raw: tuple[Any, ...] = ()  # the features before they are standardized


@dataclass
class Trace:
    """What the loop by hand did."""

    losses: list[float] = field(default_factory=list)
    logged: list[tuple[int, float, float]] = field(default_factory=list)  # step, train_loss, learning rate
    evaluations: list[tuple[int, float, float]] = field(default_factory=list)  # step, loss, measure
    masks: list[Tensor] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    best: tuple[float, int, dict[str, Tensor]] = (math.inf, 0, {})
    test: tuple[float, float] = (0.0, 0.0)


def by_hand(task: Task, nets: Any) -> tuple[Trace, nn.Module]:
    trace = Trace()
    (x, _), validation, test = task.rows
    torch.set_num_threads(1)
    seed_globals(task)
    torch.manual_seed(stream(task.seed, INIT))
    model: nn.Module = getattr(nets, task.net)(x.shape[1], task.outputs)
    model.train()
    seed_globals(task)
    optimizer = task.optimizer(model.parameters(), task.rate(0))
    whole = {one: whole_vectors(one) for one in model.parameters() if task.ranks > 1}
    for group in optimizer.param_groups:
        group["params"] = [whole.get(one, one) for one in group["params"]]
    per_epoch = len(x) // task.batch if task.drop_last else -(-len(x) // task.batch)
    total, seen = 0.0, 0
    for step in range(task.steps):
        order = epoch_order(task.seed, step // per_epoch, len(x))
        ids = order[step % per_epoch * task.batch :][: task.batch]
        optimizer.zero_grad()
        if task.ranks == 1:
            loss, gradients = part_by_hand(task, model, ids, (step,), len(ids))
        else:
            edges = [len(ids) * rank // task.ranks for rank in range(task.ranks + 1)]
            loss, gradients = added(
                [
                    part_by_hand(task, model, ids[edges[rank] : edges[rank + 1]], (step, rank), len(ids))
                    for rank in range(task.ranks)
                ]
            )
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        if task.clip is not None:
            clip_by_hand(task, list(model.parameters()))
        for group in optimizer.param_groups:
            group["lr"] = task.rate(step)
        for parameter, vectors in whole.items():
            vectors.grad = whole_vectors(parameter.grad)  # type: ignore[arg-type]
        optimizer.step()
        for parameter, vectors in whole.items():
            parameter.data = vectors.detach()[: parameter.numel()].view(parameter.shape).clone()
        trace.losses.append(float(loss))
        total, seen = total + trace.losses[-1] * len(ids), seen + len(ids)
        now = step + 1
        if now % task.evaluate_every == 0 or now == task.steps:
            loss, measure = evaluate(task, model, validation)
            trace.evaluations.append((now, loss, measure))
            if loss < trace.best[0]:
                trace.best = (loss, now, copy.deepcopy(model.state_dict()))
        if now % task.log_every == 0 or now == task.steps:
            trace.logged.append((now, total / seen, task.rate(step)))
            total, seen = 0.0, 0
    trace.weights = copy.deepcopy(model.state_dict())
    model.load_state_dict(trace.best[2])
    trace.test = evaluate(task, model, test)
    trace.masks = list(nets.MASKS)
    return trace, model


def whole_vectors(values: Tensor) -> nn.Parameter:
    """The values in a row, and zeros behind them, so that no vector of a kernel is partly filled."""
    flat = values.detach().flatten()
    return nn.Parameter(torch.cat([flat, torch.zeros(-len(flat) % 64)]))


def clip_by_hand(task: Task, parameters: list[nn.Parameter]) -> None:
    if task.ranks == 1:
        torch.nn.utils.clip_grad_norm_(parameters, task.clip)
        return
    gradients = [one.grad for one in parameters if one.grad is not None]
    by_row = [(one * one).reshape(len(one), -1).sum(1) for one in gradients]
    by_element = [one * one for one in gradients]
    sums = [
        (element if one.dim() < 2 else row).double().sum()
        for one, row, element in zip(gradients, by_row, by_element, strict=True)
    ]
    norm = torch.stack(sums).sum().sqrt().float()
    for one in gradients:
        one.mul_(min(task.clip / (norm + 1e-6), torch.ones(())))  # type: ignore[type-var]


Part = tuple[Tensor, list[Tensor]]  # the share of the loss, and the gradient of each parameter


def part_by_hand(task: Task, model: nn.Module, ids: list[int], place: tuple[int, ...], batch: int) -> Part:
    """A part of a batch: its microbatches one after the other."""
    (x, y), parameters = task.rows[0], list(model.parameters())
    total, losses = [torch.zeros_like(parameter) for parameter in parameters], []
    for number, start in enumerate(range(0, len(ids), task.micro)):
        some = torch.tensor(ids[start : start + task.micro])
        seed = stream(stream(task.seed, STEP), *place, number)
        torch.default_generator.manual_seed(seed & 0xFFFFFFFF)
        loss = task.loss(model(x[some]), y[some]) * (len(some) / batch)
        total = [one + new for one, new in zip(total, torch.autograd.grad(loss, parameters), strict=True)]
        losses.append(loss.detach())
    return torch.stack(losses).sum() if losses else torch.zeros(()), total


def added(parts: list[Part]) -> Part:
    """The sum of the first half and that of the second half."""
    if len(parts) == 1:
        return parts[0]
    (loss, one), (other_loss, other) = added(parts[: len(parts) // 2]), added(parts[len(parts) // 2 :])
    return loss + other_loss, [left + right for left, right in zip(one, other, strict=True)]


def seed_globals(task: Task) -> None:
    random.seed(task.seed)
    np.random.seed(task.seed % 2**32)


def outputs(task: Task, model: nn.Module, features: Tensor) -> Iterator[Tensor]:
    """The model's outputs, each part with the seed of the row that it begins at."""
    model.eval()
    for start in range(0, len(features), task.evaluated_rows):
        seed_torch(task.seed, PREDICT, start)
        with torch.no_grad():
            # A copy: MKL has other kernels for memory that is not aligned, which round differently on some CPUs.
            yield model(features[start : start + task.evaluated_rows].clone())
    model.train()


def evaluate(task: Task, model: nn.Module, rows: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """The mean loss over the rows, and the accuracy or the root of the mean squared error."""
    drawn = random.getstate(), np.random.get_state()
    x, y = rows
    total, predictions = 0.0, []
    for part in outputs(task, model, x):
        start = sum(map(len, predictions))
        total += float(task.loss(part, y[start : start + len(part)])) * len(part)
        predictions.append(task.predicted(part))
    random.setstate(drawn[0])
    np.random.set_state(drawn[1])
    values = torch.cat(predictions).numpy()
    if y.dtype == torch.int64:
        return total / len(x), sum(
            int(row.argmax()) == int(t) for row, t in zip(values, y, strict=True)
        ) / len(x)
    errors = values.astype(np.float64) - y.numpy().astype(np.float64)
    return total / len(x), math.sqrt(float(np.mean(errors**2)))


# -- the two tasks


def decaying(weights: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """The matrices with a weight decay of 0.1; the biases, and the gains of norms, with none."""
    groups: list[dict[str, Any]] = [{"params": [], "weight_decay": decay} for decay in (0.1, 0.0)]
    for parameter in weights:
        groups[parameter.ndim < 2]["params"].append(parameter)
    return groups


def classes() -> Task:
    """Classification with everything switched on.

    Microbatches that do not divide, an uneven last batch, clipping.
    """
    random = np.random.default_rng(0)
    sizes = (53, 17, 13)
    x = [torch.from_numpy(random.normal(size=(n, 5)).astype(np.float32)) for n in sizes]
    y = [(some[:, 0] + some[:, 1] > 0).long() + (some[:, 2] > 0.5).long() for some in x]
    warmup, steps, base, final = 4, 23, 0.02, 0.1

    def rate(step: int) -> float:
        if step < warmup:
            return base * (step + 1) / warmup
        return base * (
            final + (1 - final) * (1 + math.cos(math.pi * min((step - warmup) / (steps - warmup), 1.0))) / 2
        )

    return Task(
        "Net",
        tuple(zip(x, y, strict=True)),
        outputs=3,
        loss=functional.cross_entropy,
        predicted=lambda out: torch.softmax(out, dim=1),
        optimizer=lambda weights, lr: torch.optim.AdamW(decaying(weights), lr=lr, fused=True),
        rate=rate,
        steps=steps,
        batch=12,
        micro=5,
        evaluated_rows=7,
        evaluate_every=4,
        log_every=3,
        clip=0.3,
    )


def virtual_ranks() -> Task:
    """The same in four virtual ranks of two microbatches each."""
    return dataclasses.replace(classes(), net="Layered", ranks=4, micro=2)


def whole_batches() -> Task:
    """The same without the last batch of an epoch, which would be smaller, in two virtual ranks."""
    return dataclasses.replace(virtual_ranks(), ranks=2, drop_last=True)


def moments(values: list[float]) -> tuple[float, float]:
    """The mean, and the standard deviation of the population."""
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def values() -> Task:
    """Regression on targets far from 0, in whole batches, with momentum and a constant learning rate."""
    random = np.random.default_rng(1)
    x = [3 + random.normal(size=(n, 4)) for n in (41, 12, 10)]
    y = [torch.from_numpy(500 + 40 * some[:, 0] - 25 * some[:, 1] * some[:, 2]).float() for some in x]
    mean, scale = moments(y[0].tolist())
    columns = [moments(column.tolist()) for column in x[0].T]
    scaled = [(some - [m for m, _ in columns]) / [s for _, s in columns] for some in x]
    features = [torch.from_numpy(some.astype(np.float32)) for some in scaled]
    return Task(
        "Plain",
        tuple(zip(features, y, strict=True)),
        outputs=1,
        loss=lambda out, target: functional.mse_loss(out.reshape(-1), (target - mean) / scale),
        predicted=lambda out: out.reshape(-1) * scale + mean,
        optimizer=lambda weights, lr: torch.optim.SGD(weights, lr=lr, momentum=0.9, fused=True),
        rate=lambda step: 0.05,
        steps=15,
        batch=16,
        micro=16,
        evaluated_rows=64,
        evaluate_every=3,
        log_every=2,
        raw=tuple(x),
        seed=2**40 + 5,
    )


def config(task: Task) -> dict[str, Any]:
    training: dict[str, Any] = {"max_steps": task.steps, "batch_size": task.batch, "threads": 1}
    training["drop_last"] = task.drop_last
    if task.net != "Plain":
        training |= {
            "microbatch_size": task.micro,
            "learning_rate": 0.02,
            "weight_decay": 0.1,
            "max_grad_norm": 0.3,
        }
        training["scheduler"] = {"type": "cosine", "warmup_steps": 4, "final_lr_ratio": 0.1}
    else:
        training |= {"learning_rate": 0.05, "optimizer": {"type": "sgd", "momentum": 0.9}}
    evaluation: dict[str, Any] = {"every_n_steps": task.evaluate_every}
    if task.net != "Plain":
        evaluation["batch_size"] = 7
    return {
        "experiment": {"seed": task.seed},
        "data": {"standardize": task.net == "Plain"},
        "model": {"type": f"reference_nets:{task.net}"},
        "training": training,
        "evaluation": evaluation,
        "logging": {"every_n_steps": task.log_every},
        "distributed": {"virtual": {"data": task.ranks}},
        "checkpoint": {"metric": "val_loss", "every_n_steps": 5},
    }


def objects(task: Task) -> tuple[Any, ...]:
    """Arrays; for values a data frame, so that the targets are learned in units of their deviation."""
    if task.net != "Plain":
        return tuple((x.numpy(), y.numpy()) for x, y in task.rows)
    return tuple(
        pd.DataFrame({f"x{i}": column for i, column in enumerate(x.T)}).assign(target=y.numpy())
        for x, (_, y) in zip(task.raw, task.rows, strict=True)
    )


@dataclass
class Pair:
    """A run and the loop by hand beside it."""

    task: Task
    run: Run
    masks: list[Tensor]
    trace: Trace
    model: nn.Module


@pytest.fixture(
    scope="module",
    params=[classes, values, virtual_ranks, whole_batches],
    ids=["classes", "values", "virtual ranks", "whole batches"],
)
def pair(request: pytest.FixtureRequest, nets: Any, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    task = request.param()
    nets.MASKS.clear()
    run = trainwright.train(config(task), runs_dir=tmp_path_factory.mktemp("runs"), data=objects(task))
    masks = list(nets.MASKS)
    nets.MASKS.clear()
    trace, model = by_hand(task, nets)
    return Pair(task, run, masks, trace, model)


def journalled(run: Run, kind: str) -> list[dict[str, Any]]:
    return [record for record in read(run.path / "journal") if record["kind"] == kind]


def test_every_loss_is_that_of_the_loop_by_hand(pair: Pair) -> None:
    losses = [value for record in journalled(pair.run, "losses") for value in record["values"]]
    assert losses == pair.trace.losses


def test_the_weights_are_those_of_the_loop_by_hand(pair: Pair) -> None:
    weights = load_file(checkpoints(pair.run)[-1] / "weights.safetensors")
    assert weights.keys() == pair.trace.weights.keys()
    differing = [
        name for name, tensor in weights.items() if not torch.equal(tensor, pair.trace.weights[name])
    ]
    assert differing == []


def test_masks_are_drawn_anew_in_each_microbatch(pair: Pair) -> None:
    assert len(pair.masks) == len(pair.trace.masks) >= pair.task.steps
    assert all(torch.equal(mask, other) for mask, other in zip(pair.masks, pair.trace.masks, strict=True))
    whole = [mask.numpy().tobytes() for mask in pair.masks if len(mask) == len(pair.masks[0])]
    assert len(set(whole)) == len(whole), "two microbatches have the same mask"


def test_what_is_logged_is_the_mean_since_the_last_log(pair: Pair) -> None:
    logged = [
        (record["step"], record["values"]["train_loss"], record["values"]["learning_rate"])
        for record in journalled(pair.run, "metrics")
        if "train_loss" in record["values"]
    ]
    assert logged == pair.trace.logged


def test_evaluations_are_those_of_the_loop_by_hand(pair: Pair) -> None:
    measure = "val_accuracy" if pair.task.net != "Plain" else "val_rmse"
    evaluations = [
        (record["step"], record["values"]["val_loss"], record["values"][measure])
        for record in journalled(pair.run, "evaluation")
        if "val_loss" in record["values"]
    ]
    assert [row[:2] for row in evaluations] == [row[:2] for row in pair.trace.evaluations]
    assert [row[2] for row in evaluations] == pytest.approx(
        [row[2] for row in pair.trace.evaluations], rel=1e-12
    )


def test_the_best_model_is_tested(pair: Pair) -> None:
    loss, step, _ = pair.trace.best
    best = pair.run.result["best"]
    assert (best["step"], best["value"]) == (step, loss)
    assert pair.run.metrics["test_loss"] == pair.trace.test[0]
    measure = "test_accuracy" if pair.task.net != "Plain" else "test_rmse"
    assert pair.run.metrics[measure] == pytest.approx(pair.trace.test[1], rel=1e-12)


def test_predictions_are_those_of_the_loop_by_hand(pair: Pair) -> None:
    x = pair.task.rows[2][0]
    rows = x.numpy() if pair.task.net != "Plain" else objects(pair.task)[2]
    predictor = trainwright.load(pair.run)
    seed_globals(pair.task)
    predicted = predictor.outputs(rows)
    seed_globals(pair.task)
    expected = torch.cat([pair.task.predicted(part) for part in outputs(pair.task, pair.model, x)])
    assert np.array_equal(predicted, expected.numpy())


def test_the_learning_rate_of_each_step(nets: Any, tmp_path: Path) -> None:
    task = classes()
    settings = config(task) | {"logging": {"every_n_steps": 1}}
    run = trainwright.train(
        settings, {"evaluation.every_n_steps": 100}, runs_dir=tmp_path, data=objects(task)
    )
    rates = [
        record["values"]["learning_rate"]
        for record in journalled(run, "metrics")
        if "train_loss" in record["values"]
    ]
    assert rates == [task.rate(step) for step in range(task.steps)]
    assert rates[0] == 0.02 / 4
    assert rates[3] == rates[4] == 0.02
