"""The processes of a service."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import ipaddress
import logging
import os
import resource
import signal
import socket
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.supervisors import Multiprocess, multiprocess

from trainwright.errors import InputError
from trainwright.servers.service.metrics import MULTIPROCESS
from trainwright.servers.service.protocol import LimitedProtocol
from trainwright.servers.service.references import reference_maker
from trainwright.servers.service.settings import Settings

log = logging.getLogger("trainwright")
# Read when the libraries are imported. Threads that spin beside other replicas make all slower.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
_ATTACH_FILTER = 26  # SO_ATTACH_FILTER of Linux
_GRACE = 30  # seconds that open requests get at the end


@dataclass(frozen=True)
class _Factory:
    """Make the application in the process of a replica."""

    settings: Settings

    def __call__(self) -> Any:
        from trainwright.servers.service.app import make_app
        from trainwright.servers.service.open_inference.rest import add_routes

        app = make_app(self.settings)
        add_routes(app)
        if self.settings.grpc_port is not None:
            from trainwright.servers.service.open_inference.grpc_server import add_server

            add_server(app)
        return app


class _Server(uvicorn.Server):
    """The server of a replica, which ends without losing a connection."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, take the connections that wait to be accepted, and answer what is left."""
        waiting = [one.dup() for one in sockets or ()]
        for one in waiting:
            _drop_new(one)
        for server in self.servers:
            server.close()
        for one in sockets or ():
            one.close()
        for one in waiting:
            await self._take(one)
        self.servers = []
        await super().shutdown()

    async def _take(self, listening: socket.socket) -> None:
        """Accept what waits at a socket, and close it: else these connections would be reset."""
        listening.setblocking(False)
        accepted = []
        with contextlib.suppress(BlockingIOError):
            while True:
                accepted.append(listening.accept()[0])
        listening.close()

        def protocol() -> LimitedProtocol:
            return LimitedProtocol(self.config, self.server_state, self.lifespan.state)

        for one in accepted:
            await asyncio.get_running_loop().connect_accepted_socket(protocol, one)


def _drop_new(listening: socket.socket) -> None:
    """Drop the packets of new connections to a socket: clients ask again, and find the port closed.

    Else connections that come while those that wait are accepted would be made, and reset.
    """
    drops_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0 bytes
    with contextlib.suppress(OSError):  # where the kernel has no filters, a moment of this is left
        program = struct.pack("HL", 1, ctypes.addressof(drops_all))
        listening.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)


class _Replica(multiprocess.Process):
    """The process of a replica."""

    @property
    def server(self) -> uvicorn.Server:
        """The server of the process."""
        if self._server is None:
            self._server = _Server(self.config)
        return self._server


class _Replicas(Multiprocess):
    """The processes of the replicas."""

    def terminate_all(self) -> None:
        """Close the port first: else connections that no replica accepts any more would wait in vain."""
        for one in self.sockets:
            one.close()
        super().terminate_all()


def run(settings: Settings, say: Callable[[str, str | None], None]) -> None:
    """Serve until a signal ends it.

    Args:
        settings: The settings.
        say: Gets the address when the port is open, and that for gRPC.

    Raises:
        InputError: The port cannot be opened, or is open to others without a key.
        TrainwrightError: The model cannot be loaded.
    """
    refuse_open(settings)
    for name in _THREADS:
        os.environ.setdefault(name, str(settings.threads))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection is a file
    listening = _bound(settings.host, settings.port, "--port")
    listening.set_inheritable(True)
    address, grpc_address = f"http://{settings.host}:{listening.getsockname()[1]}", None
    if settings.grpc_port is not None:
        with _bound(settings.host, settings.grpc_port, "--grpc-port") as probe:
            settings = replace(settings, grpc_port=probe.getsockname()[1])
        grpc_address = f"{settings.host}:{settings.grpc_port}"
    # uvicorn ends with the signal that stopped it, once these are its handlers again.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    with tempfile.TemporaryDirectory() as folder:
        settings = replace(settings, state=settings.state or Path(folder) / "state")
        config = uvicorn.Config(
            _Factory(settings),
            http=LimitedProtocol,
            factory=True,
            workers=settings.workers,
            timeout_worker_healthcheck=60,
            lifespan="on",
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=_GRACE,
            server_header=False,
        )
        if settings.workers == 1:
            config.load()  # an error of the model is said here
        else:
            os.environ[MULTIPROCESS] = folder
        say(address, grpc_address)
        maker = reference_maker(settings)
        maker.start()
        try:
            if settings.workers == 1:
                _Server(config).run(sockets=[listening])
            else:
                multiprocess.Process = _Replica  # type: ignore[misc]  # what it starts
                _Replicas(config, sockets=[listening]).run()
        finally:
            maker.kill()
            maker.join()


def _bound(host: str, port: int, option: str) -> socket.socket:
    """Return a socket at an address.

    Raises:
        InputError: It cannot be opened.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family=family)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}; give another {option}") from None
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
