"""Scale up: how many hosts of which offer are spawned, and why no more.

- Hosts that start count, so that nothing is spawned twice for the same jobs.
- `min` is restored even with an empty queue; nothing goes over `max`, the ceilings of money
  (MONEY-1, MONEY-2), or the breaker (BREAKER-1).
GROW-4  No host is requested while the provider cannot list its machines, or asks for patience.
GROW-3  Every host that is not over counts to `max`: also one that drains, is in quarantine or is
        silent. A host that is over is replaced before the end of its machine is confirmed, but
        there are never more than twice `max` machines, so that a provider that ends none gets no
        more requests.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from holdfast.core.fleet.actions import Spawn
from holdfast.core.fleet.breaker import find_allowance, wait_for_offer
from holdfast.core.fleet.demand import Need
from holdfast.core.fleet.instances import Offer
from holdfast.core.fleet.money import refuse_price
from holdfast.core.fleet.snapshot import PoolView
from holdfast.core.states import HostState


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """The spawns of a cycle. blocked: why further hosts that are needed are not spawned, or ""."""

    spawns: tuple[Spawn, ...] = ()
    blocked: str = ""


def say_mute(view: PoolView) -> str:
    """Return why the pool's provider cannot be asked for hosts now, or ""."""
    name = view.spec.name
    if view.quiet_seconds > 0:
        return (
            f"pool {name} leaves its provider in peace for {view.quiet_seconds:.0f} s, as that asked: "
            f"{view.quiet_reason}"
        )
    if view.unheard:
        return f"pool {name} rents nothing, because its provider cannot be asked: {view.unheard}"
    return ""


class _Grower:
    """A pool while its spawns are chosen, one host at a time."""

    def __init__(self, view: PoolView, at: datetime, prices: Mapping[str, float]) -> None:
        self._view, self._at, self._prices = view, at, prices
        self._hosts, self._machines = view.present, view.paid
        self._allowed, self._why = find_allowance(view.outcomes, view.starting)
        self._rate = view.usd_per_hour
        self.planned: dict[str, int] = {}
        self.blocked = ""

    def price(self, offer: Offer) -> float:
        """Return the price to plan with, in $/h: the provider's current one, else the spec's."""
        return self._prices.get(offer.name, offer.usd_per_hour)

    def add_one(self, offers: frozenset[str]) -> bool:
        """Plan one more host of these offers, or note why the pool may not have one."""
        spec = self._view.spec
        if self._view.paused is not None:
            return self._block(f"pool {spec.name} is paused: {self._view.paused}")
        mute = say_mute(self._view)
        if mute:
            return self._block(mute)
        if self._hosts >= spec.max:
            hosts = "1 host" if spec.max == 1 else f"{spec.max} hosts"
            said = f"pool {spec.name} at its max of {hosts}{_say_idlers(self._view)}"
            return self._block(said)
        if self._machines >= 2 * spec.max:
            return self._block(
                f"pool {spec.name} has {self._machines} machines that its provider has not ended "
                f"yet, twice its max of {spec.max}"
            )
        if self._allowed is not None and self._allowed <= 0:
            return self._block(f"pool {spec.name} spawns nothing now: {self._why}")
        offer = self._choose(offers)
        if offer is None:
            return False
        self.planned[offer.name] = self.planned.get(offer.name, 0) + 1
        self._rate += self.price(offer)
        self._hosts += 1
        self._machines += 1
        if self._allowed is not None:
            self._allowed -= 1
        return True

    def _choose(self, offers: frozenset[str]) -> Offer | None:
        spec, why = self._view.spec, ""
        for offer in spec.offers:
            if offer.name not in offers:
                continue
            trouble = self._view.trouble.get(offer.name)
            wait = wait_for_offer(spec.name, offer.name, trouble)
            if wait > 0 and trouble is not None:
                said = f": {trouble.reason}" if trouble.reason else ""
                refusal = (
                    f"offer {offer.name} of pool {spec.name} is asked again in {wait:.0f} s{said}"
                )
            else:
                refusal = refuse_price(self._view, self.price(offer), self._rate, self._at)
                if not refusal:
                    return offer
            why = why or refusal
        self._block(why)
        return None

    def _block(self, why: str) -> bool:
        self.blocked = self.blocked or why
        return False


def scale_up(
    view: PoolView, needs: Sequence[Need], at: datetime, prices: Mapping[str, float]
) -> Growth:
    """Return the spawns for `needs`. prices: $/h by offer, where the provider reports another price
    than the spec."""
    grower = _Grower(view, at, prices)
    for need in needs:
        have = view.count_supply(need.offers)
        have += sum(count for name, count in grower.planned.items() if name in need.offers)
        for _ in range(need.hosts - have):
            if not grower.add_one(need.offers):
                break
    spawns = tuple(
        Spawn(offer=name, count=count, reason=_say_reason(view, needs, count))
        for name, count in grower.planned.items()
    )
    return Growth(spawns=spawns, blocked=grower.blocked)


def find_bound(view: PoolView, at: datetime, prices: Mapping[str, float]) -> tuple[int, str]:
    """Return the most hosts that the pool could have after this cycle, and the sentence that says
    what bounds it. prices: as for `scale_up`."""
    grower = _Grower(view, at, prices)
    every = frozenset(offer.name for offer in view.spec.offers)
    present = view.starting + view.serving
    while grower.add_one(every):
        present += 1
    return present, grower.blocked


def _say_idlers(view: PoolView) -> str:
    """Return a sentence about the hosts that count to `max` and take no work."""
    counts: dict[str, int] = {}
    for host, count in view.shapes:
        word = "silent or set aside" if host.passed_over else _IDLERS.get(host.state, "")
        if word:
            counts[word] = counts.get(word, 0) + count
    said = [f"{n} {'is' if n == 1 else 'are'} {word}" for word, n in sorted(counts.items())]
    return f", of which {' and '.join(said)}" if said else ""


_IDLERS = {HostState.DRAINING: "draining", HostState.QUARANTINED: "in quarantine"}


def _say_reason(view: PoolView, needs: Sequence[Need], count: int) -> str:
    wanted = max(need.hosts for need in needs)
    needed = "1 host is needed" if wanted == 1 else f"{wanted} hosts are needed"
    serve = "1 serves" if view.serving == 1 else f"{view.serving} serve"
    start = "1 starts" if view.starting == 1 else f"{view.starting} start"
    return f"{needed}, {serve} and {start}: {count} more"
