"""A tuning study, as its files tell it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainyard.records.run_dir import RunDir
from trainyard.records.trials import read_trials
from trainyard.records.tuning_result import TuningResult
from trainyard.runs.run import Run
from trainyard.studies.study import Json, StudyView

KIND = "tune"
BEST = "best.yaml"


class Tuning(StudyView):
    """A read-only view of a tuning study's folder; each property reads the files again."""

    @property
    def trials(self) -> Any:
        """The trials as a data frame: number, status, value, step, seconds, run id, and the parameters."""
        import pandas as pd

        return pd.DataFrame(rows(self.path))

    @property
    def best_run(self) -> Run | None:
        """The run of the best trial; None if none has a value, or a Python function was tuned."""
        best = self.typed_result.best
        return Run(RunDir(self.path.parent / best.run_id)) if best and best.run_id else None

    @property
    def best_params(self) -> dict[str, Any]:
        """The parameters of the best trial, by dotted key; empty if none has a value."""
        best = self.typed_result.best
        return dict(best.params) if best else {}

    @property
    def best_config(self) -> Path | None:
        """The config of the best trial, which trains as it is; None where there is no best run."""
        return self.path / BEST if self.best_run is not None else None

    @property
    def best_value(self) -> float | None:
        """The value of the best trial, by the first metric; None if none has one."""
        best = self.typed_result.best
        return best.value if best else None

    @property
    def digest(self) -> str | None:
        """The digest over all trials: two studies with the same one made the same trials."""
        return self.typed_result.digest

    @property
    def typed_result(self) -> TuningResult:
        """The content of `result.json` as a record; before the end, every field has its default."""
        return TuningResult.of(self.result)

    def __repr__(self) -> str:
        result = self.typed_result
        value = f": {result.metric}={result.best.value:.4g}" if result.best else ""
        return f"<Tuning {self.path.parent.name}/{self.id} {self.status}{value}>"


def rows(folder: Path) -> list[Json]:
    """Return the trials of a study as rows of a table."""
    table = []
    for trial in read_trials(folder):
        end = trial.ending
        table.append(
            {
                "trial": trial.number,
                "status": end.status if end else "running",
                "value": end.value if end else None,
                "step": end.step if end else None,
                "seconds": end.seconds if end else None,
                "run_id": trial.run_id,
                **((end.values if end else None) or {}),
                **trial.params,
                **({"error": end.error} if end and end.error else {}),
            }
        )
    return table
