"""What `why` says of pools: hosts on their way to a queued job, and what holds more back. Pure."""

from collections.abc import Iterator

from holdfast.controller.why.circumstances import Circumstances
from holdfast.controller.why.words import line
from holdfast.core.states import HostState
from holdfast.wire.api import WhyLine

_COMING = (HostState.SPAWNING, HostState.PREFLIGHT)


def explain_pools(found: Circumstances) -> Iterator[WhyLine]:
    """Say of each pool that serves the job's queue what it does about the job, or why nothing."""
    for pool in found.pools:
        hint = f"holdfast pools cycles {pool.name}"
        coming = sum(h.pool == pool.name and h.state in _COMING for h in found.hosts)
        if coming:
            many = "s are" if coming > 1 else " is"
            yield line("host_is_coming", f"{coming} host{many} starting in pool {pool.name}", hint)
        if pool.deleted_at is not None:
            yield line("waiting_for_capacity", f"pool {pool.name} is being deleted", hint)
        elif pool.paused_at is not None:
            said = f"waiting for capacity: pool {pool.name} is paused: {pool.paused_reason}"
            yield line("waiting_for_capacity", said, f"holdfast pools resume {pool.name}")
        elif pool.blocked:
            yield line("waiting_for_capacity", f"waiting for capacity: {pool.blocked}", hint)
