"""Price hours in dollars.

PRICE-2  A GPU-hour of a rented host costs the host's hourly price divided by its GPUs, and a CPU slot
         of a rented host without GPUs its part in the same way; a slot beside GPUs costs nothing
         more, because the GPUs' price is the whole machine's. A GPU-hour of another host costs what the
         host's label `gpu_hour_usd` says, else the setting of this name.
PRICE-3  Hours without a price are told as such and never counted as free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from holdfast.core.ledger.values import Unit
from holdfast.core.records import Record

LABEL = "gpu_hour_usd"
HOUR_MS = 3_600_000


class HostPrice(Record, frozen=True, kw_only=True):
    """The price of a host's hours, by its name: dollars for an hour of one GPU, and of one CPU slot.
    None: nothing names a price, and the cluster's setting holds for a GPU."""

    host: str
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


class Prices:
    """The prices of all hosts. gpu_hour_usd: of hosts that name none themselves, None without one."""

    def __init__(self, hosts: Iterable[HostPrice], gpu_hour_usd: float | None) -> None:
        self._hosts = {price.host: price for price in hosts}
        self._gpu_hour_usd = gpu_hour_usd

    @property
    def has_slots(self) -> bool:
        """Return whether a CPU slot of any host costs something."""
        return any(price.slot_hour_usd for price in self._hosts.values())

    def find_hour(self, host: str, unit: Unit) -> float | None:
        """Return the dollars for an hour of one device or slot of a host, None without a price. A
        CPU slot of an operator's own host costs nothing."""
        found = self._hosts.get(host)
        if unit == "cpu":
            return 0.0 if found is None else found.slot_hour_usd or 0.0
        if found is None or found.gpu_hour_usd is None:
            return self._gpu_hour_usd
        return found.gpu_hour_usd

    def find_usd(self, host: str, unit: Unit, ms: int) -> float | None:
        """Return the dollars for milliseconds of a host's devices, None without a price."""
        hour = self.find_hour(host, unit)
        return None if hour is None else hour * ms / HOUR_MS
