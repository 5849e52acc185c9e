"""A mark that a process cannot lose by accident: the limit on file locks, which no kernel enforces
any more.

A limit is handed down by fork and exec, survives a cleared environment, a new session and a dead
parent, and is shown in /proc/<pid>/limits until the process is reaped, also while it exits. So a
runaway is recognised even where no control group can be made: in most containers, and so on most
rented machines.

BRAND-1  The hard limit is the host's number, made from its mark; the soft limit the task's, given
         out by its guardian. Both must match (TREE-1): the numbers of two guardians on one machine
         differ by their hosts.
BRAND-2  It only ever adds evidence. Where it cannot be set (a guardian inside another's task,
         without root's rights, and a lower number already there) or read, everything is as without
         it. A process that sets the limit anew is no longer branded.
"""

import hashlib

# Far above any limit in use, and below 2^63, which some programs take for "unlimited".
_LOWEST_HOST = 1 << 52
_TASKS = 1 << 40


def make_host_brand(host: str) -> int:
    """Return the number of a host: the same for every guardian of it."""
    digest = hashlib.sha256(b"holdfast host " + host.encode()).digest()
    return _LOWEST_HOST + int.from_bytes(digest[:6], "big")


def make_task_brand(serial: int) -> int:
    """Return the number of a guardian's `serial`-th task, below every host's as a soft limit is."""
    return _TASKS + serial % _TASKS


def find_brand(limits: bytes) -> tuple[int, int] | None:
    """Return the (task, host) numbers in the text of a limits file; None where it has none."""
    start = limits.find(b"Max file locks")
    if start < 0:
        return None
    words = limits[start : limits.find(b"\n", start)].split()
    if len(words) < 5 or not (words[3].isdigit() and words[4].isdigit()):
        return None
    return int(words[3]), int(words[4])
