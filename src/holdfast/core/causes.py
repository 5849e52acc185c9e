"""Why an attempt ended: the causes, what each is charged to, and the watchdogs' exit codes."""

from collections.abc import Mapping
from enum import IntEnum, StrEnum

from holdfast.errors import ValidationError


class Cause(StrEnum):
    """The class of a failure; wherever it is kept, a sentence and the evidence stand beside it.

    The text below each is its page of the docs (`holdfast docs oom_killed`)."""

    NONZERO_EXIT = "nonzero_exit"
    """The program ended by itself with another exit code than 0, or of a signal that no rule
    explains. Mend: read the end of its log (`holdfast logs JOB`); ask for retries (`--max-retries`)
    only where another try may succeed."""
    PROGRAM_ERROR = "program_error"
    """The program or its configuration is wrong, by the words of its own exception. Mend: correct
    it and submit again; another attempt is made only where this one got further, or where another
    host may have what is missing."""
    OOM_KILLED = "oom_killed"
    """The memory of the GPU or of the task ran out. Mend: a smaller batch, `--memory` with more, or
    a GPU that holds it."""
    IMAGE_PULL_FAILURE = "image_pull_failure"
    """The image could not be fetched, in the registry's words. Mend: the name and the tag, or the
    login of the agent's user at the registry."""
    SETUP_FAILED = "setup_failed"
    """The code or the environment of the task could not be made ready. Mend: the setup line, whose
    last lines are in the log; the commit or the bundle that is named."""
    START_TIMEOUT = "start_timeout"
    """The task could not be started in time, for a reason of its host or its checkpoint. Mend:
    nothing, where another host has room; else what the reason names (disk, memory, descriptors), or
    a longer `--start-timeout`."""
    APP_UNUSABLE = "app_unusable"
    """An executor of calls could not import its app, or start its interpreter, on that host. Mend:
    install what the last line of the traceback names there, or send the code along
    (`workdir="."`)."""
    UNKNOWN = "unknown"
    """The task ended and nothing says why. Mend: `holdfast show JOB --events`, and the log of its
    agent."""
    AGENT_TRANSIENT = "agent_transient"
    """The host, its lease, or a service or file system that the task needs was lost for a while.
    Mend: nothing; the job runs again at the infrastructure's charge. Where it comes back, look at
    the host (`holdfast hosts checks HOST`)."""
    GPU_FAULT = "gpu_fault"
    """The GPU or its driver failed, by a measurement or by the words of the log. Mend: nothing for
    the job; the host is in quarantine where it was measured, until it is repaired and released."""
    SILENT_CORRUPTION = "silent_corruption"
    """A rank computed something else than the others, by the checksums that the job sent. Mend:
    nothing for the job, which goes on from its checkpoint; have the host that is set aside
    checked."""
    TIME_LIMIT = "time_limit"
    """The attempt reached its time limit. Mend: a longer `--time-limit`, or checkpoints, so that
    the next attempt goes on."""
    STALLED = "stalled"
    """No beat came, and the task was seen doing nothing. Mend: look where it stood (`holdfast show
    JOB --forensics`); where it only waited, a `holdfast.section` or a longer `--stall-timeout`."""
    GPU_WEDGED = "gpu_wedged"
    """The GPUs of the task did nothing for the whole window, and their memory stood still. Mend: as
    for a stall; beats tell a pause from a hang."""
    LEFT_IDLE = "left_idle"
    """A person sat at this job, and no key, no traffic and no work came for the whole timeout.
    Mend: start it again, with a longer `--idle-timeout`."""
    PREEMPTED = "preempted"
    """A more important job took its place, or the provider took the machine. Mend: nothing; it is
    queued again at no charge. Save checkpoints, and give `--notice` time for it."""
    HOST_DRAINED = "host_drained"
    """Its host or queue was switched off. Mend: nothing; it is queued again at no charge."""
    SCALED_DOWN = "scaled_down"
    """Its host was not needed any more. Mend: nothing; it is queued again at no charge."""
    STRAGGLER = "straggler"
    """The job was started again because one of its ranks was slow by itself. Mend: nothing; look at
    the host that `holdfast why JOB` names."""
    SIBLING_DRAINED = "sibling_drained"
    """Another rank of the gang began the failure, and this one was stopped with it. Mend: look at
    the rank that fell first."""
    USER_CANCELLED = "user_cancelled"
    """A person, or a job, cancelled it. Mend: `holdfast retry JOB`, where that was a mistake."""
    DEPENDENCY = "dependency"
    """A job that this one waited for ended otherwise than it wanted. Mend: retry the parent, then
    this one."""
    VALIDATION_ERROR = "validation_error"
    """The program or its folder is missing on the host, or cannot be executed. Mend: the path,
    `--cwd`, or `--workdir .` to take the code along."""
    QUOTA_EXCEEDED = "quota_exceeded"
    """The project's hard quota had no room for it. Mend: wait for other jobs, or have an admin
    raise the quota."""
    MALFORMED_REPORT = "malformed_report"
    """The report of the end was missing or could not be read, so that another run might do harm.
    Mend: look at the work itself, then `holdfast retry JOB`."""


