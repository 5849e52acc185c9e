"""Sums and losses of the ledger, for reports, the API and metrics."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from holdfast.core.ledger.spans import Kept, TimePart, find_parts, list_days, widen_span
from holdfast.core.ledger.values import (
    FIELDS,
    LABEL,
    LOSSES,
    JobLosses,
    LedgerName,
    LedgerSum,
    LostBy,
    Step,
    Unit,
)
from holdfast.errors import ValidationError
from holdfast.store.postgres.connection.parts import OnSession, reads
from holdfast.store.postgres.connection.session import Tx


class LedgerReads(OnSession):
    """Reads of the ledger. Its rows reach up to a minute or two ago."""

    @reads
    async def read_sums(
        self,
        tx: Tx,
        since: datetime,
        until: datetime,
        *,
        by: Sequence[str] = (),
        filters: Mapping[str, str] | None = None,
        unit: Unit = "gpu",
        step: Step = "hour",
        zone: ZoneInfo | None = None,
        cuts: Sequence[datetime] = (),
        kept: Kept | None = None,
    ) -> list[LedgerSum]:
        """Return the sums of `[since, until)` for each value of the fields `by`, ordered by key.

        by: of job, owner, project, queue, pool, host, label:KEY and time. filters: field → the
        value that it must have. step: with `time`, the length of its stretches. zone: whose days these
        are; None for UTC. cuts: instants in order; with any, each key ends with the number of cuts
        before its time, as a text. kept: what is kept of a span that `read_counted` returned; None for
        any other span.

        Raises:
            ValidationError: a field that there is not.
        """
        given = dict(filters or {})
        check_fields(by)
        check_fields([field for field in given if field != "time"])
        timed = "time" in by
        if kept is None:
            since, until, kept = await self._find_span(tx, since, until)
        days = list_days(since, until, zone) if timed and step == "day" and zone else []
        edges = sorted({*days[1:], *(cut for cut in cuts if since < cut < until)})
        longest = _choose_longest(days, step if timed else "day")
        rows = await tx.rows(
            "read_ledger_sums",
            **_split(find_parts(since, until, kept, longest=longest, cuts=edges)),
            shown=step if timed and not days else None,
            by=list(by),
            unit=unit,
            fields=list(given),
            values=list(given.values()),
        )
        at = list(by).index("time") if timed else 0
        starts = [since, *edges]
        sums: dict[tuple[str, ...], dict[LedgerName, int]] = defaultdict(dict)
        provisional: set[tuple[str, ...]] = set()
        for row in rows:
            key = row["key"]
            if timed and zone is not None:
                start = datetime.fromisoformat(key[at]) if key[at] else starts[row["place"]]
                key[at] = _name_time(start, days, zone)
            if cuts:
                key.append(str(bisect_right(cuts, starts[row["place"]])))
            named = sums[tuple(key)]
            named[LedgerName(row["name"])] = named.get(LedgerName(row["name"]), 0) + row["ms"]
            if row["provisional"]:
                provisional.add(tuple(key))
        return [LedgerSum(key=k, ms=ms, provisional=k in provisional) for k, ms in sums.items()]

    @reads
    async def read_counted(
        self, tx: Tx, since: datetime, until: datetime
    ) -> tuple[datetime, datetime, Kept]:
        """Return the span that is counted for `[since, until)`: up to the last minute that is closed,
        and of whole minutes, or of the hours or days that are left of an older time; and what is kept
        of it. A span of which no minute is closed is returned as it was given, with nothing kept."""
        begin, end, kept = await self._find_span(tx, since, until)
        if begin >= end:
            return since, until, kept
        return *widen_span(begin, end, kept), kept

    @reads
    async def read_losses(
        self,
        tx: Tx,
        since: datetime,
        until: datetime,
        *,
        filters: Mapping[str, str] | None = None,
        unit: Unit = "gpu",
        kept: Kept | None = None,
    ) -> list[JobLosses]:
        """Return what each job lost of its GPUs, or CPU slots, in `[since, until)`, the jobs with the
        largest loss first. kept: as in `read_sums`. Raises ValidationError."""
        given = dict(filters or {})
        check_fields(list(given))
        if kept is None:
            since, until, kept = await self._find_span(tx, since, until)
        rows = await tx.rows(
            "read_ledger_losses",
            **_split(find_parts(since, until, kept)),
            names=[str(name) for name in LOSSES],
            unit=unit,
            fields=list(given),
            values=list(given.values()),
        )
        jobs: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            jobs[row["job_id"]].append(row)
        saves = await tx.rows("read_save_distances", jobs=list(jobs)) if jobs else []
        seconds = {row["job_id"]: row["seconds"] for row in saves}
        found = [_make_losses(mine, seconds.get(job_id)) for job_id, mine in jobs.items()]
        return sorted(found, key=lambda each: -sum(lost.lost_ms for lost in each.lost))

    async def _find_span(
        self, tx: Tx, since: datetime, until: datetime
    ) -> tuple[datetime, datetime, Kept]:
        """Return a span in UTC up to where the ledger is written, and what is kept of it."""
        cursor = await tx.one("read_ledger_cursor")
        since, until = since.astimezone(UTC), until.astimezone(UTC)
        if cursor is None:
            return since, since, Kept(since, since)
        kept = Kept(cursor["minutes_from"].astimezone(UTC), cursor["hours_from"].astimezone(UTC))
        return since, max(since, min(until, cursor["at"].astimezone(UTC))), kept


def check_fields(fields: Sequence[str]) -> None:
    """Raise ValidationError for a field by which nothing is summed."""
    for field in fields:
        if field not in FIELDS and not field.startswith(LABEL):
            known = ", ".join(FIELDS)
            raise ValidationError(
                f"the ledger has no field {field!r}; it has {known} and {LABEL}KEY"
            )


def _choose_longest(days: Sequence[datetime], step: Step) -> Step:
    """Return the longest parts that may be summed: with the days of a zone, parts that its days do not cut."""
    if not days:
        return step
    return "minute" if any(day.astimezone(UTC).minute for day in days) else "hour"


def _split(parts: Sequence[TimePart]) -> dict[str, Any]:
    return {
        "steps": [part.step for part in parts],
        "sinces": [part.since for part in parts],
        "untils": [part.until for part in parts],
        "places": [part.place for part in parts],
    }


def _name_time(start: datetime, days: Sequence[datetime], zone: ZoneInfo) -> str:
    """Return a stretch's time in a zone: that of its day where it is told by days."""
    if days:
        start = days[max(0, bisect_right(days, start) - 1)]
    return start.astimezone(zone).isoformat(timespec="minutes")


def _make_losses(rows: Sequence[dict[str, Any]], save_seconds: float | None) -> JobLosses:
    first = rows[0]
    ms: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    for row in rows:
        ms[row["name"]] += row["ms"]
        if row["name"] == LedgerName.LOST:
            ends[row["cause"]] += 1
            lost[row["cause"]] += row["ms"]
    causes = [LostBy(cause=c, ends=ends[c], lost_ms=n) for c, n in lost.most_common()]
    return JobLosses(
        job_id=first["job_id"],
        job_name=first["job_name"],
        project=first["project"],
        owner=first["owner"],
        queue=first["queue"],
        devices=first["devices"],
        lost=causes,
        stalled_ms=ms[LedgerName.STALLED],
        checkpointing_ms=ms[LedgerName.CHECKPOINTING],
        waiting_ms=ms[LedgerName.WAITING],
        idle_ms=ms[LedgerName.IDLE],
        save_seconds=save_seconds,
    )
