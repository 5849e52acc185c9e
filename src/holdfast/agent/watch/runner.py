"""Run the watchdogs: read beats, take samples when a watch wants them, report trips.

`core.watchdogs` decides; this module reads sockets and clocks and calls it in order.

- Every live task's watch decides at least every 5 s, with or without a sample, so that a probe that
  hangs delays no time limit.
- A watch is saved at once when it changes in kind (armed, in another section, tripped), and every
  `SAVE_SECONDS` otherwise, so that the next agent goes on where this one was killed.
"""

import asyncio
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Sequence

from holdfast.agent.probes import Probe, Probed
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.watch.pace import PASSED_BYTES, find_sender, note_loss, note_pace, pass_senders
from holdfast.bounds import UNREADABLE
from holdfast.core.causes import Watchdog
from holdfast.core.facts import Trip
from holdfast.core.ids import TaskKey
from holdfast.core.progress.pace import StepMeter
from holdfast.core.states import AgentTaskState
from holdfast.core.watchdogs import LeavingSoon, Rearmed, StandsStill
from holdfast.process.syscalls import read_boottime
from holdfast.wire.agent import Excused
from holdfast.wire.beat import MAX_DATAGRAM_BYTES, Beat, decode_beat

log = logging.getLogger("holdfast.agent.watch")

SAVE_SECONDS = 2.0
LOOK_SECONDS = 1.0
PRINTED_SECONDS = 10.0
"""How often the end of a task's output is read for a counter, where the output grew."""
_BATCH = 512
_STALLS = (Watchdog.STALL, Watchdog.GPU_HEALTH)
_KEPT_BEATS = 20
_MIN_SAMPLE_SECONDS = 0.02
_BAD_LOG_SECONDS = 60.0


