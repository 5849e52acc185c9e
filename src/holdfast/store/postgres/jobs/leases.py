"""The hot path: many hosts' syncs in one transaction of few statements.

Locks are taken in the one order (hosts, jobs, tasks): first every host's heartbeat, then all jobs
whose tasks were reported started or ended, then renewals, then offers. A batch without changes and
offers commits relaxed: a crash of the server may lose it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.host_faults import Hindrance
from holdfast.core.ids import TaskKey
from holdfast.core.placement.plan import JobPlacement
from holdfast.core.placement.takes import TakeTerms
from holdfast.core.settings.resolve import Value
from holdfast.core.states import HostState
from holdfast.moves.jobs import reports
from holdfast.moves.jobs.reports import AnswerBuilder
from holdfast.moves.values import (
    ClaimRow,
    GangSeat,
    HostSync,
    HostSynced,
    LiveTask,
    NewJob,
    OfferedTask,
    PreemptRow,
    Submitted,
    TaskOffer,
)
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, transacts
from holdfast.store.postgres.connection.session import Rows, Session, Step, Tx
from holdfast.store.postgres.hosts import quarantine_host, retire_host, write_faults
from holdfast.store.postgres.jobs.admission import plan_reservation
from holdfast.store.postgres.jobs.ends import finish_jobs, split_ends
from holdfast.store.postgres.jobs.placing import submit_and_take
from holdfast.store.postgres.jobs.same_spec import SameSpecJobs, make_offered
from holdfast.store.postgres.jobs.takes import HostTake, plan_take
from holdfast.store.postgres.moves import load_moves, take_moves, write_events, write_moves
from holdfast.store.postgres.sync import lapses
from holdfast.store.postgres.sync.renewals import renew_leases, take_renewals, touch_hosts


class PostgresLeases(OnSession):
    """The reports of agents, and the consequences of their silence."""

    def __init__(self, session: Session, environment: Mapping[str, Value]) -> None:
        super().__init__(session)
        self._alike = SameSpecJobs()
        self.environment = environment

    async def sync_hosts(
        self,
        syncs: Sequence[HostSync],
        *,
        rules: Sequence[OperatorRule] = (),
        terms: TakeTerms | None = None,
        now: Now = None,
    ) -> list[HostSynced]:
        """Apply many hosts' syncs in one transaction; answers come in the same order.

        rules: the operators' rules, for the cause of a drain that begins here (CLASSIFY-4).

        terms: the queues in which hosts whose syncs set `takes` fill their free room at once, by
        `core.placement.takes`: each job taken is reserved and offered like any other, with
        AttemptRecord.road `host`. None: in no queue.

        Per host: its heartbeat (clears `flagged_dead_at` with a host.recovered event), beats,
        renewals, starts and ends. A start makes its task running; when all tasks run, attempt and
        job do too (event job.started).
        An end with exit 0 by itself → done; otherwise failed, or preempted when the task was
        preempting and `facts.stopped`. A job whose tasks are all done succeeds here (attempt ended,
        task rows deleted, events job.started if it was missed, and job.succeeded). A failed task
        makes its job drain: trigger on record, siblings preempting, event job.draining.
        `leaving` → the host is terminated after its ends are recorded; a host that leaves out ends
        of tasks that have begun, or that it lists as live, keeps its state and gets no orders.
        A key that matches no live task of this host and incarnation is `lost` if reported live,
        `refused` if reported ended (STORE-2). An end whose task has already ended under the same
        key is acknowledged again, not refused.
        """
        answers: list[HostSynced | None] = [None] * len(syncs)
        # A host that occurs twice is in two groups, because a transaction handles it once.
        for group in reports.group_syncs(syncs):
            found = await self._sync_batch([syncs[i] for i in group], rules, terms, now)
            for i, answer in zip(group, found, strict=True):
                answers[i] = answer
        return [answer for answer in answers if answer is not None]

    async def _sync_batch(
        self,
        syncs: Sequence[HostSync],
        rules: Sequence[OperatorRule],
        terms: TakeTerms | None,
        now: datetime | None,
    ) -> list[HostSynced]:
        builders = await self.session.transact_hot(
            lambda tx: _sync(tx, syncs, rules, terms, self._alike, now)
        )
        return [d.answer() for d in builders]

    async def submit_to_host(
        self, job: NewJob, taker: HostSync, terms: TakeTerms, *, now: Now = None
    ) -> tuple[Submitted, HostSynced] | None:
        """Write one new job, and let a host fill its free room in the same transaction, as a sync
        with `takes` does. The host's answer holds the offers, which may be of jobs that were
        submitted before.

        Return None, and write nothing, where the job is not new or a quota is set; the caller then
        uses `submit_jobs`.
        """
        return await self.session.transact_hot(
            lambda tx: submit_and_take(tx, job, taker, terms, self._alike, now)
        )

    @transacts
    async def reserve_and_offer(
        self,
        tx: Tx,
        placements: Sequence[JobPlacement],
        ttls: Mapping[str, float],
        polls: Sequence[HostSync],
        *,
        now: Now = None,
    ) -> tuple[list[str], list[HostSynced]]:
        """Apply placements whose job is still queued under its epoch, its queue not paused and its
        hosts active under the same incarnation. Write tasks, the attempt's row, the new epoch and
        the event, and in the same transaction answer the waiting syncs of hosts with their new
        offers and claims.

        ttls: job id → lease TTL in seconds. polls: the waiting syncs. Return the ids applied, and
        an answer for each host that has one. The next sync repeats an answer that never arrived,
        like any offer.
        """
        found = await plan_reservation(tx, self.environment, placements, ttls, now)
        if found is None:
            return [], []
        builders, asked = ask_for_polls(polls, placements, found.at)
        _, written, *orders = await tx.last(("keep_plans", None), found.ask(), *asked)
        return found.list_applied(written), answer_polls(builders, orders)

    async def list_live_tasks(self, host_id: str) -> list[LiveTask]:
        """Return the host's live tasks, for watch settings that may have to be sent again."""
        return [
            msgspec.convert(
                {
                    "key": TaskKey(row["job_id"], row["rank"], row["epoch"]),
                    "queue": row["queue"],
                    "spec": row["spec"],
                },
                LiveTask,
            )
            for row in await self.session.rows("live_tasks_of_host", id=host_id)
        ]

    @transacts
    async def lapse_leases(self, tx: Tx, leading_since: datetime, *, now: Now = None) -> list[str]:
        """End tasks whose lease ended more than its margin ago, and for which leading_since + TTL
        has passed (LEASE-4): running or reserved → failed with lost="lease_lapsed"; preempting →
        preempted. Their jobs drain. Returns job ids."""
        return await lapses.lapse_leases(tx, leading_since, now)

    async def stamp_renewals(self, *, now: Now = None) -> tuple[datetime, datetime | None]:
        """Record that renewals can be written now (LEASE-6). Return the time, and the end of the
        last pause of `lapses.PAUSE_SECONDS`, None where there was none. Waits for what holds
        renewals up."""
        return await lapses.stamp_renewals(self.session, now)

    async def settle_clock(self, *, now: Now = None) -> None:
        """Set times that a wrong clock put into the future to now: heartbeats, the begins of
        reservations and drains, and stamps of renewals. Let no lease end later than its TTL from
        now (LEASE-5)."""
        await self.session.transact(lambda tx: lapses.settle_clock(tx, now))


