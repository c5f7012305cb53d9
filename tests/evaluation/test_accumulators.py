"""A user's own metrics that add up by themselves: what they count, how counts are merged, and where they decide."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import (
    ConcordanceCorrCoef,
    MaxMetric,
    MeanMetric,
    MeanSquaredError,
    PearsonCorrCoef,
    R2Score,
    SpearmanCorrCoef,
)
from torchmetrics.classification import MulticlassF1Score

import trainwright
from small_runs import SMALL, assert_same, whole_and_resumed
from trainwright.errors import InputError, ModelError
from trainwright.plugins import find
from trainwright.runs.data.checks import check_accumulators
from trainwright.tasks.support.accumulators import Accumulator

SOURCE = """
import torch
from torchmetrics.classification import MulticlassJaccardIndex


class Pixels:
    greater_is_better = True

    def __init__(self):
        self.hits = self.pixels = 0

    def update(self, outputs, targets):
        counted = targets != -100
        self.hits += int(((outputs.argmax(1) == targets) & counted).sum())
        self.pixels += int(counted.sum())

    def compute(self):
        return self.hits / self.pixels


jaccard_index = MulticlassJaccardIndex(3)


class Nats:
    def __init__(self):
        self.nats = self.tokens = 0.0

    def update(self, outputs, labels):
        counted = labels != -100
        log = outputs[counted].log_softmax(-1).gather(-1, labels[counted][:, None])
        self.nats -= log.double().sum().item()
        self.tokens += int(counted.sum())

    def compute(self):
        return self.nats / self.tokens


class CostError:
    greater_is_better = False

    def __init__(self):
        self.errors = []

    def update(self, outputs, batch):
        self.errors.append((outputs["cost"] - batch["cost"]).abs().sum().item())

    def compute(self):
        return sum(self.errors)


class Highest:
    def __init__(self):
        self.highest = 0.0

    def update(self, outputs, targets):
        self.highest = max(self.highest, float(outputs.abs().max()))

    def compute(self):
        return self.highest


class Changing:
    def __init__(self):
        self.rows = 0

    def update(self, outputs, targets):
        targets[targets == 1] = 0
        self.rows += len(targets)

    def compute(self):
        return self.rows


class Shy:
    def update(self, outputs, targets):
        raise RuntimeError("no")

    def compute(self):
        return 0.0


def token_loss(input, target):
    return torch.nn.functional.cross_entropy(input.flatten(0, 1), target.flatten())
"""


class Heads(nn.Module):
    """(rows, 4) -> the task's own output, (rows, 2), and a second one, (rows,)."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(4, 3)

    def forward(self, numbers: torch.Tensor) -> dict[str, torch.Tensor]:
        both = self.both(numbers)
        return {"logits": both[:, :2], "cost": both[:, 2]}


@pytest.fixture
def adding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the module `adding`, in which the test works."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "adding.py").write_text(SOURCE)
    yield tmp_path
    sys.modules.pop("adding", None)


