"""Run the server process: under which user, kept by which thread, and what a failure of its start
means."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import HoldfastError, Unavailable, ValidationError
from holdfast.store.embedded import cluster, launcher
from holdfast.store.embedded.cluster import ClusterLayout
from holdfast.store.embedded.processes import wait_for_exit

NOBODY = 65534
"""The uid that owns nothing, by kernel convention (overflowuid)."""

_POLL_SECONDS = (0.005, 0.05)  # the first and the longest, because looks cost a busy machine
_LOG_CHECK_SECONDS = 15.0
_PROGRESS_FACTOR = 20


@dataclass(frozen=True)
class Identity:
    """The user that the server runs as: `uid` inside its namespace, `file_uid` as the owner of its
    files seen from here."""

    mode: str
    uid: int
    gid: int
    file_uid: int
    file_gid: int


class NotAsThisUser(Exception):
    """User namespaces are forbidden here, so the next way is tried."""


class TryAgain(Exception):
    """The server ended for a reason that another try may not meet."""

    def __init__(self, message: str, *, new_port: bool = False) -> None:
        super().__init__(message)
        self.new_port = new_port


@dataclass(frozen=True)
class ServerPlace:
    """The place of the cluster, as PostgreSQL is told it: a path, or, where `private`, a
    descriptor, for a user without access to a folder above the cluster.

    The kernel resolves `/proc/self/fd/N` without checking the folders above, in every process that
    inherits N. Starting in the folder is not enough: before 16, PostgreSQL leaves the folder in
    which it is started to resolve its own name, and goes back by path.
    """

    name: str
    working_folder: Path
    descriptors: tuple[int, ...] = ()

    @classmethod
    def open(cls, folder: Path, private: bool) -> ServerPlace:
        """Return the place of the cluster in `folder`. The caller closes it when the server was
        started."""
        if not private:
            return cls(str(folder), folder)
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return cls(f"/proc/self/fd/{descriptor}", Path("/"), (descriptor,))

    def close(self) -> None:
        """Close this process's descriptor; the server has inherited its own."""
        for descriptor in self.descriptors:
            os.close(descriptor)


class ServerRun:
    """One run of the server process, kept by a thread that lives as long as the process does.

    The thread is needed because the parent-death signal (PG-4) is sent when the *thread* that
    forked ends, so a server started from a worker thread would stop with that worker. The thread
    also reaps the process, so there is never a zombie.
    """

    def __init__(
        self,
        layout: ClusterLayout,
        command: list[str],
        environ: dict[str, str],
        descriptors: tuple[int, ...],
    ) -> None:
        self._layout = layout
        self._command = command
        self._environ = environ
        self._descriptors = descriptors
        self._spawned = threading.Event()
        self._error: OSError | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.pidfd = -1
        self.ended = threading.Event()
        self.returncode: int | None = None
        self._thread = threading.Thread(target=self._keep, name="embedded-postgres", daemon=True)
        self._thread.start()
        self._spawned.wait()
        if self._error is not None:
            raise self._error

    @property
    def pid(self) -> int:
        """Return the postmaster's pid, which never changes because the launcher execs."""
        assert self._process is not None
        return self._process.pid

    def _keep(self) -> None:
        try:
            log = cluster.open_log(self._layout)
            try:
                self._process = subprocess.Popen(
                    self._command,
                    pass_fds=self._descriptors,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environ,
                    # Its own session: Ctrl-C at the terminal is for the owner, which then stops it
                    # in order.
                    start_new_session=True,
                )
                self.pidfd = os.pidfd_open(self._process.pid)
            finally:
                os.close(log)
        except OSError as error:
            self._error = error
            self.ended.set()
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            return
        finally:
            self._spawned.set()
        while not wait_for_exit(self.pidfd, _LOG_CHECK_SECONDS):
            cluster.rotate_log(self._layout)
        self.returncode = self._process.wait()
        self.ended.set()

    def stop(self, timeout_seconds: float) -> None:
        """Send the server SIGINT, SIGQUIT and SIGKILL, each with its share of the time; return when
        the server was reaped."""
        layout = self._layout
        shares = ((signal.SIGINT, 0.7), (signal.SIGQUIT, 0.2), (signal.SIGKILL, 0.1))
        for number, share in shares:
            if self.ended.is_set():
                break
            self._signal(number)
            if number != signal.SIGKILL:
                self._signal(signal.SIGCONT)  # a stopped server hears nothing until it is continued
            if self.ended.wait(max(0.05, timeout_seconds * share)):
                break
        if not self.ended.wait(0.5 if self.ended.is_set() else 5):
            raise Unavailable(
                f"the database server {self.pid} in {layout.folder} does not die of SIGKILL; its "
                "disk may be hung.",
                code="database_stuck",
            )
        self._thread.join(1)
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def _signal(self, number: signal.Signals) -> None:
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            pass  # it ended by itself meanwhile


