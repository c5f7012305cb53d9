"""`fork`, and `resume` with another length: runs that begin with the state of others."""

import json
import math
import os
import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

import trainwright
from small_runs import (
    SMALL,
    Crash,
    CrashAt,
    SignalAt,
    checkpoints,
    crashed,
    every_save_on_disk,
    flip,
    journal_values,
    preempted,
)
from trainwright.api import summaries
from trainwright.callbacks.base import Callback
from trainwright.cli.main import main
from trainwright.config import load
from trainwright.engine.saver import Saver
from trainwright.errors import ChangedInputsError, CheckpointError, InputError
from trainwright.frameworks.torch.model import LiveModel
from trainwright.order import EPOCH, permutation, stream_seed
from trainwright.records.lineage import Lineage
from trainwright.records.manifest import ForeignTrainer, Manifest
from trainwright.records.run_dir import RunDir
from trainwright.runs.catalog import Catalog
from trainwright.runs.children import origin
from trainwright.runs.run import Run
from trainwright.runs.wiring import load_data

LONGER = {"training.max_steps": 40}
SLOWER = {**LONGER, "training.learning_rate": 0.003}


def trained(runs: Path, overrides: Mapping[str, Any] | None = None) -> Run:
    """A run of 30 steps with the checkpoints of 25 and 30."""
    with every_save_on_disk():
        return trainwright.train(SMALL, overrides or {}, runs_dir=runs)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("parent"))


@pytest.fixture
def parent(made: Run, tmp_path: Path) -> Run:
    """A run of 30 steps, in a folder of its own."""
    path = tmp_path / "runs" / "small" / made.id
    shutil.copytree(made.path, path)
    return Run(path)


