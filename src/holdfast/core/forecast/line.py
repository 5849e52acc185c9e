"""The order in which the planner considers the jobs that wait, and a job's place in it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.forecast.outlook import Outlook
from holdfast.core.placement.eligible import serves
from holdfast.core.placement.shares import Shares
from holdfast.core.placement.types import Candidate

MAX_AHEAD = 10_000
"""The most jobs ahead of a job that are counted in each queue; a larger number is of no use."""


def order_line(outlook: Outlook) -> list[Candidate]:
    """Return the line as the planner considers it: jobs within their project's share go before those that
    borrow, each group in its order (SHARE-1). A job counts to its share once it is its turn."""
    if not outlook.shares:
        return list(outlook.line)
    shares = Shares(outlook.shares, outlook.running)
    owning, borrowing = [], []
    for job in outlook.line:
        if job.member is None and not shares.owns(job):
            borrowing.append(job)
        else:
            owning.append(job)
            if job.member is None:
                shares.count_job(job)
    return [*owning, *borrowing]


def list_rivals(outlook: Outlook, queue: str) -> frozenset[str] | None:
    """Return the queues whose jobs may take hosts of `queue`; None: all of them may."""
    serving = [host for host in outlook.hosts if serves(host.queues, queue)]
    if not serving or any(not host.queues for host in serving):
        return None
    return frozenset(name for host in serving for name in host.queues) | {queue}


def count_ahead(outlook: Outlook, job_id: str, queue: str) -> int | None:
    """Return how many jobs that may take hosts of its queue the planner considers before the job; None
    where the line does not reach down to it."""
    rivals = list_rivals(outlook, queue)
    ahead = 0
    for job in order_line(outlook):
        if job.job_id == job_id and job.member is None:
            return ahead
        ahead += rivals is None or job.queue in rivals
    return None


def is_whole(outlook: Outlook, job: Candidate) -> bool:
    """Return whether the line shows every job that comes before this one: a queue of which only the head
    is shown hides jobs of the priority that its last shown job has, or of a lower one."""
    inside = any(each.job_id == job.job_id for each in outlook.line)
    return all(
        floor < job.priority or (inside and queue == job.queue)
        for queue, floor in outlook.floors.items()
    )


def list_ahead(outlook: Outlook, job: Candidate) -> Sequence[Candidate]:
    """Return the jobs of the line that come before the job as its priority is now: a job whose priority was
    changed comes behind all others of its new one."""
    ahead = []
    for each in outlook.line:
        if each.job_id == job.job_id:
            if each.member is None and each.priority == job.priority:
                break
            continue
        if each.priority < job.priority:
            break
        ahead.append(each)
    return ahead
