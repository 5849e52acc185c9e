"""plan_takes(…): which queued jobs a host reserves for itself (*takes*) when its sync has made
room, without the leader. Pure.

TAKE-1  A host takes only jobs that need no view of the cluster: jobs of one task, in queues where
        no limit, quota or share binds, on room of its own that is free by live leases (ADMIT-2),
        and none that avoids it (ADMIT-3), or whose caches are cold there (CACHE-2).
TAKE-2  A host takes jobs in their order, and stops at the first job that it serves and may not
        take, so that later jobs do not overtake it for ever; unless the leader has just considered
        that job, passed it over, and held no room back for any (ADMIT-4). The host always stops at
        a job that avoids it, because the leader may still place that job there if no other host has
        room.
TAKE-3  A host takes no job while the drain of a job that fell on it is not decided, because that
        job may go to the front of its queue, where it comes first for the room that it left.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby

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
"""Most jobs that one batch of syncs takes: as many as one round of the leader starts."""
SPARE = 8
MAX_PASSED = 64
"""Most jobs that the leader names as passed over; hosts stop at the next one (TAKE-2)."""
PASSED_SECONDS = 5.0
"""How long the leader's list of passed jobs is valid: two of its rounds and a little."""


class TakeTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The queues in which hosts may take jobs.

    revision: the revision of the settings that allow it; the store takes nothing under another.
    ttls: queue → seconds of the lease of its jobs. whole: hosts may take jobs in every queue.
    """

    revision: int
    ttls: Mapping[str, float]
    whole: bool


class AlikeGroup(msgspec.Struct, frozen=True):
    """Queued jobs that follow each other and differ only in their ids and epochs, so that hundreds
    are planned in one step.

    job: one of them, for the properties that they share.
    """

    job: Candidate
    ids: Sequence[str]
    epochs: Sequence[int]

    def split(self, count: int) -> tuple["AlikeGroup", "AlikeGroup"]:
        """Return the first `count` candidates of the group, and the others."""
        return (
            AlikeGroup(self.job, self.ids[:count], self.epochs[:count]),
            AlikeGroup(self.job, self.ids[count:], self.epochs[count:]),
        )


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """Alike jobs that one host takes, with the devices of each."""

    jobs: AlikeGroup
    host_id: str
    incarnation: str
    devices: Sequence[tuple[int, ...]]


class Takes(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that hosts take. settled: ids of hosts for which no candidate is left that the
    leader could start there."""

    taken: tuple[Taken, ...] = ()
    settled: frozenset[str] = frozenset()

    @property
    def placements(self) -> tuple[JobPlacement, ...]:
        """Return the placement of each job by itself."""
        return tuple(placement for taken in self.taken for placement in _list_placements(taken))


def group_alike(candidates: Sequence[Candidate]) -> list[AlikeGroup]:
    """Return candidates in their order, with alike neighbours as one group."""
    groups = (list(group) for _, group in groupby(candidates, key=_describe))
    return [
        AlikeGroup(group[0], [j.job_id for j in group], [j.epoch for j in group])
        for group in groups
    ]


def _describe(job: Candidate) -> Candidate:
    return msgspec.structs.replace(job, job_id="", epoch=0)


def plan_takes(
    candidates: Sequence[AlikeGroup],
    hosts: Sequence[Capacity],
    terms: TakeTerms,
    passed: Collection[str],
    *,
    cut: bool,
) -> Takes:
    """Let each host take from `candidates`, which stand in the order of admission. The grouping of
    the candidates makes no difference.

    passed: ids of jobs that the leader has just passed over; empty where it held room back for a
    job. cut: the list of candidates was cut, so more may wait.
    """
    left = list(candidates)
    taken: list[Taken] = []
    settled = set()
    for capacity in hosts:
        host = HostRoom(capacity, Kind(capacity))
        mine, left, waiting = _take_for(host, left, terms, passed)
        taken += mine
        if is_full(host) or not (waiting or cut):
            settled.add(host.host_id)
    return Takes(taken=tuple(taken), settled=frozenset(settled))


def _take_for(
    host: HostRoom, left: Sequence[AlikeGroup], terms: TakeTerms, passed: Collection[str]
) -> tuple[list[Taken], list[AlikeGroup], bool]:
    """Return the jobs that one host takes, the jobs that it leaves, and whether one of the latter
    is a job that it serves and must not overtake (TAKE-2)."""
    taken: list[Taken] = []
    rest: list[AlikeGroup] = []
    waiting = False
    for at, group in enumerate(left):
        job, plain = group.job, _is_plain(group.job, terms.ttls)
        while group.ids:
            if is_full(host):
                return taken, [*rest, group, *left[at + 1 :]], waiting
            if not _serves(host, job):
                rest.append(group)
                break
            warm = not job.caches or job.cache_keys <= host.capacity.caches
            if plain and warm and (count := _count_fitting(job, host, len(group.ids))):
                mine, group = group.split(count)
                taken.append(_take(mine, host))
            elif group.ids[0] in passed and host.host_id not in job.avoid_hosts:
                first, group = group.split(1)
                rest.append(first)
                waiting = True
            else:
                return taken, [*rest, group, *left[at + 1 :]], True
    return taken, rest, waiting


def is_full(host: HostRoom) -> bool:
    """Return whether the host has neither a slot nor a device free."""
    return host.cpu_slots <= 0 and not host.devices


def count_worth(wanted: int) -> int:
    """Return how many candidates to read for hosts with room for `wanted` jobs: as many, and a few
    more for jobs that are passed over."""
    return min(wanted + SPARE, MAX_TAKEN)


def _serves(host: HostRoom, job: Candidate) -> bool:
    return host.kind.serves(job) and host.host_id not in job.barred_hosts


def _is_plain(job: Candidate, queues: Collection[str]) -> bool:
    return job.tasks == 1 and not job.supervised and job.member is None and job.queue in queues


def _count_fitting(job: Candidate, host: HostRoom, limit: int) -> int:
    return 0 if host.host_id in job.avoid_hosts else count_fitting(job, host.free, limit)


def _take(jobs: AlikeGroup, host: HostRoom) -> Taken:
    return Taken(
        jobs=jobs,
        host_id=host.host_id,
        incarnation=host.capacity.incarnation,
        devices=host.reserve_tasks(jobs.job, len(jobs.ids)),
    )


def _list_placements(taken: Taken) -> Sequence[JobPlacement]:
    return [
        place_job(
            msgspec.structs.replace(taken.jobs.job, job_id=job_id, epoch=epoch),
            (
                TaskPlacement(
                    rank=0, host_id=taken.host_id, incarnation=taken.incarnation, devices=devices
                ),
            ),
        )
        for job_id, epoch, devices in zip(
            taken.jobs.ids, taken.jobs.epochs, taken.devices, strict=True
        )
    ]
