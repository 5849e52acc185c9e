"""Find the processes that belong to an embedded server, and end them.

PG-1: every process of a server, initdb included, holds one open file description: the lock on
`server.lock`, which the process inherited. So "no process of the server is left" is one question to
the kernel (is the lock free?). The answer holds across containers that share the folder, and after
pids were reused. A pid alone is never believed.
"""

import errno
import fcntl
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import Conflict, Unavailable, ValidationError

Log = Callable[[str], None]

_POLL_SECONDS = 0.01
_FAST_SECONDS = 5.0
_IMMEDIATE_SECONDS = 2.0
_KILL_SECONDS = 5.0


@dataclass(frozen=True)
class Holder:
    """A process of the server: `program` is the base name of what it runs."""

    pid: int
    parent: int
    program: str


def lock_file(path: Path) -> int | None:
    """Return a descriptor that holds the lock on `path`, or None when another process holds it.

    Raises ValidationError where the file system has no locks, because without a lock two servers
    could run on one folder.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        raise ValidationError(
            f"{path.parent} is on a file system without locks ({error.strerror}); put the data on "
            "a local disk.",
            code="no_file_locks",
        ) from error
    return descriptor


def lock_owner(path: Path) -> int:
    """Take the owner's lock and write this process's pid into its file. Raises Conflict when
    another owner is alive."""
    descriptor = lock_file(path)
    if descriptor is None:
        try:
            pid = f" (pid {int(path.read_text())})"
        except (OSError, ValueError):
            pid = ""
        raise Conflict(
            f"another Holdfast{pid} is using {path.parent}. Stop it first, or use another data "
            "folder.",
            code="folder_in_use",
        )
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        # The pid is only for the message above; a full disk is reported by what needs the space.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            os.close(descriptor)
            raise
    return descriptor


def find_holders(lock: Path, data: Path) -> list[Holder]:
    """Return the living processes of the server on `data`: those that hold `lock`, and each
    `postgres` that works in `data`, because a server that was started by hand (pg_ctl) does not
    have the lock."""
    wanted = _identity(lock)
    folder = _identity(data)
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        holder = _read_holder(int(name), wanted, folder)
        if holder is not None:
            found.append(holder)
    return found


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _read_holder(
    pid: int, lock: tuple[int, int] | None, data: tuple[int, int] | None
) -> Holder | None:
    place = Path("/proc", str(pid))
    try:
        program = os.readlink(place / "exe").removesuffix(" (deleted)").rpartition("/")[2]
        ours = program == "postgres" and data is not None and _identity(place / "cwd") == data
        if not ours and lock is not None:
            is_launcher = b"embedded_launcher.py" in (place / "cmdline").read_bytes()
            # `sh` stands between initdb and the servers it runs for a moment.
            known = program in ("postgres", "initdb") or is_launcher
            if known or program in ("sh", "dash", "bash", "busybox"):
                ours = any(
                    _identity(place / "fd" / name) == lock for name in os.listdir(place / "fd")
                )
        if not ours:
            return None
        after_name = (place / "stat").read_text().rpartition(")")[2].split()
        return None if after_name[0] in "ZX" else Holder(pid, int(after_name[1]), program)
    except (OSError, IndexError):
        return None  # it ended while we looked, or it is another user's and so not ours


def signal_holder(holder: Holder, number: int, lock: Path, data: Path) -> None:
    """Send the signal `number` to exactly that process: a pidfd pins the process before its
    identity is read again."""
    try:
        descriptor = os.pidfd_open(holder.pid)
    except OSError:
        return
    try:
        if _read_holder(holder.pid, _identity(lock), _identity(data)) is not None:
            signal.pidfd_send_signal(descriptor, number)
    except OSError:
        pass  # already gone
    finally:
        os.close(descriptor)


def end_leftovers(lock: Path, data: Path, log: Log) -> int:
    """End the processes that an earlier owner left and return the server lock. Call this only with
    the owner's lock held.

    A server whose owner was killed is already stopping by its parent-death signal; it is helped
    along, then forced. Raises Unavailable when a process still holds the folder after that.
    """
    started = time.monotonic()
    told = False
    asked: set[tuple[int, int]] = set()
    while True:
        descriptor = lock_file(lock)
        if descriptor is not None:
            holders = find_holders(lock, data)
            if not holders:
                return descriptor
            os.close(descriptor)
        else:
            holders = find_holders(lock, data)
        waited = time.monotonic() - started
        if holders and not told:
            told = True
            log(f"a server of an earlier owner is still running on {data}; stopping it")
        if waited > _FAST_SECONDS + _IMMEDIATE_SECONDS + _KILL_SECONDS:
            raise Unavailable(_describe_stuck(lock, holders), code="folder_in_use")
        press_holders(holders, waited, asked, lock, data)
        time.sleep(_POLL_SECONDS if waited < 1 else 0.05)


def press_holders(
    holders: list[Holder], waited: float, asked: set[tuple[int, int]], lock: Path, data: Path
) -> None:
    """Ask the processes to end: with SIGINT (once each), then SIGQUIT, then SIGKILL. waited:
    seconds since the first signal."""
    pids = {holder.pid for holder in holders}
    for holder in holders:
        is_postmaster = holder.program == "postgres" and holder.parent not in pids
        if waited > _FAST_SECONDS + _IMMEDIATE_SECONDS or holder.program != "postgres":
            signal_holder(holder, signal.SIGKILL, lock, data)
            continue
        number = signal.SIGINT if waited <= _FAST_SECONDS else signal.SIGQUIT
        if (holder.pid, number) in asked:
            continue
        asked.add((holder.pid, number))
        if is_postmaster:
            signal_holder(holder, number, lock, data)
        # A frozen process hears nothing until it is continued, and a frozen child holds up the
        # whole shutdown.
        signal_holder(holder, signal.SIGCONT, lock, data)


def _describe_stuck(lock: Path, holders: list[Holder]) -> str:
    if holders:
        names = ", ".join(f"{holder.program} {holder.pid}" for holder in holders)
        return f"{lock.parent} is still held by {names}, which do not die of SIGKILL (a hung disk?). Free them first."
    return (
        f"{lock.parent} is still held by a process that cannot be seen from here (another "
        "container or host "
        "sharing the folder, or another user). Stop it there first."
    )


def wait_for_exit(pidfd: int, timeout_seconds: float | None) -> bool:
    """Return whether the process behind `pidfd` ended within `timeout_seconds`; None waits for
    ever."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(
        poll.poll(None if timeout_seconds is None else max(0, round(timeout_seconds * 1000)))
    )
