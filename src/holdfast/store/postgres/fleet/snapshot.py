"""The snapshot of a cycle: a few statements over sets, in one consistent read (FLEET-READ)."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.fleet.pools import RENT_AFTER_SECONDS, PoolSpec
from holdfast.core.fleet.snapshot import (
    FleetHost,
    FleetSnapshot,
    OfferTrouble,
    PoolView,
    SpawnOutcome,
    Waiting,
)
from holdfast.core.gpus import Gpu
from holdfast.core.settings.resolve import Value
from holdfast.moves.fleet.pools import (
    as_seen,
    effective_spec,
    find_pause,
    learn_memory,
    seconds_until,
)
from holdfast.moves.fleet.rented import judge_host, say_stuck
from holdfast.store.postgres.connection.session import Rows, Tx
from holdfast.store.postgres.settings import read_quotas, read_quotas_left


async def read_snapshot(
    tx: Tx,
    environment: Mapping[str, Value],
    outcome_seconds: float,
    grace_seconds: float,
    now: datetime | None,
) -> FleetSnapshot:
    """Read every pool and the queue at one moment."""
    tx.see_one_moment()
    at: datetime = await tx.value("begin_snapshot", now=now)
    when = {"now": at}
    pools, hosts, checks, waiting, members, money, outcomes, troubles, memory = await tx.many(
        ("read_pools", {"names": None}),
        ("snapshot_hosts", {**when, "grace": grace_seconds}),
        ("snapshot_checks", {}),
        ("snapshot_waiting", {**when, "rent_after": RENT_AFTER_SECONDS}),
        ("snapshot_members", when),
        ("read_money", when),
        ("snapshot_outcomes", {**when, "seconds": outcome_seconds}),
        ("snapshot_troubles", when),
        ("seen_memory", {}),
    )
    seen = as_seen(memory)
    quotas = await read_quotas(tx, {row["project"] for row in waiting}, environment)
    spent = {row["pool"]: row["spent_today_usd"] for row in money}
    checks_of = {row["host_id"]: row for row in checks}
    hosts_of, outcomes_of, troubles_of = map(_group, (hosts, outcomes, troubles))
    return FleetSnapshot(
        at=at,
        pools=tuple(
            _view(
                at,
                seen,
                row,
                hosts_of.get(row["name"], []),
                checks_of,
                outcomes_of.get(row["name"], []),
                troubles_of.get(row["name"], []),
                spent,
            )
            for row in pools
        ),
        waiting=tuple(msgspec.convert(row, Waiting) for row in (*waiting, *members)),
        quotas=await read_quotas_left(tx, quotas),
    )


def _group(rows: Rows) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for row in rows:
        found.setdefault(row["pool"], []).append(row)
    return found


def _view(
    at: datetime,
    seen: Mapping[tuple[str, str], int],
    row: dict[str, Any],
    hosts: Rows,
    checks: Mapping[str, dict[str, Any]],
    outcomes: Rows,
    troubles: Rows,
    spent: Mapping[str, float],
) -> PoolView:
    spec = msgspec.convert(row["spec"], PoolSpec)
    return PoolView(
        spec=effective_spec(learn_memory(spec, seen), deleted=row["deleted_at"] is not None),
        hosts=_show_hosts(spec, hosts, checks),
        paused=find_pause(row["paused_at"], row["paused_reason"], row["deleted_at"]),
        quiet_seconds=seconds_until(at, row["quiet_until"]),
        quiet_reason=row["quiet_reason"],
        spent_today_usd=spent.get(row["name"], 0.0),
        outcomes=tuple(msgspec.convert(found, SpawnOutcome) for found in outcomes),
        trouble={found["offer"]: msgspec.convert(found, OfferTrouble) for found in troubles},
    )


def _show_hosts(
    spec: PoolSpec, rows: Rows, checks: Mapping[str, dict[str, Any]]
) -> tuple[FleetHost, ...]:
    # Convert all rows at once, then treat the few hosts that need more, because a pool may have
    # 10,000 hosts.
    hosts = msgspec.convert(rows, list[FleetHost])
    for place, row in enumerate(rows):
        if row["stopping"] is not None:
            stuck = say_stuck(spec, row["stopping"], row["overdue_seconds"])
            hosts[place] = msgspec.structs.replace(hosts[place], stuck=stuck)
        if row["state"] == "preflight":
            hosts[place] = _show_preflight(spec, hosts[place], checks[row["host_id"]])
    return tuple(hosts)


def _show_preflight(spec: PoolSpec, host: FleetHost, found: Mapping[str, Any]) -> FleetHost:
    verdict = judge_host(
        spec,
        host.state,
        host.offer,
        cpu_slots=found["cpu_slots"],
        memory_bytes=found["memory_bytes"],
        gpus=msgspec.convert(found["gpus"], tuple[Gpu, ...]),
        check=None if found["verdict"] is None else (found["verdict"], found["message"]),
    )
    return msgspec.structs.replace(host, preflight=verdict.result, preflight_reason=verdict.reason)
