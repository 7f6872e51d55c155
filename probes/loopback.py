"""A loopback interface for processes that talk to each other, where there is no network.

A probe's process may have been given a network namespace of its own, in which even the loopback
interface is down. Whoever made that namespace as root may bring it up; anyone else makes another
namespace, inside a user namespace of their own, and may do so there. Children inherit it.

Standard library only. Nothing outside this machine is reached in either case.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import Final

NAME: Final = "lo"
_GET_FLAGS: Final = 0x8913
_SET_FLAGS: Final = 0x8914
_UP: Final = 1
_NEW_USER: Final = 0x10000000
_NEW_NETWORK: Final = 0x40000000
_REQUEST: Final = "16sH22x"


def ensure() -> str:
    """Have the loopback interface up for this process and those that it starts from now on.

    Must be called while the process has one thread only, for a namespace can't be made otherwise.

    Returns:
        What it took: `up`, `brought up`, or `own namespace`.

    Raises:
        OSError: there is none, and none can be made.
    """
    if is_up():
        return "up"
    try:
        _bring_up()
    except PermissionError:
        _enter_namespace()
        _bring_up()
        return "own namespace"
    return "brought up"


def is_up() -> bool:
    """Whether the interface is up."""
    return bool(_flags() & _UP)


def _flags() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked, _GET_FLAGS, struct.pack(_REQUEST, NAME.encode(), 0))
    return int(struct.unpack(_REQUEST, answer)[1])


def _bring_up() -> None:
    wanted = struct.pack(_REQUEST, NAME.encode(), _flags() | _UP)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        fcntl.ioctl(asked, _SET_FLAGS, wanted)


def _enter_namespace() -> None:
    """Move this process into a user and a network namespace; its user stays who it was."""
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_USER | _NEW_NETWORK):
        number = ctypes.get_errno()
        raise OSError(number, f"no namespace for a loopback interface: {os.strerror(number)}")
    own = Path("/proc/self")
    (own / "setgroups").write_text("deny")
    (own / "uid_map").write_text(f"{user} {user} 1")
    (own / "gid_map").write_text(f"{group} {group} 1")
