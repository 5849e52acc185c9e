"""What this replica heard of executors lately. All of it can be lost.

The length of calls tells the executors' loop how many are of use, and the models in memory are shown
with their hosts. Another replica may have heard more: neither is more than a hint.
"""

from collections.abc import Callable, Collection, Sequence

import msgspec

from holdfast.controller.runtime.calls.overlaps import OverExecutors, Overlap, add_recorded
from holdfast.controller.runtime.calls.slots import SlotsDesk
from holdfast.controller.runtime.hosts.group_commit import GroupCommit
from holdfast.controller.runtime.metrics import Metrics
from holdfast.controller.runtime.outages import Outages
from holdfast.controller.runtime.settings import SettingsCache
from holdfast.core.calls.feeds import fits_executor
from holdfast.core.ids import TaskKey
from holdfast.store.port.calls.calls import ExecutorTurn, ExecutorTurned, Feed
from holdfast.store.port.store import Store
from holdfast.wire.calls import ExecutorReport

FRESH_SECONDS = 90.0
"""Three of the longest polls."""
WORKED_SECONDS = 600.0
_SMOOTHING = 0.3
_MAX_EXECUTORS = 20_000


class HeardExecutor(msgspec.Struct, frozen=True):
    """An executor as it was last heard of. since: when it was heard of first."""

    host_id: str
    family: str
    loaded: str | None
    free_gb: float | None
    at: float
    since: float


class Told(msgspec.Struct, frozen=True):
    """What an executor was told that is repeated until it acts."""

    cancelled: frozenset[tuple[int, int]] = frozenset()
    killed: frozenset[tuple[int, int]] = frozenset()
    leave: bool = False


def must_be_judged(report: ExecutorReport) -> bool:
    """Return whether a policy decides what becomes of a call."""
    failed = any(end.error for each in report.ends for end in each.ends)
    return failed or report.closing is not None


