"""Price hours in dollars.

PRICE-2  A GPU-hour of a rented host costs the host's hourly price divided by its GPUs, and a CPU slot
         of a rented host without GPUs its part in the same way; a slot beside GPUs costs nothing
         more, because the GPUs' price is the whole machine's. A GPU-hour of another host costs what the
         host's label `gpu_hour_usd` says, else the setting of this name.
PRICE-3  Hours without a price are told as such and never counted as free.
PRICE-4  A price holds from a time on, and hours keep the price that they had: a change prices no hour
         before it, and neither does taking a price away. Of two prices that hold at a time, the one
         that was written later counts, so that a correction of an earlier time holds from there on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from holdfast.core.ledger.values import LedgerSum, Unit
from holdfast.core.records import Record

LABEL = PRICE = "gpu_hour_usd"
HOUR_MS = 3_600_000


class HostPrice(Record, frozen=True, kw_only=True):
    """The price of a host's hours, by its name: dollars for an hour of one GPU, and of one CPU slot.
    None: nothing names a price, and the cluster's holds for a GPU. host: "" for the cluster. since: the
    time from which it holds; None for the host's first second."""

    host: str
    since: datetime | None = None
    gpu_hour_usd: float | None = None
    slot_hour_usd: float | None = None


def find_price(
    host: str, *, gpus: int, cpu_slots: int, labels: Mapping[str, str], usd_per_hour: float | None
) -> HostPrice:
    """Return the price of a host's hours (PRICE-2). usd_per_hour: what a rented machine costs; None,
    or 0, for one that its operator owns."""
    if usd_per_hour:
        if gpus:
            return HostPrice(host=host, gpu_hour_usd=usd_per_hour / gpus, slot_hour_usd=0.0)
        return HostPrice(host=host, slot_hour_usd=usd_per_hour / max(1, cpu_slots))
    try:
        said = float(labels.get(LABEL, ""))
    except ValueError:
        return HostPrice(host=host)
    known = math.isfinite(said) and said >= 0
    return HostPrice(host=host, gpu_hour_usd=said if known else None)


class PriceChange(msgspec.Struct, frozen=True):
    """A price that takes another's place from `after.since` on. before: None for a host's first price."""

    before: HostPrice | None
    after: HostPrice


class PriceEffect(Record, frozen=True, kw_only=True):
    """The change that a new price makes to the cost of recorded hours. since: the price holds from then.
    before_usd, after_usd: the cost of the hours that jobs held since then, at the old price and at the new
    one. crossed: a sentence for each budget of this month that the new price uses up."""

    host: str
    since: datetime
    before_usd: float
    after_usd: float
    crossed: tuple[str, ...] = ()


def find_changes(
    noted: Mapping[str, HostPrice], found: Iterable[HostPrice], at: datetime
) -> list[PriceChange]:
    """Return the changes of what labels, providers and the setting say. noted: what they said last. A
    host's first price holds for all of its hours, any other from now on (PRICE-4)."""
    changes = []
    for price in found:
        before = noted.get(price.host)
        if before is None and price.host:
            changes.append(PriceChange(None, price))
        elif price != (before or HostPrice(host="")):
            after = msgspec.structs.replace(price, since=at)
            changes.append(PriceChange(before or HostPrice(host=""), after))
    return changes


def say_change(change: PriceChange) -> str:
    """Write a change of a price as a sentence."""
    before, after = change.before or HostPrice(host=""), change.after
    unit, old, new = "GPU", before.gpu_hour_usd, after.gpu_hour_usd
    if after.slot_hour_usd or before.slot_hour_usd:
        unit, old, new = "CPU slot", before.slot_hour_usd, after.slot_hour_usd
    whose = f"of host {after.host}" if after.host else "of hosts that name no price themselves"
    since = "" if after.since is None else f" from {after.since:%Y-%m-%d %H:%M} UTC on"
    costs, cost = (_say(usd, after.host) for usd in (new, old))
    return f"an hour of a {unit} {whose} is {costs}{since}; it was {cost} before"


def _say(usd: float | None, host: str) -> str:
    if usd is None:
        return "at the cluster's price" if host else "without a price"
    return f"${usd:g}"


class Prices:
    """The prices of all hosts, in the order in which they were written (PRICE-4)."""

    def __init__(self, history: Iterable[HostPrice]) -> None:
        self._history = tuple(history)
        self._hosts: dict[str, list[HostPrice]] = {}
        for price in self._history:
            self._hosts.setdefault(price.host, []).insert(0, price)

    @property
    def has_slots(self) -> bool:
        """Return whether a CPU slot of any host costs something."""
        return any(price.slot_hour_usd for price in self._history)

    def knows(self, host: str) -> bool:
        """Return whether a host of this name is on record."""
        return host in self._hosts

    def add(self, price: HostPrice) -> Prices:
        """Return the prices as they would be with one more."""
        return Prices([*self._history, price])

    def list_cuts(self, since: datetime, until: datetime) -> list[datetime]:
        """Return the instants within a span at which a price may change, in order."""
        found = {price.since for price in self._history if price.since is not None}
        return sorted(at for at in found if since < at < until)

    def find_price(self, host: str, at: datetime) -> HostPrice:
        """Return the price of a host on record that holds at an instant."""
        holds = (p for p in self._hosts.get(host, ()) if p.since is None or p.since <= at)
        return next(holds, HostPrice(host=host))

    def find_hour(self, host: str, unit: Unit, at: datetime) -> float | None:
        """Return the dollars for an hour of one device or slot of a host, None without a price. A
        CPU slot of an operator's own host costs nothing."""
        found = self.find_price(host, at)
        if unit == "cpu":
            return found.slot_hour_usd or 0.0
        own = found.gpu_hour_usd
        return self.find_price("", at).gpu_hour_usd if own is None else own

    def find_usd(self, host: str, unit: Unit, ms: int, at: datetime) -> float | None:
        """Return the dollars for milliseconds of a host's devices, None without a price."""
        hour = self.find_hour(host, unit, at)
        return None if hour is None else hour * ms / HOUR_MS


class PricedSpan:
    """A span of time and the instants at which its prices change. The ledger is asked for its sums with
    these `cuts`, and says of each as the last text of its key how many cuts lie before it."""

    def __init__(self, prices: Prices, since: datetime, until: datetime) -> None:
        self._prices = prices
        self.cuts = tuple(prices.list_cuts(since, until))
        self._starts = (since, *self.cuts)

    def find_hour(self, host: str, unit: Unit, key: tuple[str, ...]) -> float | None:
        """Return the dollars for an hour of a sum with this key, None without a price."""
        return self._prices.find_hour(host, unit, self._starts[int(key[-1]) if self.cuts else 0])

    def find_usd(self, host: str, unit: Unit, each: LedgerSum) -> float | None:
        """Return the dollars for a sum of the ledger, None without a price."""
        hour = self.find_hour(host, unit, each.key)
        return None if hour is None else hour * each.total_ms / HOUR_MS
