"""The folder of an embedded server: the cluster, its settings, its password, its log.

FOLDER/
  data/           the cluster; `data/holdfast.password` (0600) is born with it and is never without it
  data.new-*      an initdb that has not finished; never used, removed at the next start
  owner.lock      held by the one Holdfast process that may touch this folder
  server.lock     held by every process of the server (PG-1)
  runtime.json    the port and the socket folder of the last start
  postgres.log    the server's log, and postgres.log.1 the one before
"""

import json
import os
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import HoldfastError, Unavailable, ValidationError
from holdfast.store.embedded.binaries import PostgresBinaries

USER = "holdfast"
DATABASE = "postgres"
PASSWORD_FILE = "holdfast.password"

LOG_LIMIT_BYTES = 10 * 1024 * 1024
"""The log is cut at this size, one older one is kept: a crash loop must not fill the disk the
database is on.
"""

NEW_CLUSTER_BYTES = 64_000_000
"""The size of an empty cluster (39 MB measured with 18.6) and its first write-ahead log."""

_SOCKET_PATH_LIMIT_BYTES = 107  # sun_path, less its final NUL
_SOCKET_NAME_BYTES = len("/.s.PGSQL.65535.lock")

_SETTINGS: Mapping[str, str] = {
    "cluster_name": "holdfast",
    "unix_socket_permissions": "0700",
    "password_encryption": "scram-sha-256",
    "max_connections": "50",
    # Durable: a job once accepted is never forgotten.
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    # Small: it shares the machine with the work. 48 MB keeps the hot tables of a million jobs'
    # indexes warm enough.
    "shared_buffers": "48MB",
    "jit": "off",
    "max_worker_processes": "4",
    "max_parallel_workers_per_gather": "0",
    "max_wal_senders": "2",
    "huge_pages": "off",
    # Bounds both the disk it takes and the time recovery takes after a kill.
    "max_wal_size": "512MB",
    # A sync of hundreds of ends logs 300 kB; a 32nd of the shared buffers, the default, is full at
    # once where two of them write.
    "wal_buffers": "16MB",
    # Queue tables turn over completely every few minutes; the stock 20 % and one minute let them
    # bloat.
    "autovacuum_naptime": "15s",
    "autovacuum_max_workers": "2",
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "200",
    "autovacuum_analyze_scale_factor": "0.05",
    "autovacuum_vacuum_cost_delay": "1ms",
    # One forgotten open transaction cuts claims to a quarter.
    "idle_in_transaction_session_timeout": "5min",
    # A killed client must let go of its locks now, not at the next keep-alive.
    "client_connection_check_interval": "10s",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] ",
}


def server_settings(
    binaries: PostgresBinaries, port: int, socket_folder: Path, extra: Mapping[str, str]
) -> dict[str, str]:
    """Return every setting that the server is started with. `extra` overrides all settings except
    those that say where the server listens."""
    settings = {"listen_addresses": "127.0.0.1", **_SETTINGS}
    if binaries.major >= 16:
        settings["scram_iterations"] = "4096"  # for passwords that a person makes
    if binaries.major >= 18:
        settings["io_method"] = (
            "sync"  # the default keeps three more processes alive for our few small reads
        )
    settings.update(extra)
    settings["port"] = str(port)
    settings["unix_socket_directories"] = str(socket_folder)
    return settings


@dataclass(frozen=True)
class ClusterLayout:
    """The paths inside one folder."""

    folder: Path

    @property
    def data(self) -> Path:
        """Return the path of the cluster."""
        return self.folder / "data"

    @property
    def owner_lock(self) -> Path:
        """Return the path of the lock that the owner holds for as long as it lives, or until it
        stops the server."""
        return self.folder / "owner.lock"

    @property
    def server_lock(self) -> Path:
        """Return the path of the lock that every process of the server holds."""
        return self.folder / "server.lock"

    @property
    def log(self) -> Path:
        """Return the path of the file with the server's output."""
        return self.folder / "postgres.log"

    @property
    def runtime(self) -> Path:
        """Return the path of the file with the port and the socket folder of the last start."""
        return self.folder / "runtime.json"


