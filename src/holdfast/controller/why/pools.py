"""The lines of `why` about pools: hosts on their way to a queued job, and what holds more back.
Pure."""

from collections import Counter
from collections.abc import Iterator

from holdfast.controller.why.circumstances import Circumstances
from holdfast.controller.why.words import line
from holdfast.core.fleet.records import PoolRecord
from holdfast.core.placement.candidates import as_candidate
from holdfast.core.placement.eligible import carries
from holdfast.core.placement.possible import count_all_tasks
from holdfast.core.placement.types import Candidate
from holdfast.core.states import HostState
from holdfast.core.words import say_span
from holdfast.wire.api import WhyLine

MAX_NAMED = 5
MAX_SAID = 3
COMING = (HostState.SPAWNING, HostState.PREFLIGHT)


def list_renting(found: Circumstances) -> list[PoolRecord]:
    """Return the pools that may rent a host for the job, and that have an offer large enough for
    the job."""
    job = found.job
    wanted = as_candidate(job)
    return [
        pool
        for pool in found.pools
        if pool.deleted_at is None
        and pool.paused_at is None
        and carries(pool.spec.labels, job.spec.host_labels)
        and _can_hold(found, wanted, pool)
    ]


def _can_hold(found: Circumstances, wanted: Candidate, pool: PoolRecord) -> bool:
    """Return whether the pool's known offers can hold the job whole."""
    offers = [size for size in found.sizes if size.pool == pool.name]
    return not offers or count_all_tasks(wanted, offers) >= wanted.tasks


def explain_pools(found: Circumstances) -> Iterator[WhyLine]:
    """Explain for each pool that serves the job's queue what it does about the job, or why it does
    nothing."""
    for pool in found.pools:
        hint = f"holdfast pools cycles {pool.name}"
        coming = [h for h in found.hosts if h.pool == pool.name and h.state in COMING]
        if coming:
            many = "s are" if len(coming) > 1 else " is"
            words = "; ".join(
                sorted({h.provider_says for h in coming if h.provider_says})[:MAX_SAID]
            )
            words = f"; its provider says: {words}" if words else ""
            message = f"{len(coming)} host{many} starting in pool {pool.name}{words}"
            yield line("host_is_coming", message, hint)
        if pool.deleted_at is not None:
            yield line("waiting_for_capacity", f"pool {pool.name} is being deleted", hint)
        elif pool.paused_at is not None:
            said = f"waiting for capacity: pool {pool.name} is paused: {pool.paused_reason}"
            yield line("waiting_for_capacity", said, f"holdfast pools resume {pool.name}")
        elif pool.blocked:
            yield line("waiting_for_capacity", f"waiting for capacity: {pool.blocked}", hint)
    yield from _explain_next(found)


def _explain_next(found: Circumstances) -> Iterator[WhyLine]:
    """Explain when the pools that nothing holds back rent the next host; yields nothing where one
    is on its way."""
    free = [pool for pool in list_renting(found) if not pool.blocked]
    names = {pool.name for pool in free}
    if any(host.pool in names and host.state in COMING for host in found.hosts):
        return
    active = Counter(host.pool for host in found.hosts if host.state is HostState.ACTIVE)
    empty = [pool for pool in free if not active[pool.name]]
    if empty:
        soon = say_span(max(pool.spec.poll_seconds for pool in empty))
        which = " or ".join(pool.name for pool in empty[:MAX_NAMED])
        hint = f"holdfast pools plan {empty[0].name}"
        yield line("pool_decides", f"pool {which} rents a host within {soon}", hint)
        return
    for pool in free[:MAX_NAMED]:
        count, name = active[pool.name], pool.name
        hosts = "1 host" if count == 1 else f"{count} hosts"
        jobs = f"{count * pool.spec.jobs_per_host:g}"
        said = f"pool {name} has {hosts}, and rents more when over {jobs} jobs wait"
        said += _say_alone(found, pool)
        yield line("pool_decides", said, f"holdfast pools plan {name}")


def _say_alone(found: Circumstances, pool: PoolRecord) -> str:
    """Return when the pool rents a host for the job, however few wait (DEMAND-5)."""
    after, queued_at = pool.spec.rent_after_seconds, found.job.queued_at
    if after is None or queued_at is None:
        return ""
    left = after - (found.now - queued_at).total_seconds()
    if left > 0:
        return (
            f", or in {say_span(left)} for this job, because it has then waited {say_span(after)}"
        )
    soon = say_span(pool.spec.poll_seconds)
    return f", or within {soon} for this job, because it has waited {say_span(after)}"