@pytest.fixture(scope="module")
def slower(made: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The fork at step 30, with another learning rate."""
    path = tmp_path_factory.mktemp("slower") / "small" / made.id
    shutil.copytree(made.path, path)
    return trainwright.fork(path, SLOWER)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def initial(run: Run) -> dict[str, Any]:
    """What the manifest says of the initial state."""
    return dict(run.manifest["initial"])


# -- going on


XGBOOST = {
    "model": {"type": "xgboost", "params": {"max_depth": 2, "subsample": 0.8}},
    "training": {"epochs": 50, "threads": 1},
    "evaluation": {"every_n_steps": 25},
}
SGD = {
    "model": {"type": "sklearn.linear_model:SGDClassifier", "params": {"loss": "log_loss"}},
    "training": {"max_steps": 28, "batch_size": 16, "threads": 1},
}


@pytest.mark.parametrize(
    ("config", "short", "longer"),
    [
        ({}, {"training.max_steps": 28}, {"training.max_steps": 42}),
        # Boosting that draws rows goes on exactly from multiples of 50 rounds.
        (XGBOOST, {"training.epochs": 60}, {"training.epochs": 75}),
        (SGD, {}, {"training.max_steps": 42}),
    ],
    ids=["torch", "xgboost", "sklearn"],
)
def test_going_on_leads_to_the_bits_of_a_run_that_was_never_shorter(
    config: dict[str, Any], short: dict[str, Any], longer: dict[str, Any], tmp_path: Path
) -> None:
    config = {**SMALL, **config}
    with every_save_on_disk():
        run = trainwright.train(config, short, runs_dir=tmp_path)
    before = content(run.path)
    whole = trainwright.train(config, longer, runs_dir=tmp_path / "whole")
    child = trainwright.resume(run, longer)
    assert content(run.path) == before, "a completed run has changed"
    for name in ("status", "steps", "digest", "metrics", "best", "evaluated", "epochs"):
        assert child.result[name] == whole.result[name], name
    start = initial(child)
    assert (start["relation"], start["run_id"], start["differs"]) == ("continue", run.id, [])
    losses, evaluations = journal_values(whole)
    custom_losses, own_evaluations = journal_values(child)
    assert custom_losses == {step: loss for step, loss in losses.items() if step > start["checkpoint_step"]}
    assert [one for one in evaluations if one in own_evaluations] == own_evaluations
    assert child.parent == {"run_id": run.id, "relation": "continue", "step": start["step"]}


@pytest.mark.soak
def test_going_on_counts_the_patience_of_the_parent(tmp_path: Path) -> None:
    """The metric gets worse from the start: both runs end at the same evaluation."""
    stopping = {"metric": "val_loss", "mode": "max", "patience": 5}
    overrides = {"training.early_stopping": stopping, "training.max_steps": 21}
    run = trainwright.train(SMALL, overrides, runs_dir=tmp_path)
    longer = {"training.max_steps": 70}
    whole = trainwright.train(SMALL, {**overrides, **longer}, runs_dir=tmp_path / "whole")
    child = trainwright.resume(run, longer)
    assert child.result["steps"] == whole.result["steps"] < 70
    assert child.result["best"] == whole.result["best"]
    with pytest.raises(InputError, match="early_stopping ends the run at step"):
        trainwright.resume(child, {"training.max_steps": 90})
    assert len(trainwright.list_runs(tmp_path)) == 2, "a run without steps is left"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"training.scheduler": {"type": "cosine"}}, "the learning rate of `cosine` depends on the length"),
        ({}, "the evaluation after step 30 is off the cadence"),
    ],
)
def test_what_keeps_going_on_from_being_exact_is_said(
    overrides: dict[str, Any], says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps = {"training.max_steps": 28} if overrides else {}
    run = trainwright.train(SMALL, {**overrides, **steps}, runs_dir=tmp_path)
    child = trainwright.resume(run, LONGER)
    (line,) = initial(child)["differs"]
    assert line.startswith(says)
    assert f"the run does not continue exactly: {line}" in caplog.text
    assert trainwright.reproduce(child).verdict == "identical"


def test_going_on_from_a_changed_environment_is_said(parent: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_DYNAMIC", "TRUE")
    lines = initial(trainwright.resume(parent, LONGER))["differs"]
    assert "environment: flags OMP_DYNAMIC was absent, is TRUE" in lines


def test_a_child_has_the_settings_of_its_parent_and_its_own(slower: Run, made: Run) -> None:
    parent, child = (RunDir(run.path).creation() for run in (made, slower))
    assert parent is not None
    assert child is not None
    # `training.epochs` is unset where `training.max_steps` is given.
    own = {*SLOWER, "training.epochs"}
    assert {*(child.settings or ())} == {*(parent.settings or ()), *own}


def test_a_completed_run_can_only_be_made_longer(parent: Run) -> None:
    for overrides, says in (
        ({"training.learning_rate": 0.1}, "training.learning_rate: .* fork it: trainwright fork"),
        ({**LONGER, "experiment.seed": 4}, "experiment.seed: .* fork it"),
        ({"training.max_steps": 20}, "there is nothing to train: the run would have 20 steps"),
    ):
        with pytest.raises(InputError, match=says):
            trainwright.resume(parent, overrides)
    assert trainwright.resume(parent).path == parent.path, "without a length nothing is left to do"
    assert trainwright.resume(parent, {"training.threads": 2}).path == parent.path
    assert len(trainwright.list_runs(parent.path.parent.parent)) == 1


def test_a_stopped_run_goes_on_itself_unless_it_gets_another_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainwright.engine.outside.POLL_SECONDS", 0.01)

    class StopAt(Callback):
        def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
            if step == 13:
                trainwright.stop("last", runs_dir=tmp_path, wait=False)

    # A thread looks for requests: so many steps last until it has.
    run = trainwright.train(SMALL, {"training.max_steps": 100_000}, runs_dir=tmp_path, callbacks=[StopAt()])
    assert run.status == "stopped"
    at = run.result["steps"]
    child = trainwright.resume(run, {"training.max_steps": at + 7})
    assert (run.status, child.status, child.result["steps"]) == ("stopped", "completed", at + 7)
    whole = trainwright.train(SMALL, {"training.max_steps": at + 7}, runs_dir=tmp_path / "whole")
    assert child.digest == whole.digest
    assert child.decisions == [], "its parent's stop is not its own"


def test_an_unfinished_run_keeps_its_length(tmp_path: Path) -> None:
    run = preempted(tmp_path)
    with pytest.raises(
        InputError, match=f"to change more, fork it: trainwright fork {run.id} training.max_steps="
    ):
        trainwright.resume(run, LONGER)


# -- forks, beside other trainings


def test_a_changed_learning_rate_against_a_loop_by_hand(tmp_path: Path) -> None:
    """SGD with momentum, from the parent's files on."""
    plain = {
        "model.params.dropout": 0.0,
        "training.optimizer": {"type": "sgd", "momentum": 0.9},
        "training.scheduler": {"type": "cosine"},
    }
    run = trained(tmp_path, plain)
    child = trainwright.fork(run, {"training.learning_rate": 0.05, "training.max_steps": 60}, step=25)
    folder = next(path for path in checkpoints(run) if "000025" in path.name)
    weights, momenta = (load_file(folder / f"{name}.safetensors") for name in ("weights", "optimizer"))
    torch.set_num_threads(1)
    bundle = load_data(load(SMALL, adapters=Catalog()).config)
    arrays = bundle.splits["train"].arrays  # type: ignore[attr-defined]
    x, y = torch.tensor(arrays["features"]), torch.tensor(arrays["target"])
    parameters = {name: nn.Parameter(value) for name, value in weights.items()}
    optimizer = torch.optim.SGD(parameters.values(), lr=1.0, momentum=0.9, fused=True)
    for name, parameter in parameters.items():
        optimizer.state[parameter]["momentum_buffer"] = momenta[f"{name}.momentum_buffer"]
    layers = sorted({name.rpartition(".")[0] for name in parameters})
    (first, second), (third, last) = (
        (parameters[f"{layer}.weight"], parameters[f"{layer}.bias"]) for layer in layers
    )
    for step in range(25, 60):
        order = permutation(stream_seed(3, EPOCH, step // 8), 120)
        ids = order[step % 8 * 16 :][:16]
        hidden = functional.relu(functional.linear(x[ids], first, second))
        optimizer.zero_grad()
        functional.cross_entropy(functional.linear(hidden, third, last), y[ids]).backward()
        optimizer.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * step / 60)) / 2
        optimizer.step()
    final = load_file(checkpoints(child)[-1] / "weights.safetensors")
    assert all(torch.equal(final[name], value) for name, value in parameters.items())


def test_a_changed_learning_rate_of_xgboost_against_the_library(tmp_path: Path) -> None:
    import xgboost

    config = {**SMALL, **XGBOOST, "model": {"type": "xgboost", "params": {"max_depth": 2}}}
    run = trainwright.train(config, {"training.epochs": 10}, runs_dir=tmp_path)
    overrides = {"model.params.learning_rate": 0.05, "model.params.max_depth": 3, "training.epochs": 16}
    child = trainwright.fork(run, overrides)
    folder = checkpoints(run)[-1]
    raw = load_file(folder / "weights.safetensors")["model"].numpy().tobytes()
    bundle = load_data(load(config, adapters=Catalog()).config)
    arrays = bundle.splits["train"].arrays  # type: ignore[attr-defined]
    matrix = xgboost.DMatrix(arrays["features"], arrays["target"])
    options = {"objective": "multi:softprob", "num_class": 3, "max_depth": 3, "learning_rate": 0.05}
    options |= {"nthread": 1, "tree_method": "hist"}
    start = xgboost.Booster(model_file=bytearray(raw))
    start.feature_names = None
    whole = xgboost.train(options, matrix, 6, xgb_model=start)
    model = trainwright.load(child, runs_dir=tmp_path).native
    native = getattr(model, "native", model)
    native.feature_names = None
    assert native.num_boosted_rounds() == whole.num_boosted_rounds() == 16
    ours, theirs = native.inplace_predict(arrays["features"]), whole.inplace_predict(arrays["features"])
    assert np.array_equal(ours, theirs)


def test_a_fork_whose_steps_are_repeated_first_comes_to_the_same_bits(tmp_path: Path) -> None:
    """Of two equal runs one keeps the state of step 25, the other only that of step 15 and its end."""
    run = trained(tmp_path / "kept")
    other = trained(tmp_path / "old", {"checkpoint.every_n_steps": 15})
    kept, repeated = (trainwright.fork(one, SLOWER, step=25) for one in (run, other))
    assert (initial(kept)["checkpoint_step"], initial(kept)["replayed"]) == (25, None)
    assert initial(repeated)["checkpoint_step"] == 15
    assert initial(repeated)["replayed"] == initial(kept)["state_digest"]
    assert kept.digest == repeated.digest
    assert {step: loss for step, loss in journal_values(repeated)[0].items() if step > 25} == (
        journal_values(kept)[0]
    )


@pytest.mark.soak
def test_a_step_before_each_checkpoint_is_reached_from_the_start(parent: Run, tmp_path: Path) -> None:
    child = trainwright.fork(parent, SLOWER, step=10)
    start = initial(child)
    assert (start["checkpoint_step"], start["state_digest"], start["step"]) == (0, None, 10)
    early = trained(tmp_path / "early", {"training.max_steps": 10, "checkpoint.every_n_steps": 10})
    (commit,) = checkpoints(early)
    assert start["replayed"] == json.loads((commit / "manifest.json").read_text())["state_digest"]
    assert trainwright.reproduce(child).verdict == "identical"


def test_step_0_is_a_new_run_that_knows_its_parent(parent: Run, tmp_path: Path) -> None:
    changed = {"training.max_steps": 12, "training.optimizer": "sgd", "model.params.hidden": [8]}
    child = trainwright.fork(parent, changed, step=0)
    fresh = trainwright.train(SMALL, changed, runs_dir=tmp_path / "fresh")
    assert (child.digest, child.metrics) == (fresh.digest, fresh.metrics)
    assert child.manifest["initial"] is None
    assert child.manifest["computation_hash"] == fresh.manifest["computation_hash"]
    assert child.parent == {"run_id": parent.id, "relation": "fork", "step": 0}


def test_another_batch_size_goes_on_at_the_sample_where_the_parent_was(parent: Run) -> None:
    """24 rows of the fourth epoch are left, 4 steps of 7; then 18 steps are an epoch, and 8 remain."""
    child = trainwright.fork(parent, {"training.batch_size": 7, "training.max_steps": 60})
    start = initial(child)
    assert (start["epoch"], start["consumed"]) == (3, 96)
    assert child.result["epochs"] == pytest.approx(4 + 1 + 8 * 7 / 120)
    assert trainwright.reproduce(child).verdict == "identical"


@pytest.mark.parametrize(
    ("key", "value", "before"), [("training.precision", "fp16", "fp32"), ("training.ema", 0.9, None)]
)
def test_a_fork_may_begin_and_end_what_belongs_to_the_state(
    key: str, value: Any, before: Any, parent: Run
) -> None:
    """The scaler of gradients, or the average of weights, which begins as that of a new run."""
    child = trainwright.fork(parent, {**LONGER, key: value})
    assert trainwright.reproduce(child).verdict == "identical"
    back = trainwright.fork(child, {key: before, "training.max_steps": 44})
    assert (back.status, back.result["steps"]) == ("completed", 44)
    assert trainwright.reproduce(back).verdict == "identical"


def test_an_average_that_begins_in_a_fork_begins_with_the_weights(parent: Run) -> None:
    """With a decay of almost 1 it stays what the parent ended with."""
    child = trainwright.fork(parent, {**LONGER, "training.ema": 1 - 1e-12})
    first, last = (load_file(checkpoints(run)[-1] / "weights.safetensors") for run in (parent, child))
    assert all(torch.allclose(first[name], last[name], rtol=0, atol=1e-9) for name in first)


def test_epochs_are_whole_passes_whatever_the_batch_size(tmp_path: Path) -> None:
    """The evaluations after each epoch are where the epochs end."""
    config = {**SMALL, "training": {"epochs": 2, "batch_size": 16, "threads": 1}, "evaluation": {}}
    with every_save_on_disk():
        run = trainwright.train(config, {"checkpoint.every_n_steps": 12}, runs_dir=tmp_path)
    child = trainwright.fork(run, {"training.batch_size": 30, "training.epochs": 4}, step=12)
    # 56 rows of the second epoch are left: 2 steps; then 4 steps are an epoch.
    assert (child.result["steps"], child.result["epochs"]) == (12 + 2 + 4 + 4, 4.0)
    assert [step for step, _ in journal_values(child)[1][:3]] == [14, 18, 22]


# -- proof


def test_forks_are_reproduced_without_their_parent(parent: Run) -> None:
    children = [
        trainwright.fork(parent, SLOWER),
        trainwright.fork(parent, SLOWER, step=27),
        trainwright.resume(parent, LONGER),
    ]
    shutil.rmtree(parent.path)
    for child in children:
        answer = trainwright.reproduce(child)
        assert (answer.verdict, list(answer.inputs)) == ("identical", [])
        again = trainwright.get(answer.repetition, runs_dir=child.path.parent.parent)
        assert again.parent == {"run_id": child.id, "relation": "reproduce", "step": None}
        assert initial(again) == initial(child) | {"differs": initial(again)["differs"]}
    assert trainwright.reproduce(answer.repetition, runs_dir=child.path.parent.parent).verdict == "identical"


def test_a_fork_of_a_fork(parent: Run) -> None:
    first = trainwright.fork(parent, {**SLOWER, "training.batch_size": 20}, step=27)
    second = trainwright.fork(first, {"training.batch_size": 9, "training.max_steps": 50}, step=33)
    third = trainwright.resume(second, {"training.max_steps": 60})
    shutil.rmtree(first.path)
    assert [initial(one)["step"] for one in (second, third)] == [33, 50]
    assert trainwright.reproduce(second).verdict == "identical"
    assert trainwright.reproduce(third).verdict == "identical"
    with pytest.raises(InputError, match=f"begins with step 33 of run {first.id}, which is not there"):
        trainwright.fork(second, LONGER, step=20)


def test_a_step_before_the_first_one_is_of_the_parent(parent: Run, caplog: pytest.LogCaptureFixture) -> None:
    child = trainwright.fork(parent, SLOWER, step=27)
    with caplog.at_level("INFO", "trainwright"):
        other = trainwright.fork(child, SLOWER, step=20)
    assert other.parent == {"run_id": parent.id, "relation": "fork", "step": 20}
    assert f"run {child.id} begins with step 27 of run {parent.id}: that one" in caplog.text
    assert other.digest == trainwright.fork(parent, SLOWER, step=20).digest


def test_another_initial_state_is_another_computation(parent: Run, caplog: pytest.LogCaptureFixture) -> None:
    """A fork is never taken for the run from scratch of its config, neither when it is done nor before."""
    runs = parent.path.parent.parent
    child = trainwright.fork(parent, SLOWER)
    with pytest.raises(Crash):
        trainwright.fork(parent, SLOWER, callbacks=[CrashAt(33)])
    fresh = trainwright.train(SMALL, SLOWER, runs_dir=runs, reuse=True, resume=True)
    assert fresh.parent is None
    assert fresh.digest != child.digest
    assert trainwright.train(SMALL, SLOWER, runs_dir=runs, reuse=True).id == fresh.id
    other = trainwright.fork(parent, SLOWER, step=25)
    hashes = {run.manifest["computation_hash"] for run in (child, fresh, other)}
    assert len(hashes) == 3
    named = RunDir(child.path).require_manifest().differences(RunDir(other.path).require_manifest())
    assert {"initial state, step", "initial state, state_digest"} <= {one.what for one in named}


def test_evaluations_keep_the_cadence_at_which_they_were_made(parent: Run) -> None:
    """Only that of step 30 was made because the run ended there, though 30 is on the fork's cadence."""
    first = trainwright.fork(parent, {**SLOWER, "evaluation.every_n_steps": 5})
    second = trainwright.fork(first, {"training.max_steps": 45})
    irregular = [lineage.irregular for one in (first, second) if (lineage := RunDir(one.path).lineage())]
    assert irregular == [[30], [30]]


def test_initial_weights_are_needed_only_where_the_first_steps_are_repeated(
    made: Run, tmp_path: Path
) -> None:
    file = tmp_path / "weights.safetensors"
    shutil.copy(checkpoints(made)[-1] / file.name, file)
    run = trained(tmp_path, {"model.init_from": str(file)})
    early = trainwright.fork(run, SLOWER, step=9)
    assert trainwright.reproduce(early).verdict == "identical"
    short = trained(tmp_path, {"model.init_from": str(file), "training.max_steps": 9})
    assert initial(early)["replayed"] == initial(trainwright.fork(short, SLOWER))["state_digest"]
    file.unlink()
    assert trainwright.fork(run, SLOWER).status == "completed"
    with pytest.raises(InputError, match=r"weights\.safetensors"):
        trainwright.fork(run, SLOWER, step=9)


# -- kills


@pytest.mark.parametrize(("step", "at"), [(28, 27), (28, 29), (None, 31), (10, 3)])
def test_a_fork_that_dies_is_resumed_to_the_same_bits(step: int | None, at: int, parent: Run) -> None:
    """While it repeats steps of its parent, and before its own first checkpoint."""
    whole = trainwright.fork(parent, SLOWER, step=step)
    rarely = {**SLOWER, "checkpoint.every_n_steps": None}
    with pytest.MonkeyPatch.context() as patch:
        if at < (step or at):  # later, the repeated steps are committed, and nothing else
            patch.setattr(Saver, "save", lambda *args, **options: None)
        with pytest.raises(Crash):
            trainwright.fork(parent, rarely, step=step, callbacks=[CrashAt(at)])
    shutil.rmtree(parent.path)
    died = trainwright.get("last", runs_dir=parent.path.parent.parent)
    assert died.status in ("crashed", "failed")
    run = trainwright.resume(died)
    assert (run.digest, run.metrics, run.result["best"]) == (
        whole.digest,
        whole.metrics,
        whole.result["best"],
    )
    assert initial(run) == initial(whole)


@pytest.mark.parametrize("after", [0, 1], ids=["before", "after"])
def test_a_fork_that_dies_while_it_keeps_the_repeated_state_is_resumed(
    after: int, parent: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last repeated step is committed, but it is not in `initial/`, or not in the manifest, yet."""
    whole = trainwright.fork(parent, SLOWER, step=28)
    copy = origin.copy_state

    def dies(*args: Any) -> None:
        if after:
            copy(*args)
        raise Crash

    monkeypatch.setattr(origin, "copy_state", dies)
    with pytest.raises(Crash), every_save_on_disk():
        trainwright.fork(parent, SLOWER, step=28)
    monkeypatch.undo()
    died = trainwright.get("last", runs_dir=parent.path.parent.parent)
    run = trainwright.resume(died)
    assert (run.digest, run.metrics, run.result["best"]) == (
        whole.digest,
        whole.metrics,
        whole.result["best"],
    )
    assert initial(run) == initial(whole)


def test_a_fork_that_is_preempted_in_the_evaluation_of_its_last_repeated_step_goes_on(
    parent: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trainwright.fork(parent, SLOWER, step=28)
    evaluate = LiveModel.evaluate

    def interrupted(self: LiveModel, *given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self, *given)

    monkeypatch.setattr(LiveModel, "evaluate", interrupted)
    run = trainwright.fork(parent, SLOWER, step=28)
    assert (run.status, run.result["steps"]) == ("preempted", 28)
    monkeypatch.undo()
    run = trainwright.resume(run)
    assert (run.digest, run.metrics, run.result["best"]) == (
        whole.digest,
        whole.metrics,
        whole.result["best"],
    )
    assert initial(run) == initial(whole)


@pytest.mark.soak
def test_a_fork_that_is_preempted_while_it_repeats_steps_goes_on(parent: Run) -> None:
    whole = trainwright.fork(parent, SLOWER, step=20)
    run = trainwright.fork(parent, SLOWER, step=20, callbacks=[SignalAt(11)])
    assert (run.status, run.result["steps"]) == ("preempted", 11)
    run = trainwright.resume(run)
    assert (run.digest, run.result["best"]) == (whole.digest, whole.result["best"])


def test_a_fork_that_was_only_created_begins_with_its_state(parent: Run, slower: Run, tmp_path: Path) -> None:
    from trainwright.runs.children.config import child_config
    from trainwright.runs.children.create import ChildRequest, create_child

    own = load(RunDir(parent.path).config_file, adapters=Catalog())
    request = ChildRequest(RunDir(parent.path), own, child_config(RunDir(parent.path), SLOWER), "fork")
    child = create_child(request)
    assert child.status() == "created"
    assert trainwright.train(SMALL, SLOWER, runs_dir=tmp_path / "runs", resume=True).path != child.path
    assert trainwright.resume(child.path).digest == slower.digest


# -- unfinished, running and damaged parents


def test_an_unfinished_run_is_forked_from_its_newest_checkpoint(tmp_path: Path) -> None:
    run = crashed(tmp_path)
    before = content(run.path)
    child = trainwright.fork(run, SLOWER)
    assert (initial(child)["step"], child.result["steps"]) == (10, 40)
    owned = RunDir(run.path)
    owned.acquire()  # as if it were training
    try:
        assert trainwright.fork(run, SLOWER).digest == child.digest
        with pytest.raises(InputError, match="has no step 12; its last one is 10"):
            trainwright.fork(run, SLOWER, step=12)
    finally:
        owned.release()
    assert content(run.path).keys() - before.keys() <= {str(run.path / "lock")}


def test_a_fork_has_the_placement_of_its_parent_unless_it_is_given_another(tmp_path: Path) -> None:
    run = trainwright.resume(crashed(tmp_path), {"training.threads": 2})
    for overrides, threads in (({}, 2), ({"training.threads": 1}, 1)):
        child = trainwright.fork(run, {"training.max_steps": 33, **overrides})
        assert child.manifest["placement"]["training.threads"] == threads


def test_a_run_without_any_checkpoint_is_refused(tmp_path: Path) -> None:
    run = crashed(tmp_path, {"checkpoint.every_n_steps": None}, at=3)
    with pytest.raises(InputError, match="is failed, and has no checkpoint yet"):
        trainwright.fork(run, SLOWER)


def test_a_damaged_checkpoint_is_named_and_its_steps_are_repeated(
    parent: Run, slower: Run, caplog: pytest.LogCaptureFixture
) -> None:
    newest = checkpoints(parent)[-1]
    flip(newest / "weights.safetensors")
    child = trainwright.fork(parent, SLOWER)
    assert f"checkpoint {newest.name} is damaged: weights.safetensors" in caplog.text
    assert (initial(child)["checkpoint_step"], initial(child)["step"]) == (25, 30)
    assert initial(child)["replayed"] == initial(slower)["state_digest"]
    assert child.digest == slower.digest


def test_a_damaged_initial_state_is_never_used(parent: Run) -> None:
    child = trainwright.fork(parent, SLOWER)
    run = RunDir(child.path)
    lineage = run.lineage()
    assert lineage is not None
    assert lineage.initial is not None
    for other in ({"state_digest": "0" * 64}, {"loop_sha256": "0" * 64}):
        start = lineage.initial.model_copy(update=other)
        run.write(Lineage.FILE, lineage.model_copy(update={"initial": start}))
        with pytest.raises(CheckpointError, match=r"initial state of run .* is not the one it was made with"):
            trainwright.reproduce(child)
    run.write(Lineage.FILE, lineage)
    (kept,) = (child.path / "initial" / "checkpoints").iterdir()
    flip(kept / "optimizer.safetensors")
    with pytest.raises(CheckpointError, match=r"initial state of run .* optimizer.safetensors"):
        trainwright.reproduce(child)
    shutil.rmtree(kept)
    with pytest.raises(CheckpointError, match=r"initial state of run .* cannot be used"):
        trainwright.reproduce(child)
    (child.path / "parent.json").unlink()
    with pytest.raises(CheckpointError, match=r"parent\.json"):
        trainwright.reproduce(child)


# -- best models


def test_a_best_model_of_the_parent_stays_the_best(parent: Run) -> None:
    """The metric is worse after the fork: the best model is one of the parent's."""
    best = parent.result["best"]
    child = trainwright.fork(parent, {"training.learning_rate": 10.0, "training.max_steps": 45})
    assert child.result["best"] == best
    shutil.rmtree(parent.path)
    assert trainwright.evaluate(child, split="val")["val_loss"] == pytest.approx(child.metrics["val_loss"])
    assert trainwright.reproduce(child).verdict == "identical"


def test_evaluations_whose_models_are_gone_count_for_no_best_model(parent: Run) -> None:
    """By the new metric, one of the parent's first steps is the best, but only the last model is kept."""
    overrides = {"checkpoint.metric": "val_loss", "checkpoint.mode": "max", "training.max_steps": 45}
    child = trainwright.fork(parent, overrides)
    assert child.result["best"]["step"] >= 28
    child = trainwright.fork(parent, {**overrides, "checkpoint.save_top_k": 3}, step=25)
    assert child.result["best"]["step"] > 25, "the models of step 25 and before were not kept"
    assert trainwright.reproduce(child).verdict == "identical"


# -- other data


@pytest.fixture
def on_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(
        {"a": np.arange(160) % 13, "b": np.arange(160) % 7 / 2, "target": np.arange(160) % 3}
    )
    frame.to_csv("data.csv", index=False)
    frame[40:].to_csv("other.csv", index=False)
    return trainwright.train(SMALL, {"data.type": "csv", "data.path": "data.csv"}, runs_dir="runs")


def test_other_data_begin_a_new_pass_and_a_new_history(on_csv: Run) -> None:
    child = trainwright.fork(on_csv, {**LONGER, "data.path": "other.csv"})
    rows = child.manifest["data"]["splits"]["train"]["rows"]
    assert child.result["epochs"] == pytest.approx(10 * 16 / rows)
    assert child.result["best"]["step"] > 30, "losses on other rows cannot be compared"
    assert trainwright.reproduce(child).verdict == "identical"
    assert "data.path: other.csv (was data.csv)" in (child.path / "parent.json").read_text()


def test_data_that_changed_unasked_are_refused(on_csv: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trainwright")
    text = Path("data.csv").read_text()
    Path("data.csv").write_text(text.replace(",2.5,", ",2.75,"))
    for call in (trainwright.fork, trainwright.resume):
        with pytest.raises(ChangedInputsError, match=r"other rows in train.*\n.*--allow-change"):
            call(on_csv, LONGER)
    assert len(trainwright.list_runs("runs")) == 1
    assert "is a fork of" not in caplog.text, "a child that is refused is announced"
    child = trainwright.fork(on_csv, LONGER, allow_change=True)
    assert child.status == "completed"
    assert f"run {child.id} is a fork of {on_csv.id} at step 30" in caplog.text
    assert any(
        one.startswith("data: ")
        for one in initial(trainwright.resume(on_csv, LONGER, allow_change=True))["differs"]
    )


def test_classes_must_stay_what_they_are(on_csv: Run) -> None:
    frame = pd.read_csv("data.csv")
    frame.assign(target=frame.target + 1).to_csv("classes.csv", index=False)
    with pytest.raises(InputError, match="the list of classes is not that of run"):
        trainwright.fork(on_csv, {**LONGER, "data.path": "classes.csv"})


def test_boosting_goes_on_with_the_same_rows_only(on_csv: Run) -> None:
    config = {**SMALL, **XGBOOST, "data": {"type": "csv", "path": "data.csv"}}
    run = trainwright.train(config, {"training.epochs": 50}, runs_dir="runs")
    with pytest.raises(InputError, match="each step of this model is fitted to all rows"):
        trainwright.fork(run, {"training.epochs": 60, "data.path": "other.csv"})
    with pytest.raises(InputError, match=r"data\.standardize: each step of this model"):
        trainwright.fork(run, {"training.epochs": 60, "data.standardize": True})


# -- refusals


@pytest.mark.parametrize(
    ("overrides", "step", "says"),
    [
        ({}, None, "there is nothing to train: the run would have 30 steps"),
        (LONGER, 31, "--step: run .* has no step 31; its last one is 30"),
        (LONGER, -1, "has no step -1"),
        ({"training.optimizer": "sgd"}, None, r"training.optimizer.type: .* model.init_from="),
        ({"training.optimizer.amsgrad": True}, None, "amsgrad: the optimizer would keep other state"),
        ({"model.type": "transformer"}, None, "the state of another model does not fit"),
        (
            {**LONGER, "model.init_from": "last"},
            None,
            "model.init_from.source: the run begins with the state of",
        ),
        (
            {**LONGER, "model.params.hidden": [8]},
            None,
            "the state of run .* does not fit: .*model.init_from=",
        ),
        ({**LONGER, "data.type": "wine"}, None, "data: the list of features is not that of run"),
        ({"training.batch": 8}, None, "unknown key"),
    ],
)
def test_what_cannot_work_is_refused(
    overrides: dict[str, Any], step: int | None, says: str, parent: Run
) -> None:
    with pytest.raises(InputError, match=re.compile(says, re.DOTALL)):
        trainwright.fork(parent, overrides, step=step)
    assert len(trainwright.list_runs(parent.path.parent.parent)) == 1, "a run is left"


def test_models_with_few_places_to_go_on_from(tmp_path: Path) -> None:
    once = {**SMALL, "model": {"type": "logistic_regression"}}
    run = trainwright.train(once, runs_dir=tmp_path)
    with pytest.raises(InputError, match="this model is fitted in one step, and cannot go on"):
        trainwright.fork(run, {"model.params.C": 0.1})
    run = trainwright.train({**SMALL, **XGBOOST}, {"training.epochs": 20}, runs_dir=tmp_path)
    with pytest.raises(InputError, match=r"the run would have 20 steps, and run .* has 20; make it longer"):
        trainwright.resume(run, {"training.max_steps": 20})
    run = trainwright.train({**SMALL, **XGBOOST}, runs_dir=tmp_path)
    with pytest.raises(InputError, match="only from multiples of 50; take 0 or 50"):
        trainwright.fork(run, {"training.epochs": 60}, step=20)
    trees = {"type": "random_forest", "params": {"n_estimators": 15}}
    run = trainwright.train({**SMALL, "model": trees}, runs_dir=tmp_path)
    with pytest.raises(InputError, match=r"criterion: scikit-learn keeps it in the trained estimator"):
        trainwright.fork(run, {"model.params.n_estimators": 30, "model.params.criterion": "entropy"})
    child = trainwright.resume(run, {"model.params.n_estimators": 30})
    assert "the last step has added fewer iterations than the others" in initial(child)["differs"]


def test_runs_of_other_trainers_belong_to_their_scripts(parent: Run) -> None:
    run = RunDir(parent.path)
    trainer = ForeignTrainer(name="transformers")
    run.write(Manifest.FILE, run.require_manifest().model_copy(update={"trainer": trainer}))
    with pytest.raises(InputError, match="the Trainer of transformers, so trainwright cannot fork it"):
        trainwright.fork(parent, SLOWER)
    assert trainwright.resume(parent, LONGER).path == parent.path, "as before: nothing is left to do"


def test_a_config_that_was_edited_is_refused(parent: Run) -> None:
    file = parent.path / "config.yaml"
    file.write_text(file.read_text().replace("learning_rate: 0.01", "learning_rate: 0.02"))
    with pytest.raises(InputError, match=r"not what the run was trained with: training\.learning_rate has"):
        trainwright.fork(parent, LONGER)


def test_objects_are_asked_for_again(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    run = trainwright.train({**SMALL, "model": None}, runs_dir=tmp_path, model=net)
    with pytest.raises(InputError, match=r"trainwright\.fork\(.*model="):
        trainwright.fork(run, SLOWER)
    child = trainwright.fork(run, SLOWER, model=net)
    assert trainwright.reproduce(child, model=net).verdict == "identical"


# -- lineage


def test_the_family_on_the_command_line(
    parent: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = str(tmp_path / "runs")
    words = ["training.max_steps=36", "training.learning_rate=0.003", "--runs-dir", runs, "-q"]
    assert main(["fork", parent.id, "--step", "25", "--json", *words]) == 0
    child = json.loads(capsys.readouterr().out)["run_id"]
    assert main(["resume", parent.id, "training.max_steps=33", "--runs-dir", runs, "-q", "--json"]) == 0
    longer = json.loads(capsys.readouterr().out)["run_id"]
    assert main(["fork", child, "training.max_steps=38", "--json", "--runs-dir", runs, "-q"]) == 0
    grandchild = json.loads(capsys.readouterr().out)["run_id"]

    depths = {parent.id: 0, child: 1, grandchild: 2, longer: 1}
    first, second = sorted([child, longer])  # the older one first, as far as ids tell
    rows = [
        row for one in (parent.id, first, second) for row in ([one, grandchild] if one == child else [one])
    ]
    for _ in range(2):  # the second time from the index
        assert main(["runs", "list", "--tree", "--runs-dir", runs]) == 0
        lines = capsys.readouterr().out.splitlines()[1:]
        assert [line.split()[0] for line in lines] == rows
        assert [len(line) - len(line.lstrip()) for line in lines] == [2 * depths[row] for row in rows]
        assert lines[rows.index(child)].endswith("fork at step 25")
        assert lines[rows.index(longer)].endswith("continue at step 30")
    assert main(["runs", "list", "--tree", "--json", "--runs-dir", runs]) == 0
    documents = json.loads(capsys.readouterr().out)
    assert {one["run_id"]: one["depth"] for one in documents} == depths
    (one,) = (one for one in documents if one["run_id"] == grandchild)
    assert one["parent"] == {"run_id": child, "relation": "fork", "step": 36}
    assert main(["runs", "list", "--json", "--runs-dir", runs]) == 0
    assert {one["run_id"] for one in json.loads(capsys.readouterr().out)} == set(rows)

    assert main(["runs", "show", child, "--runs-dir", runs]) == 0
    shown = capsys.readouterr().out
    assert f"is a fork of {parent.id} at step 25" in shown
    assert "training.learning_rate: 0.003 (was 0.01)" in shown
    assert main(["runs", "show", longer, "--json", "--runs-dir", runs]) == 0
    assert json.loads(capsys.readouterr().out)["parent"]["relation"] == "continue"
    report = (tmp_path / "runs" / "small" / child / "report.html").read_text()
    assert f"This run is a fork of {parent.id} at step 25." in report
    shutil.rmtree(parent.path)
    assert main(["runs", "list", "--tree", "--runs-dir", runs]) == 0
    assert f"fork at step 25 of {parent.id}" in capsys.readouterr().out


def test_a_fork_in_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: Run) -> None:
    """Made from the URL alone, on machines that know nothing of each other."""
    url = (tmp_path / "store").as_uri()

    def elsewhere(name: str) -> None:
        monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / name))

    elsewhere("first")
    with every_save_on_disk():
        run = trainwright.train(SMALL, runs_dir=url)
    elsewhere("second")
    with pytest.raises(Crash):
        trainwright.fork(run.id, SLOWER, step=27, runs_dir=url, callbacks=[CrashAt(34)])
    elsewhere("third")
    assert summaries(url)[0]["parent"] == {"run_id": run.id, "relation": "fork", "step": 27}
    child = trainwright.get("last", runs_dir=url)
    assert not (child.path / "initial").exists(), "a state is brought to those who only look"
    monkeypatch.setattr("trainwright.storage.heartbeats.SILENCE", 0.0)
    child = trainwright.resume(child.id, runs_dir=url)
    assert child.digest == trainwright.fork(parent, SLOWER, step=27).digest
    elsewhere("fourth")
    assert trainwright.reproduce(child.id, runs_dir=url).verdict == "identical"


@pytest.mark.soak
def test_another_loss_begins_a_new_history(
    parent: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`val_loss` has another meaning: whatever it was, the best model is one of the fork's."""
    (tmp_path / "custom_losses.py").write_text(
        "from torch.nn.functional import cross_entropy\n\n\n"
        "def large(outputs, batch):\n    return 10 * cross_entropy(outputs, batch['target'])\n"
    )
    monkeypatch.chdir(tmp_path)
    child = trainwright.fork(parent, {**LONGER, "training.loss": "custom_losses:large"})
    assert child.result["best"]["step"] > 30
    assert trainwright.reproduce(child).verdict == "identical"