_OUR_NAMES = (
    "owner.lock",
    "server.lock",
    "runtime.json",
    "runtime.json.new",
    "postgres.log",
    "postgres.log.1",
)


def prepare_folder(layout: ClusterLayout) -> None:
    """Make the folder (0700) if it is missing, and refuse one that is not its owner's. Raises
    ValidationError, which says what to do."""
    folder = layout.folder
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = {entry.name for entry in folder.iterdir()}
    except (FileExistsError, NotADirectoryError) as error:
        raise ValidationError(
            f"{folder} is not a folder; name another.", code="bad_folder"
        ) from error
    except OSError as error:
        raise explain_os_error(error, folder) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValidationError(
            f"{folder} cannot be written by uid {os.geteuid()}; name a folder that can, or change "
            "its owner.",
            code="bad_folder",
        )
    if "PG_VERSION" in names:
        raise ValidationError(
            f"{folder} is a PostgreSQL data folder that Holdfast did not make. Name another "
            "folder, "
            "or run that server yourself and use --dsn.",
            code="bad_folder",
        )
    if "data" in names and os.geteuid() not in (0, layout.data.lstat().st_uid):
        owner, own = layout.data.lstat().st_uid, os.geteuid()
        raise ValidationError(
            f"{layout.data} belongs to uid {owner}, and this is uid {own}. Start as its owner, "
            f"or (as root) run: chown -R {own} {folder}",
            code="bad_folder",
        )
    foreign = {
        name for name in names if name not in _OUR_NAMES and not name.startswith("data.new-")
    }
    if "data" in foreign and not (layout.data / "PG_VERSION").is_file():
        raise ValidationError(
            f"{layout.data} is not a PostgreSQL data folder (it has no PG_VERSION). Move it away, "
            "or name another.",
            code="bad_folder",
        )
    if foreign and "data" not in foreign:
        raise ValidationError(
            f"{folder} is not empty and holds no database ({', '.join(sorted(foreign)[:3])}). "
            "Name an empty folder, or one that does not exist yet.",
            code="bad_folder",
        )


def check_version(layout: ClusterLayout, binaries: PostgresBinaries) -> None:
    """Raise ValidationError where the cluster was made by another major version than that of
    `binaries`."""
    text = (layout.data / "PG_VERSION").read_text().strip()
    if text != str(binaries.major):
        raise ValidationError(
            f"{layout.data} was made by PostgreSQL {text or '(unreadable)'}, and the server found "
            "here "
            f"({binaries.folder}) is {binaries.major}. Point HOLDFAST_PG_BIN at the bin folder of "
            f"PostgreSQL {text}, "
            "or move the data over with pg_upgrade or pg_dump.",
            code="wrong_postgres_version",
        )


def explain_os_error(error: OSError, folder: Path) -> HoldfastError:
    """Return the error that tells a user what to do about an operating system's error in
    `folder`."""
    import errno

    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unavailable(disk_full_sentence(folder), code="disk_full")
    return ValidationError(
        f"{error.filename or folder}: {error.strerror}. Name a folder that uid {os.geteuid()} can "
        "write.",
        code="bad_folder",
    )


def disk_full_sentence(folder: Path) -> str:
    """Return the sentence for a full disk, with the room that is left on it."""
    try:
        free = f" ({shutil.disk_usage(folder).free // 1_000_000} MB free)"
    except OSError:
        free = ""
    return (
        f"no space left on the disk of {folder}{free}. Free some (a new database takes 64 MB) and "
        "start again; "
        "nothing that was committed is lost."
    )


