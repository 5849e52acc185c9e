"""Keep the tasks of this agent: in memory for decisions, on disk for the agent that follows a kill
-9.

KEEP-1  `order.json` is written before the guardian is asked to launch, so that the next agent can
        watch every task that runs. The file has the task's secrets (0600, in a folder 0700),
        because the next agent has to mask them, too; it is deleted with the folder as soon as the
        logs have been shipped.
- A key that ended, or was stopped before its launch came, is never launched again
  (tombstones).
KEEP-3  A task's state (`core.transitions.AGENT_TASK`) is not on disk: the next agent derives it
        from the guardian's snapshot, and from `acked` in `state.json`.
"""

import logging
import os
from pathlib import Path
from typing import Any

import msgspec

from holdfast.agent.folders import STATE_FILE, STATUS_FILE
from holdfast.agent.journal import about
from holdfast.agent.probes.faults import DeviceMarks
from holdfast.agent.redact import Redactor
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.ledger.tally import Tally, TallyClock, name_now
from holdfast.core.ledger.values import LedgerName
from holdfast.core.progress.pace import StepMeter
from holdfast.core.progress.printed import LOOKED_BYTES, find_counter
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.states import AgentTaskEvent, AgentTaskState
from holdfast.core.stragglers.ring import RankRings
from holdfast.core.stragglers.values import write_pace
from holdfast.core.transitions import AGENT_TASK, step
from holdfast.core.watchdogs import TaskWatch
from holdfast.process.files import write_atomic
from holdfast.process.output.lines import say_in_log
from holdfast.wire.agent import MAX_STILL_CHARS, BeatReport, LaunchOrder, TaskReport
from holdfast.wire.beat import Beat
from holdfast.wire.guardian import StreamEnd

log = logging.getLogger("holdfast.agent.tasks")

LEAST_PRINTED = 3
"""Counters of an output that differ, after which the output is taken to show progress."""
MAX_NOTICES, MAX_NOTICE_CHARS = 8, 2048
MAX_TOMBSTONES = 16_384
# A start is reported this much later, so that most tasks that end sooner are reported once, which
# costs the controller a third.
START_TOLD_SECONDS = 0.03
# The ranks of a gang on one host start within milliseconds, and a sync call meanwhile would take
# processor time from them.
GANG_TOLD_SECONDS = 0.06
# Ranks that are stopped together mostly end together, and are reported together, at most this late.
ENDS_TOLD_SECONDS = 0.03
# Short tasks that were started together mostly end together, and a call that reports them all costs
# the controller as much as a call that reports one.
YOUNG_TOLD_SECONDS = 0.005
_MAX_EXCUSE_SECONDS = 86_400.0
TALLY_SECONDS = 60.0
_TALLY_BEAT_MS = 1000


