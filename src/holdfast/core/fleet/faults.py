"""Why a host of a pool is in error: an enum, and a sentence for each."""

from enum import StrEnum


class HostFault(StrEnum):
    """Why a host is given back to its provider."""

    HEARTBEAT_EXPIRED = "heartbeat_expired"
    NO_HEARTBEAT = "no_heartbeat"
    STUCK_TASK = "stuck_task"
    SPAWN_TIMEOUT = "spawn_timeout"
    NO_INSTANCE_ID = "no_instance_id"
    PREFLIGHT_FAILED = "preflight_failed"
    PROVIDER_GONE = "provider_gone"
    PREEMPTED = "preempted"


SPAWN_FAULTS = frozenset(
    {
        HostFault.NO_HEARTBEAT,
        HostFault.SPAWN_TIMEOUT,
        HostFault.NO_INSTANCE_ID,
        HostFault.PREFLIGHT_FAILED,
    }
)
"""Faults of hosts that never served: they count against the spawn breaker and the offer."""


UPLOAD_SECONDS = 30.0
"""The part of a provider's notice that is left for the upload of what was saved."""


def split_notice(seconds: float | None) -> float | None:
    """Return how long the tasks of a machine that is taken away in `seconds` have to save, so that
    what they save can still be uploaded: all but `UPLOAD_SECONDS`, at least half. None: the
    provider does not say when, so they have their grace."""
    return None if seconds is None else max(0.0, seconds - UPLOAD_SECONDS, seconds / 2)


def find_gone_fault(lost: str) -> HostFault:
    """Return the fault of a machine that is gone, by its provider's word for why (`Machine.lost`)."""
    return HostFault.PREEMPTED if lost == "preempted" else HostFault.PROVIDER_GONE
