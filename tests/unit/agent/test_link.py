"""The agent's end of the line: what cannot be read is refused and asked for again, and only the
guardian's death is its death."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.config import AgentConfig
from holdfast.agent.link import GuardianLink
from holdfast.agent.orders.resync import find_missed
from holdfast.agent.tasks.task import AgentTask
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskEvent
from holdfast.process.sweep import sweep
from holdfast.process.syscalls import read_boottime
from holdfast.process.table import HOST_VARIABLE, TASK_VARIABLE
from holdfast.wire.frames import MAX_FRAME_BYTES, FrameReader, encode_frame
from holdfast.wire.guardian import (
    AgentHello,
    Answer,
    Extend,
    LaunchTask,
    Request,
    Snapshot,
    StopTask,
    TaskEnded,
    TaskStarted,
    TaskStatus,
    Unread,
    decode_request,
    encode,
)
from tests.system.agent.guardian_rig import Rig
from tests.waits import is_alive, wait_exit, wait_until, within

KEY = TaskKey("job", 0, 1)
UNKNOWN = msgspec.msgpack.encode({"t": "of-the-next-version", "x": 1})
MISSHAPEN = msgspec.msgpack.encode({"t": "started", "key": "no key", "pid": "no pid"})
OVERSIZED = (MAX_FRAME_BYTES + 1).to_bytes(4, "big")


class Wire:
    """A link and the guardian's end of its line, in one loop."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.reader = FrameReader()
        self.heard: list[Answer] = []
        self.lost = 0
        self.link: GuardianLink

    def lose(self) -> None:
        self.lost += 1

    def send(self, *bodies: bytes) -> None:
        self.line.sendall(b"".join(encode_frame(body) for body in bodies))

    async def read(self) -> list[Request]:
        data = await asyncio.get_running_loop().sock_recv(self.line, 1 << 16)
        return [decode_request(frame) for frame in self.reader.feed(data)]

    async def wait(self, holds: Any) -> None:
        async with within(20):
            while not holds():
                await asyncio.sleep(0)

    async def read_hello(self) -> AgentHello:
        async with within(20):
            while True:
                for request in await self.read():
                    if isinstance(request, AgentHello):
                        return request


async def open_wire(incarnation: str = "") -> Wire:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    wire = Wire(ours)
    wire.link = GuardianLink(incarnation)
    await wire.link.open(theirs.detach(), wire.heard.append, wire.lose)
    assert (await wire.read_hello()).number == 1
    return wire


