"""Keep what a guardian owns on its host: its locked folder, the beat socket, its socket to
systemd."""

import contextlib
import errno
import fcntl
import os
import socket
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import Conflict
from holdfast.process.files import read_private, write_atomic
from holdfast.process.sweep import sweep

_SUN_PATH_BYTES = 100  # the kernel's limit is 108 with the NUL; some are left spare
_BEAT_BUFFER_BYTES = 4 << 20
_LOCK_PATIENCE_SECONDS = 0.5
_PREFIX = "holdfast-"
LOCK_FILE = "guardian.lock"
SOCKET_FILE = "beat.sock"
CALLS_SOCKET_FILE = "calls.sock"
"""Name the agent's socket for executors, in the folder of the beat socket, whose path is short."""
SOCKET_RECORD = "beat.folder"
GROUP_RECORD = "groups.folder"


class GuardianFolder:
    """Holds the guardian's folder, locked for as long as this object's process lives."""

    def __init__(self, folder: Path) -> None:
        """Make and lock `folder` (0700).

        Raises:
            Conflict: another guardian has locked the folder; the message names its pid.
            OSError: the folder cannot be made or written.
        """
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock_fd = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _try_lock(self._lock_fd):
            holder = os.pread(self._lock_fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._lock_fd)
            raise Conflict(
                f"another guardian (pid {holder}) already serves {folder}; "
                "stop it first or give this one its own folder"
            )
        with contextlib.suppress(OSError):  # the pid is only for the message
            os.ftruncate(self._lock_fd, 0)
            os.pwrite(self._lock_fd, f"{os.getpid()}\n".encode(), 0)
        self._remove_stale_socket()

    def is_there(self) -> bool:
        """Return True if the folder still has the lock file that this process has locked."""
        try:
            found = os.stat(self.folder / LOCK_FILE)
        except OSError:
            return False
        return os.path.samestat(found, os.fstat(self._lock_fd))

    def open_beat_socket(self) -> tuple[socket.socket, str]:
        """Bind the socket to which tasks send beats. If its path is too long, it lies in a
        private folder elsewhere."""
        path = str(self.folder / SOCKET_FILE)
        beats = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # Senders never wait, so beats that come while no agent runs must fit into this buffer.
        beats.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BEAT_BUFFER_BYTES)
        beats.setblocking(False)
        if len(os.fsencode(path)) > _SUN_PATH_BYTES or not _try_bind(beats, path):
            short = tempfile.mkdtemp(prefix=_PREFIX, dir=_find_runtime_folder())
            with contextlib.suppress(OSError):  # without the record an empty folder may stay behind
                write_atomic(self.folder / SOCKET_RECORD, short.encode())
            path = f"{short}/{SOCKET_FILE}"
            beats.bind(path)
        os.chmod(path, 0o600)
        return beats, path

    def record_group_folder(self, path: str) -> bool:
        """Record the folder of the control groups, for a later sweep. Return False if it cannot
        be written."""
        record = self.folder / GROUP_RECORD
        try:
            if read_private(record) != path.encode():
                write_atomic(record, path.encode())
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Remove the socket and release the lock."""
        self._remove_stale_socket()
        os.close(self._lock_fd)

    def _remove_stale_socket(self) -> None:
        (self.folder / SOCKET_FILE).unlink(missing_ok=True)
        record = self.folder / SOCKET_RECORD
        try:
            short = Path(record.read_text())
            found = os.lstat(short)
        except (OSError, ValueError):  # ValueError: no text, or no path
            record.unlink(missing_ok=True)
            return
        ours = short.name.startswith(_PREFIX) and found.st_uid == os.geteuid()
        if ours and stat.S_ISDIR(found.st_mode):
            for name in (SOCKET_FILE, CALLS_SOCKET_FILE):
                (short / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                short.rmdir()
        record.unlink(missing_ok=True)


def _try_bind(beats: socket.socket, path: str) -> bool:
    """Bind the socket; return False if the disk has no room for a name in the folder."""
    try:
        beats.bind(path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    return True


def _try_lock(fd: int) -> bool:
    """Lock a file. Try for half a second, because the last fork of a killed guardian keeps the
    lock until it closes its descriptors."""
    give_up_at = time.monotonic() + _LOCK_PATIENCE_SECONDS
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= give_up_at:
            return False
        time.sleep(0.01)


def read_group_homes(state_dir: Path) -> list[str]:
    """Read the control group folders recorded in a guardian's folder, for `process.sweep`."""
    try:
        path = (state_dir / GROUP_RECORD).read_text().strip()
    except (OSError, ValueError):  # ValueError: a broken record is no text
        return []
    return [path] if path else []


def sweep_after_guardian(environ: Mapping[str, str]) -> list[int]:
    """Kill the processes that a dead guardian's tasks left; return the pids that survived. An
    agent calls this when its socket to the guardian ends, with the environment that the guardian
    made."""
    folder = environ.get("HOLDFAST_GROUPS", "")
    return sweep(environ["HOLDFAST_HOST_MARK"], group_homes=[folder] if folder else [])


def _find_runtime_folder() -> str:
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    return folder if folder and os.access(folder, os.W_OK) and len(folder) < 60 else "/tmp"


class Notifier:
    """Reports the service's state to systemd, if systemd asks for it (`NOTIFY_SOCKET`)."""

    VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        self.interval_seconds = float("inf")
        watched = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = os.environ.get("WATCHDOG_USEC", "")
        if self._address and watched and usec.isdigit() and int(usec) > 0:
            self.interval_seconds = int(usec) / 2e6
        self.next_at = 0.0 if self.interval_seconds != float("inf") else float("inf")

    def send(self, text: str) -> None:
        """Send one state such as "READY=1". A failure is ignored, because the guardian serves on
        without systemd."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as talk,
        ):
            talk.sendto(text.encode(), address)

    def turn(self, now: float) -> None:
        """Report that the loop turns, when that is due."""
        if now >= self.next_at:
            self.send("WATCHDOG=1")
            self.next_at = now + self.interval_seconds
