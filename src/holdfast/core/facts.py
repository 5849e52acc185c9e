"""What is known about a task's end. Facts only; `core.endings.classify` turns them into a cause."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core.causes import Cause, Watchdog

Text = Annotated[str, Meta(max_length=4096)]


class Trip(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A watchdog's verdict: which, the exit code kept on the attempt, a sentence, and the readings
    behind it."""

    watchdog: Watchdog
    exit_code: int
    reason: Text
    evidence: dict[str, str | int | float | bool | None] = {}


class TaskFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the agent (or the controller, for a host it lost) knows about the end of a task.

    exit_code: 0–255 when the process exited by itself, None when a signal ended it or it never
    started.
    signal: the number of the signal that ended it.
    oom: the task's memory cgroup counted an OOM kill.
    trip: the watchdog that ended it, if one did.
    stopped: Holdfast had already sent it a stop when it ended (a drain), so its exit says nothing
    of its own.
    stop_cause: why it was stopped, where the controller did not ask (its host shuts down:
    `host_drained`).
    unkillable: it survived SIGKILL; its host is suspect.
    start_error: why it could not be started (no such program, no such folder, …). With `lost`: for
    want of something of the host's.
    pull_error: why its image could not be had, in the registry's words. runtime_error: why the
    container runtime could
        not run it.
    checkpoint_error: why what an earlier attempt had saved could not be had, so that it was not
    started.
    xids: Xid codes the driver logged for the task's devices while it ran. ecc_errors: uncorrectable
    memory errors that
        were added meanwhile. gpu_lost: a device of the task no longer answers, and what was said
        instead.
    malformed: the report of its end was missing or could not be read; this says how.
    lost: why nothing more will be heard of it: "lease_lapsed", "new_incarnation", "host_gone",
    "lost_lease".
    rendezvous_port: the port Holdfast chose for it to listen on, where it was the first rank; 0 for
    others.
    ended_ago_seconds: how long before this report it ended, on its host's own clock.
    max_memory_bytes: the most it ever held. memory_limit_bytes: the limit of its control group, 0
    without one.
    log_tail: the last lines of its output, redacted.
    """

    exit_code: Annotated[int, Meta(ge=0, le=255)] | None = None
    signal: Annotated[int, Meta(ge=1, le=64)] | None = None
    oom: bool = False
    trip: Trip | None = None
    stopped: bool = False
    stop_cause: Cause | None = None
    unkillable: bool = False
    start_error: Text | None = None
    pull_error: Text | None = None
    runtime_error: Text | None = None
    checkpoint_error: Text | None = None
    xids: Annotated[tuple[int, ...], Meta(max_length=64)] = ()
    ecc_errors: Annotated[int, Meta(ge=0)] = 0
    gpu_lost: Text | None = None
    malformed: Text | None = None
    lost: Text | None = None
    log_tail: Annotated[str, Meta(max_length=16_384)] = ""
    runtime_seconds: float = 0.0
    rendezvous_port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    ended_ago_seconds: Annotated[float, Meta(ge=0)] = 0.0
    max_memory_bytes: int = 0
    memory_limit_bytes: Annotated[int, Meta(ge=0)] = 0

    @property
    def succeeded(self) -> bool:
        """True when the task did its work: exit code 0, by itself, with no trip, and all of that
        could be read."""
        by_itself = self.trip is None and not self.stopped and not self.unkillable
        return self.exit_code == 0 and by_itself and self.malformed is None


class Classified(msgspec.Struct, frozen=True, kw_only=True):
    """A cause, the rule that matched, the words for a person, and what the rule went by.

    exit_code: the one kept on the attempt: the watchdog's where one tripped, else 128 + signal,
    else the process's.
    evidence: what the rule matched: the line of the log, the counter, the code.
    never_retry, avoid_host: what an operator's rule says besides the cause.
    """

    cause: Cause
    rule: str
    message: str
    exit_code: int | None
    evidence: dict[str, str | int | float | bool | None] = {}
    never_retry: bool = False
    avoid_host: bool = False