class Budget(StrEnum):
    """The budget to which a cause is charged."""

    RETRIES = "retries"
    INFRA = "infra"
    WATCHDOG = "watchdog"
    NOTHING = "nothing"  # requeued at no charge
    NEVER = "never"  # never retried, cannot be opted in


CHARGED_TO: Mapping[Cause, Budget] = {
    Cause.NONZERO_EXIT: Budget.RETRIES,
    Cause.PROGRAM_ERROR: Budget.RETRIES,  # where the attempt got further; else none is spent (BUDGET-9)
    Cause.OOM_KILLED: Budget.RETRIES,
    Cause.IMAGE_PULL_FAILURE: Budget.RETRIES,
    Cause.SETUP_FAILED: Budget.RETRIES,
    Cause.START_TIMEOUT: Budget.NOTHING,  # it has a back-off of its own (BUDGET-5)
    Cause.APP_UNUSABLE: Budget.NOTHING,  # another host may run it (ABLE-1)
    Cause.UNKNOWN: Budget.RETRIES,
    Cause.AGENT_TRANSIENT: Budget.INFRA,
    Cause.GPU_FAULT: Budget.INFRA,
    Cause.SILENT_CORRUPTION: Budget.INFRA,
    Cause.TIME_LIMIT: Budget.WATCHDOG,
    Cause.STALLED: Budget.WATCHDOG,
    Cause.GPU_WEDGED: Budget.WATCHDOG,
    Cause.LEFT_IDLE: Budget.NEVER,
    Cause.PREEMPTED: Budget.NOTHING,
    Cause.HOST_DRAINED: Budget.NOTHING,
    Cause.SCALED_DOWN: Budget.NOTHING,
    Cause.STRAGGLER: Budget.NOTHING,
    Cause.SIBLING_DRAINED: Budget.NOTHING,
    Cause.USER_CANCELLED: Budget.NEVER,
    Cause.DEPENDENCY: Budget.NEVER,
    Cause.VALIDATION_ERROR: Budget.NEVER,
    Cause.QUOTA_EXCEEDED: Budget.NEVER,
    Cause.MALFORMED_REPORT: Budget.NEVER,
}

UNSTARTED = (Cause.START_TIMEOUT, Cause.IMAGE_PULL_FAILURE)
"""Causes of attempts in which some rank never got what it needs to start."""

ELIGIBLE: tuple[Cause, ...] = tuple(
    c for c, budget in CHARGED_TO.items() if budget is not Budget.NEVER
)
"""Causes that may be followed by another attempt. The others are never retried (RETRY-2)."""


GROUPS: Mapping[str, tuple[Cause, ...]] = {
    word: tuple(c for c in ELIGIBLE if CHARGED_TO[c] is budget)
    for word, budget in (
        ("failures", Budget.RETRIES),
        ("infra", Budget.INFRA),
        ("watchdog", Budget.WATCHDOG),
        ("system", Budget.NOTHING),
    )
}
"""Word → the eligible causes of one budget, for settings; `system`: causes charged to nothing."""


def parse_causes(raw: object) -> tuple[Cause, ...]:
    """Read "all", "none", or causes and words of GROUPS; raise ValidationError for others."""
    text = str(raw).strip().lower()
    if text in ("all", "none"):
        return ELIGIBLE if text == "all" else ()
    words = [word.strip() for word in text.split(",")]
    found: dict[Cause, None] = {}
    for word in words:
        if word not in ELIGIBLE and word not in GROUPS:
            never = "is never retried and cannot be opted in"
            what = never if word in list(Cause) else "is no cause"
            groups = f"{', '.join(GROUPS)} stand for several, all and none for themselves"
            known = f"eligible are {', '.join(ELIGIBLE)}; {groups}"
            raise ValidationError(f"retry_on: {word!r} {what}; {known}", field="retry_on")
        found.update(dict.fromkeys(GROUPS.get(word) or (Cause(word),)))
    return tuple(found)


class Watchdog(StrEnum):
    """The six watchdogs."""

    TIME_LIMIT = "time_limit"
    STALL = "stall"
    LOST_LEASE = "lost_lease"
    GPU_HEALTH = "gpu_health"
    OPERATOR_STOP = "operator_stop"
    IDLE = "idle"


class WatchdogExit(IntEnum):
    """The exit code kept on the attempt when a watchdog ended it."""

    TIME_LIMIT = 75
    STALL = 76
    LOST_LEASE = 77
    GPU_HEALTH = 78
    OPERATOR_STOP = 79
    IDLE = 80


EXIT_OF: Mapping[Watchdog, WatchdogExit] = {dog: WatchdogExit[dog.name] for dog in Watchdog}

CAUSE_OF_TRIP: Mapping[Watchdog, Cause] = {
    Watchdog.TIME_LIMIT: Cause.TIME_LIMIT,
    Watchdog.STALL: Cause.STALLED,
    Watchdog.LOST_LEASE: Cause.AGENT_TRANSIENT,
    Watchdog.GPU_HEALTH: Cause.GPU_WEDGED,
    Watchdog.OPERATOR_STOP: Cause.HOST_DRAINED,
    Watchdog.IDLE: Cause.LEFT_IDLE,
}
