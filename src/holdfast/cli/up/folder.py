"""Manage the data folder of one `holdfast up`: its lock, its files, an earlier `up`'s processes.

- A folder has one `up`, which has locked it (flock). The kernel releases the lock however the
  process dies, so that no lock is ever stale.
UP-2  A leftover process is known by its pid, its start time and its working folder, which is the
      data folder, and is signalled through a pidfd, because the pid alone may be another process's
      by now, and the record of a copied folder names processes of the original.
- The file `url` exists exactly while jobs can be sent to its address: it is written last at the
  start and removed first at the stop.
"""

import json
import os
import secrets
import select
import shlex
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.client.contexts.file import LOCAL, read_contexts
from holdfast.client.locate import DATA_FOLDER
from holdfast.errors import Conflict, Unavailable, ValidationError
from holdfast.process.files import write_atomic

_TERM_SECONDS = 5.0
_KILL_SECONDS = 5.0
_LOG_BYTES = 8 * 1024 * 1024
_LOGS_KEPT = 3


class DataFolder:
    """Holds the paths of one data folder, and reads and writes its files."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.url_file = self.path / "url"
        self.token_file = self.path / "token"
        self.log_folder = self.path / "log"
        self.postgres_folder = self.path / "postgres"
        self.host_folder = self.path / "host"
        self.host_file = self.host_folder / "host.json"
        self.machines_folder = self.path / "machines"
        self.join_file = self.path / "join"
        self._parts_file = self.path / "parts.json"
        self._lock_file = self.path / "up.lock"
        self._lock: int | None = None

    def prepare(self) -> None:
        """Make the folder (0700) and its log folder.

        Raises:
            ValidationError: it cannot be made or written, is no folder, or is another user's.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.path.stat()
            if status.st_uid != os.geteuid():
                raise ValidationError(
                    f"{self.path} belongs to uid {status.st_uid}, and this is uid {os.geteuid()}. "
                    "Start as its owner, or name another folder with --data.",
                    field="data",
                )
            if status.st_mode & 0o077:
                self.path.chmod(0o700)
            self.log_folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise self._refuse(error) from error

    def _refuse(self, error: OSError) -> ValidationError:
        text = f"the data folder {self.path} cannot be used: {error.strerror}. Name another with --data."
        return ValidationError(text, field="data")

    def lock(self) -> None:
        """Lock the folder. Raises Conflict, with the pid and address of the `up` that has locked
        it."""
        from holdfast.store.embedded.processes import lock_file

        try:
            descriptor = lock_file(self._lock_file)
        except OSError as error:
            raise self._refuse(error) from error
        if descriptor is None:
            pid = _read(self._lock_file) or "unknown"
            url = _read(self.url_file)
            where = f" at {url}" if url else ", not ready yet or stopping"
            raise Conflict(
                f"`holdfast up` is already running in {self.path} (pid {pid}){where}. "
                "Use it, stop it with Ctrl-C, or give this one its own --data folder.",
                code="already_up",
            )
        self._lock = descriptor
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            pass  # the pid is only for the message above

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # ---- the address
    def publish(self, url: str) -> None:
        """Write the address of this `up` to the file `url`, because jobs can be sent to it from now
        on."""
        write_atomic(self.url_file, f"{url}\n".encode())

    def unpublish(self) -> None:
        """Remove the file `url`, because no jobs can be sent to this `up` any more."""
        self.url_file.unlink(missing_ok=True)

    def tell_how_to_reach(self, url: str) -> str:
        """Return the lines to type in another terminal.

        Commands find a data folder of the usual name by themselves, in its parent and below; for
        another name two variables have to be set. The token is read from its file, so that no
        terminal shows it.
        """
        command = "run -- echo hello"
        if self.path.name == DATA_FOLDER:
            try:
                here = os.path.samefile(self.path.parent, os.curdir)
            except OSError:  # the working folder was deleted
                here = False
            where = "this folder" if here else self.path.parent
            named = "-c local " if _names_another(os.environ) else ""
            return f"in another terminal, in {where}: holdfast {named}{command}"
        lines = (
            f"export HOLDFAST_URL={url}",
            f'export HOLDFAST_TOKEN="$(cat {shlex.quote(str(self.token_file))})"',
            f"holdfast {command}",
        )
        return "\n    ".join(("in another terminal:", *lines))

    # ---- the host
    def read_identity(self) -> Mapping[str, str]:
        """Return the identity of the host that its agent keeps in this folder; an empty one if
        there is none."""
        try:
            found = json.loads(self.host_file.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def has_joined(self) -> bool:
        """Return True if the host has a key already, so that it needs no join token."""
        return bool(self.read_identity().get("host_key"))

    def write_join(self, secret: str = "") -> None:
        """Keep a join token for the host: `secret`, or a new one, which the controller has yet to
        put on record. Raises OSError."""
        write_atomic(self.join_file, f"{secret or f'hfj_{secrets.token_urlsafe(32)}'}\n".encode())

    # ---- parts
    def record_parts(self, pids: Mapping[str, int]) -> None:
        """Write down the pids and start times of the running parts of this `up` (UP-2)."""
        parts = {name: {"pid": pid, "started": read_start(pid)} for name, pid in pids.items()}
        try:
            write_atomic(self._parts_file, json.dumps(parts).encode() + b"\n")
        except OSError:
            pass  # a full disk must not stop the parts, which die with `up` anyway (UP-4)

    def forget_parts(self) -> None:
        """Note that no part of this `up` runs any more."""
        self._parts_file.unlink(missing_ok=True)

    def end_leftovers(self, say: Callable[[str], None]) -> None:
        """End the parts that an earlier `up` of this folder left running. The caller holds the
        lock.

        Raises:
            Conflict: this folder is a copy of one whose parts run.
            Unavailable: a part survived SIGKILL.
        """
        try:
            parts = json.loads(self._parts_file.read_text())
            known = [(str(name), int(part["pid"]), part["started"]) for name, part in parts.items()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return
        for name, pid, started in known:
            self._refuse_copy(name, pid, started)
        # The agent ends first, because its tasks report to the controller, if that still runs.
        for name, pid, started in sorted(known, key=lambda part: part[0] != "agent"):
            end_process(pid, started, f"ending the {name} of an earlier `up` (pid {pid})", say)
        self.forget_parts()

    def _refuse_copy(self, name: str, pid: int, started: str | None) -> None:
        """Raise Conflict if a part of the record runs in another folder, because this one is its
        copy."""
        place = Path(f"/proc/{pid}/cwd")
        try:
            if started is None or read_start(pid) != started or os.path.samefile(place, self.path):
                return
            original = os.readlink(place)
        except OSError:  # the process ended meanwhile
            return
        raise Conflict(
            f"{self.path} is a copy of {original}, whose {name} runs (pid {pid}). A database that "
            "was copied while it was written is none to go on with: stop that `up` and copy its "
            "folder again, or name a new folder with --data.",
            code="copied_folder",
        )

    # ---- logs
    def log_file(self, part: str) -> Path:
        """Return the path of the file with a part's output."""
        return self.log_folder / f"{part}.log"

    def rotate_logs(self, *, at_start: bool = False) -> None:
        """Keep each log under 8 MiB, and three old files of it.

        A running part appends (O_APPEND), so its log is copied and cut, and is never reopened.
        """
        for path in self.log_folder.glob("*.log"):
            try:
                if path.stat().st_size > (0 if at_start else _LOG_BYTES):
                    _rotate(path, move=at_start)
            except OSError:
                pass  # there is no room for a copy; the next call tries again

    def tail(self, part: str, lines: int = 12) -> str:
        """Return the last lines of a part's log."""
        try:
            with self.log_file(part).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 16_384))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])


