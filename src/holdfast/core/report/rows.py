"""The lines of a report: hours by name, dollars, and goodput, of the ledger's sums.

HOURS-1  The names of a line sum to its hours, and its dollars to useful, lost and unmeasured ones, so
          that nothing is told twice and nothing is left out.
HOURS-2  Goodput is told of measured work alone: kept time, divided by all leased time of jobs that beat
          or had not come so far. A job that never beats has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from holdfast.core.ledger.values import WORKING, LedgerName, LedgerSum, Unit
from holdfast.core.records import Record
from holdfast.core.report.losses import LossLine
from holdfast.core.report.money import HOUR_MS, PricedSpan

_PROJECT, _HOST, _TIME = "project", "host", "time"
_UNMEASURED = (LedgerName.UNMEASURED_BUSY, LedgerName.UNMEASURED_IDLE)


class ReportRow(Record, frozen=True, kw_only=True):
    """One line of a report. key: a text for each field that the report is told by. name: the name
    of the job, in a line of a job.

    hours: hours × devices that jobs held, in all, and by_name by what they were spent on;
    idle_hours: hours that no job held, by name. goodput: the part of measured hours that was kept,
    None without measured hours (HOURS-2). usd: dollars for what jobs held; it is the sum of
    useful_usd (kept), lost_usd and unmeasured_usd. idle_usd: dollars for what no job held.
    unpriced_hours: hours that no price is known of; their dollars are in none of the sums.
    provisional: a job among them runs, so that names may still change.
    """

    key: tuple[str, ...]
    name: str = ""
    hours: float = 0.0
    by_name: Mapping[str, float] = {}
    idle_hours: Mapping[str, float] = {}
    goodput: float | None = None
    usd: float = 0.0
    useful_usd: float = 0.0
    lost_usd: float = 0.0
    unmeasured_usd: float = 0.0
    idle_usd: float = 0.0
    unpriced_hours: float = 0.0
    provisional: bool = False


class HoursReport(Record, frozen=True, kw_only=True):
    """The hours of a span of time, by the names they were spent on. since, until: the span that was
    counted, in whole minutes. by: what the lines are told by. zone: whose days they are. unit: gpu or
    cpu. total: the sum of all lines, also of those that a limit left out. left_out: how many those are.
    losses: the largest losses, with what would mend them."""

    since: datetime
    until: datetime
    unit: Unit
    by: tuple[str, ...]
    zone: str = "UTC"
    rows: tuple[ReportRow, ...]
    total: ReportRow
    losses: tuple[LossLine, ...] = ()
    left_out: int = 0


def name_rows(rows: Iterable[ReportRow], place: int, names: Mapping[str, str]) -> list[ReportRow]:
    """Return the lines with the names of their jobs, whose ids stand at `place` of each key."""
    return [msgspec.structs.replace(row, name=names.get(row.key[place], "")) for row in rows]


class _Tally(msgspec.Struct):
    """A line while it is summed, in milliseconds."""

    held: dict[LedgerName, int] = {}
    free: dict[LedgerName, int] = {}
    usd: dict[str, float] = {}
    unpriced_ms: int = 0
    provisional: bool = False


def list_asked(by: Sequence[str]) -> tuple[str, ...]:
    """Return the fields by which the ledger is asked: also by project, because seconds without one
    are those that no job held, and by host, because its hours have a price."""
    return (*by, *(field for field in (_PROJECT, _HOST) if field not in by))


def make_rows(
    sums: Iterable[LedgerSum], by: Sequence[str], prices: PricedSpan, unit: Unit
) -> tuple[list[ReportRow], ReportRow]:
    """Return the lines, the longest first, or in the order of time where they are told by it, and
    their sum. sums: the ledger's by `list_asked(by)`, with the cuts of `prices`."""
    asked = list_asked(by)
    project, host = asked.index(_PROJECT), asked.index(_HOST)
    tallies: dict[tuple[str, ...], _Tally] = {}
    whole = _Tally()
    for each in sums:
        own = tallies.setdefault(each.key[: len(by)], _Tally())
        for tally in (own, whole):
            _add(tally, each, prices, unit, host=each.key[host], leased=each.key[project] != "")
    rows = [_close(key, tally) for key, tally in tallies.items()]
    if _TIME in by:
        rows.sort(key=lambda row: row.key)
    else:
        rows.sort(key=lambda row: (-row.hours, -sum(row.idle_hours.values()), row.key))
    return rows, _close((), whole)


def find_rate(row: ReportRow) -> float | None:
    """Return the dollars for an hour of one device, on the average of a line; None without a price."""
    priced = row.hours + sum(row.idle_hours.values()) - row.unpriced_hours
    return (row.usd + row.idle_usd) / priced if priced > 1e-9 else None


def _add(
    tally: _Tally, each: LedgerSum, prices: PricedSpan, unit: Unit, *, host: str, leased: bool
) -> None:
    into = tally.held if leased else tally.free
    hour = prices.find_hour(host, unit, each.key)
    for name, ms in each.ms.items():
        into[name] = into.get(name, 0) + ms
        if hour is None:
            tally.unpriced_ms += ms
        else:
            kind = _find_kind(name) if leased else "idle"
            tally.usd[kind] = tally.usd.get(kind, 0.0) + hour * ms / HOUR_MS
    tally.provisional = tally.provisional or each.provisional


def _find_kind(name: LedgerName) -> str:
    if name is LedgerName.KEPT:
        return "useful"
    return "unmeasured" if name in _UNMEASURED else "lost"


def _close(key: tuple[str, ...], tally: _Tally) -> ReportRow:
    measured = sum(ms for name, ms in tally.held.items() if name not in _UNMEASURED)
    usd = tally.usd
    useful, lost, unmeasured = (usd.get(kind, 0.0) for kind in ("useful", "lost", "unmeasured"))
    kept = tally.held.get(LedgerName.KEPT, 0)
    beaten = any(tally.held.get(name) for name in WORKING)
    if not beaten and any(tally.held.get(name) for name in _UNMEASURED):
        measured = 0  # its start is all that was measured
    return ReportRow(
        key=key,
        hours=sum(tally.held.values()) / HOUR_MS,
        by_name=_in_hours(tally.held),
        idle_hours=_in_hours(tally.free),
        goodput=kept / measured if measured else None,
        usd=useful + lost + unmeasured,
        useful_usd=useful,
        lost_usd=lost,
        unmeasured_usd=unmeasured,
        idle_usd=usd.get("idle", 0.0),
        unpriced_hours=tally.unpriced_ms / HOUR_MS,
        provisional=tally.provisional,
    )


def _in_hours(ms: Mapping[LedgerName, int]) -> dict[str, float]:
    return {str(name): ms[name] / HOUR_MS for name in LedgerName if ms.get(name)}
