"""The states and events of jobs, tasks, attempts and hosts. Values equal the database's words."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """Where a job is. `waiting` always carries why and until when."""

    WAITING = "waiting"
    QUEUED = "queued"
    RESERVED = "reserved"
    RUNNING = "running"
    DRAINING = "draining"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """True when nothing will ever happen to the job again, short of a person's `retry`."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class TaskState(StrEnum):
    """Where one rank of the current attempt is."""

    BLOCKED = "blocked"
    RESERVED = "reserved"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    PREEMPTING = "preempting"
    PREEMPTED = "preempted"

    @property
    def holds_lease(self) -> bool:
        """True while the task occupies its host: until its end is *confirmed* (GANG-3)."""
        return self in (TaskState.RESERVED, TaskState.RUNNING, TaskState.PREEMPTING)


class AttemptState(StrEnum):
    """Where one execution of the whole job is."""

    RESERVED = "reserved"
    RUNNING = "running"
    DRAINING = "draining"
    ENDED = "ended"


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REQUEUED = "requeued"
    EXPIRED = "expired"


class HostState(StrEnum):
    """Where a host is. Only `active` hosts are given new work."""

    SPAWNING = "spawning"
    PREFLIGHT = "preflight"
    ACTIVE = "active"
    DRAINING = "draining"
    TERMINATED = "terminated"
    QUARANTINED = "quarantined"
    ERROR = "error"


class JobEvent(StrEnum):
    """What can happen to a job."""

    RELEASE = "release"  # what it waited for is there
    RESERVE = "reserve"  # admission found room for every task
    EXPIRE = "expire"  # the reservation ran out before anything started
    START = "start"  # every task reported that it runs
    SUCCEED = "succeed"  # every task is done
    DRAIN = "drain"  # the one way an attempt is stopped
    REQUEUE = "requeue"  # back in line at once
    BACK_OFF = "back_off"  # back in line at a later time
    FAIL = "fail"
    CANCEL = "cancel"
    HOLD = "hold"  # put aside: a dependency, a start time, a park
    REVIVE = "revive"  # a person's `retry` of a job that had ended


class TaskEvent(StrEnum):
    """What can happen to a task."""

    RESERVE = "reserve"
    RELEASE = "release"  # the reservation ran out or was taken back before it started
    START = "start"
    FINISH = "finish"  # ended by itself, exit code 0
    FAIL = "fail"  # ended by itself otherwise, or was lost
    PREEMPT = "preempt"  # told to stop
    CONFIRM = "confirm"  # its stop is confirmed
    RESET = "reset"  # ready for the next attempt


class AttemptEvent(StrEnum):
    """What can happen to an attempt."""

    START = "start"
    DRAIN = "drain"
    END = "end"


class HostEvent(StrEnum):
    """What can happen to a host."""

    REGISTER = "register"
    PASS = "pass"
    FAIL = "fail"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    QUARANTINE = "quarantine"
    RELEASE = "release"
    TERMINATE = "terminate"
