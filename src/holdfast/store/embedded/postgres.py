"""An embedded PostgreSQL: made, started, watched and ended by the process that owns its folder.

Why not the wheels' own managers: they report a zombie as running, chmod the parents of the data
folder, call useradd and leave servers behind. These invariants are kept here instead:

PG-1  Every process of the server holds the lock on `server.lock`; the folder is free when the
      kernel says so.
- One owner: the lock on `owner.lock`, held from start to stop. A second owner is refused before
  it touches anything.
- A cluster appears whole or not at all: initdb works beside it and a rename ends it.
PG-4  The server does not outlive its owner: it gets SIGINT (a clean, fast shutdown) when the owner
      is gone, however it went.
- A pid alone is never believed: a process is signalled through a pidfd, after its lock or
  folder was looked at.

The facts behind these invariants, and the measurements, are in
docs/decisions/0003-embedded-postgres.md.
"""

import logging
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from holdfast.errors import Unavailable
from holdfast.store.embedded import cluster, processes
from holdfast.store.embedded.binaries import (
    PostgresBinaries,
    find_binaries,
    is_reachable,
    make_reachable,
)
from holdfast.store.embedded.cluster import ClusterLayout, ServerRuntime
from holdfast.store.embedded.processes import Log
from holdfast.store.embedded.server import (
    Identity,
    NotAsThisUser,
    ServerPlace,
    ServerRun,
    TryAgain,
    adopt_files,
    await_ready,
    explain_failure,
    launch_command,
    list_identities,
    raise_for_launcher,
    server_environment,
)

__all__ = ["EmbeddedPostgres", "PostgresBinaries", "find_binaries"]

_POLL_SECONDS = 0.005
_RETRY_SECONDS = 10.0
_INITDB_SECONDS = 120.0


