"""find_raises(view, at): which bound of a pool, if it were higher, would have the pool rent a host now. Pure.

Each is tried by the rules of growth themselves (`core.fleet.grow`), on the pool with that one bound raised.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.core.fleet.grow import find_bound
from holdfast.core.fleet.instances import Offer
from holdfast.core.fleet.money import HORIZON_HOURS, hours_left
from holdfast.core.fleet.snapshot import PoolView
from holdfast.core.forecast.outlook import Change


def find_raises(view: PoolView, offer: Offer, at: datetime) -> tuple[Change, ...]:
    """Return the bounds with which the pool would rent one more host of the offer now, each by itself; none
    where it may rent one as it is."""
    spec = view.spec
    present = view.starting + view.serving
    if find_bound(view, at, {})[0] > present:
        return ()
    rate = view.usd_per_hour + offer.usd_per_hour
    day = view.spent_today_usd + rate * min(HORIZON_HOURS, hours_left(at))
    tries = (
        ("max_usd_per_hour", spec.max_usd_per_hour, rate, f"might cost ${rate:.2f} an hour"),
        ("max_usd_per_day", spec.max_usd_per_day, day, f"might cost ${day:.2f} today"),
        ("max", spec.max, view.present + 1, f"might have {view.present + 1} hosts"),
    )
    found = []
    for name, now, then, words in tries:
        if now is None or now >= then:
            continue
        raised = msgspec.structs.replace(spec, **{name: then})
        if find_bound(msgspec.structs.replace(view, spec=raised), at, {})[0] > present:
            found.append(
                Change(
                    what="price" if name != "max" else "hosts",
                    message=f"if pool {spec.name} {words} ({name} is {now:g})",
                    hint=f"raise {name} of the pool: holdfast pools",
                )
            )
    return tuple(found)
