"""Which queued jobs a host takes for itself when its sync has made room. Pure.

TAKE-1  A host takes only what needs no view of the cluster: jobs of one task, in queues where no
        limit, quota or share binds, on room of its own that is free by live leases (ADMIT-2), and
        none that avoids it (ADMIT-3).
TAKE-2  It takes them in their order, and stops at the first that it serves and may not take, so that
        no job waits for the ever same ones behind it; unless the leader has just considered that
        job, passed it over, and held no room back for any (ADMIT-4). One that avoids the host is
        always waited for, because the leader may place it there all the same: it is the first, and
        no other host may have room.
TAKE-3  It takes none while a job that fell on it is not decided about: that one may be queued again
        at the front, and has the room that it left before all that wait behind it.
TAKE-4  Transactions that take at the same time, in one process, choose different jobs: each goes past
        what those beside it have chosen, as past jobs that are taken. If such a one fails, its jobs
        are queued in their old place.
AHEAD-1  Beyond its slots, a host takes at most as many jobs as it asks for, and holds them until a
         slot of its own is free: plain jobs of one CPU slot, without devices or a container, that
         have had no attempt yet and are neither interactive nor executors of calls. It goes past
         none that it serves, and takes them only from a queue deeper than what was read of it, so
         that its end is left to all hosts alike. Their memory is held like any other's (ADMIT-2).
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from holdfast.core.placement.room import HostRoom, Kind, count_fitting
from holdfast.core.placement.types import (
    Candidate,
    Capacity,
    JobPlacement,
    TaskPlacement,
    place_job,
)

MAX_TAKEN = 500
"""Jobs that one batch of syncs takes at most: what one round of the leader starts."""
SPARE = 8
MAX_PASSED = 64
"""Jobs that the leader names as passed over. The hosts stop at the next one."""
PASSED_SECONDS = 5.0
"""For how long the leader's word counts: two of its rounds and a little."""


class TakeTerms(msgspec.Struct, frozen=True, kw_only=True):
    """In which queues hosts may take jobs, and the lease of each queue's jobs.

    revision: of the settings that say so. The store takes nothing under another one.
    whole: no other queue is left to the leader. ahead: queues whose jobs may be held ahead.
    """

    revision: int
    ttls: Mapping[str, float]
    whole: bool
    ahead: frozenset[str] = frozenset()


class Takes(msgspec.Struct, frozen=True, kw_only=True):
    """What hosts take, and which of them leave nothing that the leader could start on them."""

    placements: tuple[JobPlacement, ...] = ()
    settled: frozenset[str] = frozenset()


def plan_takes(
    candidates: Sequence[Candidate],
    hosts: Sequence[Capacity],
    terms: TakeTerms,
    passed: Collection[str],
    *,
    ahead: Mapping[str, int],
    cut: bool,
) -> Takes:
    """Let each host take from `candidates`, which stand in the order of admission.

    passed: jobs that the leader has just passed over; empty where it held room back for any.
    ahead: how many jobs each host would hold beyond its slots, those that it holds already
    included. cut: there may be more candidates than these.
    """
    left = list(candidates)
    placements: list[JobPlacement] = []
    settled = set()
    for capacity in hosts:
        host, rest, waiting = HostRoom(capacity, Kind(capacity)), [], False
        most = ahead.get(capacity.host_id, 0) if cut else 0
        for at, job in enumerate(left):
            if is_full(host) and (waiting or host.cpu_slots + most <= 0):
                rest += left[at:]
                break
            if not _serves(host, job):
                rest.append(job)
            elif _is_plain(job, terms.ttls) and _fits(job, host):
                placements.append(_place(job, host))
            elif not waiting and _fits_ahead(job, host, terms, most):
                placements.append(_place(job, host, ahead=True))
            elif is_full(host):
                rest += left[at:]
                break
            elif job.job_id in passed and host.host_id not in job.avoid_hosts:
                rest.append(job)
                waiting = True
            else:
                rest += left[at:]
                waiting = True
                break
        left = rest
        if is_full(host) or not (waiting or cut):
            settled.add(host.host_id)
    return Takes(placements=tuple(placements), settled=frozenset(settled))


def is_full(host: HostRoom) -> bool:
    """Return whether the host has neither a slot nor a device free."""
    return host.cpu_slots <= 0 and not host.devices


def count_worth(wanted: int) -> int:
    """Return how many candidates are worth reading for hosts that could take `wanted`: one for each,
    and a few that are passed over."""
    return min(wanted + SPARE, MAX_TAKEN)


def _serves(host: HostRoom, job: Candidate) -> bool:
    return host.kind.serves(job) and host.host_id not in job.barred_hosts


def _is_plain(job: Candidate, queues: Collection[str]) -> bool:
    return job.tasks == 1 and not job.supervised and job.member is None and job.queue in queues


def _fits(job: Candidate, host: HostRoom) -> bool:
    return _fits_in(job, host, host.free)


def _fits_in(job: Candidate, host: HostRoom, room: Sequence[int]) -> bool:
    return host.host_id not in job.avoid_hosts and count_fitting(job, room, 1) == 1


def _fits_ahead(job: Candidate, host: HostRoom, terms: TakeTerms, most: int) -> bool:
    """AHEAD-1."""
    small = (job.tasks, job.cpu_slots, job.gpus, job.runtime) == (1, 1, 0, "")
    if not (small and job.may_wait and job.queue in terms.ahead and _is_plain(job, terms.ttls)):
        return False
    cpu_slots, memory_bytes, devices = host.free
    return -most < cpu_slots <= 0 and _fits_in(job, host, (1, memory_bytes, devices))


def _place(job: Candidate, host: HostRoom, *, ahead: bool = False) -> JobPlacement:
    seat = TaskPlacement(
        rank=0,
        host_id=host.host_id,
        incarnation=host.capacity.incarnation,
        devices=host.take(job, 1)[0],
        ahead=ahead,
    )
    return place_job(job, (seat,))
