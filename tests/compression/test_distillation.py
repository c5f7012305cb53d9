"""Students learn from their teachers, and their runs are as exact as others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import trainwright
from small_runs import SMALL, assert_same, preempted
from trainwright.cli.main import main
from trainwright.compression import measures
from trainwright.compression.distill import Teacher
from trainwright.errors import GateError, InputError, ModelError
from trainwright.frameworks.torch.losses.distillation import Distillation
from trainwright.records.run_dir import RunDir
from trainwright.runs.run import Run

STUDENT = {**SMALL, "model": {"type": "mlp", "params": {"hidden": [6]}}}


@pytest.fixture(autouse=True)
def _without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "peak_memory", lambda *_, **__: None)
    monkeypatch.setattr(measures, "_REPEATS", 3)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = {**SMALL, "model": {"type": "mlp", "params": {"hidden": [64]}}}
    return trainwright.train(config, runs_dir=tmp_path_factory.mktemp("teachers"), quiet=True)


def settings_of(teacher: Run) -> dict[str, Any]:
    settings: dict[str, Any] = Teacher.of(RunDir(teacher.path)).settings()["training.loss"]
    return settings


def test_the_loss_is_that_of_hinton(teacher: Run) -> None:
    """Against the formula, with the probabilities of the teacher that `predict_proba` gives."""
    options = {name: value for name, value in settings_of(teacher).items() if name != "type"}
    predictor = trainwright.load(teacher)
    batch = predictor.load_data().splits["train"].take(np.arange(9))
    tensors = {name: torch.from_numpy(np.asarray(one)) for name, one in batch.items()}
    own = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    hard = functional.cross_entropy(own, tensors["target"], reduction="none")
    logits = predictor.native(tensors["features"]).detach()
    soft = (logits / 4).softmax(1) * ((logits / 4).log_softmax(1) - (own / 4).log_softmax(1))
    expected = 0.3 * hard + 0.7 * 16 * soft.sum(1)
    loss = Distillation(**options, temperature=4.0, share=0.7)
    torch.testing.assert_close(loss(own, tensors), expected)
    with torch.no_grad():  # evaluations compare with those of other runs
        torch.testing.assert_close(loss(own, tensors), hard)


def test_another_teacher_is_refused(teacher: Run) -> None:
    options = {name: value for name, value in settings_of(teacher).items() if name != "type"}
    own, batch = torch.zeros(2, 3, requires_grad=True), {"target": torch.tensor([0, 1])}
    batch["features"] = torch.zeros(2, 4)
    with pytest.raises(ModelError, match="has other weights than when it was chosen"):
        Distillation(**{**options, "digest": "0" * 64})(own, batch)
    with pytest.raises(ModelError, match="is not there any more: put it back"):
        Distillation(**{**options, "teacher": "/nowhere"})(own, batch)


def test_a_student_is_a_child(teacher: Run) -> None:
    runs = teacher.path.parent.parent
    student = trainwright.compress(teacher, distill=STUDENT, gate="val_loss <= parent + 5")
    assert student.parent == {"run_id": teacher.id, "relation": "distill", "step": None}
    plain = trainwright.train(STUDENT, runs_dir=runs, quiet=True)
    assert plain.digest != student.digest  # the teacher counts
    assert student.compression["gate"]["passed"] is True
    assert student.compression["child"]["val_loss"] == pytest.approx(student.metrics["val_loss"], rel=1e-5)
    assert trainwright.evaluate(student) == {
        name: value for name, value in student.metrics.items() if name.startswith("test_")
    }
    assert trainwright.reproduce(student, quiet=True).verdict == "identical"
    assert "is distilled from" in (student.path / "report.html").read_text()


def test_a_gate_says_no_and_the_training_stays(teacher: Run) -> None:
    with pytest.raises(GateError, match="the gate is not passed by run"):
        trainwright.compress(teacher, distill=STUDENT, gate="val_loss <= parent - 5")
    last = trainwright.get("last", runs_dir=teacher.path.parent.parent)
    assert last.compression["gate"]["passed"] is False


def test_a_resumed_student_has_the_same_bits(teacher: Run, tmp_path: Path) -> None:
    overrides = {"training.loss": settings_of(teacher), "model.params.hidden": [6]}
    whole = trainwright.train(SMALL, overrides, runs_dir=tmp_path / "whole", quiet=True)
    cut = preempted(tmp_path / "cut", overrides)
    assert_same(trainwright.resume(cut), whole)


def test_bad_input(teacher: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="so the data must agree"):
        trainwright.compress(teacher, distill={**STUDENT, "data": {"type": "digits"}})
    with pytest.raises(InputError, match="trains a student by itself"):
        trainwright.compress(teacher, distill=STUDENT, prune=0.5)
    runs = ["--runs-dir", str(teacher.path.parent.parent)]
    assert main(["compress", teacher.id, *runs, "--prune", "0.5", "training.epochs=3"]) == 2
    assert "settings of a student's config" in capsys.readouterr().err
    forest = trainwright.train(
        {**SMALL, "model": "random_forest", "training": {}}, runs_dir=teacher.path.parent.parent, quiet=True
    )
    with pytest.raises(InputError, match="cannot teach; networks of PyTorch can"):
        trainwright.compress(forest, distill=STUDENT)
