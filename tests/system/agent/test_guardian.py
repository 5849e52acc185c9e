"""The guardian with real processes: what it does while its agent is there, and while it is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.guardian.loop import EXIT_ALREADY_SERVED, shield_from_oom
from holdfast.core.ids import TaskKey
from holdfast.process import table
from holdfast.process.groups import open_group_home
from holdfast.process.nursery import LEFTOVER_GRACE_SECONDS
from holdfast.wire.guardian import (
    Ack,
    AgentAlive,
    AgentHello,
    Extend,
    LaunchTask,
    Snapshot,
    Stopping,
    StopTask,
    TaskEnded,
    TaskStarted,
)
from tests.system.agent.guardian_rig import SPARED_WORD, Rig, find_marked
from tests.waits import Patience, crowding, is_alive, wait_exit, wait_until

RUNAWAY = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    if 'clear' in sys.argv: os.execve(sys.executable, [sys.executable, '-c',
        "import os, time; open('runaway', 'w').write(f'{os.getpid()}\\\\n'); time.sleep(600)"], {})
    open('runaway', 'w').write(f'{os.getpid()}\\n'); time.sleep(600)
os.wait()
while not os.path.exists('runaway') or not os.path.getsize('runaway'): time.sleep(0.01)
time.sleep(float(sys.argv[1])); sys.exit(5)
"""


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["groups", "no groups"])
def either_rig(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Once with control groups (where the system has them), once as on a system that has none."""
    made = Rig(tmp_path, use_groups=request.param == "groups")
    yield made
    made.close()


def serve(rig: Rig, *, forked: bool = True) -> Snapshot:
    rig.start(forked=forked)
    return rig.meet()


# ---- launching and ending


def test_exit_codes_signals_and_output_come_back(either_rig: Rig) -> None:
    rig = either_rig
    assert serve(rig).tasks == []
    ended = rig.run_task(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (ended.exit_code, ended.signal, ended.stopped, ended.oom, ended.start_error) == (
        3,
        None,
        False,
        False,
        None,
    )
    assert (rig.read("job.out"), rig.read("job.err")) == ("out\n", "err\n")
    assert 0 < ended.runtime_seconds < 10 * crowding()
    assert ended.max_memory_bytes > 0
    ended = rig.run_task(["sh", "-c", "kill -KILL $$"], job="killed")
    assert (ended.exit_code, ended.signal, ended.oom) == (None, signal.SIGKILL, False)


def test_a_start_is_announced_before_its_end(rig: Rig) -> None:
    serve(rig)
    keys = [rig.launch(["true"], job=f"job{number}") for number in range(50)]
    pending = {key: ["started", "ended"] for key in keys}
    while any(pending.values()):
        assert rig.hear(10)
        for answer in rig.heard:
            kind = "started" if isinstance(answer, TaskStarted) else "ended"
            assert pending[answer.key].pop(0) == kind
        rig.heard.clear()


def test_the_mark_is_the_guardians_word(rig: Rig) -> None:
    serve(rig)
    rig.run_task(
        ["env"],
        env={
            "PATH": os.environ["PATH"],
            "HOLDFAST_HOST": "forged",
            "HOLDFAST_TASK": "forged",
            "A": "b",
        },
    )
    assert set(rig.read("job.out").split()) >= {
        f"HOLDFAST_HOST={rig.host}",
        "HOLDFAST_TASK=job:0:1",
        "A=b",
    }
    assert "forged" not in rig.read("job.out")


def test_what_cannot_start_says_why_and_is_kept_until_acknowledged(rig: Rig) -> None:
    serve(rig)
    ended = rig.run_task(["no-such-program"])
    assert ended.start_error is not None
    assert "no such program" in ended.start_error
    for job, more in (("cwd", {"cwd": "/no/such"}), ("out", {"stdout": "/no/such/out"})):
        assert rig.run_task(["true"], job=job, **more).start_error
    assert rig.run_task(["a\0b"], job="nul").start_error
    rig.say(AgentHello(pid=0))
    assert len(rig.expect(Snapshot).tasks) == 4
    rig.say(Ack(keys=[ended.key]), AgentHello(pid=0))
    assert len(rig.expect(Snapshot).tasks) == 3


def test_a_key_is_launched_once(rig: Rig) -> None:
    serve(rig)
    key, pid = rig.start_task(["sleep", "600"])
    rig.launch(["sh", "-c", "echo again"])
    assert rig.expect(TaskStarted, key).pid == pid
    rig.say(StopTask(key=key, grace_seconds=5))
    ended = rig.expect(TaskEnded, key)
    rig.launch(["sh", "-c", "echo again"])
    assert rig.expect(TaskEnded, key) == ended
    rig.say(Ack(keys=[key]))
    rig.launch(["sh", "-c", "echo again"])
    late = rig.expect(TaskEnded, key)
    assert late.start_error is not None
    assert "already" in late.start_error
    assert rig.read("job.out") == ""


def test_an_acknowledgement_of_a_running_task_forgets_nothing(rig: Rig) -> None:
    serve(rig)
    key, pid = rig.start_task(["sleep", "600"])
    rig.say(Ack(keys=[key, TaskKey("nobody", 0, 0)]), AgentHello(pid=0))
    assert [task.pid for task in rig.expect(Snapshot).tasks] == [pid]


def test_ten_thousand_lines_are_whole(rig: Rig) -> None:
    serve(rig)
    assert (
        rig.run_task(
            ["sh", "-c", "i=0; while [ $i -lt 10000 ]; do echo line $i; i=$((i+1)); done"]
        ).exit_code
        == 0
    )
    assert rig.read("job.out") == "".join(f"line {number}\n" for number in range(10_000))


# ---- stopping


def test_stop_is_idempotent_and_takes_the_whole_tree(either_rig: Rig) -> None:
    rig = either_rig
    serve(rig)
    key, pid = rig.start_task(["sh", "-c", "sleep 600 & echo $!; wait"])
    child = int(rig.wait_word("job.out"))
    rig.say(*[StopTask(key=key, grace_seconds=30)] * 3)
    ended = rig.expect(TaskEnded, key)
    assert (ended.signal, ended.stopped, ended.lapsed, ended.unkillable) == (
        signal.SIGTERM,
        True,
        False,
        False,
    )
    assert not is_alive(pid)
    assert not is_alive(child)
    rig.say(
        StopTask(key=key, grace_seconds=0), StopTask(key=TaskKey("nobody", 0, 0), grace_seconds=0)
    )
    assert rig.expect(TaskEnded, key) == ended


def test_a_task_may_finish_its_work_in_the_grace(rig: Rig) -> None:
    serve(rig)
    key, _ = rig.start_task(
        ["sh", "-c", "trap 'echo saved; exit 9' TERM; echo ready; while :; do sleep 0.02; done"]
    )
    rig.wait_word("job.out")
    rig.say(StopTask(key=key, grace_seconds=30))
    ended = rig.expect(TaskEnded, key)
    # A child of the shell gets the TERM as well; the shell's own word is what counts.
    assert (ended.exit_code, ended.stopped) == (9, True)
    assert rig.read("job.out") == "ready\nsaved\n"


def test_what_ignores_term_is_killed_and_a_sooner_kill_wins(either_rig: Rig) -> None:
    rig = either_rig
    serve(rig)
    stubborn = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.02; done"]
    key, _ = rig.start_task(stubborn)
    rig.wait_word("job.out")
    rig.say(StopTask(key=key, grace_seconds=0.2))
    assert rig.expect(TaskEnded, key).signal == signal.SIGKILL
    key, _ = rig.start_task(stubborn, job="second")
    rig.wait_word("second.out")
    patience = Patience(10)
    rig.say(
        StopTask(key=key, grace_seconds=3600),
        StopTask(key=key, grace_seconds=0.1),
        StopTask(key=key, grace_seconds=3600),
    )
    assert rig.expect(TaskEnded, key).signal == signal.SIGKILL
    assert not patience.over


def test_a_stopped_task_still_takes_its_term(rig: Rig) -> None:
    serve(rig)
    key, pid = rig.start_task(["sleep", "600"])
    os.kill(pid, signal.SIGSTOP)
    rig.say(StopTask(key=key, grace_seconds=60))
    assert rig.expect(TaskEnded, key).signal == signal.SIGTERM


# Every process forks a successor in a new session and goes; the family never rests. The memory
# makes each exit long: between its last fork and its becoming a zombie it shows no mark, and its
# child is not yet the guardian's. After two minutes it ends by
# itself: one that a failed test could not end must not have the machine for ever.
RESTLESS = (
    "import os, signal, time\nballast = bytearray(b'x') * (int('%d') << "
    "20)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "end = time.monotonic() + 120\n"
    "print('ready', flush=True)\n"
    "if os.fork() == 0:\n"
    "    while time.monotonic() < end:\n"
    "        if os.fork(): os._exit(0)\n"
    "        os.setsid()\n"
    "        time.sleep(0.002)\n"
    "    os._exit(0)\n"
    "time.sleep(600)"
)


def find_task(rig: Rig, key: TaskKey) -> list[int]:
    return [pid for pid in find_marked(rig.host) if table.read_marks(pid)[0] == str(key)]


@pytest.mark.parametrize("ballast", [0, 24])
def test_forks_do_not_outrun_the_kill(either_rig: Rig, ballast: int) -> None:
    rig = either_rig
    serve(rig)
    rig.start_task(["sleep", "600"], job="bystander")
    key, _ = rig.start_task([sys.executable, "-c", RESTLESS % ballast])
    rig.wait_word("job.out")
    rig.say(StopTask(key=key, grace_seconds=0))
    ended = rig.expect(TaskEnded, key)
    assert (ended.signal, ended.unkillable) == (signal.SIGKILL, False)
    assert find_task(rig, key) == []


def test_families_that_fork_without_rest_keep_the_guardian_from_nothing(either_rig: Rig) -> None:
    """While several of them race the kill, each end comes, and a bystander's launch and end come in
    between."""
    rig = either_rig
    serve(rig)
    jobs = ["first", "second", "third"]
    keys = [rig.start_task([sys.executable, "-c", RESTLESS % 0], job=job)[0] for job in jobs]
    for job in jobs:
        rig.wait_word(f"{job}.out")
    rig.say(*[StopTask(key=key, grace_seconds=0) for key in keys])
    assert rig.run_task(["true"], job="bystander").exit_code == 0
    for key in keys:
        assert not rig.expect(TaskEnded, key).unkillable
        assert find_task(rig, key) == []


def read_parent(pid: int) -> int:
    entry = table.read_entry(pid)
    assert entry is not None
    return entry.ppid


# Its keeper's death does not end it either, as where it hangs in a driver.
UNMOVED = "import ctypes, time; ctypes.CDLL(None).prctl(1, 0); open('ready', 'w'); time.sleep(600)"


def test_what_survives_sigkill_is_given_up_and_named(tmp_path: Path) -> None:
    rig = Rig(tmp_path, kill_limit_seconds=0.3)
    try:
        serve(rig)
        key, pid = rig.start_task([sys.executable, "-c", UNMOVED, SPARED_WORD.decode()])
        wait_until((rig.folder / "ready").exists)
        rig.say(StopTask(key=key, grace_seconds=0))
        ended = rig.expect(TaskEnded, key)
        assert (ended.unkillable, ended.survivors, ended.exit_code, ended.signal) == (
            True,
            [pid],
            None,
            None,
        )
        assert is_alive(pid)
        assert rig.run_task(["true"], job="next").exit_code == 0
    finally:
        rig.close()


# ---- trees


@pytest.mark.parametrize("clear", ["clear", "marked"])
def test_a_runaway_grandchild_ends_with_its_task(either_rig: Rig, clear: str) -> None:
    """Double fork, own session, dead parent; with a cleared environment it is found by group or by
    elimination."""
    rig = either_rig
    serve(rig)
    key = rig.launch([sys.executable, "-c", RUNAWAY, "0", clear])
    runaway = int(rig.wait_word("runaway"))
    ended = rig.expect(TaskEnded, key)
    assert ended.exit_code == 5
    assert not is_alive(runaway)


def test_a_runaway_is_never_taken_from_another_task_that_still_runs(tmp_path: Path) -> None:
    rig = Rig(tmp_path, use_groups=False)
    try:
        serve(rig)
        rig.start_task(["sleep", "600"], job="bystander")
        key = rig.launch([sys.executable, "-c", RUNAWAY, "600", "clear"], job="maker")
        runaway = int(rig.wait_word("runaway"))
        assert rig.run_task(["true"], job="short").exit_code == 0
        assert is_alive(runaway)
        rig.say(StopTask(key=TaskKey("bystander", 0, 1), grace_seconds=0))
        rig.expect(TaskEnded, TaskKey("bystander", 0, 1))
        assert is_alive(runaway)
        rig.say(StopTask(key=key, grace_seconds=0))
        rig.expect(TaskEnded, key)
        assert not is_alive(runaway)
    finally:
        rig.close()


@pytest.mark.parametrize("clear", ["clear", "marked"])
def test_a_runaway_ends_with_its_own_task_among_others(either_rig: Rig, clear: str) -> None:
    """Whether it kept its environment or not: its brand it cannot shed."""
    rig = either_rig
    serve(rig)
    rig.start_task(["sleep", "600"], job="bystander")
    key = rig.launch([sys.executable, "-c", RUNAWAY, "0", clear], job="maker")
    runaway = int(rig.wait_word("runaway"))
    rig.expect(TaskEnded, key)
    assert not is_alive(runaway)


@pytest.mark.slow
def test_orphans_that_end_are_reaped_while_their_task_runs(rig: Rig) -> None:
    """WATCH-2: nothing wakes for them, and a week of them would be as many zombies."""
    serve(rig)
    code = (
        "import os, time\n"
        "for _ in range(300):\n"
        "    if os.fork() == 0:\n"
        "        os.fork()\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "print('made', flush=True)\ntime.sleep(600)"
    )
    _, pid = rig.start_task([sys.executable, "-c", code])
    rig.wait_word("job.out")
    wait_until(lambda: table.read_children(read_parent(pid)) == [pid], what="the zombies to go")
    children = set(table.read_children(rig.guardian.pid) or ())
    assert len(children - {read_parent(pid), rig.agent_pid}) == 1, "the log writer"


def test_an_end_is_said_after_what_was_left_behind_is_gone(either_rig: Rig) -> None:
    rig = either_rig
    serve(rig)
    key = rig.launch(
        [
            "sh",
            "-c",
            "(trap '' TERM; echo ready; while :; do sleep 0.05; done) & until [ -s job.out ]; do "
            "sleep 0.01; done; exit 4",
        ]
    )
    started = rig.expect(TaskStarted, key)
    ended = rig.expect(TaskEnded, key)
    assert ended.exit_code == 4
    # The seconds of its leftovers are not its own.
    assert boottime() - (started.started_at + ended.runtime_seconds) >= LEFTOVER_GRACE_SECONDS
    assert not ended.stopped
    assert find_task(rig, TaskKey("job", 0, 1)) == []


# ---- leases


def test_a_deadline_is_kept_while_no_agent_can_live(rig: Rig) -> None:
    serve(rig)
    key, pid = rig.start_task(["sleep", "600"], deadline=boottime() + 1.0)
    other, _ = rig.start_task(["sleep", "600"], job="other", deadline=boottime() + 1.0)
    rig.say(
        Extend(
            deadlines=[
                (other, boottime() + 600),
                (other, boottime() + 300),
                (TaskKey("nobody", 0, 0), 1.0),
            ]
        )
    )
    rig.say(AgentHello(pid=0))
    status = {task.key: task for task in rig.expect(Snapshot).tasks}
    assert status[other].deadline > boottime() + 500
    os.kill(rig.agent_pid, signal.SIGSTOP)
    wait_until(lambda: not is_alive(pid), what="the lapsed task to be killed")
    os.kill(rig.agent_pid, signal.SIGKILL)
    ends = {task.key: task.ended for task in rig.meet().tasks}
    assert ends[other] is None
    ended = ends[key]
    assert ended is not None
    assert (ended.lapsed, ended.stopped, ended.signal) == (True, True, signal.SIGKILL)


def test_a_launch_after_its_lease_is_not_started(rig: Rig) -> None:
    serve(rig)
    ended = rig.run_task(["sh", "-c", "echo ran"], deadline=boottime() - 1)
    assert (ended.lapsed, ended.exit_code) == (True, None)
    assert ended.start_error
    assert rig.read("job.out") == ""


# ---- memory


@pytest.mark.slow
def test_an_oom_kill_is_told_from_a_kill(rig: Rig) -> None:
    home = open_group_home(rig.host + "-probe")
    if home is None or not home.memory:
        pytest.skip("no memory control group can be made here")
    home.close()
    serve(rig)
    greedy = [
        sys.executable,
        "-c",
        "b = bytearray(512 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1",
    ]
    ended = rig.run_task(greedy, memory_bytes=64 << 20)
    assert (ended.oom, ended.signal) == (True, signal.SIGKILL)
    assert 32 << 20 < ended.max_memory_bytes <= 64 << 20
    ended = rig.run_task(["sh", "-c", "kill -KILL $$"], job="plain", memory_bytes=64 << 20)
    assert (ended.oom, ended.signal) == (False, signal.SIGKILL)
    ended = rig.run_task(greedy, job="free")
    assert (ended.oom, ended.exit_code) == (False, 0)
    assert ended.max_memory_bytes > 512 << 20


@pytest.mark.parametrize(
    ("inherited", "shield", "for_tasks"),
    [(0, -900, 0), (250, -900, 250), (-300, -900, 0), (-900, -900, 0), (-1000, -1000, 0)],
)
def test_the_guardian_is_shielded_and_its_tasks_are_not(
    tmp_path: Path, inherited: int, shield: int, for_tasks: int
) -> None:
    score = tmp_path / "oom_score_adj"
    score.write_text(f"{inherited}\n")
    assert shield_from_oom(score) == for_tasks
    assert int(score.read_text()) == shield
    assert shield_from_oom(tmp_path / "none") is None


@pytest.mark.parametrize(("inherited", "expected"), [(-900, 0), (-300, 0), (250, 250)])
def test_a_task_is_not_shielded_from_the_oom_killer(
    rig: Rig, inherited: int, expected: int
) -> None:
    """A service manager may have started the guardian behind a shield (`OOMScoreAdjust`) as well as
    it may make its own."""
    own = Path("/proc/self/oom_score_adj")
    before = own.read_text()
    try:
        own.write_text(str(inherited))
    except OSError:
        pytest.skip("an ordinary user may not lower its score")
    try:
        serve(rig, forked=False)
    finally:
        own.write_text(before)
    rig.run_task(["cat", "/proc/self/oom_score_adj"])
    assert int(rig.read("job.out")) == expected


def test_groups_are_removed_with_their_tasks(rig: Rig) -> None:
    serve(rig)
    folder = Path((rig.state_dir / "groups.folder").read_text() or "/none")
    if not folder.is_dir():
        pytest.skip("no control group can be made here")
    key, _ = rig.start_task(["sleep", "600"])
    assert [path for path in folder.iterdir() if path.is_dir()] != []
    rig.say(StopTask(key=key, grace_seconds=0))
    rig.expect(TaskEnded, key)
    wait_until(
        lambda: not any(path.is_dir() for path in folder.iterdir()), what="the group to be removed"
    )


# ---- logs


def test_a_log_over_its_limit_loses_its_middle(rig: Rig) -> None:
    serve(rig)
    code = "import sys, time\nfor i in range(40): sys.stdout.write(chr(65 + i % 26) * (1 << 20))\nsys.stdout.flush(); time.sleep(600)"
    rig.start_task([sys.executable, "-c", code], log_disk_bytes=8 << 20)
    path = rig.folder / "job.out"
    wait_until(lambda: path.exists() and path.stat().st_size == 40 << 20, what="the output")
    wait_until(
        lambda: path.stat().st_blocks * 512 <= 9 << 20 or "no holes" in rig.notes(), what="the hole"
    )
    data = path.read_bytes()
    assert (data[:10], data[-10:]) == (b"A" * 10, b"N" * 10)


# ---- beats


def test_beats_queue_while_the_agent_is_away(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    rig = Rig(deep)
    try:
        serve(rig)
        environ = Path(f"/proc/{rig.agent_pid}/environ").read_bytes().split(b"\0")
        env = dict(word.decode().split("=", 1) for word in environ if b"=" in word)
        assert len(env["HOLDFAST_BEAT_SOCKET"]) <= 100
        assert Path(env["HOLDFAST_BEAT_SOCKET"]).parent.stat().st_mode & 0o777 == 0o700
        assert env["HOLDFAST_HOST_MARK"] == rig.host
        os.kill(rig.agent_pid, signal.SIGKILL)
        code = (
            "import os, socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
            "s.connect(os.environ['B']); [s.send(b'beat') for _ in range(5)]"
        )
        rig.meet()
        task_env = {"PATH": os.environ["PATH"], "B": env["HOLDFAST_BEAT_SOCKET"]}
        assert rig.run_task([sys.executable, "-c", code], env=task_env).exit_code == 0
        folder = Path(env["HOLDFAST_BEAT_SOCKET"]).parent
        assert folder.exists()
        rig.guardian.kill()
        rig.guardian.wait()
        rig.start()
        rig.meet()
        assert not folder.exists(), "the stale socket's folder of the killed guardian was left"
    finally:
        rig.close()


def test_many_launches_and_a_stop_among_them_are_done_in_order(rig: Rig) -> None:
    serve(rig)
    now = boottime()
    requests: list[LaunchTask | StopTask | AgentAlive] = []
    for number in range(40):
        key = TaskKey(f"j{number}", 0, 1)
        requests.append(
            LaunchTask(
                key=key,
                argv=["sleep", "600"],
                env={"PATH": os.environ["PATH"]},
                cwd="/",
                stdout="/dev/null",
                stderr="/dev/null",
                deadline=now + 600,
            )
        )
        requests.append(StopTask(key=key, grace_seconds=0))
    rig.say(*requests)
    for number in range(40):
        assert rig.expect(TaskEnded, TaskKey(f"j{number}", 0, 1)).signal == signal.SIGKILL


def test_a_second_guardian_says_so_and_goes(rig: Rig) -> None:
    serve(rig)
    second = rig.start()
    assert wait_exit(second, 20) == EXIT_ALREADY_SERVED
    rig.guardians.remove(second)
    assert f"another guardian (pid {rig.guardian.pid})" in rig.notes()
    assert rig.run_task(["true"]).exit_code == 0


def test_a_host_that_shuts_down_stops_its_tasks_and_waits_for_the_word(rig: Rig) -> None:
    serve(rig)
    saving = [
        "sh",
        "-c",
        "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done",
    ]
    key, _ = rig.start_task(saving)
    rig.wait_word("job.out")
    rig.guardian.send_signal(signal.SIGTERM)
    rig.expect(Stopping)
    assert rig.expect(TaskEnded, key).stopped
    late = rig.run_task(["true"], job="late")
    assert (late.start_error, late.stopped) == ("the host is shutting down", True)
    assert rig.guardian.poll() is None
    rig.say(Ack(keys=[key, TaskKey("late", 0, 1)]))
    assert wait_exit(rig.guardian, 20) == 0
    assert rig.read("job.out") == "ready\nsaved\n"
    assert not is_alive(rig.agent_pid)
    assert find_marked(rig.host) == []
    assert not (rig.state_dir / "beat.sock").exists()


def test_a_second_signal_does_not_wait_for_the_grace(rig: Rig) -> None:
    serve(rig)
    _, pid = rig.start_task(
        ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.02; done"], grace_seconds=3600.0
    )
    rig.wait_word("job.out")
    rig.guardian.send_signal(signal.SIGTERM)
    rig.expect(Stopping)
    assert is_alive(pid)
    with pytest.raises(subprocess.TimeoutExpired):
        rig.guardian.wait(1.1)  # a signal within a second is the same one, told twice
    rig.guardian.send_signal(signal.SIGINT)
    assert wait_exit(rig.guardian, 20) == 0
    assert find_marked(rig.host) == []
