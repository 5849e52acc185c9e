"""plan_admission(…): which queued jobs start now, and where. Pure.

ADMIT-1  A job gets all of its tasks placed or none (gangs and single jobs alike).
ADMIT-2  A task's devices and slots are free, by live leases, at the moment of the snapshot. The
         store applies a placement only where the job is still queued under the same epoch and the
         hosts still active, in one transaction.
ADMIT-3  A host that a job avoids is used only when no other has room.
ADMIT-4  A job that was passed over for `hold_back_seconds` is not starved: room is held back for
         it, and others use that room only while they end in time (back-fill). Room it does not need
         is never held, so the cluster does not freeze.
ADMIT-5  A job preempts others only where those have a lower priority, allow it, and have run long
         enough; and only when it then really fits. (Room that a project borrows of others' shares
         is given back by the rules of SHARE-1…3.)
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from holdfast.core.placement.holds import Holds
from holdfast.core.placement.room import Room, Shape, shape_of
from holdfast.core.placement.shares import Shares
from holdfast.core.placement.types import (
    AdmissionPlan,
    Candidate,
    Capacity,
    JobPlacement,
    Preemption,
    QuotaLeft,
    RunningTask,
    Share,
    TaskPlacement,
    place_job,
)
from holdfast.core.placement.victims import Ground, find_reclaims, find_victims
from holdfast.core.spec import MAX_TASKS

__all__ = [
    "AdmissionPlan",
    "Candidate",
    "Capacity",
    "JobPlacement",
    "Preemption",
    "QuotaLeft",
    "RunningTask",
    "Share",
    "TaskPlacement",
    "describe_need",
    "plan_admission",
    "silence_seconds",
]

MAX_HOLDERS = 16
"""Most jobs for which room is held back: enough for every pool, few enough to plan quickly."""


class _Quotas:
    """The quotas that projects have left while a plan is made."""

    def __init__(self, quotas: Mapping[str, QuotaLeft]) -> None:
        self._jobs = {name: q.jobs for name, q in quotas.items() if q.jobs is not None}
        self._gpus = {name: q.gpus for name, q in quotas.items() if q.gpus is not None}
        self._held = {name: q.held for name, q in quotas.items() if q.held}

    def refuse(self, job: Candidate) -> str | None:
        if job.project in self._held:
            return self._held[job.project]
        if self._jobs.get(job.project, 1) <= 0:
            return f"project {job.project} already runs as many jobs as it may (quota_jobs)"
        gpus = job.gpus * job.tasks
        left = self._gpus.get(job.project, gpus)
        if gpus and left < gpus:
            has = f"project {job.project} has {max(0, left)} GPUs of its quota left"
            return f"{has}, and it needs {gpus} (quota_gpus)"
        return None

    def count_job(self, job: Candidate) -> None:
        if job.project in self._jobs:
            self._jobs[job.project] -= 1
        if job.project in self._gpus:
            self._gpus[job.project] -= job.gpus * job.tasks


def plan_admission(
    candidates: Iterable[Candidate],
    hosts: Sequence[Capacity],
    headroom: Mapping[str, int],
    quotas: Mapping[str, QuotaLeft] = MappingProxyType({}),
    *,
    shares: Mapping[str, Share] = MappingProxyType({}),
    running: Sequence[RunningTask] | None = None,
    hold_back_seconds: float | None = None,
    lowest_preemptible: int | None = None,
) -> AdmissionPlan:
    """Place `candidates` in their order (priority, then age).

    headroom: number of further jobs that each queue may run; a missing queue has no limit. quotas:
    number of further jobs and GPUs of each project (QUOTA-2: a retried attempt counts too).
    shares: by project, for every project with a share or live jobs; empty where no project has a
    share. Jobs within their project's share come first, each group in its order (SHARE-1).
    running: the tasks that hold room; None where they were not read, and the plan then reports
    whether it needs them. hold_back_seconds: see ADMIT-4; None: room is never held back.
    lowest_preemptible: the lowest priority among jobs that may be preempted or are being stopped;
    None without such jobs, or with preemption off.
    """
    plan = _Admission(
        hosts, headroom, quotas, shares, running, hold_back_seconds, lowest_preemptible
    )
    borrowing = []
    for job in candidates:
        if plan.borrows(job):
            borrowing.append(job)
        else:
            plan.consider(job)
    for job in borrowing:
        plan.consider(job)
    return plan.finish()


class _Admission:
    """A plan while it is made."""

    def __init__(
        self,
        hosts: Sequence[Capacity],
        headroom: Mapping[str, int],
        quotas: Mapping[str, QuotaLeft],
        shares: Mapping[str, Share],
        running: Sequence[RunningTask] | None,
        hold_back_seconds: float | None,
        lowest_preemptible: int | None,
    ) -> None:
        self._room = Room(hosts)
        self._left = dict(headroom)
        self._quotas = _Quotas(quotas)
        self._shares = Shares(shares, running or ())
        self._running = running
        self._hold_back_seconds = hold_back_seconds
        self._lowest_preemptible = lowest_preemptible
        self._holds = Holds(self._room, running or ())
        # Room only shrinks, so a search without success is not repeated. Shape → the fewest tasks
        # for which no room was found …
        self._full: dict[tuple[Shape, float | None], int] = {}
        self._said: dict[tuple[Shape, int, int, bool], str] = {}
        # … and the fewest for which none could be held back either, with how many fit at best.
        self._vain: dict[tuple[object, ...], int] = {}
        self._reach: dict[tuple[object, ...], int] = {}
        self._placements: list[JobPlacement] = []
        self._refusals: dict[str, str] = {}
        self._preemptions: list[Preemption] = []
        self._passed_over = False
        self._needs_running = False

    def borrows(self, job: Candidate) -> bool:
        """Return whether the job would hold more than its project's share; False without shares,
        and for a member of a job that runs already."""
        return bool(self._shares) and job.member is None and not self._shares.owns(job)

    def consider(self, job: Candidate) -> None:
        """Place one job, or note why it cannot be placed."""
        over = None if job.member is not None else self._refuse_by_limit(job)
        if over is not None:
            self._refusals[job.job_id] = over
            return
        # Where room is held back, a job's end decides on which hosts it fits.
        shape = (shape_of(job), job.span_seconds if self._holds else None)
        hopeless = job.tasks >= self._full.get(shape, MAX_TASKS + 1) or (
            job.tasks > 1 and self._room.count_fitting(job) < job.tasks
        )
        tasks = None if hopeless else self._room.place(job, self._holds.allow)
        if tasks is None:
            self._full[shape] = min(job.tasks, self._full.get(shape, job.tasks))
            self._refuse(job)
            return
        self._holds.use_spare(job, tasks)
        self._needs_running = self._needs_running or self._passed_over
        if job.member is not None:
            seat = msgspec.structs.replace(tasks[0], rank=job.member)
            self._placements.append(place_job(job, (seat,), member=True))
            return
        self._placements.append(place_job(job, tasks))
        if job.queue in self._left:
            self._left[job.queue] -= 1
        self._quotas.count_job(job)
        self._shares.count_job(job)

    def _refuse_by_limit(self, job: Candidate) -> str | None:
        if self._left.get(job.queue, 1) <= 0:
            return f"queue {job.queue} already runs as many jobs as it may (max_running)"
        return self._quotas.refuse(job)

    def _refuse(self, job: Candidate) -> None:
        hold_back = self._hold_back_seconds
        waited = hold_back is not None and job.waited_seconds >= hold_back
        lowest = self._lowest_preemptible
        may_preempt = lowest is not None and job.priority > lowest
        may_reclaim = job.member is None and self._shares.may_reclaim(job)
        if self._running is None:
            self._passed_over = self._passed_over or waited
            self._needs_running = self._needs_running or may_preempt or may_reclaim
            self._refusals[job.job_id] = self._say_no_room(job)
            return
        may_stop = may_preempt or may_reclaim
        key = (
            shape_of(job),
            waited,
            job.span_seconds if self._holds else None,
            job.priority if may_preempt else None,
            job.project if self._shares else None,
            may_reclaim,
        )
        in_vain = job.tasks >= self._vain.get(key, MAX_TASKS + 1) or (
            not may_stop and job.tasks > self._reach.get(key, MAX_TASKS)
        )
        if len(self._holds) >= MAX_HOLDERS or not (waited or may_stop) or in_vain:
            self._refusals[job.job_id] = self._say_no_room(job)
            return
        if may_stop:
            self._make_room(job, may_preempt=may_preempt, may_reclaim=may_reclaim)
        held = self._holds.hold(job, waited=waited)
        if isinstance(held, int):
            self._vain[key] = min(job.tasks, self._vain.get(key, job.tasks))
            self._reach[key] = min(held, self._reach.get(key, held))
            held = self._say_no_room(job)
        self._refusals[job.job_id] = held

    def _make_room(self, job: Candidate, *, may_preempt: bool, may_reclaim: bool) -> None:
        """Choose jobs to stop for `job`, none where the jobs that are being stopped already make
        room (ADMIT-5)."""
        ground, holds, shares = Ground(job, self._holds), self._holds, self._shares
        victims: tuple[str, ...] = ()
        reclaims = False
        if not ground.fits and may_reclaim:
            victims = find_reclaims(job, ground, holds, shares)
            reclaims = bool(victims)
        if not ground.fits and may_preempt and not victims:
            victims = find_victims(job, ground, holds, shares)
        if victims:
            self._preemptions.append(
                Preemption(
                    job_id=job.job_id,
                    priority=job.priority,
                    victims=victims,
                    project=job.project,
                    reclaims=reclaims,
                )
            )
            holds.expect_drain(victims)
            shares.expect_drain(victims)
            self._vain.clear()  # once these have ended, room may be found for such shapes
            self._reach.clear()
        if victims or ground.fits:
            shares.count_job(job)  # else the project's next job would reclaim the same share

    def _say_no_room(self, job: Candidate) -> str:
        key = (shape_of(job), job.tasks, self._room.version, job.span_seconds is None)
        if key not in self._said:
            self._said[key] = self._find_words(job)
        return self._said[key]

    def _find_words(self, job: Candidate) -> str:
        serving = self._room.serving(job)
        if not serving and job.barred_hosts:
            barred = f"{len(job.barred_hosts)} of the hosts of queue {job.queue}"
            return f"its script gave up {barred}, and there is no other now"
        if not serving and job.host_labels:
            wanted = ", ".join(f"{name}={value}" for name, value in sorted(job.host_labels.items()))
            return f"no active host of queue {job.queue} carries the labels {wanted}"
        fitting = self._room.count_fitting(job)
        if fitting >= job.tasks:
            held = "what is free is held back for a job that waited longer"
            if job.span_seconds is None:
                return f"{held}, and nothing tells when this one would end"
            return f"{held}, and this one would not end in time"
        if job.tasks == 1:
            return f"no host has {describe_need(job)} free for queue {job.queue} now"
        return f"it needs {describe_need(job)} at once, and {fitting} of them fit for queue {job.queue} now"

    def finish(self) -> AdmissionPlan:
        """Return the plan, once every candidate was considered."""
        return AdmissionPlan(
            placements=tuple(self._placements),
            refusals=self._refusals,
            preemptions=tuple(self._preemptions),
            needs_running=self._needs_running,
            room_left=self._room.is_left,
            holds=bool(self._holds or self._preemptions or self._passed_over),
        )


def describe_need(job: Candidate) -> str:
    """Return the resources that one task needs, as a phrase."""
    parts = [f"{job.gpus} GPU{'s' * (job.gpus != 1)}"] if job.gpus else []
    if job.cpu_slots:
        parts.append(f"{job.cpu_slots} CPU slot{'s' * (job.cpu_slots != 1)}")
    if job.memory_bytes:
        parts.append(f"{job.memory_bytes / 2**30:.3g} GiB of memory")
    need = " and ".join(parts) or "a slot"
    return need if job.tasks == 1 else f"{need} for each of {job.tasks} tasks"


def silence_seconds(dead_host_seconds: float, sync_interval_seconds: float) -> float:
    """Return how long a host may be silent and still get work: two missed syncs and a little. That
    is less than the time after which a host is dead, because a lease may be shorter than that time,
    and a job whose lease just lapsed on a host must not be reserved on the same silent host
    again."""
    return min(dead_host_seconds, 2 * sync_interval_seconds + 2.0)
