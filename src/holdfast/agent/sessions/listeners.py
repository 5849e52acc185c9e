"""Find where a process of a task listens on a port.

FORWARD-1  A forward reaches its task only: a port on which a process of the task's tree listens, or
           any process in the network namespace of the task's container, looked up anew for each
           connection. The host's own services and those of other tasks are not reached.
"""

import os
import socket
from collections.abc import Collection, Iterator

import msgspec

_LISTENS = "0A"
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class ListeningAt(msgspec.Struct, frozen=True):
    """A place where a port can be reached. namespace: the path of the network namespace to connect
    in; "" for this process's own."""

    address: str
    port: int
    namespace: str = ""


def find_listener(pid: int, pids: Collection[int], port: int) -> ListeningAt | None:
    """Return the place where a task listens on `port`; None where no process of the task does. pid:
    the task's first process, inside of its container if it has one. pids: the processes of the
    task's tree. Raises OSError where the first process is gone."""
    namespace = f"/proc/{pid}/ns/net"
    own = os.stat(namespace).st_ino == os.stat("/proc/self/ns/net").st_ino
    found = dict(_read_listeners(pid, port))
    if own and found:
        held = _find_held(pids, found.keys())
        found = {inode: address for inode, address in found.items() if inode in held}
    if not found:
        return None
    address = min(found.values(), key=lambda text: (text not in _ANY, ":" in text))
    return ListeningAt(_ANY.get(address, address), port, "" if own else namespace)


def _read_listeners(pid: int, port: int) -> Iterator[tuple[str, str]]:
    """Yield the inode and address of each socket that listens on the port, in the network of the
    process `pid`."""
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{name}") as file:
                lines = file.readlines()[1:]
        except FileNotFoundError:  # a kernel without IPv6
            continue
        for line in lines:
            words = line.split()
            local, _, number = words[1].rpartition(":")
            if words[3] == _LISTENS and int(number, 16) == port:
                yield words[9], _read_address(local)


def _read_address(words: str) -> str:
    """Read an address as the kernel writes it: words of four bytes, each in the machine's order."""
    raw = bytes.fromhex(words)
    parts = [raw[at : at + 4][::-1] for at in range(0, len(raw), 4)]
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, b"".join(parts))


def _find_held(pids: Collection[int], inodes: Collection[str]) -> set[str]:
    """Return the sockets, by inode, that one of the processes holds."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: set[str] = set()
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if target in wanted:
                found.add(wanted[target])
    return found
