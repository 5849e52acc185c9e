"""What happens when something dies, freezes or cannot be reached. Real processes, the real wire."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from holdfast.errors import Conflict, ValidationError
from holdfast.process import table
from holdfast.supervisor import Context, ContextClosed, Future, Host, HostLost, as_completed, wait
from holdfast.supervisor.host.host_manager import EXIT_WARDEN_DIED
from holdfast.supervisor.host.warden import FROZEN_SECONDS
from holdfast.supervisor.line.session_host import EXIT_NO_SUPERVISOR, EXIT_ORPHANED
from holdfast.supervisor.rosters.host_roster import EXIT_GIVEN_UP, EXIT_REPLACED
from holdfast.wire.bus.local import SOCKET_VARIABLE
from tests.system.proxy import Proxy
from tests.system.supervisor.rig import (
    PATIENCE,
    Managers,
    attach,
    find_descendants,
    find_warden,
    local_context,
    python,
    start_family,
    wait_gone,
)
from tests.waits import is_alive, wait_exit, wait_until


def test_settings_that_do_not_go_together() -> None:
    with pytest.raises(ValidationError, match="needs a state_dir"):
        Context(bind="127.0.0.1", orphan_grace=10)
    with pytest.raises(ValidationError, match=r"plain TCP on 0\.0\.0\.0"):
        Context(encrypt=False)


@pytest.mark.slow
def test_a_killed_manager_takes_everything_with_it(
    ctx: Context, managers: Managers, tmp_path: Path
) -> None:
    """WARDEN-1, FLEET-1, ROSTER-2."""
    hosts, (manager, _) = attach(ctx, managers, 2)
    process, family = start_family(ctx, hosts[0], tmp_path)
    (other,) = ctx.create_process_group(hosts[1:], ["sleep", "6000"])
    silent, signalled = process.recv(), process.returncode()
    sockets = Path(read_variable(family[0], SOCKET_VARIABLE)).parent
    manager.kill()
    wait_gone(family, "the family of the killed manager")
    wait_until(lambda: not sockets.exists(), PATIENCE, what="the folder of its socket to go")
    with pytest.raises(HostLost, match="host m0 is lost: nothing was heard of it for 3"):
        silent.result(PATIENCE)
    assert isinstance(signalled.exception(0), HostLost)
    assert hosts[0].connection_lost()
    assert abs(hosts[0].time_connection_lost().result(0) - time.time()) < PATIENCE
    with pytest.raises(HostLost):
        process.send("x")
    assert isinstance(process.signal(signal.SIGTERM).exception(PATIENCE), HostLost)
    assert isinstance(process.recv().exception(0), HostLost)
    (late,) = ctx.create_process_group(hosts[:1], ["true"])
    assert isinstance(late.pid().exception(PATIENCE), HostLost)
    assert ctx.signal([process, other], signal.SIGCONT).result(PATIENCE) == 1  # the living get it
    assert not other.returncode().done()


@pytest.mark.slow
def test_a_killed_warden_takes_everything_with_it(
    ctx: Context, managers: Managers, tmp_path: Path
) -> None:
    """WARDEN-4."""
    (host,), (manager,) = attach(ctx, managers, 1)
    process, family = start_family(ctx, host, tmp_path)
    entry = table.read_entry(process.pid().result(0))
    assert entry is not None
    os.kill(entry.ppid, signal.SIGKILL)
    wait_gone(family, "the family of the killed warden")
    assert wait_exit(manager, PATIENCE) == EXIT_WARDEN_DIED
    assert process.returncode().result(PATIENCE) == -signal.SIGKILL
    assert "warden" in (wait_until(lambda: host.lost_reason, PATIENCE))


@pytest.mark.slow
def test_a_terminated_manager_ends_its_processes_and_says_why(
    ctx: Context, managers: Managers, tmp_path: Path
) -> None:
    (host,), (manager,) = attach(ctx, managers, 1)
    process, family = start_family(ctx, host, tmp_path)
    manager.terminate()
    assert process.returncode().result(PATIENCE) == -signal.SIGTERM
    assert wait_exit(manager, PATIENCE) == 128 + signal.SIGTERM
    wait_gone(family, "the family of the terminated manager")
    assert wait_until(lambda: host.lost_reason, PATIENCE) == "the host manager got SIGTERM"


@pytest.mark.slow
def test_a_frozen_manager_is_given_up_and_told_to_end_when_it_wakes(
    ctx: Context, managers: Managers
) -> None:
    """FLEET-1."""
    (host,), (manager,) = attach(ctx, managers, 1)
    (process,) = ctx.create_process_group([host], ["sleep", "6000"])
    pid = process.pid().result(PATIENCE)
    os.kill(manager.pid, signal.SIGSTOP)
    with pytest.raises(HostLost, match="nothing was heard"):
        process.returncode().result(PATIENCE)
    fresh = ctx.replace_hosts([host])
    os.kill(manager.pid, signal.SIGCONT)
    assert wait_exit(manager, PATIENCE) == EXIT_GIVEN_UP
    wait_gone([pid], "the process of the manager that was given up")
    assert not fresh[0].attached, "a manager that was given up was handed out again"


@pytest.mark.slow
def test_the_goodbye_of_a_host_that_was_given_up_clears_it(
    managers: Managers, tmp_path: Path
) -> None:
    """ROSTER-4: else it would take the orphan grace, which is an hour here."""
    with local_context(state_dir=tmp_path, orphan_grace=3600) as ctx:
        hosts, started = attach(ctx, managers, 2)
        (process,) = ctx.create_process_group(hosts[:1], ["sleep", "6000"])
        pid = process.pid().result(PATIENCE)
        for manager in started:
            os.kill(manager.pid, signal.SIGSTOP)
        assert isinstance(process.returncode().exception(PATIENCE), HostLost)
        hosts[1].time_connection_lost().result(PATIENCE)
        os.kill(started[0].pid, signal.SIGCONT)
        hosts[0].time_cleared().result(PATIENCE)
        assert not is_alive(pid)
        assert not hosts[1].time_cleared().done(), "one that said nothing"


@pytest.mark.longest
@pytest.mark.slow
def test_a_lost_host_is_cleared_when_nothing_can_run_there(
    ctx: Context, managers: Managers, tmp_path: Path
) -> None:
    """ROSTER-4: at once on a goodbye; else not before its frozen manager's warden has ended
    everything."""
    hosts, started = attach(ctx, managers, 3)
    (stubborn,) = ctx.create_process_group(
        hosts[:1], ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]
    )
    (other,) = ctx.create_process_group(hosts[1:2], ["sleep", "6000"])
    pids = [process.pid().result(PATIENCE) for process in (stubborn, other)]
    assert not any(host.time_cleared().done() for host in hosts)
    started[0].send_signal(signal.SIGSTOP)
    ctx.return_hosts(hosts[1:2])
    hosts[1].time_cleared().result(PATIENCE)
    assert not is_alive(pids[1])
    lost_at = hosts[0].time_connection_lost().result(PATIENCE)
    assert is_alive(pids[0])
    cleared_at = hosts[0].time_cleared().result(PATIENCE + 20)
    assert not is_alive(pids[0]), "it still ran when its host was called cleared"
    assert cleared_at - lost_at > FROZEN_SECONDS
    (unmet,) = ctx.request_hosts(1)
    ctx.return_hosts([unmet])
    unmet.time_cleared().result(PATIENCE)
    assert not hosts[2].time_cleared().done()
    ctx.shutdown()
    assert hosts[2].time_cleared().result(PATIENCE) > lost_at, "it had said goodbye"


@pytest.mark.slow
def test_a_host_that_was_lost_to_the_script_before_is_not_cleared_yet(
    managers: Managers, tmp_path: Path
) -> None:
    """ROSTER-4: what a script that died knew of the lost hosts is gone; the next waits the whole
    time."""
    first = local_context(state_dir=tmp_path, orphan_grace=300)
    hosts, started = attach(first, managers, 2)
    first.create_process_group(hosts, ["sleep", "6000"])[1].pid().result(PATIENCE)
    started[0].kill()
    hosts[0].time_connection_lost().result(PATIENCE)
    first.detach()
    assert isinstance(hosts[0].time_cleared().exception(0), ContextClosed)
    with local_context(state_dir=tmp_path, orphan_grace=300) as ctx:
        (group,) = ctx.groups()
        lost = [host for host in group.hosts if host.connection_lost()]
        assert [host.facts.hostname for host in lost if host.facts] == ["m0"]
        assert not lost[0].time_cleared().done()


# A manager whose warden takes it for frozen after 1.5 s.
IMPATIENT = """
import sys; import holdfast.supervisor.host.warden as w
w.fork_warden.__defaults__ = (1.5,)
from holdfast.cli.main import main; sys.argv[0] = 'holdfast'; main()
"""


@contextlib.contextmanager
def impatient_manager(
    managers: Managers,
) -> Iterator[tuple[Context, Host, subprocess.Popen[bytes]]]:
    """A context with one host, whose manager runs `IMPATIENT`."""
    with local_context() as ctx:
        (host,) = ctx.request_hosts(1)
        words = [sys.executable, "-c", IMPATIENT, *ctx.manager_command()[3:]]
        yield ctx, host, managers.start_command(words)


@pytest.mark.slow
def test_a_frozen_managers_processes_end_on_a_machine_where_nothing_turns_as_it_should(
    managers: Managers,
) -> None:
    """WARDEN-2: a warden that has a core for a moment now and then, and never long enough to turn
    twice."""
    with impatient_manager(managers) as (ctx, host, manager):
        (process,) = ctx.create_process_group([host], ["sleep", "6000"])
        pid = process.pid().result(PATIENCE)
        warden = find_warden(manager)
        os.kill(manager.pid, signal.SIGSTOP)
        try:
            for _ in range(10):
                os.kill(warden, signal.SIGSTOP)
                time.sleep(2.5)
                os.kill(warden, signal.SIGCONT)
                with contextlib.suppress(AssertionError):
                    wait_until(lambda: not is_alive(pid), 0.3)
                    break
            assert not is_alive(pid)
        finally:
            with contextlib.suppress(
                ProcessLookupError
            ):  # it has ended its manager, too, and then itself
                os.kill(warden, signal.SIGCONT)


@pytest.mark.slow
def test_a_warden_that_was_away_hears_its_manager_first(managers: Managers) -> None:
    """WARDEN-2: what was said meanwhile waits on the line."""
    with impatient_manager(managers) as (ctx, host, manager):
        (process,) = ctx.create_process_group([host], ["sleep", "6000"])
        pid = process.pid().result(PATIENCE)
        warden = find_warden(manager)
        for _ in range(3):
            os.kill(warden, signal.SIGSTOP)
            time.sleep(2.5)
            os.kill(warden, signal.SIGCONT)
            assert process.signal(signal.SIGCONT).result(PATIENCE) == 1  # it has turned
        assert is_alive(pid)


@pytest.mark.slow
def test_a_manager_that_stays_frozen_keeps_no_processes(managers: Managers, tmp_path: Path) -> None:
    """WARDEN-2: its ranks may run elsewhere long since."""
    with impatient_manager(managers) as (ctx, host, manager):
        _, family = start_family(ctx, host, tmp_path)
        os.kill(manager.pid, signal.SIGSTOP)
        wait_gone(family, "the family of the frozen manager")
        assert wait_exit(manager, PATIENCE) == -signal.SIGKILL, (
            "what never exits is replaced by no scheduler"
        )


@pytest.mark.slow
def test_an_idle_manager_that_stays_frozen_ends(managers: Managers) -> None:
    with impatient_manager(managers) as (_, host, manager):
        host.hostname().result(PATIENCE)
        os.kill(manager.pid, signal.SIGSTOP)
        assert wait_exit(manager, PATIENCE) == -signal.SIGKILL


@pytest.mark.slow
def test_replaced_and_returned_hosts(ctx: Context, managers: Managers) -> None:
    """ROSTER-3: not zero for any reason, and the machine is not handed back."""
    hosts, started = attach(ctx, managers, 3)
    group = ctx.create_process_group(hosts, ["sleep", "6000"])
    pids = [process.pid().result(PATIENCE) for process in group]
    ctx.return_hosts(hosts[:1])
    ctx.return_hosts(hosts[1:2], error="its third Xid today")
    (fresh,) = ctx.replace_hosts(hosts[2:])
    assert [wait_exit(manager, PATIENCE) for manager in started] == [
        0,
        EXIT_REPLACED,
        EXIT_REPLACED,
    ]
    wait_gone(pids, "processes of hosts that were given back")
    assert [host.connection_lost() for host in hosts] == [True] * 3
    assert hosts[1].lost_reason == "its third Xid today"
    with pytest.raises(HostLost, match="Xid"):
        group[1].returncode().result(PATIENCE)
    managers.start(ctx, name="m2")  # the bad machine again
    wait_until(lambda: ctx.status().managers_idle == 1, PATIENCE, what="the bad machine, waiting")
    assert not fresh.attached
    managers.start(ctx, name="m3")
    assert fresh.hostname().result(PATIENCE) == "m3"
    ctx.forgive_machine("m2")
    (again,) = ctx.request_hosts(1)
    assert again.hostname().result(PATIENCE) == "m2"
    ctx.return_hosts(ctx.request_hosts(1))  # one that no host ever answered


def test_slurms_name_for_a_node_is_the_machines(
    ctx: Context, managers: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ROSTER-3: what is barred is what `squeue` and `scontrol` call it, and never the node that the
    script is on."""
    monkeypatch.setenv("SLURMD_NODENAME", "node17")
    hosts = ctx.request_hosts(2)
    managers.start(ctx)
    assert hosts[0].hostname().result(PATIENCE) == "node17"
    managers.start(ctx, name="by hand")
    assert hosts[1].hostname().result(PATIENCE) == "by hand"
    (fresh,) = ctx.replace_hosts(hosts[:1])
    managers.start(ctx)
    assert fresh.hostname().result(PATIENCE) == "node17", "the script's own is not barred"
    monkeypatch.setenv("SLURMD_NODENAME", "node1")
    (last,) = ctx.replace_hosts([fresh])
    managers.start(ctx, name="node17")
    wait_until(lambda: ctx.status().managers_idle == 1, PATIENCE, what="the bad node, waiting")
    assert not last.attached


