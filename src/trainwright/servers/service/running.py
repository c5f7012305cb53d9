"""The processes of a service."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.supervisors import Multiprocess

from trainwright.errors import InputError
from trainwright.servers.service.metrics import MULTIPROCESS
from trainwright.servers.service.settings import Settings

log = logging.getLogger("trainwright")
# Read when the libraries are imported. Threads that spin beside other replicas make all slower.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
_GRACE = 30  # seconds that open requests get at the end


@dataclass(frozen=True)
class _Factory:
    """Make the application in the process of a replica."""

    settings: Settings

    def __call__(self) -> Any:
        from trainwright.servers.service.app import make_app

        return make_app(self.settings)


def run(settings: Settings, say: Callable[[str], None]) -> None:
    """Serve until a signal ends it.

    Args:
        settings: The settings.
        say: Gets the address when the port is open.

    Raises:
        InputError: The port cannot be opened, or is open to others without a key.
        TrainwrightError: The model cannot be loaded.
    """
    refuse_open(settings)
    for name in _THREADS:
        os.environ.setdefault(name, str(settings.threads))
    listening = _listening(settings)
    address = f"http://{settings.host}:{listening.getsockname()[1]}"
    config = uvicorn.Config(
        _Factory(settings),
        factory=True,
        workers=settings.workers,
        timeout_worker_healthcheck=60,
        lifespan="on",
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=_GRACE,
        server_header=False,
        h11_max_incomplete_event_size=1 << 16,
    )
    # uvicorn ends with the signal that stopped it, once these are its handlers again.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    if settings.workers == 1:
        config.load()  # an error of the model is said here
        say(address)
        uvicorn.Server(config).run(sockets=[listening])
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ[MULTIPROCESS] = folder
        say(address)
        Multiprocess(config, sockets=[listening]).run()


def _listening(settings: Settings) -> socket.socket:
    """Return the socket that the replicas share.

    Raises:
        InputError: It cannot be opened.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    found = socket.socket(family=family)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((settings.host, settings.port))
    except OSError as error:
        found.close()
        raise InputError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; give another --port"
        ) from None
    found.set_inheritable(True)
    return found


def refuse_open(settings: Settings) -> None:
    """Refuse to listen to others without a key.

    Raises:
        InputError: The address is not this machine's own, and there is no key.
    """
    host = settings.host
    try:
        is_own = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_own = host == "localhost"
    if not is_own and settings.key is None:
        raise InputError(
            f"--host {host} listens to other machines, and there is no key: give --key-file FILE (or set "
            "TRAINWRIGHT_API_KEY), and requests have to show it"
        )
