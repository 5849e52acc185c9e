"""Carry calls between the executors of this host and the controller, by one long poll for all.

CALLS-1  The end of an executor is reported here before its task's end is: with the ends of calls
         that it had sent, and with the call that ran, which its place file names (`Closing`). An
         agent that took over reads the same file.
CALLS-2  While the controller is away, executors go on with the calls that they have, the agent
         keeps the ends, and the poll is tried ever more rarely.
CALLS-3  After a batch was sent to an executor, the next request waits for `GAP_SECONDS`, because it
         would have nothing to report, and the ends of short calls would wait for its answer. If
         another executor wants calls, it waits for `SHORT_GAP_SECONDS`, because more may be ready.
"""

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from holdfast.agent.calls.apps import AppTrials
from holdfast.agent.calls.lines import ExecutorLine, ExecutorLines, drop_recorded, fit_ends
from holdfast.agent.calls.places import read_place
from holdfast.agent.calls.rooms import UNBOUND, ModelRoom, ModelRooms
from holdfast.agent.offload import Asides, run_aside
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.uplink.calls import ControllerCalls
from holdfast.agent.watch.kills import Kills
from holdfast.agent.watch.runner import WatchRunner
from holdfast.bounds import UNREADABLE
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.watchdogs.lost_lease import BY_CALLS
from holdfast.core.watchdogs.watch import LastBeat
from holdfast.errors import Conflict, Forbidden, HoldfastError, TooLarge, ValidationError
from holdfast.process.syscalls import read_boottime
from holdfast.wire.calls import (
    PHASE_CALLING,
    PHASE_IDLE,
    PHASE_LOADING,
    PHASE_UNLOADING,
    AgentFrame,
    BlobDone,
    CallsAnswer,
    CallSave,
    CallsRequest,
    Closing,
    ExecutorAnswer,
    ExecutorFrame,
    ExecutorReport,
    SaveDone,
)
from holdfast.wire.frames import FrameReader

log = logging.getLogger("holdfast.agent.calls")

WAIT_SECONDS = 20.0
_MODEL_PHASES = (PHASE_LOADING, PHASE_UNLOADING)
_IN_FLIGHT = 2
_AGAIN_SECONDS = (0.1, 5.0)
_ECHO_SECONDS = (0.005, 0.5)
GAP_SECONDS = 0.005
SHORT_GAP_SECONDS = 0.002
_EOF_SECONDS = 2.0
_SAVE_SECONDS = 30.0
_SAVE_AGAIN_SECONDS = 0.5
_REFUSALS = (Conflict, Forbidden, TooLarge, ValidationError)
_LAST_SECONDS = 3.0
_READ_BYTES = 1 << 18
_decode = msgspec.msgpack.Decoder(ExecutorFrame).decode

BlobMover = Callable[[str, str], None]
"""Moves the blob of a SHA-256, to "fetch" or "keep" it; blocks; raises HoldfastError or OSError."""

CheckpointMover = Callable[[TaskKey, CallSave], bool]
"""Moves a checkpoint; returns False if there is none; blocks; raises HoldfastError or OSError."""


