"""What a provider's listing means for what is on record, and the other way round.

LEAK-1  A machine that is listed under an intent on record is adopted, also if the answer to its creation
        was lost. A second machine of one intent, and one of an intent that is over or
        unknown, is ended.
LEAK-2  A provider is believed at once where it says that a machine is gone. That it does not list one
        is believed only after `MISSES` whole listings and `MISSING_SECONDS`, and never of a machine
        whose agent was heard meanwhile; of all at once, only after `ALL_MISSING_SECONDS`.
LEAK-3  A listing that could not be read whole means nothing.
LEAK-4  A place that could not be looked at, `unknown`, says nothing of the machines whose refs begin
        with its own, and nothing of those without a ref yet: they may be there.
"""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.core.fleet.instances import Machine, MachineState
from holdfast.core.states import InstanceState

MISSES = 3
MISSING_SECONDS = 60.0
ALL_MISSING_SECONDS = 300.0
ASKED_SECONDS = 120.0
UNKNOWN_SIGHTINGS = 2


class Rental(msgspec.Struct, frozen=True, kw_only=True):
    """An instance on record. asked_seconds: since the provider was asked for it; None: never.

    misses, missing_seconds: whole listings in a row without it, this one not counted, and since
    when. heartbeat_seconds: as of its host.
    """

    host_id: str
    state: InstanceState
    ref: str | None = None
    asked_seconds: float | None = None
    misses: int = 0
    missing_seconds: float = 0.0
    heartbeat_seconds: float | None = None


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What a listing means. adopted: host → ref. seen: host → the machine's state.

    lost: host → why, where the machine is there and costs money, and its provider says that it will
    not serve again. missing: hosts whose machine is not listed, and not believed gone. gone: host → why.
    missed: hosts whose creation made nothing. reap: refs of machines to end, and why. unknown: why
    places could not be looked at.
    """

    adopted: dict[str, str]
    seen: dict[str, MachineState]
    lost: dict[str, str]
    missing: list[str]
    gone: dict[str, str]
    missed: list[str]
    reap: dict[str, str]
    unknown: list[str]


def read_listing(
    rentals: Sequence[Rental], machines: Sequence[Machine], sightings: Mapping[str, int]
) -> Findings:
    """Compare the record with one whole listing of the provider.

    sightings: how often each ref was listed before without being known.
    """
    unknown = [machine for machine in machines if machine.state is MachineState.UNKNOWN]
    machines = [machine for machine in machines if machine.state is not MachineState.UNKNOWN]
    findings = Findings(
        adopted={}, seen={}, lost={}, missing=[], gone={}, missed=[], reap={},
        unknown=[machine.reason for machine in unknown],
    )  # fmt: skip
    of_intent: dict[str, list[Machine]] = {}
    for machine in machines:
        of_intent.setdefault(machine.intent, []).append(machine)
    known = {rental.host_id for rental in rentals if rental.state is not InstanceState.GONE}
    places = tuple(machine.ref for machine in unknown)

    def hides(rental: Rental) -> bool:
        unseen = bool(places) and rental.host_id not in of_intent
        return unseen and (rental.ref is None or rental.ref.startswith(places))

    made = [r for r in rentals if r.state is InstanceState.MADE and not hides(r)]
    all_missing = len(made) > 1 and not any(
        m.state is not MachineState.GONE for r in made for m in of_intent.get(r.host_id, ())
    )
    for rental in rentals:
        if rental.state in (InstanceState.GONE, InstanceState.INTENDED) or hides(rental):
            continue
        _match(rental, of_intent.get(rental.host_id, []), all_missing, findings)
    for machine in machines:
        stray = machine.intent not in known and machine.state is not MachineState.GONE
        if stray and sightings.get(machine.ref, 0) + 1 >= UNKNOWN_SIGHTINGS:
            findings.reap[machine.ref] = "no intent on record asks for it"
    return findings


def _match(rental: Rental, found: Sequence[Machine], all_missing: bool, findings: Findings) -> None:
    alive = [machine for machine in found if machine.state is not MachineState.GONE]
    mine = _choose(rental, alive)
    own = mine.ref if mine is not None else rental.ref
    for machine in alive:
        if machine.ref != own:
            findings.reap[machine.ref] = f"a second machine of {rental.host_id}"
    if mine is not None:
        if rental.ref is None:
            findings.adopted[rental.host_id] = mine.ref
        findings.seen[rental.host_id] = mine.state
        # One that starts may still find its image or its place; its deadline judges that.
        if mine.lost and mine.state is MachineState.RUNNING:
            findings.lost[rental.host_id] = mine.reason or mine.lost
        return
    said = next((m for m in found if rental.ref in (None, m.ref)), None)
    if said is not None:
        findings.gone[rental.host_id] = said.reason or said.lost or "its provider says it is gone"
    elif rental.ref is None:
        _judge_unanswered(rental, findings)
    elif _believe_missing(rental, all_missing):
        findings.gone[rental.host_id] = "its provider lists it no more"
    else:
        findings.missing.append(rental.host_id)


def _choose(rental: Rental, alive: Sequence[Machine]) -> Machine | None:
    if rental.ref is not None:
        return next((machine for machine in alive if machine.ref == rental.ref), None)
    return min(alive, key=lambda machine: machine.ref, default=None)


def _judge_unanswered(rental: Rental, findings: Findings) -> None:
    patient = (rental.asked_seconds or 0.0) < ASKED_SECONDS or rental.misses + 1 < MISSES
    (findings.missing if patient else findings.missed).append(rental.host_id)


def _believe_missing(rental: Rental, all_missing: bool) -> bool:
    if rental.state is InstanceState.ENDING:
        return rental.misses + 1 >= 2  # its end was asked for, so one doubt is enough
    if rental.heartbeat_seconds is not None and rental.heartbeat_seconds < MISSING_SECONDS:
        return False
    enough = ALL_MISSING_SECONDS if all_missing else MISSING_SECONDS
    return rental.misses + 1 >= MISSES and rental.missing_seconds >= enough
