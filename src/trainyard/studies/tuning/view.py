"""A tuning study, as its files tell it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainyard.records.run_dir import RunDir
from trainyard.records.trials import read_trials
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
        run_id = self.result["best"]["run_id"] if self._has_best else ""
        return Run(RunDir(self.path.parent / run_id)) if run_id else None

    @property
    def best_params(self) -> dict[str, Any]:
        """The parameters of the best trial, by dotted key; empty if none has a value."""
        return dict(self.result["best"]["params"]) if self._has_best else {}

    @property
    def best_config(self) -> Path | None:
        """The config of the best trial, which trains as it is; None where there is no best run."""
        return self.path / BEST if self.best_run is not None else None

    @property
    def best_value(self) -> float | None:
        """The value of the best trial, by the first metric; None if none has one."""
        return self.result["best"]["value"] if self._has_best else None

    @property
    def digest(self) -> str | None:
        """The digest over all trials: two studies with the same one made the same trials."""
        return self.result.get("digest")

    @property
    def _has_best(self) -> bool:
        return self.result.get("best") is not None

    def __repr__(self) -> str:
        best = self.result.get("best")
        value = f": {self.result['metric']}={best['value']:.4g}" if best else ""
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