@dataclass(eq=False)
class Executors:
    """Serves all executors of this host.

    move_blob: moves large values. move_checkpoint: moves the checkpoints of calls. lines: the
    connections of the executors. rooms: the memory that their models may use. apps: the apps that
    fail here.
    """

    table: TaskTable
    calls: ControllerCalls
    incarnation: str
    move_blob: BlobMover
    move_checkpoint: CheckpointMover
    lines: ExecutorLines
    rooms: ModelRooms
    watching: WatchRunner
    kills: Kills
    apps: AppTrials
    _closings: dict[TaskKey, tuple[ExecutorReport, asyncio.Event]] = field(default_factory=dict)
    _asides: Asides = field(default_factory=Asides)
    _warned: set[tuple[TaskKey, int, int]] = field(default_factory=set)
    _server: asyncio.Server | None = None
    _away: bool = False
    _closed: bool = False
    _seq: int = field(default_factory=lambda: int(read_boottime() * 1000))

    async def open(self, address: str) -> None:
        """Listen for executors. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address)  # an earlier agent's socket
        self._server = await asyncio.start_unix_server(self._serve, address)
        os.chmod(address, 0o600)

    async def close(self) -> None:
        """Stop listening, and close every connection."""
        if self._server is not None:
            self._server.close()
        for line in self.lines.known.values():
            if line.writer is not None:
                line.writer.close()

    # ---- executors

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames, line = FrameReader(), None
        try:
            while data := await reader.read(_READ_BYTES):
                for body in frames.feed(data):
                    frame = _decode(body)
                    if frame.hello:
                        line = self._find_line(frame.task)
                        if line is None:
                            return
                        line.connect(writer)
                    if line is not None:
                        self._hear(line, frame)
        except (OSError, ValidationError, *UNREADABLE) as error:
            log.warning(f"the line of an executor ended: {error}")
        finally:
            if line is not None:
                line.disconnect(writer)
            writer.close()

    def _find_line(self, text: str) -> ExecutorLine | None:
        """Return the line of a living executor by its task's key."""
        with contextlib.suppress(ValueError):
            key = TaskKey.parse(text)
            task = self.table.get(key)
            if task is not None and task.live and task.order is not None and task.order.executor:
                return self.lines.known.setdefault(key, ExecutorLine(key))
        log.warning(f"{text[:64]!r} is no executor of this host; its line is closed")
        return None

    def _hear(self, line: ExecutorLine, frame: ExecutorFrame) -> None:
        line.receive_frame(frame)
        if any(not end.error for each in frame.ends for end in each.ends):
            self.apps.note_success(self.table.get(line.key))
        for way, asked in (("fetch", frame.fetch), ("keep", frame.keep)):
            for sha256 in asked:
                self._asides.start(self._move_blob(line, way, sha256))
        for save in frame.saves:
            self._asides.start(self._move_checkpoint(line, save))
        self.lines.news.set()
        if frame.hello:
            self.watching.poke()
            self.rooms.poke()

    async def _move_blob(self, line: ExecutorLine, way: str, sha256: str) -> None:
        error = None
        try:
            await run_aside(lambda: self.move_blob(way, sha256))
        except (HoldfastError, OSError) as failure:
            error = str(failure)[:1000]
        line.send_frame(AgentFrame(blobs=[BlobDone(sha256=sha256, error=error)]))

    async def _move_checkpoint(self, line: ExecutorLine, save: CallSave) -> None:
        """Move a checkpoint, and tell the executor; try for `_SAVE_SECONDS` if the controller is
        away."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _SAVE_SECONDS
        while True:
            try:
                found = await run_aside(lambda: self.move_checkpoint(line.key, save))
                done = SaveDone(save=save, found=found)
                break
            except (HoldfastError, OSError) as error:
                refused = isinstance(error, _REFUSALS)
                done = SaveDone(save=save, error=str(error)[:1000], refused=refused)
                if refused or loop.time() > give_up_at:
                    break
            await asyncio.sleep(_SAVE_AGAIN_SECONDS)
        line.send_frame(AgentFrame(saves=[done]))

    async def end(self, task: AgentTask, facts: TaskFacts) -> None:
        """Report the end of an executor, and wait until that is on record (CALLS-1)."""
        line = self.lines.known.get(task.key) or ExecutorLine(task.key)
        with contextlib.suppress(TimeoutError):  # its last messages are still in the socket
            await asyncio.wait_for(line.closed.wait(), _EOF_SECONDS)
        report = msgspec.structs.replace(
            line.report(), want=0, closing=make_closing(task.folder, facts, task.watch.last_beat)
        )
        told = asyncio.Event()
        self.lines.known.pop(task.key, None)
        self._closings[task.key] = report, told
        self._warned = {place for place in self._warned if place[0] != task.key}
        self.lines.news.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(told.wait(), _LAST_SECONDS if self._closed else None)

    def let_go(self) -> None:
        """Wait for the records of ends for `_LAST_SECONDS` at most, because this host leaves."""
        self._closed = True
        loop = asyncio.get_running_loop()
        for _, told in self._closings.values():
            loop.call_later(_LAST_SECONDS, told.set)

    # ---- the controller

    async def run(self) -> None:
        """Exchange calls with the controller for ever."""
        flights: dict[asyncio.Task[CallsAnswer], CallsRequest] = {}
        pause, echo = _AGAIN_SECONDS[0], 0.0
        try:
            while True:
                if not flights and not self.lines.known and not self._closings:
                    await self.lines.news.wait()
                if not flights or (self.lines.news.is_set() and len(flights) < _IN_FLIGHT):
                    self.lines.news.clear()
                    request = self._ask()
                    flights[asyncio.create_task(self.calls.exchange_calls(request))] = request
                await self._wait(flights)
                for flight in [flight for flight in flights if flight.done()]:
                    request = flights.pop(flight)
                    try:
                        quiet = not self._take(request, flight.result())
                    except HoldfastError as error:
                        self._note_away(error)
                        await asyncio.sleep(pause * random.uniform(0.75, 1.25))
                        pause = min(2 * pause, _AGAIN_SECONDS[1])
                        continue
                    self._away, pause = False, _AGAIN_SECONDS[0]
                    low, high = _ECHO_SECONDS
                    echo = min(high, max(low, 2 * echo)) if quiet else 0.0
                    gap = echo if quiet else self._choose_gap()
                    if gap and not flights and not self.lines.news.is_set():
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(self.lines.news.wait(), gap)
        finally:
            for flight in flights:
                flight.cancel()
            await asyncio.gather(*flights, return_exceptions=True)

    def _choose_gap(self) -> float:
        """Return the seconds until the next request to the controller, after a batch was sent to an
        executor (CALLS-3)."""
        wants = any(line.wants for line in self.lines.known.values())
        return SHORT_GAP_SECONDS if wants else GAP_SECONDS

    async def _wait(self, flights: Iterable[asyncio.Task[CallsAnswer]]) -> None:
        """Wait until the controller has answered, or until a report is to be sent beside the call
        that waits."""
        waits: set[asyncio.Task[object]] = {*flights}
        news = None
        if len(waits) < _IN_FLIGHT:
            news = asyncio.create_task(self.lines.news.wait())
            waits.add(news)
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if news is not None:
                news.cancel()

    def _ask(self) -> CallsRequest:
        self._seq += 1
        executors = [
            add_room(line.report(), self.rooms.find(line.key))
            for line in self.lines.known.values()
            if line.writer is not None
        ]
        closings = [report for report, _ in self._closings.values()]
        wait = 0.0 if self._away or closings else WAIT_SECONDS
        return CallsRequest(
            incarnation=self.incarnation,
            seq=self._seq,
            wait_seconds=wait,
            executors=fit_ends([*closings, *executors][:4096]),
        )

    def _take(self, request: CallsRequest, answer: CallsAnswer) -> bool:
        """Carry out the controller's answer about executors. Return True if any part of it was
        new."""
        news = False
        fresh = {report.key for report in request.executors if report.fresh}
        closed = {report.key for report in request.executors if report.closing is not None}
        for said in answer.executors:
            news = self._close(said, closes=said.key in closed) or news
            line = self.lines.known.get(said.key)
            if line is not None:
                line.fresh = line.fresh and said.key not in fresh
                news = self._hand_on(line, said) or news
        return news

    def _close(self, said: ExecutorAnswer, *, closes: bool) -> bool:
        """Process the answer to an executor that has ended. closes: True if the request had its
        last report, which is then on record and forgotten. Otherwise the answer only names ends
        of calls that are on record."""
        report, told = self._closings.get(said.key, (None, None))
        if report is None or told is None:
            return False
        if closes or said.lost:
            del self._closings[said.key]
            told.set()
        else:
            self._closings[said.key] = drop_recorded(report, {*said.recorded}), told
        return True

    def _hand_on(self, line: ExecutorLine, said: ExecutorAnswer) -> bool:
        task = self.table.get(said.key)
        if said.lost and task is not None and task.live:
            task.watch.lease_lost(read_boottime(), BY_CALLS)
            self.watching.poke()
        self._end_cancelled_later(line, said.cancelled)
        for batch_id, position in said.killed:
            self._end_call(said.key, (batch_id, position), (PHASE_CALLING, *_MODEL_PHASES))
        frame = AgentFrame(
            batches=said.batches,
            recorded=said.recorded,
            dropped=said.dropped,
            cancelled=said.cancelled,
            cancel_reasons=said.cancel_reasons,
            leave=said.leave,
        )
        if frame == AgentFrame():
            return said.lost
        line.send_frame(frame)
        if said.batches:
            self.watching.poke()
        return bool(said.batches or said.recorded or said.dropped)

    def _end_cancelled_later(
        self, line: ExecutorLine, cancelled: Iterable[tuple[int, int]]
    ) -> None:
        """Let a cancelled call run for its grace, then kill its executor if it still runs."""
        loop = asyncio.get_running_loop()
        for batch_id, position in cancelled:
            place = (line.key, batch_id, position)
            batch = line.batches.get(batch_id)
            if place in self._warned or batch is None or position >= len(batch.calls):
                continue
            self._warned.add(place)
            grace = batch.sets[batch.calls[position].set].watch.grace_seconds
            loop.call_later(grace, self._end_cancelled, *place)

    def _end_cancelled(self, key: TaskKey, batch_id: int, position: int) -> None:
        task = self.table.get(key)
        if self._end_call(key, (batch_id, position), (PHASE_CALLING,)) and task is not None:
            log.warning("a cancelled call did not end in its grace", extra=task.about())

    def _end_call(self, key: TaskKey, call: tuple[int, int], phases: Collection[int]) -> bool:
        """Kill the executor if it runs this call, and if the call is in one of the phases given.
        Return True if the executor was killed."""
        task = self.table.get(key)
        place = None if task is None else read_place(task.folder)
        if task is None or place is None or place.phase not in phases:
            return False
        if (place.batch, place.position) != call:
            return False
        self.kills.kill(task)
        return True

    def _note_away(self, error: HoldfastError) -> None:
        for line in self.lines.known.values():
            line.fresh = True  # an answer may be lost
        if not self._away:
            self._away = True
            log.warning(f"ends of calls wait here: {error}")


def add_room(report: ExecutorReport, room: ModelRoom) -> ExecutorReport:
    """Return an executor's report, with the GPU memory that a model may use. The report asks for no
    calls before that memory was read (ROOM-3)."""
    if room == UNBOUND:
        return report
    want = report.want if room.read else 0
    return msgspec.structs.replace(report, free_gb=room.free_gb, want=want)


def make_closing(task_folder: Path, facts: TaskFacts, last_beat: LastBeat | None) -> Closing:
    """Return the last report of an executor, with the call that its place file names."""
    place = read_place(task_folder)
    if place is None or place.phase == PHASE_IDLE or not place.batch:
        return Closing(facts=facts)
    loading = place.phase in _MODEL_PHASES
    step = None if last_beat is None else last_beat.step
    return Closing(
        batch=place.batch, position=place.position, loading=loading, step=step, facts=facts
    )
