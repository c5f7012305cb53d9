"""The settings of a service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """The settings of a service, which travel to the processes of its replicas.

    Attributes:
        model: The run or the exported model, as the user named it.
        runs_dir: The folder of the runs.
        trust: As in `trainwright.load`.
        host: The address to listen on.
        port: The port.
        grpc_port: The port for gRPC, 0 for a free one; None: none.
        workers: The number of replicas, a process each.
        batch_seconds: How long a batch waits for more rows.
        max_batch: The number of rows of a batch.
        max_waiting: The number of rows that may wait in a replica.
        timeout: How long a request waits for the model, in seconds.
        max_body: The number of bytes of a body.
        key: The key that requests must show; None: none.
        shares: Other models, and the share of the requests that each answers.
        shadow: A model that gets the rows of all requests, and whose predictions are compared.
        threads: The number of threads that a replica computes with.
        state: The folder in which the replicas keep the windows of drift.
        window_seconds: The length of a window; 0: drift is not watched.
        alarm_rate: The probability of an alarm in a window without drift.
        log: The folder of the log of requests; None: there is none.
        log_sample: The share of the requests that are logged.
        log_without: Columns that are left out of the log.
        feedback_rows: The number of rows that wait for their labels, and of those that have them; 0: none.
        reload_seconds: How often to look whether the name stands for another model; 0: never.
    """

    model: str
    runs_dir: Path | str | None = None
    trust: bool = False
    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = None
    workers: int = 1
    batch_seconds: float = 0.005
    max_batch: int = 64
    max_waiting: int = 1024
    timeout: float = 30.0
    max_body: int = 16 << 20
    key: str | None = None
    shares: Sequence[tuple[str, float]] = ()
    shadow: str | None = None
    threads: int = 1
    state: Path | None = None
    window_seconds: float = 3600.0
    alarm_rate: float = 0.01
    log: Path | None = None
    log_sample: float = 1.0
    log_without: Sequence[str] = ()
    feedback_rows: int = 100_000
    reload_seconds: float = 2.0
