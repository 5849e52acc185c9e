"""Cut a lease into minutes whose milliseconds have one name each.

LEDGER-1  The names of a lease's milliseconds sum to the lease exactly, for all tallies that come, in
          any order, repeated or lost: a tally is only a weight inside the lease's time.
LEDGER-2  A millisecond that was counted is never counted again: an account goes on where it ended,
          and a name that proves wrong is taken back from the rows, never added beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from holdfast.core.ledger.tally import Tally
from holdfast.core.ledger.values import LedgerName

MINUTE_MS = 60_000
MAX_POINTS = 64
_UNBEATEN = (LedgerName.UNMEASURED_BUSY, LedgerName.UNMEASURED_IDLE)
_GUESSED = (*_UNBEATEN, LedgerName.KEPT)
"""Names that a lease gets before its first tally came."""
_KNOWN = frozenset(str(name) for name in LedgerName)
_OWN = frozenset({LedgerName.SETTING_UP, LedgerName.DRAINING, *_UNBEATEN})


class Interval(msgspec.Struct, frozen=True, gc=False):
    """A stretch of time in milliseconds since 1970, without its end."""

    since: int
    until: int


class TallyReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task's newest tally and the instant at which it came. final: it came with the end."""

    tally: Tally
    at_ms: int
    final: bool = False


class Lease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task's lease as the store has it: from its reservation to its confirmed end.

    ended_ms: None while it is held. started_ms: when its program started, as reported. beats: its
    beats are on record, so that it is measured, also before its first tally came.
    """

    begun_ms: int
    ended_ms: int | None = None
    started_ms: int | None = None
    beats: bool = False
    told: TallyReport | None = None


class Account(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How far a lease is counted, for one of its devices.

    until_ms: it is counted up to here. ms: what was counted, by name. base: what was counted before
    its agent began its tally anew. lead_ms: the time before its agent knew of it. total_ms: the
    total of the last tally. points: (milliseconds of kept work, step) along the way, for steps that
    a later attempt does again. ended: it is counted to its end.
    """

    until_ms: int
    ms: dict[str, int] = {}
    base: dict[str, int] = {}
    lead_ms: int | None = None
    total_ms: int = 0
    beaten: bool = False
    first_step: int | None = None
    points: list[tuple[int, int]] = []
    ended: bool = False


class MinutePiece(msgspec.Struct, frozen=True, gc=False):
    """Milliseconds of one name in the minute that begins at `at_ms`."""

    at_ms: int
    name: LedgerName
    ms: int


class Correction(msgspec.Struct, frozen=True):
    """Milliseconds that have another name than they were counted under, the newest first."""

    name: LedgerName
    to: LedgerName
    ms: int


class LeaseCount(msgspec.Struct, frozen=True):
    """The result of counting a lease: its next account, its pieces, and the seconds named anew."""

    account: Account
    pieces: list[MinutePiece] = []
    corrections: list[Correction] = []


def floor_minute(at_ms: int) -> int:
    """Return the start of the minute of an instant."""
    return at_ms - at_ms % MINUTE_MS


def split_minutes(since: int, until: int) -> Iterable[Interval]:
    """Yield an interval's parts, one for each minute."""
    while since < until:
        end = min(until, floor_minute(since) + MINUTE_MS)
        yield Interval(since, end)
        since = end


