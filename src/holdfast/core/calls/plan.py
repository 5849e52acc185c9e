"""Plan how many executors each family should have. Pure.

PLAN-1  A family never has more executors than `executors_max`, than fit on the hosts that list the
        app, or than it has calls, ready or in hand. Starting executors count like running ones.
PLAN-2  A family whose calls take so long that they would wait longer than `TARGET_SECONDS` grows;
        where no call has ended yet, so that their length is not known, it doubles while they wait.
PLAN-3  A family that no live host lists is given none, because nothing would start.
PLAN-4  Executors that keep failing come ever more rarely, up to a minute apart.
PLAN-5  A queued executor that no call waits for any more is cancelled.
PLAN-6  An executor whose GPU has the memory for none of the waiting calls is not counted as able to
        run them, because another GPU may have it. Nor is an executor counted whose call waits for
        another call, or runs for long while other calls have waited for `DOUBLING_SECONDS`.
PLAN-7  An executor whose call waits for another call lends its CPU slot, never its GPUs: where
        calls wait and no free slot is left for them, an executor without a slot is started beside
        it. At most as many are started so as calls wait for other calls.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.core.calls.values import Family

TARGET_SECONDS = 4.0
"""The time in which the waiting calls of a family should be done; starting Python costs a fraction
of it."""
DOUBLING_SECONDS = 2.0
ASSUMED_SECONDS, ASSUMED_GPU_SECONDS = 0.02, 1.0
MAX_FAILURE_SECONDS = 60.0
MAX_SUBMITTED = 256
"""Most executors submitted in one round, over all families."""


class CallsNeed(msgspec.Struct, frozen=True, kw_only=True):
    """The calls that wait for a family.

    ready: number of waiting calls of all its models. head_age_seconds: time that the oldest of them
    has waited. mean_seconds: mean duration of its recent calls, 0 where none has ended lately.
    """

    family: Family
    ready: int
    head_age_seconds: float = 0.0
    mean_seconds: float = 0.0


class FamilyState(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a family's live executors.

    queued: not placed yet; starting: placed, not running. ahead: executors, in any of these states,
    that were started before there were calls. lent: executors, in any of these states, that borrow
    another's slot (PLAN-7). narrow: running executors that are not counted for the waiting calls
    (PLAN-6). failures: failed executors in a row; failed_seconds: time since the last failure.
    """

    running: int = 0
    starting: int = 0
    queued: int = 0
    ahead: int = 0
    narrow: int = 0
    lent: int = 0
    failures: int = 0
    failed_seconds: float = math.inf

    @property
    def live(self) -> int:
        """Return the number of executors in all three states."""
        return self.running + self.starting + self.queued


class FamilyRoom(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on a family's executors.

    slots: number of executors that would fit on the hosts that list its app, if these were empty.
    listed: a live host or a pool lists the app. most: `executors_max`, None without a limit.
    """

    slots: int
    listed: bool = True
    most: int | None = None

    @property
    def bound(self) -> int:
        """Return the largest number of executors that the family may have."""
        return self.slots if self.most is None else min(self.slots, self.most)


class FamilyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The changes for one family, as numbers of executors.

    submit: executors to start because calls wait. lent: executors to start on a borrowed slot
    (PLAN-7). ahead: executors to start before there are calls. withdraw: queued executors to
    cancel.
    """

    family: Family
    submit: int = 0
    lent: int = 0
    ahead: int = 0
    withdraw: int = 0


def count_wanted(need: CallsNeed, state: FamilyState) -> int:
    """Return how many executors the ready calls need by PLAN-2 alone, without the other limits."""
    if need.ready == 0:
        return 0
    gpus = need.family.gpus > 0
    mean = need.mean_seconds or (ASSUMED_GPU_SECONDS if gpus else ASSUMED_SECONDS)
    wanted = max(1, math.ceil(need.ready * mean / TARGET_SECONDS))
    waits = need.head_age_seconds > DOUBLING_SECONDS
    if not need.mean_seconds and waits and state.starting + state.queued == 0:
        wanted = max(wanted, 2 * state.running)
    return min(wanted, state.running + need.ready)


def failure_delay_seconds(failures: int) -> float:
    """Return how long to wait after so many failed executors in a row (PLAN-4)."""
    return 0.0 if failures <= 1 else min(MAX_FAILURE_SECONDS, 2.0 ** min(failures - 1, 10))


def plan_family(
    need: CallsNeed, state: FamilyState, room: FamilyRoom, ahead: int = 0, lendable: int = 0
) -> FamilyPlan:
    """Return the changes for one family.

    ahead: number of executors to keep before there are calls. lendable: number of CPU slots, over
    all families, that executors with a waiting call could lend and have not lent (PLAN-7).
    """
    wanted = count_wanted(need, state)
    withdraw = 0
    if wanted == 0:
        withdraw = max(0, state.queued - max(0, ahead - state.running - state.starting))
    late = state.failed_seconds < failure_delay_seconds(state.failures)
    if not room.listed or late:
        return FamilyPlan(family=need.family, withdraw=withdraw)
    # Narrow executors cannot run the waiting calls (PLAN-6), and lent ones use no room (PLAN-7).
    wider = state.live - state.narrow
    left = room.bound - (state.live - state.lent)
    submit = max(0, min(wanted - wider, need.ready, left))
    missing = min(ahead - state.ahead, left - submit)
    lent = 0
    if not need.family.gpus and (left <= 0 or state.queued):
        serving = wider - state.queued
        lent = max(0, min(wanted - serving, need.ready, lendable))
    return FamilyPlan(
        family=need.family,
        submit=submit,
        lent=lent,
        ahead=max(0, missing) if withdraw == 0 else 0,
        withdraw=withdraw,
    )


def plan_executors(
    needs: Sequence[CallsNeed],
    states: Mapping[str, FamilyState],
    rooms: Mapping[str, FamilyRoom],
    ahead: int = 0,
    lendable: int = 0,
) -> list[FamilyPlan]:
    """Return the changes for every family, the family with the oldest waiting call first.

    states, rooms: by the family's name; a family that is not in `rooms` has no live host. ahead,
    lendable: as for `plan_family`; the families share `lendable`.
    """
    plans, left = [], MAX_SUBMITTED
    for need in sorted(needs, key=lambda n: (-n.head_age_seconds, n.family.name)):
        name = need.family.name
        room = rooms.get(name, FamilyRoom(slots=0, listed=False))
        plan = plan_family(need, states.get(name, FamilyState()), room, ahead, lendable)
        lendable -= plan.lent
        submit = min(plan.submit, left)
        more = min(plan.ahead, left - submit)
        left -= submit + more
        if submit or more or plan.lent or plan.withdraw:
            plans.append(msgspec.structs.replace(plan, submit=submit, ahead=more))
    return plans