async def _sync(
    tx: Tx,
    syncs: Sequence[HostSync],
    rules: Sequence[OperatorRule],
    terms: TakeTerms | None,
    alike: SameSpecJobs,
    now: datetime | None,
) -> list[AnswerBuilder]:
    builders = [AnswerBuilder(s, "ok") for s in syncs]
    # A batch that changes state or offers a task is flushed to the disk before its answer
    # (`_give_orders`).
    quiet = not any(s.started or s.ended or s.claimed or s.leaving for s in syncs)
    expected = reports.expect_moves(syncs)
    rows, renewed, locked = await touch_hosts(tx, builders, expected, now, quiet=quiet)
    found = {row["host_id"]: row for row in rows}
    at = rows[0]["now"] if rows else now
    known = {host_id for host_id, row in found.items() if row["fresh"]}
    if len(known) < len(builders):
        old = {host_id: "stale" for host_id in found if host_id not in known}
        builders = [
            d
            if d.sync.host_id in known
            else AnswerBuilder(d.sync, old.get(d.sync.host_id, "unknown"))
            for d in builders
        ]
    fresh = [d for d in builders if d.status == "ok"]
    if not fresh or at is None:
        return builders
    for d in fresh:
        row = found[d.sync.host_id]
        d.name, d.orders, d.reads = row["name"], row["orders"], row["reads"]
        d.sessions = row["sessions"]
        d.fenced = row["reason"] if row["state"] == HostState.ERROR else ""
    await _note_health(tx, fresh, found, at)
    last = not any(d.orders or d.sync.takes or d.sync.leaving or d.holds_work() for d in fresh)
    moved = await _take_moves(tx, fresh, rules, at, locked, last=last)
    for d in fresh:
        stuck = reports.find_stuck(d)
        if stuck is not None:
            await quarantine_host(tx, d.sync.host_id, stuck, at)
    if quiet:
        take_renewals(fresh, renewed)
    else:
        await renew_leases(tx, fresh, at)
    for d in fresh:
        if d.sync.leaving:
            d.draining.extend(await retire_host(tx, d.sync, d.name, at))
    staying = [d for d in fresh if not d.sync.leaving]
    takers = [d for d in staying if d.sync.takes and not d.fenced]
    take = await plan_take(tx, alike, takers, terms, at) if takers and terms else None
    listening = [d for d in staying if d.orders or (moved and d.holds_work())]
    if listening or take is not None:
        await _give_orders(tx, listening, staying, take, at)
    return builders