@pytest.mark.parametrize("body", [UNKNOWN, MISSHAPEN, b"", b"\xff" * 40, b"\xc1"])
async def test_a_message_nobody_can_read_is_refused_and_asked_for_again(
    body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """HEAR-1."""
    wire = await open_wire()
    started = TaskStarted(key=KEY, pid=5, started_at=1.0)
    wire.send(body, encode(started))
    hello = await wire.read_hello()
    assert (hello.number, wire.link.refused, wire.heard, wire.lost) == (2, 1, [started], 0)
    assert body[:32].hex() in caplog.text
    snapshot = Snapshot(incarnation="i", tasks=[], number=2)
    wire.send(encode(snapshot))
    await wire.wait(lambda: wire.heard == [started, snapshot])
    wire.line.close()
    await wire.wait(lambda: wire.lost)


async def test_what_the_guardian_could_not_read_is_asked_about() -> None:
    wire = await open_wire()
    wire.send(encode(Unread(count=1, reason="of a later version")))
    assert (await wire.read_hello()).number == 2
    assert (wire.link.refused, wire.lost) == (0, 0)
    wire.line.close()


async def test_a_snapshot_of_another_guardian_is_refused() -> None:
    wire = await open_wire("ours")
    wire.send(encode(Snapshot(incarnation="another", tasks=[], number=1)))
    assert (await wire.read_hello()).number == 2
    assert (wire.heard, wire.link.refused) == ([], 1)
    wire.line.close()


async def test_a_line_that_cannot_be_cut_is_given_up() -> None:
    """HEAR-2."""
    wire = await open_wire()
    wire.line.sendall(OVERSIZED)
    await wire.wait(lambda: wire.lost)
    assert wire.heard == []
    wire.line.close()


async def test_words_that_cannot_be_carried_out_end_this_agent_and_say_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wire = await open_wire()
    wire.link._hear = lambda answer: 1 / 0  # type: ignore[assignment,return-value]  # a bug of the agent's
    wire.send(encode(TaskStarted(key=KEY, pid=5, started_at=1.0)))
    await wire.wait(lambda: wire.lost)
    assert "ZeroDivisionError" in caplog.text
    wire.line.close()


@settings(max_examples=60, deadline=None)
@given(
    script=st.lists(st.one_of(st.integers(0, 9), st.binary(max_size=60)), min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 40), max_size=30),
)
def test_whatever_garbage_lies_between_every_good_message_is_heard(
    script: list[int | bytes], cuts: list[int]
) -> None:
    """Frames of any bytes, in any portions: good ones arrive in order, nothing is taken for the
    guardian's loss."""

    async def run() -> None:
        wire = await open_wire()
        good = [
            TaskStarted(key=KEY, pid=word, started_at=1.0)
            for word in script
            if isinstance(word, int)
        ]
        bodies = [
            encode(TaskStarted(key=KEY, pid=w, started_at=1.0)) if isinstance(w, int) else w
            for w in script
        ]
        stream = b"".join(
            encode_frame(body)
            for body in [*bodies, encode(TaskStarted(key=KEY, pid=99, started_at=1.0))]
        )
        for cut in [*cuts, len(stream)]:
            wire.line.sendall(stream[:cut])
            stream = stream[cut:]
            await asyncio.sleep(0)
        await wire.wait(lambda: wire.heard and wire.heard[-1].pid == 99)  # type: ignore[union-attr]  # only such were sent
        assert wire.heard[:-1] == good
        assert (wire.link.refused, wire.lost) == (len(script) - len(good), 0)
        wire.line.close()
        await wire.wait(lambda: wire.lost)

    asyncio.run(run())


async def test_asking_again_has_an_end() -> None:
    wire = await open_wire()
    wire.link._asked = 10  # as after ten hellos that nothing readable followed
    wire.send(UNKNOWN)
    await wire.wait(lambda: wire.lost)
    wire.line.close()


# ---- what was missed


E = AgentTaskEvent


def test_what_was_missed_is_what_is_new(tmp_path: Path) -> None:
    def make(job: str, *events: AgentTaskEvent) -> AgentTask:
        task = AgentTask(TaskKey(job, 0, 1), tmp_path, None, 0.0)
        for event in events:
            task.move(event)
        return task

    def hold(job: str, *, ended: bool) -> TaskStatus:
        key = TaskKey(job, 0, 1)
        return TaskStatus(
            key=key,
            pid=7,
            started_at=1.0,
            deadline=2.0,
            stdout="",
            stderr="",
            ended=TaskEnded(key=key) if ended else None,
        )

    tasks = [
        make("starts", E.LAUNCH),
        make("runs", E.LAUNCH, E.RUN),
        make("dies", E.LAUNCH, E.RUN),
        make("told", E.LAUNCH, E.RUN, E.END, E.REPORT),
        make("acked", E.LAUNCH, E.RUN, E.END, E.REPORT, E.ACKNOWLEDGE),
        make("late", E.LAUNCH),
        make("missing", E.LAUNCH),
        make("fetching"),
    ]
    held = [
        ("starts", False),
        ("runs", False),
        ("dies", True),
        ("told", True),
        ("acked", True),
        ("forgotten", True),
    ]
    snapshot = Snapshot(
        incarnation="i", tasks=[hold(job, ended=ended) for job, ended in held], number=3
    )
    said = {
        "late": 3,
        "missing": 2,
    }  # the launch of the one after this hello was said, of the other before
    missed = find_missed(snapshot, tasks, lambda key, number: said.get(key.job_id, number) < number)
    assert [answer.key.job_id for answer in missed.started] == ["starts"]
    assert [answer.key.job_id for answer in missed.ended] == ["dies"]
    assert [key.job_id for key in missed.acked] == ["acked", "forgotten"]
    assert [task.key.job_id for task in missed.unheld] == ["missing"]


