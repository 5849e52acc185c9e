"""Why an attempt ended: the causes, what each is charged to, and the watchdogs' exit codes."""

from collections.abc import Mapping
from enum import IntEnum, StrEnum

from holdfast.errors import ValidationError


class Cause(StrEnum):
    """The class of a failure; wherever it is kept, a sentence and the evidence stand beside it."""

    NONZERO_EXIT = "nonzero_exit"
    PROGRAM_ERROR = "program_error"
    OOM_KILLED = "oom_killed"
    IMAGE_PULL_FAILURE = "image_pull_failure"
    SETUP_FAILED = "setup_failed"
    START_TIMEOUT = "start_timeout"
    APP_UNUSABLE = "app_unusable"
    UNKNOWN = "unknown"
    AGENT_TRANSIENT = "agent_transient"
    GPU_FAULT = "gpu_fault"
    SILENT_CORRUPTION = "silent_corruption"
    TIME_LIMIT = "time_limit"
    STALLED = "stalled"
    GPU_WEDGED = "gpu_wedged"
    LEFT_IDLE = "left_idle"
    PREEMPTED = "preempted"
    HOST_DRAINED = "host_drained"
    SCALED_DOWN = "scaled_down"
    STRAGGLER = "straggler"
    SIBLING_DRAINED = "sibling_drained"
    USER_CANCELLED = "user_cancelled"
    DEPENDENCY = "dependency"
    VALIDATION_ERROR = "validation_error"
    QUOTA_EXCEEDED = "quota_exceeded"
    MALFORMED_REPORT = "malformed_report"


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
