"""Admission: queued jobs and free room → reservations, and drains of jobs that must make room.

Each round is a snapshot, a plan made of it, and the plan's writing. Nothing is written beside a
plan in the making, because only the store's guards decide whether a plan still holds. Hosts take
plain jobs by themselves where they have just made room (`core/placement/takes.py`), and write them
by the same reservation, so hosts may have taken all jobs of a plan before it is written. Then a new
plan is made.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from holdfast.controller.loops.loop import Loop, Summary
from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.leading.ends import foresee_ends
from holdfast.controller.runtime.settings import Settings
from holdfast.core.causes import Cause
from holdfast.core.placement.plan import (
    AdmissionPlan,
    Candidate,
    JobPlacement,
    Preemption,
    RunningTask,
    plan_admission,
)
from holdfast.core.placement.preemption import say_preempted, say_reclaimed
from holdfast.core.placement.takes import MAX_PASSED
from holdfast.core.placement.unsaved import weigh_jobs
from holdfast.moves.values import AdmissionSnapshot

log = logging.getLogger("holdfast.loops")
SHALLOW_LIMIT = 16
LIMIT = 500
DEEP_LIMIT = 10_000
DEEP_PAGES = 20
"""The most pages, each of `LIMIT` jobs or more, that one deep look reads past jobs that cannot
start."""
MAX_ROUNDS = 50
MAX_LATE = 3
"""How many plans in a row may come too late, because hosts took all of their jobs first, before the
loop waits for its next wake."""
RENEW_SECONDS = 1.0
DEEP_SHARE = 0.05
"""The most of the loop's time that goes to looks beyond the first `LIMIT` jobs of a queue."""


class Round(msgspec.Struct, frozen=True):
    """The result of one reading of the queues. more: True where other jobs may start. full: every
    job that was read started. cut: how many queues were not read whole. room_left: some host has a
    slot or a device free. blocked: the ids of jobs that found no room, without the first `LIMIT` of
    them."""

    started: int = 0
    more: bool = False
    full: bool = False
    cut: int = 0
    room_left: bool = False
    blocked: Sequence[str] = ()


class Look(NamedTuple):
    """One reading of the queues, and the plan made of it. running: the tasks that hold room, where
    the plan needed them."""

    snapshot: AdmissionSnapshot
    settings: Settings
    plan: AdmissionPlan
    running: Sequence[RunningTask]


