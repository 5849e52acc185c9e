"""Compare a provider's listing of machines with the instances on record, to find lost and leaked
ones.

LEAK-1  A machine that is listed under an intent on record belongs to that host, even if the answer
        to its creation was lost. A second machine of one intent, and a machine of an intent that is
        over or unknown, is ended.
LEAK-2  A machine is believed gone at once where its provider says so. A machine that is only not
        listed is believed gone after `MISSES` whole listings and `MISSING_SECONDS`, and never while
        its agent calls. Where all machines are missing at once, `ALL_MISSING_SECONDS` must pass.
- A listing that could not be read whole means nothing.
LEAK-4  Where a place could not be looked at (`unknown`), nothing is concluded about machines whose
        refs begin with that place's, nor about machines without a ref yet, because they may be
        there.
"""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.core.fleet.instances import Machine, MachineState
from holdfast.core.fleet.snapshot import FleetHost
from holdfast.core.states import HostState, InstanceState

MISSES = 3
MISSING_SECONDS = 60.0
ALL_MISSING_SECONDS = 300.0
ASKED_SECONDS = 120.0
LEAVING_SECONDS = 15.0
UNKNOWN_SIGHTINGS = 2


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """The conclusions from a listing, by host id where nothing else is said.

    adopted: the ref of a machine that belongs to the host. seen: the listed machine's state.
    said: the provider's message about a machine that starts. words: `Machine.lost`, where the
    provider takes the machine away. notices: the machine still runs, and the provider is about to
    take it away (EVICT-2). lost: why a machine that still costs money will not serve
    again. gone: why the machine is believed gone. missing: hosts whose machine is not listed and
    not yet believed gone. missed: hosts for which the provider made no machine. reap: ref → why
    that machine is to be ended. unknown: for each place that could not be looked at, the reason.
    """

    adopted: dict[str, str]
    seen: dict[str, MachineState]
    said: dict[str, str]
    words: dict[str, str]
    notices: dict[str, Machine]
    lost: dict[str, str]
    missing: list[str]
    gone: dict[str, str]
    missed: list[str]
    reap: dict[str, str]
    unknown: list[str]


def read_listing(
    hosts: Sequence[FleetHost], machines: Sequence[Machine], sightings: Mapping[str, int]
) -> Findings:
    """Compare the record, every host that is not gone, with one whole listing of the provider.

    sightings: ref → number of earlier listings that showed this machine while no record knew it.
    """
    unknown = [machine for machine in machines if machine.state is MachineState.UNKNOWN]
    places = tuple(machine.ref for machine in unknown)
    findings = Findings(
        adopted={}, seen={}, said={}, words={}, notices={}, lost={}, missing=[], gone={}, missed=[], reap={},
        unknown=[machine.reason for machine in unknown],
    )  # fmt: skip
    of_intent: dict[str, list[Machine]] = {}
    for machine in machines:
        if machine.state is not MachineState.UNKNOWN:
            of_intent.setdefault(machine.intent, []).append(machine)
    all_missing = _are_all_missing(hosts, of_intent, places)
    for host in hosts:
        found = of_intent.get(host.host_id, ())
        if host.instance in (InstanceState.GONE, InstanceState.INTENDED):
            continue
        if len(found) == 1 and found[0].ref == host.ref and _is_well(found[0]):
            findings.seen[host.host_id] = found[0].state  # the usual case: one machine, as recorded
        elif not _hides(host, found, places):
            _match(host, found, all_missing, findings)
        for machine in found:
            if machine.lost and host.ref in (None, machine.ref):
                findings.words[host.host_id] = machine.lost
            if _is_leaving(machine) and host.ref in (None, machine.ref):
                findings.notices[host.host_id] = machine
        if host.state is HostState.SPAWNING or host.host_id in findings.words:
            for machine in [machine for machine in found if machine.reason][:1]:
                findings.said[host.host_id] = machine.reason
        of_intent.pop(host.host_id, None)
    intended = {h.host_id for h in hosts if h.instance is InstanceState.INTENDED}
    for machine in (m for ms in of_intent.values() for m in ms if m.intent not in intended):
        stray = machine.state is not MachineState.GONE
        if stray and sightings.get(machine.ref, 0) + 1 >= UNKNOWN_SIGHTINGS:
            findings.reap[machine.ref] = "no intent on record asks for it"
    return findings


