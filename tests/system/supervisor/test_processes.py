"""Groups of real processes over the real wire: how they start, end, are signalled and talk."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from holdfast.errors import ValidationError
from holdfast.supervisor import (
    Context,
    ContextClosed,
    HostLost,
    ProcessEnded,
    ProcessFailedToStart,
    as_completed,
    wait,
)
from tests.system.supervisor.rig import ECHO, PATIENCE, Managers, attach, local_context, python
from tests.waits import is_alive, run_patiently, wait_exit, wait_until

ENV = "import json, os; print(json.dumps(dict(os.environ)))"


@pytest.mark.slow
def test_ranks_environment_names_and_logs(tmp_path: Path, managers: Managers) -> None:
    with local_context(log_format=str(tmp_path / "logs" / "{hostname}" / "{name}.txt")) as ctx:
        # Handles first, managers later: either side may come first.
        hosts = ctx.request_hosts(2)
        group = ctx.create_process_group(
            hosts,
            python(ENV),
            processes_per_host=6,
            env={"MINE": "yes"},
            cwd=tmp_path,
            name="train{rank}",
        )
        assert not hosts[0].hostname().done()
        managers.start(ctx, name="a")
        managers.start(ctx, name="b")
        futures = [process.returncode() for process in group]
        assert [future.result() for future in as_completed(futures, timeout=PATIENCE)] == [0] * 12
        assert sorted(host.hostname().result(0) for host in hosts) == ["a", "b"]
        assert [process.name for process in group][::11] == ["train00", "train11"]
        for process in group:
            assert process.logfile is not None
            assert Path(process.logfile).parent.name == process.host.hostname().result(0)
            env = json.loads(Path(process.logfile).read_text())
            assert (env["RANK"], env["WORLD_SIZE"]) == (str(process.rank), "12")
            assert (env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]) == (str(process.rank % 6), "6")
            assert (env["MINE"], env["HOLDFAST_PROCESS"]) == ("yes", process.name)
            assert "HOLDFAST_SUPERVISOR_KEY" not in env
            assert process.host is hosts[process.rank // 6]
    assert ctx.create_process_group.__doc__


@pytest.mark.slow
def test_exit_codes_signals_and_failed_starts(
    ctx: Context, managers: Managers, tmp_path: Path
) -> None:
    hosts, _ = attach(ctx, managers, 1)
    code = "import os, signal, sys; n = int(sys.argv[1]); sys.exit(n) if n >= 0 else os.kill(os.getpid(), -n)"
    for number in (0, 3, 255, -signal.SIGKILL, -signal.SIGSEGV):
        (process,) = ctx.create_process_group(hosts, python(code, str(number)))
        assert process.returncode().result(PATIENCE) == number
    raising = python("raise RuntimeError('at start')")
    assert ctx.create_process_group(hosts, raising)[0].returncode().result(PATIENCE) == 1
    (missing,) = ctx.create_process_group(hosts, ["/no/such/program"], name="gone")
    with pytest.raises(
        ProcessFailedToStart, match="gone on host m0 did not start: no such program"
    ):
        missing.pid().result(PATIENCE)
    assert isinstance(missing.returncode().exception(PATIENCE), ProcessFailedToStart)
    assert isinstance(missing.recv().exception(PATIENCE), ProcessFailedToStart)
    (nowhere,) = ctx.create_process_group(hosts, ["true"], cwd=tmp_path / "none")
    with pytest.raises(ProcessFailedToStart, match="cannot be entered"):
        nowhere.pid().result(PATIENCE)
    with pytest.raises(ValidationError, match="args is a list"):
        ctx.create_process_group(hosts, "true")
    with pytest.raises(ValidationError, match="named twice"):
        ctx.create_process_group([hosts[0], hosts[0]], ["true"])


def test_a_signal_that_comes_with_the_start_is_not_lost(ctx: Context) -> None:
    """The warden is asked for both at once, and the child has no process group of its own yet."""
    hosts = ctx.request_hosts(1)
    early = ctx.create_process_group(hosts, ["sleep", "600"], name="early")
    reached = [early.signal()]  # no manager has come yet
    ctx.start_local_managers(1)
    assert hosts[0].hostname().result(PATIENCE)
    groups = [early]
    for n in range(40):
        groups.append(ctx.create_process_group(hosts, ["sleep", "600"], name=f"s{n}"))
        reached.append(groups[-1].signal())
    assert [future.result(PATIENCE) for future in reached] == [1] * 41
    assert {group[0].returncode().result(PATIENCE) for group in groups} == {-signal.SIGTERM}


@pytest.mark.slow
def test_signals_to_one_a_group_and_all_and_the_way_to_the_kill(
    ctx: Context, managers: Managers
) -> None:
    hosts, _ = attach(ctx, managers, 2)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); time.sleep(6000)"
    group = ctx.create_process_group(hosts, ["sleep", "6000"], processes_per_host=2)
    other = ctx.create_process_group(hosts, python(deaf + "\n"), processes_per_host=1)
    wait([process.pid() for process in [*group, *other]], timeout=PATIENCE)
    assert group[0].signal(signal.SIGINT).result(PATIENCE) == 1
    assert group[0].returncode().result(PATIENCE) == -signal.SIGINT
    assert group[0].signal(signal.SIGINT).result(PATIENCE) == 0
    assert ctx.signal([*group, *other], signal.SIGCONT).result(PATIENCE) == 5
    assert group.signal(signal.SIGKILL, group=False).result(PATIENCE) == 3
    assert [process.returncode().result(PATIENCE) for process in group][1:] == [-signal.SIGKILL] * 3
    codes = [future.result(PATIENCE) for future in other.end(grace_seconds=0.2)]
    assert set(codes) <= {-signal.SIGKILL, -signal.SIGTERM}


@pytest.mark.slow
def test_an_exit_waits_for_the_whole_tree(ctx: Context, managers: Managers) -> None:
    hosts, _ = attach(ctx, managers, 1)
    code = "import subprocess; p = subprocess.Popen(['sleep', '6000'], start_new_session=True); print(p.pid)\n"
    code += "from holdfast.supervisor import get_message_queue; get_message_queue().send(p.pid)"
    (process,) = ctx.create_process_group(hosts, python(code))
    left = process.recv().result(PATIENCE)
    assert process.returncode().result(PATIENCE) == 0
    assert not is_alive(left)


@pytest.mark.slow
def test_messages_both_ways_filters_and_the_end_of_it(ctx: Context, managers: Managers) -> None:
    hosts, _ = attach(ctx, managers, 2)
    group = ctx.create_process_group(hosts, python(ECHO))
    first, second = group
    # Sent before the process exists: it waits there.
    first.send({"numbers": [1, 2.5, True, None], "bytes": b"\x00\xff", "text": "é"})
    assert first.recv(lambda m: isinstance(m, dict)).result(PATIENCE) == {
        "numbers": [1, 2.5, True, None],
        "bytes": b"\x00\xff",
        "text": "é",
    }
    assert first.recv().result(PATIENCE) == "ready"  # passed over by the filter, not lost
    late = first.recv(lambda m: m == "c")
    dropped = first.recv(lambda m: m == "a")
    assert dropped.cancel()
    for word in "abc":
        first.send(word)
    assert late.result(PATIENCE) == "c"
    assert [first.recv().result(PATIENCE) for _ in range(2)] == ["a", "b"]
    broken = first.recv(lambda m: m.nothing)
    first.send("d")
    assert isinstance(broken.exception(PATIENCE), AttributeError)
    assert first.recv().result(PATIENCE) == "d"
    with pytest.raises(ValidationError, match="a object cannot be sent"):
        first.send([object()])
    assert second.recv().result(PATIENCE) == "ready"
    group.broadcast(7)
    assert group.gather().result(PATIENCE) == [7, 7]
    waiting = group.gather()
    group.broadcast("stop")
    assert [process.returncode().result(PATIENCE) for process in group] == [0, 0]
    with pytest.raises(ProcessEnded, match="ended with 0"):
        waiting.result(PATIENCE)
    assert isinstance(first.recv().exception(PATIENCE), ProcessEnded)


@pytest.mark.slow
def test_the_last_words_of_a_process_come_before_its_end(ctx: Context, managers: Managers) -> None:
    hosts, _ = attach(ctx, managers, 1)
    code = (
        "from holdfast.supervisor import get_message_queue as q\nimport os\nq().send(b'x' * (20 "
        "<< 20))\n"
        "for n in range(50): q().send(n)\nos._exit(0)"
    )
    (process,) = ctx.create_process_group(hosts, python(code))
    assert process.returncode().result(PATIENCE) == 0
    assert len(process.recv().result(0)) == 20 << 20
    assert [process.recv().result(0) for _ in range(50)] == list(range(50))


@pytest.mark.slow
def test_large_messages_starve_no_heartbeat(ctx: Context, managers: Managers) -> None:
    hosts, _ = attach(ctx, managers, 2)
    group = ctx.create_process_group(hosts, python(ECHO))
    group.gather().result(PATIENCE)
    big = bytes(range(256)) * (48 << 12)  # 48 MiB, over the limit for one frame
    for process in group:
        process.send(big)
        process.send("after")
    for process in group:
        assert process.recv().result(PATIENCE) == big
        assert process.recv().result(PATIENCE) == "after"
    assert not any(host.connection_lost() for host in hosts)
    assert ctx.status().refused == {}


@pytest.mark.slow
def test_arrays_and_the_asyncio_side_of_a_process(ctx: Context, managers: Managers) -> None:
    numpy = pytest.importorskip("numpy")
    hosts, _ = attach(ctx, managers, 1)
    code = """