def _names_another(environ: Mapping[str, str]) -> bool:
    """Return whether commands in this environment go to another server than this `up`, if they name
    none themselves."""
    if environ.get("HOLDFAST_URL") or environ.get("HOLDFAST_CONTEXT", LOCAL) != LOCAL:
        return True
    try:
        return read_contexts(environ).current != LOCAL
    except ValidationError:  # the file cannot be used, and commands say so
        return True


def _rotate(path: Path, *, move: bool) -> None:
    for number in range(_LOGS_KEPT - 1, 0, -1):
        old = path.with_name(f"{path.name}.{number}")
        if old.exists():
            old.rename(path.with_name(f"{path.name}.{number + 1}"))
    first = path.with_name(f"{path.name}.1")
    if move:
        path.rename(first)
        return
    shutil.copyfile(path, first)
    first.chmod(0o600)
    os.truncate(path, 0)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def read_start(pid: int) -> str | None:
    """Return a process's boot and start tick, which no later process shares; None if it is gone."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else f"{boot}:{words[19]}"


def end_process(pid: int, started: str | None, sentence: str, say: Callable[[str], None]) -> None:
    """End a process by TERM, then KILL; do nothing if the process is gone, or if its pid is
    another's now.

    say: called with `sentence` before the first signal.

    Raises:
        Unavailable: the process survived SIGKILL.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if started is None or read_start(pid) != started:
            return
        say(sentence)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        for number, seconds in ((signal.SIGTERM, _TERM_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
            signal.pidfd_send_signal(pidfd, number)
            # A stopped process gets TERM only once it is continued.
            signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            if poll.poll(seconds * 1000):
                return
        raise Unavailable(
            f"process {pid} of an earlier `up` does not die of SIGKILL; is its disk or driver hung?"
        )
    except ProcessLookupError:
        return
    finally:
        os.close(pidfd)
