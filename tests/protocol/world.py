"""The whole of Holdfast on simulated time: a real store and the real decisions, simulated hosts, a
bad network.

The store is the one of `drives` that a world is made with: the model in memory, or the one that
ships, on PostgreSQL. Every call of the store is given the world's time.

`World.wait` moves true time in small steps; at each the guardians do what is due, agents sync,
loops run, and every invariant of `truth` is checked. Between steps the test may do anything to
anyone. Chance comes from one seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.endings import drain, replace
from holdfast.core.endings.decide import Policy
from holdfast.core.endings.drain import Completion
from holdfast.core.endings.replace import Replacement
from holdfast.core.gpus import Gpu
from holdfast.core.ids import TaskKey
from holdfast.core.placement.plan import AdmissionPlan, JobPlacement, RunningTask, plan_admission
from holdfast.core.placement.preemption import say_preempted
from holdfast.core.placement.takes import TakeTerms
from holdfast.core.records import AttemptRecord, JobRecord, TaskRecord
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobEvent, JobState, TaskState
from holdfast.errors import Stale
from holdfast.moves.values import HostSync, HostSynced, NewJob
from holdfast.wire.agent import HostFacts
from tests.protocol.drives import MakeDrive, MemoryDrive
from tests.protocol.host import Host, Process, Request
from tests.protocol.transcript import Transcript
from tests.protocol.truth import Truth, check_busy

T = TypeVar("T")


@dataclass(frozen=True)
class Times:
    """How long things take, in seconds. The defaults are short, so that chaos meets every one of
    them; scripted runs take the product's own."""

    lease_ttl_seconds: float = 15.0
    reservation_seconds: float = 10.0
    start_timeout_seconds: float = 25.0
    drain_force_seconds: float = 6.0
    hold_back_seconds: float = 15.0
    dead_host_seconds: float = 8.0
    grace_seconds: float = 3.0
    late_seconds: float = 5.0


SHORT = Times()
START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
STEP_SECONDS = 0.5
POLL_SECONDS = 5.0
MAX_HELD = 24
MESS = ["ok", "ok", "lose_request", "lose_answer", "hold_request", "hold_answer", "duplicate"]
RETRY_LIMIT = 2  # a tick; lower than what comes due at once, so that some are left for the next


@dataclass
class Held:
    """A message kept by the network: a request on its way up or, with its answer, one on its way
    down."""

    request: Request
    answered: bool = False
    answer: HostSynced | None = None


@dataclass
class Poll:
    """A call waiting at a controller for news (POLL-1)."""

    request: Request
    until: float


@dataclass
class Plan:
    """What a second leader, or a slow one, read a while ago and has not written yet."""

    placements: tuple[JobPlacement, ...] = ()
    completions: tuple[tuple[str, int, Completion], ...] = ()
    replacements: tuple[tuple[TaskKey, Replacement], ...] = ()


