"""The recent reports of executors to this replica. All of it can be lost.

The length of calls tells the executors' loop how many executors are of use, and the models in
memory are shown with their hosts. Another replica may have received more reports, so both are only
hints.
"""

from collections.abc import Callable, Collection, Sequence

import msgspec

from holdfast.controller.runtime.calls.overlaps import OverExecutors, Overlap, add_recorded
from holdfast.controller.runtime.calls.slots import WantedSlots
from holdfast.controller.runtime.hosts.group_commit import GroupCommit
from holdfast.controller.runtime.metrics import Metrics
from holdfast.controller.runtime.outages import Outages
from holdfast.controller.runtime.settings import SettingsCache
from holdfast.core.calls.feeds import fits_executor
from holdfast.core.ids import TaskKey
from holdfast.store.postgres.calls.values import ExecutorTurn, ExecutorTurned, Feed
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire.calls import ExecutorReport

FRESH_SECONDS = 90.0
"""The age up to which a report counts: three of the longest polls."""
WORKED_SECONDS = 600.0
_SMOOTHING = 0.3
_MAX_EXECUTORS = 20_000


class HeardExecutor(msgspec.Struct, frozen=True):
    """An executor as it was last reported. at, since: when it was reported last and first."""

    host_id: str
    family: str
    loaded: str | None
    free_gb: float | None
    at: float
    since: float


class ExecutorInstructions(msgspec.Struct, frozen=True):
    """The instructions of one executor, which each answer repeats until it acts."""

    cancelled: frozenset[tuple[int, int]] = frozenset()
    killed: frozenset[tuple[int, int]] = frozenset()
    leave: bool = False


def must_be_judged(report: ExecutorReport) -> bool:
    """Return whether the retry policy must decide about a call of the report: one that failed, or
    that its closing executor gave up."""
    failed = any(end.error for each in report.ends for end in each.ends)
    return failed or report.closing is not None


class ReportedCalls:
    """Hands turns of executors to the store, many in one transaction, and notes what they tell."""

    def __init__(
        self,
        store: PostgresStore,
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
        self._instructions: dict[TaskKey, ExecutorInstructions] = {}
        self._worked: dict[tuple[str, str], float] = {}  # family and host: when a call ended well
        self.slots = WantedSlots(store, clock)
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
        # A report that only asks for calls or brings results waits for no read of policies.
        settings = await (self._settings.current() if judged else self._settings.recent())
        self._over.note_executors(turn.report for turn, _ in waiting)
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
            overlap.note_answer(answer, self.exchanges)
            self._metrics.calls.count_report(turn, answer)
            found.append(add_recorded(answer, repeated))
        return found

    def note_report(self, turn: ExecutorTurn, turned: ExecutorTurned) -> None:
        """Note one report of an executor, and the answer to that report."""
        report = turn.report
        if any(not end.error for each in report.ends for end in each.ends):
            self._worked[turn.family, turn.host_id] = self._clock()
        if report.mean_seconds > 0:
            before = self._means.get(turn.family, report.mean_seconds)
            mean = before + _SMOOTHING * (report.mean_seconds - before)
            self._means[turn.family] = mean
        if turned.lost or report.key in self._over:
            self._executors.pop(report.key, None)
            self._instructions.pop(report.key, None)
            self._overlaps.pop(report.key, None)
        else:
            self._keep(turn)

    def _keep(self, turn: ExecutorTurn) -> None:
        if len(self._executors) >= _MAX_EXECUTORS:
            self._executors = {k: e for k, e in self._executors.items() if self._is_fresh(e)}
            self._instructions = {
                key: given for key, given in self._instructions.items() if key in self._executors
            }
            self._overlaps = {k: o for k, o in self._overlaps.items() if k in self._executors}
        report, now = turn.report, self._clock()
        before = self._executors.get(report.key)
        since = now if before is None else before.since
        self._executors[report.key] = HeardExecutor(
            turn.host_id, turn.family, report.loaded, report.free_gb, now, since
        )

    def is_news(self, report: ExecutorReport, turned: ExecutorTurned, *, leave: bool) -> bool:
        """Return whether the answer carries an instruction to the executor for the first time: to
        leave, or to cancel or kill a call. The host's request is answered at once then; later
        answers repeat the instruction until the executor acts. A new agent (`report.fresh`) has
        received none."""
        given = ExecutorInstructions(frozenset(turned.cancelled), frozenset(turned.killed), leave)
        before = ExecutorInstructions()
        if not report.fresh:
            before = self._instructions.get(turned.key, before)
        if given == ExecutorInstructions():
            self._instructions.pop(turned.key, None)
        else:
            self._instructions[turned.key] = given
        known = given.cancelled <= before.cancelled and given.killed <= before.killed
        return not (known and given.leave <= before.leave)

    def find_working(self, family: str) -> frozenset[str]:
        """Return the hosts where calls of the family ended well recently, according to the reports
        to this replica."""
        now = self._clock()
        self._worked = {
            place: at for place, at in self._worked.items() if now - at < WORKED_SECONDS
        }
        return frozenset(host_id for name, host_id in self._worked if name == family)

    def mean_seconds(self, family: str) -> float:
        """Return how long a recent call of the family took, 0 where none is known."""
        return self._means.get(family, 0.0)

    def known_seconds(self, job_ids: Collection[str]) -> float:
        """Return the seconds since the first report of any of these executors; 0 where none
        reported."""
        found = [heard.since for key, heard in self._executors.items() if key.job_id in job_ids]
        return self._clock() - min(found) if found else 0.0

    def find_executors(self, family: str) -> dict[str, HeardExecutor]:
        """Return job id → executor of the family, from the recent reports to this replica."""
        return {
            key.job_id: heard
            for key, heard in self._executors.items()
            if heard.family == family and self._is_fresh(heard)
        }

    def count_narrow(self, family: str, feeds: Sequence[Feed]) -> int:
        """Return how many executors of the family lack the memory for every call that waits."""
        found = self.find_executors(family).values() if feeds else ()
        return sum(
            not any(fits_executor(feed, heard.loaded, heard.free_gb) for feed in feeds)
            for heard in found
        )

    def find_models(self) -> dict[str, list[str]]:
        """Return host id → the models in the memory of its executors, from the reports to this
        replica."""
        models: dict[str, set[str]] = {}
        for heard in self._executors.values():
            if heard.loaded and self._is_fresh(heard):
                models.setdefault(heard.host_id, set()).add(heard.loaded)
        return {host_id: sorted(names) for host_id, names in models.items()}

    def _is_fresh(self, heard: HeardExecutor) -> bool:
        return self._clock() - heard.at < FRESH_SECONDS

    async def close(self) -> None:
        """Wait for the end of the exchanges in progress."""
        await self.turns.close()