class CallsDesk:
    """Hands turns of executors to the store, many in one transaction, and notes what they tell."""

    def __init__(
        self,
        store: Store,
        settings: SettingsCache,
        metrics: Metrics,
        outages: Outages,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._means: dict[str, float] = {}
        self._executors: dict[TaskKey, HeardExecutor] = {}
        self._told: dict[TaskKey, Told] = {}
        self._worked: dict[tuple[str, str], float] = {}  # family and host: when a call ended well
        self.slots = SlotsDesk(store, clock)
        self.refusals: dict[str, str] = {}
        """Family → why the store refused its executors."""
        self.exchanges = 0
        """How many there were; a request notes it at its arrival."""
        self._overlaps: dict[TaskKey, Overlap] = {}
        self._over = OverExecutors()
        self.turns = GroupCommit(
            "turn of an executor",
            lambda waiting: str(waiting[0].report.key),
            self._exchange,
            outages,
        )

    async def _exchange(
        self, waiting: Sequence[tuple[ExecutorTurn, int]]
    ) -> Sequence[ExecutorTurned]:
        judged = any(must_be_judged(turn.report) for turn, _ in waiting)
        # What only asks for calls, or tells of results, waits for no read of policies.
        settings = await (self._settings.current() if judged else self._settings.recent())
        self._over.note(turn.report for turn, _ in waiting)
        overlaps = [self._overlaps.setdefault(t.report.key, Overlap()) for t, _ in waiting]
        trimmed = [
            overlap.trim(self._over.trim(turn), arrived)
            for overlap, (turn, arrived) in zip(overlaps, waiting, strict=True)
        ]
        answers = await self._store.calls.exchange(
            [turn for turn, _ in trimmed],
            policy_of=settings.call_policy,
            rules=settings.rules,
            cold_wait_of=settings.cold_wait_seconds,
        )
        self.exchanges += 1
        found = []
        for overlap, (turn, repeated), answer in zip(overlaps, trimmed, answers, strict=True):
            overlap.note(answer, self.exchanges)
            self._metrics.calls.take(turn, answer)
            found.append(add_recorded(answer, repeated))
        return found

    def note(self, turn: ExecutorTurn, turned: ExecutorTurned) -> None:
        """Note one turn and its answer."""
        report = turn.report
        if any(not end.error for each in report.ends for end in each.ends):
            self._worked[turn.family, turn.host_id] = self._clock()
        if report.mean_seconds > 0:
            before = self._means.get(turn.family, report.mean_seconds)
            mean = before + _SMOOTHING * (report.mean_seconds - before)
            self._means[turn.family] = mean
        if turned.lost or report.key in self._over:
            self._executors.pop(report.key, None)
            self._told.pop(report.key, None)
            self._overlaps.pop(report.key, None)
        else:
            self._keep(turn)

    def _keep(self, turn: ExecutorTurn) -> None:
        if len(self._executors) >= _MAX_EXECUTORS:
            self._executors = {k: e for k, e in self._executors.items() if self._is_fresh(e)}
            self._told = {k: told for k, told in self._told.items() if k in self._executors}
            self._overlaps = {k: o for k, o in self._overlaps.items() if k in self._executors}
        report, now = turn.report, self._clock()
        before = self._executors.get(report.key)
        since = now if before is None else before.since
        self._executors[report.key] = HeardExecutor(
            turn.host_id, turn.family, report.loaded, report.free_gb, now, since
        )

    def is_news(self, report: ExecutorReport, turned: ExecutorTurned, *, leave: bool) -> bool:
        """Return whether the executor was not told yet to leave, or of these cancelled calls: it
        hears of them at once, and then with the next thing there is to say. A new agent was told
        nothing, and what an answer that was lost said is said again."""
        told = Told(frozenset(turned.cancelled), frozenset(turned.killed), leave)
        before = Told() if report.fresh else self._told.get(turned.key, Told())
        if told == Told():
            self._told.pop(turned.key, None)
        else:
            self._told[turned.key] = told
        known = told.cancelled <= before.cancelled and told.killed <= before.killed
        return not (known and told.leave <= before.leave)

    def find_working(self, family: str) -> frozenset[str]:
        """Return the hosts where calls of the family ended well lately, as far as was heard here."""
        now = self._clock()
        self._worked = {
            place: at for place, at in self._worked.items() if now - at < WORKED_SECONDS
        }
        return frozenset(host_id for name, host_id in self._worked if name == family)

    def mean_seconds(self, family: str) -> float:
        """Return how long a recent call of the family took, 0 where none is known."""
        return self._means.get(family, 0.0)

    def known_seconds(self, job_ids: Collection[str]) -> float:
        """Return for how long this replica has heard of these executors; 0 where of none."""
        found = [heard.since for key, heard in self._executors.items() if key.job_id in job_ids]
        return self._clock() - min(found) if found else 0.0

    def find_executors(self, family: str) -> dict[str, HeardExecutor]:
        """Return job → executor of the family, as far as this replica heard of them lately."""
        return {
            key.job_id: heard
            for key, heard in self._executors.items()
            if heard.family == family and self._is_fresh(heard)
        }

    def count_narrow(self, family: str, feeds: Sequence[Feed]) -> int:
        """Return how many executors of the family have the memory for none of the calls that wait."""
        found = self.find_executors(family).values() if feeds else ()
        return sum(
            not any(fits_executor(feed, heard.loaded, heard.free_gb) for feed in feeds)
            for heard in found
        )

    def find_models(self) -> dict[str, list[str]]:
        """Return host → the models in the memory of its executors, as far as this replica heard."""
        models: dict[str, set[str]] = {}
        for heard in self._executors.values():
            if heard.loaded and self._is_fresh(heard):
                models.setdefault(heard.host_id, set()).add(heard.loaded)
        return {host_id: sorted(names) for host_id, names in models.items()}

    def _is_fresh(self, heard: HeardExecutor) -> bool:
        return self._clock() - heard.at < FRESH_SECONDS

    async def close(self) -> None:
        """Let what is in flight end."""
        await self.turns.close()