class World:
    """Everything there is."""

    def __init__(
        self,
        *,
        rates: list[float],
        slots: int,
        gpus: int,
        policy: Policy,
        seed: int,
        times: Times = SHORT,
        drive: MakeDrive = MemoryDrive,
    ) -> None:
        self.t = 0.0
        self.random = random.Random(seed)
        self.policy = policy
        self.times = times
        self.start = START
        self.transcript = Transcript(self.start)
        dead = {"dead_host_seconds": times.dead_host_seconds}
        self.drive = drive(self.now, dead)
        self.store, self.run = self.drive.store, self.drive.run
        self.truth = Truth(policy)
        self.hosts = [
            Host(
                id=f"host{i}",
                rate=rate,
                offset=1000.0 * i + 17.0,
                slots=slots,
                gpus=gpus,
                draw=self.random.random,
                note_launch=self._note_launch,
                note_end=self._note_end,
                note_claim=self._note_claim,
                note_offers=self._note_offers,
                tell=self._tell,
                grace_seconds=times.grace_seconds,
            )
            for i, rate in enumerate(rates)
        ]
        self.links = {host.id: "ok" for host in self.hosts}
        self.held: list[Held] = []
        # Registrations sent, for one that lay long in a frozen controller's buffer.
        self.announced: list[Request] = []
        self.polls: dict[str, Poll] = {}
        # (host, incarnation) → its newest call, whichever replica heard it.
        self.newest: dict[tuple[str, str], int] = {}
        self.outage = False
        self.leading_since = [self.now()]
        self.plans: list[Plan] = []
        self.seen: str | None = None
        self.count = 0
        self.all_tasks: dict[str, list[TaskRecord]] = {}
        self.rows: tuple[Any, ...] = ()
        self.busy: list[Any] = []
        self.incarnations: dict[str, str | None] = {}
        self.checked: dict[str, tuple[JobRecord, list[TaskRecord], list[AttemptRecord]]] = {}

    def now(self) -> datetime:
        return self.start + timedelta(seconds=self.t)

    def _note_launch(self, host: Host, process: Process) -> None:
        self.transcript.launched(self.t, host.id, process)
        self.truth.note_launch(self.t, self.hosts, host, process)

    def _note_end(self, host: Host, process: Process) -> None:
        self.transcript.ended(self.t, host.id, process)
        self.truth.note_end(self.t, host, process)

    def _note_offers(self, host: Host, keys: list[TaskKey]) -> None:
        self.truth.note_offers(self.t, host, keys)

    def _note_claim(self, host: Host, key: TaskKey) -> None:
        self.transcript.say(self.t, host.id, f"keeps a place for {key}")
        self.truth.note_claim(self.t, host, key)

    def _tell(self, host: Host, text: str) -> None:
        self.transcript.say(self.t, host.id, text)

    # ---- users

    def submit(
        self,
        *,
        tasks: int,
        gpus: int,
        late: bool,
        priority: int,
        preemptible: bool = False,
        supervised: bool = False,
        job_id: str | None = None,
    ) -> str:
        self.count += 1
        job_id = job_id or f"job-{self.count:04d}"
        start_at = self.now().timestamp() + 6 if late else None
        spec = JobSpec(
            argv=("true",),
            tasks=tasks,
            gpus=gpus,
            cpus=1,
            priority=priority,
            start_at=start_at,
            preemptible=preemptible,
            supervised=supervised,
            placement="spread" if supervised else "pack",
        )
        self.truth.sizes[job_id] = tasks
        if supervised:
            self.truth.supervised.add(job_id)
        kind = f"{'supervised, ' * supervised}{'preemptible, ' * preemptible}priority {priority}"
        size = f"{tasks} {'task' if tasks == 1 else 'tasks'} of {gpus} GPU"
        self.transcript.say(self.t, "user → controller", f"submit {job_id}: {size}, {kind}")
        self.run(
            self.store.jobs.submit_jobs([NewJob(id=job_id, spec=spec, queue="cpu")], now=self.now())
        )
        self.check()
        return job_id

    def submit_crowd(self, count: int) -> None:
        """Submit plain jobs at once, more than the hosts start."""
        spec = JobSpec(argv=("true",), cpus=1, priority=60)
        jobs = []
        for _ in range(count):
            self.count += 1
            jobs.append(NewJob(id=f"job-{self.count:04d}", spec=spec, queue="cpu"))
            self.truth.sizes[jobs[-1].id] = 1
        self.transcript.say(self.t, "user → controller", f"submit {count} jobs of one task")
        self.run(self.store.jobs.submit_jobs(jobs, now=self.now()))
        self.check()

    def cancel(self, job_id: str, *, hard: bool = False) -> None:
        """A user's word."""
        self.transcript.say(self.t, "user → controller", f"cancel {job_id}{', hard' * hard}")
        self.run(self.store.jobs.cancel_job(job_id, "not needed", hard=hard, now=self.now()))
        self.check()

    def preempt(self, job_id: str) -> None:
        """Take a job's room away."""
        self.run(
            self.store.jobs.drain_job(job_id, Cause.PREEMPTED, "room is needed", now=self.now())
        )
        self.check("controller")

    def switch_retries(self, on: bool, *, everywhere: bool) -> None:
        """Throw or lift a kill switch."""
        if everywhere:
            self.run(
                self.store.settings.write_cluster_settings({"retries_enabled": on}, now=self.now())
            )
        else:
            self.run(
                self.store.settings.put_project("default", {"retries_enabled": on}, now=self.now())
            )
        layers = self.run(self.store.settings.read_settings())
        found = (layers.cluster, layers.projects.get("default", {}))
        self.truth.held = any(layer.get("retries_enabled") is False for layer in found)

    def jobs(self) -> list[JobRecord]:
        return self.drive.list_jobs()

    # ---- the network

    def call(self, host: Host) -> None:
        """One call of a host's agent, through its link."""
        if not (host.up and host.agent_up):
            return
        request = host.make_request(self.t)
        if request.register:
            self.announced.append(request)
            del self.announced[:-8]
        mode = self.links[host.id]
        self.transcript.link(self.t, host.id, mode)
        if mode == "mess":
            mode = self.random.choice(MESS)
        if mode == "lose_request" or self.outage:
            return
        if mode == "hold_request":
            self._hold(Held(request))
            return
        if mode == "duplicate":
            self._hold(Held(request))
        answered, answer = self.serve(request, poll=mode == "poll")
        if mode == "hold_answer":
            self._hold(Held(request, True, answer))
        elif mode != "lose_answer" and answered:
            self.answer(request, answer)

    def _hold(self, held: Held) -> None:
        self.held.append(held)
        del self.held[:-MAX_HELD]

    def deliver(self, index: int, *, keep: bool) -> None:
        """Hand over a message that was kept; `keep` makes it come once more."""
        held = self.held[index % len(self.held)]
        if not keep:
            self.held.remove(held)
        if held.answered:
            self.answer(held.request, held.answer)
        elif not self.outage:
            answered, answer = self.serve(held.request, poll=False)
            if answered:
                self.answer(held.request, answer)

    def answer(self, request: Request, answer: HostSynced | None) -> None:
        host = self.host(request.host_id)
        self.transcript.answer(self.t, request, answer)
        if request.register:
            if answer is None:
                host.take_answer(request, None, self.t)
            elif host.incarnation == request.incarnation:
                host.take_registered(request)
        else:
            host.take_answer(request, answer, self.t)

    def host(self, host_id: str) -> Host:
        return next(host for host in self.hosts if host.id == host_id)

    # ---- the controller's face to agents

    def serve(self, request: Request, *, poll: bool) -> tuple[bool, HostSynced | None]:
        """(answered, answer): None as an answer is `stale_incarnation`."""
        self.transcript.request(self.t, request)
        self.newest[request.host_id, request.incarnation] = max(
            request.seq, self.newest.get((request.host_id, request.incarnation), 0)
        )
        if request.register:
            return self._register(request)
        found = self.sync(request)
        self.check()
        says = (
            found.offers
            or found.claims
            or found.preempts
            or found.lost
            or found.acked
            or found.refused
            or found.status != "ok"
        )
        if poll and not says:
            self.polls[request.host_id] = Poll(request, self.t + POLL_SECONDS)
            return False, None
        return True, found if found.status == "ok" else None

    def _register(self, request: Request) -> tuple[bool, HostSynced | None]:
        host = self.host(request.host_id)
        facts = HostFacts(
            name=host.id, cpu_slots=host.slots, gpus=[Gpu(index=i) for i in range(host.gpus)]
        )
        key = host.id.encode().ljust(32, b".")
        try:
            self.run(
                self.store.hosts.register_host(
                    host.id,
                    key,
                    request.incarnation,
                    facts,
                    announced=request.earlier,
                    now=self.now(),
                )
            )
        except Stale:
            return True, None
        self.check()
        return True, HostSynced(host_id=host.id, status="ok")

    def sync(self, request: Request, *, again: bool = False) -> HostSynced:
        sync = HostSync(
            host_id=request.host_id,
            incarnation=request.incarnation,
            live=request.live,
            started=() if again else request.started,
            ended=() if again else request.ended,
            claimed=request.claimed,
            leaving=request.leaving and not again,
            takes=bool(request.ended) and not again,
        )
        before = None
        if self.incarnations[request.host_id] != request.incarnation:
            before = self.view()
        terms = self._read_terms() if sync.takes else None
        found = self.run(self.store.leases.sync_hosts([sync], terms=terms, now=self.now()))[0]
        if before is not None:
            assert found.status == "stale", "FENCE-1: an earlier incarnation was heard"
            assert self.view() == before, "FENCE-1: a stale report changed something"
        return found

    def _read_terms(self) -> TakeTerms:
        """Return the terms under which a host takes jobs now."""
        layers = self.run(self.store.settings.read_settings())
        return TakeTerms(
            revision=layers.revision,
            ttls=dict.fromkeys(layers.queues, self.times.lease_ttl_seconds),
            whole=True,
        )

    def view(self) -> tuple[Any, ...]:
        """Everything a stale report might change."""
        s = self.store
        jobs = self.jobs()
        tasks = [self.run(s.jobs.list_tasks(j.id)) for j in jobs]
        return (
            jobs,
            tasks,
            [self.run(s.jobs.list_attempts(j.id)) for j in jobs],
            self.run(s.hosts.list_hosts(include_terminated=True)),
        )

    def serve_polls(self) -> None:
        """POLL-2: read again with the same identity and no ends; answer when there is news or time
        is up."""
        for host_id, poll in list(self.polls.items()):
            request = poll.request
            if self.newest[host_id, request.incarnation] > request.seq or self.outage:
                del self.polls[host_id]
                continue
            found = self.sync(request, again=True)
            if (
                found.offers
                or found.claims
                or found.preempts
                or found.lost
                or found.status != "ok"
                or poll.until <= self.t
            ):
                del self.polls[host_id]
                self.answer(request, found if found.status == "ok" else None)

    # ---- the loops, as `controller/loops` runs them

    def run_loops(self, leader: int = 0) -> None:
        """One turn of every loop, in the order of their names in `controller/loops`."""
        if self.outage:
            return
        since = self.leading_since[leader % len(self.leading_since)]
        self._run_leases(since)
        self._run_sweeps(since)
        self._run_drains()
        self._run_admission()

    def find_work(
        self, loop: str, step: Coroutine[Any, Any, T], is_work: Callable[[T], object] = bool
    ) -> T:
        """Finish a step of a loop. Where it found work, the look before it named the loop
        (LOOK-1)."""
        due = self.drive.find_due(self.now())
        found = self.run(step)
        named = loop in due or not is_work(found)
        assert named, f"the look does not name {loop}, which found {found}"
        return found

    async def _release(self, at: datetime) -> int:
        done = await self.store.admission.release_due(RETRY_LIMIT, now=at)
        return int(done.started + done.retries + done.held)

    def _run_leases(self, since: datetime) -> None:
        before = {t.key: t for ts in self.all_tasks.values() for t in ts if t.state.holds_lease}
        lapsed = self.find_work("leases", self.store.leases.lapse_leases(since, now=self.now()))
        for task in before.values():
            if task.job_id in lapsed:
                self._check_lapse(task, since, self.now())
        self.check("loop: leases")

    def _run_sweeps(self, since: datetime) -> None:
        store, at, times = self.store, self.now(), self.times
        seconds = times.reservation_seconds
        self.find_work("reservations", store.admission.expire_reservations(seconds, now=at))
        for late in self.find_work("reservations", store.admission.list_reserved(now=at)):
            job = late.job
            if late.seconds > times.start_timeout_seconds and not self._stop_late_members(job):
                cause = Cause.START_TIMEOUT
                self.run(store.jobs.drain_job(job.id, cause, "it is slow", epoch=job.epoch, now=at))
        self.find_work("host_drains", store.hosts.drain_due_hosts(now=at))
        self.find_work("due", self._release(at))
        silent = store.hosts.sweep_dead_hosts(times.dead_host_seconds, since, now=at)
        self.find_work("dead_hosts", silent)
        self.check("loop: sweeps")

    def _run_drains(self) -> None:
        store, at, times = self.store, self.now(), self.times
        before = at - timedelta(seconds=times.drain_force_seconds)
        for slow in self.find_work("drains", store.drains.list_slow_drains(before)):
            self.run(store.drains.force_drain(slow.id, slow.epoch, now=at))
            self.check("loop: drains")
        self.write_replacements(self.read_replacements())
        self._check_decided()
        for member in self.find_work("members", store.members.list_members(500, now=self.now())):
            late = member.seconds > times.start_timeout_seconds
            if late and not member.fallen and member.task.offered_at is not None:
                self.run(
                    store.members.stop_member(
                        member.task.key, Cause.START_TIMEOUT, "it is slow", now=at
                    )
                )
        self.run(store.members.release_members(times.reservation_seconds, now=at))
        self.write_completions(self.read_completions())

    def _run_admission(self) -> None:
        plan = self.read_plan()
        for preemption in plan.preemptions:
            for victim in preemption.victims:
                job, cause = self.run(self.store.jobs.get_job(victim)), Cause.PREEMPTED
                reason = say_preempted(preemption.job_id, preemption.priority, job.priority)
                self.run(
                    self.store.jobs.drain_job(
                        victim, cause, reason, epoch=job.epoch, now=self.now()
                    )
                )
                self.check("loop: admit")
        self.write_placements(plan.placements)

    def _check_lapse(self, task: TaskRecord, since: datetime, at: datetime) -> None:
        """LEASE-4: nothing is reaped in a leader's first TTL."""
        now = next(
            (t for t in self.run(self.store.jobs.list_tasks(task.job_id)) if t.key == task.key),
            None,
        )
        if now is not None and now.facts is not None and now.facts.lost == "lease_lapsed":
            assert at > since + timedelta(seconds=task.lease_ttl_seconds), (
                f"LEASE-4: {task.key} was reaped too early"
            )

    def _check_decided(self) -> None:
        """MEMBER-1: no fall is left undecided while its job goes on."""
        going = {
            job.id for job in self.jobs() if job.state in (JobState.RESERVED, JobState.RUNNING)
        }
        fallen = (TaskState.FAILED, TaskState.PREEMPTED)
        left = [t.key for job_id in going for t in self.all_tasks[job_id] if t.state in fallen]
        assert not left, f"MEMBER-1: {left} fell, and nobody has decided what becomes of them"

    def _stop_late_members(self, job: JobRecord) -> bool:
        """As `ReservationsLoop` does: where the script runs, the others are placed anew one by
        one."""
        tasks = self.run(self.store.jobs.list_tasks(job.id))
        if not job.spec.supervised or tasks[0].state is not TaskState.RUNNING:
            return False
        for task in tasks:
            if task.state is TaskState.RESERVED:
                self.run(
                    self.store.members.stop_member(
                        task.key, Cause.START_TIMEOUT, "it is slow", now=self.now()
                    )
                )
        return True

    def read_replacements(self) -> tuple[tuple[TaskKey, Replacement], ...]:
        found = [
            m
            for m in self.find_work("members", self.store.members.list_members(500, now=self.now()))
            if m.fallen
        ]
        return tuple(
            (m.task.key, replace.plan_replacement(m.job, m.task, self.policy, ())) for m in found
        )

    def write_replacements(self, replacements: tuple[tuple[TaskKey, Replacement], ...]) -> None:
        self.run(self.store.members.replace_members(replacements, now=self.now()))
        self.check("loop: members")

    def read_completions(self) -> tuple[tuple[str, int, Completion], ...]:
        found = []
        late, at = self.times.late_seconds, self.now()
        ready = self.store.drains.list_drains(200, late_seconds=late, now=at)
        for snapshot in self.find_work("drains", ready):
            policy = msgspec.structs.replace(
                self.policy, held="a switch" if self.truth.held else None
            )
            plan = drain.plan_completion(
                snapshot.job, snapshot.tasks, policy, (), chance=self.random.random()
            )
            if plan is not None:
                found.append((snapshot.job.id, snapshot.job.epoch, plan))
        return tuple(found)

    def write_completions(self, completions: tuple[tuple[str, int, Completion], ...]) -> None:
        for job_id, epoch, plan in completions:
            decision = plan.decision
            at_once = decision.event is JobEvent.BACK_OFF and decision.delay_seconds <= 0
            if self.run(
                self.store.drains.complete_drain(
                    job_id, epoch, plan, at_once=at_once, now=self.now()
                )
            ):
                for host in self.hosts:
                    running = [p.key for p in host.executing(self.t) if p.key.job_id == job_id]
                    assert not running, (
                        f"DRAIN-1: the drain of {job_id} was completed while {running} run on "
                        f"{host.id}"
                    )
        self.check("loop: drains")

    def read_placements(self) -> tuple[JobPlacement, ...]:
        return self.read_plan().placements

    def read_plan(self) -> AdmissionPlan:
        """As `AdmitLoop` does: a second time with what runs, where that matters."""
        step = self.store.admission.read_admission(500, now=self.now())
        found = self.find_work("admit", step, lambda read: read.candidates)
        running: list[RunningTask] | None = None
        while True:
            plan = plan_admission(
                found.candidates,
                found.hosts,
                found.headroom,
                found.quotas,
                running=running,
                hold_back_seconds=self.times.hold_back_seconds,
                lowest_preemptible=found.lowest_preemptible,
            )
            if running is not None or not plan.needs_running:
                passed = [c.job_id for c in found.candidates if c.job_id in plan.refusals]
                self.run(self.store.admission.note_passed(passed, holds=plan.holds, now=self.now()))
                return plan
            running = self.run(self.store.admission.read_running(now=self.now()))

    def write_placements(self, placements: tuple[JobPlacement, ...]) -> None:
        ttls = {p.job_id: self.times.lease_ttl_seconds for p in placements}
        self.run(
            self.store.members.seat_members(
                [p for p in placements if p.member], ttls, now=self.now()
            )
        )
        starts = [p for p in placements if not p.member]
        polls = self._list_polls()
        write = self.store.leases.reserve_and_offer(starts, ttls, polls, now=self.now())
        seen = {job.id: job.epoch for job in self.rows[0]} if self.rows else {}
        applied, answers = self.run(write)
        stale = [p for p in starts if p.job_id in applied and seen.get(p.job_id) != p.epoch]
        assert not stale, f"RESERVE-1: {stale} were planned under an earlier epoch"
        self.check("loop: admit")  # an answer may launch what was reserved just now
        for answer in answers:
            poll = self.polls[answer.host_id]
            if self.random.random() < 0.8:  # else the poll ends in that moment, or its client goes
                del self.polls[answer.host_id]
                self.answer(poll.request, answer)
        self.check("loop: admit")

    def _list_polls(self) -> list[HostSync]:
        """Some of the calls that wait: the others do so at another replica."""
        return [
            HostSync(
                host_id=poll.request.host_id,
                incarnation=poll.request.incarnation,
                live=poll.request.live,
                claimed=poll.request.claimed,
            )
            for poll in self.polls.values()
            if self.newest[poll.request.host_id, poll.request.incarnation] <= poll.request.seq
            and self.random.random() < 0.7
        ]

    # ---- time

    def wait(self, seconds: float, *, step_seconds: float = STEP_SECONDS) -> None:
        """Let the world go on, all that is up doing its part."""
        end = self.t + seconds
        while self.t < end:
            self.t = min(end, self.t + step_seconds)
            self.turn_hosts()
            for host in self.hosts:
                self.call(host)
            self.serve_polls()
            self.run_loops()

    def turn_hosts(self) -> None:
        for host in self.hosts:
            if host.up:
                host.turn(self.t)
                if host.up and host.closing and not any(p.live for p in host.processes.values()):
                    host.closing = True

    # ---- the promises

    def check(self, place: str = "controller") -> None:
        """Every invariant, now; `place` is where what changed since the last check was decided.

        What follows from rows alone is not checked again for rows that are as they were.
        """
        look = self.drive.look(self.seen)
        if look is None:
            self.truth.check_leases(self.t, self.hosts, self.all_tasks)
            return
        jobs, self.all_tasks, attempts, hosts, news = look
        self.incarnations = {host.id: host.incarnation for host in hosts}
        if news:
            self.seen = news[-1].id
        before, self.rows = self.rows, (jobs, self.all_tasks, attempts, hosts)
        changed = bool(news) or before != self.rows
        if changed:
            self.transcript.look(self.t, place, jobs, self.all_tasks, attempts, hosts, news)
            self.truth.take_events(self.t, news)
            self.truth.check_told(jobs)
        self.truth.check_leases(self.t, self.hosts, self.all_tasks)
        if not changed:
            return
        told_of = {event.job_id for event in news}
        for job in jobs:
            now = (job, self.all_tasks[job.id], attempts[job.id])
            if self.checked.get(job.id) != now or job.id in told_of:
                self.truth.check_job(*now)
                self.checked[job.id] = now
        check_busy(hosts, self.all_tasks, {job.id: job for job in jobs})
        busy = [(host.id, host.busy_cpu_slots, host.busy_gpus) for host in hosts]
        if self.busy == busy:
            return
        self.busy = busy
        slots, gpus = self.drive.count_busy()
        assert slots == sum(h.busy_cpu_slots for h in hosts)
        assert gpus == sum(len(h.busy_gpus) for h in hosts)
