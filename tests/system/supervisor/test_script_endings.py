"""How scripts end, and what the next one finds: full and broken disks, forks, a context that could
not begin, a closed one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import Conflict, Unavailable, ValidationError
from holdfast.process import table
from holdfast.supervisor import Context, ContextClosed, Future
from holdfast.supervisor.rosters.state import STATE_FILE
from tests.system.supervisor.rig import PATIENCE, Managers, attach, local_context
from tests.system.supervisor.test_faults import find_listening_port
from tests.waits import is_alive, run_patiently, wait_until


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Nothing can be written into the folder, not even by root: where the new file would be there
    is a folder."""
    blocked = folder / f".{STATE_FILE}.{os.getpid()}"

    def block() -> bool:
        try:
            blocked.mkdir()
        except FileExistsError:  # the file of a write that has not come to its end
            return False
        return True

    wait_until(block, PATIENCE, what="an end of the writing")
    try:
        yield
    finally:
        blocked.rmdir()


def persistent(folder: Path, **more: Any) -> Context:
    return local_context(state_dir=folder, orphan_grace=300, **more)


@pytest.mark.slow
def test_a_group_that_could_not_be_put_on_disk_is_none(managers: Managers, tmp_path: Path) -> None:
    """Else the next script would launch what this one was told has failed."""
    with persistent(tmp_path) as ctx:
        hosts, _ = attach(ctx, managers, 1)
        with full_disk(tmp_path):
            with pytest.raises(Unavailable, match="cannot be written"):
                ctx.create_process_group(hosts, ["true"])
            assert ctx.groups() == []
        (process,) = ctx.create_process_group(hosts, ["true"])
        assert process.returncode().result(PATIENCE) == 0


@pytest.mark.slow
def test_a_group_that_could_not_be_let_go_of_is_there(managers: Managers, tmp_path: Path) -> None:
    """Otherwise its processes would run on unknown, and end when the next script comes."""
    with persistent(tmp_path) as ctx:
        hosts, _ = attach(ctx, managers, 1)
        group = ctx.create_process_group(hosts, ["sleep", "6000"])
        pid = group[0].pid().result(PATIENCE)
        with full_disk(tmp_path), pytest.raises(Unavailable, match="cannot be written"):
            group.forget()
        assert ctx.groups() == [group]
        ctx.detach()
    with persistent(tmp_path) as ctx:
        (again,) = ctx.groups()
        assert again[0].pid().result(PATIENCE) == pid
        assert is_alive(pid)
        again.forget()
        assert ctx.groups() == []
        wait_until(lambda: not is_alive(pid), PATIENCE, what="the end of what was let go of")


@pytest.mark.slow
def test_what_could_not_be_written_is_written_when_it_can_be(
    managers: Managers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """STATE-3: nothing changes any more, and the script dies after a while."""
    ctx = persistent(tmp_path)
    with full_disk(tmp_path):
        attach(ctx, managers, 1)
        wait_until(lambda: "cannot be written" in caplog.text, PATIENCE, what="the word of it")
    wait_until(
        lambda: "m0" in (tmp_path / STATE_FILE).read_text(),
        PATIENCE,
        what="the host that attached on a full disk",
    )
    ctx.shutdown()
    assert caplog.text.count("cannot be written") == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"run": 3}', b"\xff\xfe", b"[]", b"edited"],
    ids=["empty", "cut", "types", "bytes", "list", "edited"],
)
def test_a_state_that_cannot_be_read_says_so_and_lets_go_of_all(
    content: bytes, tmp_path: Path
) -> None:
    state = tmp_path / STATE_FILE
    if content == b"edited":
        with persistent(tmp_path) as ctx:
            ctx.create_process_group(ctx.request_hosts(1), ["true"])
            text = json.loads(state.read_text())
        text["groups"][0]["hosts"] = [77]
        content = json.dumps(text).encode()
    state.write_bytes(content)
    for _ in range(2):  # the second time it is not "another script"
        with pytest.raises(ValidationError, match="remove it to begin a new run"):
            persistent(tmp_path)
    state.unlink()
    persistent(tmp_path).shutdown()