class AdmitLoop(Loop):
    """Admits jobs round by round while it makes progress: a full queue does not wait for the next
    tick.

    A round reads the first `SHALLOW_LIMIT` jobs of each queue, because most wakes come from one
    slot that became free. It reads more where all of these start, or where none of them does and
    some room is left. Once every interval it reads up to `LIMIT`, for jobs that may preempt others
    and for `why`. Where none of `LIMIT` finds room and some is left, it looks further down from
    time to time, page by page, because jobs that are too large now, or that no host serves, must
    not keep the jobs behind them from starting.
    """

    name = "admit"
    topic = "admit"
    also = (
        "retries"  # the topic of drains whose job is queued again, whose end no other job waits for
    )
    by_look = True
    interval_seconds = 2.0

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._deep_at = 0.0
        self._whole_at = 0.0
        self._said: tuple[list[str], bool] | None = None
        self._said_at = 0.0

    async def run_once(self) -> Summary:
        started, late, limit = 0, 0, SHALLOW_LIMIT
        for _ in range(MAX_ROUNDS):
            done = await self._run_round(limit)
            if not done.started and done.cut:
                if limit < LIMIT and (done.room_left or self._controller.clock() >= self._whole_at):
                    limit = LIMIT
                    continue
                if done.room_left:
                    done = await self._look_deeper(done.cut)
            started += done.started
            late = 0 if done.started else late + 1
            if not done.more or late > MAX_LATE:
                break
            if done.full:
                limit = min(LIMIT, limit * 8)
        return {"started": started} if started else {}

    def rest(self) -> None:
        self._controller.refusals.replace({})

    async def _look_deeper(self, queues: int) -> Round:
        """Run rounds over more jobs of each of `queues` queues, each round past the jobs that the
        one before could not start. The first `LIMIT` jobs of a queue stay in every round, because
        room may be held back for them (ADMIT-3). No rounds run soon after a look that started
        nothing."""
        clock = self._controller.clock
        began = clock()
        if began < self._deep_at:
            return Round()
        limit, aside = max(LIMIT, DEEP_LIMIT // queues), list[str]()
        for _ in range(DEEP_PAGES):
            done = await self._run_round(limit, aside)
            if done.started or not done.cut or not done.room_left or not done.blocked:
                break
            aside += done.blocked
        now = clock()
        self._deep_at = (
            0.0 if done.started else now + max(self.interval_seconds, (now - began) / DEEP_SHARE)
        )
        return done

    async def _run_round(self, limit: int, but: Sequence[str] = ()) -> Round:
        look = await self._look(limit, but=but)
        if look is None:
            self._controller.refusals.replace({})
            return Round()
        await self._note(look, limit, part=bool(but))
        if look.plan.preemptions:
            await self._preempt(look.plan.preemptions, look.running)
        if not look.plan.placements:
            waiting = [job.job_id for job in look.snapshot.candidates if job.member is None]
            return Round(
                cut=_count_cut(look.snapshot, limit),
                room_left=look.plan.room_left,
                blocked=waiting[LIMIT:],
            )
        started, read = await self._apply(look), len(look.snapshot.candidates)
        return Round(started=started, full=started == read, more=started < read or started >= limit)

    async def _look(self, limit: int, *, but: Sequence[str] = ()) -> Look | None:
        """Read the queues and plan. Returns None where no job is queued. but: the ids of jobs that
        are passed by."""
        # A job that is queued after this read wakes the loop by itself.
        controller = self._controller
        snapshot = await controller.store.admission.read_admission(limit, but=but)
        if not snapshot.candidates:
            return None
        settings = await controller.settings.current()
        if settings.rev < snapshot.settings_rev:
            settings = await controller.settings.refresh()
        plan, running = await self._plan(snapshot, settings)
        return Look(snapshot, settings, plan, running)

    async def _note(self, look: Look, limit: int, *, part: bool = False) -> None:
        """Keep the reasons of the jobs that were passed over, for `why` and for the hosts' own
        takes. part: True where not all of the first jobs were read."""
        snapshot, plan, controller = look.snapshot, look.plan, self._controller
        if limit < LIMIT or part:
            considered = (job.job_id for job in snapshot.candidates)
            controller.refusals.renew(considered, plan.refusals)
        else:
            self._whole_at = controller.clock() + self.interval_seconds
            controller.refusals.replace(plan.refusals)
        await self._note_passed(snapshot, plan, look.settings)

    async def _apply(self, look: Look) -> int:
        """Write the placements, and return how many jobs and members start."""
        controller, placements = self._controller, look.plan.placements
        ttls = _choose_ttls(look.snapshot.candidates, look.plan, look.settings)
        seats = [p for p in placements if p.member]
        seated = await controller.store.members.seat_members(seats, ttls) if seats else []
        starts = [p for p in placements if not p.member]
        applied = {*seated, *await self._reserve(starts, ttls)}
        by_member = [p for p in placements if p.job_id in seated]
        controller.poke(*{f"host:{task.host_id}" for p in by_member for task in p.tasks})
        if applied:
            controller.poke("events")
            _tell_reserved([p for p in placements if p.job_id in applied and p.size > 1])
        return len(applied)

    async def _reserve(
        self, placements: Sequence[JobPlacement], ttls: Mapping[str, float]
    ) -> list[str]:
        """Reserve the placements, answer the hosts whose polls wait here, and wake the other
        hosts."""
        controller = self._controller
        polls = controller.wakes.list_polls(
            sorted({t.host_id for p in placements for t in p.tasks})
        )
        applied, answers = await controller.store.leases.reserve_and_offer(placements, ttls, polls)
        started = set(applied)
        hosts = {t.host_id for p in placements if p.job_id in started for t in p.tasks}
        controller.hand_out(hosts, polls, answers)
        return applied

    async def _note_passed(
        self, snapshot: AdmissionSnapshot, plan: AdmissionPlan, settings: Settings
    ) -> None:
        """Write which jobs hosts may pass over when they take jobs by themselves (TAKE-2)."""
        if settings.take_terms is None:
            return
        passed = [c.job_id for c in snapshot.candidates if c.job_id in plan.refusals][:MAX_PASSED]
        now, said = self._controller.clock(), (passed, plan.holds)
        if said != self._said or (passed and now >= self._said_at + RENEW_SECONDS):
            await self._controller.store.admission.note_passed(passed, holds=plan.holds)
            self._said, self._said_at = said, now

    async def _plan(
        self, snapshot: AdmissionSnapshot, settings: Settings
    ) -> tuple[AdmissionPlan, Sequence[RunningTask]]:
        """Return the plan of one round. Where a job was passed over or could preempt others, the
        plan is made a second time, with the running tasks."""
        hold_back = settings.value("hold_back_seconds")
        lowest = snapshot.lowest_preemptible if settings.value("preemption") else None
        candidates: Sequence[Candidate] = snapshot.candidates
        running: Sequence[RunningTask] | None = None
        while True:
            plan = plan_admission(
                candidates,
                snapshot.hosts,
                snapshot.headroom,
                snapshot.quotas,
                shares=snapshot.shares,
                running=running,
                hold_back_seconds=None if hold_back is None else float(hold_back),
                lowest_preemptible=lowest,
            )
            if running is not None or not plan.needs_running:
                return plan, running or ()
            candidates, running = await foresee_ends(
                self._controller.store, self._controller.spans, candidates, settings
            )

    async def _preempt(
        self, preemptions: Sequence[Preemption], running: Sequence[RunningTask]
    ) -> None:
        """Stop the jobs that the plan preempts. Each job is stopped under its epoch, so a job that
        ended meanwhile is left alone."""
        controller = self._controller
        settings = await controller.settings.current()
        seen = {task.job_id: task for task in running}
        losses = weigh_jobs(running)
        for preemption in preemptions:
            for victim in preemption.victims:
                task = seen[victim]
                winner = preemption.job_id
                reason = say_preempted(winner, preemption.priority, task.priority, losses[victim])
                if preemption.reclaims:
                    reason = say_reclaimed(winner, preemption.project, task.project, losses[victim])
                notice = await self._find_notice(victim, settings)
                if await controller.store.jobs.drain_job(
                    victim, Cause.PREEMPTED, reason, epoch=task.epoch, notice_seconds=notice
                ):
                    controller.metrics.preempted.inc()
        controller.poke("drain", "events")

    async def _find_notice(self, victim: str, settings: Settings) -> float:
        """Return how long a job whose place another one takes has to save (EVICT-1)."""
        queue, spec = await self._controller.specs.find(victim)
        return settings.number("notice_seconds", queue, spec)


def _count_cut(snapshot: AdmissionSnapshot, limit: int) -> int:
    counts = Counter(job.queue for job in snapshot.candidates if job.member is None)
    return sum(count >= limit for count in counts.values())


def _choose_ttls(
    candidates: Sequence[Candidate], plan: AdmissionPlan, settings: Settings
) -> dict[str, float]:
    placed = {p.job_id for p in plan.placements}
    ttls: dict[str, float] = {}
    for job in candidates:
        if job.job_id not in placed:
            continue
        own, gang = job.lease_ttl_seconds, job.tasks > 1 or job.member is not None
        ttls[job.job_id] = own or settings.lease_ttl_seconds(job.queue, gang=gang)
    return ttls


def _tell_reserved(gangs: Sequence[JobPlacement]) -> None:
    """Log one line for each gang. Jobs of one task are too many for that, and have their events."""
    for gang in gangs:
        hosts = len({task.host_id for task in gang.tasks})
        about = {"job": gang.job_id, "epoch": gang.epoch + 1}
        log.info("reserved: %d tasks on %d hosts", gang.size, hosts, extra=about)
