"""Steps that ranks report, and what their silence means.

How long a step may take is measured, not configured: `Progress.limit_seconds`. In the training
loop:

    queue = get_message_queue()
    queue.send({"step": step})  # after each step
    queue.send({"section": "eval"})  # no steps for a while; "checkpoint" likewise
    queue.send({"section": None})  # steps again

A rank in a section excuses the ranks that are in none, because they may wait for it: their silence
does not grow meanwhile, for as long as that section itself may take (EXCUSE-1).
"""

import contextlib
import queue
import statistics
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from holdfast.supervisor.futures.future import Future
from holdfast.supervisor.policy.runs import RunFailure, judge_end
from holdfast.supervisor.rosters.groups import Process, ProcessGroup

FIRST_STEP_SECONDS = 1800.0  # until steps can be measured: imports, data, compilation
SECTION_SECONDS = {"eval": 3600.0, "checkpoint": 1800.0}
OTHER_SECTION_SECONDS = 1800.0
TIMES_MEDIAN = 10.0
LEAST_SECONDS = 60.0  # a step may always take this long
STEPS_MEASURED = 50
_LOOK_SECONDS = 0.5


class Progress:
    """One rank's reports of its steps. `now` is monotonic seconds."""

    def __init__(
        self,
        now: float,
        least_seconds: float = LEAST_SECONDS,
        first_seconds: float = FIRST_STEP_SECONDS,
    ) -> None:
        self.least_seconds, self.first_seconds = least_seconds, first_seconds
        self.step = -1
        self.section: str | None = None
        self.since = now  # the time of the last step, or of the beginning or end of a section
        self.durations: deque[float] = deque(maxlen=STEPS_MEASURED)
        self.cut = True  # the time that runs now began with something other than a step
        self.excused_seconds = 0.0  # time since then in which another rank was in a section

    def note_message(self, message: Any, now: float) -> None:
        """Note a message of the rank. A span of time that includes a section is not counted as a
        step's."""
        if not isinstance(message, dict):
            return
        if "section" in message:
            self.section = message["section"]
        elif "step" in message:
            if not self.cut and self.section is None:
                self.durations.append(self.silent_seconds(now))
            self.step = message["step"]
        else:
            return
        self.cut = "section" in message
        self.since, self.excused_seconds = now, 0.0

    def limit_seconds(self) -> float:
        """Return the seconds for which this rank may be silent from now on."""
        if self.section is not None:
            return SECTION_SECONDS.get(self.section, OTHER_SECTION_SECONDS)
        if not self.durations:
            return self.first_seconds
        return max(self.least_seconds, TIMES_MEDIAN * statistics.median(self.durations))

    def silent_seconds(self, now: float) -> float:
        """Return for how long the rank has been silent, without the time that another rank's
        section excuses."""
        return now - self.since - self.excused_seconds

    def is_late(self, now: float) -> bool:
        """Return whether the rank has been silent for longer than it may be."""
        return self.silent_seconds(now) > self.limit_seconds()

    def describe(self) -> str:
        """Return the rank's step and section, in words."""
        return f"step {self.step}" + (f", in {self.section}" if self.section else "")


def find_hang(progress: Mapping[Process, Progress], now: float) -> RunFailure | None:
    """Name the ranks that hang: those furthest behind, because ranks wait for each other, and the
    first to be late need not be at fault."""
    late = [process for process, seen in progress.items() if seen.is_late(now)]
    if not late:
        return None
    least = min(progress[process].step for process in late)
    behind = [process for process in late if progress[process].step == least]
    silent = progress[behind[0]].silent_seconds(now)
    named = ", ".join(str(process) for process in behind[:5]) + (
        f" and {len(behind) - 5} more" if len(behind) > 5 else ""
    )
    sentence = f"no progress for {silent:.0f} s: {named} at {progress[behind[0]].describe()}"
    return RunFailure(sentence, behind[0].host, hung=True)


def excuse_ranks(progress: Mapping[Process, Progress], before: float, now: float) -> None:
    """Subtract the time from `before` to now from the silence of ranks in no section, where another
    rank is in a section and not late (EXCUSE-1)."""
    if any(seen.section is not None and not seen.is_late(now) for seen in progress.values()):
        for seen in progress.values():
            if seen.section is None:
                seen.excused_seconds += now - max(before, seen.since)


def watch_progress(
    group: ProcessGroup,
    least_seconds: float = LEAST_SECONDS,
    first_seconds: float = FIRST_STEP_SECONDS,
) -> RunFailure | None:
    """Wait for the end of a group, or of its progress. Returns None when all processes ended with
    0.

    least_seconds: the time that a step may always take. first_seconds: the time that each of the
    first two steps may take; infinity where ranks may report no steps.
    """
    for process in group:
        process.pid().exception()  # the clocks start when all processes run
    happened: queue.SimpleQueue[tuple[Process, Future[Any]]] = queue.SimpleQueue()
    began = time.monotonic()
    progress = {process: Progress(began, least_seconds, first_seconds) for process in group}

    def listen(process: Process) -> None:
        process.recv().add_done_callback(lambda future: happened.put((process, future)))

    for process in group:
        process.returncode().add_done_callback(lambda future: happened.put((future.whom, future)))
        listen(process)
    look_at = looked_at = time.monotonic()
    while progress:
        with contextlib.suppress(queue.Empty):
            process, future = happened.get(timeout=_LOOK_SECONDS)
            if future.about != "returncode":
                if future.exception() is None and process in progress:
                    progress[process].note_message(future.result(), time.monotonic())
                    listen(process)
            else:
                failure = judge_end(process)
                if failure is not None:
                    return failure
                progress.pop(process)
        now = time.monotonic()
        # A rank whose message waits is not late; and a look goes over all ranks.
        if now >= look_at and happened.empty():
            excuse_ranks(progress, looked_at, now)
            look_at, looked_at = now + _LOOK_SECONDS, now
            hang = find_hang(progress, now)
            if hang is not None:
                return hang
    return None
