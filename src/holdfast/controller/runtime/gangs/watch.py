"""Compare what ranks tell in syncs, and put suspects on record; and what tasks tell of work that stands
still.

- All of it is in memory and may be lost: a replica that was just started needs about thirty steps to find
  a slow rank again. Each replica compares the ranks whose hosts sync with it.
- A sync only leaves its reports here; they are judged beside it, once a second, by one turn at a time.
- The checksums of a rank that ended are compared before its end is written, because afterwards the job
  may be told as a success, and nothing is run again.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from holdfast.bounds import UNREADABLE
from holdfast.controller.runtime.gangs.acts import Acting, Rank, Unclear, WatchedGang
from holdfast.controller.runtime.outages import Outages
from holdfast.core.ids import TaskKey
from holdfast.core.stragglers.clock import HostClock
from holdfast.core.stragglers.values import Finding, PaceBlock, read_pace
from holdfast.core.stragglers.words import say_readings
from holdfast.errors import Unavailable
from holdfast.wire.agent import SyncRequest, TaskReport

log = logging.getLogger("holdfast.controller")

JUDGE_SECONDS = 1.0
GATHER_SECONDS = 10.0
"""The time in which the ranks of a gang tell that they stand still: two intervals of syncs."""
MAX_GANGS = 4096
MAX_CLOCKS = 65_536
MAX_INBOX = 65_536
MAX_UNCLEAR = 256
MAX_STILL = 65_536


class _SyncTold(msgspec.Struct, frozen=True):
    host_id: str
    heard_at: float
    sent_at: float
    round_trip: float | None
    tasks: Sequence[TaskReport]
    strain: str


class GangWatch:
    """Collects the reports of gangs' ranks, and judges them."""

    def __init__(self, acting: Acting, clock: Callable[[], float], outages: Outages) -> None:
        self._acting = acting
        self._clock = clock
        self._outages = outages
        self._inbox: list[_SyncTold] = []
        self._clocks: OrderedDict[str, HostClock] = OrderedDict()
        self._gangs: OrderedDict[str, WatchedGang] = OrderedDict()
        self._unclear: OrderedDict[str, Unclear] = OrderedDict()  # by job, for its next attempt
        self._turn = asyncio.Lock()
        self._still: dict[TaskKey, str] = {}  # the tasks that stand still, and why
        # Job → when its newest of them are written, and these; "" for a task that moves again.
        self._unwritten: dict[str, tuple[float, dict[TaskKey, str]]] = {}

    def keep_reports(self, host_id: str, request: SyncRequest, tasks: Sequence[TaskReport]) -> None:
        """Keep the parts of a sync's accepted reports that are about gangs; most syncs have
        none."""
        self._note_still(tasks)
        told = [t for t in tasks if t.pace or t.checksums or (t.state == "ended" and self._gangs)]
        if told and len(self._inbox) < MAX_INBOX:
            now = self._clock()
            strain = say_readings(request.gpus, request.strain)
            self._inbox.append(
                _SyncTold(host_id, now, request.sent_at, request.round_trip, told, strain)
            )

    async def run(self) -> None:
        """Judge what came, for ever."""
        while True:
            await asyncio.sleep(JUDGE_SECONDS)
            try:
                await self.judge()
            except Unavailable as error:
                self._outages.note_failure(error)
            except Exception:
                log.exception("what the ranks of gangs told could not be judged; it goes on")

    def _note_still(self, tasks: Sequence[TaskReport]) -> None:
        """Note which tasks began or ceased to stand still; most syncs tell of none."""
        for task in tasks:
            if bool(task.still) == (task.key in self._still):
                continue
            due = self._clock() + GATHER_SECONDS
            if task.still and len(self._still) < MAX_STILL:
                self._still[task.key] = task.still
            elif task.still or self._still.pop(task.key) is None or task.state == "ended":
                continue
            self._unwritten.setdefault(task.key.job_id, (due, {}))[1][task.key] = task.still

    async def compare_last(self, host_id: str, tasks: Sequence[TaskReport]) -> None:
        """Compare the last checksums of ranks that ended, before their ends are written."""
        last = [
            (gang, task)
            for task in tasks
            if task.state == "ended" and task.checksums
            if (gang := self._gangs.get(task.key.job_id)) is not None
            and gang.has(task.key, host_id)
        ]
        if not last:
            return
        try:
            async with self._turn:
                await self._judge(self._clock())
                for gang, task in last:
                    await self._acting.compare(gang, task.key.rank, task.checksums)
        except Unavailable as error:
            self._outages.note_failure(error)
        except Exception:
            log.exception("the last checksums of ranks could not be compared; their ends count")

    async def judge(self, now: float | None = None) -> None:
        """Judge the reports since the last call, and write the findings. now: on this watch's
        clock."""
        async with self._turn:
            await self._judge(self._clock() if now is None else now)

    async def _judge(self, now: float) -> None:
        inbox, self._inbox = self._inbox, []
        # In a thread, because a gang of thousands of ranks is tens of milliseconds of comparing.
        judged = await asyncio.to_thread(self._digest, inbox, now) if inbox else []
        for gang, findings in judged:
            for finding in findings:
                await self._acting.take_finding(gang, finding)
            for rank, checksums in gang.take_checksums():
                await self._acting.compare(gang, rank, checksums)
        for job_id in [job for job, (due, _) in self._unwritten.items() if due <= now]:
            _, found = self._unwritten.pop(job_id)
            await self._acting.tell_still(job_id, found)
        for gang in list(self._gangs.values()):
            if gang.told:
                await self._acting.act_on_slow(gang, now)

    def _digest(
        self, inbox: Sequence[_SyncTold], now: float
    ) -> list[tuple[WatchedGang, list[Finding]]]:
        """Give each gang's judge the reports of its ranks, and return the findings."""
        touched: dict[str, WatchedGang] = {}
        for told in inbox:
            self._sort(told, touched)
        return [(gang, gang.judge.judge(now)) for gang in touched.values()]

    def _forget(self, gang: WatchedGang) -> None:
        """Forget an attempt that is over, but keep a disagreement of its checksums, which the next
        attempt may settle."""
        self._gangs.pop(gang.job_id, None)
        if gang.unclear is not None:
            self._unclear[gang.job_id] = gang.unclear
            if len(self._unclear) > MAX_UNCLEAR:
                self._unclear.popitem(last=False)

    def _sort(self, told: _SyncTold, touched: dict[str, WatchedGang]) -> None:
        clock = self._clocks.setdefault(told.host_id, HostClock())
        self._clocks.move_to_end(told.host_id)
        if len(self._clocks) > MAX_CLOCKS:
            self._clocks.popitem(last=False)
        clock.note_sync(told.heard_at, told.sent_at, told.round_trip)
        sent_at, error = clock.translate(told.sent_at)
        for task in told.tasks:
            key = task.key
            if task.state == "ended":
                gang = self._gangs.get(key.job_id)
                if gang is not None and gang.has(key, told.host_id):
                    gang.ended.add(key.rank)
                    if gang.ended >= gang.ranks.keys():
                        self._forget(gang)
                        touched.pop(key.job_id, None)
                continue
            gang = self._gangs.get(key.job_id)
            if gang is None or gang.is_older(key):
                if gang is not None:
                    self._forget(gang)
                unclear = self._unclear.pop(key.job_id, None)
                gang = self._gangs[key.job_id] = WatchedGang(key.job_id, unclear)
            self._gangs.move_to_end(key.job_id)
            if len(self._gangs) > MAX_GANGS:
                self._gangs.popitem(last=False)
            touched[key.job_id] = gang
            gang.ranks[key.rank] = Rank(key.epoch, told.host_id, told.strain)
            gang.judge.add_blocks(key.rank, _read_pace(task), told.heard_at, sent_at, error)
            if task.checksums:
                gang.checksums.append((key.rank, task.checksums))


def _read_pace(task: TaskReport) -> list[PaceBlock]:
    """Return the blocks that a report tells; none where they cannot be read, because one agent must
    not keep the others' gangs from being judged."""
    try:
        return read_pace(task.pace)
    except UNREADABLE as error:
        log.warning(
            f"what a rank told of its pace cannot be read: {error}", extra={"job": task.key.job_id}
        )
        return []
