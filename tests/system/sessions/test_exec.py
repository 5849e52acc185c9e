"""A command in a running task: its streams, its end, its surroundings."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.client.sessions.session import TaskSession
from tests.system.cluster import Cluster, clean_environment, read_words
from tests.waits import Patience, stretch, wait_exit, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def job(shared: Cluster) -> str:
    shared.add_host("inside", cpu_slots=4)
    job_id = shared.submit("sh", "-c", "exec sleep 600", env={"COLOUR": "blue"})
    shared.until(job_id, "running")
    return job_id


def test_output_errors_and_exit_code_are_the_commands_own(shared: Cluster, job: str) -> None:
    words = ["sh", "-c", "echo out; echo err >&2; exit 7"]
    with shared.client.open_session(job, words) as session:
        session.close_stdin()
        found = list(session)
    assert b"".join(d for s, d in found if s == "stdout") == b"out\n"
    assert b"".join(d for s, d in found if s == "stderr") == b"err\n"
    assert session.exit_code == 7


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("nosuch",), 127, b"no such program: 'nosuch'"),
        (("/etc/passwd",), 126, b"permission denied: '/etc/passwd'"),
        (("./gone/too",), 127, b"no such program"),
    ],
)
@pytest.mark.parametrize("tty", [False, True])
def test_what_cannot_be_run_ends_as_in_a_shell(
    shared: Cluster, job: str, words: tuple[str, ...], code: int, says: bytes, tty: bool
) -> None:
    done = shared.cli("exec", *(["-t"] if tty else []), job, "--", *words, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (code, b"")
    assert done.stderr.startswith(b"holdfast: ")
    assert says in done.stderr


def test_the_session_has_the_tasks_surroundings_but_no_beat_socket(
    shared: Cluster, job: str
) -> None:
    """INSIDE-1."""
    words = ["sh", "-c", "pwd; echo $COLOUR $HOLDFAST_JOB_ID [$HOLDFAST_BEAT_SOCKET]; id -u"]
    with shared.client.open_session(job, words) as session:
        said = b"".join(data for _, data in session).decode().split("\n")
    pid = shared.host_of(job).task_pids(job)[0]
    assert said[0] == str(Path(f"/proc/{pid}/cwd").readlink())
    assert said[1] == f"blue {job} []"
    assert said[2] == str(Path(f"/proc/{pid}").stat().st_uid)


def test_megabytes_go_through_both_ways_with_a_half_closed_input(shared: Cluster, job: str) -> None:
    data = bytes(range(256)) * (24 << 12)  # 24 MiB, more than the windows
    done = shared.cli("exec", job, "--", "cat", input=data)
    assert done.returncode == 0
    assert done.stdout == data


def test_a_session_ends_with_its_task_and_before_the_tasks_end_is_told(shared: Cluster) -> None:
    """INSIDE-2: also a process that ignores every signal but KILL."""
    job_id = shared.submit("sh", "-c", "exec sleep 600")
    shared.until(job_id, "running")
    stubborn = ["sh", "-c", "trap '' HUP TERM INT; echo up; while :; do sleep 1; done"]
    session = shared.client.open_session(job_id, stubborn)
    assert session.read() == ("stdout", b"up\n")
    host = shared.host_of(job_id)
    inside = host.marked_pids(f"session {session.id}")
    assert inside
    shared.client.cancel(job_id)
    shared.until(job_id, "cancelled")
    assert host.marked_pids(f"session {session.id}") == []
    assert session.wait() == 128 + 9


def test_a_terminal_outlives_the_agent_and_its_user_comes_back_to_it(
    shared: Cluster, job: str
) -> None:
    """INSIDE-3: the guardian passes the terminal on to the next agent."""
    lost: list[str] = []
    with shared.client.open_session(
        job, ["sh"], kind="shell", tty=True, rows=30, cols=100, on_lost=lost.append
    ) as session:
        read_until(session, b"# ", b"$ ")
        session.write(b"kept=here; stty size\n")
        read_until(session, b"30 100")
        shared.host_of(job).kill_agent()
        read_until_anew(session, lost)
        session.write(b"echo still $kept\n")
        read_until(session, b"still here")
        session.write(b"exit 5\n")
        assert session.wait() == 5


def test_a_command_without_a_terminal_ends_with_its_agent_and_its_user_is_told_at_once(
    shared: Cluster, job: str
) -> None:
    token = shared.controller.token_file.read_text().strip()
    words = ("exec", job, "--", "sh", "-c", "echo up; trap '' HUP TERM; while :; do sleep 1; done")
    program = subprocess.Popen(
        [sys.executable, "-P", "-m", "holdfast.cli", *words],
        env=clean_environment(HOLDFAST_URL=shared.controller.url, HOLDFAST_TOKEN=token),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with program, ExitStack() as ended:
        ended.callback(program.kill)
        assert program.stdout is not None
        assert program.stdout.readline() == b"up\n"
        (record,) = [r for r in shared.client.sessions(job) if r.state == "running"]
        host = shared.host_of(job)
        host.kill_agent()
        _, said = program.communicate(timeout=stretch(20))
    assert program.returncode == 4
    assert b"its host was replaced" in said
    assert b"run it again" in said
    wait_until(lambda: host.marked_pids(f"session {record.id}") == [])


def read_until(session: TaskSession, *words: bytes) -> bytes:
    """Read what a session prints, until one of the words is among it."""
    found = b""
    while not any(word in found for word in words):
        piece = session.read(30.0)
        assert piece is not None, found
        found += piece.data
    return found


def read_until_anew(session: TaskSession, lost: list[str]) -> None:
    """Read until the link was lost and is there again."""
    patience = Patience(30.0)
    while lost[-1:] != [""]:
        assert not patience.over
        session.read(0.2)


WEDGE = """
import json, os, socket, time
data = json.dumps({"task": os.environ["HOLDFAST_TASK"], "step": 1}).encode()
beats = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
beats.sendto(data, os.environ["HOLDFAST_BEAT_SOCKET"])
time.sleep(1000)
"""


def test_a_wedged_job_with_a_busy_shell_trips_as_one_without(shared: Cluster) -> None:
    """INSIDE-1: the shell computes and writes all the time, and no watchdog takes that for work."""
    shared.set_queue("wedged", stall_timeout_seconds=3, on_trip="fail")
    shared.add_host("wedged", queues=["wedged"], cpu_slots=2)
    words = [sys.executable, "-c", WEDGE]
    visited, quiet = (shared.submit(*words, queue="wedged") for _ in range(2))
    for job_id in (visited, quiet):
        shared.until(job_id, "running")
    busy = ["sh", "-c", "while :; do dd if=/dev/zero of=/dev/null bs=1M count=64 2>/dev/null; done"]
    session = shared.client.open_session(visited, busy)
    ran = {}
    for job_id in (visited, quiet):
        ended = shared.until(job_id, "failed", seconds=60)
        assert (ended.cause, ended.exit_code) == ("stalled", 76)
        ran[job_id] = (ended.ended_at - ended.started_at).total_seconds()
    assert abs(ran[visited] - ran[quiet]) < stretch(3)
    assert session.wait() != 0


@pytest.mark.parametrize("end", ["reader", "disk"])
def test_a_command_whose_output_goes_nowhere_any_more_is_ended(
    shared: Cluster, job: str, end: str
) -> None:
    """As over ssh: neither the command nor its session is left behind."""
    token = shared.controller.token_file.read_text().strip()
    words = ("exec", job, "-n", "--", "sh", "-c", "trap '' PIPE; exec cat /dev/zero")
    with (
        open("/dev/full", "wb") as full,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast.cli", *words],
            env=clean_environment(HOLDFAST_URL=shared.controller.url, HOLDFAST_TOKEN=token),
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
            stdout=subprocess.PIPE if end == "reader" else full,
        ) as program,
    ):  # fmt: skip
        if program.stdout is not None:
            assert program.stdout.read(100) == bytes(100)
            program.stdout.close()
        assert wait_exit(program, 30) not in (0, None)
    wait_until(
        lambda: not [one for one in shared.client.sessions(job) if "zero" in one.command],
        10,
        what="the session to be over",
    )
    host = shared.host_of(job)
    wait_until(lambda: not [pid for pid in host.marked_pids() if b"/dev/zero" in read_words(pid)])