@pytest.mark.slow
def test_demands_are_matched(ctx: Context, managers: Managers) -> None:
    (big,) = ctx.request_hosts(1, gpus=4)
    (red,) = ctx.request_hosts(1, labels={"colour": "red"})
    (other,) = ctx.request_hosts(1, exclude=["plain"])
    managers.start(ctx, name="plain")
    wait_until(lambda: ctx.status().managers_idle == 1, PATIENCE, what="an idle manager")
    managers.start(ctx, "--label", "colour=red", name="painted")
    assert red.hostname().result(PATIENCE) == "painted"
    managers.start(ctx, "--gpus", "8", name="strong")
    assert big.hostname().result(PATIENCE) == "strong"
    assert big.facts is not None
    assert big.facts.gpus == 8
    assert not other.attached
    (any_host,) = ctx.request_hosts(1)
    assert any_host.hostname().result(PATIENCE) == "plain"


@pytest.mark.slow
def test_a_black_hole_is_a_loss_on_both_sides(managers: Managers, ctx: Context) -> None:
    with Proxy(ctx.port) as proxy:
        (host,) = ctx.request_hosts(1)
        manager = managers.start(ctx, url=f"tcp://127.0.0.1:{proxy.port}")
        (process,) = ctx.create_process_group([host], ["sleep", "6000"])
        pid = process.pid().result(PATIENCE)
        proxy.black_hole = True
        assert isinstance(process.returncode().exception(PATIENCE), HostLost)
        assert wait_exit(manager, PATIENCE) == EXIT_ORPHANED
        wait_gone([pid], "the process of the cut off manager")


