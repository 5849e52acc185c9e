"""End the processes of a host manager that was killed in the same instant as its warden; the next
host manager on the machine calls this.

Their processes die of the parent-death signal; descendants in sessions of their own become children
of the machine's init and run on. They still carry the manager's marks and brand (`process.brand`).

LEFT-1  Manager and warden hold one lock, on a file in the folder of their socket. The file exists
        with its content before it has its name. The kernel releases the lock when both are dead,
        and only then: a process that can take the lock may end the processes that they left.
- Only this user's folders of this namespace of pids are looked at, because processes of
  another namespace cannot be seen.
"""

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile

import msgspec

from holdfast.process.sweep import sweep

FOLDER_PREFIX = "holdfast-sv-"
_OWNER_FILE = "owner"


class _Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The manager that a folder belongs to. mark: the mark that its processes carry. namespace: the
    namespace of its pid, and the boot."""

    mark: str
    namespace: str


def hold_folder(folder: str, mark: str) -> None:
    """Lock the folder while this process or a forked child lives (LEFT-1). Raises OSError."""
    fresh = f"{folder}/.{_OWNER_FILE}"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.write(fd, msgspec.json.encode(_Owner(mark=mark, namespace=_read_namespace())))
    os.rename(fresh, f"{folder}/{_OWNER_FILE}")


def end_leftovers(kill_limit_seconds: float) -> int:
    """End the processes that dead managers of this user left here, and remove their folders; return
    how many processes.

    A folder that cannot be read, or whose processes survive, is left to the next call.
    """
    ended = 0
    for home in {tempfile.gettempdir(), "/tmp"}:
        for path in glob.glob(f"{glob.escape(home)}/{FOLDER_PREFIX}*/{_OWNER_FILE}"):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                ended += _end_one(path, kill_limit_seconds)
    return ended


def _end_one(path: str, kill_limit_seconds: float) -> bool:
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: manager or warden lives
        owner = msgspec.json.decode(os.read(fd, 4096), type=_Owner)
        if owner.namespace != _read_namespace():
            return False
        if sweep(owner.mark, kill_limit_seconds=kill_limit_seconds):
            return False
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)
        return True
    finally:
        os.close(fd)


def _read_namespace() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{os.readlink('/proc/self/ns/pid')} {file.read().strip()}"
