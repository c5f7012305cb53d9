"""`serve`: answer requests for predictions over HTTP."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from trainwright.cli import options
from trainwright.cli.errors import to_stderr

_KEY = "TRAINWRIGHT_API_KEY"


@click.command()
@click.argument("run", metavar="RUN|ARTIFACT")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "-p", "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: a free one."
)
@click.option(
    "--grpc-port",
    type=click.IntRange(0, 65535),
    help="Answer the open inference protocol over gRPC, too, at this port; 0: a free one.",
)
@click.option(
    "-w",
    "--workers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="The number of replicas, a process each.",
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="The number of threads that a replica computes with; more make a large model answer sooner.",
)
@click.option(
    "--batch-ms",
    type=click.FloatRange(0, 1000),
    default=5.0,
    show_default=True,
    help="How long a batch waits for as many requests as the one before had, in milliseconds.",
)
@click.option(
    "--max-batch",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="The number of rows that are predicted together; 1: each request by itself.",
)
@click.option(
    "--max-queue",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    help="The number of rows that may wait in a replica; more are answered with 429.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    help="How long a request waits for the model, in seconds.",
)
@click.option(
    "--max-body", metavar="SIZE", callback=options.size, help="The size of a request.  [default: 16MiB]"
)
@click.option(
    "--key-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"A file with the key that requests have to show.  [default: ${_KEY}, or none]",
)
@click.option(
    "--split",
    "shares",
    metavar="RUN=SHARE",
    multiple=True,
    help="Let another model answer a share of the requests, such as 0.1; may be given several times.",
)
@click.option(
    "--shadow",
    metavar="RUN",
    help="Give all rows to another model, too, and count in /metrics how its predictions differ.",
)
@click.option(
    "--window",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="The length of the windows that are compared with the training rows, in minutes; 0: none are.",
)
@click.option(
    "--alarm-rate",
    type=click.FloatRange(1e-6, 0.5),
    default=0.01,
    show_default=True,
    help="The probability of an alarm in a window without drift.",
)
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep windows of drift, and predictions for labels, in this folder of a local disk.",
)
@click.option(
    "--log",
    type=click.Path(file_okay=False, path_type=Path),
    help="Log rows and predictions to Parquet files in this folder.",
)
@click.option(
    "--log-sample",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="The share of the requests that are logged.",
)
@click.option(
    "--log-without", metavar="COLUMN", multiple=True, help="Leave a column out of the log; several times."
)
@click.option(
    "--feedback-rows",
    type=click.IntRange(0),
    default=100_000,
    show_default=True,
    help="Keep so many predictions that wait for their labels (POST /feedback), and as many with labels; 0: "
    "take none.",
)
@click.option(
    "--reload-s",
    type=click.FloatRange(0),
    default=2.0,
    show_default=True,
    help="How often to look whether the name stands for another model, in seconds; 0: never.",
)
@options.trust
@options.runs_dir
def serve(
    run: str,
    host: str,
    port: int,
    grpc_port: int | None,
    workers: int,
    threads: int,
    batch_ms: float,
    max_batch: int,
    max_queue: int,
    timeout: float,
    max_body: int | None,
    key_file: Path | None,
    shares: tuple[str, ...],
    shadow: str | None,
    window: float,
    alarm_rate: float,
    state: Path | None,
    log: Path | None,
    log_sample: float,
    log_without: tuple[str, ...],
    feedback_rows: int,
    reload_s: float,
    trust: bool,
    runs_dir: str | None,
) -> None:
    """Serve predictions of a run or an exported model over HTTP.

    POST /predict takes rows as JSON, CSV, Arrow or Parquet, images, or texts; GET /docs shows how.
    """
    from trainwright.require import require

    for package in ("uvicorn", "fastapi_offline", "msgspec", "prometheus_client"):
        require(package, "serve")
    for package in ("grpc", "google.protobuf") if grpc_port is not None else ():
        require(package, "grpc")
    from trainwright.servers.service.running import run as run_service
    from trainwright.servers.service.settings import Settings

    settings = Settings(
        run,
        runs_dir=runs_dir,
        trust=trust,
        host=host,
        port=port,
        grpc_port=grpc_port,
        workers=workers,
        threads=threads,
        batch_seconds=batch_ms / 1e3,
        max_batch=max_batch,
        max_waiting=max_queue,
        timeout=timeout,
        max_body=max_body or Settings.max_body,
        key=_key(key_file),
        shares=_shares(shares),
        shadow=shadow,
        window_seconds=window * 60,
        alarm_rate=alarm_rate,
        state=state,
        log=log,
        log_sample=log_sample,
        log_without=log_without,
        feedback_rows=feedback_rows,
        reload_seconds=reload_s,
    )

    def say(address: str, grpc_address: str | None) -> None:
        more = "" if grpc_address is None else f"gRPC: {grpc_address}; "
        to_stderr(f"{run}: {address} (docs: {address}/docs; {more}Ctrl-C ends it)")

    run_service(settings, say)


def _shares(words: Sequence[str]) -> list[tuple[str, float]]:
    """Return the models that answer a share of the requests.

    Raises:
        BadParameter: One has no share, or all together have more than there is.
    """
    found = []
    for word in words:
        name, _, text = word.rpartition("=")
        try:
            share = float(text)
        except ValueError:
            share = 0.0
        if not name or not 0 < share < 1:
            raise click.BadParameter(
                f"{word}: give RUN=SHARE, such as {name or word}=0.1", param_hint="--split"
            )
        found.append((name, share))
    if sum(share for _, share in found) >= 1:
        raise click.BadParameter("the shares must leave some for RUN itself", param_hint="--split")
    return found


def _key(file: Path | None) -> str | None:
    """Return the key that requests have to show; None: none.

    Raises:
        InputError: The file cannot be read, or holds none.
    """
    return os.environ.get(_KEY) or None if file is None else options.key_in(file)
