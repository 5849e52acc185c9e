"""The process table, read from /proc: each process's parent, start and mark.

TABLE-1  A value that cannot be read for want of descriptors or memory is unknown, never absent: the
         read raises OSError then, and the caller concludes nothing. None and an empty answer mean
         that /proc itself said so.
"""

import errno
import os
import re
import signal
from typing import Protocol

from holdfast.process.brand import find_brand
from holdfast.process.telling import SignalMasks

TASK_VARIABLE = "HOLDFAST_TASK"
HOST_VARIABLE = "HOLDFAST_HOST"
_TASK_PREFIX = TASK_VARIABLE.encode() + b"="
_HOST_PREFIX = HOST_VARIABLE.encode() + b"="
_MAX_ENVIRON_BYTES = 8 << 20
# Of `flags` in /proc/<pid>/stat: PF_EXITING and PF_KTHREAD in the kernel's include/linux/sched.h.
_EXITING_BIT = 0x00000004
_KERNEL_BIT = 0x00200000
_HELPER = re.compile(rb"from [\w.]{0,100}(?:resource_tracker|forkserver) import main")
_ENDED = (b"Z", b"X", b"x")
# Errors about the reader (no descriptors, no memory), not about the process that is read.
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})


def read_name(pid: int) -> str:
    """Return the name of a process, "" where it is gone."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


def is_helper(pid: int) -> bool:
    """Return whether a process is a helper of Python's multiprocessing (or joblib's), which ignores
    TERM and ends by itself after the last process that uses it."""
    try:
        words = _read_file(f"/proc/{pid}/cmdline")
    except OSError:
        return False
    return _HELPER.search(words) is not None


def read_signals(pid: int) -> SignalMasks:
    """Read a process's signals; without any where it is gone."""
    try:
        status = _read_file(f"/proc/{pid}/status").splitlines()
        lines = dict(line.split(b":", 1) for line in status if b":" in line)
        return SignalMasks(
            caught=int(lines[b"SigCgt"], 16),
            ignored=int(lines[b"SigIgn"], 16),
            blocked=int(lines[b"SigBlk"], 16),
            pending=int(lines[b"ShdPnd"], 16) | int(lines[b"SigPnd"], 16),
            init=(ids := lines.get(b"NSpid", b"").split())[1:] != [] and ids[-1] == b"1",
            sleeps=lines[b"State"].split()[:1] == [b"S"],
        )
    except (OSError, KeyError, ValueError):
        return SignalMasks()


class ProcessEntry:
    """One process. (pid, start_ticks) names it on this boot; another process may get the same pid
    later.

    A process that exits gives up its environment and (under v1) its control group well before it is
    a zombie and its children are orphans; a process in an exec has no environment for a moment. A
    missing mark proves nothing then.

    start_ticks: clock ticks since boot. alive: False for a zombie that only waits for its parent.
    exiting: True where the process runs no more code of its own, so it makes no more children.
    bare: True where its environment is empty, or it is the kernel's and has none. witness: the
    thread whose environment and group are read: the first thread, or one that still runs where the
    first has exited.
    """

    __slots__ = ("alive", "bare", "exiting", "pid", "ppid", "session", "start_ticks", "witness")

    def __init__(self, pid: int, ppid: int, session: int, start_ticks: int, alive: bool) -> None:
        self.pid = pid
        self.ppid = ppid
        self.session = session
        self.start_ticks = start_ticks
        self.alive = alive
        self.exiting = False
        self.bare = False
        self.witness = pid

    @property
    def identity(self) -> tuple[int, int]:
        """Return the pair that tells this process from a later one with the same pid."""
        return (self.pid, self.start_ticks)


class ProcessReader(Protocol):
    """A source of process data: this module, or a test's simulated kernel. Reads raise OSError
    (TABLE-1)."""

    def read_table(self) -> dict[int, ProcessEntry]:
        """Return every process."""

    def read_entry(self, pid: int) -> ProcessEntry | None:
        """Return one process; None when there is none."""

    def read_children(self, pid: int) -> list[int] | None:
        """Return the children of a process, zombies included; None where the kernel does not list
        them."""

    def read_group(self, pid: int, folder: str) -> str | None:
        """Return the group below `folder` that a process is in, or None."""

    def read_brand(self, pid: int) -> tuple[int, int] | None:
        """Return the numbers of its task and its host; None where it has none."""

    def read_environ(self, pid: int) -> bytes | None:
        """Return the environment; empty where there is none (now), None where it may not be
        read."""


def raise_if_ours(error: OSError) -> None:
    """Raise `error` again if the fault is the reader's and not the process's (TABLE-1)."""
    if error.errno in _OURS:
        raise error


def _read_file(path: str, limit: int = 4096) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, limit)
        while data and len(data) < limit:
            more = os.read(fd, limit - len(data))
            if not more:
                break
            data += more
        return data
    finally:
        os.close(fd)


