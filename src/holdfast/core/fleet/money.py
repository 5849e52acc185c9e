"""The limits on what a pool spends.

MONEY-1  No spawn takes a pool over `max_usd_per_hour`, counting machines that are being ended,
         because they cost until their end is confirmed.
MONEY-2  No spawn is made where the day's spend, with one more hour of everything (or what is left of
         the day, if that is less), would cross `max_usd_per_day`. At the ceiling idle hosts are
         ended, also below `min`; work that runs is not stopped for money.
"""

from datetime import datetime, timedelta

from holdfast.core.fleet.snapshot import PoolView

HORIZON_HOURS = 1.0


def hours_left(at: datetime) -> float:
    """Return the hours until midnight UTC."""
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return (midnight - at).total_seconds() / 3600.0


def refuse_price(view: PoolView, price: float, rate: float, at: datetime) -> str:
    """Return why one more host at `price` an hour is too dear, or "".

    rate: $/h of the pool without that host, this cycle's earlier spawns included.
    """
    spec, rate = view.spec, rate + price
    hourly, daily = spec.max_usd_per_hour, spec.max_usd_per_day
    if hourly is not None and rate > hourly + 1e-9:
        return (
            f"pool {spec.name} at its $/hour ceiling of ${hourly:.2f}: one more host would make it "
            f"${rate:.2f}"
        )
    if daily is not None and price > 0:
        ahead = rate * min(HORIZON_HOURS, hours_left(at))
        if view.spent_today_usd + ahead > daily + 1e-9:
            return f"pool {spec.name} at its $/day ceiling of ${daily:.2f}"
    return ""


def is_spent(view: PoolView) -> bool:
    """Return whether the day's ceiling is reached."""
    daily = view.spec.max_usd_per_day
    return daily is not None and view.spent_today_usd >= daily and view.usd_per_hour > 0
