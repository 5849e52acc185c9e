"""The ledger's minutes in PostgreSQL: what a span of them follows from, and its one writer."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.core.ledger.close import (
    HeldLease,
    HostSpan,
    KeptAccount,
    LedgerRow,
    Renaming,
    SpanFacts,
    SpanRows,
    Subject,
    find_span,
    to_ms,
)
from holdfast.core.ledger.cut import Account, Interval, Lease, TallyReport
from holdfast.core.ledger.host_time import HostTime
from holdfast.core.ledger.tally import Tally
from holdfast.core.ledger.values import LedgerName
from holdfast.core.states import HostState
from holdfast.errors import Stale
from holdfast.store.port.clock import Now
from holdfast.store.postgres.connection.ports import transacts
from holdfast.store.postgres.connection.session import Tx, to_json
from holdfast.store.postgres.ledger.reads import LedgerReads

MOST_MINUTES = 60
"""Minutes that are closed at once, so that a leader that comes after hours catches up in steps."""
SILENT_SECONDS = 60.0
"""A host that was silent for this long before a span, and since, could take no work in it."""
MOST_BRIEF = 2000
"""Brief jobs of a span that keep rows of their own; more are put together."""
_PARTS = (("gpu", "gpus"), ("cpu", "cpu_slots"))


class PostgresLedger(LedgerReads):
    """The names of all seconds of every GPU and CPU slot (LEDGER-1, LEDGER-2)."""

    async def read_span(
        self,
        most_minutes: int = MOST_MINUTES,
        *,
        hears_since: datetime | None = None,
        now: Now = None,
    ) -> SpanFacts | None:
        """Return what the next minutes to be closed follow from; None where no minute is over.

        A minute is over once no transaction is open that began in it, because that may still write
        an end or a reservation of it. hears_since: since when this controller hears hosts; before
        that, or if it is None, their silence says nothing.
        """
        # First how far minutes are over, then what happened in them: the other way round, what is
        # committed between the two reads would be in neither.
        found = await self.session.transact(lambda tx: _find_span(tx, most_minutes, now))
        if found is None:
            return None
        return await self.session.transact(lambda tx: _read_span(tx, found, hears_since))

    @transacts
    async def write_ledger(self, tx: Tx, facts: SpanFacts, rows: SpanRows) -> None:
        """Write the rows of a span, correct earlier ones, and move the cursor behind it, all in one
        transaction, so that a controller that dies at any moment has written all or nothing.

        Raises:
            Stale: the span is closed already, because another replica was faster.
        """
        span = {"since": _at(facts.since_ms), "until": _at(facts.until_ms)}
        if not await tx.run("move_ledger_cursor", **span):
            raise Stale(f"the ledger from {span['since']} on is written already")
        kept = await tx.one("read_ledger_cursor") or {}
        bounds = {"minutes_from": kept["minutes_from"], "hours_from": kept["hours_from"]}
        await _add(tx, rows.rows, bounds)
        await _rename(tx, rows.renamings, bounds)
        if rows.accounts:
            given = [{**_split(k.key), **_plain(k)} for k in rows.accounts]
            await tx.run("put_ledger_accounts", rows=to_json(given))
        if rows.settled:
            await tx.run("close_ledger_accounts", jobs=rows.settled)
            await tx.run("settle_ledger_subjects", jobs=rows.settled)
        if rows.forgotten:
            await tx.run(
                "forget_ledger_ends",
                jobs=[key.job_id for key in rows.forgotten],
                ranks=[key.rank for key in rows.forgotten],
                epochs=[key.epoch for key in rows.forgotten],
            )

    @transacts
    async def prune_ledger(
        self, tx: Tx, minutes_days: float, hours_days: float, *, now: Now = None
    ) -> int:
        """Delete minutes and hours that are older than these days, and what no row names any more.
        Return how many were deleted. Days stay for ever; where the hours are deleted, they are of
        projects, owners, queues, labels and hosts, and no longer of single jobs."""
        at = await tx.now(now)
        minutes = (at - timedelta(days=minutes_days)).replace(minute=0, second=0, microsecond=0)
        hours = (at - timedelta(days=hours_days)).replace(hour=0, minute=0, second=0, microsecond=0)
        minutes, hours = max(minutes, hours), hours
        cursor = await tx.one("read_ledger_cursor")
        if cursor is None:
            return 0
        # A minute that is not closed yet is of none of these.
        minutes, hours = min(minutes, cursor["at"]), min(hours, cursor["at"])
        minutes = minutes.replace(minute=0, second=0, microsecond=0)
        hours = hours.replace(hour=0, minute=0, second=0, microsecond=0)
        await tx.run("note_ledger_pruned", minutes=minutes, hours=hours)
        deleted = await tx.run("prune_ledger_minutes", before=minutes)
        deleted += await tx.run("prune_ledger_hours", before=hours)
        await tx.run("fold_ledger_subjects", before=hours)
        await tx.run("fold_ledger_days", before=hours)
        deleted += await tx.run("prune_host_states", before=minutes)
        deleted += await tx.run("prune_ledger_ends")
        return deleted + await tx.run("prune_ledger_subjects")


async def _find_span(tx: Tx, most_minutes: int, now: datetime | None) -> Interval | None:
    at = await tx.now(now)
    cursor = await tx.one("read_ledger_cursor")
    if cursor is None:
        await tx.run("begin_ledger")
        return None
    over = at - timedelta(seconds=cursor["open_seconds"])
    return find_span(to_ms(cursor["at"]), to_ms(over), most_minutes)


async def _read_span(tx: Tx, found: Interval, hears_since: datetime | None) -> SpanFacts:
    tx.see_one_moment()
    span = {"since": _at(found.since), "until": _at(found.until)}
    leases = await tx.rows("read_ledger_leases", **span)
    held = [_make_held(row) for row in leases]
    brief = await tx.rows("read_ledger_brief", **span, most=MOST_BRIEF)
    kept = await tx.rows("read_ledger_accounts", jobs=list({h.key.job_id for h in held}))
    over_jobs = {
        row["job_id"]
        for row in (*leases, *kept)
        if (row["over_at"] is not None and row["over_at"] < span["until"]) or row.get("gone")
    }
    before = span["since"] - timedelta(seconds=SILENT_SECONDS)
    judged = hears_since is not None and hears_since <= before
    times = await tx.rows("read_host_times", **span, heard_until=before if judged else None)
    return SpanFacts(
        since_ms=found.since,
        until_ms=found.until,
        held=held,
        accounts=[_make_account(row) for row in kept],
        hosts=_make_hosts(times, found.until),
        brief=[row for each in brief for row in _make_brief(each)],
        over=frozenset(over_jobs),
    )


def _at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms // 1000, UTC) + timedelta(milliseconds=ms % 1000)


def _split(key: TaskKey) -> dict[str, Any]:
    return {"job_id": key.job_id, "rank": key.rank, "epoch": key.epoch}


def _plain(kept: KeptAccount) -> dict[str, Any]:
    names = ("attempt", "host_id", "gpus", "cpu_slots", "account")
    return {name: getattr(kept, name) for name in names}


def _sort_labels(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def _make_held(row: Mapping[str, Any]) -> HeldLease:
    tally, ended = row["tally"], row["ended_at"]
    told = None
    if tally is not None and (row["tally_at"] is not None or ended is not None):
        final = row["tally_at"] is None
        at = ended if final else row["tally_at"]
        told = TallyReport(tally=msgspec.convert(tally, Tally), at_ms=to_ms(at), final=final)
    lease = Lease(
        begun_ms=to_ms(row["begun_at"]),
        ended_ms=None if ended is None else to_ms(ended),
        started_ms=None if row["started_at"] is None else to_ms(row["started_at"]),
        beats=row["beats"],
        told=told,
    )
    names = ("attempt", "host_id", "host", "pool", "gpus", "cpu_slots", "job_name", "project",
             "owner", "queue")  # fmt: skip
    return HeldLease(
        key=TaskKey(row["job_id"], row["rank"], row["epoch"]),
        lease=lease,
        labels=_sort_labels(row["labels"]),
        left_over=row["left_over"],
        **{name: row[name] for name in names},
    )


def _make_account(row: Mapping[str, Any]) -> KeptAccount:
    account = msgspec.convert(row["account"], Account)
    if row["gone"]:  # nothing will be told of it any more
        account = msgspec.structs.replace(account, ended=True)
    return KeptAccount(
        key=TaskKey(row["job_id"], row["rank"], row["epoch"]),
        attempt=row["attempt"],
        host_id=row["host_id"],
        gpus=row["gpus"],
        cpu_slots=row["cpu_slots"],
        account=account,
    )


def _make_hosts(rows: Sequence[Mapping[str, Any]], until_ms: int) -> list[HostSpan]:
    """Return each host's states. The name and the pool of its newest state are those of all."""
    hosts: dict[str, HostSpan] = {}
    for row in rows:
        before = hosts.get(row["host_id"])
        times = {"gpu": [], "cpu": []} if before is None else before.times
        end = until_ms if row["until"] is None else to_ms(row["until"])
        for unit, column in _PARTS:
            time = HostTime(
                state=HostState(row["state"]),
                since=to_ms(row["since"]),
                until=end,
                devices=row[column],
                silent=row["silent"],
            )
            times["gpu" if unit == "gpu" else "cpu"].append(time)
        hosts[row["host_id"]] = HostSpan(
            host_id=row["host_id"], host=row["host"], pool=row["pool"], times=times
        )
    return list(hosts.values())


