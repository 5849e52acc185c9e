"""Close a span of minutes: from leases, hosts' states and accounts to the ledger's new rows."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.core.ledger.host_time import HostTime, find_unfit, name_unleased
from holdfast.core.ledger.split_lease import (
    Account,
    Interval,
    Lease,
    TallyReport,
    count_lease,
    find_lost,
    floor_minute,
    measure_by,
)
from holdfast.core.ledger.values import LedgerName, Unit

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNITS: tuple[Unit, Unit] = ("gpu", "cpu")


class Subject(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The subject of rows of the ledger; see `ledger_subjects`. labels: sorted pairs."""

    unit: Unit
    host_id: str
    host: str
    pool: str
    job_id: str = ""
    attempt: int = 0
    job_name: str = ""
    project: str = ""
    owner: str = ""
    queue: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    settled: bool = False


class HeldLease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A lease that overlaps the span, with its job and its host. over_at: when its job ended.
    left_over: its end waits in `ledger_ends`."""

    key: TaskKey
    attempt: int
    host_id: str
    host: str
    pool: str
    gpus: int
    cpu_slots: int
    lease: Lease
    job_name: str
    project: str
    owner: str
    queue: str
    labels: tuple[tuple[str, str], ...]
    left_over: bool

    def make_subject(self, unit: Unit) -> Subject:
        """Return the subject of the lease's rows."""
        return Subject(
            unit=unit,
            host_id=self.host_id,
            host=self.host,
            pool=self.pool,
            job_id=self.key.job_id,
            attempt=self.attempt,
            job_name=self.job_name,
            project=self.project,
            owner=self.owner,
            queue=self.queue,
            labels=self.labels,
        )


