"""Let the leases of silent hosts lapse, and stamp the times in which renewals could be written."""

from datetime import datetime

from holdfast.core.lease import GAP_SECONDS, Spell
from holdfast.moves.jobs import requests
from holdfast.store.postgres.connection.session import Session, Tx
from holdfast.store.postgres.moves import load_moves, write_moves

PAUSE_SECONDS = 10.0
"""Two intervals of the slowest loop that judges silence: after a longer time without a stamp, hosts
have to be heard anew (LEAD-4)."""
LOCKS_SECONDS = 1.0
"""Where a sweep waited for its locks for longer, renewals may wait for the same ones."""


async def lapse_leases(tx: Tx, leading_since: datetime, now: datetime | None) -> list[str]:
    """Lapse leases by the time and the spells as they are after the locks (LEASE-6). A sweep that
    waited for its locks decides nothing."""
    began = await tx.now(now)
    found = await tx.rows("find_lapsed", now=began, leading_since=leading_since)
    if not found:
        return []
    m = await load_moves(tx, [row["job_id"] for row in found], began)
    taken, rows = await tx.many(("find_preempted", {}), ("read_spells", {"now": now}))
    m.now = rows[0]["now"]
    if (m.now - began).total_seconds() > LOCKS_SECONDS:
        return []
    told = {row["host_id"]: row["said"] for row in taken}
    spells = [Spell(row["since"], row["until"]) for row in rows if row["since"] is not None]
    lapsed = requests.lapse(m, leading_since, told, spells)
    await write_moves(tx, m)
    return lapsed


async def stamp_renewals(
    session: Session, now: datetime | None
) -> tuple[datetime, datetime | None]:
    """Stamp renewals, as `PostgresLeases.stamp_renewals` says."""
    asked = {"gap": GAP_SECONDS, "pause": PAUSE_SECONDS}
    (row,) = await session.rows("stamp_renewals", now=now, **asked)
    return row["at"], row["heard_since"]


async def settle_clock(tx: Tx, now: datetime | None) -> None:
    """Settle in the one order of locks: hosts, jobs, tasks; then the spells."""
    for what in ("heartbeats", "drains", "reservations", "leases", "spells"):
        await tx.run(f"settle_{what}", now=now)