# ---- with a real agent, whose guardian is this test


@pytest.fixture
def marked() -> Iterator[tuple[str, int]]:
    """A host's mark and a process that carries it, as a task's does."""
    mark = os.urandom(8).hex()
    process = subprocess.Popen(
        ["sleep", "600"],
        env={HOST_VARIABLE: mark, TASK_VARIABLE: str(KEY), "PATH": os.environ["PATH"]},
    )
    yield mark, process.pid
    process.kill()
    process.wait()
    sweep(mark)


def start_agent(
    folder: Path, mark: str, *, guardian_pid: int
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    config = folder / "agent.json"
    config.write_bytes(
        msgspec.json.encode(
            AgentConfig(url="http://127.0.0.1:9", state_dir=str(folder), name="h", gpus=0)
        )
    )
    ours, theirs = socket.socketpair()
    beats = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    mute, sessions = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = {
        **os.environ, "HOLDFAST_SESSIONS_FD": str(sessions.fileno()), HOST_VARIABLE: mark, TASK_VARIABLE: "agent-1", "HOLDFAST_HOST_MARK": mark, "HOLDFAST_GROUPS": "",
        "HOLDFAST_GUARDIAN_FD": str(theirs.fileno()), "HOLDFAST_BEAT_FD": str(beats.fileno()),
        "HOLDFAST_BEAT_SOCKET": "/none", "HOLDFAST_INCARNATION": "i", "HOLDFAST_GUARDIAN_PID": str(guardian_pid),
    }  # fmt: skip
    with (folder / "journal").open("wb") as journal:
        agent = subprocess.Popen(
            [sys.executable, "-m", "holdfast.agent", str(config)],
            env=env,
            stderr=journal,
            pass_fds=(theirs.fileno(), beats.fileno(), sessions.fileno()),
        )
    for line in (theirs, beats, mute, sessions):
        line.close()
    ours.settimeout(20)
    return agent, ours


def wait_hello(line: socket.socket, number: int) -> None:
    reader = FrameReader()
    while True:
        data = line.recv(1 << 16)
        assert data, "the agent hung up"
        if any(
            isinstance(r, AgentHello) and r.number >= number
            for r in map(decode_request, reader.feed(data))
        ):
            return


@pytest.mark.parametrize("garbage", [OVERSIZED, b"hang up"])
def test_a_living_guardian_that_garbles_its_line_costs_no_task(
    tmp_path: Path, marked: tuple[str, int], garbage: bytes
) -> None:
    """HEAR-2: the agent goes, and leaves what runs to the guardian, which is there."""
    mark, task = marked
    agent, line = start_agent(tmp_path, mark, guardian_pid=os.getpid())
    with line:
        wait_hello(line, 1)
        line.sendall(encode_frame(encode(Snapshot(incarnation="i", tasks=[]))))
        line.sendall(encode_frame(UNKNOWN) + encode_frame(MISSHAPEN))
        wait_hello(line, 2)  # alive, and asking again
        assert agent.poll() is None
        if garbage == OVERSIZED:
            line.sendall(garbage)
        else:
            line.shutdown(socket.SHUT_RDWR)
        assert wait_exit(agent, 60) == 1
    assert is_alive(task)
    assert "but the guardian lives" in (tmp_path / "journal").read_text()


def test_a_line_that_ends_with_its_guardian_is_the_guardians_loss(
    tmp_path: Path, marked: tuple[str, int]
) -> None:
    mark, task = marked
    agent, line = start_agent(
        tmp_path, mark, guardian_pid=2**22 + 1
    )  # its parent is somebody else by now
    with line:
        wait_hello(line, 1)
    assert wait_exit(agent, 60) == 1
    wait_until(lambda: not is_alive(task), what="what the guardian left to be swept")


# ---- the guardian's end


def test_an_agent_of_another_version_is_borne(tmp_path: Path) -> None:
    """LINE-1, the other way round: what an upgraded agent says and an old guardian cannot read is
    refused, and costs nothing."""
    rig = Rig(tmp_path)
    try:
        rig.start()
        rig.meet()
        _, pid = rig.start_task(["sleep", "600"])
        agent = rig.agent_pid
        assert rig._line is not None
        launch = LaunchTask(
            key=KEY,
            argv=["true"],
            env={},
            cwd="/",
            stdout="/dev/null",
            stderr="/dev/null",
            deadline=0.0,
        )
        future = msgspec.msgpack.encode(
            {**msgspec.to_builtins(launch), "t": "launch", "argv": "one word"}
        )
        rig._line.sendall(encode_frame(UNKNOWN) + encode_frame(future))
        assert rig.expect(Unread).count == 1
        assert rig.expect(Unread).count == 2
        assert rig.run_task(["true"], job="after").exit_code == 0
        assert (rig.agent_pid, is_alive(agent), is_alive(pid)) == (agent, True, True)
        assert "of-the-next-version" in rig.notes()
    finally:
        rig.close()


def test_an_agent_that_says_nothing_readable_is_replaced(tmp_path: Path) -> None:
    """AGENT-4: noise is no sign of life."""
    code = (
        "import os, time\n"
        "while True: os.write(int(os.environ['HOLDFAST_GUARDIAN_FD']), b'\\0\\0\\0\\1\\xc1'); "
        "time.sleep(0.01)"
    )
    rig = Rig(tmp_path, agent_argv=[sys.executable, "-c", code], frozen_seconds=0.5)
    try:
        rig.start()
        wait_until(lambda: rig.notes().count("the agent was started") >= 2, what="a second agent")
        assert "has been silent" in rig.notes()
        assert rig.notes().count("is refused") <= 20 * rig.notes().count("the agent was started"), (
            "the noise fills the journal"
        )
    finally:
        rig.close()


def test_times_that_are_none_neither_start_a_task_nor_keep_one(tmp_path: Path) -> None:
    """GUARD-2: one such deadline among the others would let none of them pass."""
    rig = Rig(tmp_path)
    try:
        rig.start()
        rig.meet()
        for number, deadline in enumerate((float("nan"), float("inf"))):
            ended = rig.run_task(["sleep", "600"], job=f"bad{number}", deadline=deadline)
            assert (ended.hosts_fault, "no time" in (ended.start_error or "")) == (True, True)
        lapsing, _ = rig.start_task(["sleep", "600"], job="lapsing", deadline=read_boottime() + 1.0)
        rig.say(Extend(deadlines=[(lapsing, float("nan")), (lapsing, float("inf"))]))
        assert rig.expect(TaskEnded, lapsing).lapsed
        for number, grace in enumerate((float("nan"), float("inf"), -5.0)):
            key, _ = rig.start_task(
                ["sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"], job=f"grace{number}"
            )
            rig.say(StopTask(key=key, grace_seconds=grace))
            assert rig.expect(TaskEnded, key).signal is not None
    finally:
        rig.close()


def test_a_guardian_that_is_killed_is_noticed_at_once(
    tmp_path: Path, marked: tuple[str, int]
) -> None:
    """The way all of this must not break: EOF from a guardian that died is its loss, at once, not
    after a patience."""
    mark, task = marked
    code = (
        "import os, socket, sys, time\n"
        "sys.path.insert(0, os.getcwd())\n"
        "from pathlib import Path\n"
        "from tests.unit.agent.test_link import start_agent, wait_hello\n"
        "agent, line = start_agent(Path(sys.argv[1]), sys.argv[2], guardian_pid=os.getpid())\n"
        "wait_hello(line, 1); print(agent.pid, flush=True); time.sleep(600)"
    )
    guardian = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), mark], stdout=subprocess.PIPE
    )
    assert guardian.stdout is not None
    agent = int(guardian.stdout.readline())
    guardian.send_signal(signal.SIGKILL)
    guardian.wait()
    guardian.stdout.close()
    gone = "the end of both at once, not after the patience for a guardian that is gone"
    wait_until(lambda: not is_alive(task) and not is_alive(agent), 9, what=gone)