import asyncio
from holdfast.supervisor import get_message_queue
async def main():
    queue = get_message_queue()
    try:
        await asyncio.wait_for(queue.recv_async(), 0.05)
    except asyncio.TimeoutError:
        queue.send("timed out")
    array = await queue.recv_async()
    queue.send({"sum": float(array.sum()), "back": array * 2})
asyncio.run(main())
"""
    (process,) = ctx.create_process_group(hosts, python(code))
    assert process.recv().result(PATIENCE) == "timed out"
    process.send(numpy.arange(6, dtype="<f4").reshape(2, 3))
    answer = process.recv().result(PATIENCE)
    assert answer["sum"] == 15.0
    assert (answer["back"] == numpy.arange(6, dtype="<f4").reshape(2, 3) * 2).all()
    assert process.returncode().result(PATIENCE) == 0


@pytest.mark.slow
def test_any_thread_and_any_loop_may_wait(ctx: Context, managers: Managers) -> None:
    hosts, _ = attach(ctx, managers, 1)
    group = ctx.create_process_group(hosts, python(ECHO), processes_per_host=2)
    process = group[0]
    assert process.recv().result(PATIENCE) == "ready"
    got: list[int] = []

    def take() -> None:
        got.append(process.recv(lambda m: isinstance(m, int)).result(PATIENCE))

    threads = [threading.Thread(target=take) for _ in range(16)]
    for thread in threads:
        thread.start()
    for number in range(16):
        process.send(number)
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(got) == list(range(16))

    async def ask() -> list[int]:
        waits = [process.recv() for _ in range(4)]
        for number in range(4):
            process.send(number)
        found = [await wait for wait in waits]
        group.broadcast("stop")
        async for future in as_completed([one.returncode() for one in group], timeout=PATIENCE):
            assert future.result() == 0
        return found

    assert asyncio.run(ask()) == [0, 1, 2, 3]


@pytest.mark.slow
def test_after_the_shutdown_everything_says_so(managers: Managers) -> None:
    ctx = local_context()
    hosts, (manager,) = attach(ctx, managers, 1)
    (process,) = ctx.create_process_group(hosts, ["sleep", "6000"])
    pid = process.pid().result(PATIENCE)
    waiting = ctx.request_hosts(1)
    assert ctx.shutdown(PATIENCE)
    assert wait_exit(manager, PATIENCE) == 0
    assert not is_alive(pid)
    assert isinstance(process.returncode().exception(0), HostLost)
    assert waiting[0].connection_lost()
    assert not ctx.key_file.exists()
    with pytest.raises(ContextClosed):
        ctx.request_hosts(1)
    with pytest.raises(HostLost, match="host m0 is lost: the script is done"):
        process.send("x")


ENDS_WITHOUT_A_WORD = """
import logging
from holdfast.supervisor import Context
logging.basicConfig(level=logging.ERROR)
ctx = Context(bind="127.0.0.1", log_interval=None)
ctx.start_local_managers(2)
hosts = ctx.request_hosts(2)
processes = ctx.create_process_group(hosts, ["sleep", "6000"])
print(*[process.pid().result(40) for process in processes], flush=True)
for process in processes:
    process.returncode().add_done_callback(lambda future: print("told", flush=True))
