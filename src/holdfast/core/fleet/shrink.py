"""Scale down: which hosts are given back.

- Only idle hosts are given back, and none that `min`, the buffer, a waiting job or a gang
  needs. Excess starting hosts go first, then the dearest idle ones, of these the newest.
SCALE-2  A host is marked draining before it is ended, and the claim refuses it in the same
         transaction, so that no job slips in between. Work that got there before has the grace.
- A host that was needed a moment ago is not given back at once: a starting host is kept for
  half its spawn timeout, an idle one for `idle_timeout_seconds` since its last lease ended.
"""

from collections.abc import Sequence

import msgspec

from holdfast.core.fleet.actions import Action, DrainHost
from holdfast.core.fleet.demand import Need
from holdfast.core.fleet.health import end_host, retire
from holdfast.core.fleet.money import is_spent
from holdfast.core.fleet.snapshot import FleetHost, PoolView
from holdfast.core.states import HostState, InstanceState


def scale_down(view: PoolView, needs: Sequence[Need]) -> tuple[PoolView, list[Action]]:
    """Choose the hosts that are given back, and return the pool without them."""
    if view.paused is not None:
        return view, []
    spent = is_spent(view)
    supply = [view.count_supply(need.offers) for need in needs]
    actions: list[Action] = []
    changed: dict[str, FleetHost] = {}
    for host in sorted(filter(lambda h: _may_go(view, h, spent), view.hosts), key=_order):
        touched = [i for i, need in enumerate(needs) if host.offer in need.offers]
        lost = 0 if host.passed_over else 1  # a host that is passed over does not count as supply
        if not spent and any(supply[i] - lost < needs[i].hosts for i in touched):
            continue
        for i in touched:
            supply[i] -= lost
        actions += _let_go(view, host, spent)
        changed[host.host_id] = _as_going(host)
    return view.replace_hosts(changed), actions


def _may_go(view: PoolView, host: FleetHost, spent: bool) -> bool:
    spec = view.spec
    if host.is_starting:
        return spent or host.intent_seconds >= spec.spawn_timeout_seconds / 2
    if not host.is_idle or host.sends_outputs(spec.shutdown_grace_seconds):
        return False
    idle = host.idle_seconds or 0.0
    return spent or idle >= spec.idle_timeout_seconds


def _order(host: FleetHost) -> tuple[bool, float, float, str]:
    return host.is_serving, -host.usd_per_hour, host.intent_seconds, host.host_id


def _let_go(view: PoolView, host: FleetHost, spent: bool) -> list[Action]:
    if host.is_starting:
        return end_host(
            msgspec.structs.replace(host, gone="more hosts are starting than are needed")
        )
    why = "the day's money is spent" if spent else f"it is idle for {host.idle_seconds or 0:.0f} s"
    return [
        DrainHost(
            host_id=host.host_id,
            grace_seconds=view.spec.shutdown_grace_seconds,
            leases=0,
            reason=why,
        )
    ]


def _as_going(host: FleetHost) -> FleetHost:
    if host.is_starting and host.instance is not InstanceState.GONE:
        return retire(host)
    return msgspec.structs.replace(host, state=HostState.DRAINING, draining_for_scale=True)
