"""Begin with weights of a file that is not the model's own: names, skips, another head; the same bits."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import trainwright
from trainwright.errors import InputError, TrainwrightError
from trainwright.runs.run import Run

SMALL: dict[str, Any] = {
    "experiment": {"name": "start", "seed": 3},
    "data": {"type": "iris"},
    "model": {"type": "mlp", "hidden": [8, 6], "normalization": "batch", "dropout": 0.2},
    "training": {"max_steps": 16, "batch_size": 16, "threads": 1, "device": "cpu", "learning_rate": 0.01},
    "checkpoint": {"every_n_steps": 4, "every_n_minutes": None, "save_top_k": 0},
    "logging": {"every_n_steps": 1},
    "distributed": {"virtual": {"data": 2}},
}


def source_weights(classes: int, **model: Any) -> dict[str, torch.Tensor]:
    """Return weights of the model above, as drawn with another seed, for so many classes."""
    run = trainwright.train(
        SMALL
        | {
            "experiment": {"seed": 99},
            "model": SMALL["model"] | model,
            "training": SMALL["training"] | {"max_steps": 1},
        },
        runs_dir="sources",
        quiet=True,
    )
    weights = load_file(trainwright.export(run, Path("whole.safetensors")))
    (head,) = {name.rpartition(".")[0] for name in weights if weights[name].shape[:1] == (3,)}
    for leaf, one in (("weight", torch.ones(classes, 6)), ("bias", torch.ones(classes))):
        weights[f"{head}.{leaf}"] = one
    return weights


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, torch.Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("weights"))
        return source_weights(10)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begun(source: Any, **more: Any) -> dict[str, Any]:
    """Return the config of a run that begins with a source."""
    return SMALL | {"model": SMALL["model"] | {"init_from": source} | more}


def initial(config: Mapping[str, Any], runs: str) -> tuple[Run, dict[str, torch.Tensor]]:
    """Return a run of one step at a learning rate of almost 0, and its weights: those that it began with."""
    still = config["training"] | {"max_steps": 1, "learning_rate": 1e-30, "weight_decay": 0.0}
    run = trainwright.train({**config, "training": still}, runs_dir=runs, quiet=True)
    return run, load_file(trainwright.export(run, Path(f"{runs}.safetensors")))


def as_lightning(weights: Mapping[str, torch.Tensor], path: str) -> None:
    """Write a checkpoint as Lightning does, of a module with another name for its layers, and a loss."""
    names = {f"model.backbone.{name.removeprefix('layers.')}": one for name, one in weights.items()}
    torch.save({"epoch": 3, "state_dict": names | {"criterion.weight": torch.ones(3)}}, path)


STARTS = {"source": "old.ckpt", "rename": {"backbone": "layers"}, "skip": ["criterion.*"]}


def test_a_torch_file_with_other_names_and_another_head(
    weights: Mapping[str, torch.Tensor], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    as_lightning(weights, "old.ckpt")
    with caplog.at_level("INFO", "trainwright"):
        run, own = initial(begun(STARTS), "started")
    _, drawn = initial(SMALL, "drawn")
    head = {name for name in own if own[name].shape[:1] == (3,)}
    assert len(head) == 2
    for name, one in own.items():
        if name.endswith(("running_mean", "running_var", "num_batches_tracked")):
            continue  # the step has changed them
        expected = drawn[name] if name in head else weights[name]
        assert torch.allclose(one, expected, rtol=0, atol=1e-20), name
    loaded = run.manifest["weights"]["loaded"]
    assert set(loaded["new_head"]) == head
    assert loaded["loaded"] == len(weights) - 2
    assert loaded["renamed"] == {"backbone -> layers": len(weights) - 2}
    assert loaded["skipped"] == ["criterion.weight"]
    assert "new head, for another number of classes" in caplog.text
    assert list(run.manifest["weights"]["files"]) == ["old.ckpt"]


def test_the_same_file_of_safetensors_in_parts_gives_the_same_bits(
    weights: Mapping[str, torch.Tensor], folder: Path
) -> None:
    as_lightning(weights, "old.ckpt")
    run = trainwright.train(begun(STARTS), runs_dir="one", quiet=True)
    names = list(weights)
    Path("hub").mkdir()
    files = {"model-1.safetensors": names[:3], "model-2.safetensors": names[3:]}
    for file, some in files.items():
        save_file({f"_orig_mod.module.{name}": weights[name] for name in some}, Path("hub") / file)
    places = {f"_orig_mod.module.{name}": file for file, some in files.items() for name in some}
    Path("hub/model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    other = trainwright.train(begun("hub"), runs_dir="other", quiet=True)
    assert other.digest == run.digest
    assert sorted(other.manifest["weights"]["files"]) == sorted(files)
    assert other.manifest["weights"]["loaded"]["renamed"] == {"without _orig_mod.module.": len(weights) - 2}


def test_a_run_with_other_classes_gives_all_but_its_head(folder: Path) -> None:
    rows = "a,b,c,d,y\n" + "".join(f"{i % 7},{i % 5},{i % 3},{i % 2},k{i % 4}\n" for i in range(60))
    Path("four.csv").write_text(rows)
    Path("two.csv").write_text(rows.replace("k3", "k1").replace("k2", "k0"))
    config = {**SMALL, "model": {"type": "mlp", "hidden": [8]}, "data": {"path": "four.csv", "target": "y"}}
    first = trainwright.train(config, runs_dir="runs", quiet=True)
    model = {**config["model"], "init_from": str(first.path)}
    other = config | {"model": model, "data": {"path": "two.csv", "target": "y"}}
    loaded = trainwright.train(other, runs_dir="runs", quiet=True).manifest["weights"]["loaded"]
    assert len(loaded["new_head"]) == 2
    assert (loaded["loaded"], loaded["missing"], loaded["unused"]) == (2, [], [])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"skip": ["criterin.*"]}, r"skip: 'criterin\.\*' matches no tensor; nearest: criterion.weight"),
        ({"skip": ["criterion"], "rename": {"bakbone": "layers"}}, "rename: 'bakbone' matches no tensor"),
        ({"skip": ["criterion"], "rename": {"back(bone": "layers"}}, "is no regular expression"),
        ({"skip": []}, r"does not have criterion\.weight .*nearest: "),
        (
            {"skip": ["criterion"], "rename": {"backbone.1": "layer.1"}},
            "none of its tensors is in the source",
        ),
        ({"rename": {r"model\.backbone\.[12]": "layers.1"}}, r"would both be layers\.1"),
        ({"source": "no.pt"}, "does not exist"),
        ({"source": "code.pt"}, "executes code"),
        ({"source": "empty.pt"}, "holds no weights"),
        ({"source": "cut.pt"}, "not a file of torch.save"),
        ({"source": "empty"}, "the folder empty is no run, and has no weights"),
    ],
)
def test_what_does_not_fit_is_an_error(
    weights: Mapping[str, torch.Tensor], folder: Path, more: dict[str, Any], said: str
) -> None:
    as_lightning(weights, "old.ckpt")
    torch.save(nn.Linear(2, 2), "code.pt")
    torch.save({"epoch": 1}, "empty.pt")
    Path("cut.pt").write_bytes(Path("old.ckpt").read_bytes()[:100])
    Path("empty").mkdir()
    with pytest.raises(InputError, match=said):
        trainwright.train(begun(STARTS | more), runs_dir="runs", quiet=True)


def test_other_sizes_and_gaps_are_errors_unless_they_are_skipped(
    weights: Mapping[str, torch.Tensor], folder: Path
) -> None:
    save_file(dict(weights), "w.safetensors")
    with pytest.raises(
        InputError, match=r"size mismatch for layers.1.*: \(8,.* in the source, \(9,.* in the model"
    ):
        trainwright.train(begun("w.safetensors", hidden=[9, 6]), runs_dir="runs", quiet=True)
    first = next(iter(weights))
    save_file({name: one for name, one in weights.items() if name != first}, "gap.safetensors")
    with pytest.raises(InputError, match=f"the source lacks {first}"):
        trainwright.train(begun("gap.safetensors"), runs_dir="runs", quiet=True)
    for allowed in ({"strict": False}, {"skip": [first]}):
        run, _ = initial(begun({"source": "gap.safetensors", **allowed}), f"allowed{len(allowed)}{first}")
        loaded = run.manifest["weights"]["loaded"]
        assert first in (*loaded["missing"], *loaded["skipped"])
    sklearn = {"type": "lightgbm", "init_from": {"source": "w.safetensors", "skip": ["x"]}}
    with pytest.raises(TrainwrightError, match="skip, rename and strict are for models of PyTorch"):
        trainwright.train({"data": "iris", "model": sklearn}, runs_dir="runs", quiet=True)


def test_a_changed_file_is_named_by_reproduce(weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    as_lightning(weights, "old.ckpt")
    run = trainwright.train(begun(STARTS), runs_dir="runs", quiet=True)
    assert trainwright.reproduce(run).verdict == "identical"
    as_lightning({name: one + 1 for name, one in weights.items()}, "old.ckpt")
    found = trainwright.reproduce(run)
    assert found.verdict == "different"
    assert "old.ckpt" in str(found.inputs)


@pytest.mark.parametrize("ranks", [1, 2])
def test_frozen_statistics_stay_as_the_source_has_them(
    weights: Mapping[str, torch.Tensor], folder: Path, ranks: int
) -> None:
    as_lightning(weights, "old.ckpt")
    later = {"match": "layers.6", "until_step": 10, "statistics": True}
    freeze = [{"match": "layers.2", "statistics": True}, later]
    config = {**begun(STARTS), "distributed": {"virtual": {"data": ranks}}}
    config["training"] = config["training"] | {"freeze": freeze}
    overrides = {"checkpoint.every_n_steps": 5}
    runs = [
        trainwright.train(config, overrides | {"training.max_steps": steps}, runs_dir=f"{steps}", quiet=True)
        for steps in (10, 16)
    ]
    early, late = (load_file(trainwright.export(run, Path(f"{run.id}.safetensors"))) for run in runs)
    for name, one in weights.items():
        if name.startswith("layers.2."):
            assert torch.equal(late[name], one), name
        elif name.startswith("layers.6."):
            assert torch.equal(early[name], one), name
    assert int(late["layers.6.num_batches_tracked"]) == int(weights["layers.6.num_batches_tracked"]) + 6
    assert trainwright.reproduce(runs[1]).verdict == "identical"
    wrong = [{"match": "layers.1", "statistics": True}]
    with pytest.raises(InputError, match=r"freeze\.0\.statistics: layers\.1 matches no module with running"):
        trainwright.train(config, {"training.freeze": wrong}, runs_dir="wrong", quiet=True)


def killed_and_resumed(config: dict[str, Any], then: dict[str, Any]) -> Run:
    """Train in a process that is killed after step 10, and resume elsewhere."""
    Path("config.json").write_text(json.dumps(config))
    train = (
        "import json, signal, trainwright; from small_runs import SignalAt; "
        "trainwright.train(json.load(open('config.json')), runs_dir='killed', quiet=True, "
        "callbacks=[SignalAt(10, signal.SIGKILL)])"
    )
    paths = os.pathsep.join([".", str(Path(__file__).parents[1])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", train], env=environment, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return trainwright.resume("last", then, runs_dir="killed", quiet=True)


@pytest.mark.services
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_killed_and_resumed_on_two_processes_it_has_the_bits_of_the_whole_run(
    weights: Mapping[str, torch.Tensor], folder: Path, strategy: str
) -> None:
    """Batch normalization is not divided exactly by fsdp."""
    plain = {} if strategy == "ddp" else {"normalization": "none"}
    config = begun(STARTS, **plain)
    as_lightning(weights if strategy == "ddp" else source_weights(10, **plain), "old.ckpt")
    whole = trainwright.train(config, runs_dir="whole", quiet=True)
    two = {"distributed.nproc": 2, "distributed.strategy": strategy}
    assert trainwright.train(config, two, runs_dir="two", quiet=True).digest == whole.digest
    run = killed_and_resumed(config, two)
    assert (run.status, run.digest) == ("completed", whole.digest)
    assert run.manifest["weights"] == whole.manifest["weights"]


# -- losses with parameters to train

LOSSES = '''
import torch
from torch import nn

class Tempered(nn.Module):
    """The cross entropy at a temperature that is learned, with learned offsets of the classes."""
    def __init__(self, reduction="mean"):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.offset = nn.Linear(3, 3, bias=False)
        self.reduction = reduction
    def forward(self, input, target):
        logits = self.offset(input) * self.log_scale.exp()
        return nn.functional.cross_entropy(logits, target, reduction=self.reduction)
'''


def with_loss(**training: Any) -> dict[str, Any]:
    """Return the config of a run without dropout, whose loss is trained."""
    model = {**SMALL["model"], "dropout": 0.0, "normalization": "none"}
    return {
        **SMALL,
        "model": model,
        "training": {**SMALL["training"], "loss": "own_losses:Tempered", **training},
    }


def test_a_loss_with_parameters_is_trained_saved_and_reproduced(folder: Path) -> None:
    Path("own_losses.py").write_text(LOSSES)
    config = with_loss(
        optimizer="sgd", max_steps=3, parameter_groups=[{"match": "training_loss", "lr_ratio": 5}]
    )
    config["distributed"] = {}
    _, begun = initial({**config, "distributed": {}}, "begun")
    run = trainwright.train(config, runs_dir="runs", quiet=True)
    ended = load_file(trainwright.export(run, Path("ended.safetensors")))
    assert not torch.equal(begun["training_loss.offset.weight"], ended["training_loss.offset.weight"])
    assert float(ended["training_loss.log_scale"]) != 0
    state = trainwright.load(run).native.state_dict()
    assert all(torch.equal(one, ended[name]) for name, one in state.items())
    weighted = trainwright.train(
        config, {"training.class_weights": "balanced"}, runs_dir="weighted", quiet=True
    )
    assert (
        float(load_file(trainwright.export(weighted, Path("w.safetensors")))["training_loss.log_scale"]) != 0
    )
    assert trainwright.reproduce(run).verdict == "identical"


@pytest.mark.services
def test_a_trained_loss_resumes_to_the_same_bits_on_two_processes(folder: Path) -> None:
    Path("own_losses.py").write_text(LOSSES)
    config = with_loss()
    whole = trainwright.train(config, runs_dir="whole", quiet=True)
    two = {"distributed.nproc": 2}
    assert trainwright.train(config, two, runs_dir="two", quiet=True).digest == whole.digest
    assert killed_and_resumed(config, two).digest == whole.digest
    with pytest.raises(TrainwrightError, match=r"training\.loss: .* only distributed\.strategy: ddp"):
        trainwright.train(config, {**two, "distributed.strategy": "fsdp"}, runs_dir="fsdp", quiet=True)
