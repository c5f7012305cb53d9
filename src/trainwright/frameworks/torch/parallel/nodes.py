"""Start the processes of a run on this machine, beside those that other machines start."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Sequence

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousTimeoutError,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from trainwright.config.schema import DistributedConfig
from trainwright.errors import InputError, WorldError
from trainwright.frameworks.torch.parallel.agent import SHUTDOWN_SECONDS, ending_finally, failed, is_final
from trainwright.process.environ import temporary_environment, threads_of_processes
from trainwright.world import RETRYABLE

_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux


def start(distributed: DistributedConfig, command: Sequence[str]) -> None:
    """Start the processes of this node when all nodes are there, and wait for their end.

    If a process dies on any node, the processes of all nodes start again, unless its end is final.

    Raises:
        InputError: The endpoint has no address.
        WorldError: The nodes do not find each other in time, one is gone, or no restarts are left.
        SignalException: A signal came.
    """
    endpoint, nnodes = str(distributed.rdzv_endpoint), distributed.nnodes
    address = own_address(endpoint)
    interface = interface_of(address)
    config = LaunchConfig(
        min_nodes=nnodes,
        max_nodes=nnodes,
        nproc_per_node=distributed.processes(),
        run_id=distributed.rdzv_id,
        rdzv_backend="c10d",
        rdzv_endpoint=endpoint,
        rdzv_configs={
            "join_timeout": distributed.rdzv_timeout,
            "read_timeout": distributed.rdzv_timeout,
        },
        local_addr=address,
        max_restarts=distributed.max_restarts,
    )
    variables = {
        # Each start of the processes has a store of its own: the keys of dead ones would lead others astray,
        # and the nodes may count the restarts differently.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": SHUTDOWN_SECONDS,
        **threads_of_processes(),
    }
    if interface is not None:  # else they would listen where the name of the machine leads to
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            variables[name] = os.environ.get(name, interface)
    try:
        with temporary_environment(variables), ending_finally():
            elastic_launch(config, command[0])(*command[1:])
    except ChildFailedError as error:
        if is_final(error.failures.values()):
            return
        if all(failure.exitcode == RETRYABLE for failure in error.failures.values()):
            raise WorldError(
                f"a process on another node has died, after {distributed.max_restarts} "
                "restarts: see that node's output"
            ) from error
        raise failed(error, nnodes * distributed.processes(), distributed.max_restarts) from error
    except (RendezvousError, DistError) as error:
        raise WorldError(_in_words(error, distributed)) from error


def _in_words(error: Exception, distributed: DistributedConfig) -> str:
    endpoint, seconds = distributed.rdzv_endpoint, distributed.rdzv_timeout
    if isinstance(error, RendezvousConnectionError):
        return (
            f"the node at distributed.rdzv_endpoint {endpoint} does not answer (for {seconds} s, if it never "
            "did): is trainwright running there, and is the port open?"
        )
    if isinstance(error, RendezvousTimeoutError):
        return (
            f"{distributed.nnodes} nodes did not find each other at {endpoint} within {seconds} s: start the "
            "same command on each of them, with the same rdzv_id; distributed.rdzv_timeout waits longer"
        )
    if isinstance(error, RendezvousClosedError):
        return f"another node has ended the attempt: see its output for the reason ({endpoint})"
    return f"the nodes cannot find each other at {endpoint}: {error}"


def own_address(endpoint: str) -> str | None:
    """Return the address at which this machine reaches an endpoint, or None if there is no way to it.

    Raises:
        InputError: The endpoint's host has no address.
    """
    host, _, port = endpoint.rpartition(":")
    try:
        family, kind, _, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[
            0
        ]
    except (socket.gaierror, UnicodeError) as error:
        raise InputError(
            f"distributed.rdzv_endpoint: no machine has the name {host} ({error}); give HOST:PORT of a node"
        ) from error
    try:
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


def interface_of(address: str | None) -> str | None:
    """Return the name of the network interface with an IPv4 address, or None if it is not known."""
    if address is None or ":" in address:
        return None
    if address.startswith("127."):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)
            except OSError:
                continue  # it has no address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
