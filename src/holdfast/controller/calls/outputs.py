"""The output of one call, read from the logs of its executors.

- The bytes sent are the output of one attempt of one call, between its mark and the next one, in
  order and once; bytes that are not kept are a `gap`.

OUTPUT-2  An attempt that has ended is read until its output is over: another call's mark follows,
          its executor's log has ended, or its last bytes had time to come, also after the server
          was away.
"""

from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Any

from starlette.responses import Response

from holdfast.controller.calls.sets import read_call_name
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.sse import StreamAnswer, event_bytes
from holdfast.controller.runtime.context import Controller
from holdfast.core.calls.marks import cut_output, find_marks
from holdfast.store.postgres.calls.values import CallOutput, CallStanding
from holdfast.wire.calls import CallLogLine
from holdfast.wire.operations.queries import is_on
from holdfast.wire.operations.work.calls import CallLogsQuery

PAGE_BYTES = 256 * 1024
POLL_SECONDS = 1.0
LATE_SECONDS = 1.0
"""The time in which a call's last bytes may still come after its end: an agent ships new bytes five
times a second."""
RETURN_SECONDS = 10.0
"""The same time where the server was away at the call's end: an agent waits up to 6 s between two
tries, and sends its logs once a try is answered."""


async def get_call_logs(call: ApiCall) -> Response:
    """Send the output of a call, as a stream of events."""
    set_id, index = read_call_name(call)
    query = call.query(CallLogsQuery)
    await call.store.calls.read_call(set_id, index)  # NotFound is an answer, not an event
    reader = OutputReader(call.controller, set_id, index, query)
    return StreamAnswer(call.controller, reader.events())


class _OutputStream:
    """How far the output of an attempt has been read in one stream of one executor. at: the offset
    of the next byte to read; None until the attempt's mark was found. seen: the offset up to which
    the log was searched for the mark."""

    def __init__(self, output: CallOutput) -> None:
        self.job_id, self.job_attempt = output.job_id, output.job_attempt
        self.stream: Any = output.stream
        self.seen = 0
        self.at: int | None = None
        self.fresh = True
        self.over = False


