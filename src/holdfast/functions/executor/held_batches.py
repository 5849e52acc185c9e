"""The batches that an executor holds: calls to run, and the ends that are not on record yet.

The runner's thread takes calls and adds ends; the line's thread reads frames and makes them. They
share the batches without a lock: each value is written by one of them, and values that both write
are deques and dicts, whose single operations are atomic under the interpreter.

INHAND-1  An end is kept until its agent confirms that it is on record, and sent again whole to every
        new agent. A batch counts as held until all of its ends are on record.
INHAND-2  A call in hand never waits for long: where one call runs for more than `LONG_SECONDS`, or
        waits for another call, the calls behind it are given back, and none is accepted before its
        end. Which of the two threads gets a call is decided under a lock.
"""

import threading
import time
from collections import deque

import msgspec

from holdfast.core.calls.batches import choose_want
from holdfast.wire.calls import (
    BUSY_LONG,
    AgentFrame,
    Batch,
    BatchEnds,
    CallEnd,
    ExecutorFrame,
    ModelLimits,
    ModelLoad,
)

MAX_ENDS_BYTES = 8 * 1024 * 1024
"""The most bytes of ends in one frame, plus one last end."""
FEW_CALLS = 32
"""The largest batch that counts as small. A smaller batch than was asked for shows that no more
calls waited; a larger batch may have been cut."""
_MEAN_WEIGHT = 0.1

LONG_SECONDS = 1.0
"""How long a call may run before the calls in hand behind it are given back."""

Reported = tuple[int, str | None, int, list[tuple[int, int]], str, list[int]]
"""The values that the last frame told the agent: calls wanted, model loaded, models known, calls
given back, why the executor is busy, batches held."""


class HeldBatch:
    """A batch and its progress. cursor: the position of the next call. stop: the first position
    that was given back. ends: the ends that are not on record."""

    __slots__ = ("batch", "cancelled", "cursor", "dropped", "ends", "recorded", "stop")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.cursor = 0
        self.stop = len(batch.calls)
        self.ends: dict[int, CallEnd] = {}
        self.recorded = 0
        self.cancelled: dict[int, str] = {}  # with the reason
        self.dropped = False

    @property
    def left(self) -> int:
        """Return how many calls have not begun."""
        return 0 if self.dropped else self.stop - self.cursor


