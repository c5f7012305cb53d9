"""A network of its own, with the loopback device alone, for servers that listen on all interfaces."""

import ctypes
import fcntl
import os
import socket
import struct

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of sched.h
_SET_FLAGS, _UP_AND_RUNNING = 0x8914, 0x41  # SIOCSIFFLAGS; IFF_UP | IFF_RUNNING


def enter() -> None:
    """Leave the network of this process for one of its own; raise OSError where that is not permitted."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP_AND_RUNNING))


def is_permitted() -> bool:
    """Whether a process of this one may have a network of its own."""
    if (child := os.fork()) == 0:
        try:
            enter()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0
