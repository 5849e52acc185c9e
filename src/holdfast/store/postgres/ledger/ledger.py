"""The ledger's minutes in PostgreSQL: read the inputs of a span of minutes, and write its rows."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.core.ledger.close_minutes import (
    MinuteInputs,
    Renaming,
    SpanRows,
    Subject,
    find_span,
    to_ms,
)
from holdfast.core.ledger.split_lease import MINUTE_MS, Interval
from holdfast.errors import Stale
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.session import Session, Tx
from holdfast.store.postgres.ledger.reads import LedgerReads
from holdfast.store.postgres.ledger.spans import (
    ReadySpan,
    SpanReads,
    from_ms,
    gather_hours,
    key_of,
    key_of_row,
    make_facts,
    make_ready,
    write_subjects,
)

MOST_MINUTES = 60
"""Minutes that are closed at once, so that a leader that comes after hours catches up in steps."""
MOST_LEASE_MINUTES = 800_000
"""Minutes that are closed at once, times leases that are held: what they become is in memory."""
SILENT_SECONDS = 60.0
"""A host that was silent for this long before a span, and since, could take no work in it."""
MOST_BRIEF = 2000
"""Brief jobs of a span that keep rows of their own; more are put together."""
SPAN_SECONDS = 300.0
"""The time that a span may take to be read, and to be written."""


class PostgresLedger(LedgerReads):
    """The names of all seconds of every GPU and CPU slot (LEDGER-1, LEDGER-2)."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._known = _KnownSubjects()

    async def read_span(
        self,
        most_minutes: int = MOST_MINUTES,
        *,
        hears_since: datetime | None = None,
        now: Now = None,
    ) -> MinuteInputs | None:
        """Return the inputs of the next minutes to be closed; None where no minute is over.

        A minute is over once no transaction is open that began in it, because that may still write
        an end or a reservation of it. hears_since: since when this controller hears hosts; before
        that, or if it is None, their silence says nothing.
        """
        # First how far minutes are over, then what happened in them: the other way round, what is
        # committed between the two reads would be in neither.
        found = await self.session.transact(lambda tx: _find_span(tx, most_minutes, now))
        if found is None:
            return None
        reads = await self.session.transact(
            lambda tx: _read_rows(tx, found, hears_since), seconds=SPAN_SECONDS
        )
        # In a thread, as when it is written: a span of a large fleet has a hundred thousand leases.
        return await asyncio.to_thread(make_facts, found, reads)

    async def write_ledger(self, facts: MinuteInputs, rows: SpanRows) -> None:
        """Write the rows of a span, correct earlier ones, and move the cursor behind it, all in one
        transaction, so that a controller that dies at any moment has written all or nothing.

        Raises:
            Stale: the span is closed already, because another replica was faster.
        """
        known = self._known.ids if self._known.until_ms == facts.since_ms else {}
        ready = await asyncio.to_thread(make_ready, rows, known)
        ids = await self.session.transact(
            lambda tx: _write(tx, facts, rows, ready), seconds=SPAN_SECONDS
        )
        numbers = {s: n if n >= 0 else ids[-1 - n] for s, n in ready.numbers.items()}
        self._known = _KnownSubjects(numbers, facts.until_ms)

    async def prune_ledger(self, minutes_days: float, hours_days: float, *, now: Now = None) -> int:
        """Delete minutes and hours that are older than these days, and what no row names any more.
        Return how many were deleted. Days stay for ever; where the hours are deleted, they are of
        projects, owners, queues, labels and hosts, and no longer of single jobs."""
        return await self.session.transact(
            lambda tx: _prune(tx, minutes_days, hours_days, now), seconds=SPAN_SECONDS
        )


class _KnownSubjects(msgspec.Struct, frozen=True):
    """The ids of the subjects of the span that this replica wrote last, up to `until_ms`: most of the next
    span's are the same. Each has a row of its hour, so that none is pruned meanwhile."""

    ids: Mapping[Subject, int] = {}
    until_ms: int = 0


async def _write(tx: Tx, facts: MinuteInputs, rows: SpanRows, ready: ReadySpan) -> list[int]:
    """Write the rows of a span, and return the ids of the subjects that this replica did not
    know."""
    await tx.run("allow_ledger_pauses")
    span = {"since": from_ms(facts.since_ms), "until": from_ms(facts.until_ms)}
    if not await tx.run("move_ledger_cursor", **span):
        raise Stale(f"the ledger from {span['since']} on is written already")
    kept = await tx.one("read_ledger_cursor") or {}
    bounds = {"minutes_from": kept["minutes_from"], "hours_from": kept["hours_from"]}
    ids = await _find_subjects(tx, ready.strangers)
    await _add(tx, ready, ids, bounds)
    await _rename(tx, rows.renamings, bounds)
    if rows.accounts:
        await tx.run("put_ledger_accounts", rows=ready.accounts_json)
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
    return ids


async def _prune(tx: Tx, minutes_days: float, hours_days: float, now: Now) -> int:
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
    deleted = await tx.run("prune_ledger_minutes", since=cursor["minutes_from"], before=minutes)
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
    found = find_span(to_ms(cursor["at"]), to_ms(over), most_minutes)
    if found is None or found.until - found.since == MINUTE_MS:
        return found
    most = MOST_LEASE_MINUTES // max(1, await tx.value("count_ledger_leases"))
    return find_span(found.since, found.until, max(1, most))


async def _read_rows(tx: Tx, found: Interval, hears_since: datetime | None) -> SpanReads:
    tx.see_one_moment()
    await tx.run("allow_ledger_pauses")
    span = {"since": from_ms(found.since), "until": from_ms(found.until)}
    leases = await tx.rows("read_ledger_leases", **span)
    brief = await tx.rows("read_ledger_brief", **span, most=MOST_BRIEF)
    kept = await tx.rows("read_ledger_accounts", jobs=list({row["job_id"] for row in leases}))
    before = span["since"] - timedelta(seconds=SILENT_SECONDS)
    judged = hears_since is not None and hears_since <= before
    times = await tx.rows("read_host_times", **span, heard_until=before if judged else None)
    return SpanReads(leases, brief, kept, times)


async def _find_subjects(tx: Tx, strangers: Sequence[Subject]) -> list[int]:
    """Return the ids of subjects; write those that are new."""
    ids: dict[tuple[object, ...], int] = {}
    left = list(strangers)
    for statement in ("put_ledger_subjects", "find_ledger_subjects"):
        if left:
            rows = await tx.rows(statement, rows=write_subjects(left))
            ids |= {key_of_row(row): row["id"] for row in rows}
            left = [subject for subject in left if key_of(subject) not in ids]
    return [ids[key_of(subject)] for subject in strangers]


async def _add(
    tx: Tx, ready: ReadySpan, ids: Sequence[int], bounds: Mapping[str, datetime]
) -> None:
    if ready.totals:
        units, names = zip(*ready.totals, strict=True)
        ms = list(ready.totals.values())
        await tx.run("add_ledger_totals", units=list(units), names=list(names), ms=ms)
    if ready.hours["subjects"]:
        subjects = [
            number if number >= 0 else ids[-1 - number] for number in ready.hours["subjects"]
        ]
        await tx.run("add_ledger_rows", **{**ready.hours, "subjects": subjects}, **bounds)


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
            part = [
                (row["subject"], to_ms(row["at"]), row["name"], row["ms"])
                for row in moved
                if row["ms"] * sign > 0
            ]
            await tx.run(statement, **gather_hours(part), **bounds)