class HeldBatches:
    """The batches that an executor has now. gpus: how many GPUs the executor has. news: an event,
    set when the thread that runs calls may have work."""

    def __init__(self, task: str, gpus: int) -> None:
        self._task, self._gpus = task, gpus
        self._held: dict[int, HeldBatch] = {}
        self._waiting: deque[HeldBatch] = deque()
        self._unsent: deque[tuple[int, CallEnd]] = deque()
        self._loads: deque[ModelLoad] = deque()
        self._reported: Reported = (-1, None, 0, [], "", [])
        self._taking = threading.Lock()
        self._returned: dict[int, int] = {}  # batch -> the first position that was given back
        self._waits_for: list[str] = []  # calls that the running call waits for, by its threads
        self._began_at: float | None = None
        self.news = threading.Event()
        self.running: tuple[HeldBatch, int] | None = None
        self.mean_seconds = 0.0
        self.loaded: str | None = None
        self.models: dict[str, ModelLimits] = {}
        self.defers = False  # the next request for calls can wait for a moment
        self.open = False  # the executor accepts calls
        self.leaving = False
        self.cancelled: str | None = None  # the running call, and why

    # ---- the runner's side

    def next_batch(self) -> HeldBatch | None:
        """Return the next batch with a call to run."""
        while self._waiting:
            held = self._waiting[0]
            if held.left > 0:
                return held
            self._waiting.popleft()
        return None

    def begin_call(self, held: HeldBatch) -> int | None:
        """Begin the batch's next call; return its position, None where no call is left."""
        with self._taking:
            if held.left <= 0:
                return None
            position = held.cursor
            self.cancelled = None
            self.running = (held, position)
            self._began_at = time.monotonic()
            held.cursor += 1
            return position

    def leave_call(self) -> None:
        """Note that no call runs."""
        with self._taking:
            self.running = self._began_at = None
            self._waits_for.clear()

    def begin_waiting(self, call: str) -> None:
        """Note that the running call waits for another; the calls in hand behind it are given back
        (INHAND-2)."""
        with self._taking:
            if self.running is not None:
                self._waits_for.append(call)

    def end_waiting(self, call: str) -> None:
        """Note that the running call goes on."""
        with self._taking:
            if call in self._waits_for:
                self._waits_for.remove(call)
                self.defers = True  # the call may wait again in a moment

    def end_call(self, held: HeldBatch, end: CallEnd) -> None:
        """Add the end of a call."""
        if not held.dropped:
            held.ends[end.position] = end
            self._unsent.append((held.batch.id, end))
        seconds = end.seconds
        mean = self.mean_seconds
        self.mean_seconds = mean + _MEAN_WEIGHT * (seconds - mean) if mean else seconds

    def note_load(self, load: ModelLoad) -> None:
        """Note how long a model's loading took."""
        self._loads.append(load)

    @property
    def in_hand(self) -> int:
        """Return the number of calls that have not ended."""
        return sum(held.left for held in list(self._waiting)) + (self.running is not None)

    @property
    def hungry(self) -> bool:
        """Return whether the executor can take more calls and has not asked for them yet."""
        return self._reported[0] == 0 and self._choose_want() > 0

    @property
    def unrecorded(self) -> bool:
        """Return whether an end is not on record."""
        return any(held.ends for held in list(self._held.values()))

    @property
    def unsent(self) -> bool:
        """Return whether an end was not sent."""
        return bool(self._unsent)

    # ---- the line's side

    @property
    def busy(self) -> str:
        """Return why the executor takes no calls beside the one that runs; "" where it does take
        some."""
        waits_for, began_at = self._waits_for[-1:], self._began_at
        if waits_for:
            return waits_for[0]
        long = began_at is not None and time.monotonic() - began_at > LONG_SECONDS
        return BUSY_LONG if long else ""

    @property
    def busy_in(self) -> float | None:
        """Return the seconds until the running call, or the next one, will have run for
        `LONG_SECONDS`; None where no call is in hand, or that time is over."""
        began_at = self._began_at
        if began_at is None:
            return LONG_SECONDS if self.in_hand else None
        left = began_at + LONG_SECONDS - time.monotonic()
        return left if left >= 0 else None

    def give_back(self) -> None:
        """Give back the calls in hand behind a call that keeps them waiting (INHAND-2)."""
        if not self.busy:
            return
        with self._taking:
            for held in self._held.values():
                if held.left > 0 and self.running is not None:
                    held.stop = held.cursor
                    self._returned[held.batch.id] = held.stop

    def take_frame(self, frame: AgentFrame) -> None:
        """Carry out a frame of the agent: keep its new batches, drop recorded ends, note cancelled
        calls."""
        for batch in frame.batches:
            # There were no more: to ask at once again would only hold up the ends of these.
            self.defers = len(batch.calls) < min(self._reported[0], FEW_CALLS)
            if batch.id not in self._held:
                held = self._held[batch.id] = HeldBatch(batch)
                self._waiting.append(held)
        for batch_id, position in frame.recorded:
            held_one = self._held.get(batch_id)
            if held_one is not None and held_one.ends.pop(position, None) is not None:
                held_one.recorded += 1
                # A batch given back in part is dropped once the return is on record.
                if held_one.recorded == len(held_one.batch.calls):
                    del self._held[batch_id]
        for batch_id in frame.dropped:
            self._drop(batch_id)
        for number, (batch_id, position) in enumerate(frame.cancelled):
            reason = "".join(frame.cancel_reasons[number : number + 1])
            held_one = self._held.get(batch_id)
            if held_one is not None:
                held_one.cancelled.setdefault(position, reason)
                if self.running == (held_one, position):
                    self.cancelled = reason
        self.leaving = self.leaving or frame.leave
        self.news.set()

    def _drop(self, batch_id: int) -> None:
        held = self._held.pop(batch_id, None)
        self._returned.pop(batch_id, None)
        if held is None:
            return
        held.dropped = True
        running = self.running
        if running is not None and running[0] is held:
            self.cancelled = "it was taken back"

    def make_hello(self) -> ExecutorFrame:
        """Return the first frame for a new agent. Ends not on record are sent again in the frames
        that follow (INHAND-1)."""
        self._unsent.clear()
        held = list(self._held.copy().values())
        for one in held:
            self._unsent.extend((one.batch.id, end) for end in list(one.ends.copy().values()))
        frame = self.make_frame(full=True)
        assert frame is not None
        batches = [_without_arguments(one.batch) for one in held]
        return msgspec.structs.replace(frame, task=self._task, hello=True, batches=batches)

    def make_frame(self, *, full: bool = False) -> ExecutorFrame | None:
        """Return a frame with the news since the last one, None where there is none. full: True to
        return a frame in any case."""
        self.give_back()
        busy, running = self.busy, self.running
        want, loaded, held = self._choose_want(), self.loaded, list(self._held)
        returned = list(self._returned.items())
        report: Reported = (want, loaded, len(self.models), returned, busy, held)
        if not full and not self._unsent and not self._loads and self._can_wait(report):
            return None
        self._reported, self.defers = report, False
        return ExecutorFrame(
            held=held,
            ends=self._take_ends(),
            want=want,
            loaded=loaded,
            models=dict(self.models),
            mean_seconds=self.mean_seconds,
            loads=self._take_loads(),
            returned=returned,
            busy=busy if running is not None else "",
            busy_batch=running[0].batch.id if busy and running is not None else 0,
        )

    def _can_wait(self, report: Reported) -> bool:
        """Return whether a frame can wait: nothing is new, or only that a batch was begun and more
        could be taken, or that the running call went on just now."""
        _, *state, busy, _ = report
        _, *state_before, busy_before, _ = self._reported
        goes_on = busy in ("", busy_before)
        return report == self._reported or (self.defers and state == state_before and goes_on)

    def _take_ends(self) -> list[BatchEnds]:
        """Remove and return as many ends as a frame may hold."""
        ends: dict[int, list[CallEnd]] = {}
        size = 0
        while self._unsent and size < MAX_ENDS_BYTES:
            batch_id, end = self._unsent.popleft()
            ends.setdefault(batch_id, []).append(end)
            size += 4 * len(end.value)  # a character has at most four bytes
        return [BatchEnds(*pair) for pair in ends.items()]

    def _choose_want(self) -> int:
        if not self.open or self.leaving or self.busy:
            return 0
        return choose_want(self.mean_seconds, self.in_hand, self._gpus)

    def _take_loads(self) -> list[ModelLoad]:
        loads = []
        while self._loads:
            loads.append(self._loads.popleft())
        return loads


def _without_arguments(batch: Batch) -> Batch:
    calls = [msgspec.structs.replace(call, args="") for call in batch.calls]
    return msgspec.structs.replace(batch, calls=calls)
