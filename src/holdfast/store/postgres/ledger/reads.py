"""Sums and losses of the ledger, for reports, the API and metrics."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast.core.ledger.spans import TimePart, find_parts
from holdfast.core.ledger.values import (
    FIELDS,
    LABEL,
    JobLosses,
    LedgerName,
    LedgerSum,
    LostBy,
    Step,
    Unit,
)
from holdfast.errors import ValidationError
from holdfast.store.postgres.connection.ports import OnSession, reads
from holdfast.store.postgres.connection.session import Tx

_LOSSES = (
    LedgerName.LOST,
    LedgerName.STALLED,
    LedgerName.CHECKPOINTING,
    LedgerName.WAITING,
    LedgerName.IDLE,
)


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
    ) -> list[LedgerSum]:
        """Return the sums of `[since, until)` for each value of the fields `by`, ordered by key.

        by: of job, owner, project, queue, pool, host, label:KEY and time. filters: field → the
        value that it must have. step: with `time`, the length of its stretches.

        Raises:
            ValidationError: a field that there is not.
        """
        given = dict(filters or {})
        check_fields(by)
        check_fields([field for field in given if field != "time"])
        parts = await self._find_parts(tx, since, until, step if "time" in by else None)
        rows = await tx.rows(
            "read_ledger_sums",
            **_split(parts),
            timed="time" in by,
            by=list(by),
            unit=unit,
            fields=list(given),
            values=list(given.values()),
        )
        sums: dict[tuple[str, ...], dict[LedgerName, int]] = defaultdict(dict)
        provisional: set[tuple[str, ...]] = set()
        for row in rows:
            key = tuple(row["key"])
            sums[key][LedgerName(row["name"])] = row["ms"]
            if row["provisional"]:
                provisional.add(key)
        return [LedgerSum(key=k, ms=ms, provisional=k in provisional) for k, ms in sums.items()]

    @reads
    async def read_losses(
        self, tx: Tx, since: datetime, until: datetime, *, filters: Mapping[str, str] | None = None
    ) -> list[JobLosses]:
        """Return what each job lost in `[since, until)`, the jobs with the largest loss first. A
        job with GPUs is counted by its GPUs, another by its CPU slots. Raises ValidationError."""
        given = dict(filters or {})
        check_fields(list(given))
        parts = await self._find_parts(tx, since, until, None)
        rows = await tx.rows(
            "read_ledger_losses",
            **_split(parts),
            names=[str(name) for name in _LOSSES],
            fields=list(given),
            values=list(given.values()),
        )
        jobs: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            jobs[row["job_id"]].append(row)
        saves = await tx.rows("read_save_distances", jobs=list(jobs))
        seconds = {row["job_id"]: row["seconds"] for row in saves}
        found = [_make_losses(mine, seconds.get(job_id)) for job_id, mine in jobs.items()]
        return sorted(found, key=lambda each: -sum(lost.lost_ms for lost in each.lost))

    async def _find_parts(
        self, tx: Tx, since: datetime, until: datetime, step: Step | None
    ) -> list[TimePart]:
        cursor = await tx.one("read_ledger_cursor")
        if cursor is None:
            return []
        since, until = since.astimezone(UTC), min(until, cursor["at"]).astimezone(UTC)
        return find_parts(since, until, cursor["minutes_from"], cursor["hours_from"], step)


def check_fields(fields: Sequence[str]) -> None:
    """Raise ValidationError for a field by which nothing is summed."""
    for field in fields:
        if field not in FIELDS and not field.startswith(LABEL):
            known = ", ".join(FIELDS)
            raise ValidationError(
                f"the ledger has no field {field!r}; it has {known} and {LABEL}KEY"
            )


def _split(parts: Sequence[TimePart]) -> dict[str, Any]:
    return {
        "steps": [part.step for part in parts],
        "sinces": [part.since for part in parts],
        "untils": [part.until for part in parts],
    }


def _make_losses(rows: Sequence[dict[str, Any]], save_seconds: float | None) -> JobLosses:
    unit = "gpu" if any(row["unit"] == "gpu" for row in rows) else "cpu"
    rows = [row for row in rows if row["unit"] == unit]
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
        devices=first["gpus"] if unit == "gpu" else first["cpu_slots"],
        lost=causes,
        stalled_ms=ms[LedgerName.STALLED],
        checkpointing_ms=ms[LedgerName.CHECKPOINTING],
        waiting_ms=ms[LedgerName.WAITING],
        idle_ms=ms[LedgerName.IDLE],
        save_seconds=save_seconds,
    )
