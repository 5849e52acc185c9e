"""The reads of a span as values, and its rows as they are written: no statement is sent here."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.core.ledger.close_minutes import (
    HeldLease,
    HostSpan,
    KeptAccount,
    LedgerRow,
    MinuteInputs,
    SpanRows,
    Subject,
    to_ms,
)
from holdfast.core.ledger.host_time import HostTime
from holdfast.core.ledger.split_lease import MINUTE_MS, Account, Interval, Lease, TallyReport
from holdfast.core.ledger.tally import Tally
from holdfast.core.ledger.values import LedgerName
from holdfast.core.states import HostState
from holdfast.store.postgres.connection.session import Rows, to_json

HOUR_MS = 60 * MINUTE_MS
_PARTS = (("gpu", "gpus"), ("cpu", "cpu_slots"))


class SpanReads(msgspec.Struct, frozen=True):
    """The reads of a span: rows of leases, brief jobs, accounts and hosts' states."""

    leases: Rows
    brief: Rows
    kept: Rows
    times: Rows


class ReadySpan(msgspec.Struct, frozen=True):
    """A span's rows as columns and JSON, so that nothing has to be made of them while the transaction is
    open. numbers: each subject's id, or below zero its place among the `strangers`, counted from -1, whose
    ids are to be found."""

    numbers: dict[Subject, int]
    strangers: list[Subject]
    hours: dict[str, list[Any]]
    totals: Counter[tuple[str, str]]
    accounts_json: str


def make_facts(found: Interval, reads: SpanReads) -> MinuteInputs:
    """Return the inputs from which a span's rows are computed."""
    until = from_ms(found.until)
    over_jobs = {
        row["job_id"]
        for row in (*reads.leases, *reads.kept)
        if (row["over_at"] is not None and row["over_at"] < until) or row.get("gone")
    }
    return MinuteInputs(
        since_ms=found.since,
        until_ms=found.until,
        held=[_make_held(row) for row in reads.leases],
        accounts=[_make_account(row) for row in reads.kept],
        hosts=_make_hosts(reads.times, found.until),
        brief=[row for each in reads.brief for row in _make_brief(each)],
        over=frozenset(over_jobs),
    )


def make_ready(rows: SpanRows, known: Mapping[Subject, int]) -> ReadySpan:
    """Return the rows of a span as they are written. known: ids of subjects."""
    numbers: dict[Subject, int] = {}
    strangers: list[Subject] = []
    totals: Counter[tuple[str, str]] = Counter()
    given = []
    for row in rows.rows:
        number = numbers.get(row.subject)
        if number is None:
            number = known.get(row.subject)
            if number is None:
                strangers.append(row.subject)
                number = -len(strangers)
            numbers[row.subject] = number
        given.append((number, row.at_ms, str(row.name), row.ms))
        if row.subject.settled:
            totals[row.subject.unit, str(row.name)] += row.ms
    return ReadySpan(
        numbers=numbers,
        strangers=strangers,
        hours=gather_hours(given),
        totals=totals,
        accounts_json=to_json([{**_split(k.key), **_plain(k)} for k in rows.accounts]),
    )


def key_of(subject: Subject) -> tuple[object, ...]:
    """Return the key of a subject: the columns of the index `ledger_subjects_key`."""
    about = (subject.job_id, subject.attempt, subject.host_id, subject.unit, subject.pool)
    return (*about, subject.project, subject.owner, subject.queue, subject.labels)


def key_of_row(row: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the key of a row's subject, as `key_of` does for a subject."""
    about = (row["job_id"], row["attempt"], row["host_id"], row["unit"], row["pool"])
    return (*about, row["project"], row["owner"], row["queue"], _sort_labels(row["labels"]))


def write_subjects(subjects: Sequence[Subject]) -> str:
    """Return subjects as JSON rows."""
    return to_json([{**msgspec.structs.asdict(s), "labels": dict(s.labels)} for s in subjects])


def from_ms(ms: int) -> datetime:
    """Return the instant that is so many milliseconds after 1970."""
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


def gather_hours(rows: Iterable[tuple[int, int, str, int]]) -> dict[str, list[Any]]:
    """Return rows of minutes (subject, at_ms, name, ms) as columns of hours, each with its minutes as the
    text of an array."""
    hours: defaultdict[tuple[int, int, str], dict[int, int]] = defaultdict(dict)
    for subject, at_ms, name, ms in rows:
        into = at_ms % HOUR_MS
        found = hours[subject, at_ms - into, name]
        found[into // MINUTE_MS] = found.get(into // MINUTE_MS, 0) + ms
    texts = []
    for minutes in hours.values():
        first, last = min(minutes), max(minutes)
        each = ",".join(str(minutes.get(n, 0)) for n in range(first, last + 1))
        texts.append(f"[{first}:{last}]={{{each}}}")
    starts = {at: from_ms(at) for at in {at for _, at, _ in hours}}
    return {
        "subjects": [subject for subject, _, _ in hours],
        "ats": [starts[at] for _, at, _ in hours],
        "names": [name for _, _, name in hours],
        "ms": [sum(minutes.values()) for minutes in hours.values()],
        "minutes": texts,
    }