def test_a_context_that_cannot_begin_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = set(os.listdir("/proc/self/fd"))
    for more in (
        {"key_file": tmp_path / "none" / "key"},
        {"event_file": tmp_path / "none" / "events"},
        {"state_dir": tmp_path / "file" / "state"},
        {"state_dir": tmp_path / "file"},
    ):
        with pytest.raises(ValidationError, match="cannot be"):
            local_context(**more)
    with local_context() as other, pytest.raises(Unavailable, match="Another script may have it"):
        local_context(port=other.port, state_dir=tmp_path / "state")
    local_context(state_dir=tmp_path / "state").shutdown()
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.slow
def test_a_metrics_port_that_is_taken_does_not_end_the_run(
    managers: Managers, tmp_path: Path
) -> None:
    with persistent(tmp_path, metrics_port=0) as first:
        hosts, _ = attach(first, managers, 1)
        pid = first.create_process_group(hosts, ["sleep", "6000"])[0].pid().result(PATIENCE)
        taken = local_context(metrics_port=0)
        first.detach()
        with pytest.raises(Unavailable):
            persistent(tmp_path, metrics_port=taken.metrics_port)
        taken.shutdown()
    with persistent(tmp_path) as second:
        (group,) = second.groups()
        assert group[0].pid().result(PATIENCE) == pid
        assert is_alive(pid)


def test_a_run_that_began_in_plain_text_does_not_go_on_so_unasked(tmp_path: Path) -> None:
    first = persistent(tmp_path, encrypt=False)
    first.detach()
    with pytest.raises(ValidationError, match="speaks plain TCP"):
        Context(bind="0.0.0.0", state_dir=tmp_path, orphan_grace=300, log_interval=None)
    persistent(tmp_path, encrypt=False).shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["detach", "shutdown"])
def test_whoever_waits_when_the_context_closes_is_told(
    how: str, managers: Managers, tmp_path: Path
) -> None:
    ctx = persistent(tmp_path)
    hosts, _ = attach(ctx, managers, 1)
    (process,) = ctx.create_process_group(hosts, ["sleep", "6000"])
    process.pid().result(PATIENCE)
    (unmet,) = ctx.request_hosts(1)
    futures: list[Future[Any]] = [
        process.returncode(),
        process.recv(),
        unmet.hostname(),
        process.group.gather(),
        hosts[0].time_cleared(),
    ]
    errors: list[BaseException | None] = []
    threads = [
        threading.Thread(target=lambda one=future: errors.append(one.exception()), daemon=True)
        for future in futures
    ]
    for thread in threads:
        thread.start()
    getattr(ctx, how)()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(errors) == len(futures), "a future is never settled"
    if how == "detach":
        assert {type(error) for error in errors} == {ContextClosed}
    for ask in (
        lambda: ctx.request_hosts(1),
        lambda: ctx.create_process_group(hosts, ["true"]),
        lambda: process.signal(0),
        lambda: process.group.forget(),
        lambda: ctx.replace_hosts(hosts),
        lambda: ctx.forgive_machine("m0"),
    ):
        with pytest.raises(ContextClosed):
            ask()
    if how == "detach":
        with persistent(tmp_path) as again:
            assert again.groups()[0][0].pid().result(PATIENCE) > 0


@pytest.mark.slow
def test_a_group_that_was_let_go_is_not_launched_again(managers: Managers, tmp_path: Path) -> None:
    """A script that is killed right after `forget`: its managers have forgotten the group, the
    state must have first."""
    code = f"""
import os, signal
from tests.system.supervisor.rig import local_context
ctx = local_context(state_dir={str(tmp_path / "state")!r}, orphan_grace=300)
(host,) = ctx.request_hosts(1)
ctx.start_local_managers(1)
(process,) = group = ctx.create_process_group([host], ["sh", "-c", "echo ran >> {tmp_path}/runs"])
assert process.returncode().result(40) == 0
group.forget()
(after,) = ctx.create_process_group([host], ["true"])  # ordered: it is over, so the manager has forgotten
assert after.returncode().result(40) == 0
open({str(tmp_path / "at")!r}, "w").write(open({str(tmp_path / "state" / STATE_FILE)!r}).read())
os.kill(os.getpid(), signal.SIGKILL)
"""
    run_patiently([sys.executable, "-c", code], seconds=PATIENCE * 2)
    with persistent(tmp_path / "state") as ctx:
        (host,) = ctx.hosts()
        wait_until(lambda: host.attached, PATIENCE, what="the host to come back")
        (marker,) = ctx.create_process_group([host], ["true"])
        assert marker.returncode().result(PATIENCE) == 0
        assert (tmp_path / "runs").read_text() == "ran\n"
        assert len(ctx.groups()) == 2