class KeptAccount(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An account (`split_lease.Account`) as the store keeps it, with the devices of its task."""

    key: TaskKey
    attempt: int
    host_id: str
    gpus: int
    cpu_slots: int
    account: Account


class LedgerRow(msgspec.Struct, frozen=True, gc=False):
    """Milliseconds × devices of a subject in one minute, under one name."""

    subject: Subject
    at_ms: int
    name: LedgerName
    ms: int


class HostSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A host's states in the span, by unit."""

    host_id: str
    host: str
    pool: str
    times: dict[Unit, list[HostTime]]


class MinuteInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs from which the ledger's rows of a span of minutes are computed. over: jobs that
    ended before the span's end, or are deleted. brief: rows of tasks whose whole lease is in
    `ledger_ends` and need no account, because their jobs are over."""

    since_ms: int
    until_ms: int
    held: Sequence[HeldLease] = ()
    accounts: Sequence[KeptAccount] = ()
    hosts: Sequence[HostSpan] = ()
    brief: Sequence[LedgerRow] = ()
    over: frozenset[str] = frozenset()


class Renaming(msgspec.Struct, frozen=True):
    """Milliseconds × devices of an attempt on a host that get another name, the newest first."""

    job_id: str
    attempt: int
    host_id: str
    unit: Unit
    name: LedgerName
    to: LedgerName
    ms: int


class SpanRows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that the close of a span writes. forgotten: ends that are counted. settled: jobs whose names
    change no more; their accounts go."""

    rows: list[LedgerRow] = []
    renamings: list[Renaming] = []
    accounts: list[KeptAccount] = []
    forgotten: list[TaskKey] = []
    settled: list[str] = []


def close_span(facts: MinuteInputs) -> SpanRows:
    """Return the rows of a span of whole minutes, and what they make of earlier rows."""
    accounts = {kept.key: kept for kept in facts.accounts}
    unfit = {h.host_id: find_unfit(h.times.get("gpu", [])) for h in facts.hosts}
    held = _measure_ranks(facts.held)
    rows: list[LedgerRow] = list(facts.brief)
    renamings: list[Renaming] = []
    forgotten: list[TaskKey] = []
    for each in held:
        kept = accounts.get(each.key)
        found, more, named = _count(each, kept, facts, unfit.get(each.host_id, ()))
        accounts[each.key] = found
        rows += more
        renamings += named
        if each.left_over and found.account.ended:
            forgotten.append(each.key)
    lost = _lose(accounts)
    leased: defaultdict[tuple[str, Unit], Counter[int]] = defaultdict(Counter)
    bad: defaultdict[tuple[str, Unit], Counter[int]] = defaultdict(Counter)
    for row in rows:
        leased[row.subject.host_id, row.subject.unit][row.at_ms] += row.ms
        if row.name is LedgerName.UNFIT:
            bad[row.subject.host_id, row.subject.unit][row.at_ms] += row.ms
    rows += _name_hosts(facts, leased, bad)
    settled = {k.key.job_id for k in accounts.values()} & facts.over
    settled -= {k.key.job_id for k in accounts.values() if not k.account.ended}
    return SpanRows(
        rows=rows,
        renamings=renamings + lost,
        accounts=[k for k in accounts.values() if k.key.job_id not in settled],
        forgotten=forgotten,
        settled=sorted(settled),
    )


def _measure_ranks(held: Sequence[HeldLease]) -> list[HeldLease]:
    """Measure ranks that send no beats by the first rank of their attempt that does."""
    beating: dict[tuple[str, int], TallyReport] = {}
    for each in held:
        told = each.lease.told
        if told is not None and told.tally.beaten:
            beating.setdefault((each.key.job_id, each.attempt), told)
    measured: list[HeldLease] = []
    for each in held:
        told, other = each.lease.told, beating.get((each.key.job_id, each.attempt))
        if told is None or other is None or told.tally.beaten:
            measured.append(each)
            continue
        tally = measure_by(told.tally, other.tally)
        lease = msgspec.structs.replace(each.lease, told=msgspec.structs.replace(told, tally=tally))
        measured.append(msgspec.structs.replace(each, lease=lease))
    return measured


def _count(
    held: HeldLease, kept: KeptAccount | None, facts: MinuteInputs, unfit: Sequence[Interval]
) -> tuple[KeptAccount, list[LedgerRow], list[Renaming]]:
    """Count one lease up to the span's end, for each unit that it holds."""
    account = None if kept is None else kept.account
    if account is None and held.lease.begun_ms < facts.since_ms:
        # Those minutes are closed: its reservation was written late, and they were named without it.
        account = Account(until_ms=facts.since_ms)
    found = count_lease(account, held.lease, facts.until_ms, unfit)
    rows: list[LedgerRow] = []
    renamings: list[Renaming] = []
    for unit, devices in (("gpu", held.gpus), ("cpu", held.cpu_slots)):
        if not devices:
            continue
        subject = held.make_subject("gpu" if unit == "gpu" else "cpu")
        rows += [LedgerRow(subject, p.at_ms, p.name, p.ms * devices) for p in found.pieces]
        place = (held.key.job_id, held.attempt, held.host_id, subject.unit)
        renamings += [Renaming(*place, t.name, t.to, t.ms * devices) for t in found.corrections]
    now = KeptAccount(
        key=held.key,
        attempt=held.attempt,
        host_id=held.host_id,
        gpus=held.gpus,
        cpu_slots=held.cpu_slots,
        account=found.account,
    )
    return now, rows, renamings


def _lose(accounts: dict[TaskKey, KeptAccount]) -> list[Renaming]:
    """Give the name *lost* to work that a later attempt does again, in the ledger's rows and in the
    accounts of that work."""
    firsts: dict[str, dict[int, int]] = {}
    for kept in accounts.values():
        first = kept.account.first_step
        if first is not None:
            of_job = firsts.setdefault(kept.key.job_id, {})
            of_job[kept.attempt] = min(first, of_job.get(kept.attempt, first))
    renamings: list[Renaming] = []
    for key, kept in accounts.items():
        later = [f for n, f in firsts.get(key.job_id, {}).items() if n > kept.attempt]
        if not later or not kept.account.ended:
            continue
        account, lost = find_lost(kept.account, min(later))
        if not lost:
            continue
        accounts[key] = msgspec.structs.replace(kept, account=account)
        for unit, devices in zip(UNITS, (kept.gpus, kept.cpu_slots), strict=True):
            if devices:
                place = (key.job_id, kept.attempt, kept.host_id, unit)
                renamings.append(Renaming(*place, LedgerName.KEPT, LedgerName.LOST, lost * devices))
    return renamings


def _name_hosts(
    facts: MinuteInputs,
    leased: Mapping[tuple[str, Unit], Mapping[int, int]],
    unfit: Mapping[tuple[str, Unit], Mapping[int, int]],
) -> Iterable[LedgerRow]:
    """Yield the rows of the time that no lease held."""
    for host in facts.hosts:
        for unit in UNITS:
            subject = Subject(
                unit=unit, host_id=host.host_id, host=host.host, pool=host.pool, settled=True
            )
            held, bad = (of.get((host.host_id, unit), {}) for of in (leased, unfit))
            span = facts.since_ms, facts.until_ms
            for piece in name_unleased(host.times[unit], held, *span, unfit=bad):
                yield LedgerRow(subject, piece.at_ms, piece.name, piece.ms)


def to_ms(at: datetime) -> int:
    """Return an instant in whole milliseconds since 1970, rounded down."""
    return (at - _EPOCH) // timedelta(milliseconds=1)


def find_span(cursor_ms: int, now_ms: int, most_minutes: int) -> Interval | None:
    """Return the next minutes to close, or None where none is over."""
    until = min(floor_minute(now_ms), cursor_ms + most_minutes * 60_000)
    return Interval(cursor_ms, until) if until > cursor_ms else None