@pytest.mark.slow
@pytest.mark.parametrize(("way", "code"), [("up", EXIT_GIVEN_UP), ("down", EXIT_ORPHANED)])
def test_a_connection_that_is_dead_one_way_is_lost(
    way: Literal["up", "down"], code: int, managers: Managers, ctx: Context
) -> None:
    """Half-open: a manager that still hears is told to end, one that does not ends by itself, and
    nothing asked of it stays pending."""
    with Proxy(ctx.port) as proxy:
        (host,) = ctx.request_hosts(1)
        manager = managers.start(ctx, url=f"tcp://127.0.0.1:{proxy.port}", name="half")
        (process,) = group = ctx.create_process_group([host], ["sleep", "6000"])
        pid = process.pid().result(PATIENCE)
        proxy.swallow = way
        pending: list[Future[Any]] = [process.recv(), group.gather(), group.signal(0)]
        host.time_connection_lost().result(PATIENCE)
        assert host.lost_reason is not None
        assert host.lost_reason.startswith(
            "nothing was heard of it" if way == "up" else "the supervisor was silent"
        )
        if way == "up":
            for future in (process.returncode(), *pending):
                error = future.exception(PATIENCE)
                assert isinstance(error, HostLost)
                assert (error.hostname, error.reason) == ("half", host.lost_reason)
        else:
            assert process.returncode().result(PATIENCE) == -signal.SIGTERM
            assert all(future.exception(PATIENCE) for future in pending)
        with pytest.raises(HostLost, match="host half is lost"):
            process.send("later")
        assert wait_exit(manager, PATIENCE) == code
        wait_gone([pid], "the process behind the half-open connection")


