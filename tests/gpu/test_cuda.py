"""Runs of torch on a GPU: resumed to the same bits, as a loop by hand computes them, near those of the CPU.

`make gpu` runs them; all other tests train on CPUs, also where there is a GPU.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

import trainwright
from small_runs import SMALL, assert_same, checkpoints, journal_values, whole_and_resumed
from trainwright.errors import InputError, TrainingError
from trainwright.order import INIT, STEP, SampleOrder, stream_seed
from trainwright.runs.run import Run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: `make gpu`"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EXACT = {"training.device": "cuda", "training.determinism": "bitwise"}


class Net(nn.Module):
    """Draws on the device, and on the host."""

    def __init__(self, in_features: int, out_features: int, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(in_features, width)
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(width, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.relu(self.norm(self.first(x))))
        return self.last(hidden * (1 + 0.01 * torch.rand(()).item() + 0.01 * random.random()))


class Wide(nn.Module):
    """Needs more memory than there is."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.last = nn.Linear(in_features, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x) + (torch.empty(2**41, device=x.device).sum() if len(x) > 1 else 0.0)


def rows(seed: int = 0) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Training, validation and test rows of three classes."""
    draw = np.random.default_rng(seed)
    x = [draw.normal(size=(n, 20)).astype(np.float32) for n in (999, 200, 200)]
    return tuple((one, (one[:, 0] > 0).astype(np.int64) + (one[:, 1] > 1)) for one in x)


CONFIG: dict[str, Any] = {
    "experiment": {"seed": 7},
    "data": {"standardize": False},
    "model": {"type": "test_cuda:Net"},
    "training": {"max_steps": 50, "batch_size": 64, "learning_rate": 0.01, "weight_decay": 0.0},
    "evaluation": {"every_n_steps": 20},
    "checkpoint": {"every_n_steps": 10, "every_n_minutes": None},
    "logging": {"every_n_steps": 1},
}


def by_hand(steps: int = 50, device: str = DEVICE, ranks: int = 1) -> tuple[nn.Module, list[float]]:
    """The loop of CONFIG, and the loss of each step."""
    (x, y), *_ = (tuple(torch.from_numpy(one).to(device) for one in split) for split in rows())
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(stream_seed(7, INIT))
    model = Net(20, 3).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0, fused=True)
    order, losses = SampleOrder(len(x), 64, 7), []
    for step in range(steps):
        seed = stream_seed(stream_seed(7, STEP), step, 0)
        torch.default_generator.manual_seed(seed & 0xFFFFFFFF)
        if device == "cuda":
            torch.cuda.manual_seed(seed)
        ids = torch.from_numpy(order.batch(step)).to(device)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x[ids]), y[ids])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


def final_weights(run: Run) -> dict[str, torch.Tensor]:
    return load_file(checkpoints(run)[-1] / "weights.safetensors")


def test_a_loop_by_hand_gives_the_same_bits(tmp_path: Path) -> None:
    run = trainwright.train(CONFIG, EXACT, runs_dir=tmp_path, data=rows())
    model, losses = by_hand()
    assert [value for _, value in sorted(journal_values(run)[0].items())] == losses
    weights = final_weights(run)
    assert all(torch.equal(value.cpu(), weights[name]) for name, value in model.state_dict().items())
    assert run.result["determinism"]["tier"] == "bitwise"
    assert torch.cuda.get_device_name() in json.dumps(run.manifest["environment"])


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_it_learns_what_the_cpu_learns(precision: str, tmp_path: Path) -> None:
    given = {"training.precision": precision, "model": {"type": "mlp", "hidden": [32]}}
    there = trainwright.train(CONFIG, {**EXACT, **given}, runs_dir=tmp_path, data=rows())
    here = trainwright.train(
        CONFIG,
        {**given, "training.precision": "fp32", "training.device": "cpu"},
        runs_dir=tmp_path,
        data=rows(),
    )
    tolerance = {"fp32": 1e-4, "tf32": 5e-3}.get(precision, 0.03)
    assert there.result["metrics"]["val_loss"] == pytest.approx(
        here.result["metrics"]["val_loss"], rel=tolerance
    )


FEATURES: dict[str, dict[str, Any]] = {
    "fp16": {"training.precision": "fp16", "training.max_grad_norm": 0.5},
    "bf16": {"training.precision": "bf16", "training.microbatch_size": 5},
    "tf32": {"training.precision": "tf32"},
    "ema, muon": {"training.ema": 0.9, "training.optimizer": "muon"},
    "adagrad": {"training.optimizer": "adagrad"},
    "sgd": {"training.optimizer": {"type": "sgd", "momentum": 0.9}},
    "lion, groups": {
        "training.optimizer": "lion",
        "training.parameter_groups": [{"match": "layers.1.*", "lr_ratio": 0.5}],
    },
    "own optimizer": {"training.optimizer": {"type": "torch.optim:ASGD"}},
    "virtual ranks": {"distributed.virtual.data": 4, "training.microbatch_size": 3},
    "checkpointing": {"training.activation_checkpointing": ["layers"]},
    "offload": {"distributed.offload": True, "training.optimizer": "adamw"},
    "offload, muon": {"distributed.offload": True, "training.optimizer": "muon", "training.ema": 0.9},
    "frozen": {"training.freeze": [{"match": "layers.1.*", "until_step": 12}]},
    "weights": {"training.class_weights": "balanced"},
    "batch norm": {"model.params": {"hidden": [16], "normalization": "batch"}},
    "cnn": {"data": {"type": "digits"}, "model": {"type": "cnn", "params": {"dropout": 0.1}}},
    "resnet": {"data": {"type": "digits"}, "model": {"type": "resnet"}, "training.precision": "bf16"},
    "transformer": {"model": {"type": "transformer"}},
}


@pytest.mark.parametrize("name", FEATURES)
def test_it_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    whole, resumed = whole_and_resumed(tmp_path, {**EXACT, **FEATURES[name]})
    assert_same(resumed, whole)
    assert whole.result["determinism"]["tier"] == "bitwise"
    losses = list(journal_values(whole)[0].values())
    assert np.mean(losses[-5:]) < np.mean(losses[:5]), "it does not learn"


TEXT = "".join(f"{i} squared is {i * i}. " for i in range(4000))
GPT: dict[str, Any] = {
    "model": {"type": "gpt", "params": {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "dropout": 0.1}},
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_language_model_resumes_to_the_same_bits(precision: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    data = {
        "type": "text",
        "path": str(tmp_path / "text.txt"),
        "length": 64,
        "split": {"val": 0.1, "test": 0.1},
    }
    given = {**EXACT, **GPT, "data": data, "training.precision": precision}
    whole, resumed = whole_and_resumed(tmp_path / "runs", given)
    assert_same(resumed, whole)


def test_compiled_code_learns_and_goes_on(tmp_path: Path) -> None:
    plain = {"training.max_grad_norm": 0.5, "model.params.dropout": 0.0}
    given = {"training.device": "cuda", "training.compile": True, **plain}
    whole, resumed = whole_and_resumed(tmp_path, given)
    assert whole.result["determinism"]["tier"] == "order"
    one, other = (run.result["metrics"]["val_loss"] for run in (whole, resumed))
    assert one == pytest.approx(other, rel=1e-3)
    alone = trainwright.train(SMALL, {**EXACT, **plain}, runs_dir=tmp_path)
    assert one == pytest.approx(alone.result["metrics"]["val_loss"], rel=1e-3)


class Reflected(Net):
    """Has a layer whose gradient adds up by atomic operations."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = functional.pad(self.first(x)[:, None], (1, 1), mode="reflect")
        return self.last(padded[:, 0, 1:-1])