def await_ready(
    server: ServerRun, layout: ClusterLayout, log_offset: int, timeout_seconds: float
) -> None:
    """Wait for `ready` in postmaster.pid. The wait begins anew when the log grows, because recovery
    tells of its progress there."""
    now = time.monotonic()
    deadline, last = now + timeout_seconds, now + timeout_seconds * _PROGRESS_FACTOR
    size, pause = log_offset, _POLL_SECONDS[0]
    while not cluster.is_ready(layout.data, server.pid):
        pause = min(pause * 1.1, _POLL_SECONDS[1])
        if server.ended.wait(pause):
            said = cluster.read_log_from(layout, log_offset)
            raise_for_launcher(server.returncode, said)
            raise _explain_exit(said, layout, server.returncode)
        now = time.monotonic()
        grown = layout.log.stat().st_size
        if grown != size:
            size, deadline = grown, now + timeout_seconds
        if now > min(deadline, last):
            lines = cluster.read_log_from(layout, log_offset).strip().splitlines()[-3:]
            raise Unavailable(
                f"the embedded database was not ready in {timeout_seconds:g} s "
                f"({' / '.join(lines)}). "
                f"Log: {layout.log}. Start again with more time if it was recovering.",
                code="database_down",
            )


def _explain_exit(said: str, layout: ClusterLayout, returncode: int | None) -> Exception:
    if "could not bind" in said or "could not create any TCP/IP sockets" in said:
        return TryAgain("its port was taken by another program", new_port=True)
    for words in ("pre-existing shared memory block", "another postmaster", "already exists"):
        if words in said:
            return TryAgain(f"the server before it is not gone yet ({words})")
    return explain_failure(
        said, layout, f"the embedded database ended at once (status {returncode})"
    )


def explain_failure(said: str, layout: ClusterLayout, what: str) -> HoldfastError:
    """Return the error for a server or an initdb whose last output was `said`. what: the beginning
    of the error's sentence."""
    if "No space left on device" in said or "Disk quota exceeded" in said:
        return Unavailable(cluster.disk_full_sentence(layout.folder), code="disk_full")
    lines = [line for line in said.strip().splitlines() if line.strip()][-4:]
    if "incompatible with server" in said:
        return ValidationError(f"{what}: {' / '.join(lines)}", code="wrong_postgres_version")
    return Unavailable(
        f"{what}: {' / '.join(lines) or 'it said nothing'}. Log: {layout.log}", code="database_down"
    )


def raise_for_launcher(returncode: int | None, said: str) -> None:
    """Raise an error where the launcher gave up before PostgreSQL ran."""
    words = said.strip().rpartition("launcher: ")[2]
    if returncode in (launcher.EXIT_NO_NAMESPACE, launcher.EXIT_NO_SWITCH):
        raise NotAsThisUser(words)
    if returncode in (launcher.EXIT_NO_EXEC, launcher.EXIT_ORPHAN):
        raise Unavailable(f"the embedded database cannot be run: {words}", code="database_down")


def launch_command(
    identity: Identity, death_signal: signal.Signals, folder: Path, command: list[str]
) -> list[str]:
    """Return the command by which the launcher becomes `command` as the user `identity` in
    `folder`. The process gets `death_signal` when its owner dies."""
    script = str(Path(launcher.__file__))
    user = [identity.mode, str(identity.uid), str(identity.gid)]
    tie = [str(int(death_signal)), str(os.getpid()), str(folder)]
    return [sys.executable, "-I", "-S", script, *user, *tie, *command]


def server_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the server needs and no others, because PG* variables of the user's
    shell would change its behaviour."""
    kept = {name: environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in environ}
    return {"PATH": os.defpath, **kept, "LC_ALL": "C", "TZ": "UTC"}


def list_identities(run_as: str | None, data: Path) -> list[Identity]:
    """Return the users under which the server can run, the best first. initdb needs a user that the
    password file knows and that is not root.

    The user that owns the files of `data` already comes first: where namespaces are forbidden, a
    server made as nobody must not change hands twice at every start.
    """
    uid, gid = os.geteuid(), os.getegid()
    itself = Identity("self", uid, gid, uid, gid)
    if run_as == "self" or (run_as is None and uid != 0 and _is_known(uid)):
        return [itself]
    outside = _known_stranger()
    namespace = Identity("namespace", outside.pw_uid, outside.pw_gid, uid, gid)
    switch = Identity("switch", outside.pw_uid, outside.pw_gid, outside.pw_uid, outside.pw_gid)
    if run_as is not None:
        return [{"namespace": namespace, "switch": switch}[run_as]]
    if uid != 0:
        return [namespace, itself]
    try:
        owner = data.stat().st_uid
    except OSError:
        owner = uid
    return sorted([namespace, switch], key=lambda identity: identity.file_uid != owner)


def _is_known(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _known_stranger() -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(NOBODY)
    except KeyError:
        others = [entry for entry in pwd.getpwall() if entry.pw_uid != 0]
        if not others:
            raise Unavailable(
                "the password file knows no user but root, and PostgreSQL does not run as root. "
                "Add a line for nobody to /etc/passwd, or use --dsn.",
                code="no_user_for_postgres",
            ) from None
        return others[-1]


def adopt_files(data: Path, identity: Identity) -> None:
    """Make the server's user the owner of the cluster, where another user owns it. Only root gets
    this far."""
    if os.geteuid() == 0:
        cluster.give_to(data, identity.file_uid, identity.file_gid)