def apportion(whole: int, weights: Mapping[LedgerName, int]) -> dict[LedgerName, int]:
    """Divide `whole` by weights, of which one at least is positive, into integers that sum to it
    exactly: each gets its share rounded down, and the largest remainders get the rest."""
    heaviest = sum(weights.values())
    shares = {name: whole * weight // heaviest for name, weight in weights.items() if weight > 0}
    left = whole - sum(shares.values())
    order = sorted(shares, key=lambda name: -(whole * weights[name] % heaviest))
    for name in order[:left]:
        shares[name] += 1
    return {name: share for name, share in shares.items() if share}


def count_lease(
    account: Account | None, lease: Lease, until_ms: int, unfit: Sequence[Interval] = ()
) -> LeaseCount:
    """Count a lease up to `until_ms`, or to its end where that is earlier. account: None for a
    lease that is counted for the first time. unfit: when its host was in quarantine or in error."""
    if account is None:
        account = Account(until_ms=lease.begun_ms)
    end = until_ms if lease.ended_ms is None else min(until_ms, lease.ended_ms)
    end = max(end, account.until_ms)
    over = lease.ended_ms is not None and lease.ended_ms <= until_ms
    heard = _hear(account, lease)
    target = _aim(heard, lease, end)
    weights = {n: ms - heard.ms.get(n, 0) for n, ms in target.items() if ms > heard.ms.get(n, 0)}
    if not weights:
        weights = {_guess(lease): 1}
    counted = dict(heard.ms)
    pieces: list[MinutePiece] = []
    by_length: dict[int, dict[LedgerName, int]] = {}
    for part in split_minutes(account.until_ms, end):
        length = part.until - part.since
        shares = by_length.get(length) or by_length.setdefault(length, apportion(length, weights))
        for name, ms in shares.items():
            counted[name] = counted.get(name, 0) + ms
        pieces += _name_unfit(part, shares, unfit)
    corrections: list[Correction] = []
    tally = None if lease.told is None else lease.told.tally
    if tally is not None:
        first_beat = tally.beaten and not account.beaten
        names = tuple(LedgerName) if over else _GUESSED if first_beat else ()
        corrections = find_corrections(counted, target, names)
        for correction in corrections:
            counted[correction.name] -= correction.ms
            counted[correction.to] = counted.get(correction.to, 0) + correction.ms
    return LeaseCount(_keep(heard, tally, counted, end, over), pieces, corrections)


def _hear(account: Account, lease: Lease) -> Account:
    """Return the account with the newest tally in it: the time before the agent knew of the lease,
    and the count that an agent began anew."""
    told = lease.told
    if told is None:
        return account
    total, base, lead = told.tally.total_ms, account.base, account.lead_ms
    if lead is None:
        lead = max(0, told.at_ms - lease.begun_ms - total)
    if total < account.total_ms:
        base = {n: max(0, ms - told.tally.ms.get(n, 0)) for n, ms in account.ms.items()}
        lead = 0
    return msgspec.structs.replace(account, base=base, lead_ms=lead, total_ms=total)


def _aim(account: Account, lease: Lease, end: int) -> dict[LedgerName, int]:
    """Return what should be counted by name when the lease is counted up to `end`."""
    told = lease.told
    if told is None:
        started = end if lease.started_ms is None else min(lease.started_ms, end)
        busy = {_name_running(lease): end - started}
        return {LedgerName.SETTING_UP: max(0, started - lease.begun_ms), **busy}
    aim = {name: told.tally.ms.get(name, 0) + account.base.get(name, 0) for name in LedgerName}
    aim[LedgerName.SETTING_UP] += account.lead_ms or 0
    aim[_guess(lease)] += max(0, end - told.at_ms)
    return {name: ms for name, ms in aim.items() if ms}


def _guess(lease: Lease) -> LedgerName:
    """Return what a lease is spent on where no tally says more."""
    if lease.told is not None and lease.told.final:
        return LedgerName.DRAINING
    if lease.told is not None:
        now = lease.told.tally.now
        return LedgerName(now) if now in _KNOWN else LedgerName.UNMEASURED_BUSY
    return LedgerName.SETTING_UP if lease.started_ms is None else _name_running(lease)


def _name_running(lease: Lease) -> LedgerName:
    return LedgerName.KEPT if lease.beats else LedgerName.UNMEASURED_BUSY


def _name_unfit(
    part: Interval, shares: Mapping[LedgerName, int], unfit: Sequence[Interval]
) -> list[MinutePiece]:
    """Return a part's pieces, with the time in which the host was unfit taken from all names."""
    at, length = floor_minute(part.since), part.until - part.since
    bad = sum(max(0, min(part.until, u.until) - max(part.since, u.since)) for u in unfit)
    bad = min(bad, length)
    if not bad:
        return [MinutePiece(at, name, ms) for name, ms in shares.items()]
    good = apportion(length - bad, shares) if bad < length else {}
    return [
        MinutePiece(at, LedgerName.UNFIT, bad),
        *(MinutePiece(at, name, ms) for name, ms in good.items()),
    ]


def find_corrections(
    counted: Mapping[str, int], target: Mapping[LedgerName, int], names: Sequence[LedgerName]
) -> list[Correction]:
    """Return which milliseconds of `names` are to be named anew, so that what was counted comes as
    near to the target as it can."""
    corrections: list[Correction] = []
    short = {n: ms - counted.get(n, 0) for n, ms in target.items() if ms > counted.get(n, 0)}
    for name in names:
        over = counted.get(name, 0) - target.get(name, 0)
        for to in list(short):
            ms = min(over, short[to])
            if ms > 0:
                corrections.append(Correction(name, to, ms))
                over, short[to] = over - ms, short[to] - ms
    return corrections


def _keep(
    account: Account, tally: Tally | None, counted: dict[str, int], end: int, over: bool
) -> Account:
    beaten, first, points = account.beaten, account.first_step, account.points
    if tally is not None:
        beaten = beaten or tally.beaten
        first = tally.first_step if first is None else first
        points = _add_point(points, counted.get(LedgerName.KEPT, 0), tally)
    return msgspec.structs.replace(
        account,
        until_ms=end,
        ms={name: ms for name, ms in counted.items() if ms},
        beaten=beaten,
        first_step=first,
        points=points,
        ended=over,
    )


def _add_point(points: list[tuple[int, int]], kept_ms: int, tally: Tally) -> list[tuple[int, int]]:
    """Add where the work is now, and let every second point go where there are many."""
    if tally.step is None or tally.first_step is None:
        return points
    found = points or [(0, max(0, tally.first_step - 1))]
    if tally.step > found[-1][1]:
        found = [*found, (max(kept_ms, found[-1][0]), tally.step)]
    elif kept_ms > found[-1][0]:
        found = [*found[:-1], (kept_ms, found[-1][1])] if len(found) > 1 else found
    return found if len(found) <= MAX_POINTS else [*found[:-1:2], found[-1]]


def find_lost(account: Account, first_step: int) -> tuple[Account, int]:
    """Return an ended lease's account after a later attempt began with `first_step`, and the
    milliseconds of kept work that this attempt does again."""
    points, kept = account.points, account.ms.get(LedgerName.KEPT, 0)
    done = first_step - 1
    if not points or points[-1][1] <= done:
        return account, 0
    left = 0 if done <= points[0][1] else _read_kept(points, done)
    lost = max(0, kept - left)
    ms = {**account.ms, LedgerName.KEPT: kept - lost}
    ms[LedgerName.LOST] = ms.get(LedgerName.LOST, 0) + lost
    stays = [p for p in points if p[1] < done] or [points[0]]
    return msgspec.structs.replace(account, ms=ms, points=[*stays, (left, done)]), lost


def _read_kept(points: Sequence[tuple[int, int]], step: int) -> int:
    """Return how much work had been kept when the work reached `step`."""
    for (ms, low), (more, high) in pairwise(points):
        if low <= step <= high:
            return ms + (more - ms) * (step - low) // max(1, high - low)
    return points[-1][0]


def measure_by(tally: Tally, other: Tally) -> Tally:
    """Return the tally of a rank that sends no beats, with the names that `other`, the tally of a
    rank of the same gang that sends beats, gives to the gang's time."""
    unbeaten = sum(tally.ms.get(name, 0) for name in _UNBEATEN)
    weights = {n: other.ms.get(n, 0) for n in LedgerName if n not in _OWN and other.ms.get(n, 0)}
    if tally.beaten or not unbeaten or not weights:
        return tally
    ms = {name: count for name, count in tally.ms.items() if name not in _UNBEATEN}
    for name, share in apportion(unbeaten, weights).items():
        ms[name] = ms.get(name, 0) + share
    now = other.now if tally.now in _UNBEATEN else tally.now
    return Tally(ms=ms, now=now, beaten=True, first_step=other.first_step, step=other.step)
