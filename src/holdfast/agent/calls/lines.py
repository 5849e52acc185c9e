"""Keep one executor's line at the agent's end: its last message, and what has to be passed on.

LINE-4  If an executor asked for calls before it received a batch, it asked for the calls of that
        batch, and not for others beside them.
LINE-5  A batch that an executor has named is not sent to it again, because a late answer may bring
        a batch whose calls have ended.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Sequence

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.wire.calls import (
    AgentFrame,
    Batch,
    BatchEnds,
    CallEnd,
    CallOrder,
    ExecutorFrame,
    ExecutorReport,
    ModelLimits,
    ModelLoad,
)
from holdfast.wire.frames import encode_frame

_KEPT_BATCHES = 16
MAX_ENDS_BYTES = 8 * 1024 * 1024
"""Limit of the ends of all executors in one request, beside one last end; the controller accepts
twice as much."""
_encode = msgspec.msgpack.Encoder().encode


class ExecutorLine:
    """Holds the messages of one executor. It outlives its connection, because ends of calls are
    kept here until they are on record."""

    def __init__(self, key: TaskKey) -> None:
        self.key = key
        self.writer: asyncio.StreamWriter | None = None
        self.closed = asyncio.Event()
        self.closed.set()
        self.fresh = True  # earlier reports of this executor may be lost
        self.batches: OrderedDict[int, Batch] = OrderedDict()
        self.models: dict[str, ModelLimits] = {}
        self._held: list[int] = []
        self._given: set[int] = set()
        self._named: deque[int] = deque(maxlen=_KEPT_BATCHES)
        self._ends: dict[tuple[int, int], CallEnd] = {}
        self._loads: list[ModelLoad] = []
        self._want = 0
        self._returned: list[tuple[int, int]] = []
        self._busy, self._busy_batch = "", 0
        self._loaded: str | None = None
        self._mean_seconds = 0.0

    def connect(self, writer: asyncio.StreamWriter) -> None:
        """Send messages over this connection from now on."""
        if self.writer is not None:
            self.writer.close()
        self.writer = writer
        self.closed.clear()
        self.fresh = True
        self._given.clear()

    def disconnect(self, writer: asyncio.StreamWriter) -> None:
        """Note that the connection to the executor ended."""
        if self.writer is writer:
            self.writer = None
            self._want = 0
            self.closed.set()

    def receive_frame(self, frame: ExecutorFrame) -> None:
        """Process a message of the executor."""
        self._held = frame.held
        self._named.extend(batch for batch in frame.held if batch not in self._named)
        self._given.difference_update(frame.held)
        unheard = sum(len(self.batches[b].calls) for b in self._given if b in self.batches)
        self._want = max(0, frame.want - unheard)
        self._loaded, self.models = frame.loaded, frame.models
        self._returned, self._busy = frame.returned, frame.busy
        self._busy_batch = frame.busy_batch
        self._mean_seconds = frame.mean_seconds
        self._loads += frame.loads
        for batch in frame.batches:
            self._keep(batch)
        for batch_ends in frame.ends:
            for end in batch_ends.ends:
                self._ends[batch_ends.batch, end.position] = end

    def _keep(self, batch: Batch) -> None:
        self.batches[batch.id] = batch
        while len(self.batches) > _KEPT_BATCHES:
            self.batches.popitem(last=False)

    def send_frame(self, frame: AgentFrame) -> None:
        """Pass on a message of the controller. A message that an executor misses while it is
        away comes again."""
        fresh = [batch for batch in frame.batches if batch.id not in self._named]
        if len(fresh) < len(frame.batches):
            frame = msgspec.structs.replace(frame, batches=fresh)
        self._given.difference_update(frame.dropped)
        for batch in frame.batches:
            bare = [CallOrder(call.set, call.index, call.attempt, "") for call in batch.calls]
            self._keep(msgspec.structs.replace(batch, calls=bare))
        for place in frame.recorded:
            self._ends.pop(place, None)
        if self.writer is None:
            return
        if frame.batches:
            self._given.update(batch.id for batch in frame.batches)
            self._want = 0  # until its next message asks again
        self.writer.write(encode_frame(_encode(frame)))

    @property
    def wants(self) -> bool:
        """Return True if the executor waits for calls."""
        return self.writer is not None and self._want > 0

    @property
    def declared_gb(self) -> float | None:
        """Return the memory in GB that the loaded model declares; 0 without a model, None if the
        model declares none."""
        if self._loaded is None:
            return 0.0
        return self.models.get(self._loaded, ModelLimits()).vram_gb or None

    def report(self) -> ExecutorReport:
        """Return the executor's state for the controller."""
        loads, self._loads = self._loads, []
        return ExecutorReport(
            key=self.key,
            held=sorted({*self._held, *self._given}),
            ends=list_ends(self._ends.items()),
            want=self._want,
            loaded=self._loaded,
            mean_seconds=self._mean_seconds,
            loads=loads,
            returned=self._returned,
            busy=self._busy,
            busy_batch=self._busy_batch,
            fresh=self.fresh,
        )