def _is_leaving(machine: Machine) -> bool:
    """Return whether a machine runs and is about to be taken away. The programs of a machine that
    is ending already have been told of that."""
    said = machine.lost == "preempted" or machine.leaves_at is not None
    return said and machine.state is MachineState.RUNNING


def _is_well(machine: Machine) -> bool:
    return machine.state is not MachineState.GONE and not machine.lost


def _hides(host: FleetHost, found: Sequence[Machine], places: tuple[str, ...]) -> bool:
    """Return whether the machine may be in a place that could not be looked at (LEAK-4)."""
    if found or not places:
        return False
    return host.ref is None or host.ref.startswith(places)


def _are_all_missing(
    hosts: Sequence[FleetHost], of_intent: Mapping[str, Sequence[Machine]], places: tuple[str, ...]
) -> bool:
    """Return whether the listing shows none of several machines that were made."""
    made = 0
    for host in hosts:
        found = of_intent.get(host.host_id, ())
        if host.instance is InstanceState.MADE and not _hides(host, found, places):
            if any(machine.state is not MachineState.GONE for machine in found):
                return False
            made += 1
    return made > 1


def _match(
    host: FleetHost, found: Sequence[Machine], all_missing: bool, findings: Findings
) -> None:
    alive = [machine for machine in found if machine.state is not MachineState.GONE]
    mine = _choose(host, alive)
    own = mine.ref if mine is not None else host.ref
    for machine in alive:
        if machine.ref != own:
            findings.reap[machine.ref] = f"a second machine of {host.host_id}"
    if mine is not None:
        if host.ref is None:
            findings.adopted[host.host_id] = mine.ref
        findings.seen[host.host_id] = mine.state
        # A machine that starts may still get its image or its place; the spawn timeout decides.
        if mine.lost and mine.state is MachineState.RUNNING and not _is_leaving(mine):
            findings.lost[host.host_id] = mine.reason or mine.lost
        return
    said = next((m for m in found if host.ref in (None, m.ref)), None)
    if said is not None:
        findings.gone[host.host_id] = said.reason or said.lost or "its provider says it is gone"
    elif host.ref is None:
        _judge_unanswered(host, findings)
    elif _believe_missing(host, all_missing):
        findings.gone[host.host_id] = "its provider lists it no more" + (
            f", and had said: {host.said or host.lost}" if host.lost else ""
        )
    else:
        findings.missing.append(host.host_id)


def _choose(host: FleetHost, alive: Sequence[Machine]) -> Machine | None:
    if host.ref is not None:
        return next((machine for machine in alive if machine.ref == host.ref), None)
    return min(alive, key=lambda machine: machine.ref, default=None)


def _judge_unanswered(host: FleetHost, findings: Findings) -> None:
    patient = (host.asked_seconds or 0.0) < ASKED_SECONDS or host.misses + 1 < MISSES
    (findings.missing if patient else findings.missed).append(host.host_id)


def _believe_missing(host: FleetHost, all_missing: bool) -> bool:
    if host.instance is InstanceState.ENDING:
        return host.misses + 1 >= 2  # its end was requested, so two listings are enough
    if host.lost and (host.heartbeat_seconds or 0.0) > LEAVING_SECONDS:
        return host.misses + 1 >= 2  # the provider announced its end
    if host.heartbeat_seconds is not None and host.heartbeat_seconds < MISSING_SECONDS:
        return False
    enough = ALL_MISSING_SECONDS if all_missing else MISSING_SECONDS
    return host.misses + 1 >= MISSES and host.missing_seconds >= enough
