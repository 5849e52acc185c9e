"""Bytes of a log that the controller did not keep, fetched from the host whose disk still has them.

A reader's order waits in the database, because the host may call another replica than the reader;
the host's next sync brings it there, and the host's answer brings the bytes.

- One piece of a reader is in progress at a time, so a slow reader holds back its host, and nothing
  piles up.
- Bytes that cannot be fetched are reported with the reason; a host that did not answer once is not
  waited for again by the same reader.
"""

import uuid
from collections.abc import AsyncIterator

from holdfast.controller.runtime.context import Controller
from holdfast.core.logs.plan import LifeRange, split_by_life
from holdfast.core.records import LogChunk, LogStreamRecord
from holdfast.core.states import HostState
from holdfast.errors import NotFound
from holdfast.wire.agent import LogReadOrder
from holdfast.wire.logs.uploads import LogReadAnswer

PIECE_BYTES = 1 << 20
ANSWER_SECONDS = 10.0


class HostReads:
    """One reader's fetches from hosts. reason: why the last missing bytes are missing."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._in_vain: dict[str, str] = {}
        self.reason = ""

    async def fetch(self, stream: LogStreamRecord, start: int, end: int) -> AsyncIterator[LogChunk]:
        """Yield the bytes of `[start, end)` that hosts still have, in order."""
        lives = await self._controller.store.logs.list_log_lives(
            stream.job_id, stream.attempt, stream.rank, stream.stream
        )
        for part in split_by_life(lives, start, end):
            async for chunk in self._fetch_part(stream, part):
                yield chunk

    async def _fetch_part(
        self, stream: LogStreamRecord, part: LifeRange
    ) -> AsyncIterator[LogChunk]:
        at, base = part.start, part.life.base or 0
        while at < part.end:
            order = LogReadOrder(
                id=uuid.uuid4().hex,
                key=part.life.key,
                stream=stream.stream,  # type: ignore[arg-type]  # one of the two
                offset=at - base,
                length=min(PIECE_BYTES, part.end - at),
            )
            answer = await self._ask(part.life.host_id, order)
            self.reason = answer.reason or self.reason
            found = base + answer.offset
            data = answer.data[: max(0, part.end - found)]
            if found < at or (not data and found == at):
                return
            if data:
                yield LogChunk(stream=stream.stream, rank=stream.rank, offset=found, data=data)
            at = found + len(data)

    async def _ask(self, host_id: str, order: LogReadOrder) -> LogReadAnswer:
        """Ask a host for bytes of a log, and return its answer. Where none comes, return an answer
        without bytes that names the reason."""
        if host_id not in self._in_vain:
            gone = await self._find_gone(host_id)
            answer = None if gone else await self._wait_for_answer(host_id, order)
            if answer is not None:
                return answer
            self._in_vain[host_id] = gone or await self._describe_silence(host_id)
        return LogReadAnswer(id=order.id, offset=order.offset, reason=self._in_vain[host_id])

    async def _find_gone(self, host_id: str) -> str:
        try:
            host = await self._controller.store.hosts.get_host(host_id)
        except NotFound:
            return f"host {host_id}, which ran it, is gone"
        if host.state is HostState.TERMINATED:
            return f"host {host.name}, which ran it, is gone: {host.reason}"
        return ""

    async def _describe_silence(self, host_id: str) -> str:
        host = await self._controller.store.hosts.get_host(host_id)
        return f"host {host.name} does not answer within {ANSWER_SECONDS:.0f} s: try again"

    async def _wait_for_answer(self, host_id: str, order: LogReadOrder) -> LogReadAnswer | None:
        controller = self._controller
        logs, topic = controller.store.logs, controller.wakes.topic("log_reads")
        await logs.ask_log_read(host_id, order)
        controller.ask_host(host_id, reads=True)
        until = controller.clock() + ANSWER_SECONDS
        answer = None
        try:
            while answer is None and not controller.wakes.closing and controller.clock() < until:
                seen = topic.version
                answer = await logs.take_log_read(order.id)
                if answer is None:
                    await topic.wait(seen, min(1.0, until - controller.clock()))
        finally:
            if answer is None:
                await logs.take_log_read(order.id, give_up=True)
        return answer
