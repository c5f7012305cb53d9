"""transformers' own Trainer, with a tiny BERT of random weights on random token ids.

Run as a script, this file is the training of a user: `test_transformers.py FOLDER [--kill STEP]`.
"""

import json
import logging
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import trainwright
from trainwright.cli.commands import cli
from trainwright.errors import ConfigError, InputError, RunLockedError
from trainwright.integrations.attempt import TrainerAttempt
from trainwright.integrations.fingerprints import weights_digest
from trainwright.integrations.trainer_run import record_safely
from trainwright.records.journal import read
from trainwright.records.run_dir import RunDir

pytestmark = pytest.mark.slow  # the library takes seconds to import


class Rows:
    """Random token ids. With `augmented`, one of them is replaced at random each time."""

    def __init__(self, count: int, seed: int, augmented: bool = False) -> None:
        import torch

        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(5, 50, (count, 8), generator=generator)
        self.augmented = augmented

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Any]:
        import torch

        ids = self.ids[index].clone()
        label = int(ids[0] > 27)
        if self.augmented:
            ids[random.randrange(1, 8)] = int(torch.randint(5, 50, ()))
        return {"input_ids": ids, "attention_mask": torch.ones(8, dtype=torch.long), "labels": label}


def at(step: int, action: Any) -> Any:
    """A callback that does something when a step is made."""
    from transformers import TrainerCallback

    class At(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            if state.global_step == step:
                action(control)

    return At()


def trainer(folder: Path, *callbacks: Any, augmented: bool = False, **arguments: Any) -> Any:
    """A Trainer for 30 steps, with dropout; it saves at 10, 20 and 30."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    torch.set_num_threads(1)
    torch.manual_seed(7)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForSequenceClassification(
        BertConfig(vocab_size=50, max_position_embeddings=8, num_labels=2, **sizes)
    )
    given: dict[str, Any] = {
        "max_steps": 30,
        "logging_steps": 5,
        "eval_strategy": "steps",
        "eval_steps": 10,
        "save_steps": 10,
    }
    given |= {"report_to": [], "disable_tqdm": True, "use_cpu": True, "average_tokens_across_devices": False}
    given |= {"output_dir": str(folder / "out"), **arguments}
    return Trainer(
        model=model,
        args=TrainingArguments(**given),
        train_dataset=Rows(100, 1, augmented),
        eval_dataset=Rows(40, 2),
        compute_metrics=lambda found: {
            "accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())
        },
        callbacks=list(callbacks),
    )


def callback(folder: Path, **options: Any) -> Any:
    from trainwright.integrations.transformers import TrainwrightCallback

    return TrainwrightCallback("bert", folder / "runs", **options)


def trained(folder: Path, *callbacks: Any, options: Any = None, **arguments: Any) -> Any:
    """The callback of a training that came to its end."""
    recorder = callback(folder, **(options or {}))
    own = trainer(folder, recorder, *callbacks, **arguments)
    own.train(resume_from_checkpoint=recorder.resume_from())
    return recorder


def failed(folder: Path, step: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """The callback of a training that raised."""

    def fail(_: Any) -> None:
        raise ValueError("the user's own: api_key=sesame")

    every_checkpoint_verified(monkeypatch)
    with pytest.raises(ValueError, match="the user's own") as raised:
        trained(folder, at(step, fail), options=options)
    monkeypatch.setattr(
        sys, "last_value", raised.value, raising=False
    )  # as the interpreter does with what nobody catches
    return raised.value


def every_checkpoint_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the training wait until a checkpoint is verified: so short a one would be over before."""
    commit = TrainerAttempt.commit

    def commit_and_wait(attempt: TrainerAttempt, saved: Any) -> None:
        commit(attempt, saved)
        attempt._writer.drain()

    monkeypatch.setattr(TrainerAttempt, "commit", commit_and_wait)


def kinds(run: Any, kind: str) -> list[dict[str, Any]]:
    return [record for record in read(run.path / "journal") if record["kind"] == kind]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="module", autouse=True)
def no_datasets() -> Iterator[None]:
    """Keeps the library from taking our folder of tests named `datasets` for the package of that name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformers.trainer.is_datasets_available", lambda: False)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A training that was never interrupted, and recorded."""
    return trained(tmp_path_factory.mktemp("whole")).run