async def _note_health(
    tx: Tx, fresh: Sequence[AnswerBuilder], found: Mapping[str, dict[str, Any]], at: datetime
) -> None:
    """Write the events of hosts that call again after they were flagged dead, and the faults that
    hosts report."""
    flagged = [d for d in fresh if found[d.sync.host_id]["flagged_dead_at"] is not None]
    if flagged:
        # An event that may have been read must not be lost by a crash (STORE-4).
        await tx.run("commit_for_good")
        back = [
            reports.recovered_event(
                d.sync.host_id, d.name, found[d.sync.host_id]["heartbeat_at"], at
            )
            for d in flagged
        ]
        await write_events(tx, back, at)
    for d in fresh:
        told = msgspec.convert(found[d.sync.host_id]["faults"], tuple[Hindrance, ...])
        if d.sync.faults is not None and d.sync.faults != told:
            await tx.run("commit_for_good")  # STORE-4
            await write_faults(tx, d.sync.host_id, d.name, told, d.sync.faults, at)


async def _take_moves(
    tx: Tx,
    builders: Sequence[AnswerBuilder],
    rules: Sequence[OperatorRule],
    at: datetime,
    locked: Sequence[Rows],
    *,
    last: bool,
) -> bool:
    """Apply starts, claims and ends. Return whether any of them may bring orders to a host, which
    starts, and ends of successful jobs of one task, never do.

    locked: the rows of the jobs that change, where they were locked before. last: no other write
    may follow in this transaction.
    """
    good, left = split_ends(builders)  # the moves handle the other ends
    told = [key for d in builders for key in d.started()]
    claims = [(d, key, port) for d in builders for key, port in d.claimed().items()]
    if not good and not left and not told and not claims:
        return False
    rest = {key.job_id for key in (*told, *left)}
    if claims or (good and rest):
        both = {key.job_id for some in good for key in some.keys}
        both |= {key.job_id for _, key, _ in claims}
        await tx.rows("lock_job_ids", ids=sorted(rest | both))
    full = await _take_claims(tx, claims, at) if claims else set()
    taken = set(await finish_jobs(tx, good, at) if good else ())
    left += [key for some in good for key in some.keys if key not in taken]
    ids = full | {key.job_id for key in left} | {key.job_id for key in told if key not in taken}
    if ids:
        m = take_moves(at, *locked) if locked else await load_moves(tx, ids, at)
        repeats = reports.apply_reports(m, builders, taken, rules)
        stuck = any(reports.find_stuck(d) for d in builders)
        await write_moves(tx, m, last=last and not repeats and not stuck)
        if repeats:
            await _ack_repeats(tx, repeats)
    return bool(left or claims)