def list_ends(ends: Iterable[tuple[tuple[int, int], CallEnd]]) -> list[BatchEnds]:
    """Return ends of calls, grouped by batch."""
    found: dict[int, list[CallEnd]] = {}
    for (batch, _), end in ends:
        found.setdefault(batch, []).append(end)
    return [BatchEnds(batch, some) for batch, some in found.items()]


def fit_ends(
    reports: Sequence[ExecutorReport], most_bytes: int = MAX_ENDS_BYTES
) -> list[ExecutorReport]:
    """Return the reports with as many ends as one request may hold; the next request has the
    others.

    A closing report whose ends do not all fit does not close yet, because the controller would take
    its batches back, and calls would run again whose ends are only on their way.
    """
    fitted, left = [], most_bytes
    for report in reports:
        ends: list[BatchEnds] = []
        for of_batch in report.ends:
            some = []
            for end in of_batch.ends:
                if left <= 0:
                    break
                some.append(end)
                left -= len(end.value) if end.value.isascii() else len(end.value.encode())
            if some:
                ends.append(BatchEnds(of_batch.batch, some))
        if count_ends(ends) < count_ends(report.ends):
            report = msgspec.structs.replace(report, ends=ends, closing=None)
        fitted.append(report)
    return fitted


def count_ends(ends: Iterable[BatchEnds]) -> int:
    """Return the number of ends, over all batches."""
    return sum(len(of_batch.ends) for of_batch in ends)


def drop_recorded(report: ExecutorReport, recorded: Collection[tuple[int, int]]) -> ExecutorReport:
    """Return a report without the ends that are on record."""
    ends = [
        BatchEnds(b.batch, [end for end in b.ends if (b.batch, end.position) not in recorded])
        for b in report.ends
    ]
    return msgspec.structs.replace(report, ends=[b for b in ends if b.ends])


class ExecutorLines:
    """Holds the lines of all executors of this host. news: set when the controller has to be
    called anew."""

    def __init__(self) -> None:
        self.known: dict[TaskKey, ExecutorLine] = {}
        self.news = asyncio.Event()

    def find_batch(self, key: TaskKey, number: int) -> Batch | None:
        """Return a batch that was sent to an executor, without its arguments."""
        line = self.known.get(key)
        return None if line is None else line.batches.get(number)

    def find_limits(self, key: TaskKey, model: str) -> ModelLimits:
        """Return the limits of a model that its executor reported."""
        line = self.known.get(key)
        return ModelLimits() if line is None else line.models.get(model, ModelLimits())

    def find_declared(self, key: TaskKey) -> float | None:
        """Return the memory in GB that the loaded model of an executor declares; 0 without a
        model, None if the model declares none."""
        line = self.known.get(key)
        return 0.0 if line is None else line.declared_gb

    def wake(self) -> None:
        """Have another request sent to the controller now, beside the one that waits for an
        answer."""
        self.news.set()
