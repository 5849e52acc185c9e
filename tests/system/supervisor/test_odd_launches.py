"""Launches and messages at the edges: odd bytes, too much, nowhere to write, and two threads at
once."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.errors import TooLarge, ValidationError
from holdfast.supervisor import Context, Host, ProcessEnded, ProcessFailedToStart, ProcessGroup
from holdfast.wire.bus.messages import MAX_INLINE_BYTES
from tests.system.supervisor.rig import ECHO, PATIENCE, Managers, attach, local_context, python
from tests.waits import wait_exit

ODD = b"caf\xe9 \xff"  # Latin-1, as an old locale or a mounted disk has it
SHOW = "import os, sys; from holdfast.supervisor import get_message_queue as q; q().send(os.environb.get(b'ODD'))"


@pytest.mark.slow
def test_a_managers_environment_need_not_be_text(ctx: Context, managers: Managers) -> None:
    (host,) = ctx.request_hosts(1)
    env: dict[bytes, bytes] = {**os.environb, b"ODD": ODD}
    manager = managers.start_command(
        ctx.manager_command(), {os.fsdecode(k): os.fsdecode(v) for k, v in env.items()}
    )
    (process,) = ctx.create_process_group([host], python(SHOW))
    assert process.recv().result(PATIENCE) == ODD
    assert process.returncode().result(PATIENCE) == 0
    assert manager.poll() is None


@pytest.mark.slow
def test_what_cannot_be_launched_is_refused_where_it_is_asked_for(
    managers: Managers, tmp_path: Path
) -> None:
    """Else its futures would wait for ever, and a state folder could not be written any more."""
    odd = os.fsdecode(ODD)
    with local_context(state_dir=tmp_path, orphan_grace=60) as ctx:
        hosts, _ = attach(ctx, managers, 1)
        for args, more in [
            (["echo", odd], {}),
            (["true"], {"env": {"ODD": odd}}),
            (["true"], {"cwd": f"/tmp/{odd}"}),
            (["true"], {"name": odd}),
        ]:
            with pytest.raises(ValidationError, match="cannot be sent"):
                ctx.create_process_group(hosts, args, **more)  # type: ignore[arg-type]  # they differ by row
        with pytest.raises(TooLarge, match="put the input in a file"):
            ctx.create_process_group(hosts, ["true", "x" * (9 << 20)])
        assert ctx.groups() == []
        (process,) = ctx.create_process_group(hosts, ["true"])
        assert process.returncode().result(PATIENCE) == 0


@pytest.mark.slow
def test_what_the_kernel_does_not_take_is_said_and_harms_nobody_else(
    ctx: Context, managers: Managers
) -> None:
    hosts, _ = attach(ctx, managers, 1)
    for args, env, words in [
        (["true", "x" * (3 << 20)], {}, "too large for the kernel"),
        (["true"], {"BIG": "x" * (7 << 20)}, "too large for the kernel"),
        (["true", "a\0b"], {}, "NUL"),
        (["true"], {"A=B": "x"}, "cannot be the name of an environment variable"),
        ([""], {}, "is empty"),
    ]:
        (process,) = ctx.create_process_group(hosts, args, env=env)
        with pytest.raises(ProcessFailedToStart, match=words):
            process.pid().result(PATIENCE)
    (fine,) = ctx.create_process_group(hosts, ["true"])
    assert fine.returncode().result(PATIENCE) == 0


@pytest.mark.slow
def test_a_log_that_cannot_be_written_is_the_process_that_did_not_start(
    managers: Managers, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.txt").mkdir()
    for log in ("file/{name}.txt", "folder.txt", "/proc/no/{name}"):
        with local_context(log_format=str(tmp_path / log)) as ctx:
            hosts, _ = attach(ctx, managers, 1)
            (process,) = ctx.create_process_group(hosts, ["true"])
            with pytest.raises(ProcessFailedToStart):
                process.pid().result(PATIENCE)


@pytest.mark.slow
def test_a_reason_of_odd_bytes_or_of_any_length_gives_the_host_back(
    ctx: Context, managers: Managers
) -> None:
    hosts, started = attach(ctx, managers, 2)
    ctx.return_hosts(hosts[:1], error=os.fsdecode(ODD))
    ctx.return_hosts(hosts[1:], error="x" * (20 << 20))
    assert [wait_exit(manager, PATIENCE) for manager in started] == [72, 72]


@pytest.mark.slow
def test_messages_at_the_edge_of_a_frame(ctx: Context, managers: Managers) -> None:
    hosts, _ = attach(ctx, managers, 1)
    (process,) = ctx.create_process_group(hosts, python(ECHO))
    assert process.recv().result(PATIENCE) == "ready"
    for size in (
        MAX_INLINE_BYTES - 6,
        MAX_INLINE_BYTES - 5,
        MAX_INLINE_BYTES - 4,
        MAX_INLINE_BYTES,
        16 << 20,
    ):
        value = os.urandom(16) * (size // 16) + bytes(size % 16)
        process.send(value)
        assert process.recv().result(PATIENCE) == value, size
    assert ctx.status().refused == {}


def run_interleaved(threads: Sequence[threading.Thread]) -> None:
    """Run them to their ends, changing from one to the next as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)


@pytest.mark.slow
def test_large_messages_of_several_threads_do_not_mix(ctx: Context, managers: Managers) -> None:
    """LINK-3 is for messages; their parts stay together."""
    hosts, _ = attach(ctx, managers, 1)
    (process,) = ctx.create_process_group(hosts, python(ECHO))
    assert process.recv().result(PATIENCE) == "ready"
    sizes = [(9 << 20) + number for number in range(6)]
    threads = [threading.Thread(target=process.send, args=(b"x" * size,)) for size in sizes]
    run_interleaved(threads)
    assert sorted(len(process.recv().result(PATIENCE)) for _ in sizes) == sizes


@pytest.mark.slow
def test_letting_go_of_a_group_that_runs_settles_it(ctx: Context, managers: Managers) -> None:
    hosts, _ = attach(ctx, managers, 1)
    (process,) = group = ctx.create_process_group(hosts, ["sleep", "6000"])
    process.pid().result(PATIENCE)
    waiting = process.recv()
    group.forget()
    assert isinstance(process.returncode().exception(PATIENCE), ProcessEnded)
    assert isinstance(waiting.exception(PATIENCE), ProcessEnded)
    assert ctx.status().processes_running == 0


def test_several_threads_ask_and_each_gets_its_own(ctx: Context) -> None:
    """Hosts and groups are known by number: two that share one are one to everybody else."""
    hosts: list[Host] = []
    groups: list[ProcessGroup] = []

    def ask() -> None:
        for _ in range(200):
            (one,) = asked = ctx.request_hosts(1)
            hosts.extend(asked)
            groups.append(ctx.create_process_group([one], ["true"]))
            hosts.extend(ctx.replace_hosts([one]))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    run_interleaved(threads)
    assert len({host.number for host in hosts}) == 6 * 400
    assert len({group.number for group in groups}) == 6 * 200


def test_a_host_of_another_context_is_refused(ctx: Context) -> None:
    with local_context() as other, pytest.raises(ValidationError, match="of another context"):
        ctx.create_process_group(other.request_hosts(1), ["true"])