class TaskFile(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The content of `state.json`: the part of a task that changes and must survive the agent.
    Agents of other versions read it, so fields keep their names.

    watch: the state of its watch. shipped: stream → offset up to which its log is on record.
    shipped_whole: True once both logs are on record to their ends. stop_asked: True once a stop was
    sent. kill_sent: True once a watchdog's kill was sent. over_memory_bytes: the memory at which
    the memory watch ended it; 0 if it did not. devices: the state of its GPUs when it began. place:
    the mark of the call that the watch is for, if the task is an executor. output: stream → the
    bytes that it wrote, and those that are lost. notices: sentences for its owner, reported with
    its end. acked: True once the controller has its end. tally: what it spent its time on.
    given_step: the step of the checkpoint that it was given. nan_beats: the losses in a row that
    were not finite.
    """

    watch: dict[str, Any] | None = None
    shipped: dict[str, int] = {}
    shipped_whole: bool = False
    stop_asked: bool = False
    kill_sent: bool = False
    over_memory_bytes: int = 0
    devices: DeviceMarks | None = None
    place: list[int] = []
    output: dict[str, StreamEnd] = {}
    notices: list[str] = []
    acked: bool = False
    tally: TallyClock = TallyClock()
    given_step: int | None = None
    nan_beats: int = 0


class AgentTask:
    """One task, from its launch order until the last byte of its log is shipped."""

    def __init__(
        self, key: TaskKey, folder: Path, order: LaunchOrder | None, now: float, token: str = ""
    ) -> None:
        self.key = key
        self.token = token  # for calls of the API by the task (JOB-TOKEN-1)
        self.folder = folder
        self.order = order
        self.saved = TaskFile()
        if order is not None and order.checkpoint is not None:
            self.saved.given_step = order.checkpoint.step
        self.has_folder = True  # False once the folder may be deleted
        self.dirty = False  # `saved` or the watch is ahead of the disk
        self.saved_at = now
        self.state = AgentTaskState.ORDERED
        self.began = False  # its own program ran
        self.fell = False  # it failed by itself, and its gang falls with it (FALL-1)
        self.pid = 0
        self.started_at = 0.0  # CLOCK_BOOTTIME; 0 before it runs
        self.setup_seconds = 0.0  # how long its environment took before that
        self.deadline = 0.0  # CLOCK_BOOTTIME: its lease's end, by the last answer
        self.facts: TaskFacts | None = None
        self.stop_grace: float | None = None  # seconds of the stop that was sent
        self.redactor = Redactor([*(order.secrets.values() if order else ()), token])
        self.watch = TaskWatch(order.watch if order else WatchSettings(), gpus=len(self.gpus))
        self.asked_excuse = False  # the controller was asked for ranks on other hosts (EXCUSE-1)
        self.counts: dict[str, float] = {}  # of a policy script, as last sent
        self.idle = False  # its GPUs were read, and did nothing
        self.tally_told_at = now
        self.count_time(now)
        self.beats: list[tuple[float, Beat]] = []  # the last ones and their instants
        self.rings = RankRings()
        self.steps = StepMeter()
        self.printed = StepMeter()  # of counters in its output (STAND-2)
        self.printed_at = now
        self._printed_sizes: dict[str, int] = {}
        self._beaten_at = 0.0  # the first beat that this agent saw

    @property
    def gpus(self) -> tuple[int, ...]:
        """Return the indexes of the devices that are leased to the task."""
        return tuple(self.order.gpus) if self.order else ()

    @property
    def in_container(self) -> bool:
        """Return True if the task runs in a container; if its order was lost, True if a container's
        runner wrote a status file."""
        return self.order.image is not None if self.order else (self.folder / STATUS_FILE).exists()

    @property
    def attempt(self) -> int:
        """Return the number of the task's attempt; 0 if the order was lost."""
        return self.order.attempt if self.order else 0

    @property
    def has_processes(self) -> bool:
        """Return True if the task's program runs, or the program that makes its environment."""
        launched = self.state is AgentTaskState.LAUNCHED and self.pid != 0
        return launched or self.state is AgentTaskState.RUNNING

    @property
    def live(self) -> bool:
        """Return True until the task's end is reported."""
        return self.state.live

    @property
    def told_seconds(self) -> float:
        """Return how many seconds after the task's start the controller is told of that start."""
        gang = self.order is not None and self.order.local_world_size > 1
        return GANG_TOLD_SECONDS if gang else START_TOLD_SECONDS

    @property
    def may_write(self) -> bool:
        """Return False while the task is not started, so that its files are not made. The runner of a
        container writes before the container has a process: it tells of its pull."""
        in_container = self.order is not None and bool(self.order.image)
        return not self.live or self.pid != 0 or in_container

    def is_young(self, now: float) -> bool:
        """Return True if the task's start is so recent that it is not reported yet."""
        if self.state is AgentTaskState.LAUNCHED:
            return self.pid == 0
        return self.state is AgentTaskState.RUNNING and now < self.started_at + self.told_seconds

    @property
    def keep_bytes(self) -> int:
        """Return how many bytes of each stream the controller keeps."""
        return int(self.watch.settings.log_keep_mb * 1024 * 1024)

    def path_of(self, stream: str) -> Path:
        """Return the path of the file with the task's stdout or stderr."""
        return self.folder / stream

    def about(self, **data: Any) -> dict[str, Any]:
        """Return the `extra` of a log call that is about the task."""
        return about(self.key, attempt=self.attempt, **data)

    def add_notice(self, sentence: str) -> None:
        """Add a notice for the task's owner: a line in the task's log at once, and a sentence in
        the report of its end."""
        if sentence in self.saved.notices or len(self.saved.notices) >= MAX_NOTICES:
            return
        self.saved.notices = [*self.saved.notices, sentence[:MAX_NOTICE_CHARS]]
        self.dirty = True
        self.write_line(sentence)

    def write_line(self, sentence: str) -> None:
        """Write a line into the task's log while the task lives."""
        if self.pid and not self.state.end_heard:
            say_in_log(self.pid, f"holdfast: {self.redactor.mask_text(sentence)}\n")

    # ---- its states

    def move(self, event: AgentTaskEvent) -> None:
        """Move the task along one edge of its state machine. Raises InvalidTransition."""
        self.state = step(AGENT_TASK, self.state, event)
        self.began = self.began or self.state is AgentTaskState.RUNNING
        if self.state is AgentTaskState.ACKNOWLEDGED:
            self.saved.acked = True

    def end(self, event: AgentTaskEvent, facts: TaskFacts, now: float) -> None:
        """Have these facts reported as the task's end. `event` is REPORT or GIVE_UP."""
        self.count_time(now)
        self.move(event)
        tally = self._make_tally()
        self.facts = facts if tally.says_little else msgspec.structs.replace(facts, tally=tally)

    # ---- whether it moves

    def read_printed(self, now: float) -> None:
        """Look for a counter at the end of what the task printed since the last look."""
        self.printed_at = now
        for stream in ("stdout", "stderr"):
            try:
                with open(self.path_of(stream), "rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    if size == self._printed_sizes.get(stream, 0):
                        continue
                    self._printed_sizes[stream] = size
                    file.seek(max(0, size - LOOKED_BYTES))
                    found = find_counter(file.read(LOOKED_BYTES))
            except OSError:
                continue  # it printed nothing yet
            if found is not None and found.ended:
                self.printed = StepMeter()  # COUNTER-1
            elif found is not None:
                self.printed.beat(now, found.mark)
        self.note_progress(now)

    def note_progress(self, now: float) -> None:
        """Tell the watch when the work last moved: by its steps, by its beats alone, or by what it
        prints, whichever was last (STAND-2)."""
        if self.order is None or self.order.executor:
            return  # an executor stands still between its calls
        steps, printed, beat = self.steps, self.printed, self.watch.last_beat
        at, what = None, "step"
        if beat is not None and not self._beaten_at:
            self._beaten_at = now
        if steps.moved_at is not None:
            at = steps.moved_at
        elif beat is not None:
            at, what = self._beaten_at, "work, of which its beats tell no step,"
        seen = printed.moved_at if printed.moves >= LEAST_PRINTED else None
        if seen is not None and (at is None or seen > at):
            at, what = seen, "printed counter"
        longest = max(steps.longest_seconds, printed.longest_seconds)
        self.watch.move(now, at, longest, what)

    # ---- its tally

    def count_time(self, now: float, *, beats: bool = False) -> None:
        """Count what the task spent its time on until now. beats: it has just sent a beat."""
        clock, name = self.saved.tally, self._name_time()
        at = int(now * 1000)
        if self.began and self.started_at and clock.tally.now == LedgerName.SETTING_UP:
            clock = clock.count(int(self.started_at * 1000), LedgerName.UNMEASURED_BUSY)
        if beats:
            step = None if self.watch.last_beat is None else self.watch.last_beat.step
            clock = clock.beat(at, step, name)
        else:
            clock = clock.count(at, name)
        self.saved.tally = clock

    def count_beat(self, now: float) -> None:
        """Count a beat, at most once a second while the task does the same."""
        clock = self.saved.tally
        same = clock.tally.beaten and self._name_time() == clock.tally.now
        if not same or clock.at_ms is None or int(now * 1000) - clock.at_ms >= _TALLY_BEAT_MS:
            self.count_time(now, beats=True)

    def count_save(self, now: float, seconds: float) -> None:
        """Count the last `seconds` as the time of a save, as far as they were counted under the
        task's present name."""
        self.count_time(now)
        self.saved.tally = self.saved.tally.save(int(seconds * 1000))

    def count_stall(self, now: float) -> None:
        """Name the silence before a trip a stall, if the task has ever beat."""
        self.count_time(now)
        if self.saved.tally.tally.beaten:
            self.saved.tally = self.saved.tally.stall(int(now * 1000))

    def _name_time(self) -> LedgerName:
        return name_now(
            began=self.began,
            stopping=self.saved.stop_asked or self.watch.trip is not None or self.state.end_heard,
            beaten=self.watch.last_beat is not None,
            sections=self.watch.sections,
            idle=self.idle,
        )

    def _make_tally(self) -> Tally:
        """Return the tally with the newest step, which is not counted at every beat."""
        tally, beat = self.saved.tally.tally, self.watch.last_beat
        if beat is None or beat.step is None:
            return tally
        first = beat.step if tally.first_step is None else tally.first_step
        furthest = max(beat.step, tally.step or 0)
        return msgspec.structs.replace(tally, first_step=first, step=furthest)

    def _tell_tally(self, now: float) -> Tally | None:
        """Return the tally about once a minute, else None."""
        if now - self.tally_told_at < TALLY_SECONDS:
            return None
        self.tally_told_at, self.dirty = now, True
        self.count_time(now)
        return self._make_tally()

    def report(self, now: float) -> TaskReport:
        """Return the task's report for a sync."""
        beat = self.watch.last_beat
        told = None
        if beat is not None:
            age = max(0.0, now - beat.at)
            moved = self.steps.moved_at
            told = BeatReport(
                step=beat.step,
                total=beat.total,
                age_seconds=age,
                section=self.watch.section,
                rate=self.steps.find_rate(now),
                still_seconds=None if moved is None else max(0.0, now - moved),
                nan_beats=self.saved.nan_beats,
            )
        if not self.live:
            ended: Any = {"state": "ended", "facts": self._dated_facts(now), "counts": self.counts}
            ended["checksums"] = self.rings.checksums.list_last()
            return TaskReport(key=self.key, pid=self.pid, beat=told, **ended)
        if not self.began or (beat is None and now < self.started_at + self.told_seconds):
            return TaskReport(
                key=self.key, state="starting", pid=self.pid, beat=told, tally=self._tell_tally(now)
            )
        left, waits = self._tell_section(now)
        return TaskReport(
            key=self.key,
            state="running",
            pid=self.pid,
            beat=told,
            counts=self.counts,
            section_seconds=left,
            waits=waits,
            tally=self._tell_tally(now),
            broken=self._find_broken(),
            pace=write_pace(self.rings.pace.take_blocks(now)),
            checksums=self.rings.checksums.take_checksums(),
            still=self.watch.standstill[:MAX_STILL_CHARS],
        )

    def _find_broken(self) -> tuple[int, int] | None:
        """Return how the task did not go on from its checkpoint; None where it did (UNSAVED-2)."""
        step, given = self.saved.tally.tally.first_step, self.saved.given_step
        if step is None or given is None or step >= given:
            return None
        return step, given

    def _tell_section(self, now: float) -> tuple[float | None, bool]:
        """Return the seconds for which the task's section excuses ranks on other hosts, and True if
        the task needs such an excuse itself (EXCUSE-1). Ranks on one host excuse each other without
        the controller."""
        left = None
        if self._spans_hosts and self.watch.knows_sections:
            left = min(max(0.0, self.watch.excuses_until() - now), _MAX_EXCUSE_SECONDS)
        return left, self.needs_excuse(now)

    @property
    def _spans_hosts(self) -> bool:
        return self.order is not None and self.order.group_world_size > 1

    def needs_excuse(self, now: float) -> bool:
        """Return True if the controller has to be asked whether ranks on other hosts, for which the
        task may wait, excuse it."""
        return self._spans_hosts and self.watch.waits(now)

    def _dated_facts(self, now: float) -> TaskFacts | None:
        """Return the facts of the task's end, with the seconds since that end, because reports wait
        and the controller has to know the order of ends."""
        if self.facts is None or not self.started_at:
            return self.facts
        ago = max(0.0, now - self.started_at - self.facts.runtime_seconds)
        return msgspec.structs.replace(self.facts, ended_ago_seconds=ago)

    def save(self, now: float) -> None:
        """Write `state.json`. Raises OSError; `TaskTable.save` does not."""
        self.saved.watch = self.watch.dump(now)
        self.saved_at = now
        write_atomic(self.folder / STATE_FILE, msgspec.json.encode(self.saved))
        self.dirty = False