def check_space(folder: Path) -> None:
    """Raise Unavailable where the disk has no room for a new cluster, because initdb on a full disk
    ends in a panic that names no reason."""
    if shutil.disk_usage(folder).free < NEW_CLUSTER_BYTES:
        raise Unavailable(disk_full_sentence(folder), code="disk_full")


def give_to(folder: Path, uid: int, gid: int) -> None:
    """Make the user `uid` the owner of the whole cluster. The top folder changes last, so that a
    walk which was interrupted is done again."""
    if folder.lstat().st_uid == uid:
        return
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.lchown(os.path.join(root, name), uid, gid)
    os.chown(folder, uid, gid)


def sync_folder(folder: Path) -> None:
    """Flush the names in `folder` to the disk, so that they survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def clear_unfinished(layout: ClusterLayout) -> None:
    """Remove what an initdb that was interrupted left behind. Call this only with both locks held,
    because then no process writes there."""
    for place in layout.folder.glob("data.new-*"):
        shutil.rmtree(place, ignore_errors=True)


def initdb_arguments(
    binaries: PostgresBinaries, data: str, password_path: str, durable: bool
) -> list[str]:
    """Return the command that makes a cluster in `data`, with UTF-8 and byte-order collation:
    indexes that no upgrade of libc can break."""
    locale = ["--locale=C"]
    if binaries.major >= 17:
        locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    command = [str(binaries.initdb), "-D", data, "-U", USER, "-E", "UTF8", *locale]
    command += ["-A", "scram-sha-256", f"--pwfile={password_path}", "--no-instructions"]
    if binaries.major >= 16:
        command += ["-c", "scram_iterations=1"]  # more would guard a password that can be guessed
    return command if durable else [*command, "--no-sync"]


def new_password() -> str:
    """Return a new password of letters and digits only, because it goes into a DSN unquoted."""
    return secrets.token_hex(24)


def write_password(data: Path, password: str, uid: int, gid: int) -> None:
    """Put the password beside the cluster that it opens, readable by the cluster's owner alone."""
    path = data / PASSWORD_FILE
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, f"{password}\n".encode())
        os.fchown(descriptor, uid, gid)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_password(data: Path) -> str:
    """Return the password that was written with the cluster. Raises ValidationError when it was
    removed."""
    try:
        text = (data / PASSWORD_FILE).read_text().strip()
    except FileNotFoundError:
        text = ""
    except OSError as error:
        raise explain_os_error(error, data) from error
    if not text:
        raise ValidationError(
            f"{data / PASSWORD_FILE} is missing or empty, so no login is possible. Put it back from "
            "a backup, or write a "
            f"new one there and set it with `postgres --single -D {data} postgres` "
            f"(ALTER ROLE {USER} PASSWORD '…').",
            code="bad_folder",
        )
    return text


@dataclass(frozen=True)
class ServerRuntime:
    """The address at which the server listens."""

    port: int
    socket_folder: Path


