"""One host's sync: the reports of it that count, and the answer to it."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from holdfast.bounds import MAX_COUNT
from holdfast.core.causes import Cause
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.states import JobState, TaskState
from holdfast.moves.jobs import runs
from holdfast.moves.jobs.moves import Moves
from holdfast.moves.rows import JobRow, NewEvent, TaskRow, clamp_count, clean_text, is_storable_key
from holdfast.moves.values import ClaimRow, HostSync, HostSynced, PreemptRow, TaskBeat, TaskOffer

MAX_AGE_SECONDS = 366 * 86_400.0
GROWTH = 4
TOO_EARLY = "it ran before its attempt's start barrier was open (a restored database?)"


class AnswerBuilder:
    """The answer to one sync while it is made. It treats keys that no row could hold as unknown."""

    def __init__(self, sync: HostSync, status: str) -> None:
        self.sync = sync
        self.status = status
        self.name = ""
        self.orders = False
        self.reads = self.sessions = False
        self.fenced = ""  # why the host is in error: no work, no renewals (CYCLE-1)
        self.offers: list[TaskOffer] = []
        self.preempts: list[PreemptRow] = []
        self.renewed: list[tuple[TaskKey, float]] = []
        self.lost: list[TaskKey] = []
        self.acked: list[TaskKey] = []
        self.refused: list[TaskKey] = []
        self.absent: list[TaskKey] = []
        self.claims: list[ClaimRow] = []
        self.opened: set[str] = set()
        self.succeeded: list[str] = []
        self.retried: list[str] = []
        self.draining: list[str] = []
        self.settled = False
        self.posted = self.awaited = False
        # A rank that fell comes before the ranks that were stopped for it (DRAIN-2, FALL-1).
        ended: Iterable[tuple[TaskKey, TaskFacts]] = sync.ended
        if any(facts.stopped for _, facts in ended):
            ended = sorted(ended, key=lambda end: end[1].stopped)
        self._ended = {key: facts for key, facts in ended if is_storable_key(key)}
        started = [k for k in dict.fromkeys(sync.started) if k not in self._ended]
        self._started = [k for k in started if is_storable_key(k)]
        claimed = {key: port for key, port in sync.claimed if key not in self._ended}
        self._claimed = {key: port for key, port in claimed.items() if is_storable_key(key)}
        live = [
            k for k in dict.fromkeys((*sync.live, *sync.started, *claimed)) if k not in self._ended
        ]
        self._live = [k for k in live if is_storable_key(k)]
        if status == "ok":
            self.lost += [k for k in live if not is_storable_key(k)]
            self.refused += [key for key, _ in sync.ended if not is_storable_key(key)]
        else:
            self.lost += live
            self.refused += [key for key, _ in sync.ended]
        self._beats = {beat.key: _storable(beat) for beat in sync.beats}

    def ended(self) -> Iterator[tuple[TaskKey, TaskFacts]]:
        """Return the reported ends, one for each key."""
        return iter(self._ended.items())

    def heard(self) -> Sequence[TaskKey]:
        """Return the tasks for which the host needs no order: the ones that it runs or was just told
        of, and those that have ended, even if their ends are not on record yet."""
        return [*self.begun(), *self._ended]

    def begun(self) -> Sequence[TaskKey]:
        """Return the tasks that the host runs or was just told to start."""
        live = [k for k in self._live if k not in self._claimed] if self._claimed else self._live
        return [*live, *self.sync.told]

    def started(self) -> Sequence[TaskKey]:
        """Return the tasks reported as started that have not ended since."""
        return self._started

    def live(self) -> Sequence[TaskKey]:
        """Return the tasks whose leases are renewed: live or started, and not ended."""
        return self._live

    def disown(self, key: TaskKey) -> None:
        """Order the host to end the process under this key, and do not renew its lease."""
        self._live = [k for k in self._live if k != key]
        self.lost.append(key)

    def miss(self, key: TaskKey, told: list[TaskKey]) -> None:
        """Add a task that was not found to `told`, the lost or the refused ones."""
        told.append(key)
        self.absent.append(key)

    def holds_work(self) -> bool:
        """Return whether a change elsewhere may bring the host orders, to stop or to start a task.
        A host whose tasks have all ended gets none until the leader places a job there."""
        return bool(self._live or self._claimed or self._started)

    def claimed(self) -> dict[TaskKey, int]:
        """Return key → rank 0's port, for the ranks of gangs for which the host keeps a place; none
        for a fenced host."""
        return {} if self.fenced else self._claimed

    def beats(self) -> dict[TaskKey, TaskBeat]:
        """Return the last beat of each task."""
        return self._beats

    def speaks_for(self, task: TaskRow | None, key: TaskKey) -> bool:
        """Return whether the task has this epoch, host and incarnation (FENCE-1)."""
        if task is None:
            return False
        here = (task.epoch, task.host_id, task.incarnation)
        return here == (key.epoch, self.sync.host_id, self.sync.incarnation)

    def offer(self) -> HostSynced:
        """Return an answer with tasks to start only; the host's own syncs bring the orders to
        stop."""
        offers, claims = tuple(self.offers), tuple(self.claims)
        return HostSynced(
            host_id=self.sync.host_id, status=self.status, offers=offers, claims=claims
        )

    def answer(self) -> HostSynced:
        """Return the answer to one host, once all reports are applied."""
        return HostSynced(
            host_id=self.sync.host_id,
            status=self.status,
            offers=tuple(self.offers),
            claims=tuple(self.claims),
            opened=tuple(sorted(self.opened)),
            preempts=tuple(self.preempts),
            renewed=tuple(self.renewed),
            lost=tuple(sorted(set(self.lost))),
            acked=tuple(dict.fromkeys(self.acked)),
            refused=tuple(sorted(set(self.refused))),
            absent=tuple(self.absent),
            succeeded=tuple(dict.fromkeys(self.succeeded)),
            retried=tuple(dict.fromkeys(self.retried)),
            draining=tuple(dict.fromkeys(self.draining)),
            fenced=self.fenced,
            settled=self.settled,
            posted=self.posted,
            awaited=self.awaited,
            reads=self.reads,
            sessions=self.sessions,
        )


def _storable(beat: TaskBeat) -> TaskBeat:
    return TaskBeat(
        key=beat.key,
        step=clamp_count(beat.step),
        total=clamp_count(beat.total),
        age_seconds=min(max(beat.age_seconds, 0.0), MAX_AGE_SECONDS),
        section=None if beat.section is None else clean_text(beat.section),
        rate=beat.rate,
        still_seconds=None
        if beat.still_seconds is None
        else min(max(beat.still_seconds, 0.0), MAX_AGE_SECONDS),
        nan_beats=min(beat.nan_beats, MAX_COUNT),
    )


def guess_room(slots: int, live: int, ends: int) -> int:
    """Return for how many jobs a host may have room, by its slots, live tasks and reported ends.

    The guess is at most `GROWTH` times its ends. So a host that begins to work through a queue
    fills its slots within a few syncs, and one whose slots are free only because its devices are
    not asks for few jobs.
    """
    return max(ends, min(slots - live, GROWTH * ends))


def count_wanted(sync: HostSync) -> int:
    """Return how many jobs a host could take."""
    if not sync.takes:
        return 0
    return max(len(sync.ended), sync.room)


def group_syncs(syncs: Sequence[HostSync]) -> list[list[int]]:
    """Return indices in groups without a repeated host; nearly always one group."""
    groups: list[list[int]] = []
    seen: list[set[str]] = []
    for i, sync in enumerate(syncs):
        for group, hosts in zip(groups, seen, strict=True):
            if sync.host_id not in hosts:
                group.append(i)
                hosts.add(sync.host_id)
                break
        else:
            groups.append([i])
            seen.append({sync.host_id})
    return groups


def expect_moves(syncs: Sequence[HostSync]) -> set[str]:
    """Return the jobs that a batch of reports changes, so that they may be locked together with its
    hosts; none where a claim or a success is among the reports, because the jobs to be moved after
    these show only later."""
    if any(sync.claimed or any(facts.succeeded for _, facts in sync.ended) for sync in syncs):
        return set()
    told = [(*s.started, *(key for key, _ in s.ended)) for s in syncs]
    return {key.job_id for keys in told for key in keys if is_storable_key(key)}


def apply_reports(
    m: Moves, builders: Sequence[AnswerBuilder], taken: set[TaskKey], rules: Sequence[OperatorRule]
) -> list[tuple[AnswerBuilder, TaskKey]]:
    """Apply reported claims, starts and ends, except ends in `taken`, in a fixed order; fill the
    builders.

    taken: keys of ends that are written already. rules: the operators' rules, for drains that begin
    here. Returns the ends whose task is not found; the caller looks for them in ended attempts.
    """
    for d in builders:
        for key, port in d.claimed().items():
            if (rows := _find(m, d, key)) is not None:
                runs.claim_task(m, *rows, port)
                d.opened |= m.opened
    for d in builders:
        for key in tuple(d.started()):
            if (rows := _find(m, d, key)) is None:
                continue
            if _began_too_early(rows[1]):
                d.disown(key)
            else:
                runs.start_task(m, *rows)
    repeats: list[tuple[AnswerBuilder, TaskKey]] = []
    for d in builders:
        for key, facts in d.ended():
            if key in taken:
                continue
            rows = _find(m, d, key)
            if rows is None:
                repeats.append((d, key))
                continue
            job, task = rows
            if not (task.state.holds_lease or runs.comes_late(m, job, task, facts)):
                lost = task.facts is None or task.facts.lost is not None
                (d.refused if lost else d.acked).append(key)
            else:
                note_beat(task, d.beats().get(key), m.now)
                believed = TaskFacts(lost=TOO_EARLY) if _began_too_early(task) else facts
                runs.end_task(m, job, task, believed, rules)
                d.acked.append(key)
                if job.state is JobState.SUCCEEDED:
                    d.succeeded.append(job.id)
                    d.posted = d.posted or job.origin_run is not None
                    d.awaited = d.awaited or job.awaited
                    if job.was_retried:
                        d.retried.append(job.id)
                elif job.state is JobState.DRAINING:
                    d.draining.append(job.id)
    return repeats


def _find(m: Moves, builder: AnswerBuilder, key: TaskKey) -> tuple[JobRow, TaskRow] | None:
    """Return the job and the task that a report is about, None where it is stale (FENCE-1)."""
    job, task = m.jobs.get(key.job_id), m.tasks.get(key.job_id, {}).get(key.rank)
    if job is None or task is None or not builder.speaks_for(task, key):
        return None
    return job, task


def _began_too_early(task: TaskRow) -> bool:
    """Return whether the task's attempt has launched no process yet (GANG-1). A process that is
    reported all the same belongs to an attempt that a restored database has forgotten, and must not
    count as a rank of this one."""
    return task.state is TaskState.RESERVED and not task.barrier


def find_stuck(builder: AnswerBuilder) -> str | None:
    """Return why a host must get no more work, or None: a task of it survives SIGKILL and keeps its
    devices busy. This holds at once, before the decision on the job, and in a stale report too."""
    for key, facts in builder.ended():
        if facts.unkillable:
            whose = f"rank {key.rank} of job {key.job_id}"
            return f"processes of {whose} survive SIGKILL and keep what they hold"
    return None


def note_beat(task: TaskRow, beat: TaskBeat | None, now: datetime) -> None:
    """Write a task's last beat, which comes with reports of live tasks and of ends, into its
    row."""
    if beat is None:
        return
    beat_at = now - timedelta(seconds=beat.age_seconds)
    task.step = task.step if beat.step is None else beat.step
    task.total = task.total if beat.total is None else beat.total
    task.section, task.rate, task.nan_beats = beat.section, beat.rate, beat.nan_beats
    still = beat.still_seconds
    task.moved_at = None if still is None else now - timedelta(seconds=still)
    task.first_beat_at = task.first_beat_at or beat_at
    task.beat_at = beat_at if task.beat_at is None else max(task.beat_at, beat_at)


def order_preempt(
    key: TaskKey,
    *,
    cause: Cause,
    reason: str,
    hard: bool,
    operator_stop: bool,
    trigger_rank: int | None,
    notice_seconds: float | None,
) -> PreemptRow:
    """Return the order to stop one task. A task that falls because another fell is a sibling."""
    sibling = trigger_rank not in (None, key.rank) and cause is not Cause.USER_CANCELLED
    cause = Cause.SIBLING_DRAINED if sibling else cause
    return PreemptRow(
        key=key,
        cause=cause,
        reason=reason,
        hard=hard,
        operator_stop=operator_stop,
        notice_seconds=notice_seconds,
    )


def recovered_event(host_id: str, name: str, heartbeat_at: datetime, now: datetime) -> NewEvent:
    """Return the event that reports a host that was flagged dead and calls again."""
    silent = max(0.0, (now - heartbeat_at).total_seconds())
    text = f"host {name} is back after {silent:.0f} s of silence"
    data = {"name": name, "silent_seconds": round(silent, 3)}
    return NewEvent(kind="host.recovered", host_id=host_id, message=text, data=data)