class EmbeddedPostgres:
    """One PostgreSQL server on one folder, owned by this process.

    `log` gets sentences for a person. `settings` are postgresql.conf settings that win over ours (a
    test may turn fsync off). `run_as` forces one of `self`, `namespace`, `switch` instead of the
    first that works. Safe to call from any thread.
    """

    def __init__(
        self,
        folder: Path,
        *,
        log: Log | None = None,
        settings: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
        run_as: str | None = None,
    ) -> None:
        # Resolved once: a later chdir of the owner must not move the database.
        self._layout = ClusterLayout(Path(folder).absolute())
        self._log: Log = log or logging.getLogger(__name__).info
        self._settings = dict(settings or {})
        self._environ = dict(os.environ if environ is None else environ)
        self._run_as = run_as
        self._mutex = threading.RLock()
        self._owner_lock: int | None = None
        self._server: ServerRun | None = None
        self._runtime: ServerRuntime | None = None
        self._file_uids = frozenset({os.geteuid()})
        self._password = ""

    @property
    def folder(self) -> Path:
        """Return the absolute path of the folder."""
        return self._layout.folder

    @property
    def pid(self) -> int | None:
        """Return the server's pid, None while no server lives."""
        server = self._server
        return server.pid if server is not None and not server.ended.is_set() else None

    def alive(self) -> bool:
        """Return whether the server process exists and is no zombie. A server that a SIGSTOP froze
        is alive."""
        server = self._server
        return server is not None and not server.ended.is_set()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the server has ended; return whether it did, so that a controller hears of the
        server's death."""
        server = self._server
        return server is None or server.ended.wait(timeout_seconds)

    def dsn(self, database: str = cluster.DATABASE, *, loopback: bool = False) -> str:
        """Return the DSN, which holds the password: over the socket, or over TCP on loopback.
        Raises Unavailable before start()."""
        if self._runtime is None:
            raise Unavailable("the embedded database was not started.", code="database_down")
        name, port = quote(database, safe=""), self._runtime.port
        if loopback:
            return f"postgresql://{cluster.USER}:{self._password}@127.0.0.1:{port}/{name}"
        return write_dsn(self._runtime, self._password, database)

    def start(self, timeout_seconds: float = 30) -> str:
        """Start the server, making the cluster in an empty folder; return its DSN. A server that is
        alive is left as it is.

        What an earlier owner left (a running server, a half-made cluster, stale locks) is cleared
        up first, within about 12 s. `timeout_seconds` is counted anew while recovery reports
        progress in its log.

        Raises:
            Conflict: another owner is alive. ValidationError: the folder or the binaries cannot be
            used. Unavailable: the disk is full, or the server does not come up.
        """
        with self._mutex:
            if self.alive():
                return self.dsn()
            layout = self._layout
            binaries = find_binaries(self._environ)
            cluster.prepare_folder(layout)
            try:
                self._end_server()
                if self._owner_lock is None:
                    self._owner_lock = processes.lock_owner(layout.owner_lock)
                server_lock = processes.end_leftovers(layout.server_lock, layout.data, self._log)
                try:
                    self._start_as_someone(binaries, server_lock, timeout_seconds)
                finally:
                    # From here on the lock is held by the server's processes alone.
                    os.close(server_lock)
            except OSError as error:
                self._release()
                raise cluster.explain_os_error(error, layout.folder) from error
            except BaseException:
                self._release()
                raise
            return self.dsn()

    def stop(self, timeout_seconds: float = 10) -> None:
        """End the server and release the folder; return when every process of the server is gone.
        Where this object owns no server, nothing is done.

        The first try is a fast shutdown: clients are cut off, and everything committed is written.
        At 70 % of the time an immediate shutdown follows (recovery at the next start), at 90 %
        SIGKILL. Raises Unavailable when even that did not end the processes within 5 s more.
        """
        with self._mutex:
            if self._owner_lock is None:
                return
            try:
                if self._server is not None:
                    self._server.stop(timeout_seconds)
                self._confirm_gone(timeout_seconds)
            finally:
                self._release()

    def _start_as_someone(
        self, binaries: PostgresBinaries, server_lock: int, timeout_seconds: float
    ) -> None:
        identities = list_identities(self._run_as, self._layout.data)
        for identity in identities:
            try:
                self._start_as(identity, binaries, server_lock, timeout_seconds)
                return
            except NotAsThisUser as error:
                if identity is identities[-1]:
                    raise Unavailable(
                        f"PostgreSQL cannot be run here as uid {os.geteuid()}: {error}. Start as "
                        "an ordinary user "
                        "that the password file knows, or use --dsn.",
                        code="no_user_for_postgres",
                    ) from error
                self._log(f"user namespaces are not allowed here ({error}); trying another way")

    def _start_as(
        self,
        identity: Identity,
        binaries: PostgresBinaries,
        server_lock: int,
        timeout_seconds: float,
    ) -> None:
        layout = self._layout
        cluster.clear_unfinished(layout)
        if identity.mode != "self":
            places = (Path("/var/tmp"), Path(tempfile.gettempdir()), Path("/opt"))
            binaries = make_reachable(binaries, identity.file_uid, places)
        # Asked of the folder, which exists; the cluster in it belongs to the server's user anyway.
        private = identity.mode != "self" and not is_reachable(layout.folder, identity.file_uid)
        if not layout.data.exists():
            self._make_cluster(identity, binaries, server_lock, private)
        cluster.check_version(layout, binaries)
        adopt_files(layout.data, identity)
        self._password = cluster.read_password(layout.data)
        cluster.drop_reused_pid(layout.data)
        self._file_uids |= {identity.file_uid}
        old = cluster.read_runtime(layout)
        if old is not None:
            cluster.drop_socket_folder(layout, old.socket_folder, self._file_uids)
        socket_folder = cluster.make_socket_folder(
            layout, identity.file_uid, identity.file_gid, private
        )
        give_up_at = time.monotonic() + _RETRY_SECONDS
        port = old.port if old is not None else None
        while True:
            runtime = self._runtime = ServerRuntime(cluster.choose_port(port), socket_folder)
            cluster.write_runtime(layout, runtime)
            try:
                self._launch(identity, binaries, server_lock, runtime, private, timeout_seconds)
                break
            except TryAgain as again:
                if time.monotonic() > give_up_at:
                    raise Unavailable(
                        f"the embedded database does not start: {again}. Log: {layout.log}",
                        code="database_down",
                    ) from again
                port = None if again.new_port else port
                time.sleep(0.1)

    def _make_cluster(
        self, identity: Identity, binaries: PostgresBinaries, server_lock: int, private: bool
    ) -> None:
        """Run initdb beside the cluster's place, write the password into it, then rename it once."""
        layout = self._layout
        started = time.monotonic()
        cluster.check_space(layout.folder)
        durable = self._settings.get("fsync", "on") == "on"
        work = Path(tempfile.mkdtemp(prefix="data.new-", dir=layout.folder))
        # A memory file, because the server's user may be unable to walk to any file of ours.
        secret = os.memfd_create("password")
        place = ServerPlace.open(work, private)
        try:
            os.chown(work, identity.file_uid, identity.file_gid)
            password = cluster.new_password()
            os.write(secret, f"{password}\n".encode())
            command = cluster.initdb_arguments(
                binaries, place.name, f"/proc/self/fd/{secret}", durable
            )
            done = subprocess.run(
                launch_command(identity, signal.SIGKILL, place.working_folder, command),
                pass_fds=(server_lock, secret, *place.descriptors),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_INITDB_SECONDS,
                env=server_environment(self._environ),
                start_new_session=True,
            )
            raise_for_launcher(done.returncode, done.stderr)
            if done.returncode != 0:
                raise explain_failure(done.stdout + done.stderr, layout, "initdb failed")
            cluster.write_password(work, password, identity.file_uid, identity.file_gid)
            if durable:
                cluster.sync_folder(work)
            os.rename(work, layout.data)
            if durable:
                cluster.sync_folder(layout.folder)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(
                f"initdb did not finish in {_INITDB_SECONDS:.0f} s; is the disk of "
                f"{layout.folder} working?",
                code="database_down",
            ) from error
        finally:
            place.close()
            os.close(secret)
            shutil.rmtree(work, ignore_errors=True)
        self._log(f"made a new database in {layout.data} ({time.monotonic() - started:.2f} s)")

    def _launch(
        self,
        identity: Identity,
        binaries: PostgresBinaries,
        server_lock: int,
        runtime: ServerRuntime,
        private: bool,
        timeout_seconds: float,
    ) -> None:
        layout = self._layout
        cluster.rotate_log(layout)
        settings = cluster.server_settings(
            binaries, runtime.port, runtime.socket_folder, self._settings
        )
        place = ServerPlace.open(layout.data, private)
        command = [str(binaries.postgres), "-D", place.name]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        log_offset = layout.log.stat().st_size if layout.log.exists() else 0
        try:
            server = ServerRun(
                layout,
                launch_command(identity, signal.SIGINT, place.working_folder, command),
                server_environment(self._environ),
                (server_lock, *place.descriptors),
            )
        finally:
            place.close()
        self._server = server
        ready = False
        try:
            await_ready(server, layout, log_offset, timeout_seconds)
            ready = True
        finally:
            if not ready:
                self._server = None
                server.stop(2)

    def _end_server(self) -> None:
        """Forget a server that died, so that `start` may follow."""
        server, self._server = self._server, None
        if server is not None:
            server.stop(1)

    def _confirm_gone(self, timeout_seconds: float) -> None:
        """Wait until the kernel reports that no process of the server is left (PG-1); kill those
        that stay."""
        layout = self._layout
        started = time.monotonic()
        while True:
            descriptor = processes.lock_file(layout.server_lock)
            if descriptor is not None:
                os.close(descriptor)
                break
            waited = time.monotonic() - started
            holders = processes.find_holders(layout.server_lock, layout.data)
            if waited > 5 + timeout_seconds:
                left = (
                    ", ".join(str(holder.pid) for holder in holders)
                    or "a process that cannot be seen"
                )
                raise Unavailable(
                    f"the database in {layout.folder} was told to stop, but {left} does not die "
                    "of SIGKILL. "
                    "Its disk may be hung.",
                    code="database_stuck",
                )
            # The postmaster is gone, and its children have had time to notice.
            if waited > 0.2:
                processes.press_holders(holders, 1e9, set(), layout.server_lock, layout.data)
            time.sleep(_POLL_SECONDS)

    def _release(self) -> None:
        try:
            self._end_server()
        finally:
            if self._runtime is not None:
                cluster.drop_socket_folder(
                    self._layout, self._runtime.socket_folder, self._file_uids
                )
                self._runtime = None
            if self._owner_lock is not None:
                os.close(self._owner_lock)
                self._owner_lock = None


def write_dsn(runtime: cluster.ServerRuntime, password: str, database: str) -> str:
    """Return the DSN by which clients connect over the socket."""
    name, place = quote(database, safe=""), quote(str(runtime.socket_folder), safe="")
    return f"postgresql://{cluster.USER}:{password}@/{name}?host={place}&port={runtime.port}"


def find_dsn(folder: Path) -> str | None:
    """Return the DSN, which holds the password, of the server that was last started in a folder;
    None where none was. Raises as `read_password` does."""
    layout = cluster.ClusterLayout(folder)
    runtime = cluster.read_runtime(layout)
    if runtime is None:
        return None
    return write_dsn(runtime, cluster.read_password(layout.data), cluster.DATABASE)