def test_what_has_no_deterministic_kernel_is_refused_where_bits_are_promised(tmp_path: Path) -> None:
    given = {"training.device": "cuda", "model.type": "test_cuda:Reflected"}
    with pytest.raises(TrainingError, match="does not have a deterministic implementation"):
        trainwright.train(
            CONFIG, {**given, "training.determinism": "bitwise"}, runs_dir=tmp_path, data=rows()
        )
    run = trainwright.train(CONFIG, given, runs_dir=tmp_path, data=rows())
    assert run.result["determinism"]["tier"] == "order"


def test_masks_resume_to_the_same_bits(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 1, 16, 16)).astype(np.float32)
    parts = slice(0, 20), slice(20, 30), slice(30, 40)
    splits = tuple((x[part], (x[part, 0] > 0).astype(np.int64)) for part in parts)
    given = {**EXACT, "model": {"type": "unet", "base_width": 4}, "training.batch_size": 6}
    whole, resumed = whole_and_resumed(tmp_path, {**given, "data": {"task": "segmentation"}}, data=splits)
    assert_same(resumed, whole)


def test_a_model_that_is_too_large_says_so(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"memory.*set training.microbatch_size"):
        trainwright.train(CONFIG, {**EXACT, "model.type": "test_cuda:Wide"}, runs_dir=tmp_path, data=rows())


def test_a_study_goes_on_after_a_trial_that_is_too_large(tmp_path: Path) -> None:
    tuning = {"trials": 2, "sampler": "grid", "space": {"model.type": ["test_cuda:Wide", "test_cuda:Net"]}}
    study = trainwright.tune({**CONFIG, "tuning": tuning}, EXACT, runs_dir=tmp_path, data=rows())
    assert sorted(study.trials["status"]) == ["completed", "failed"]


def environment(**changes: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, **changes}


