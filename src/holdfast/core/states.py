"""States and events of jobs, tasks, attempts, hosts and rented instances, whose values equal the
database's words; and of a task inside its agent; and the hue of each, which pages and terminals share."""

from collections.abc import Mapping
from enum import StrEnum

PARKED = "parked"
"""The cause of a job's wait for a person's `retry`."""


class JobState(StrEnum):
    """The state of a job. A `waiting` job always carries why and until when."""

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
        """Return whether only a person's `retry` can make the job go on."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class TaskState(StrEnum):
    """The state of one rank of the current attempt."""

    BLOCKED = "blocked"
    RESERVED = "reserved"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    PREEMPTING = "preempting"
    PREEMPTED = "preempted"

    @property
    def holds_lease(self) -> bool:
        """Return whether the task occupies its host, which lasts until its end is *confirmed*
        (GANG-3)."""
        return self in (TaskState.RESERVED, TaskState.RUNNING, TaskState.PREEMPTING)


class AttemptState(StrEnum):
    """The state of one execution of the whole job."""

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
    """The state of a host. Only `active` hosts get new work."""

    SPAWNING = "spawning"
    PREFLIGHT = "preflight"
    ACTIVE = "active"
    DRAINING = "draining"
    TERMINATED = "terminated"
    QUARANTINED = "quarantined"
    ERROR = "error"


class InstanceState(StrEnum):
    """The state of the rental of one machine: what its provider was asked, and what it answered."""

    INTENDED = "intended"  # on record; the provider was not asked yet
    ASKED = "asked"  # the provider was asked; whether a machine was made is not known
    MADE = "made"  # the provider's id of the machine is known
    ENDING = "ending"  # its end is requested again until a listing confirms it
    GONE = "gone"  # it is no longer charged for


class AgentTaskState(StrEnum):
    """The state of a task inside its agent. A sync reports it as `starting` until the work itself
    has begun, as `running` until its end is reported, then as `ended`."""

    ORDERED = "ordered"  # its order is on disk
    FETCHING = "fetching"  # the checkpoint it starts from is fetched
    LAUNCHED = "launched"  # the guardian was ordered to start it
    RUNNING = "running"
    ENDING = "ending"  # its processes are gone; the facts of its end are gathered
    SAVING = "saving"  # its end waits for the upload of its checkpoints
    REPORTED = "reported"  # every sync reports its end, until the controller acknowledges it
    ACKNOWLEDGED = "acknowledged"  # the controller has its end; its logs are still shipped
    DONE = "done"  # its record may be deleted

    @property
    def live(self) -> bool:
        """Return whether the end of the task is not reported yet."""
        return self in _LIVE

    @property
    def end_heard(self) -> bool:
        """Return whether the guardian has reported the end of the task to the agent."""
        return self not in _UNENDED


_UNENDED = frozenset(list(AgentTaskState)[:4])
_LIVE = frozenset(list(AgentTaskState)[:6])


class JobEvent(StrEnum):
    """The events of a job."""

    RELEASE = "release"  # its wait is over
    RESERVE = "reserve"  # admission found room for every task
    EXPIRE = "expire"  # the reservation ran out before anything started
    START = "start"  # every task reported that it runs
    SUCCEED = "succeed"  # every task is done
    DRAIN = "drain"  # the one way an attempt is stopped
    REQUEUE = "requeue"  # back in line at once
    BACK_OFF = "back_off"  # back in line at a later time
    FAIL = "fail"
    CANCEL = "cancel"
    REVIVE = "revive"  # a person's `retry` of a job that had ended
    LINE_UP = "line_up"  # the same for a member of an array that limits how many run at once


class TaskEvent(StrEnum):
    """The events of a task."""

    RESERVE = "reserve"
    RELEASE = "release"  # the reservation ran out or was given up before it started
    START = "start"
    FINISH = "finish"  # ended by itself, exit code 0
    FAIL = "fail"  # ended by itself otherwise, or was lost
    PREEMPT = "preempt"  # ordered to stop
    CONFIRM = "confirm"  # its stop is confirmed
    RESET = "reset"  # a member of a supervised job is to be placed anew


class AttemptEvent(StrEnum):
    """Events of an attempt; each moves the attempt from one state to another."""

    START = "start"
    DRAIN = "drain"
    END = "end"


class HostEvent(StrEnum):
    """The events of a host."""

    REGISTER = "register"
    PASS = "pass"
    FAIL = "fail"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    QUARANTINE = "quarantine"
    RELEASE = "release"
    TERMINATE = "terminate"


class AgentTaskEvent(StrEnum):
    """The events of a task inside its agent."""

    FETCH = "fetch"
    LAUNCH = "launch"
    RUN = "run"  # the work itself runs (for a container task: the container, not its runner)
    END = "end"  # the guardian reports that its whole process tree has ended
    SAVE = "save"
    REPORT = "report"
    GIVE_UP = "give_up"  # it never began here, and that is its end
    SALVAGE = "salvage"  # an earlier agent left it, with nothing to do but to ship its logs
    ACKNOWLEDGE = "acknowledge"
    FORGET = "forget"


class InstanceEvent(StrEnum):
    """The events of an instance."""

    ASK = "ask"  # just before the provider's `create`
    MAKE = "make"  # its answer, or a listing, named the machine
    DENY = "deny"  # the provider said that it made nothing
    MISS = "miss"  # listings long after the request do not show it
    END = "end"  # it is not wanted any more
    VANISH = "vanish"  # the machine is believed gone (LEAK-2)


class OutputsState(StrEnum):
    """The state of what one rank of an attempt left (OUT-2)."""

    COLLECTING = "collecting"
    COMPLETE = "complete"
    PARTIAL = "partial"
    LOST = "lost"

    @property
    def settled(self) -> bool:
        """Return whether the outputs change no more."""
        return self is not OutputsState.COLLECTING


class OutputsEvent(StrEnum):
    """An event of the outputs of one rank."""

    SEND = "send"
    FINISH = "finish"
    CUT = "cut"
    LOSE = "lose"
    MISS = "miss"


class Hue(StrEnum):
    """The meaning of a state for a reader, with one colour on each page, in each plot and in a terminal."""

    WAITING = "waiting"  # grey
    STARTING = "starting"  # blue
    RUNNING = "running"  # green
    DRAINING = "draining"  # amber
    FAILED = "failed"  # red
    DONE = "done"  # dim green: what is over is dimmer than what lives
    GONE = "gone"  # dim grey


_WORDS = {
    Hue.WAITING: "waiting queued blocked pending spawning intended collecting unknown",
    Hue.STARTING: "ready reserved preflight asked made backing_off",
    Hue.RUNNING: "running active started open",
    Hue.DRAINING: "draining paused failing cancelling preempting preempted requeued ending partial warn",
    Hue.FAILED: "failed error dead expired quarantined parked lost fail",
    Hue.DONE: "succeeded done delivered complete ok",
    Hue.GONE: "ended terminated cancelled skipped gone",
}
HUES: Mapping[str, Hue] = {word: hue for hue, words in _WORDS.items() for word in words.split()}
"""The hue of each word of a state that a person is shown."""