"""


@pytest.mark.slow
def test_a_script_that_just_ends_ends_everything(tmp_path: Path) -> None:
    """Callbacks included: what runs at exit runs where Python may start no thread any more
    (3.12)."""
    script = run_patiently(
        python(ENDS_WITHOUT_A_WORD),
        capture_output=True,
        text=True,
        seconds=PATIENCE * 2,
        cwd=tmp_path,
    )
    assert script.returncode == 0
    assert "Traceback" not in script.stderr, script.stderr
    pids = script.stdout.splitlines()[0].split()
    assert len(pids) == 2
    assert not any(is_alive(int(pid)) for pid in pids)


@pytest.mark.slow
def test_the_log_of_pids_and_the_sample_of_use(
    ctx: Context, managers: Managers, tmp_path: Path
) -> None:
    log = tmp_path / "manager.jsonl"
    (host,) = ctx.request_hosts(1)
    (process,) = ctx.create_process_group(
        [host], python("b = b'x' * (64 << 20); import time; time.sleep(6000)")
    )
    managers.start(ctx, "--log-file", str(log), "--usage-interval", "0.2")
    pid = process.pid().result(PATIENCE)

    def big_enough() -> bool:
        usage = host.usage()
        return usage is not None and any(use.rss_bytes > 64 << 20 for use in usage.processes)

    wait_until(big_enough, PATIENCE, what="a sample that shows the memory")
    process.end(0).result(PATIENCE)
    wait_until(lambda: "process ended" in log.read_text(), PATIENCE, what="the end in the log")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    started = next(line for line in lines if line["message"] == "process started")
    ended = next(line for line in lines if line["message"] == "process ended")
    assert (started["pid"], ended["pid"], ended["signal"]) == (
        pid,
        pid,
        signal.SIGTERM.value if ended["signal"] == 15 else 9,
    )
    assert any(line["message"] == "usage" for line in lines)


def test_a_process_that_only_talks_loads_no_zeromq() -> None:
    code = "import sys; from holdfast.supervisor import get_message_queue, Future; print([m for m in sys.modules if 'zmq' in m])"
    found = subprocess.run(python(code), capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
    outside = subprocess.run(
        python("from holdfast.supervisor import get_message_queue as q; q()"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "was not started by a host manager" in outside.stderr