def test_the_run_directory_is_one_of_ours(whole: Any) -> None:
    assert whole.status == "completed"
    assert {"steps": 30, "evaluated": "final", "attempts": 1}.items() <= whole.result.items()
    assert len(whole.digest) == 64
    assert set(whole.metrics) == {"val_loss", "val_accuracy"}
    assert [record["step"] for record in kinds(whole, "evaluation")] == [10, 20, 30]
    losses = {
        record["step"]: record["values"]["train_loss"]
        for record in kinds(whole, "metrics")
        if "train_loss" in record["values"]
    }
    assert list(losses) == [5, 10, 15, 20, 25, 30]
    (summary,) = [
        record["values"] for record in kinds(whole, "metrics") if "train_runtime" in record["values"]
    ]
    assert summary["mean_train_loss"] == pytest.approx(sum(losses.values()) / 6)
    assert (whole.path / "report.html").stat().st_size > 10_000
    assert trainwright.get(whole.path).digest == whole.digest
    assert whole.result["samples_per_second"] > 0


def test_the_manifest_names_every_input(whole: Any) -> None:
    manifest = whole.manifest
    assert manifest["computation"]["arguments.max_steps"] == 30
    assert manifest["computation"]["model.options.hidden_size"] == 16
    assert "arguments.output_dir" not in manifest["computation"]
    assert manifest["seed"] == 42
    assert manifest["data"]["splits"]["train"]["rows"] == 100
    assert manifest["data"]["content_hashed"] is False
    assert manifest["determinism"]["tier"] == "order"
    assert "transformers" in manifest["environment"]["framework"]
    assert len(manifest["weights"]["initial"]) == 64
    assert manifest["weights"]["initial"] != whole.digest
    config = trainwright.check(whole.path / "config.yaml").config
    assert config.model.type.endswith(":BertForSequenceClassification")
    assert config.model.params["arguments"]["save_steps"] == 10


def test_the_commands_that_look_at_runs_do(whole: Any) -> None:
    for words in (
        ["runs", "list", "--runs-dir", whole.path.parent.parent],
        ["runs", "show", whole.path],
        ["report", whole.path],
    ):
        done = CliRunner().invoke(cli, [str(word) for word in words])
        assert done.exit_code == 0, done.output
        assert whole.id in done.output
    found = trainwright.compare(whole, whole)
    assert found.same_digest
    assert not [*found.config, *(found.inputs or ())]


@pytest.mark.parametrize("verb", [trainwright.reproduce, trainwright.evaluate, trainwright.load])
def test_what_only_its_own_trainer_can_do_is_refused(whole: Any, verb: Any) -> None:
    with pytest.raises(InputError, match=whole.id):
        verb(whole)


def test_the_callback_changes_no_bit(tmp_path: Path) -> None:
    own = trainer(tmp_path / "alone", augmented=True)
    own.train()
    assert weights_digest(own.model) == trained(tmp_path / "watched", augmented=True).run.digest


def test_a_killed_training_goes_on_to_the_same_bits(whole: Any, tmp_path: Path) -> None:
    assert script(tmp_path, "--kill", "27").returncode == -signal.SIGKILL
    (run,) = trainwright.list_runs(tmp_path / "runs")
    assert run.status == "crashed"
    done = script(tmp_path)
    assert done.returncode == 0, done.stderr
    assert [again.id for again in trainwright.list_runs(tmp_path / "runs")] == [run.id]
    assert run.result["attempts"] == 2
    assert run.digest == whole.digest
    assert run.metrics == whole.metrics
    assert [record["from_step"] for record in kinds(run, "start")] == [0, 20]
    assert run.manifest["changes"] == []
    known = [record["values"] for record in kinds(whole, "evaluation")]
    assert [record["values"]["val_loss"] for record in kinds(run, "evaluation")] == [
        values["val_loss"] for values in known
    ]


def test_a_killed_training_with_workers_holds_no_lock(tmp_path: Path) -> None:
    assert script(tmp_path, "--kill", "12", "--workers", "1").returncode == -signal.SIGKILL
    (run,) = trainwright.list_runs(tmp_path / "runs")
    assert run.status == "crashed"  # though its workers take seconds to see that they are orphans


