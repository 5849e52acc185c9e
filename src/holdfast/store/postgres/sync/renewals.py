"""The rows that every sync writes: heartbeats of hosts, and renewals of leases.

Syncs that say nothing new are one statement for all hosts of a batch. Where a job changes too, its
lock comes before those of tasks, so the leases are renewed after the changes.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast.core.ids import TaskKey
from holdfast.moves.jobs.reports import AnswerBuilder
from holdfast.moves.rows import clean_text
from holdfast.store.postgres.connection.session import Rows, Tx, to_json
from holdfast.store.postgres.moves import ask_moves


async def touch_hosts(
    tx: Tx,
    builders: Sequence[AnswerBuilder],
    moved: Collection[str],
    now: datetime | None,
    *,
    quiet: bool,
) -> tuple[Rows, Rows, Sequence[Rows]]:
    """Lock the hosts and write their heartbeats. Return the rows of the hosts, those of the leases
    that were renewed, and those of the jobs in `moved`, which are locked too.

    quiet: no sync says anything new, so a crash of the server may lose the transaction, and the
    leases of live tasks are renewed in the same statement."""
    touch: dict[str, Any] = {**_ask_hosts(builders), "relaxed": quiet, "now": now}
    tx.relaxed = quiet
    renewals = _ask_renewals(builders) if quiet else {}
    name = "touch_and_renew" if renewals else "touch_hosts"
    steps = ask_moves(moved) if moved else ()
    found, *locked = await tx.many((name, {**touch, **renewals}), *steps)
    hosts = [row for row in found if row["host_id"] is not None]
    return hosts, found[len(hosts) :], locked


def _ask_hosts(builders: Sequence[AnswerBuilder]) -> dict[str, Any]:
    by_host = {d.sync.host_id: d.sync for d in builders}
    heard = [key for d in builders for key in d.heard()]
    return {
        # Cleaned, so that a malformed value makes one host's sync stale instead of failing all.
        "ids": list(by_host),
        "incarnations": [clean_text(s.incarnation) for s in by_host.values()],
        "leaving": [s.leaving for s in by_host.values()],
        "busy": [bool(s.live or s.claimed or s.ended) for s in by_host.values()],
        "jobs": [k.job_id for k in heard],
        "ranks": [k.rank for k in heard],
        "epochs": [k.epoch for k in heard],
    }


async def renew_leases(tx: Tx, builders: Sequence[AnswerBuilder], at: datetime) -> None:
    """Renew the leases of live tasks. A task whose lease cannot be renewed is lost (FENCE-1)."""
    able = [d for d in builders if not d.fenced]
    if asked := _ask_renewals(able):
        take_renewals(able, await tx.rows("renew_tasks", **asked, now=at))


def take_renewals(builders: Sequence[AnswerBuilder], rows: Rows) -> None:
    """Add the renewed leases, and the tasks that are lost, to the answers of hosts that may have
    leases renewed."""
    renewed = {TaskKey(r["job_id"], r["rank"], r["epoch"]): r["lease_ttl_seconds"] for r in rows}
    for d in builders:
        for key in () if d.fenced else d.live():
            if key in renewed:
                d.renewed.append((key, renewed[key]))
            else:
                d.miss(key, d.lost)


def _ask_renewals(builders: Sequence[AnswerBuilder]) -> Mapping[str, Any]:
    """Return the parameters that name the live tasks of hosts; none where there is no such task."""
    given = [(d, key, d.beats().get(key)) for d in builders for key in d.live()]
    if not given:
        return {}
    return {
        "live_jobs": [k.job_id for _, k, _ in given],
        "live_ranks": [k.rank for _, k, _ in given],
        "live_epochs": [k.epoch for _, k, _ in given],
        "live_hosts": [d.sync.host_id for d, _, _ in given],
        "live_incarnations": [clean_text(d.sync.incarnation) for d, _, _ in given],
        "beats": [b is not None for _, _, b in given],
        "steps": [None if b is None else b.step for _, _, b in given],
        "totals": [None if b is None else b.total for _, _, b in given],
        "ages": [0.0 if b is None else b.age_seconds for _, _, b in given],
        "sections": [None if b is None else b.section for _, _, b in given],
        "rates": [None if b is None else b.rate for _, _, b in given],
        "stills": [None if b is None else b.still_seconds for _, _, b in given],
        "nans": [0 if b is None else b.nan_beats for _, _, b in given],
        "tallies": _give_tallies(given),
    }


def _give_tallies(given: Sequence[tuple[AnswerBuilder, TaskKey, object]]) -> list[str | None]:
    """Return each task's tally as JSON; most syncs have none, and an empty list says so."""
    if not any(d.sync.tallies for d, _, _ in given):
        return []
    told = {key: tally for d, _, _ in given for key, tally in d.sync.tallies}
    return [to_json(told[key]) if key in told else None for _, key, _ in given]
