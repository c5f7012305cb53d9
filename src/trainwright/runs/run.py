"""A run as its user sees it in Python."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from trainwright import numerals
from trainwright.records.compression import COMPRESSION
from trainwright.records.decision import journalled_decisions
from trainwright.records.journal import number, read
from trainwright.records.lineage import RETRAINING
from trainwright.records.result import Result
from trainwright.records.run_dir import RunDir
from trainwright.records.status import Status
from trainwright.storage.copies import download_records
from trainwright.storage.seals import problems
from trainwright.storage.urls import run_url

log = logging.getLogger("trainwright")


class Run:
    """A read-only view of a run; each property reads the files again.

    For a run in a store that came from a list, the journal is downloaded when it is first read.
    """

    def __init__(self, path: Path | RunDir) -> None:
        self._dir = path if isinstance(path, RunDir) else RunDir(path)

    @staticmethod
    def trained(made: RunDir, result: Result) -> Run:
        """Return the run that was trained: each of several nodes has created one, and the result names it."""
        manifest = made.manifest()
        names = {None, made.id, manifest.run_id if manifest else None}  # a copy may have another folder name
        return Run(made if result.run_id in names else made.path.parent / str(result.run_id))

    @property
    def id(self) -> str:
        """The identifier of the run, which is the name of its directory."""
        return self._dir.id

    run_id = id  # as documents and lists call it

    @property
    def experiment(self) -> str:
        """The name of the experiment."""
        return self._dir.experiment

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._dir.path

    @property
    def url(self) -> str | None:
        """The URL of a run in a store; None for one on the local disk."""
        return run_url(self.path)

    @property
    def status(self) -> Status:
        """`created`, `running`, or how the newest attempt ended: `completed`, `stopped`, `crashed` ..."""
        return self._dir.status()

    @property
    def result(self) -> dict[str, Any]:
        """The content of `result.json`; empty before the first orderly end."""
        result = self._dir.result()
        return result.to_json() if result else {}

    @property
    def manifest(self) -> dict[str, Any]:
        """The content of `manifest.json`: every input of the run."""
        manifest = self._dir.manifest()
        return manifest.to_json() if manifest else {}

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the evaluated model, `val_...` and `test_...`."""
        result = self._dir.result()
        return dict(result.metrics) if result else {}

    @property
    def digest(self) -> str | None:
        """The digest of the final weights."""
        result = self._dir.result()
        return result.digest if result else None

    @property
    def parent(self) -> dict[str, Any] | None:
        """The run that this one was forked from, continues after or repeats: `run_id`, `relation`, `step`."""
        lineage = self._dir.lineage()
        return lineage.brief() if lineage else None

    @property
    def compression(self) -> dict[str, Any]:
        """The comparison of a compressed run with its parent: both side by side; empty for other runs."""
        return self._dir.read_json(COMPRESSION)

    @property
    def retraining(self) -> dict[str, Any]:
        """The comparison of a run that `retrain` made with its parent; empty for other runs."""
        return self._dir.read_json(RETRAINING)

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """The decisions of the run that its inputs do not determine: `step`, `kind` and `detail` of each."""
        download_records(self._dir)
        made = journalled_decisions(self._dir.journal)
        return [{"step": one.step, "kind": one.kind, "detail": dict(one.detail)} for one in made]

    def history(self) -> list[dict[str, Any]]:
        """Return what the journal says of metrics: a row for each step that has some, with all of them.

        `pandas.DataFrame(run.history())` makes a table of it. Damage to the files of the run is named in
        warnings.
        """
        download_records(self._dir)
        damage = problems(self._dir)
        rows: dict[int, dict[str, Any]] = {}
        for record in read(self._dir.journal, damage):
            if record["kind"] in ("metrics", "evaluation"):
                row = rows.setdefault(record["step"], {"step": record["step"]})
                row |= {name: number(value) for name, value in record["values"].items()}
        for problem in damage:
            log.warning("run %s: %s", self.id, problem)
        return [rows[step] for step in sorted(rows)]

    def __repr__(self) -> str:
        metrics = ", ".join(
            f"{name}={numerals.number(value, zeros=False)}" for name, value in self.metrics.items()
        )
        return f"<Run {self.experiment}/{self.id} {self.status}{': ' if metrics else ''}{metrics}>"

    def _repr_html_(self) -> str:
        from trainwright.reports.summary import html_table

        return html_table(self.path)
