"""Read how many bytes the processes of tasks sent and received over the network.

`send` and `recv` stand in no counter of `/proc/PID/io`, so the kernel is asked for each TCP connection
itself (NETLINK_SOCK_DIAG, as `ss` does), in one question for all tasks.

- Bytes to another machine count when it has acknowledged them, so a dead peer moves none.
- The kernel answers for this network namespace alone. The processes of another one, as in a container,
  have their namespace's interfaces counted; and so has every process where the kernel does not answer.
"""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG, with its request SOCK_DIAG_BY_FAMILY
_BY_FAMILY = 20
_REQUEST_AND_DUMP = 0x301
_ERROR, _DONE = 2, 3
_INFO = 2  # INET_DIAG_INFO, an attribute of the answer: struct tcp_info
_LIVING = 0xFFF & ~(1 << 6 | 1 << 10)  # neither TIME_WAIT nor LISTEN
_HEAD = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBBI48x")
_INODE_AT = 16 + 68  # of struct inet_diag_msg, behind the head
_ATTRIBUTES_AT = 16 + 72
_BYTES_AT = 120  # of struct tcp_info: bytes_acked, bytes_received
_LONGEST_SECONDS = 1.0
_PREFIX = "socket:["

Moved = dict[str, int]
"""Bytes so far of each connection (`socket:[INODE]`) or interface (`net:[NAMESPACE]/NAME`)."""


class SocketReader:
    """Reads the bytes of processes' connections, asking the kernel once."""

    def __init__(self) -> None:
        self._connections: Moved | None = None
        self._asked = False
        self._namespace = _read_namespace("self")

    def read(self, pids: Iterable[int]) -> Moved | None:
        """Return the bytes so far of these processes' connections; None if they are unknown."""
        moved: Moved = {}
        for pid in pids:
            try:
                moved |= self._read_process(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue  # the process is gone
            except (OSError, ValueError, IndexError):
                return None
        return moved

    def _read_process(self, pid: int) -> Moved:
        namespace = _read_namespace(str(pid))
        if namespace != self._namespace:
            return _read_interfaces(pid, namespace)
        open_sockets = list(_find_sockets(pid))
        if not open_sockets:
            return {}
        if not self._asked:
            self._asked = True
            with contextlib.suppress(OSError, struct.error):
                self._connections = ask_connections()
        if self._connections is None:
            return _read_interfaces(pid, namespace)
        return {name: self._connections[name] for name in open_sockets if name in self._connections}


def _read_namespace(pid: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def _find_sockets(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            opened = os.readlink(f"{folder}/{name}")
            if opened.startswith(_PREFIX):
                yield opened


def _read_interfaces(pid: int, namespace: str) -> Moved:
    with open(f"/proc/{pid}/net/dev", "rb") as file:
        lines = [line.split(b":", 1) for line in file.read().splitlines()[2:]]
    fields = {name.strip().decode(): rest.split() for name, rest in lines}
    return {f"{namespace}/{name}": int(each[0]) + int(each[8]) for name, each in fields.items()}


def ask_connections() -> Moved:
    """Return the bytes so far of each living TCP connection in this network namespace.

    Raises:
        OSError: the kernel does not tell, or not in a second.
    """
    found: Moved = {}
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG
    ) as line:
        line.settimeout(_LONGEST_SECONDS)
        until = time.monotonic() + _LONGEST_SECONDS
        for family in (socket.AF_INET, socket.AF_INET6):
            asked = _ASKED.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _LIVING)
            line.send(
                _HEAD.pack(_HEAD.size + len(asked), _BY_FAMILY, _REQUEST_AND_DUMP, 1, 0) + asked
            )
            while _take(line.recv(1 << 16), found):
                if time.monotonic() > until:
                    raise TimeoutError("the kernel's list of connections is too long")
    return found


def _take(data: bytes, found: Moved) -> bool:
    """Add the connections of one answer; return whether more answers come."""
    at = 0
    while at < len(data):
        length, kind, _, _, _ = _HEAD.unpack_from(data, at)
        if kind == _DONE:
            return False
        if kind == _ERROR:
            (number,) = struct.unpack_from("=i", data, at + _HEAD.size)
            raise OSError(-number, "the kernel does not list connections")
        (inode,) = struct.unpack_from("=I", data, at + _INODE_AT)
        here, end = at + _ATTRIBUTES_AT, at + length
        while inode and here + 4 <= end:
            size, attribute = struct.unpack_from("=HH", data, here)
            if attribute == _INFO and size >= 4 + _BYTES_AT + 16:
                acked, received = struct.unpack_from("=QQ", data, here + 4 + _BYTES_AT)
                found[f"{_PREFIX}{inode}]"] = acked + received
            here += max(4, size + 3 & ~3)
        at += max(_HEAD.size, length + 3 & ~3)
    return True
