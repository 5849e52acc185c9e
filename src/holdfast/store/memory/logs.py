"""Logs and forensics in memory."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from holdfast.core.calls.marks import list_spans
from holdfast.core.ids import TaskKey
from holdfast.core.logs import plan as log_plan
from holdfast.core.logs.plan import LogBase, LogLife, LogPlace, Range
from holdfast.core.records import LogChunk, LogStreamRecord
from holdfast.errors import Stale
from holdfast.moves.values import LogAppend
from holdfast.store.memory.state import InMemory, MemoryLogRead, MemoryStream
from holdfast.store.port.clock import Now
from holdfast.store.port.logs import LOG_READ_SECONDS
from holdfast.wire.agent import Forensics, LogReadAnswer, LogReadOrder


class MemoryLogs(InMemory):
    """`LogStore` in memory."""

    async def append_logs(
        self, host_id: str, appends: Sequence[LogAppend], *, now: Now = None
    ) -> list[int | None]:
        at = now or self.state.clock()
        sizes: list[int | None] = []
        for append in appends:
            try:
                sizes.append(self._append(host_id, append, at))
            except Stale:
                sizes.append(None)
        return sizes

    def _append(self, host_id: str, append: LogAppend, now: datetime) -> int:
        key, stream, ended = append.key, append.stream, append.ended
        attempt = self._find_attempt(host_id, key)
        log = self.state.streams.setdefault(
            (key.job_id, attempt, key.rank, stream), MemoryStream(chunks={})
        )
        place = self._find_place(key, attempt, stream, log.size)
        at, kept = place.cut(append.offset, append.data)
        ends = ended and not place.later
        if not kept and not place.new and (log.ended or not ends):
            return log.size
        ranges = [Range(start, len(chunk)) for start, chunk in sorted(log.chunks.items())]
        plan = log_plan.plan_append(log.size, ranges, at, kept, append.keep_bytes)
        log.chunks.update(plan.pieces)
        log.times.update((at, now) for at, _ in plan.pieces)
        if append.marked and plan.pieces:
            log.outputs += list_spans(at, kept)
        for old in [
            a for a, c in log.chunks.items() if a >= plan.head and a + len(c) <= plan.tail_start
        ]:
            del log.chunks[old], log.times[old]
        log.outputs = [s for s in log.outputs if s.start < plan.head or s.end > plan.tail_start]
        log.size, log.kept = plan.size, sum(map(len, log.chunks.values()))
        log.ended = ends or (log.ended and not place.new)
        return log.size

    def _find_place(self, key: TaskKey, attempt: int, stream: str, size: int) -> LogPlace:
        found = [
            r
            for r in self.state.replacements
            if (r.job_id, r.rank, r.attempt) == (key.job_id, key.rank, attempt)
        ]
        bases = [
            LogBase(
                r.epoch, r.number, self.state.log_bases.get((r.job_id, r.rank, r.epoch, stream))
            )
            for r in found
        ]
        place = log_plan.find_place(bases, key.epoch, size)
        if place.new:
            self.state.log_bases[key.job_id, key.rank, key.epoch, stream] = place.base
        return place

    def _find_attempt(self, host_id: str, key: TaskKey) -> int:
        for attempt in self.state.attempts.get(key.job_id, []):
            here = 0 <= key.rank < len(attempt.host_ids) and attempt.host_ids[key.rank] == host_id
            if attempt.epoch == key.epoch and here:
                return attempt.number
        for r in self.state.replacements:
            if (r.job_id, r.rank, r.epoch, r.host_id) == (key.job_id, key.rank, key.epoch, host_id):
                return r.attempt
        raise log_plan.no_attempt(host_id, key)

    async def list_log_streams(
        self, job_id: str, attempt: int | None = None
    ) -> list[LogStreamRecord]:
        return [
            LogStreamRecord(
                job_id=place[0],
                attempt=place[1],
                rank=place[2],
                stream=place[3],
                size=log.size,
                kept=log.kept,
                ended=log.ended,
            )
            for place, log in sorted(self.state.streams.items())
            if place[0] == job_id and attempt in (None, place[1])
        ]

    async def read_log(
        self,
        job_id: str,
        attempt: int,
        rank: int,
        stream: str,
        offset: int,
        *,
        limit_bytes: int = 1 << 20,
    ) -> list[LogChunk]:
        log = self.state.streams.get((job_id, attempt, rank, stream), MemoryStream())
        chunks = [(at, data) for at, data in sorted(log.chunks.items()) if at + len(data) > offset]
        shown = log_plan.window(chunks, offset, limit_bytes)
        return [
            LogChunk(stream=stream, rank=rank, offset=a, data=d, at=log.times[begin])
            for (begin, _), (a, d) in zip(chunks, shown, strict=False)
        ]

    async def list_log_lives(
        self, job_id: str, attempt: int, rank: int, stream: str
    ) -> list[LogLife]:
        first = [
            LogLife(TaskKey(job_id, rank, a.epoch), a.host_ids[rank], 0)
            for a in self.state.attempts.get(job_id, [])
            if a.number == attempt and rank < len(a.host_ids)
        ]
        later = [
            r
            for r in self.state.replacements
            if (r.job_id, r.rank, r.attempt) == (job_id, rank, attempt)
        ]
        return first + [
            LogLife(
                TaskKey(job_id, rank, r.epoch),
                r.host_id,
                self.state.log_bases.get((job_id, rank, r.epoch, stream)),
            )
            for r in sorted(later, key=lambda r: r.number)
        ]

    async def ask_log_read(self, host_id: str, order: LogReadOrder, *, now: Now = None) -> None:
        s, at = self.state, self.state.at(now)
        oldest = at - timedelta(seconds=LOG_READ_SECONDS)
        s.log_reads = {i: read for i, read in s.log_reads.items() if read.asked_at >= oldest}
        s.log_reads[order.id] = MemoryLogRead(host_id=host_id, order=order, asked_at=at)

    async def list_log_reads(self, host_id: str) -> list[LogReadOrder]:
        return [r.order for r in self.state.log_reads.values() if r.waits_for(host_id)]

    async def answer_log_reads(self, host_id: str, answers: Sequence[LogReadAnswer]) -> None:
        for answer in answers:
            read = self.state.log_reads.get(answer.id)
            if read is not None and read.waits_for(host_id):
                read.answer = answer

    async def take_log_read(self, read_id: str, *, give_up: bool = False) -> LogReadAnswer | None:
        read = self.state.log_reads.get(read_id)
        if read is None or (read.answer is None and not give_up):
            return None
        del self.state.log_reads[read_id]
        return read.answer

    async def put_forensics(self, host_id: str, forensics: Forensics) -> None:
        attempt = self._find_attempt(host_id, forensics.key)
        key = forensics.key
        self.state.forensics[key.job_id, attempt, key.rank, key.epoch] = forensics

    async def get_forensics(
        self, job_id: str, attempt: int | None = None
    ) -> list[tuple[int, Forensics]]:
        return [
            (place[1], found)
            for place, found in sorted(self.state.forensics.items())
            if place[0] == job_id and attempt in (None, place[1])
        ]