def command(*words: str, folder: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainwright", *words], cwd=folder, env=environment(**changes),
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


DIGITS = """\
data: {type: digits}
model: {type: cnn, dropout: 0.1}
training: {max_steps: 60, batch_size: 32, determinism: bitwise}
tracking: []
"""


def test_a_model_of_the_gpu_predicts_on_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(DIGITS)
    done = command("train", "config.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    there = command("evaluate", "last", "--json", folder=tmp_path)
    here = command("evaluate", "last", "--json", folder=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert (there.returncode, here.returncode) == (0, 0), there.stderr + here.stderr
    losses = [json.loads(done.stdout)["metrics"]["test_loss"] for done in (there, here)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_reproduce_answers_identical_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(DIGITS)
    assert command("train", "config.yaml", folder=tmp_path).returncode == 0
    done = command("reproduce", "last", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "identical" in done.stdout


@pytest.mark.parametrize("backend", ["gloo", "auto"])
def test_processes_that_share_a_gpu_give_the_bits_of_one(backend: str, tmp_path: Path) -> None:
    """NCCL has one process for each GPU; over gloo, they share one."""
    (tmp_path / "config.yaml").write_text(DIGITS + "distributed: {virtual: {data: 2}}\n")
    one = command("train", "config.yaml", "--runs-dir", "one", folder=tmp_path)
    assert one.returncode == 0, one.stderr
    nproc = "2" if backend == "gloo" else "1"
    how = [f"distributed.nproc={nproc}", f"distributed.backend={backend}"]
    both = command("train", "config.yaml", "--runs-dir", "both", *how, folder=tmp_path)
    assert both.returncode == 0, both.stderr
    runs = [trainwright.get("last", runs_dir=tmp_path / name) for name in ("one", "both")]
    assert runs[0].digest == runs[1].digest
    attempt = json.loads((runs[1].path / "attempts" / "0001.json").read_text())
    assert attempt["processes"] == int(nproc)


def test_more_processes_than_gpus_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(DIGITS)
    done = command("train", "config.yaml", "distributed.nproc=64", "training.batch_size=64", folder=tmp_path)
    assert (done.returncode, "64 processes need a GPU each, but this machine has" in done.stderr) == (2, True)


ADDING = """
from torchmetrics.classification import MulticlassJaccardIndex

of_both = MulticlassJaccardIndex(3)
"""


def test_metrics_that_add_up_count_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchmetrics")
    (tmp_path / "adding_there.py").write_text(ADDING)
    monkeypatch.syspath_prepend(tmp_path)
    given = {
        "model": {"type": "mlp", "hidden": [32]},
        "evaluation.metrics": ["adding_there:of_both", "accuracy"],
    }
    there = trainwright.train(CONFIG, {**EXACT, **given}, runs_dir=tmp_path, data=rows())
    here = trainwright.train(CONFIG, {**given, "training.device": "cpu"}, runs_dir=tmp_path, data=rows())
    values = [run.result["metrics"]["val_of_both"] for run in (there, here)]
    assert values[0] == pytest.approx(values[1], rel=1e-2)


STUDY = (
    DIGITS
    + """\
tuning:
  trials: 4
  parallel: {parallel}
  sampler: random
  resources: {gpu: {gpu}}
  space: {training.learning_rate: {low: 1e-4, high: 1e-2, log: true}}
"""
)


def test_trials_side_by_side_share_a_gpu(tmp_path: Path) -> None:
    digests = []
    for parallel, gpu in ((1, 1), (2, 0)):
        folder = tmp_path / str(parallel)
        folder.mkdir()
        text = STUDY.replace("{parallel}", str(parallel)).replace("{gpu: {gpu}}", f"{{gpu: {gpu}}}")
        (folder / "config.yaml").write_text(text)
        done = command("tune", "config.yaml", folder=folder)
        assert done.returncode == 0, done.stderr
        shown = command("studies", "show", "last", "--json", folder=folder)
        trials = json.loads(shown.stdout)["trials"]
        runs = [trainwright.get(trial["run_id"], runs_dir=folder / "runs") for trial in trials]
        assert {run.manifest["environment"]["framework"]["device"] for run in runs} == {
            torch.cuda.get_device_name()
        }
        digests.append([run.digest for run in runs])
    assert digests[0] == digests[1]


def test_more_gpus_than_there_are_is_an_error_before_the_first_trial(tmp_path: Path) -> None:
    tuning = {"resources": {"gpu": 1, "nproc": 64}, "space": {"training.learning_rate": [0.1, 0.2]}}
    with pytest.raises(InputError, match=rf"needs 64 GPUs, but this machine has {torch.cuda.device_count()}"):
        trainwright.tune({**CONFIG, "tuning": tuning}, runs_dir=tmp_path, data=rows())