def _make_brief(row: Mapping[str, Any]) -> list[LedgerRow]:
    names = (
        "host_id",
        "host",
        "pool",
        "job_id",
        "attempt",
        "job_name",
        "project",
        "owner",
        "queue",
    )
    about = {name: row[name] for name in names}
    made: list[LedgerRow] = []
    for unit, column in (("gpu", "gpu_ms"), ("cpu", "cpu_ms")):
        if row[column]:
            subject = Subject(
                unit="gpu" if unit == "gpu" else "cpu",
                labels=_sort_labels(row["labels"]),
                settled=True,
                **about,
            )
            made.append(LedgerRow(subject, to_ms(row["at"]), LedgerName(row["what"]), row[column]))
    return made


async def _find_subjects(tx: Tx, subjects: Sequence[Subject]) -> dict[Subject, int]:
    """Return the id of each subject; write those that are new."""
    if not subjects:
        return {}
    rows = [
        {**msgspec.structs.asdict(s), "labels": dict(s.labels), "n": n}
        for n, s in enumerate(subjects)
    ]
    given = to_json(rows)
    await tx.run("put_ledger_subjects", rows=given)
    found = await tx.rows("find_ledger_subjects", rows=given)
    return {subjects[row["n"]]: row["id"] for row in found}


async def _add(tx: Tx, rows: Sequence[LedgerRow], bounds: Mapping[str, datetime]) -> None:
    ids = await _find_subjects(tx, list(dict.fromkeys(row.subject for row in rows)))
    totals: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row.subject.settled:
            totals[row.subject.unit, str(row.name)] += row.ms
    if totals:
        units, names = zip(*totals, strict=True)
        await tx.run(
            "add_ledger_totals", units=list(units), names=list(names), ms=list(totals.values())
        )
    if rows:
        await tx.run(
            "add_ledger_rows",
            subjects=[ids[row.subject] for row in rows],
            ats=[_at(row.at_ms) for row in rows],
            names=[str(row.name) for row in rows],
            ms=[row.ms for row in rows],
            **bounds,
        )