def masks() -> dict[str, np.ndarray[Any, Any]]:
    """60 images of noise, whose pixels are of three classes, or of none."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 8, 8, 3)).astype(np.float32)
    y = (x[..., 0] > 0).astype(np.int64) + (x[..., 1] > 0.5)
    y[:, 0] = 255
    return {"X": x, "y": y}


SEGMENTATION: dict[str, Any] = {
    "experiment": {"name": "masks", "seed": 3},
    "data": {"type": "npz", "path": "masks.npz", "task": "segmentation", "ignore_index": 255},
    "model": {"type": "unet", "params": {"base_width": 4, "depth": 1}},
    "training": {"max_steps": 12, "batch_size": 16, "learning_rate": 0.01, "threads": 1},
    "evaluation": {"every_n_steps": 3, "batch_size": 4},
    "checkpoint": {"every_n_steps": 5, "every_n_minutes": None},
    "logging": {"every_n_steps": 1},
}


def counted(metric: Any, parts: list[Callable[[Any], None]]) -> float:
    one = Accumulator("mine:metric", "metric", metric)
    return one.value([one.counted(part) for part in parts])


def parts_of(outputs: torch.Tensor, targets: torch.Tensor) -> list[Callable[[Any], None]]:
    """Three parts of different sizes."""
    rows = zip(outputs.split([5, 1, 14]), targets.split([5, 1, 14]), strict=True)
    return [lambda metric, given=given: metric.update(*given) for given in rows]


@pytest.mark.parametrize("average", ["macro", "micro", "weighted"])
def test_torchmetrics_merged_over_parts_is_torchmetrics_on_all(average: Any) -> None:
    outputs, targets = torch.randn(20, 4), torch.randint(0, 4, (20,))
    metric = MulticlassF1Score(4, average=average)
    expected = MulticlassF1Score(4, average=average)(outputs, targets)
    assert counted(metric, parts_of(outputs, targets)) == pytest.approx(float(expected))


def test_lists_and_classes_and_what_torchmetrics_does_not_merge() -> None:
    outputs, targets = torch.randn(20), torch.randn(20)
    for kind in (MeanSquaredError, SpearmanCorrCoef):
        assert counted(kind, parts_of(outputs, targets)) == pytest.approx(
            float(kind()(outputs, targets)), rel=1e-5
        )


@pytest.mark.parametrize("kind", [PearsonCorrCoef, ConcordanceCorrCoef, R2Score, MaxMetric, MeanMetric])
def test_torchmetrics_are_merged_as_between_processes(kind: Any) -> None:
    outputs, targets = torch.randn(20), torch.randn(20)
    given = (outputs,) if kind in (MaxMetric, MeanMetric) else (outputs + targets, targets)
    rows = zip(*(one.split([5, 1, 14]) for one in given), strict=True)
    parts: list[Any] = [lambda metric, part=part: metric.update(*part) for part in rows]
    assert counted(kind, parts) == pytest.approx(float(kind()(*given)), abs=1e-5)


class Within:
    """Counts in other metrics, which see nothing right in the first part."""

    def __init__(self) -> None:
        self.first = MulticlassF1Score(4, average="micro")
        self.others = [Slots(), Slots()]

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        for one in (self.first, *self.others):
            one.update(outputs, targets)

    def compute(self) -> float:
        return float(self.first.compute() + 10 * self.others[1].compute())


class Slots:
    """Counts in a slot, and in a kind of dict of its own."""

    __slots__ = ("hits",)

    def __init__(self) -> None:
        self.hits: Counter[str] = Counter()

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.hits["right"] += int((outputs.argmax(1) == targets).sum())

    def compute(self) -> float:
        return self.hits["right"] + self.hits["none"]


class Shared:
    """Counts in a list of the class."""

    seen: list[float] = []  # noqa: RUF012 - the mistake

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.seen.extend((outputs.argmax(1) == targets).float().tolist())

    def compute(self) -> float:
        return sum(self.seen) / len(self.seen)


class Largest:
    """Keeps a maximum, which is 0 on the first part."""

    def __init__(self) -> None:
        self.most = 0.0

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.most = max(self.most, float((outputs.argmax(1) == targets).float().mean()))

    def compute(self) -> float:
        return self.most


def nothing_right_at_first() -> tuple[torch.Tensor, torch.Tensor]:
    targets = torch.randint(0, 4, (20,))
    outputs = nn.functional.one_hot((targets + (torch.arange(20) < 5)) % 4, 4).float()
    return outputs, targets


def test_metrics_within_a_metric_and_slots_are_counted() -> None:
    outputs, targets = nothing_right_at_first()
    assert counted(Within, parts_of(outputs, targets)) == pytest.approx(0.75 + 10 * 15)
    fresh = Accumulator("mine:Within", "Within", Within)._fresh()
    assert not fresh.first.distributed_available_fn()  # other processes are not in `compute`


@pytest.mark.parametrize(
    ("kind", "message"), [(Shared, "changes seen of the class"), (Largest, "two updates of one object give")]
)
def test_counts_that_the_first_part_hides_are_refused(kind: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        counted(kind, parts_of(*nothing_right_at_first()))


class Noisy:
    """Draws random numbers: of all, of its own, or when it computes."""

    kind = ""

    def __init__(self) -> None:
        self.total = 0.0
        self.numpy, self.torch = np.random.default_rng(0), torch.Generator().manual_seed(0)

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        drawn: dict[str, Callable[[], float]] = {
            "of all": np.random.random,
            "numpy": self.numpy.random,
            "torch": lambda: float(torch.rand(1, generator=self.torch)),
            "fixed": np.random.default_rng(7).random,
        }
        self.total += len(targets) * drawn.get(self.kind, float)()

    def compute(self) -> float:
        return self.total + (np.random.random() if self.kind == "compute" else 0)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("of all", "the same rows give .*, and then .*"),
        ("compute", "the same rows give .*, and then .*"),
        ("numpy", "`update` draws from numpy, which goes on from part to part"),
        ("torch", "`update` draws from torch, which goes on from part to part"),
    ],
)
def test_a_metric_that_draws_random_numbers_is_told_so(kind: str, why: str) -> None:
    parts = parts_of(*nothing_right_at_first())
    noisy, fixed = (type("Noisy", (Noisy,), {"kind": one}) for one in (kind, "fixed"))
    with pytest.raises(ModelError, match=rf"draws random numbers: .*{why};\n.*from a fixed seed"):
        counted(noisy, parts)
    assert counted(fixed, parts) == pytest.approx(20 * np.random.default_rng(7).random())


class Several:
    """Counts in attributes of all kinds, one of which begins as None."""

    def __init__(self) -> None:
        self.classes = 3  # no count: it stays what it is
        self.array, self.by_name, self.seen, self.any = np.zeros(2), {}, set[int](), False
        self.total: torch.Tensor | None = None
        self.device = torch.device("cpu")

    def update(self, value: float) -> None:
        self.device = torch.device("meta")  # as torchmetrics' when they follow a model to a GPU
        self.array += value
        self.by_name[str(value)] = self.by_name.get(str(value), 0) + 1
        self.seen |= {int(value)}
        self.any |= value > 2
        self.total = torch.tensor(value) + (0 if self.total is None else self.total)

    def compute(self) -> float:
        assert (self.classes, self.any, self.seen) == (3, True, {1, 4})
        assert self.by_name == {"1.0": 2, "4.0": 1}
        return float(self.array.sum() + self.total)


def test_counts_of_all_kinds_are_added() -> None:
    one = Accumulator("mine:Several", "Several", Several)
    one._is_checked = True  # the first part alone does not satisfy the assertion in `compute`
    states = [one.counted(lambda metric, value=value: metric.update(value)) for value in (1.0, 4.0, 1.0)]
    assert one.value(states) == 3 * 6.0
    assert "classes" not in states[0][""]
    assert "any" not in states[0][""]


def test_a_metric_that_decides_has_the_bits_of_ours_and_resumes(adding: Path) -> None:
    np.savez("masks.npz", **masks())
    overrides: dict[str, Any] = {
        "data": SEGMENTATION["data"],
        "model": SEGMENTATION["model"],
        "evaluation.every_n_steps": 3,
        "evaluation.metrics": ["adding:Pixels", "adding:jaccard_index", "pixel_accuracy", "iou"],
        "checkpoint.metric": "val_Pixels",
        "training.early_stopping": {"metric": "val_jaccard_index", "patience": 6},
    }
    whole, resumed = whole_and_resumed(adding, overrides)
    assert_same(resumed, whole)
    assert whole.metrics["test_Pixels"] == whole.metrics["test_pixel_accuracy"]
    assert whole.metrics["test_jaccard_index"] == pytest.approx(whole.metrics["test_iou"], abs=1e-6)
    assert whole.result["best"]["metric"] == "val_Pixels"
    assert trainwright.evaluate(whole)["test_Pixels"] == whole.metrics["test_Pixels"]
    other = trainwright.train(SEGMENTATION, {**overrides, "experiment.seed": 4}, runs_dir="runs")
    assert [test.metric for test in trainwright.compare(whole, other).tests] == ["pixel_accuracy", "iou"]


def test_text_is_counted_from_its_logits_and_own_losses_get_its_labels(adding: Path) -> None:
    (adding / "text.txt").write_text("the same words again and again, " * 60)
    config = {
        "data": {"type": "text", "path": "text.txt", "length": 16},
        "model": {"type": "gpt", "hidden_size": 16, "num_layers": 1, "num_heads": 2},
        "training": {"max_steps": 3, "batch_size": 8, "threads": 1, "loss": "adding:token_loss"},
        "evaluation": {"metrics": ["adding:Nats"], "batch_size": 3},
    }
    run = trainwright.train(config, runs_dir="runs")
    assert run.metrics["test_Nats"] == pytest.approx(run.metrics["test_loss"], rel=1e-5)
    usual = trainwright.train(config, {"training.loss": "auto"}, runs_dir="runs")
    assert usual.metrics["test_loss"] == pytest.approx(run.metrics["test_loss"], rel=1e-5)


def test_a_second_head_is_measured(adding: Path) -> None:
    draw = np.random.default_rng(1)
    train, val, test = (
        {
            "numbers": draw.normal(size=(50, 4)).astype(np.float32),
            "cost": draw.normal(size=50).astype(np.float32),
            "target": draw.integers(0, 2, 50),
        }
        for _ in range(3)
    )
    config = {
        "training": {"max_steps": 2, "threads": 1},
        "evaluation": {"metrics": ["accuracy", "adding:CostError"], "batch_size": 7},
        "checkpoint": {"metric": "val_CostError"},
    }
    run = trainwright.train(config, model=Heads(), data=(train, val, test), runs_dir="runs")
    with torch.no_grad():
        module = trainwright.load(run, model=Heads()).native
        found = module(torch.from_numpy(test["numbers"]))["cost"].numpy()
    assert run.metrics["test_CostError"] == pytest.approx(np.abs(found - test["cost"]).sum(), rel=1e-5)


@pytest.mark.parametrize(
    ("metric", "overrides", "error", "message"),
    [
        (
            "adding:Highest",
            {},
            ModelError,
            r"does not add up: two updates of one object give .*\n.*begin at 0",
        ),
        ("adding:Shy", {}, ModelError, r"Shy\.update failed: RuntimeError: no; it gets the model's output"),
        ("adding:Changing", {}, ModelError, r"it changes the array target in place.*clone it first"),
        (
            "torchmetrics.classification:MulticlassF1Score",
            {},
            InputError,
            "is constructed without arguments.*name an object of it, made in your module",
        ),
        (
            "adding:Pixels",
            {"model": "logistic_regression"},
            InputError,
            "outputs of torch models, not those of",
        ),
        (
            "adding:Nats",
            {"data.type": "diabetes", "data.target_transform": "sqrt"},
            InputError,
            r"not beside data\.target_transform",
        ),
    ],
)
def test_what_does_not_add_up_is_refused_before_a_step(
    adding: Path, metric: str, overrides: dict[str, Any], error: type[Exception], message: str
) -> None:
    config = {
        "data": {"type": "iris"},
        "model": "mlp",
        "evaluation": {"metrics": [metric]},
        "training": {"max_steps": 2},
    }
    if "model" in overrides:
        del config["training"]
    with pytest.raises(error, match=message):
        trainwright.train(config, overrides, runs_dir="runs")
    assert all(run.steps == 0 for run in trainwright.list_runs("runs"))


def test_a_head_names_it_in_the_list_of_all(adding: Path) -> None:
    heads = {"cost": {"task": "regression", "metrics": ["adding:CostError"]}}
    config = trainwright.check(SMALL, {"training.heads": heads}).config
    with pytest.raises(
        InputError, match=r"heads\.cost\.metrics: adding:CostError adds up .* list it in evaluation"
    ):
        check_accumulators(config, find("framework", "torch"))


@pytest.mark.slow
def test_an_object_in_ones_own_module_is_evaluated_in_another_process(adding: Path) -> None:
    config = {
        "data": "iris",
        "model": "mlp",
        "training": {"max_steps": 2, "threads": 1},
        "evaluation": {"metrics": ["adding:jaccard_index"]},
    }
    run = trainwright.train(config, runs_dir="runs")
    code = f"import trainwright; print(trainwright.evaluate({str(run.path)!r})['test_jaccard_index'])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.stdout.strip() == str(run.metrics["test_jaccard_index"]), told.stderr


@pytest.mark.slow
def test_two_processes_count_the_same(adding: Path) -> None:
    np.savez("masks.npz", **masks())
    overrides = {"evaluation.metrics": ["adding:Pixels", "adding:jaccard_index"], "training.max_steps": 4}
    shared = {**overrides, "distributed.virtual.data": 2}
    alone = trainwright.train(SEGMENTATION, shared, runs_dir="alone")
    both = trainwright.train(SEGMENTATION, {**shared, "distributed.nproc": 2}, runs_dir="both")
    assert both.digest == alone.digest
    assert both.metrics == alone.metrics
