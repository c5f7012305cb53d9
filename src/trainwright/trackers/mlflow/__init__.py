"""MLflow: a sqlite store in the working directory, as its users expect, or a server."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from time import time as now
from typing import Any, ClassVar

from pydantic import Field

from trainwright.config.fields import Section
from trainwright.errors import InputError, TrackerError
from trainwright.records.result import Result
from trainwright.records.study import StudyRecord
from trainwright.redact import redacted_value
from trainwright.require import require
from trainwright.trackers.base import DatasetCard, Histogram, Point, RunCard, StudyCard
from trainwright.trackers.mlflow.store import client_of

RUN_ID, STUDY_ID = "trainwright.run_id", "trainwright.study_id"
PARENT = "mlflow.parentRunId"
_LOCK = "mlflow.lock"
_URI = "MLFLOW_TRACKING_URI"
MODEL_ID, MODEL_DIGEST = "trainwright.model_id", "trainwright.model_digest"
DIGEST_LENGTH = 36  # characters of a dataset's digest; MLflow takes no more
STATUS = {
    "completed": "FINISHED",
    "failed": "FAILED",
    **dict.fromkeys(("stopped", "pruned", "paused", "preempted", "interrupted"), "KILLED"),
}
STUDY_FILES = ("report.html", StudyRecord.RESULT)
POINTS_PER_CALL, PAIRS_PER_CALL = 1000, 100  # what MLflow allows

log = logging.getLogger("trainwright.trackers.mlflow")

# Set unless the user has set them. The feeder retries; MLflow's own retries need four minutes to notice that
# a server is dead.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


class MlflowParams(Section):
    """The place of MLflow, and the name of the run there."""

    uri: str | None = Field(
        None, description="default: MLFLOW_TRACKING_URI, else sqlite:///mlflow.db in the working directory"
    )
    experiment: str | None = Field(None, description="default: the experiment's name")
    run_name: str | None = Field(None, description="default: the run's id")
    tags: dict[str, str] = Field(default_factory=dict, description="further tags for the MLflow run")
    log_model: bool = Field(
        True, description="log the model when the run has ended, as one that MLflow loads and serves"
    )
    registered_model_name: str | None = Field(
        None,
        description="register the model under this name: a new version for each run; of a search, for the "
        "best one",
    )
    system_metrics: bool = Field(
        False,
        description="MLflow's own measurements of the machine (processors, memory, disk, network, GPUs), "
        "every 10 s; they need psutil, and nvidia-ml-py for GPUs",
    )


class MlflowTracker:
    """Forward to MLflow through `MlflowClient`; the fluent API and its active run are left to the user."""

    Params: ClassVar[type[MlflowParams]] = MlflowParams
    wants_histograms: ClassVar[bool] = False

    def __init__(self, params: MlflowParams) -> None:
        """Import MLflow.

        Raises:
            MissingExtraError: It is not installed.
        """
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self._entities = require("mlflow.entities", "mlflow")
        self._tracking = require("mlflow.tracking", "mlflow")
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self._params = params
        self._tags = {key: redacted_value(key, text) for key, text in params.tags.items()}
        self._uri = params.uri or os.environ.get(_URI) or f"sqlite:///{Path.cwd() / 'mlflow.db'}"
        self.wants_model = params.log_model
        self._client: Any = None
        self._run_id = ""
        self._trainwright_id = ""
        self._is_of_study = False
        self._measures = params.system_metrics
        self._monitor: Any = None

    def open(self, run: RunCard) -> Mapping[str, int]:
        """Find the MLflow run by its tag, or create it; params that it lacks are added.

        Raises:
            TrackerError: MLflow cannot be reached, or refuses.
        """
        with self._translated():
            self._client = client_of(self._tracking, self._uri)
            experiment = self._experiment(self._params.experiment or run.experiment)
            tagged = f"tags.`{RUN_ID}` = '{run.run_id}'"
            matches = self._client.search_runs([experiment], tagged, max_results=1)
            opened = matches[0] if matches else self._create(run, experiment)
            self._run_id, self._trainwright_id = opened.info.run_id, run.run_id
            self._is_of_study = run.study is not None
            if opened.info.status != "RUNNING":
                self._client.update_run(self._run_id, status="RUNNING")
            self._add_params(run.params, opened.data.params)
            self._add_datasets(run.datasets, opened)
            # `data.metrics` has values only; the steps are in the message that MLflow itself sends.
            return {_plain(metric.key): metric.step for metric in opened.data.to_proto().metrics}

    def log(self, points: Sequence[Point]) -> None:
        """Send points, a thousand at a time; if a call fails half-way, `open` sees what has arrived."""
        metric = self._entities.Metric
        values = [
            metric(_allowed(point.metric), point.value, int(point.time * 1000), point.step)
            for point in points
        ]
        self._start_monitor()
        with self._translated():
            for start in range(0, len(values), POINTS_PER_CALL):
                self._client.log_batch(
                    self._run_id, metrics=values[start : start + POINTS_PER_CALL], synchronous=True
                )

    def log_histograms(self, histograms: Sequence[Histogram]) -> None:
        """Do nothing: MLflow has no histograms."""

    def log_artifact(self, path: Path, name: str) -> None:
        """Upload a file or folder; files that the folder no longer holds are deleted where the store can."""
        with self._translated():
            if path.is_dir():
                self._delete_folder(name)
                self._client.log_artifacts(self._run_id, str(path), name)
                return
            target = PurePosixPath(name)
            with tempfile.TemporaryDirectory() as folder:  # MLflow takes the name that the file has on disk
                link = Path(folder) / target.name
                link.symlink_to(path.absolute())
                parent = str(target.parent) if target.parent.name else None
                self._client.log_artifact(self._run_id, str(link), parent)

    def close(self, status: str) -> None:
        """Set the MLflow run's status and end time."""
        with self._translated():
            self._stop_monitor()
            self._client.set_terminated(self._run_id, STATUS.get(status, "FAILED"))

    def log_model(self, folder: Path, digest: str) -> None:
        """Log the model to the run, and register it if a name is given, unless it is a trial's.

        A tag of the run says which model has these weights: it is not sent again. One whose upload failed is
        sent again under its own id.

        Raises:
            InputError: Its predictions need targets.
        """
        with self._translated():
            run = self._client.get_run(self._run_id)
            model_id, held = (run.data.tags.get(tag) for tag in (MODEL_ID, MODEL_DIGEST))
            if held != digest or model_id is None:
                model_id = self._created_model(run.info.experiment_id, digest)
            model = self._client.get_logged_model(model_id)
            if str(model.status) != "READY":
                from trainwright.trackers.support.mlflow_model import DATA, Logged, write_model

                write_model(folder, Logged(model_id, self._run_id))
                self._client.log_model_artifacts(model_id, str(folder))
                step = self._log_model_metrics(model_id, folder / DATA)
                self._client.log_outputs(self._run_id, [self._entities.LoggedModelOutput(model_id, step)])
                self._client.finalize_logged_model(model_id, "READY")
            if self._params.registered_model_name is not None and not self._is_of_study:
                self._register(model_id, self._run_id, self._trainwright_id)

    def _log_model_metrics(self, model_id: str, run: Path) -> int:
        """Give a logged model its own metrics, which are not those of the run's last step; return its step.

        They are points that the run has already: MLflow takes an equal one for the same.
        """
        result = Result.load(run / Result.FILE)
        if result is None:
            return 0
        step = result.best.step if result.best else result.steps
        points = []
        for name, value in result.metrics.items():
            at = step if name.startswith("val_") else result.steps  # the test split is evaluated at the end
            held = self._client.get_metric_history(self._run_id, _allowed(name))
            time = next((one.timestamp for one in held if (one.step, one.value) == (at, value)), None)
            time = int(1000 * now()) if time is None else time
            points.append(self._entities.Metric(_allowed(name), value, time, at, model_id=model_id))
        if points:
            self._client.log_batch(self._run_id, metrics=points, synchronous=True)
        return step

    def _created_model(self, experiment_id: str, digest: str) -> str:
        model = self._client.create_logged_model(
            experiment_id, name="model", source_run_id=self._run_id, tags={"trainwright.digest": digest}
        )
        self._client.set_tag(self._run_id, MODEL_ID, model.model_id)
        self._client.set_tag(self._run_id, MODEL_DIGEST, digest)
        return str(model.model_id)

    def _register(self, model_id: str, mlflow_id: str, run_id: str) -> None:
        """Register the logged model of a run, unless it is a version of that name already."""
        name = self._params.registered_model_name
        if not self._client.search_registered_models(f"name = '{name}'", max_results=1):
            self._client.create_registered_model(name)
        versions = self._client.search_model_versions(f"name = '{name}' and run_id = '{mlflow_id}'")
        # A store may not return the `model_id` of a version.
        if not any(version.tags.get(MODEL_ID) == model_id for version in versions):
            with self._as_default():
                self._client.create_model_version(
                    name,
                    f"models:/{model_id}",
                    mlflow_id,
                    tags={MODEL_ID: model_id, RUN_ID: run_id},
                    model_id=model_id,
                    await_creation_for=0,
                )

    @contextlib.contextmanager
    def _as_default(self) -> Iterator[None]:
        """Make the store the one that MLflow finds by itself: its registry looks for models there only."""
        before = os.environ.get(_URI)
        os.environ[_URI] = self._uri
        try:
            yield
        finally:
            os.environ.pop(_URI)
            if before is not None:
                os.environ[_URI] = before

    def _experiment(self, name: str) -> str:
        known = self._client.get_experiment_by_name(name)
        if known is None:
            return str(self._client.create_experiment(name))
        if known.lifecycle_stage == "deleted":
            raise TrackerError(
                f"experiment {name!r} is deleted in MLflow; restore it, or set another `experiment`"
            )
        return str(known.experiment_id)

    def _create(self, run: RunCard, experiment: str) -> Any:
        # In one call, so that no run ever exists without the tag that identifies it.
        tags = {**run.tags, RUN_ID: run.run_id, "mlflow.source.name": "trainwright", **self._tags}
        if run.study is not None:
            tags[PARENT] = self._parent(experiment, run.study, run.run_dir.parent / run.study)
        if "trainwright.git_commit" in run.tags:
            tags["mlflow.source.git.commit"] = run.tags["trainwright.git_commit"]
        return self._client.create_run(experiment, tags=tags, run_name=self._params.run_name or run.run_id)

    def _parent(self, experiment: str, study: str, folder: Path) -> str:
        """Return the id of MLflow's run of a study, which is found by its tag, or created."""
        with _locked(folder):
            tagged = f"tags.`{STUDY_ID}` = '{study}'"
            if matches := self._client.search_runs([experiment], tagged, max_results=1):
                return str(matches[0].info.run_id)
            tags = {STUDY_ID: study, "mlflow.source.name": "trainwright", **self._tags}
            return str(self._client.create_run(experiment, tags=tags, run_name=study).info.run_id)

    def end_study(self, study: StudyCard) -> None:
        """Record how a study has ended, with its best trial's metrics, and its report.

        Of the models of its trials, only that of the best one is registered.

        Raises:
            TrackerError: MLflow cannot be reached, or refuses, or has no model of the best trial yet.
        """
        with self._translated():
            self._client = client_of(self._tracking, self._uri)
            experiment = self._experiment(self._params.experiment or study.experiment)
            self._run_id = self._parent(experiment, study.study_id, study.folder)
            for name, value in study.metrics.items():
                self._client.log_metric(self._run_id, _allowed(name), value)
            for name, text in study.tags.items():
                self._client.set_tag(self._run_id, name, text)
            for name in STUDY_FILES:
                if (study.folder / name).is_file():
                    self._client.log_artifact(self._run_id, str(study.folder / name))
            self._client.set_terminated(self._run_id, STATUS.get(study.status, "FAILED"))
            if study.status == "completed" and study.best_run and self._params.registered_model_name:
                self._register_best(experiment, study.best_run)

    def _register_best(self, experiment: str, run_id: str) -> None:
        tagged = f"tags.`{RUN_ID}` = '{run_id}'"
        for run in self._client.search_runs([experiment], tagged, max_results=1):
            if (model_id := run.data.tags.get(MODEL_ID)) is not None:
                self._register(model_id, run.info.run_id, run_id)
                return
        raise TrackerError(f"MLflow has no model of the best run, {run_id}, to register")

    def _add_params(self, params: Mapping[str, str], held: Mapping[str, str]) -> None:
        # MLflow's params can never change: those of the first attempt stay.
        missing = {_allowed(key): value for key, value in params.items() if _allowed(key) not in held}
        pairs = [self._entities.Param(key, value) for key, value in missing.items()]
        for start in range(0, len(pairs), PAIRS_PER_CALL):
            self._client.log_batch(
                self._run_id, params=pairs[start : start + PAIRS_PER_CALL], synchronous=True
            )

    def _add_datasets(self, datasets: Sequence[DatasetCard], run: Any) -> None:
        """Log the splits as MLflow's dataset inputs, unless the run has them."""
        held = {each.dataset.digest for each in run.inputs.dataset_inputs} if run.inputs else set()
        new = [dataset for dataset in datasets if dataset.digest[:DIGEST_LENGTH] not in held]
        if new:
            self._client.log_inputs(self._run_id, [self._dataset_input(dataset) for dataset in new])

    def _dataset_input(self, dataset: DatasetCard) -> Any:
        return self._entities.DatasetInput(
            self._entities.Dataset(
                dataset.name,
                dataset.digest[:DIGEST_LENGTH],
                "http" if "://" in dataset.source else "local",
                json.dumps({"uri": dataset.source}),
                profile=json.dumps({"num_rows": dataset.rows}),
            ),
            [self._entities.InputTag("mlflow.data.context", dataset.context)],
        )

    def _start_monitor(self) -> None:
        """Let MLflow measure the machine, from the first metrics on; if it cannot, they are sent anyway."""
        if not self._measures:
            return
        self._measures = False
        try:
            monitors = require("mlflow.system_metrics.system_metrics_monitor", "mlflow")
            self._monitor = monitors.SystemMetricsMonitor(
                self._run_id, resume_logging=True, tracking_uri=self._uri
            )
            self._monitor.start()
        except Exception as error:
            log.warning("the machine is not measured: %s", _cause(error))

    def _stop_monitor(self) -> None:
        """End the measurements; a tracker that failed is replaced by one with a monitor of its own."""
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            monitor.finish()

    def _delete_folder(self, name: str) -> None:
        stores = require("mlflow.store.artifact.artifact_repository_registry", "mlflow")
        store = stores.get_artifact_repository(
            self._client.get_run(self._run_id).info.artifact_uri, tracking_uri=self._uri
        )
        with contextlib.suppress(NotImplementedError):
            if store.list_artifacts(name):
                store.delete_artifacts(name)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            self._stop_monitor()
            raise TrackerError(f"MLflow at {self._uri}: {_cause(error)}") from error


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep out the other processes of a study, on all machines that share its folder."""
    with (folder / _LOCK).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _allowed(name: str) -> str:
    """Return a metric's or param's name as MLflow accepts it; `_plain` gives our name back."""
    return re.sub(r"[^/\w.\- :]|_(?=x[0-9a-f]{2})", lambda match: f"_x{ord(match[0]):x}_", name)


def _plain(name: str) -> str:
    return re.sub(r"_x([0-9a-f]{2,6})_", lambda match: chr(int(match[1], 16)), name)


def _cause(error: BaseException) -> str:
    """Return the first line of the innermost error: those that wrap it repeat it in a paragraph each."""
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__ or error
    return (str(error) or type(error).__name__).strip().splitlines()[0]