FORKING = """
import os, sys, time
from tests.system.supervisor.rig import local_context
state = sys.argv[1]
ctx = local_context(state_dir=state, orphan_grace=300, metrics_port=0)
(host,) = ctx.request_hosts(1)
ctx.start_local_managers(1)
(process,) = ctx.create_process_group([host], ["sleep", "6000"])
pid = process.pid().result(40)
leaving = os.fork()
if leaving == 0:
    try:
        ctx.create_process_group([host], ["true"])
    except Exception as error:
        print(type(error).__name__, flush=True)
    sys.exit(0)  # with all that happens at the end of an interpreter
os.waitpid(leaving, 0)
staying = os.fork()
if staying == 0:
    time.sleep(6000)
print(pid, staying, ctx.port, ctx.metrics_port, flush=True)
time.sleep(6000)
"""


@pytest.mark.slow
def test_a_forked_child_neither_ends_the_run_nor_keeps_its_successor_out(tmp_path: Path) -> None:
    """FORK-1."""
    state = tmp_path / "state"
    script = subprocess.Popen(
        [sys.executable, "-c", FORKING, str(state)], stdout=subprocess.PIPE, text=True
    )
    staying = 0
    try:
        assert script.stdout is not None
        assert script.stdout.readline() == "ContextClosed\n"
        pid, staying, port, metrics = map(int, script.stdout.readline().split())
        assert (state / STATE_FILE).exists(), "the child ended the run"
        assert (state / "manager-key").exists()
        assert is_alive(pid)
        wait_until(
            lambda: find_listening_port(staying) is None,
            PATIENCE,
            what="the child to close the parent's sockets",
        )
        script.kill()
        script.wait()
        assert is_alive(staying)
        with persistent(state, metrics_port=metrics) as ctx:
            assert ctx.port == port
            (group,) = ctx.groups()
            assert group[0].pid().result(PATIENCE) == pid
            assert group[0].end(0).result(PATIENCE) in (-signal.SIGTERM, -signal.SIGKILL)
    finally:
        script.kill()
        script.wait()
        if staying and is_alive(staying):
            os.kill(staying, signal.SIGKILL)


def test_a_second_script_in_the_same_process_is_another_script(tmp_path: Path) -> None:
    with persistent(tmp_path), pytest.raises(Conflict, match="another script uses"):
        persistent(tmp_path)


@pytest.mark.slow
def test_an_interpreter_that_ends_without_a_word_ends_the_run(tmp_path: Path) -> None:
    code = """
from tests.system.supervisor.rig import local_context
ctx = local_context()
(host,) = ctx.request_hosts(1)
managers = ctx.start_local_managers(1)
(process,) = ctx.create_process_group([host], ["sleep", "6000"])
print(process.pid().result(40), *managers, ctx.key_file, flush=True)
"""
    done = run_patiently(
        [sys.executable, "-c", code], capture_output=True, text=True, seconds=PATIENCE, check=True
    )
    pid, manager, key = done.stdout.split()
    assert not is_alive(int(pid))
    assert table.read_entry(int(manager)) is None
    assert not Path(key).exists()
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_log_that_is_not_read_holds_up_no_heartbeat(tmp_path: Path) -> None:
    """EVENT-1: a script in a paused terminal, or before a pager."""
    code = """
import logging, os, sys, threading, time
from tests.system.supervisor.rig import local_context
read_fd, write_fd = os.pipe()
stream = os.fdopen(write_fd, "w")
logging.basicConfig(level=logging.INFO, stream=stream)
ctx = local_context()
hosts = ctx.request_hosts(1)
ctx.start_local_managers(1)
hosts[0].hostname().result(40)
os.set_blocking(write_fd, False)
try:
    while True: os.write(write_fd, b"x" * 4096)
except BlockingIOError:
    pass
os.set_blocking(write_fd, True)
for _ in range(3):
    ctx.create_process_group(hosts, ["true"])[0].returncode().result(40)  # "group created", to a log that is not read
time.sleep(5)
print(hosts[0].connection_lost(), flush=True)
group = ctx.create_process_group(hosts, ["true"])
print(group[0].returncode().result(40), flush=True)
os.read(read_fd, 1 << 20)
threading.Thread(target=lambda: [os.read(read_fd, 1 << 20) for _ in range(100)], daemon=True).start()
"""
    done = run_patiently(
        [sys.executable, "-c", code], capture_output=True, text=True, seconds=2 * PATIENCE
    )
    assert done.stdout.split() == ["False", "0"], done.stderr
