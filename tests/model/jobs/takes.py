"""Jobs that hosts take for themselves, in memory (`core.placement.takes`)."""

import heapq
from collections.abc import Sequence
from datetime import datetime, timedelta

from holdfast.core.placement.takes import (
    PASSED_SECONDS,
    TakeTerms,
    count_worth,
    group_alike,
    plan_takes,
)
from holdfast.core.states import JobState, TaskState
from holdfast.moves.jobs.reports import AnswerBuilder, count_wanted
from tests.model.jobs.admission import MemoryAdmission, order_of
from tests.model.jobs.candidates import candidate_of
from tests.model.state import MemoryState


def take_jobs(
    s: MemoryState,
    admission: MemoryAdmission,
    builders: Sequence[AnswerBuilder],
    terms: TakeTerms,
    at: datetime,
) -> list[tuple[AnswerBuilder, str]]:
    """Reserve the jobs that these hosts take, and return each job with its host's builder. Mark the
    builders of settled hosts: they take nothing more."""
    by_host = {d.sync.host_id: d for d in builders}
    hosts = [
        s.hosts[host_id]
        for host_id in sorted(by_host)
        if s.hosts[host_id].takes_work and not _has_fallen(s, host_id)  # TAKE-3
    ]
    if terms.revision != s.settings_rev:
        return []
    open_queues = {q.name for q in s.queues.values() if q.paused_at is None}
    served = {q for q in open_queues if any(not h.queues or q in h.queues for h in hosts)}
    waiting = [s.jobs[i] for i in s.by_state[JobState.QUEUED] if s.jobs[i].row.queue in served]
    limit = count_worth(sum(count_wanted(d.sync) for d in builders))
    queued = heapq.nsmallest(limit, waiting, key=order_of)
    passed = s.passed_over
    known = not passed.holds and at - passed.at <= timedelta(seconds=PASSED_SECONDS)
    found = plan_takes(
        group_alike([candidate_of(job, at) for job in queued]),
        [s.capacity(host) for host in hosts],
        terms,
        passed.job_ids if known else (),
        cut=len(queued) >= limit,
    )
    for host_id in found.settled:
        by_host[host_id].settled = terms.whole
    taken = []
    for p in found.placements:
        job = s.jobs[p.job_id]
        ttl = job.spec.lease_ttl_seconds or terms.ttls[job.row.queue]
        admission.reserve_one(job, p, ttl, at, road="host")
        taken.append((by_host[p.tasks[0].host_id], p.job_id))
    return taken


def _has_fallen(s: MemoryState, host_id: str) -> bool:
    undecided = (TaskState.FAILED, TaskState.PREEMPTED)
    return any(
        s.tasks[job_id][rank].state in undecided for job_id, rank in s.on_host.get(host_id, {})
    )
