"""Read the material of forecasts. Every read is bounded, also where a million jobs wait."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.fleet.snapshot import FleetHost, OfferTrouble, PoolView, SpawnOutcome
from holdfast.core.placement.types import Candidate
from holdfast.core.progress.pace import estimate
from holdfast.core.states import HostState, InstanceState
from holdfast.moves.values import StoreValue
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, reads
from holdfast.store.postgres.connection.session import Tx

MAX_PAST = 2000
"""The most starts and ends of jobs that are read."""
OUTCOME_SECONDS = 3600.0


class ObservedSpan(StoreValue, frozen=True, kw_only=True):
    """A job that started (`what` is "start") or ended ("end") some time ago. seconds: how long it ran."""

    what: str
    queue: str
    project: str = ""
    kin: str = ""
    seconds: float | None = None
    age_seconds: float


class RentedPool(StoreValue, frozen=True, kw_only=True):
    """A pool, as its next cycle would see it, and how its machines came.

    starting: for each machine on its way, the seconds since its intent. spawn_seconds: how long the last ones
    took to serve. at: the moment of the read.
    """

    at: datetime
    view: PoolView
    starting: tuple[float, ...] = ()
    spawn_seconds: tuple[float, ...] = ()


class PostgresForecasts(OnSession):
    """The past of the queues and of the pools, and how far running jobs are."""

    async def read_past(self, *, now: Now = None) -> list[ObservedSpan]:
        """Return the newest starts of jobs, those of one day at most, and the newest ends, those with the
        first or a later attempt."""
        return await self.session.list_of(ObservedSpan, "read_past", limit=MAX_PAST, now=now)

    async def read_left(self, *, now: Now = None) -> dict[str, float]:
        """Return, for running jobs that say how far they are and of how many steps, the seconds that are left
        by their own pace."""
        rows = await self.session.rows("read_steps", now=now)
        found = {}
        for row in rows:
            said = estimate(row["step"], row["total"], row["rate"], row["age_seconds"])
            if said is not None and said.left_seconds is not None:
                found[row["job_id"]] = said.left_seconds
        return found

    async def count_ahead(self, job_id: str, queues: Sequence[str], limit: int) -> dict[str, int]:
        """Return, for each of `queues`, how many of its queued jobs have a higher priority than the job, or
        the same and an earlier place; at most `limit` of each are counted."""
        rows = await self.session.rows("count_ahead", id=job_id, queues=list(queues), limit=limit)
        return {row["name"]: row["ahead"] for row in rows}

    @reads
    async def read_arrivals(
        self, tx: Tx, priority: int, seconds: float, *, now: Now = None
    ) -> list[tuple[float, Candidate]]:
        """Return jobs of a higher priority that were queued within the last `seconds` and have started, each with
        the seconds since; at most 200."""
        rows = await tx.rows(
            "read_arrivals", priority=priority, seconds=seconds, now=await tx.now(now)
        )
        return [(row.pop("age_seconds"), msgspec.convert(row, Candidate)) for row in rows]

    async def count_queued(self, queues: Sequence[str], limit: int) -> int:
        """Return how many jobs wait in these queues, at most `limit` of each."""
        rows = await self.session.rows("count_behind", queues=list(queues), limit=limit)
        return sum(row["queued"] for row in rows)

    @reads
    async def read_rentals(self, tx: Tx, *, now: Now = None) -> list[RentedPool]:
        """Return the pools that are not being deleted. Of their hosts only what counts for growth is
        true."""
        at = await tx.now(now)
        when = {"now": at}
        pools, rented, times, money, outcomes, troubles = await tx.many(
            ("read_pools", {"names": None}),
            ("read_rentals", when),
            ("read_spawn_times", {}),
            ("read_money", when),
            ("snapshot_outcomes", {**when, "seconds": OUTCOME_SECONDS}),
            ("snapshot_troubles", when),
        )
        spent = {row["pool"]: row["spent_today_usd"] for row in money}
        found = []
        for row in pools:
            if row["deleted_at"] is not None:
                continue
            name, quiet = row["name"], row["quiet_until"]
            mine = [each for each in rented if each["pool"] == name]
            view = PoolView(
                spec=msgspec.convert(row["spec"], PoolSpec),
                hosts=tuple(host for each in mine for host in _show(each)),
                paused=None if row["paused_at"] is None else row["paused_reason"],
                quiet_seconds=0.0 if quiet is None else max(0.0, (quiet - at).total_seconds()),
                quiet_reason=row["quiet_reason"],
                spent_today_usd=spent.get(name, 0.0),
                outcomes=tuple(
                    msgspec.convert(each, SpawnOutcome) for each in outcomes if each["pool"] == name
                ),
                trouble={
                    each["offer"]: msgspec.convert(each, OfferTrouble)
                    for each in troubles
                    if each["pool"] == name
                },
            )
            found.append(
                RentedPool(
                    at=at,
                    view=view,
                    starting=tuple(age for each in mine for age in each["ages"]),
                    spawn_seconds=tuple(each["seconds"] for each in times if each["pool"] == name),
                )
            )
        return found


def _show(row: Mapping[str, object]) -> list[FleetHost]:
    host = FleetHost(
        host_id="",
        name="",
        state=HostState(str(row["state"])),
        instance=InstanceState(str(row["instance"])),
        offer=str(row["offer"]),
        usd_per_hour=float(str(row["usd_per_hour"])),
    )
    return [host] * int(str(row["hosts"]))