async def _take_claims(
    tx: Tx, claims: Sequence[tuple[AnswerBuilder, TaskKey, int]], at: datetime
) -> set[str]:
    """Write the claimed places of ranks. Return the jobs of which every rank has a place now."""
    params = {
        "jobs": [key.job_id for _, key, _ in claims], "ranks": [key.rank for _, key, _ in claims],
        "epochs": [key.epoch for _, key, _ in claims], "hosts": [d.sync.host_id for d, _, _ in claims],
        "incarnations": [d.sync.incarnation for d, _, _ in claims], "ports": [port for _, _, port in claims], "now": at,
    }  # fmt: skip
    return {row["job_id"] for row in await tx.rows("claim_tasks", **params)}


async def _ack_repeats(tx: Tx, repeats: Sequence[tuple[AnswerBuilder, TaskKey]]) -> None:
    """Acknowledge ends of tasks without a row whose own host had reported these ends before; refuse
    the others."""
    rows = await tx.rows(
        "find_ended",
        jobs=[k.job_id for _, k in repeats],
        ranks=[k.rank for _, k in repeats],
        epochs=[k.epoch for _, k in repeats],
        hosts=[d.sync.host_id for d, _ in repeats],
    )
    known = {(r["host_id"], TaskKey(r["job_id"], r["rank"], r["epoch"])) for r in rows}
    for d, key in repeats:
        if (d.sync.host_id, key) in known:
            d.acked.append(key)
        else:
            d.miss(key, d.refused)


async def _give_orders(
    tx: Tx,
    listening: Sequence[AnswerBuilder],
    staying: Sequence[AnswerBuilder],
    take: HostTake | None,
    at: datetime,
) -> None:
    """Commit, in one round trip with the queries for orders: first for the orders that the leader's
    reservations bring, then for the jobs that hosts take."""
    asked = _ask_orders(listening, at) if listening else []
    lasting: list[Step] = [("commit_for_good", {})] if tx.relaxed else []
    taking = [] if take is None else [take.reservation.ask()]
    found = (await tx.last(*lasting, *asked, *taking))[len(lasting) :]
    if asked:
        _fill_orders(listening, *found[: len(asked)])
    if take is not None:
        take.add_offers(staying, found[-1])


def ask_for_polls(
    polls: Sequence[HostSync], placements: Sequence[JobPlacement], at: datetime
) -> tuple[list[AnswerBuilder], list[Step]]:
    """Return builders for the waiting syncs of the hosts of `placements`, and the queries for their
    new orders. Orders to stop are left to their next syncs."""
    here = {task.host_id for placement in placements for task in placement.tasks}
    builders = [AnswerBuilder(poll, "ok") for poll in polls if poll.host_id in here]
    return builders, _ask_orders(builders, at)[:-1] if builders else []


def answer_polls(builders: Sequence[AnswerBuilder], orders: Sequence[Rows]) -> list[HostSynced]:
    """Return the answers of hosts that have one, from the rows of the queries of
    `ask_for_polls`."""
    if builders:
        _fill_orders(builders, *orders)
    return [d.offer() for d in builders if d.offers or d.claims]