@pytest.mark.slow
def test_a_cut_connection_loses_nothing(managers: Managers, ctx: Context) -> None:
    """LINK-1 over a connection that is reset again and again."""
    from tests.system.supervisor.rig import ECHO

    with Proxy(ctx.port) as proxy:
        (host,) = ctx.request_hosts(1)
        managers.start(ctx, url=f"tcp://127.0.0.1:{proxy.port}")
        (process,) = ctx.create_process_group([host], python(ECHO))
        assert process.recv().result(PATIENCE) == "ready"
        for number in range(300):
            process.send(number)
            if number % 100 == 50:
                proxy.cut()
        assert [process.recv().result(PATIENCE) for _ in range(300)] == list(range(300))
        assert not host.connection_lost()


SCRIPT = """
import sys, time
from holdfast.supervisor import Context, wait
state, log, more = sys.argv[1], sys.argv[2], eval(sys.argv[3])
ctx = Context(bind="127.0.0.1", log_interval=None, log_format=log + "/{name}.txt", **more)
hosts = ctx.hosts() or ctx.request_hosts(2)
groups = ctx.groups() or [ctx.create_process_group(hosts, ["sh", "-c",
    "while [ ! -e %s/go$RANK ]; do sleep 0.05; done; exit 4$RANK" % log], name="t{rank}")]
for h in hosts: h.hostname().result(60)
for p in groups[0]: p.pid().result(60)
print(ctx.port, ctx.key_file, *[p.pid().result(0) for p in groups[0]], flush=True)
"""