def read_entry(pid: int) -> ProcessEntry | None:
    """Read one process; None when there is none. Raises OSError (TABLE-1)."""
    try:
        stat = _read_file(f"/proc/{pid}/stat")
    except OSError as error:
        raise_if_ours(error)
        return None
    fields = _split_stat(stat)
    if len(fields) < 20:
        return None
    ended, threads = fields[0] in _ENDED, int(fields[17])
    # A leader that left its threads behind is shown as a zombie while the process still runs.
    alive = not ended or threads > 1
    entry = ProcessEntry(pid, int(fields[1]), int(fields[3]), int(fields[19]), alive)
    entry.exiting = bool(int(fields[6]) & _EXITING_BIT)
    if entry.exiting and threads > 1:
        fields = _find_witness(entry) or fields
    # The bounds of the environment are 0 while there is none, or where they may not be seen.
    entry.bare = bool(int(fields[6]) & _KERNEL_BIT) or (
        len(fields) > 48 and fields[47] == fields[48] != b"0"
    )
    return entry


def _split_stat(stat: bytes) -> list[bytes]:
    """Return the fields from the third on: the second, a name, may hold spaces and parentheses."""
    return stat[stat.rfind(b")") + 2 :].split()


def _find_witness(entry: ProcessEntry) -> list[bytes]:
    """Return the fields of a thread that still runs beside a leader that is gone; an empty list
    where there is none."""
    try:
        threads = os.listdir(f"/proc/{entry.pid}/task")
    except OSError as error:
        raise_if_ours(error)
        threads = []
    for thread in threads:
        try:
            fields = _split_stat(_read_file(f"/proc/{entry.pid}/task/{thread}/stat"))
        except OSError as error:
            raise_if_ours(error)
            continue
        if len(fields) >= 20 and fields[0] not in _ENDED and not int(fields[6]) & _EXITING_BIT:
            entry.witness, entry.exiting = int(thread), False
            return fields
    return []


def read_table() -> dict[int, ProcessEntry]:
    """Read every process that this one may see. Raises OSError where not all can be (TABLE-1)."""
    table: dict[int, ProcessEntry] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            entry = read_entry(int(name))
            if entry is not None:
                table[entry.pid] = entry
    return table


def read_environ(pid: int) -> bytes | None:
    """Return the environment that the process was started with (see `ProcessReader`)."""
    try:
        return _read_file(f"/proc/{pid}/environ", _MAX_ENVIRON_BYTES)
    except PermissionError:
        return None
    except OSError as error:
        raise_if_ours(error)
        return b""


def read_brand(pid: int) -> tuple[int, int] | None:
    """Return the process's brand (see `ProcessReader` and `process.brand`)."""
    try:
        return find_brand(_read_file(f"/proc/{pid}/limits"))
    except OSError as error:
        raise_if_ours(error)
        return None


def read_marks(pid: int) -> tuple[str | None, str | None]:
    """Return the (task, host) that a process's environment names; None where it names none."""
    return find_marks(read_environ(pid) or b"")


def find_marks(environ: bytes) -> tuple[str | None, str | None]:
    """Return the task and the host that the variables of an environment name."""
    task = host = None
    if _HOST_PREFIX not in environ:
        return None, None
    for word in environ.split(b"\0"):
        if word.startswith(_TASK_PREFIX):
            task = os.fsdecode(word[len(_TASK_PREFIX) :])
        elif word.startswith(_HOST_PREFIX):
            host = os.fsdecode(word[len(_HOST_PREFIX) :])
    return task, host


def read_group(pid: int, folder: str) -> str | None:
    """Return the group below `folder` (a name such as "holdfast-host") that the process is in.

    Under v1 a process that exits shows the root as its group, though the group still counts the
    process among its members.
    """
    try:
        lines = _read_file(f"/proc/{pid}/cgroup", 1 << 16)
    except OSError as error:
        raise_if_ours(error)
        return None
    _, found, rest = lines.partition(f"/{folder}/".encode())
    return rest.split(b"\n", 1)[0].split(b"/", 1)[0].decode() if found else None


def read_children(pid: int) -> list[int] | None:
    """Return the children of a single-threaded process, zombies included.

    None where the kernel was built without the list, or it cannot be read.
    """
    try:
        words = _read_file(f"/proc/{pid}/task/{pid}/children", 1 << 20).split()
    except OSError:
        return None
    return [int(word) for word in words]


def read_ancestors(pid: int) -> set[int]:
    """Return `pid` and all processes above it."""
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        entry = read_entry(pid)
        pid = entry.ppid if entry is not None else 0
    return found


def send_signal(entry: ProcessEntry, number: int) -> bool:
    """Signal exactly this process, never a later one with its pid. Returns False where that is
    impossible.

    A process of another user (a set-uid program) cannot be signalled; it then counts as a survivor.
    """
    try:
        pidfd = os.pidfd_open(entry.pid)
    except OSError:
        return False
    try:
        # The pidfd pins the number's present process; its start time says whether it is the one.
        now = read_entry(entry.pid)
        if now is None or now.start_ticks != entry.start_ticks:
            return False
        signal.pidfd_send_signal(pidfd, signal.Signals(number))
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True
