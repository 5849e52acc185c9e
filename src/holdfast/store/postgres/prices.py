"""The one writer of prices: each is a row of its own, with the event that tells of its change."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from holdfast.core.report.money import HostPrice, PriceChange, say_change
from holdfast.moves.rows import NewEvent
from holdfast.store.postgres.connection.session import Tx, to_json
from holdfast.store.postgres.moves import write_events

PRICE_CHANGED = "price.changed"


async def write_prices(
    tx: Tx, changes: Sequence[PriceChange], at: datetime, *, by_hand: bool = False
) -> None:
    """Write prices, and an event for each that changes one. A host's first price is no change. A
    price holds from the beginning of its minute on, because the ledger has whole minutes."""
    if not changes:
        return
    changes = [_begin_minute(change) for change in changes]
    rows = to_json([change.after for change in changes])
    await tx.run("write_host_prices", rows=rows, by_hand=by_hand, now=at)
    events = [_tell(change, at) for change in changes if change.before is not None]
    await write_events(tx, events, at)


def _begin_minute(change: PriceChange) -> PriceChange:
    after = change.after
    since = None if after.since is None else after.since.replace(second=0, microsecond=0)
    return PriceChange(change.before, msgspec.structs.replace(after, since=since))


def _tell(change: PriceChange, at: datetime) -> NewEvent:
    before, after = change.before or HostPrice(host=""), change.after
    data = {
        "host": after.host,
        "since": (after.since or at).isoformat(),
        "gpu_hour_usd": after.gpu_hour_usd,
        "gpu_hour_usd_before": before.gpu_hour_usd,
        "slot_hour_usd": after.slot_hour_usd,
        "slot_hour_usd_before": before.slot_hour_usd,
    }
    return NewEvent(kind=PRICE_CHANGED, message=say_change(change), data=data)