async def _rename(tx: Tx, renamings: Sequence[Renaming], bounds: Mapping[str, datetime]) -> None:
    """Give milliseconds other names, in rounds in each of which a subject's name occurs once."""
    if not renamings:
        return
    jobs = list({r.job_id for r in renamings})
    ids: dict[tuple[str, int, str, str], int] = {}
    for row in await tx.rows("find_subjects_of_jobs", jobs=jobs):
        ids[row["job_id"], row["attempt"], row["host_id"], row["unit"]] = row["id"]
    rounds: list[dict[tuple[int, str], tuple[str, int]]] = []
    for r in renamings:
        subject = ids.get((r.job_id, r.attempt, r.host_id, r.unit))
        if subject is None:
            continue
        place = (subject, str(r.name))
        for each in rounds:
            to, ms = each.get(place, (str(r.to), 0))
            if to == r.to:
                each[place] = (to, ms + r.ms)
                break
        else:
            rounds.append({place: (str(r.to), r.ms)})
    for each in rounds:
        moved = await tx.rows(
            "take_ledger_rows",
            subjects=[subject for subject, _ in each],
            names=[name for _, name in each],
            tos=[to for to, _ in each.values()],
            ms=[ms for _, ms in each.values()],
            **bounds,
        )
        for statement, sign in (("subtract_ledger_rows", -1), ("add_ledger_rows", 1)):
            part = [row for row in moved if row["ms"] * sign > 0]
            await tx.run(
                statement,
                subjects=[row["subject"] for row in part],
                ats=[row["at"] for row in part],
                names=[row["name"] for row in part],
                ms=[row["ms"] * sign for row in part],
                **bounds,
            )
