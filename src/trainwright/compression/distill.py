"""Train a student with the model of a run as its teacher, and compare the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainwright.compression.compress import side_by_side
from trainwright.config import Resolved
from trainwright.errors import InputError
from trainwright.evaluation.gates import Gate, judged
from trainwright.inference.predictor import Predictor
from trainwright.records.compression import COMPRESSION
from trainwright.records.lineage import Lineage
from trainwright.records.run_dir import RunDir
from trainwright.reports.html import write_report
from trainwright.runs.predictor import open_predictor
from trainwright.runs.run_config import read_config
from trainwright.runs.workdir import creation_of


@dataclass(frozen=True)
class Teacher:
    """A run whose model teaches, and the model."""

    run: RunDir
    predictor: Predictor

    @staticmethod
    def of(run: RunDir) -> Teacher:
        """Return the teacher that a run has trained.

        Raises:
            InputError: Its framework or its task has no such loss, or it is compressed.
        """
        if run.require_manifest().compression is not None:
            raise InputError(f"run {run.id} is compressed: distill its parent, which knows more")
        predictor = open_predictor(run, pinned=False)
        losses = predictor.framework.capabilities.distillation
        if not losses:
            raise InputError(f"a {predictor.config.model.type} cannot teach; networks of PyTorch can")
        task = predictor.info.task
        if task not in losses:
            raise InputError(f"--distill is for {' and '.join(losses)}, and the task is {task}")
        return Teacher(run, predictor)

    def settings(self) -> dict[str, Any]:
        """Return the settings of a student's config: its loss, with the teacher's digest as an input."""
        result = self.run.require_result()
        return {
            "training.loss": {
                "type": self.predictor.framework.capabilities.distillation[self.predictor.info.task],
                "teacher": str(self.run.path),
                "weights": self.predictor.stored.folder.relative_to(self.run.path).as_posix(),
                "digest": result.best.digest if result.best else result.digest,
            }
        }

    def check(self, student: Resolved) -> None:
        """Check that a student learns from the teacher's data, prepared alike, as it gets the same features.

        Raises:
            InputError: It does not.
        """
        own, other = (_data(one) for one in (read_config(self.run), student))
        for key in sorted(own.keys() | other.keys()):
            if own.get(key) != other.get(key):
                raise InputError(
                    f"{key} is {other.get(key)!r} in the student's config and {own.get(key)!r} in run "
                    f"{self.run.id}: a student gets the features of its teacher, so the data must agree"
                )

    def create(self, student: Resolved) -> RunDir:
        """Make the run of a student, before its first attempt."""
        lineage = Lineage(run_id=self.run.id, relation="distill", data=self.run.require_manifest().data)
        return RunDir.create(
            self.run.path.parent.parent,
            student.config.experiment.name,
            student.dump(),
            lambda run: run.write(Lineage.FILE, lineage),
            creation_of(student),
        )


def _data(resolved: Resolved) -> Mapping[str, Any]:
    return {key: value for key, value in resolved.flat().items() if key.startswith("data.")}


def compared(teacher: Teacher, student: RunDir, gate: Gate | None, *, trust: bool) -> None:
    """Write how a trained student compares with its teacher into its run, and its report.

    Raises:
        GateError: It does not pass the gate. The run stays, as its training may have taken long; its table
            says that it did not pass.
    """
    both = (teacher.predictor, open_predictor(student, pinned=False))
    bundle = both[1].load_data()
    results = [
        {split: one.evaluate(split, bundle=bundle) for split in ("val", "test") if split in bundle.splits}
        for one in both
    ]
    if not results[0]:
        raise InputError(f"run {student.id} has no validation and no test split: nothing could be compared")
    rows = bundle.splits[list(results[0])[-1]]  # type: ignore[index]
    table = side_by_side(both, results, rows, trust=trust)  # type: ignore[arg-type]
    error = judged(gate, table, f"the gate is not passed by run {student.id}")
    student.write_json(COMPRESSION, table)
    write_report(student.path)
    if error is not None:
        raise error
