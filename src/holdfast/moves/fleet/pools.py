"""Decisions about pools, the same in both stores."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.core.fleet.instances import Offer
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.gpus import Gpu
from holdfast.core.placement.possible import HostShape
from holdfast.errors import Conflict, NotFound
from holdfast.moves.rows import NewEvent

NO_LIMIT_BYTES = 1 << 60
MAX_CYCLES = 500
"""Number of cycles whose summaries are kept for each pool."""


def no_pool(name: str) -> NotFound:
    """Return the error for an unknown pool."""
    return NotFound(f"there is no pool {name!r}; `holdfast pools list` lists them")


def pool_is_going(name: str) -> Conflict:
    """Return the error for a change to a pool that was deleted and still has machines."""
    return Conflict(
        f"pool {name} is being deleted; it can be made again once its last machine is gone",
        code="pool_deleted",
    )


def effective_spec(spec: PoolSpec, *, deleted: bool) -> PoolSpec:
    """Return the spec that cycles use; a deleted pool's makes it shrink to nothing as its hosts
    become idle."""
    if not deleted:
        return spec
    return msgspec.structs.replace(
        spec, min=0, max=0, buffer=0, idle_timeout_seconds=0.0, max_usd_per_hour=None,
        max_usd_per_day=None,
    )  # fmt: skip


def find_pause(paused_at: datetime | None, reason: str, deleted_at: datetime | None) -> str | None:
    """Return why a pool is paused, else None. A deleted pool counts as not paused, because it must
    shrink."""
    return None if paused_at is None or deleted_at is not None else reason


def cost_since(
    day: datetime,
    now: datetime,
    *,
    usd_per_hour: float,
    asked_at: datetime | None,
    gone_at: datetime | None,
    made: bool,
) -> float:
    """Return the dollars that one instance cost from `day` to `now`. The costs begin at `asked_at`,
    the request to the provider, but only once the provider has named or listed the machine
    (`made`), because until then there may be no machine."""
    if asked_at is None or not made:
        return 0.0
    seconds = (min(gone_at or now, now) - max(asked_at, day)) / timedelta(seconds=1)
    return max(0.0, seconds) * usd_per_hour / 3600.0


def list_offer_sizes(
    pools: Iterable[PoolSpec], seen: Mapping[tuple[str, str], int]
) -> list[HostShape]:
    """Return the sizes of the hosts that pools may rent. seen: (pool, offer) → the memory, in
    bytes, that a rented host of it reported."""
    return [
        _offer_size(spec, offer)
        for spec in (learn_memory(spec, seen) for spec in pools)
        if spec.max
        for offer in spec.offers
    ]


def as_seen(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], int]:
    """Return (pool, offer) → memory that a host of it reported, from rows of the store."""
    return {(row["pool"], row["offer"]): row["memory_bytes"] for row in rows}


def learn_memory(spec: PoolSpec, seen: Mapping[tuple[str, str], int]) -> PoolSpec:
    """Return the spec with a size of memory for offers that give none: the size that the last host
    of the offer reported. seen: (pool, offer) → bytes."""
    if all(offer.memory_bytes or (spec.name, offer.name) not in seen for offer in spec.offers):
        return spec
    offers = tuple(
        msgspec.structs.replace(
            offer, memory_bytes=offer.memory_bytes or seen.get((spec.name, offer.name), 0)
        )
        for offer in spec.offers
    )
    return msgspec.structs.replace(spec, offers=offers)


def _offer_size(spec: PoolSpec, offer: Offer) -> HostShape:
    return HostShape(
        name=f"{spec.name}/{offer.name}",
        labels=dict(spec.labels),
        pool=spec.name,
        count=spec.max,
        queues=frozenset(spec.queues),
        cpu_slots=offer.cpu_slots,
        memory_bytes=offer.memory_bytes or NO_LIMIT_BYTES,
        gpus=tuple(
            Gpu(index=i, model=offer.gpu_type, memory_bytes=offer.gpu_memory_bytes)
            for i in range(offer.gpus)
        ),
    )


def seconds_until(now: datetime, then: datetime | None) -> float:
    """Return the seconds from `now` to `then`, 0 where that is over or never was."""
    return 0.0 if then is None else max(0.0, (then - now).total_seconds())


def pool_event(what: str, name: str, message: str, **data: object) -> NewEvent:
    """Return the event `pool.<what>`."""
    return NewEvent(kind=f"pool.{what}", message=message, data={"name": name, **data})


def changed_fields(before: PoolSpec, after: PoolSpec) -> Mapping[str, object]:
    """Return the fields of a spec that differ after a change, with their new values."""
    return {
        f: msgspec.to_builtins(getattr(after, f))
        for f in after.__struct_fields__
        if getattr(before, f) != getattr(after, f)
    }
