"""The metrics of a service, for Prometheus."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import prometheus_client as prometheus
from prometheus_client import multiprocess

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"  # the folder in which replicas add up their metrics
CONTENT_TYPE = prometheus.CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_DIFFERENCES = (0.0, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """The metrics of one replica."""

    def __init__(self) -> None:
        _forget_dead()
        self.registry = prometheus.CollectorRegistry()
        counter, histogram = self._made(prometheus.Counter), self._made(prometheus.Histogram)
        self.requests = counter("trainwright_requests", "Requests, by status code.", ["route", "code"])
        self.seconds = histogram(
            "trainwright_request_seconds", "Time of a request, in seconds.", ["route"], buckets=_SECONDS
        )
        self.rows = counter("trainwright_rows", "Rows that were predicted, by model.", ["model"])
        self.batch = histogram("trainwright_batch_rows", "Rows that were predicted together.", buckets=_ROWS)
        self.shadow = counter("trainwright_shadow_rows", "Rows of the shadow model.", ["outcome"])
        self.difference = histogram(
            "trainwright_shadow_difference",
            "Largest difference of a number in a row of predictions from that of the shadow model.",
            buckets=_DIFFERENCES,
        )
        self.failed = counter("trainwright_failed_rows", "Rows of on_error=null that could not be predicted.")
        self.unrecorded = counter("trainwright_unrecorded_rows", "Rows that were not recorded.")
        self.drift_alarm = prometheus.Gauge(
            "trainwright_drift_alarm",
            "1 if the last window has drifted.",
            registry=self.registry,
            multiprocess_mode="livemostrecent",
        )
        self.drift_score = prometheus.Gauge(
            "trainwright_drift_score",
            "Score of a column in the last window; above 1 it has drifted.",
            ["column"],
            registry=self.registry,
            multiprocess_mode="livemostrecent",
        )
        self.labels = counter("trainwright_feedback_labels", "Labels that came, by outcome.", ["outcome"])
        self.quality, self.quality_lower, self.quality_upper = (
            prometheus.Gauge(
                f"trainwright_quality{end}",
                f"{what} of the rows whose labels have come.",
                ["metric", "model"],
                registry=self.registry,
                multiprocess_mode="livemostrecent",
            )
            for end, what in (
                ("", "Metric"),
                ("_lower", "Lower end of the 95% interval of a metric"),
                ("_upper", "Upper end of the 95% interval of a metric"),
            )
        )
        self.waiting = prometheus.Gauge(
            "trainwright_queue_rows",
            "Rows that wait for the model.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.reloads = counter("trainwright_reloads", "Models that were loaded anew.", ["outcome"])
        self.model = prometheus.Gauge(
            "trainwright_model_info",
            "1 for each model that is served.",
            ["model", "run", "role"],
            registry=self.registry,
            multiprocess_mode="livemax",
        )

    def _made(self, kind: Any) -> Any:
        def make(name: str, text: str, labels: Any = (), **options: Any) -> Any:
            return kind(name, text, labels, registry=self.registry, **options)

        return make

    def text(self) -> bytes:
        """Return the metrics of all replicas in the format of Prometheus."""
        if MULTIPROCESS not in os.environ:
            return prometheus.generate_latest(self.registry)
        registry = prometheus.CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return prometheus.generate_latest(registry)


def _forget_dead() -> None:
    """Remove the gauges of replicas that were killed; this one may stand in for one of them."""
    for file in Path(os.environ[MULTIPROCESS]).glob("gauge_live*_*.db") if MULTIPROCESS in os.environ else ():
        number = int(file.stem.rpartition("_")[2])
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            multiprocess.mark_process_dead(number)  # type: ignore[no-untyped-call]
        except PermissionError:  # it lives
            continue
