"""A simulated host: a guardian that holds processes, an agent that may come and go, and a clock of
its own.

It follows `agent/orders/decide.py`, `agent/orders/commands.py`, `agent/uplink/sync.py`,
`agent/orders/host_sync.py` and `agent/guardian/tasks.py` line by line, without their processes and files;
`core.lease.host_deadline` and `agent.orders.exit_facts.make_facts` are the real ones. True time is
the simulation's, in seconds; everything a host decides by is read from its own clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.agent.orders.exit_facts import make_facts
from holdfast.core import lease
from holdfast.core.causes import Watchdog
from holdfast.core.facts import TaskFacts, Trip
from holdfast.core.ids import TaskKey
from holdfast.core.watchdogs.verdicts import make_trip
from holdfast.moves.values import ClaimRow, HostSynced, PreemptRow, TaskOffer
from holdfast.wire.guardian import TaskEnded

MAX_KILL_SECONDS = 1.5
"""From KILL to the last breath; LEASE-2 leaves 2 × margin for it, less what a clock drifts."""


@dataclass
class Process:
    """One task's processes, as the guardian holds them. `*_at` are true times, `deadline` and
    `kill_due` host times."""

    key: TaskKey
    devices: tuple[int, ...]
    slots: int
    started_at: float
    deadline: float
    kill_seconds: float
    heeds_term: bool
    kill_due: float | None = None
    killed_at: float | None = None
    heeded_term: bool = False
    stopped: bool = False
    lapsed: bool = False
    trip: Trip | None = None
    kill_sent: bool = False
    stop_asked: bool = False
    hard: bool = False
    falls_together: bool = False
    ended: TaskEnded | None = None
    facts: TaskFacts | None = None

    @property
    def live(self) -> bool:
        return self.ended is None

    def executes(self, now: float) -> bool:
        """Whether any of its code may run at this true instant."""
        return self.live and (self.killed_at is None or now < self.killed_at + self.kill_seconds)


@dataclass(frozen=True)
class Request:
    """One call of an agent. `started_at` is on the host's clock, `agent` says which agent process
    waits for the answer."""

    host_id: str
    incarnation: str
    agent: int
    seq: int
    started_at: float
    register: bool = False
    live: tuple[TaskKey, ...] = ()
    started: tuple[TaskKey, ...] = ()
    ended: tuple[tuple[TaskKey, TaskFacts], ...] = ()
    claimed: tuple[tuple[TaskKey, int], ...] = ()
    leaving: bool = False
    earlier: tuple[str, ...] = ()


@dataclass
class Claim:
    """A place kept for a rank of a gang (`agent/orders/claims.py`). `deadline` is a host time."""

    deadline: float
    port: int


@dataclass
class Host:
    """One machine."""

    id: str
    rate: float
    offset: float
    slots: int
    gpus: int
    note_launch: Callable[[Host, Process], None]
    note_end: Callable[[Host, Process], None]
    note_claim: Callable[[Host, TaskKey], None]
    note_offers: Callable[[Host, list[TaskKey]], None]
    tell: Callable[[Host, str], None]  # for the transcript
    draw: Callable[[], float]  # chance, from the seed of the run
    grace_seconds: float = 3.0
    number: int = 0
    up: bool = False
    agent_up: bool = False
    agent: int = 0
    registered: bool = False
    closing: bool = False
    hasty: bool = False  # its agent says goodbye while tasks live, which AGT-5 forbids
    replaced: bool = False
    seq: int = 0
    newest_taken: int = 0
    said_goodbye: bool = False
    processes: dict[TaskKey, Process] = field(default_factory=dict)
    stubs: dict[TaskKey, TaskFacts] = field(default_factory=dict)  # the agent's memory only
    buried: set[TaskKey] = field(default_factory=set)  # the agent's memory only
    claims: dict[TaskKey, Claim] = field(default_factory=dict)  # the agent's memory only
    tombstones: set[TaskKey] = field(default_factory=set)  # the guardian's
    announced: list[str] = field(default_factory=list)  # on its disk

    @property
    def incarnation(self) -> str:
        return f"{self.id}-incarnation-{self.number}"

    def clock(self, now: float) -> float:
        """This host's boot clock at a true time."""
        return self.offset + now * self.rate

    def true_time(self, clock: float) -> float:
        return (clock - self.offset) / self.rate

    def executing(self, now: float) -> list[Process]:
        return [p for p in self.processes.values() if self.up and p.executes(now)]

    # ---- power

    def boot(self) -> None:
        """A new guardian: a new incarnation, which knows of nothing."""
        self.number += 1
        self.up = self.agent_up = True
        self.agent += 1
        self.registered = self.closing = self.replaced = self.said_goodbye = self.hasty = False
        self.newest_taken = 0
        self.processes, self.stubs, self.claims = {}, {}, {}
        self.buried, self.tombstones = set(), set()
        self.tell(self, f"boots as {self.incarnation}")

    def crash(self) -> None:
        """A power cut, or a killed guardian: every task ends with it, and no message says so."""
        self.tell(self, "goes down, and its tasks with it")
        self.up = self.agent_up = False
        self.processes, self.stubs, self.claims = {}, {}, {}

    def kill_agent(self) -> None:
        """Tasks are the guardian's and go on. Calls under way are lost, stubs and tombstones of the
        agent too."""
        self.agent_up = False
        self.tell(self, "its agent is gone; the guardian keeps the tasks")

    def start_agent(self) -> None:
        self.tell(self, "its agent is back")
        self.agent_up, self.hasty = True, False
        self.agent += 1
        self.newest_taken = 0
        self.stubs, self.buried, self.claims = {}, set(), {}

    def shut_down(self, now: float, *, hasty: bool = False) -> None:
        """The guardian was told to go: TERM and grace for every task, then a last word.

        hasty: the agent was told at the same time, and says its word at once.
        """
        self.tell(self, "is told to shut down")
        self.closing, self.hasty = True, hasty
        for process in self.processes.values():
            if process.live:
                self._stop(process, self.grace_seconds, now)

    # ---- the guardian

    def turn(self, now: float) -> None:
        """Do what is due: deadlines, graces, last breaths. Exact in time however rarely it is
        called."""
        clock = self.clock(now)
        if self.agent_up:
            self._stop_others(now)
        for process in self.processes.values():
            if not process.live:
                continue
            if process.killed_at is None and process.deadline <= clock:
                process.lapsed = True
                lapsed_at = self.true_time(process.deadline)
                self.tell(self, f"the lease of {process.key} ran out here at {lapsed_at:.1f}: KILL")
                self._stop(process, 0.0, lapsed_at)
            if (
                process.killed_at is None
                and process.kill_due is not None
                and process.kill_due <= clock
            ):
                process.killed_at = max(process.started_at, self.true_time(process.kill_due))
            if process.killed_at is not None and process.killed_at + process.kill_seconds <= now:
                signal = 15 if process.heeded_term else 9
                self._finish(process, TaskEnded(key=process.key, signal=signal))
        if self.replaced and not any(p.live for p in self.processes.values()):
            self.crash()  # AGT-4: the guardian is told to go

    def exit(self, key: TaskKey, ended: TaskEnded) -> None:
        """A process ends by itself."""
        self._finish(self.processes[key], ended)

    def trip(self, key: TaskKey, watchdog: Watchdog, now: float) -> None:
        """A watchdog's verdict, and the kill that follows it."""
        process = self.processes[key]
        if process.trip is None:
            process.trip = make_trip(watchdog, f"the {watchdog} watchdog", {})
            process.kill_sent = True
            self.tell(self, f"the watchdog {watchdog} trips on {key}: KILL")
            self._stop(process, 0.0, now)

    def _stop(self, process: Process, grace_seconds: float, now: float) -> None:
        process.stopped = True
        due = self.clock(now) + grace_seconds
        process.kill_due = due if process.kill_due is None else min(due, process.kill_due)
        if process.heeds_term and grace_seconds and process.trip is None:
            process.kill_due = min(process.kill_due, self.clock(now) + grace_seconds / 2)
            process.heeded_term = process.killed_at is None
        if grace_seconds == 0 and process.killed_at is None:
            process.killed_at, process.heeded_term = now, False

    def _finish(self, process: Process, how: TaskEnded) -> None:
        process.ended = TaskEnded(
            key=process.key,
            exit_code=how.exit_code,
            signal=how.signal,
            oom=how.oom,
            stopped=process.stopped,
            lapsed=process.lapsed,
            unkillable=how.unkillable,
            start_error=how.start_error,
        )
        process.facts = make_facts(
            process.ended,
            trip=process.trip,
            kill_sent=process.kill_sent,
            stop_asked=process.stop_asked,
            host_stops=self.closing,
            log_tail="",
        )
        self.note_end(self, process)

    def _stop_others(self, now: float) -> None:
        """FALL-1."""
        fallen = {
            (p.key.job_id, p.key.epoch)
            for p in self.processes.values()
            if p.falls_together and p.facts and not (p.facts.succeeded or p.facts.stopped)
        }
        for process in self.processes.values():
            same = (process.key.job_id, process.key.epoch) in fallen
            if same and process.live and not process.stop_asked:
                process.stop_asked = True
                self.tell(self, f"stops {process.key}, because its gang fell here: TERM")
                self._stop(process, self.grace_seconds, now)

    # ---- the agent: state up

    def announce(self) -> tuple[str, ...]:
        """Note that this incarnation is announced; return those that were before, newest first."""
        if self.announced[:1] != [self.incarnation]:
            self.announced = [self.incarnation, *self.announced][:17]
        return tuple(self.announced[1:])

    def make_request(self, now: float) -> Request:
        self.seq += 1
        who = (self.id, self.incarnation, self.agent, self.seq, self.clock(now))
        if not self.registered:
            return Request(*who, register=True, earlier=self.announce())
        live = tuple(p.key for p in self.processes.values() if p.live)
        ended = [(p.key, p.facts) for p in self.processes.values() if p.facts is not None]
        leaving = self.closing and (self.hasty or not live)
        # A start is sometimes told a call later: the exec takes its time.
        started = tuple(key for key in live if self.draw() < 0.8)
        clock = self.clock(now)
        self.claims = {key: claim for key, claim in self.claims.items() if claim.deadline > clock}
        claimed = tuple((key, claim.port) for key, claim in self.claims.items())
        return Request(
            *who,
            live=live,
            started=started,
            ended=(*ended, *self.stubs.items()),
            claimed=claimed,
            leaving=leaving,
        )

    # ---- the agent: commands down

    def take_answer(self, request: Request, answer: HostSynced | None, now: float) -> None:
        """Carry out an answer; None is `stale_incarnation`. The answer to an earlier agent's call
        is lost with that agent."""
        if not self.agent_up or request.agent != self.agent:
            return
        newest = request.seq > self.newest_taken
        if answer is None:
            if newest:
                self._give_way(now)
            return
        self.newest_taken = max(self.newest_taken, request.seq)
        for key in (*answer.acked, *answer.refused):
            self._settle(key)
        for key, ttl in answer.renewed:
            process = self.processes.get(key)
            if process is not None and process.live:
                process.deadline = max(
                    process.deadline, lease.host_deadline(request.started_at, ttl)
                )
            claim = self.claims.get(key)
            if claim is not None:
                claim.deadline = max(claim.deadline, lease.host_deadline(request.started_at, ttl))
        if not newest:
            return
        for key in answer.lost:
            self.claims.pop(key, None)
            if key in self.processes and self.processes[key].live:
                self.trip(key, Watchdog.LOST_LEASE, now)
        for order in answer.preempts:
            self._preempt(order, now)
        for row in answer.claims:
            self._claim(row, request.started_at, now)
        self.note_offers(self, [offer.task.key for offer in answer.offers])
        for offer in answer.offers:
            self._launch(offer, request.started_at, now)
        if request.leaving and any(p.live for p in self.processes.values()):
            self.kill_agent()  # the guardian starts another, because this one is not its last
            self.start_agent()
        elif request.leaving:
            self.said_goodbye = True
            self.crash()

    def take_registered(self, request: Request) -> None:
        if self.agent_up and request.agent == self.agent:
            self.registered = True

    def _knows(self, key: TaskKey) -> bool:
        """Whether the agent has this key in its table, or has buried it."""
        return any(key in known for known in (self.processes, self.stubs, self.buried))

    def _settle(self, key: TaskKey) -> None:
        process = self.processes.get(key)
        if key in self.stubs:
            del self.stubs[key]
            self.buried.add(key)
        elif process is not None and not process.live:
            del self.processes[key]
            self.buried.add(key)
            self.tombstones.add(key)

    def _claim(self, row: ClaimRow, started_at: float, now: float) -> None:
        key, deadline = row.key, lease.host_deadline(started_at, row.lease_ttl_seconds)
        if self._knows(key) or self.closing or self.replaced or deadline <= self.clock(now):
            return
        before = self.claims.get(key)
        if before is not None:
            before.deadline = max(before.deadline, deadline)
            return
        self.claims[key] = Claim(deadline, 20_000 + self.seq if key.rank == 0 else 0)
        self.note_claim(self, key)

    def _launch(self, offer: TaskOffer, started_at: float, now: float) -> None:
        task = offer.task
        key = task.key
        self.claims.pop(key, None)
        if self._knows(key) or self.closing or self.replaced:
            return
        assert key not in self.tombstones, (
            f"CMD-1: {key} was offered after its end had been acknowledged"
        )
        deadline = lease.host_deadline(started_at, task.lease_ttl_seconds)
        if deadline <= self.clock(now):
            return
        process = Process(
            key=task.key,
            devices=task.devices,
            slots=offer.job.spec.cpu_slots,
            started_at=now,
            deadline=deadline,
            kill_seconds=self.draw() * MAX_KILL_SECONDS,
            heeds_term=self.draw() < 0.5,
            falls_together=not offer.job.spec.supervised
            and {seat.host_id for seat in offer.seats} == {self.id},
        )
        self.note_launch(self, process)
        self.processes[task.key] = process

    def _preempt(self, order: PreemptRow, now: float) -> None:
        self.claims.pop(order.key, None)
        process = self.processes.get(order.key)
        if process is None:
            if order.key not in self.stubs:
                self.stubs[order.key] = TaskFacts(stopped=True)  # CMD-3
            return
        if not process.live or (process.stop_asked and (process.hard or not order.hard)):
            return
        process.stop_asked, process.hard = True, order.hard
        if order.operator_stop and process.trip is None:
            process.trip = make_trip(Watchdog.OPERATOR_STOP, order.reason, {})
        grace_seconds = 0.0 if order.hard else self.grace_seconds
        words = f"TERM, and KILL in {grace_seconds:g} s" if grace_seconds else "KILL"
        self.tell(self, f"stops {order.key}: {words}")
        self._stop(process, grace_seconds, now)

    def _give_way(self, now: float) -> None:
        """AGT-4."""
        self.replaced = True
        for process in self.processes.values():
            if process.live:
                self.trip(process.key, Watchdog.LOST_LEASE, now)
                self._stop(process, 0.0, now)