class OutputReader:
    """One reader's place in the output of one call."""

    def __init__(
        self, controller: Controller, set_id: str, index: int, query: CallLogsQuery
    ) -> None:
        self._controller, self._logs = controller, controller.store.logs
        self._set_id, self._index, self._query = set_id, index, query
        self._attempt = query.attempt or query.since or 0
        self._told = 0
        self._streams: dict[tuple[str, int, str], _OutputStream] = {}
        self._over_since: float | None = None

    async def events(self) -> AsyncIterator[bytes]:
        """Yield SSE events until the output is over."""
        controller, calls = self._controller, self._controller.store.calls
        logs = controller.wakes.topic("logs")
        while True:
            seen = logs.version
            standing = await calls.read_call(self._set_id, self._index)
            self._attempt = self._attempt or standing.attempts
            if self._told != self._attempt:
                self._told = self._attempt
                yield event_bytes("attempt", {"attempt": self._attempt})
            async for line in self._read_new():
                self._over_since = None  # more output may come
                yield event_bytes("log", line)
            if self._goes_on(standing):
                self._attempt, self._over_since = self._attempt + 1, None
                continue
            if await self._is_over(standing):
                yield event_bytes("end", {"attempt": self._attempt})
                return
            if not controller.wakes.closing and logs.version == seen:
                await logs.wait(seen, POLL_SECONDS if self._over_since is None else 0.1)
            yield b""  # lets the writer send a keep-alive and notice a closing server

    def _goes_on(self, standing: CallStanding) -> bool:
        """Return whether a follower of all attempts goes on to the next one."""
        follows = is_on(self._query.follow) and self._query.attempt is None
        return follows and self._attempt < standing.attempts and self._is_settled(None)

    async def _is_over(self, standing: CallStanding) -> bool:
        """Return whether the reader has received all output that it asked for (OUTPUT-2)."""
        later = standing.attempts > self._attempt
        running = standing.phase == "running" and not later
        if is_on(self._query.follow):
            coming = later or standing.phase != "ended"
            if running or (coming and self._query.attempt is None):
                self._over_since = self._over_since if later else None
                return False
        elif running:
            return True
        return self._is_settled(await self._find_age(standing.ended_at))

    async def _find_age(self, ended_at: datetime | None) -> float | None:
        if ended_at is None:
            return None
        return (await self._controller.store.now() - ended_at).total_seconds()

    def _is_settled(self, age_seconds: float | None) -> bool:
        """Return whether no more bytes of the attempt can come. age_seconds: the time since the
        attempt's end; None where its end is unknown."""
        found = self._streams.values()
        wanted = ("stdout", "stderr") if self._query.stream == "both" else (self._query.stream,)
        if found and {s.stream for s in found if s.over} == set(wanted):
            return True
        now = self._controller.clock()
        self._over_since = self._over_since or now
        age = now - self._over_since if age_seconds is None else age_seconds
        served = now - self._controller.began_at
        late = RETURN_SECONDS if self._was_away(age, served) else LATE_SECONDS
        return min(age, served) > late

    def _was_away(self, age_seconds: float, served: float) -> bool:
        """Return whether the attempt may have ended while no server received its agent's reports:
        before this server began or soon after, with no earlier report of its executor."""
        jobs = {stream.job_id for stream in self._streams.values()}
        known = self._controller.calls.known_seconds(jobs)
        return served - age_seconds < RETURN_SECONDS and age_seconds >= known

    async def _read_new(self) -> AsyncIterator[CallLogLine]:
        outputs = await self._controller.store.calls.find_outputs(
            self._set_id, self._index, self._attempt
        )
        for stream in await self._find_marks(outputs):
            async for line in self._read_on(stream):
                yield line

    async def _find_marks(self, outputs: Iterable[CallOutput]) -> list[_OutputStream]:
        """Return the streams in which the attempt's mark was found and whose output is not over."""
        found: dict[tuple[str, int, str], _OutputStream] = {}
        for output in outputs:
            if self._query.stream not in ("both", output.stream):
                continue
            place = (output.job_id, self._attempt, output.stream)
            stream = self._streams.get(place) or _OutputStream(output)
            if stream.at is None and output.end > stream.seen:
                stream.at = await self._find_mark(output)
                stream.seen = output.end
            if stream.at is not None:
                found[place] = self._streams[place] = stream
        return [stream for stream in found.values() if not stream.over]

    async def _find_mark(self, output: CallOutput) -> int | None:
        """Return the offset at which the call's own output begins within the span, or None where
        its mark is not kept."""
        data, at = b"", output.start
        while at < output.end:
            chunks = await self._logs.read_log(
                output.job_id, output.job_attempt, 0, output.stream, at,
                limit_bytes=output.end - at,
            )  # fmt: skip
            for chunk in chunks:
                if chunk.offset != at:
                    return None  # the bytes were dropped in between
                data, at = data + chunk.data, at + len(chunk.data)
            if not chunks:
                break
        wanted = (self._set_id, self._index, self._attempt)
        for mark in find_marks(data):
            if (mark.set_id, mark.index, mark.attempt) == wanted:
                return output.start + mark.end
        return None

    async def _read_on(self, stream: _OutputStream) -> AsyncIterator[CallLogLine]:
        """Yield new bytes up to the next mark."""
        known = await self._logs.list_log_streams(stream.job_id, stream.job_attempt)
        record = next(s for s in known if s.stream == stream.stream)
        assert stream.at is not None
        while stream.at < record.size and not stream.over:
            chunks = await self._logs.read_log(
                stream.job_id, stream.job_attempt, 0, stream.stream, stream.at,
                limit_bytes=PAGE_BYTES,
            )  # fmt: skip
            if not chunks:
                return
            gap = chunks[0].offset - stream.at
            data, end = chunks[0].data, chunks[0].offset + len(chunks[0].data)
            for chunk in chunks[1:]:
                if chunk.offset != end:
                    break
                data, end = data + chunk.data, end + len(chunk.data)
            final = record.ended and end >= record.size
            own, stream.over = cut_output(data, fresh=stream.fresh and not gap, final=final)
            if not own and not gap:
                break
            stream.at += gap
            line = self._make_line(stream, own, gap)
            stream.at += len(own)
            stream.fresh = own[-1:] == b"\n"
            yield line
            if len(own) < len(data):
                break
        stream.over = stream.over or (record.ended and stream.at >= record.size)

    def _make_line(self, stream: _OutputStream, data: bytes, gap: int) -> CallLogLine:
        return CallLogLine(
            attempt=self._attempt,
            job=stream.job_id,
            stream=stream.stream,
            offset=stream.at or 0,
            data=data,
            gap=gap,
        )
