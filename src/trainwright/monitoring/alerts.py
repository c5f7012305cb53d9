"""Alert rules for Prometheus: of the metrics of a service, and of its drift."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trainwright.errors import InputError


class Alert(NamedTuple):
    """An alert of Prometheus.

    Attributes:
        name: Its name.
        expr: The expression of PromQL that is not empty while it holds.
        lasts: How long it must hold, as Prometheus writes times.
        severity: `critical`: requests fail; `warning`: look at it in working hours.
        summary: What is wrong, in a line.
        action: What to do.
    """

    name: str
    expr: str
    lasts: str
    severity: str
    summary: str
    action: str


def alerts(latency: float = 1.0, queue: int = 1000, job: str | None = None) -> Sequence[Alert]:
    """Return the alerts of services: each job of Prometheus is one.

    Args:
        latency: The seconds that 99 of 100 requests must take at most.
        queue: The rows that may wait for the model for a few minutes.
        job: The job whose targets are the replicas, one by one; None: they are not known.

    Raises:
        InputError: A limit is not positive.
    """
    if not (latency > 0 and queue > 0):
        raise InputError(
            f"a latency of {latency:g} s and a queue of {queue} rows given; both must be positive"
        )
    replica = Alert(
        "TrainwrightReplicaDown", f'up{{job="{job}"}} == 0', "1m", "warning",
        "replica {{ $labels.instance }} does not answer",
        "look at its log: does it start, does it run out of memory?",
    )  # fmt: skip
    return (
        *([replica] if job else []),
        Alert(
            "TrainwrightDown", "absent(trainwright_model_info)", "2m", "critical",
            "no replica serves a model",
            "look at the replicas and their /ready",
        ),
        Alert(
            "TrainwrightErrors", f"{_share('5..')} > 0.01", "5m", "critical",
            "{{ $value | humanizePercentage }} of requests fail with an error of the service",
            "look at the log of the replicas",
        ),
        Alert(
            "TrainwrightOverload", f"{_share('429')} > 0.01", "5m", "critical",
            "{{ $value | humanizePercentage }} of requests are turned away, as the queue is full",
            "add replicas",
        ),
        Alert(
            "TrainwrightRefused", f"{_share('4..', but='429')} > 0.05", "10m", "warning",
            "{{ $value | humanizePercentage }} of requests are refused as wrong",
            "ask the clients: the answers name row and column",
        ),
        Alert(
            "TrainwrightSlow",
            "histogram_quantile(0.99, sum by (job, le) (rate(trainwright_request_seconds_bucket[5m]))) "
            f"> {latency:g}", "10m", "warning",
            f"one of 100 requests takes longer than {latency:g} s: {{{{ $value | humanizeDuration }}}}",
            "add replicas, or lower --batch-ms",
        ),
        Alert(
            "TrainwrightQueue", f"max by (job) (trainwright_queue_rows) > {queue}", "5m", "warning",
            "{{ $value }} rows wait for the model",
            "add replicas",
        ),
        Alert(
            "TrainwrightDrift",
            "max by (job, column) (trainwright_drift_score) > 1 "
            "and on (job) max by (job) (trainwright_drift_alarm) == 1",
            "0m", "warning",
            "column {{ $labels.column }} has drifted from the training rows: {{ $value | humanize }} times "
            "its threshold",
            "read /drift, or make a page of it: trainwright monitor URL",
        ),
        Alert(
            "TrainwrightModels",
            'count by (job) (count by (job, run) (trainwright_model_info{role="main"} == 1)) > 1',
            "15m", "warning",
            "replicas answer with {{ $value }} different models",
            "a roll-out did not end: end it, or roll back",
        ),
    )  # fmt: skip


def _share(code: str, but: str | None = None) -> str:
    """Return the expression of the share of the requests with a status code."""
    chosen = f'code=~"{code}"' + (f', code!="{but}"' if but is not None else "")
    rates = (f"sum by (job) (rate(trainwright_requests_total{of}[5m]))" for of in (f"{{{chosen}}}", ""))
    return " / ".join(rates)


def rules(
    latency: float = 1.0,
    queue: int = 1000,
    labels: Mapping[str, str] | None = None,
    job: str | None = None,
) -> str:
    """Return the file of rules that Prometheus reads (`rule_files`), in YAML.

    Args:
        latency: As in `alerts`.
        queue: As in `alerts`.
        labels: More labels of each alert, such as `team`.
        job: As in `alerts`.
    """
    lines = ["# Made by Trainwright. Check it with: promtool check rules FILE", "groups:"]
    lines += ["  - name: trainwright", "    rules:"]
    for one in alerts(latency, queue, job):
        lines += [f"      - alert: {one.name}", f"        expr: {_quoted(one.expr)}"]
        lines += [f"        for: {one.lasts}", "        labels:"]
        named: dict[str, Any] = {"severity": one.severity, **(labels or {})}
        lines += [f"          {name}: {_quoted(value)}" for name, value in named.items()]
        lines += ["        annotations:", f"          summary: {_quoted(one.summary)}"]
        lines += [f"          action: {_quoted(one.action)}"]
    return "\n".join(lines) + "\n"


def _quoted(value: str) -> str:
    """Return a text as YAML reads it: JSON is YAML."""
    return json.dumps(value, ensure_ascii=False)
