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

import msgspec

from holdfast.bounds import Count, Elapsed, Instant, Large, Whole
from holdfast.core.ids import TaskKey


class GuardianMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", omit_defaults=True):
    """Root of the closed set."""


# ---- agent → guardian


class AgentHello(GuardianMessage, frozen=True, kw_only=True, tag="hello"):
    """An agent began, or missed something; answered by a `Snapshot` of the same number."""

    pid: Count
    number: Large = 0


class AgentAlive(GuardianMessage, frozen=True, kw_only=True, tag="alive"):
    """The agent's loop turns. Silence for `frozen_seconds` makes the guardian replace the agent.

    holding: ends are not told yet, because what their tasks saved is still being uploaded. A host
    that shuts down waits for it.
    """

    holding: bool = False


class LaunchTask(GuardianMessage, frozen=True, kw_only=True, tag="launch"):
    """Start a task. A key already known is answered with its status again, never started twice; a
    key whose end was acknowledged is refused (`TaskEnded.start_error`).

    env is the whole environment. stdout and stderr are paths opened for appending; stdin
    is one to read, "" for /dev/null. memory_bytes 0
    is no limit. contain: put it into a control group of its own where one can be made; a memory
    limit always does. It costs the start some ten milliseconds (the kernel waits for every CPU
    before it moves a process), so a short CPU task goes without. deadline: when the guardian ends
    it by itself unless an `Extend` came. grace_seconds: between TERM and KILL where the guardian
    must stop it on its own account. leads: its first process passes a TERM on by itself (a
    container's runner), so no other process of its tree is sent one; the KILL is for all of them.
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


class Extend(GuardianMessage, frozen=True, kw_only=True, tag="extend"):
    """New deadlines after a successful sync. The latest holds, in any order of arrival."""

    deadlines: list[tuple[TaskKey, float]]


class StopTask(GuardianMessage, frozen=True, kw_only=True, tag="stop"):
    """TERM to the whole tree now, KILL after `grace_seconds` (0: KILL at once). Repeats act once; a
    sooner KILL wins.

    A task that has ended is answered with its `TaskEnded` again; an unknown key is not answered.
    """

    key: TaskKey
    grace_seconds: float


class Ack(GuardianMessage, frozen=True, kw_only=True, tag="ack"):
    """The controller has these ends; the guardian may forget them."""

    keys: list[TaskKey]


# ---- guardian → agent


class StreamEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one output stream: how many bytes were written to it, and how many of them are
    in no file, for what reason."""

    size: Large = 0
    lost_bytes: Large = 0
    reason: str = ""


class TaskEnded(GuardianMessage, frozen=True, kw_only=True, tag="ended"):
    """A task is over, its whole tree included. Repeated in every snapshot until acknowledged.

    exit_code and signal are the first process's; both are None where it still lives (`unkillable`)
    or never started (`start_error`), but exit_code is 126 or 127, as shells have it, where the
    program or its folder can never be started here. oom: its control group counted an OOM kill, of
    any of its processes. stopped: a `StopTask` had been sent, or the deadline had passed, before
    the process ended. lapsed: the guardian ended it at its lease deadline. unkillable: processes of
    it survived SIGKILL for the kill limit; `survivors` are their pids. hosts_fault: it did not
    start for want of something of the host's (descriptors, processes, memory, disk), not of its
    own. runtime_seconds: of the first process. max_memory_bytes: the group's peak, its file cache
    included; without a group the largest process's. output: of each stream that was written to.
    left_running: names of processes that its first process had left and that were ended.
    stalled_seconds: of one that lapsed: for how long the guardian itself had not turned then.
    """

    key: TaskKey
    exit_code: Whole | None = None
    signal: Count | None = None
    oom: bool = False
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


class TaskStarted(GuardianMessage, frozen=True, kw_only=True, tag="started"):
    """The task's process runs."""

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
    """Everything the guardian holds, for the `AgentHello` of this number (0: it does not count)."""

    incarnation: str
    tasks: list[TaskStatus]
    number: Large = 0


class Unread(GuardianMessage, frozen=True, kw_only=True, tag="unread"):
    """`count` messages of the agent were not carried out (LINE-1), the last for `reason`."""

    count: Large
    reason: str


class Stopping(GuardianMessage, frozen=True, kw_only=True, tag="stopping"):
    """The guardian was told to shut the host down: every task gets TERM, grace, KILL. The agent
    reports them and goes."""


Request = AgentHello | AgentAlive | LaunchTask | Extend | StopTask | Ack
Answer = TaskEnded | TaskStarted | Snapshot | Stopping | Unread

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
