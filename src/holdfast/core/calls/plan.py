"""How many executors each family should have. Pure.

PLAN-1  Never more executors than `executors_max`, than the hosts that list the app hold at all, or
        than there are calls, ready or in hand. Those that start count like those that run.
PLAN-2  A family whose calls take so long that they would wait longer than `TARGET_SECONDS` grows;
        where no call has ended yet, so that their length is not known, it doubles while they wait.
PLAN-3  A family that no live host lists is given none, because nothing would start.
PLAN-4  Executors that keep failing come ever more rarely, up to a minute apart.
PLAN-5  A place in the queue that nothing waits for any more is given back.
PLAN-6  An executor whose GPU has the memory for none of the calls that wait counts for none of them,
        because another GPU may have it. Nor does one whose call waits for another, or runs for long
        while others have waited for `DOUBLING_SECONDS`.
PLAN-7  Such a waiting executor lends its CPU slot, never its GPUs: where calls wait and no slot of
        their own is to be had, an executor without one is started beside it, and as many at most as
        calls wait for others.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.core.calls.values import Family

TARGET_SECONDS = 4.0
"""What waits should be done in so long; starting Python costs a fraction of it."""
DOUBLING_SECONDS = 2.0
ASSUMED_SECONDS, ASSUMED_GPU_SECONDS = 0.02, 1.0
MAX_FAILURE_SECONDS = 60.0
MAX_SUBMITTED = 256
"""Executors submitted in one round, over all families."""


class CallsNeed(msgspec.Struct, frozen=True, kw_only=True):
    """What waits for a family. ready: its calls over all models; head_age_seconds: of the oldest.

    mean_seconds: of a recent call; 0 where none has ended lately.
    """

    family: Family
    ready: int
    head_age_seconds: float = 0.0
    mean_seconds: float = 0.0


class FamilyState(msgspec.Struct, frozen=True, kw_only=True):
    """The live executors of a family. queued: without a place yet; starting: placed, not running.

    ahead: of all of them, those that were started before there were calls. narrow: of those that
    run, the ones with memory for none of the calls that wait, or whose call keeps them from others.
    lent: of all of them, those without a slot of their own (PLAN-7). failures: ends in a row that
    were no success; failed_seconds: since the last.
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
        """All of them."""
        return self.running + self.starting + self.queued


class FamilyRoom(msgspec.Struct, frozen=True, kw_only=True):
    """How many executors of a family there is room for on the hosts that list its app, if they were
    empty; most: `executors_max`, None without one. listed: some live host, or a pool, lists it."""

    slots: int
    listed: bool = True
    most: int | None = None

    @property
    def bound(self) -> int:
        """The most that are of use."""
        return self.slots if self.most is None else min(self.slots, self.most)


class FamilyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about one family. lent: executors without a slot of their own. withdraw: of the
    queued ones, how many are to be cancelled."""

    family: Family
    submit: int = 0
    lent: int = 0
    ahead: int = 0
    withdraw: int = 0


def count_wanted(need: CallsNeed, state: FamilyState) -> int:
    """Return how many executors the ready calls are worth, beside nothing but PLAN-2."""
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
    """Return what to do about one family. ahead: how many are kept before there are calls. lendable:
    slots that waiting executors of any family lend and no other has."""
    wanted = count_wanted(need, state)
    withdraw = 0
    if wanted == 0:
        withdraw = max(0, state.queued - max(0, ahead - state.running - state.starting))
    late = state.failed_seconds < failure_delay_seconds(state.failures)
    if not room.listed or late:
        return FamilyPlan(family=need.family, withdraw=withdraw)
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
    """Return what to do about every family, those whose calls wait longest first.

    states, rooms: by the family's name; a family without room is on no live host. lendable: as of
    `plan_family`, for all of them together.
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
