"""What really happened in a run, and the promises that are checked against it.

`Truth` is told of every launch and end by the hosts, and looks at the store's rows and events. Each
check names the invariant it holds; a check that fails raises AssertionError with the history of the
job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from holdfast.core.causes import CHARGED_TO, Budget
from holdfast.core.endings.decide import Policy
from holdfast.core.facts import LAPSED
from holdfast.core.ids import TaskKey
from holdfast.core.records import (
    AttemptRecord,
    EventRecord,
    HostRecord,
    JobRecord,
    RankCharges,
    TaskRecord,
)
from holdfast.core.states import AttemptState, JobEvent, JobState, Outcome, TaskState
from holdfast.core.transitions import JOB, step
from tests.protocol.host import Host, Process

LIVE = {JobState.RESERVED, JobState.RUNNING, JobState.DRAINING}
EDGES = {
    "job.released": JobEvent.RELEASE, "job.reserved": JobEvent.RESERVE, "job.expired": JobEvent.EXPIRE,
    "job.started": JobEvent.START, "job.draining": JobEvent.DRAIN, "job.succeeded": JobEvent.SUCCEED,
    "job.retry_dispatched": JobEvent.RELEASE, "job.failed": JobEvent.FAIL, "job.cancelled": JobEvent.CANCEL, "job.revived": JobEvent.REVIVE,
}  # fmt: skip
TELLING = (
    "job.claimed",
    "job.retry_scheduled",
    "job.retry_exhausted",
    "job.retry_succeeded",
    "job.retry_held",
    "job.retry_resumed",
)
"""Events that come with another one, or move nothing."""


class Truth:
    """The ledger of one run."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.launched: dict[TaskKey, str] = {}  # key → host and incarnation, for ever
        self.finished: dict[TaskKey, bool] = {}  # key → ended by itself with 0
        self.story: dict[str, list[str]] = {}
        self.told: dict[str, JobState] = {}  # the job's state by its events alone
        self.revived_at: dict[str, int] = {}  # the number of attempts it had then
        self.epochs: dict[str, int] = {}
        self.frozen: dict[str, tuple[JobRecord, list[AttemptRecord]]] = {}
        self.held = False  # a kill switch is thrown
        self.dues: dict[str, datetime] = {}  # job → when the retry it waits for is due
        self.waits: dict[str, str | None] = {}  # job → why it waits, or waited last
        self.sizes: dict[str, int] = {}  # job → how many ranks it has
        self.supervised: set[str] = set()
        self.begun: dict[str, list[int]] = {}  # job → the epochs its attempts began under
        self.lives: dict[
            tuple[str, int], tuple[int, str | None]
        ] = {}  # (job, rank) → epoch and host of its newest life
        self.replaced: dict[
            str, list[tuple[int, str, str]]
        ] = {}  # job → attempt, rank and charge of its replacements
        self.claimed: set[TaskKey] = set()  # places hosts have kept, for ever
        self.drained: set[tuple[str, int]] = set()  # (job, epoch) whose drain has begun
        self.tripped: Counter[str] = (
            Counter()
        )  # what the hosts' guardians really did, for the report of coverage

    # ---- hosts tell

    def note_launch(self, now: float, hosts: Iterable[Host], host: Host, process: Process) -> None:
        """LEASE-2, FENCE-1, ADMIT-2: nothing else of the job runs under another epoch, and the room
        is really free."""
        key = process.key
        for other in hosts:
            for p in other.executing(now):
                if p.key.job_id == key.job_id:
                    assert self._attempt_of(p.key) == self._attempt_of(key), (
                        f"LEASE-2: {key} starts on {host.id} while {p.key} runs on {other.id}"
                    )
                    assert p.key.rank != key.rank, (
                        f"LEASE-2: {key} starts on {host.id} and runs on {other.id} as "
                        f"{p.key}\n{self.explain(key.job_id)}"
                    )
        # A member that stands in for another joins those that run, and waits for none.
        first = key.epoch in self.begun.get(key.job_id, [])
        assert first or (key.job_id in self.supervised and key.rank > 0), (
            f"MEMBER-1: {key} is of no attempt's epoch"
        )
        peers = [
            TaskKey(key.job_id, rank, key.epoch)
            for rank in range(self.sizes[key.job_id] if first else 0)
        ]
        if len(peers) > 1:
            missing = [peer for peer in peers if peer not in self.claimed]
            assert not missing, (
                f"GANG-1: {key} starts and {missing} have no place\n{self.explain(key.job_id)}"
            )
        here = host.executing(now)
        shared = {d for p in here for d in p.devices} & set(process.devices)
        assert not shared, (
            f"ADMIT-2: devices {shared} of {host.id} are given to {key} and are in use"
        )
        assert sum(p.slots for p in here) + process.slots <= host.slots, (
            f"ADMIT-2: {host.id} runs more than its slots"
        )
        place = f"{host.id}/{host.incarnation}"
        assert key not in self.launched, (
            f"CMD-1: {key} is launched a second time, first on {self.launched[key]}"
        )
        self.launched[key] = place
        self._tell(now, key.job_id, f"{key} starts on {place}")

    def _attempt_of(self, key: TaskKey) -> int:
        """The attempt's number that a life of a task is of: an attempt's members come under epochs
        after its own."""
        return sum(epoch <= key.epoch for epoch in self.begun.get(key.job_id, []))

    def note_claim(self, now: float, host: Host, key: TaskKey) -> None:
        self.claimed.add(key)
        self._tell(now, key.job_id, f"{key} has a place on {host.id}/{host.incarnation}")

    def note_offers(self, now: float, host: Host, keys: list[TaskKey]) -> None:
        """One answer that has every rank of a gang is a place for each (GANG-1)."""
        gangs = Counter((key.job_id, key.epoch) for key in keys)
        for key in keys:
            whole = gangs[key.job_id, key.epoch] == self.sizes[key.job_id] > 1
            if whole and key not in self.claimed:
                self.note_claim(now, host, key)

    def note_end(self, now: float, host: Host, process: Process) -> None:
        facts = process.facts
        assert facts is not None
        self.finished[process.key] = facts.succeeded
        self.tripped["lapsed" if process.lapsed else "stopped" if process.stopped else "ended"] += 1
        self._tell(now, process.key.job_id, f"{process.key} ends on {host.id}: {facts}")

    def _tell(self, now: float, job_id: str, line: str) -> None:
        self.story.setdefault(job_id, []).append(f"{now:8.2f}  {line}")

    def explain(self, job_id: str) -> str:
        """The job's history, for a failure."""
        return "\n".join(self.story.get(job_id, [])[-60:])

    # ---- the store's rows

    def check_leases(
        self, now: float, hosts: Sequence[Host], tasks: dict[str, list[TaskRecord]]
    ) -> None:
        """GANG-3, LEASE-2, LEASE-3: every process that executes holds its lease in the store, on
        that host and incarnation."""
        held = {
            t.key: (t.host_id, t.incarnation)
            for ts in tasks.values()
            for t in ts
            if t.state.holds_lease
        }
        for host in hosts:
            for process in host.executing(now):
                found = held.get(process.key)
                assert found == (host.id, host.incarnation), (
                    f"GANG-3: {process.key} runs on {host.incarnation} and the store has it at "
                    f"{found}\n" + self.explain(process.key.job_id)
                )

    def check_job(
        self, job: JobRecord, tasks: Sequence[TaskRecord], attempts: Sequence[AttemptRecord]
    ) -> None:
        try:
            self._check_chain(job, tasks, attempts)
            self._check_budgets(job, attempts)
            self._check_end(job, tasks, attempts)
        except AssertionError as error:
            raise AssertionError(
                f"{str(error) or 'a check without words'}\n{self.explain(job.id)}\n{job}\n{list(tasks)}\n{list(attempts)}"
            ) from None

    def _check_chain(
        self, job: JobRecord, tasks: Sequence[TaskRecord], attempts: Sequence[AttemptRecord]
    ) -> None:
        assert job.epoch >= self.epochs.get(job.id, 0), "STORE-3: an epoch went back"
        self.epochs[job.id] = job.epoch
        numbers = [a.number for a in attempts]
        assert numbers == list(range(1, job.attempts + 1)), f"attempt numbers are {numbers}"
        assert [a.parent for a in attempts] == [None, *numbers[:-1]][: len(numbers)], (
            "attempts do not form a chain"
        )
        epochs = self.begun[job.id] = [a.epoch for a in attempts]
        assert epochs == sorted(set(epochs)), f"STORE-3: epochs of the attempts are {epochs}"
        for a in attempts[:-1]:
            assert a.state is AttemptState.ENDED, "an attempt began before the one before had ended"
        last = attempts[-1] if attempts else None
        if job.state in LIVE:
            assert last is not None, "a living job without an attempt"
            assert str(last.state) == str(job.state), f"job {job.state}, attempt {last}"
            assert [t.rank for t in tasks] == list(range(job.tasks)), (
                "ADMIT-1: not all ranks have a row"
            )
            assert {t.attempt for t in tasks} == {job.attempts}, "tasks of several attempts"
            idle = (TaskState.PREEMPTED, TaskState.BLOCKED)
            told = all((t.facts is None) == t.state.holds_lease or t.state in idle for t in tasks)
            assert told, "a task's facts and its lease disagree"
            if job.spec.supervised:
                self._check_members(job, tasks, last)
                return
            assert last.epoch == job.epoch, (
                "FENCE-1: the living attempt is not under the job's epoch"
            )
            assert {t.epoch for t in tasks} == {job.epoch}, (
                "FENCE-1: a task is not under its job's epoch"
            )
            assert TaskState.BLOCKED not in {t.state for t in tasks}, (
                "only a member waits for another host"
            )
            starts = any(t.state is TaskState.RESERVED for t in tasks)
            assert starts or job.state is not JobState.RESERVED, (
                "every rank began, and the job is not said to run"
            )
            return
        assert not tasks, "an attempt is over and its tasks are still there"
        if last is not None:
            assert last.state is AttemptState.ENDED
            assert last.ended_at is not None
            never_ran = last.outcome is Outcome.EXPIRED or (
                last.outcome is Outcome.CANCELLED and not last.members
            )
            drained = not never_ran and last.outcome is not Outcome.SUCCEEDED
            assert job.epoch > last.epoch or not drained, (
                "STORE-3: a drain ended and the epoch did not grow"
            )

    def _check_members(
        self, job: JobRecord, tasks: Sequence[TaskRecord], last: AttemptRecord
    ) -> None:
        """MEMBER-1: the script's life is the attempt's; of every other rank each life has an epoch
        of its own, later than those before."""
        assert tasks[0].epoch == last.epoch, (
            "MEMBER-1: the script has another life than its attempt"
        )
        assert tasks[0].replaced == 0
        for t in tasks:
            assert last.epoch <= t.epoch <= job.epoch, (
                f"FENCE-1: {t.key} is of no epoch of its attempt"
            )
            assert t.replaced or t.epoch == last.epoch
            epoch, host = self.lives.get((job.id, t.rank), (0, None))
            assert t.epoch >= epoch, f"STORE-3: the epoch of {t.key} went back from {epoch}"
            assert t.epoch > epoch or t.host_id in (host, None), (
                f"FENCE-1: {t.key} is on {t.host_id} and was on {host}"
            )
            self.lives[job.id, t.rank] = (
                t.epoch,
                t.host_id or (host if t.epoch == epoch else None),
            )
            if t.state is TaskState.BLOCKED:
                held = (t.host_id, t.incarnation, t.devices, t.lease_until, t.offered_at, t.facts)
                assert held == (None, None, (), None, None, None), f"a blocked member holds {held}"

    def _check_budgets(self, job: JobRecord, attempts: Sequence[AttemptRecord]) -> None:
        counted = attempts[self.revived_at.get(job.id, 0) :]
        charged = Counter(a.charged_to for a in counted) + Counter(
            kind for _, kind in self._list_replaced(job)
        )
        ranks = job.rank_charges or {
            "0": RankCharges(
                retries=job.retries_charged, watchdog=job.watchdog_charged, infra=job.infra_charged
            )
        }
        caps = (
            (
                Budget.RETRIES,
                job.retries_charged,
                self.policy.retry.max_retries,
                [r.retries for r in ranks.values()],
            ),
            (
                Budget.WATCHDOG,
                job.watchdog_charged,
                self.policy.watchdog_cap,
                [r.watchdog for r in ranks.values()],
            ),
            (
                Budget.INFRA,
                job.infra_charged,
                self.policy.infra_cap,
                [r.infra for r in ranks.values()],
            ),
        )
        for budget, on_record, cap, by_rank in caps:
            assert charged[str(budget)] == on_record, (
                f"BUDGET-1: {budget}: {on_record} on record, attempts say {charged}"
            )
            assert max(by_rank) <= cap + 1, (
                f"BUDGET-2: {budget} was charged {by_rank} times, its cap is {cap}"
            )
            if max(by_rank) > cap:
                assert job.state is JobState.FAILED, (
                    f"BUDGET-2: the budget of {budget} is spent, and the job is {job.state}"
                )
        if job.tasks > 1:
            self._check_rank_charges(job, counted)
        before = 0
        for a in counted:
            assert a.retry_count == before, (
                f"RETRY-1: attempt {a.number} says it is retry {a.retry_count}, not {before}"
            )
            before += a.charged_to == str(Budget.RETRIES)
        if job.state is JobState.WAITING and job.wait_cause == "back_off":
            assert job.retry_at == job.wait_until, (
                f"{job.id} waits until {job.wait_until}, due at {job.retry_at}"
            )
        for a in counted:
            if a.cause is not None and CHARGED_TO[a.cause] is Budget.NEVER:
                assert a is counted[-1], (
                    f"BUDGET-3: an attempt follows one that ended with {a.cause}"
                )
                assert job.state in (JobState.FAILED, JobState.CANCELLED), (
                    f"BUDGET-3: {a.cause} left it {job.state}"
                )
            if a.state is AttemptState.ENDED and a.members:
                assert sum(m.trigger for m in a.members) <= 1, "BUDGET-1: two triggers"

    def _list_replaced(self, job: JobRecord) -> list[tuple[str, str]]:
        """Rank and charge of each replacement that counts still."""
        since = self.revived_at.get(job.id, 0)
        return [
            (rank, kind) for attempt, rank, kind in self.replaced.get(job.id, []) if attempt > since
        ]

    def _check_rank_charges(self, job: JobRecord, counted: Sequence[AttemptRecord]) -> None:
        """GANG-4: each attempt's charge is on its trigger's count, and on no other."""
        expected: Counter[tuple[str, str]] = Counter(
            (str(a.trigger_rank), a.charged_to)
            for a in counted
            if a.charged_to in (Budget.RETRIES, Budget.WATCHDOG, Budget.INFRA)
        ) + Counter(
            (rank, kind)
            for rank, kind in self._list_replaced(job)
            if kind in (Budget.RETRIES, Budget.WATCHDOG, Budget.INFRA)
        )
        found = Counter(
            {
                (rank, kind): getattr(charges, kind)
                for rank, charges in job.rank_charges.items()
                for kind in ("retries", "watchdog", "infra")
            }
        )
        assert +found == +expected, (
            f"GANG-4: ranks are charged {+found}, their attempts' triggers say {+expected}"
        )
        for a in counted:
            lapsed = {m.rank for m in a.members if m.facts and m.facts.lost == LAPSED}  # LATE-1
            fell = {m.rank for m in a.members if m.state is TaskState.FAILED} | lapsed
            assert a.trigger_rank is None or a.trigger_rank in fell, (
                "DRAIN-2: the trigger is a rank that did not fail"
            )

    def _check_end(
        self, job: JobRecord, tasks: Sequence[TaskRecord], attempts: Sequence[AttemptRecord]
    ) -> None:
        if not job.state.terminal:
            self.frozen.pop(job.id, None)
            return
        now = (job, list(attempts))
        before = self.frozen.setdefault(job.id, now)
        assert before == now, f"something changed after the end; before: {before}"
        assert job.ended_at is not None
        assert job.outcome is not None
        if job.state is JobState.SUCCEEDED:
            last = attempts[-1]
            deciding = 1 if job.spec.supervised else job.tasks  # MEMBER-4
            keys = [TaskKey(job.id, rank, last.epoch) for rank in range(deciding)]
            assert all(self.finished.get(key) for key in keys), (
                f"it succeeded, but of {keys} not all ended with 0"
            )
            done = all(
                m.state is TaskState.DONE and m.exit_code == 0 for m in last.members[:deciding]
            )
            assert done, "it succeeded, and its members say otherwise"
            assert len(last.members) == job.tasks
            assert job.exit_code == 0

    # ---- the store's events

    def take_events(self, now: float, events: Iterable[EventRecord]) -> None:
        """STORE-1: the events of a job are a path of its machine."""
        for event in events:
            job_id = event.job_id
            if job_id is not None and event.kind == "task.replaced":
                found = (event.attempt or 0, str(event.rank), str(event.data["charged_to"]))
                self.replaced.setdefault(job_id, []).append(found)
            if job_id is not None and event.kind.startswith("task."):
                self._tell(
                    now,
                    job_id,
                    f"event {event.kind} #{event.attempt} e{event.epoch} {event.message}",
                )
            if job_id is None or not event.kind.startswith("job."):
                continue
            self._check_dispatch(event)
            self._tell(
                now,
                job_id,
                f"event {event.kind} #{event.attempt} e{event.epoch} {event.message} {event.data}",
            )
            if event.kind == "job.submitted":
                late = "start" in event.message
                self.told[job_id] = JobState.WAITING if late else JobState.QUEUED
                continue
            before = self.told[job_id]
            if event.kind == "job.draining" and before is JobState.DRAINING:
                assert event.data["cause"] == "user_cancelled", "a second drain of one attempt"
                continue
            if event.kind == "job.draining":
                assert event.epoch is not None
                assert (job_id, event.epoch) not in self.drained, "two drains of one epoch"
                self.drained.add((job_id, event.epoch))
            if event.kind == "job.cancelled" and before is JobState.RESERVED:
                before = step(
                    JOB, before, JobEvent.EXPIRE
                )  # a reservation that no host was told of is taken back silently
            if event.kind in TELLING:
                continue
            edge = EDGES.get(event.kind)
            if event.kind == "job.requeued":
                edge = JobEvent.BACK_OFF if "wait_cause" in event.data else JobEvent.REQUEUE
            assert edge is not None, f"{event.kind} is no edge"
            if event.kind == "job.requeued":
                self.waits[job_id] = event.data.get("wait_cause")
            # Parked after failed starts and let go: a person's word, like a revival. One that ends a
            # back-off leaves the budgets as they are.
            if event.kind == "job.revived" or (
                event.kind == "job.released"
                and event.data.get("counted") is False
                and self.waits.get(job_id) != "back_off"
            ):
                assert event.attempt is None or event.attempt >= 0
                self.revived_at[job_id] = event.attempt or 0
            self.told[job_id] = step(JOB, before, edge)

    def _check_dispatch(self, event: EventRecord) -> None:
        """RETRY-6: nothing is dispatched under a kill switch, before its time, or twice."""
        assert event.job_id is not None
        if (
            event.kind == "job.requeued"
            and "wait_cause" in event.data
            and "delay_seconds" in event.data
        ):
            self.dues[event.job_id] = event.at + timedelta(seconds=event.data["delay_seconds"])
        if event.kind == "job.retry_dispatched":
            assert not self.held, "RETRY-6: a retry was dispatched under a kill switch"
            due = self.dues.pop(event.job_id)
            assert due <= event.at, (
                f"a retry was dispatched {(due - event.at).total_seconds()} s before it was due"
            )

    def check_told(self, jobs: Iterable[JobRecord]) -> None:
        for job in jobs:
            assert self.told[job.id] is job.state, (
                f"STORE-1: by its events job {job.id} is {self.told[job.id]}, by its row "
                f"{job.state}\n{self.explain(job.id)}"
            )


def check_busy(
    hosts: Sequence[HostRecord], tasks: dict[str, list[TaskRecord]], jobs: dict[str, JobRecord]
) -> None:
    """ADMIT-2: no device or slot is given twice, and what is shown as busy is what live leases
    hold."""
    for host in hosts:
        here = [
            t for ts in tasks.values() for t in ts if t.host_id == host.id and t.state.holds_lease
        ]
        devices = sorted(d for t in here for d in t.devices)
        assert len(devices) == len(set(devices)), f"ADMIT-2: {host.id} gives devices twice: {here}"
        assert set(devices) <= {g.index for g in host.gpus}
        slots = sum(jobs[t.job_id].cpu_slots for t in here)
        assert slots <= host.cpu_slots, f"ADMIT-2: {host.id} gives {slots} slots"
        shown: tuple[Any, ...] = (host.busy_gpus, host.busy_cpu_slots, host.running)
        assert shown == (tuple(devices), slots, len(here)), f"busy figures {shown}, leases {here}"