def _ask_orders(builders: Sequence[AnswerBuilder], at: datetime) -> list[Step]:
    by_host = {d.sync.host_id: d for d in builders}
    claimed = [key for d in builders for key in d.claimed()]
    live = [key for d in builders for key in d.begun()]
    open_to = [d for d in builders if not d.fenced]
    offered = {
        "hosts": [d.sync.host_id for d in open_to],
        "incarnations": [d.sync.incarnation for d in open_to],
    }
    offers = {
        **offered, "jobs": [k.job_id for k in live],
        "ranks": [k.rank for k in live], "epochs": [k.epoch for k in live], "now": at,
        "claimed_jobs": [k.job_id for k in claimed], "claimed_ranks": [k.rank for k in claimed],
        "claimed_epochs": [k.epoch for k in claimed],
    }  # fmt: skip
    here = {"hosts": list(by_host), "incarnations": [d.sync.incarnation for d in by_host.values()]}
    return [
        ("offer_tasks", offers),
        ("read_offered_jobs", offered),
        ("read_offered_secrets", offered),
        ("read_offered_seats", offered),
        ("read_preempts", here),
    ]


def _fill_orders(
    builders: Sequence[AnswerBuilder],
    rows: Rows,
    found: Rows,
    secrets: Rows,
    seats: Rows,
    *stops: Rows,
) -> None:
    by_host = {d.sync.host_id: d for d in builders}
    for row in [row for row in rows if not row["barrier"]]:
        key = TaskKey(row["job_id"], row["rank"], row["epoch"])
        claim = ClaimRow(
            key=key, attempt=row["attempt"], lease_ttl_seconds=row["lease_ttl_seconds"]
        )
        by_host[row["host_id"]].claims.append(claim)
    _give_offers([row for row in rows if row["barrier"]], found, secrets, seats, by_host)
    for row in (row for told in stops for row in told):
        by_host[row["host_id"]].preempts.append(_preempt(row))


def _give_offers(
    rows: Rows, found: Rows, hidden: Rows, found_seats: Rows, by_host: dict[str, AnswerBuilder]
) -> None:
    """Make the offers after the commit, so that the rows' locks are not held meanwhile."""
    offered = {row["job_id"] for row in rows}
    told = {row["id"]: row for row in found if row["id"] in offered}
    jobs = {job_id: make_offered(row) for job_id, row in told.items()}
    secrets = {row["job_id"]: row["secrets"] for row in hidden}
    places: dict[str, list[GangSeat]] = {}
    for row in found_seats:
        places.setdefault(row["job_id"], []).append(msgspec.convert(row, GangSeat))
    seats = {job_id: tuple(ranks) for job_id, ranks in places.items()}
    for row in sorted(rows, key=lambda r: (r["job_id"], r["rank"])):
        job_id = row["job_id"]
        task = OfferedTask(
            key=TaskKey(job_id, row["rank"], row["epoch"]),
            attempt=row["attempt"],
            host_id=row["host_id"],
            devices=tuple(row["devices"]),
            lease_ttl_seconds=row["lease_ttl_seconds"],
            replaced=row["replaced"],
        )
        offer = TaskOffer(
            task=task,
            job=jobs[job_id],
            secrets=secrets.get(job_id, {}),
            seats=seats.get(job_id, ()),
            saved=told[job_id]["saved"],
        )
        by_host[task.host_id].offers.append(offer)


def _preempt(row: dict[str, Any]) -> PreemptRow:
    return reports.order_preempt(
        TaskKey(row["job_id"], row["rank"], row["epoch"]),
        cause=Cause(row["drain_cause"]),
        reason=row["drain_reason"] or "",
        hard=row["drain_hard"],
        operator_stop=row["drain_operator_stop"],
        trigger_rank=row["trigger_rank"],
        notice_seconds=row["drain_notice_seconds"],
    )
