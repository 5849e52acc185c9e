"""Agent ↔ guardian: msgpack messages in frames over a Unix stream socket that the guardian makes
for its agent.

All times are seconds of CLOCK_BOOTTIME, which every process of the host shares and which counts
suspension. Those of requests have no bounds here, because the guardian looks at each by itself: a
bad one among many deadlines is to cost the others nothing. Every request is idempotent: the agent
may die at any line, come back, ask for a `Snapshot` and go on. The tags stay as they are, because
the two may be of different versions.

LINE-1  A message that cannot be read (of an unknown kind, of another shape) is refused, counted and
        named, and costs neither side its life: a guardian outlives upgrades of its agent. An agent
        that missed something asks for a `Snapshot`. A frame that announces more than the limit
        leaves no way to find the next one: that line is given up and the next agent gets a new one.
"""

from typing import Literal

import msgspec

from holdfast.bounds import Count, Elapsed, Instant, Large, Whole
from holdfast.core.ids import TaskKey


class GuardianMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", omit_defaults=True):
    """Root of the closed set."""


# ---- agent → guardian


class AgentHello(GuardianMessage, frozen=True, kw_only=True, tag="hello"):
    """The first message of an agent, or of one that missed a message; answered by a `Snapshot` with
    the same number."""

    pid: Count
    number: Large = 0


class AgentAlive(GuardianMessage, frozen=True, kw_only=True, tag="alive"):
    """The sign that the agent's loop runs. After `frozen_seconds` of silence the guardian replaces
    the agent.

    holding: ends are not reported yet, because their tasks' checkpoints are still being uploaded. A
    host that shuts down waits for this.
    """

    holding: bool = False


class LaunchTask(GuardianMessage, frozen=True, kw_only=True, tag="launch"):
    """The order to start a task. A key that is known already is answered with its status, never
    started twice; a key whose end was acknowledged is refused (`TaskEnded.start_error`).

    env: the whole environment. stdout, stderr: paths opened for appending; stdin: a path to read,
    "" for /dev/null. memory_bytes: limit, 0 without one. contain: give the task a control group of
    its own where one can be made; a task with a memory limit always gets one. A group costs the
    start some ten milliseconds, because the kernel waits for every CPU before it moves a process,
    so a short CPU task goes without. deadline: the time at which the guardian ends the task unless
    an `Extend` came. grace_seconds: time between TERM and KILL where the guardian itself stops the
    task. stop_tells: see `process.telling`. leads: its first process passes a TERM on (a
    container's runner), so only this process gets the TERM; the KILL goes to the whole tree.
    terminal: its three streams are a terminal, whose master goes to the agent as that of a session,
    which appends what it reads to `stdout`.
    """

    key: TaskKey
    argv: list[str]
    env: dict[str, str]
    cwd: str
    stdout: str
    stderr: str
    deadline: float
    memory_bytes: Large = 0
    contain: bool = False
    grace_seconds: float = 15.0
    leads: bool = False
    stdin: str = ""
    log_disk_bytes: Large = 256 << 20
    terminal: bool = False
    stop_tells: Literal["main", "tree"] = "main"


class Extend(GuardianMessage, frozen=True, kw_only=True, tag="extend"):
    """New deadlines after a successful sync. The latest deadline of a task holds, in any order of
    arrival."""

    deadlines: list[tuple[TaskKey, float]]


class StopTask(GuardianMessage, frozen=True, kw_only=True, tag="stop"):
    """The order to stop a task: TERM to the whole tree, and KILL after `grace_seconds` (0: at
    once). Repeats act once; a sooner KILL wins.

    A task that has ended is answered with its `TaskEnded` again; an unknown key is not answered.
    """

    key: TaskKey
    grace_seconds: float


class Ack(GuardianMessage, frozen=True, kw_only=True, tag="ack"):
    """The news that the controller has these ends, so that the guardian may forget them."""

    keys: list[TaskKey]


# ---- guardian → agent


class StreamEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of one output stream. size: number of bytes that the task wrote. lost_bytes: number
    of them that are in no file; reason: why."""

    size: Large = 0
    lost_bytes: Large = 0
    reason: str = ""


class TaskEnded(GuardianMessage, frozen=True, kw_only=True, tag="ended"):
    """The end of a task with its whole tree. Every snapshot repeats it until it is acknowledged.

    exit_code, signal: of the first process; both are None where it still lives (`unkillable`) or
    never started (`start_error`), but exit_code is 126 or 127, as in shells, where the program or
    its folder can never be started here. oom: its control group counted an OOM kill of one of its
    processes; oom_counted: that count could be read. stopped: a `StopTask` had been sent, or the
    deadline had passed, before the process ended. lapsed: the guardian ended it at its lease
    deadline. unkillable: processes of it survived SIGKILL for the kill limit; survivors: their
    pids. hosts_fault: the start failed because the
    host lacked something (descriptors, processes, memory, disk). runtime_seconds: run time of the
    first process. max_memory_bytes: peak of the group, its file cache included; without a group, of
    the largest process. output: the end of each stream that was written to. left_running: names of
    processes that its first process had left running and that were ended. stalled_seconds: with
    `lapsed`, for how long the guardian's own loop had stood still before. keeper_killed: its keeper
    was killed before it (KEEPER-2).
    """

    key: TaskKey
    exit_code: Whole | None = None
    signal: Count | None = None
    oom: bool = False
    oom_counted: bool = False
    stopped: bool = False
    lapsed: bool = False
    unkillable: bool = False
    survivors: list[Count] = []
    start_error: str | None = None
    hosts_fault: bool = False
    runtime_seconds: Elapsed = 0.0
    max_memory_bytes: Large = 0
    output: dict[str, StreamEnd] = {}
    left_running: list[str] = []
    stalled_seconds: Elapsed = 0.0
    keeper_killed: bool = False


class TaskStarted(GuardianMessage, frozen=True, kw_only=True, tag="started"):
    """The news that the task's process runs."""

    key: TaskKey
    pid: Count
    started_at: Instant


class TaskStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One task as the guardian knows it; pid and started_at are 0 where there is no process."""

    key: TaskKey
    pid: Count
    started_at: Instant
    deadline: Instant
    stdout: str
    stderr: str
    stopping: bool = False
    ended: TaskEnded | None = None


class Snapshot(GuardianMessage, frozen=True, kw_only=True, tag="snapshot"):
    """Every task of the guardian, in answer to the `AgentHello` of this number (0: an agent that
    does not number its hellos)."""

    incarnation: str
    tasks: list[TaskStatus]
    number: Large = 0


class Unread(GuardianMessage, frozen=True, kw_only=True, tag="unread"):
    """The news that `count` messages of the agent were not carried out (LINE-1), the last of them
    for `reason`."""

    count: Large
    reason: str


class Stopping(GuardianMessage, frozen=True, kw_only=True, tag="stopping"):
    """The news that the host shuts down: every task gets TERM, grace, KILL. The agent reports their
    ends and exits."""


Request = AgentHello | AgentAlive | LaunchTask | Extend | StopTask | Ack
Answer = TaskEnded | TaskStarted | Snapshot | Stopping | Unread

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
