"""What kills, freezes and replaces the processes of a host, and what that does to the jobs on it
(nothing, or everything)."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from typing import Any

import pytest

from holdfast.process import table
from holdfast.process.groups import open_group_home
from tests.system.chronicle import CODE, check_no_overlap, lives_of
from tests.system.cluster import Cluster, Host, signal_all
from tests.waits import is_alive, wait_until

pytestmark = pytest.mark.slow

# Both end once a file is there, because a busy machine takes its time for what comes before.
TALKER = """
import os, sys, time
for n in range(60):
    print("line", n, flush=True)
    time.sleep(0.05)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
sys.exit(7)
"""
WAITER = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
print("done")
sys.exit(9)
"""


def test_an_agent_killed_twice_and_an_upgrade_leave_a_job_untouched(shared: Cluster) -> None:
    host = shared.add_host("untouched", queues=[shared.set_queue("untouched")])
    may_end = shared.folder / "untouched.ends"
    job = shared.submit(sys.executable, "-c", TALKER, str(may_end), queue="untouched")
    shared.until(job, "running")
    (pid,) = host.task_pids(job)
    first = host.kill_agent()
    second = wait_until(
        lambda: host.agent_pid() not in (0, first) and host.agent_pid(), what="a second agent"
    )
    host.kill_agent()
    third = wait_until(
        lambda: host.agent_pid() not in (0, second) and host.agent_pid(), what="a third agent"
    )
    time.sleep(0.5)
    os.kill(host.guardian.pid, signal.SIGHUP)
    wait_until(lambda: host.agent_pid() not in (0, third), what="the upgraded agent")
    assert host.task_pids(job) == [pid]
    may_end.touch()
    ended = shared.until(job, "failed")
    assert (ended.exit_code, ended.cause, ended.attempts) == (7, "nonzero_exit", 1)
    wait_until(lambda: shared.output(job).count(b"\n") == 60, what="the whole output")
    assert shared.output(job) == b"".join(b"line %d\n" % n for n in range(60))


def test_an_exit_while_no_agent_lives_is_reported_by_the_next(shared: Cluster) -> None:
    host = shared.add_host("unseen", queues=[shared.set_queue("unseen")])
    may_end = shared.folder / "unseen.ends"
    job = shared.submit(sys.executable, "-c", WAITER, str(may_end), queue="unseen")
    shared.until(job, "running")
    os.kill(wait_until(host.agent_pid), signal.SIGSTOP)
    (pid,) = host.task_pids(job)
    may_end.touch()
    wait_until(lambda: not is_alive(pid), what="the job to end unseen")
    assert shared.client.job(job).state == "running"
    host.kill_agent()
    ended = shared.until(job, "failed")
    assert (ended.exit_code, ended.attempts) == (9, 1)
    wait_until(lambda: shared.output(job) == b"done\n", what="its output")


def test_a_frozen_agent_is_replaced_within_thirty_seconds(shared: Cluster) -> None:
    host = shared.add_host("frozen", queues=[shared.set_queue("frozen")])
    file = shared.folder / "frozen.chronicle"
    may_end = shared.folder / "frozen.ends"
    words = (CODE, str(file), "0", "--until", str(may_end), "--say", "still")
    job = shared.submit(sys.executable, *words, queue="frozen")
    shared.until(job, "running")
    pids = host.task_pids(job)
    frozen = wait_until(host.agent_pid)
    os.kill(frozen, signal.SIGSTOP)
    wait_until(lambda: host.agent_pid() not in (0, frozen), 30, what="another agent")
    silent = re.findall(r"silent for ([0-9.]+) s", host.log())
    assert silent, host.log()
    assert min(map(float, silent)) >= 20
    assert host.task_pids(job) == pids
    may_end.touch()
    ended = shared.until(job, "succeeded")
    assert ended.attempts == 1
    steps = sum(1 for line in file.read_text().splitlines() if line.startswith("alive"))
    wait_until(lambda: shared.output(job).count(b"\n") == steps, what="the whole output")


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 64)
        time.sleep(1000)
    os._exit(0)
os.wait()
if os.fork() == 0:
    time.sleep(1000)