def script(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the script of a user in a process of its own."""
    from warm_commands import IMPORTS, warm  # not for `main`, whose process finds this folder only

    libraries = (*IMPORTS, "transformers.trainer", "transformers.models.bert.modeling_bert")
    processes = warm("test_transformers", libraries, folder=Path(__file__).parent)
    return processes.run(str(folder), *words, folder=folder)


def test_a_damaged_checkpoint_is_named_and_passed_over(
    whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed(tmp_path, 25, monkeypatch)
    flip(tmp_path / "out/checkpoint-20/model.safetensors")
    (tmp_path / "out/checkpoint-24").mkdir()  # killed while it was written
    with caplog.at_level(logging.WARNING):
        recorder = trained(tmp_path)
    assert "checkpoint-20 is damaged: model.safetensors: bytes 0 to" in caplog.text
    assert "checkpoint-24 is skipped" in caplog.text
    assert [record["from_step"] for record in kinds(recorder.run, "start")] == [0, 10]
    assert recorder.run.digest == whole.digest


def test_a_training_that_raises_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed(tmp_path, 25, monkeypatch)
    recorder = callback(tmp_path)
    trainer(tmp_path, recorder)
    assert recorder.resume_from() == str(tmp_path / "out/checkpoint-20")
    (run,) = trainwright.list_runs(tmp_path / "runs")
    assert run.status == "failed"
    assert run.result["error"] == "ValueError: the user's own: api_key=***"
    assert "sesame" not in "".join(
        path.read_text(errors="replace") for path in run.path.rglob("*") if path.is_file()
    )
    assert trainwright.clean(tmp_path / "runs") == []  # as it can go on


def test_what_the_trainer_prunes_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every_checkpoint_verified(monkeypatch)
    recorder = trained(tmp_path, save_total_limit=1)
    known = [
        json.loads(path.read_bytes())["path"]
        for path in recorder.run.path.glob("checkpoints/*/manifest.json")
    ]
    assert known == [str(tmp_path / "out/checkpoint-30")]


def test_another_process_at_the_same_training_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed(tmp_path, 15, monkeypatch)
    recorder = callback(tmp_path)
    trainer(tmp_path, recorder)
    assert recorder.resume_from() is not None
    (run,) = trainwright.list_runs(tmp_path / "runs")
    owner = RunDir(run.path)
    owner.acquire()
    with pytest.raises(RunLockedError, match="owned by another process"):
        recorder.resume_from()
    owner.release()
    assert recorder.resume_from() == str(tmp_path / "out/checkpoint-10")


def test_other_arguments_mean_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed(tmp_path, 15, monkeypatch)
    recorder = trained(tmp_path, learning_rate=1e-3, output_dir=str(tmp_path / "elsewhere"))
    assert "is unfinished, but not of this training: arguments, output_dir differ" in caplog.text
    assert kinds(recorder.run, "start")[0]["from_step"] == 0
    old = trainwright.list_runs(tmp_path / "runs")[1]
    assert "model.params.arguments.learning_rate" in {
        item.what for item in trainwright.compare(old, recorder.run).config
    }
    goes_on = trained(tmp_path, options={"run": old.id}, learning_rate=1e-3).run
    assert goes_on.id == old.id
    assert [record["from_step"] for record in kinds(goes_on, "start")] == [0, 10]
    (change,) = goes_on.manifest["changes"]
    assert [found["what"] for found in change["differences"]] == ["arguments.learning_rate"]
    assert goes_on.manifest["determinism"]["tier"] == "statistical"
    assert goes_on.digest != recorder.run.digest


def test_a_run_that_is_asked_for_must_be_the_trainers(tmp_path: Path) -> None:
    ours = RunDir.create(tmp_path / "runs", "bert", "model: {type: mlp}\n")
    recorder = callback(tmp_path, run=ours.id)
    trainer(tmp_path, recorder)
    with pytest.raises(InputError, match="was made by trainwright: transformers cannot continue it"):
        recorder.resume_from()


def test_evaluations_before_and_after_the_training_count(tmp_path: Path) -> None:
    recorder = callback(tmp_path)
    own = trainer(tmp_path, recorder, eval_strategy="no", save_strategy="no")
    before = own.evaluate()["eval_loss"]
    own.train()
    assert recorder.run.metrics["val_loss"] == before  # the last there is
    assert recorder.run.result["evaluated"] is None
    after = own.evaluate()["eval_loss"]
    test = own.predict(Rows(30, 3)).metrics["test_loss"]
    assert (recorder.run.metrics["val_loss"], recorder.run.metrics["test_loss"]) == (after, test)
    assert recorder.run.result["evaluated"] == "final"
    assert recorder.run.status == "completed"
    steps = [(record["step"], *record["values"]) for record in kinds(recorder.run, "evaluation")]
    assert [(step, name) for step, name, *_ in steps] == [
        (0, "val_loss"),
        (30, "val_loss"),
        (30, "test_loss"),
    ]


def test_the_best_model_is_named(tmp_path: Path) -> None:
    recorder = trained(
        tmp_path, load_best_model_at_end=True, metric_for_best_model="loss", learning_rate=1e-2
    )
    best, evaluations = (
        recorder.run.result["best"],
        {record["step"]: record["values"] for record in kinds(recorder.run, "evaluation")},
    )
    assert best["value"] == min(values["val_loss"] for values in evaluations.values())
    assert recorder.run.result["evaluated"] == "best"
    assert recorder.run.metrics["val_loss"] == evaluations[best["step"]]["val_loss"]
    assert best["digest"] == recorder.run.digest


def test_an_early_stop_is_an_event(tmp_path: Path) -> None:
    recorder = trained(tmp_path, at(12, lambda control: setattr(control, "should_training_stop", True)))
    assert recorder.run.result["steps"] == 12
    (event,) = kinds(recorder.run, "event")
    assert (event["name"], event["detail"]) == ("early_stop", {"of_steps": 30})


def test_a_sigterm_is_a_preemption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers.trainer_jit_checkpoint as jit

    class Now:
        """A timer that does not wait."""

        def __init__(self, seconds: float, action: Any) -> None:
            self.start = action

    monkeypatch.setattr(jit.threading, "Timer", Now)
    before = signal.getsignal(signal.SIGTERM)
    kill = at(12, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    try:
        recorder = trained(tmp_path, kill, enable_jit_checkpoint=True, save_strategy="no")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert recorder.run.status == "preempted"
    (known,) = [
        json.loads(path.read_bytes()) for path in recorder.run.path.glob("checkpoints/*/manifest.json")
    ]
    trainer(tmp_path, again := callback(tmp_path), enable_jit_checkpoint=True, save_strategy="no")
    assert again.resume_from() == known["path"]


def test_a_full_disk_ends_no_training_and_loses_no_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    recorder = callback(tmp_path)
    own = trainer(
        tmp_path,
        recorder,
        at(7, lambda _: monkeypatch.setattr("trainwright.engine.journal.Journal.values", full)),
    )
    own.train()
    assert own.state.global_step == 30
    assert (
        "metrics of step 10 cannot be recorded: OSError: [Errno 28] No space left on device; {'train_loss':"
        in caplog.text
    )


def test_a_record_that_cannot_begin_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trainwright.integrations.description.environment_inputs", lambda *_: 1 / 0)
    own = trainer(tmp_path, callback(tmp_path))
    own.train()
    assert own.state.global_step == 30
    assert "nothing of this training is recorded: ZeroDivisionError" in caplog.text


def test_secrets_are_in_no_file(tmp_path: Path) -> None:
    recorder = trained(
        tmp_path, hub_token="hf_sesame", run_name="https://me:sesame@host/x", max_steps=1, eval_strategy="no"
    )
    files = [path for path in recorder.run.path.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path for path in files if b"sesame" in path.read_bytes()]


def test_trackers_are_fed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recorder = trained(
        tmp_path, options={"tracking": [{"type": "tensorboard", "log_dir": str(tmp_path / "tb")}]}
    )
    trainwright.sync(recorder.run)
    state = json.loads((recorder.run.path / "trackers/0-tensorboard.json").read_bytes())
    assert state["closed"] == "completed"
    assert state["marks"]["train_loss"] == 30
    assert list((tmp_path / "tb").rglob("events*"))


def test_wrong_arguments_are_said_at_once(tmp_path: Path) -> None:
    from trainwright.integrations.transformers import TrainwrightCallback

    with pytest.raises(InputError, match="experiment: 'a/b' given"):
        TrainwrightCallback("a/b")
    with pytest.raises(ConfigError, match="unknown tracker 'mlfow'"):
        TrainwrightCallback("bert", tracking=["mlfow"])
    with pytest.raises(InputError, match=r"Trainer\(..., callbacks=\[recorder\]\)"):
        TrainwrightCallback("bert").resume_from()


@pytest.mark.soak
def test_only_the_first_process_records(tmp_path: Path) -> None:
    def distributed(*words: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            __file__,
            str(tmp_path),
        ]
        return subprocess.run([*command, *words], capture_output=True, text=True, timeout=280, check=False)

    assert distributed("--kill", "15").returncode != 0
    done = distributed()
    assert done.returncode == 0, done.stderr
    (run,) = trainwright.list_runs(tmp_path / "runs")
    assert [record["from_step"] for record in kinds(run, "start")] == [0, 10]
    assert run.manifest["computation"]["arguments.world_size"] == 2
    manifests = [json.loads(path.read_bytes()) for path in run.path.glob("checkpoints/*/manifest.json")]
    assert manifests
    assert all(
        {"rng_state_0.pth", "rng_state_1.pth"} <= {file["name"] for file in found["files"]}
        for found in manifests
    )


def test_a_failed_record_says_what_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    assert record_safely(lambda: 3, "three") == 3
    assert record_safely(lambda: 1 // 0, "a quotient", {"loss": 0.5}) is None
    assert (
        "a quotient cannot be recorded: ZeroDivisionError: integer division or modulo by zero; {'loss': 0.5}"
        in caplog.text
    )


def main(where: str, *words: str) -> None:
    """The script of a user, who kills it."""
    folder = Path(where)
    every_checkpoint_verified(pytest.MonkeyPatch())
    given = dict(zip(words[::2], words[1::2], strict=True))
    kill = at(int(given.get("--kill", 0)), lambda _: os.kill(os.getpid(), signal.SIGKILL))
    recorder = trained(folder, kill, dataloader_num_workers=int(given.get("--workers", 0)))
    assert (recorder.run is None) == (os.environ.get("RANK", "0") != "0")


if __name__ == "__main__":
    main(*sys.argv[1:])