@pytest.mark.slow
def test_a_killed_script_leaves_nothing_running(managers: Managers, tmp_path: Path) -> None:
    """SILENCE-1: TERM, a real grace, KILL."""
    code = SCRIPT + "time.sleep(6000)"
    script = subprocess.Popen(
        [sys.executable, "-c", code, "", str(tmp_path), "{}"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        # The script prints only once its hosts are there, so find its address by its key file's
        # folder.
        pid = script.pid
        port = wait_until(lambda: find_bus_port(pid), PATIENCE, what="the script's port")
        (key,) = wait_until(
            lambda: list(tmp_path.glob("holdfast-run-*/manager-key")),
            PATIENCE,
            what="the script's key",
        )
        started = [dial(managers, port, key, f"m{n}") for n in range(2)]
        assert script.stdout is not None
        pids = [int(word) for word in script.stdout.readline().split()[2:]]
        assert all(is_alive(one) for one in pids)
    finally:
        script.kill()
        script.wait()
    assert [wait_exit(manager, PATIENCE) for manager in started] == [EXIT_ORPHANED] * 2
    wait_gone(pids, "processes of a script that is dead")
    wait_until(lambda: not key.parent.exists(), what="the key of a run that is over to be gone")


@pytest.mark.slow
def test_a_script_that_comes_back_finds_everything(managers: Managers, tmp_path: Path) -> None:
    """OUTBOX-1, MANAGE-2, STATE-1: what ended meanwhile, and what still runs."""
    state = tmp_path / "state"
    more = repr({"state_dir": str(state), "orphan_grace": 300})
    code = SCRIPT + "time.sleep(6000)"
    script = subprocess.Popen(
        [sys.executable, "-c", code, "", str(tmp_path), more], stdout=subprocess.PIPE, text=True
    )
    try:
        port = wait_until(lambda: find_bus_port(script.pid), PATIENCE, what="the script's port")
        started = [dial(managers, port, state / "manager-key", f"m{n}") for n in range(2)]
        assert script.stdout is not None
        pids = [int(word) for word in script.stdout.readline().split()[2:]]
        with pytest.raises(Conflict, match="another script uses"):
            local_context(state_dir=state)
    finally:
        script.kill()
        script.wait()
    (tmp_path / "go0").touch()
    wait_until(lambda: not is_alive(pids[0]), PATIENCE, what="the first to end without a script")
    with local_context(state_dir=state, orphan_grace=300) as ctx:
        assert ctx.port == port
        (group,) = ctx.groups()
        hosts = ctx.hosts()
        assert [process.pid().result(PATIENCE) for process in group] == pids
        assert group[0].returncode().result(PATIENCE) == 40
        assert group[0].name == "t0"
        assert sorted(host.hostname().result(0) for host in hosts) == ["m0", "m1"]
        assert not group[1].returncode().done(), group[1].returncode().exception(0) or group[
            1
        ].returncode().result(0)
        assert is_alive(pids[1])
        (tmp_path / "go1").touch()
        assert group[1].returncode().result(PATIENCE) == 41
        # And the run goes on as any other.
        again = ctx.create_process_group(hosts, ["true"])
        assert [
            f.result() for f in as_completed([p.returncode() for p in again], timeout=PATIENCE)
        ] == [0, 0]
    assert [wait_exit(manager, PATIENCE) for manager in started] == [0, 0]
    assert not (state / "run.json").exists()


@pytest.mark.slow
def test_a_host_that_died_with_the_script_is_lost_to_the_next(
    managers: Managers, tmp_path: Path
) -> None:
    first = local_context(state_dir=tmp_path, orphan_grace=300)
    hosts, started = attach(first, managers, 2)
    group = first.create_process_group(hosts, ["sleep", "6000"])
    wait([process.pid() for process in group], timeout=PATIENCE)
    first.detach()
    started[0].kill()
    with local_context(state_dir=tmp_path, orphan_grace=300) as ctx:
        (again,) = ctx.groups()
        with pytest.raises(HostLost, match="host m0 is lost: it did not come back"):
            again[0].returncode().result(PATIENCE)
        assert not again[1].returncode().done()
        assert [host.hostname().result(0) for host in ctx.hosts()] == ["m1"]


def test_a_manager_that_finds_no_script_gives_up(managers: Managers, ctx: Context) -> None:
    manager = managers.start(ctx, "--wait", "1", url="tcp://127.0.0.1:9")
    assert wait_exit(manager, PATIENCE) == EXIT_NO_SUPERVISOR


def read_variable(pid: int, name: str) -> str:
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(
        word.decode().partition("=")[2] for word in words if word.startswith(name.encode() + b"=")
    )


def dial(managers: Managers, port: int, key: Path, name: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "host-manager",
        f"tcp://127.0.0.1:{port}",
        "--key-file",
        str(key),
    ]
    process = subprocess.Popen([*command, "--name", name], stderr=subprocess.DEVNULL)
    managers.running.append(process)
    return process


def find_bus_port(pid: int) -> int | None:
    """The TCP port that the bus process of a script listens on."""
    ports = [find_listening_port(below) for below in find_descendants(pid)]
    return next((port for port in ports if port is not None), None)


def find_listening_port(pid: int) -> int | None:
    """The TCP port the process listens on, by /proc."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(fd)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            return int(fields[1].rpartition(":")[2], 16)
    return None
