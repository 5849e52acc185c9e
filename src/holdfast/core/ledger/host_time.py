"""Name the time of a host's devices that no lease holds."""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.core.ledger.split_lease import MINUTE_MS, Interval, MinutePiece, split_minutes
from holdfast.core.ledger.values import LedgerName
from holdfast.core.states import HostState

_NAMES: Mapping[HostState, LedgerName] = {
    HostState.SPAWNING: LedgerName.STARTING,
    HostState.PREFLIGHT: LedgerName.STARTING,
    HostState.ACTIVE: LedgerName.UNUSED,
    HostState.DRAINING: LedgerName.DRAINING,
    HostState.QUARANTINED: LedgerName.UNFIT,
    HostState.ERROR: LedgerName.UNFIT,
    HostState.TERMINATED: LedgerName.DRAINING,
}
"""The name of an unleased second of a host, by the host's state. A host that was ended is told of only while
its provider has its machine, which is paid for until it is gone."""
_LEASED_FIRST = (LedgerName.UNUSED, LedgerName.DRAINING, LedgerName.UNFIT, LedgerName.STARTING)


class HostTime(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a host's time in one state, with the devices that it had. silent: its agent said
    nothing meanwhile, so it could take no work."""

    state: HostState
    since: int
    until: int
    devices: int
    silent: bool = False


def find_unfit(times: Sequence[HostTime]) -> list[Interval]:
    """Return when the host was in quarantine or in error."""
    return [
        Interval(time.since, time.until)
        for time in times
        if _NAMES.get(time.state) is LedgerName.UNFIT
    ]


def name_unleased(
    times: Sequence[HostTime],
    leased: Mapping[int, int],
    since: int,
    until: int,
    *,
    unfit: Mapping[int, int] | None = None,
) -> list[MinutePiece]:
    """Return the milliseconds × devices of each minute that no lease held, by name.

    leased: start of a minute → milliseconds × devices that leases held in it. unfit: the part of them
    in which the host was unfit, which is taken from such time. In a minute in which
    the host changed its state, the rest is taken from the time in which it served, before the other.
    """
    offered: dict[int, dict[LedgerName, int]] = {}
    for time in times:
        name = _NAMES.get(time.state)
        if name is None or not time.devices:
            continue
        if time.silent and name is LedgerName.UNUSED:
            name = LedgerName.UNFIT
        for part in split_minutes(max(since, time.since), min(until, time.until)):
            of_minute = offered.setdefault(part.since - part.since % MINUTE_MS, {})
            of_minute[name] = of_minute.get(name, 0) + (part.until - part.since) * time.devices
    pieces: list[MinutePiece] = []
    for at, names in sorted(offered.items()):
        held = leased.get(at, 0)
        both = min((unfit or {}).get(at, 0), names.get(LedgerName.UNFIT, 0))
        if both:
            names[LedgerName.UNFIT] -= both
            held -= both
        for name in _LEASED_FIRST:
            ms = names.get(name, 0)
            taken = min(held, ms)
            held -= taken
            if ms > taken:
                pieces.append(MinutePiece(at, name, ms - taken))
    return pieces