print("ready", flush=True)
time.sleep(1000)
"""
NAMELESS = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(1000)"], {})  # no mark is left on it
    os._exit(0)
os.wait()
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("code", [DAEMON, NAMELESS], ids=["daemon", "nameless"])
def test_a_killed_guardian_takes_every_descendant_with_it(shared: Cluster, code: str) -> None:
    name = "daemon" if code is DAEMON else "nameless"
    # What threw its environment away as well is found by its control group, and a memory limit is
    # what gives it one.
    memory = 256 << 20 if code is NAMELESS else 0
    if memory and not limits_memory():
        pytest.skip("no control group with a memory controller can be made here")
    host = shared.add_host(name, queues=[shared.set_queue(name)])
    job = shared.submit(sys.executable, "-c", code, queue=name, memory_bytes=memory)
    wait_until(lambda: shared.output(job) == b"ready\n", what="its descendants")
    pids = descendants_of_tasks(host)
    assert len(pids) >= (3 if code is DAEMON else 2)
    try:
        host.kill_guardian()
        wait_until(
            lambda: not [p for p in pids if is_alive(p)], 10, what="every descendant to be gone"
        )
    finally:
        signal_all([p for p in pids if is_alive(p)], signal.SIGKILL)
    host.start()
    shared.until_attempt(job, 2)
    shared.client.cancel(job, hard=True)
    shared.until(job, "cancelled")


def limits_memory() -> bool:
    """Whether a control group with a memory controller can be made here."""
    home = open_group_home(f"probe-{os.getpid()}")
    if home is None:
        return False
    home.close()
    return home.memory


def descendants_of_tasks(host: Host) -> list[int]:
    """Everything below the guardian that is not its agent's: orphans of a task are adopted by the
    guardian."""
    agent, entries = host.agent_pid(), table.read_table()
    found, edge = [], [p for p in table.read_children(host.guardian.pid) or [] if p != agent]
    while edge:
        found += edge
        edge = [e.pid for e in entries.values() if e.ppid in edge and e.alive]
    return found


def test_a_guardian_and_its_agent_killed_together_leave_work_for_the_next(shared: Cluster) -> None:
    host = shared.add_host("both", queues=[shared.set_queue("both")])
    job = shared.submit(sys.executable, "-c", DAEMON, queue="both")
    wait_until(lambda: shared.output(job) == b"ready\n", what="its descendants")
    pids = descendants_of_tasks(host)
    signal_all([host.guardian.pid, host.agent_pid()], signal.SIGKILL)
    host.guardian.wait()
    host.start()
    wait_until(lambda: not [p for p in pids if is_alive(p)], 10, what="the next guardian to sweep")
    shared.until_attempt(job, 2)
    shared.client.cancel(job, hard=True)
    shared.until(job, "cancelled")


def test_a_job_that_eats_more_memory_than_it_asked_for(shared: Cluster) -> None:
    if not limits_memory():
        pytest.skip("no control group with a memory controller can be made here")
    shared.add_host("memory", queues=[shared.set_queue("memory")])
    eat = "kept = []\nwhile True: kept.append(bytearray(8 << 20))"
    job = shared.submit(sys.executable, "-c", eat, queue="memory", memory="64M")
    ended = shared.until(job, "failed")
    assert ended.cause == "oom_killed"
    assert ended.exit_code == 137
    beside = shared.submit("/bin/echo", "fine", queue="memory")
    assert shared.until(beside, "succeeded").exit_code == 0


def test_a_job_deaf_to_term_is_killed_after_its_grace(shared: Cluster) -> None:
    host = shared.add_host("deaf", queues=[shared.set_queue("deaf")])
    file = shared.folder / "deaf.chronicle"
    job = shared.submit(
        sys.executable, CODE, str(file), "100", "--ignore-term", queue="deaf", grace=2
    )
    shared.until(job, "running")
    wait_until(lambda: lives_of(file, job))
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert shared.client.cancel(job, "enough").state == "draining"
    ended = shared.until(
        job, "cancelled", seconds=20
    )  # by the KILL after its grace: a drain is forced after 45 s
    assert ended.cause == "user_cancelled"
    lived = check_no_overlap(file, job)[1][1] - began
    assert lived > 1.8, f"it lived only {lived:.1f} s after the cancel, its grace was 2 s"
    assert not host.task_pids(job)
    polite = shared.submit("sleep", "100", queue="deaf", grace=60)
    shared.until(polite, "running")
    shared.client.cancel(polite)
    shared.until(polite, "cancelled", seconds=40)  # what goes at TERM is not waited for


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"argv": ["/no/such/program"]}, 127),
        ({"argv": ["/etc/hostname"]}, 126),
        ({"argv": ["/bin/true"], "cwd": "/no/such/folder"}, 127),
    ],
    ids=["missing", "not-executable", "no-folder"],
)
def test_what_cannot_be_started_says_so(shared: Cluster, fields: dict[str, Any], code: int) -> None:
    name = f"unstartable-{len(shared.hosts)}"
    shared.add_host(name, queues=[shared.set_queue(name)])
    retry = {"max_retries": 3, "retry_delay": 0.0}
    ended = shared.until(shared.submit(queue=name, retry=retry, **fields), "failed")
    assert (ended.exit_code, ended.attempts, ended.cause) == (code, 1, "validation_error")
    assert "could not be started" in ended.reason