def read_runtime(layout: ClusterLayout) -> ServerRuntime | None:
    """Return where the last server listened; None where no start is on record."""
    try:
        value = json.loads(layout.runtime.read_text())
        return ServerRuntime(int(value["port"]), Path(value["socket_folder"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_runtime(layout: ClusterLayout, runtime: ServerRuntime) -> None:
    """Record where the server listens (0600; replaced whole)."""
    text = json.dumps({"port": runtime.port, "socket_folder": str(runtime.socket_folder)})
    fresh = layout.folder / "runtime.json.new"
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as file:
        file.write(text + "\n")
    os.replace(fresh, layout.runtime)


def choose_port(preferred: int | None) -> int:
    """Return the preferred port if it is free now, else any free one. Another process may still
    take it first, so the caller tries again."""
    for port in ([preferred] if preferred else []) + [0]:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise Unavailable("no free loopback port is left on this machine.", code="no_port")


_SOCKET_FOLDER_PREFIX = "holdfast-pg-"


def make_socket_folder(layout: ClusterLayout, uid: int, gid: int, private: bool) -> Path:
    """Make a folder (0700) for the socket and return its path: a neighbour of `data` where a
    socket's path has room and the folder can be reached, else a folder in tmp.

    private: use tmp in any case, for a server user that cannot walk the folder's parents.
    """
    beside = (
        layout.data
    )  # the cluster is 0700, owned by the server's user, and ours: as good as a folder of its own
    if not private and _can_hold_socket(str(beside)):
        return beside
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        if not _can_hold_socket(f"{place}/{_SOCKET_FOLDER_PREFIX}12345678"):
            continue
        try:
            made = Path(tempfile.mkdtemp(prefix=_SOCKET_FOLDER_PREFIX, dir=place))
            os.chown(made, uid, gid)
        except OSError:
            continue
        return made
    raise Unavailable(
        "no temporary folder can hold the database's socket; set TMPDIR.", code="no_socket_folder"
    )


def _can_hold_socket(folder: str) -> bool:
    """Return whether the folder can hold the socket. A socket's path has 107 bytes; the server and
    its clients take a comma for the end of a path, and the server drops blanks at the end."""
    long = len(os.fsencode(folder)) + _SOCKET_NAME_BYTES > _SOCKET_PATH_LIMIT_BYTES
    return not (long or "," in folder or folder != folder.strip())


def drop_socket_folder(layout: ClusterLayout, socket_folder: Path, uids: frozenset[int]) -> None:
    """Remove the socket and its lock of a server that has ended, and their folder when it was made
    for that socket."""
    if socket_folder == layout.data:
        for path in layout.data.glob(".s.PGSQL.*"):
            path.unlink(missing_ok=True)
        return
    try:
        status = socket_folder.lstat()
    except OSError:
        return
    # The path comes from a file: remove only what we can have made.
    made_by_us = stat.S_ISDIR(status.st_mode) and status.st_uid in uids
    if made_by_us and socket_folder.name.startswith(_SOCKET_FOLDER_PREFIX):
        shutil.rmtree(socket_folder, ignore_errors=True)


def open_log(layout: ClusterLayout) -> int:
    """Return a descriptor that appends to the server's log."""
    return os.open(layout.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def rotate_log(layout: ClusterLayout, limit_bytes: int = LOG_LIMIT_BYTES) -> None:
    """Keep the server's log under its limit while the server writes to it: copy the log, then cut
    it. A few lines may be lost between the two."""
    try:
        if layout.log.stat().st_size <= limit_bytes:
            return
        with (
            open(layout.log, "rb") as source,
            open(layout.folder / "postgres.log.1", "wb") as target,
        ):
            source.seek(max(0, layout.log.stat().st_size - limit_bytes))
            shutil.copyfileobj(source, target)
    except OSError:
        pass  # a full disk: cutting is then all the more needed
    try:
        os.truncate(layout.log, 0)
    except OSError:
        pass


def read_log_from(layout: ClusterLayout, offset: int, limit_bytes: int = 16_384) -> str:
    """Return the bytes of the server's log from `offset` on, at most the last `limit_bytes` of
    them."""
    try:
        with open(layout.log, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, min(offset, end), end - limit_bytes))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def is_ready(data: Path, pid: int) -> bool:
    """Return whether the server with the pid `pid` reports that it takes connections, in the eighth
    line of postmaster.pid."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except OSError:
        return False
    return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"


def drop_reused_pid(data: Path) -> None:
    """Remove a stale postmaster.pid whose number another process has now, because PostgreSQL would
    refuse to start over it.

    Call this only when no process of this server is left. A file whose number is free is left for
    PostgreSQL, which then also checks the old shared memory.
    """
    path = data / "postmaster.pid"
    try:
        pid = int(path.read_text().split("\n", 1)[0])
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        pid = os.getpid()  # torn by a full disk or a power cut; worth nothing
    if Path("/proc", str(pid)).exists():
        path.unlink(missing_ok=True)