class WatchRunner:
    """Runs the watches of all tasks.

    trip: called once for each trip. first_beat: called at a task's first beat, and when a rank
    begins to wait for another (EXCUSE-1). saved: called when a task says that it saved a
    checkpoint. look: called before a task is judged, because an executor's watch may belong to
    another call by now; returns True if the task has to be judged often. tell: called with a sentence
    for the users in a task. idle: returns True if a task's GPUs were read and did nothing.
    """

    def __init__(
        self,
        table: TaskTable,
        probe: Probe,
        *,
        trip: Callable[[AgentTask, Trip], None],
        first_beat: Callable[[], None],
        saved: Callable[[AgentTask], None] = lambda task: None,
        look: Callable[[AgentTask, float], bool] = lambda task, now: False,
        tell: Callable[[AgentTask, str], None] = lambda task, sentence: None,
        idle: Callable[[AgentTask], bool] = lambda task: False,
    ) -> None:
        self._table = table
        self._probe = probe
        self._trip = trip
        self._first_beat = first_beat
        self._saved = saved
        self._look = look
        self._tell = tell
        self._idle = idle
        self._poke = asyncio.Event()
        self._sampling: asyncio.Task[None] | None = None
        self._sampled_at: dict[TaskKey, float] = {}
        self._keys: dict[str, AgentTask] = {}
        self.bad_datagrams = 0
        self._bad_said_at = -math.inf

    def poke(self) -> None:
        """Have the watches decide soon, because something changed."""
        self._poke.set()

    # ---- beats

    def listen(self, fd: int) -> None:
        """Read beats from the guardian's socket, which keeps them while no agent lives."""
        os.set_blocking(fd, False)
        self._beats = socket.socket(fileno=fd)
        pass_senders(self._beats)
        asyncio.get_running_loop().add_reader(fd, self.read_beats)

    def read_beats(self) -> None:
        """Read a batch of beats; the event loop calls again for the rest."""
        now = read_boottime()
        for _ in range(_BATCH):
            try:
                data, told, _, _ = self._beats.recvmsg(MAX_DATAGRAM_BYTES + 1, PASSED_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._note_bad(f"the beat socket failed: {error}")
                return
            self.take_beat(data, now, find_sender(told))

    def take_beat(self, data: bytes, now: float, sender: int = 0) -> None:
        """Process one datagram of the process `sender`; count and drop it if it is bad."""
        if len(data) > MAX_DATAGRAM_BYTES:
            self._note_bad("a beat is over the limit of its size")
            return
        try:
            beat = decode_beat(data)
        except UNREADABLE as error:
            self._note_bad(f"a beat cannot be read: {error}")
            return
        task = self._find(beat.task)
        if task is None:
            self._note_bad(f"a beat of {beat.task[:64]!r}, which does not run here")
            return
        if beat.checkpoint:
            task.count_save(now, beat.took)
            self._saved(task)
            return
        if beat.counts:
            task.counts = beat.counts
            return
        self._apply(task, beat, now)
        note_pace(task, beat, now, sender)

    def _find(self, text: str) -> AgentTask | None:
        task = self._keys.pop(text, None)
        if task is None or not task.live:
            try:
                task = self._table.get(TaskKey.parse(text))
            except ValueError:
                return None
            if task is None or not task.live:
                return None
        self._keys[text] = task
        return task

    def _apply(self, task: AgentTask, beat: Beat, now: float) -> None:
        self._look(task, now)
        watch = task.watch
        before = (watch.last_beat is None, watch.section, watch.suspected)
        watch.beat(
            now,
            step=beat.step,
            total=beat.total,
            section=beat.section,
            timeout=beat.timeout,
            leave=beat.leave,
        )
        if before[0]:
            task.steps = StepMeter()  # of other work, where the task is an executor
        if beat.step is not None:
            task.steps.beat(now, beat.step)
        task.note_progress(now)
        task.count_beat(now)
        note_loss(task, beat)
        task.dirty = True
        task.beats.append((now, beat))
        del task.beats[:-_KEPT_BEATS]
        after = (watch.last_beat is None, watch.section, watch.suspected)
        if after != before:
            self._table.save(task, now)
            self._poke.set()
            if before[0]:
                self._first_beat()

    def _note_bad(self, sentence: str) -> None:
        self.bad_datagrams += 1
        now = time.monotonic()
        if now - self._bad_said_at >= _BAD_LOG_SECONDS:
            self._bad_said_at = now
            log.warning(f"{sentence} ({self.bad_datagrams} dropped so far)")

    # ---- ticks and samples

    async def run(self) -> None:
        """Watch the tasks for ever."""
        try:
            while True:
                self._poke.clear()
                pause = self.turn(read_boottime())
                try:
                    async with asyncio.timeout(pause):
                        await self._poke.wait()
                except TimeoutError:
                    pass
        finally:
            if self._sampling is not None:
                self._sampling.cancel()

    def turn(self, now: float) -> float | None:
        """Judge and sample the tasks that are due; return the seconds until the next turn, or
        None."""
        next_at = math.inf
        due: list[AgentTask] = []
        self._excuse_ranks()
        for task in self._table:
            if task.state is not AgentTaskState.RUNNING or task.watch.trip is not None:
                continue
            task.idle = self._idle(task)
            task.count_time(now)
            self._ask(task, now)
            if self._look(task, now):
                next_at = min(next_at, now + LOOK_SECONDS)
            elif now - task.printed_at >= PRINTED_SECONDS:
                task.read_printed(now)
            self._say(task, now)
            if task.watch.trip is not None:
                continue
            next_at = min(next_at, task.watch.wake_at(now))
            sample_at = self._find_sample_time(task)
            if sample_at <= now + 0.002:
                due.append(task)
            else:
                next_at = min(next_at, sample_at)
            if task.dirty and now - task.saved_at >= SAVE_SECONDS:
                self._table.save(task, now)
            elif task.dirty:
                next_at = min(next_at, task.saved_at + SAVE_SECONDS)
        if due and self._sampling is None:
            self._sampling = asyncio.create_task(self._sample(due))
            self._sampling.add_done_callback(self._end_sampling)
        if math.isinf(next_at) and not due:
            return None
        return max(0.001, min(next_at, now + 5.0) - now)

    def _excuse_ranks(self) -> None:
        """Excuse the silence of a gang's ranks while another of its ranks on this host is in a
        section (EXCUSE-1)."""
        until: dict[str, float] = {}
        for task in self._table:
            if task.live and task.watch.section is not None:
                job_id = task.key.job_id
                until[job_id] = max(task.watch.excuses_until(), until.get(job_id, -math.inf))
        for task in self._table if until else ():
            if task.live and task.key.job_id in until:
                task.watch.excuse(until[task.key.job_id])

    def _ask(self, task: AgentTask, now: float) -> None:
        """Have the agent ask the controller at once, when a rank first needs to know whether
        another rank's section excuses its silence (EXCUSE-1)."""
        waits = task.needs_excuse(now)
        if waits and not task.asked_excuse:
            self._first_beat()
        task.asked_excuse = waits

    def take_excuses(self, excused: Sequence[Excused], since: float) -> None:
        """Excuse the silence of ranks that wait for a rank on another host, for the seconds that
        the controller says. The seconds count from `since`."""
        for each in excused:
            task = self._table.get(each.key)
            if task is not None and task.live:
                task.watch.excuse(since + each.seconds)

    def _find_sample_time(self, task: AgentTask) -> float:
        wish = task.watch.wants_sample()
        if wish is None:
            return math.inf
        # A reading that came too early to count must not be asked for again at once.
        interval = task.watch.settings.stall_sample_interval_seconds
        gap = max(_MIN_SAMPLE_SECONDS, 0.25 * interval if wish.fast else 0.0)
        return max(wish.at, self._sampled_at.get(task.key, -math.inf) + gap)

    def _say(self, task: AgentTask, now: float) -> None:
        for verdict in task.watch.tick(now):
            if isinstance(verdict, Trip):
                why = f"the {verdict.watchdog} watchdog tripped: {verdict.reason}"
                log.warning(why, extra=task.about(**verdict.evidence))
                if verdict.watchdog in _STALLS:
                    task.count_stall(now)
                self._table.save(task, now)
                self._trip(task, verdict)
            elif isinstance(verdict, LeavingSoon):
                log.info(verdict.reason, extra=task.about())
                self._table.save(task, now)
                self._tell(task, verdict.reason)
            elif isinstance(verdict, StandsStill):
                log.warning(verdict.reason, extra=task.about(**verdict.evidence))
                self._first_beat()
            elif isinstance(verdict, Rearmed):
                log.info(f"not stalled: {verdict.reason}", extra=task.about(**verdict.evidence))
            else:
                log.info(verdict.reason, extra=task.about())

    async def _sample(self, tasks: list[AgentTask]) -> None:
        asked_at = read_boottime()
        wanted = [Probed(task.key, task.pid, task.gpus) for task in tasks]
        samples = await self._probe.sample(wanted)
        now = read_boottime()
        for task in tasks:
            self._sampled_at[task.key] = asked_at
            found = samples.get(task.key)
            if found is not None and task.live:
                task.watch.sample(now, found.reading, owns_whole_box=found.owns_whole_box)

    def _end_sampling(self, sampling: asyncio.Task[None]) -> None:
        self._sampling = None
        if not sampling.cancelled() and sampling.exception() is not None:
            log.error("a probe failed", exc_info=sampling.exception())
        self._poke.set()

    def forget(self, key: TaskKey) -> None:
        """Forget a task that ended."""
        self._sampled_at.pop(key, None)
        self._keys.pop(str(key), None)
        self._probe.forget(key)
