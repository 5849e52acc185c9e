"""Streams to a client: server-sent events and long bodies, written at the reader's pace."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.controller.runtime.context import Controller
from holdfast.errors import Forbidden, HoldfastError, Unauthorized

CHECK_SECONDS = 1.0
LET_IN = "holdfast.let_in"
"""The key under which a request's scope holds the check that its caller may still read."""
KEEP_ALIVE_SECONDS = 15.0
WRITE_SECONDS = 60.0  # after which a reader that took nothing counts as gone
_encode = msgspec.json.Encoder().encode


def event_bytes(kind: str, value: object, event_id: str | None = None) -> bytes:
    """Return one server-sent event. JSON holds no line break, so one `data:` line is enough."""
    head = f"id: {event_id}\n" if event_id is not None else ""
    return f"{head}event: {kind}\ndata: ".encode() + _encode(value) + b"\n\n"


async def chain_pieces(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield a body whose first piece was read ahead of its head."""
    if first:
        yield first
    async for piece in rest:
        yield piece


class StreamAnswer(Response):
    """A response that is written as `pieces` come. An empty piece means that there is nothing new,
    and that a keep-alive may be due.

    - `send` waits for the socket, so a slow reader holds back the reading from the store,
      and nothing piles up.
    STREAM-2  A stream ends within 5 s of the end of its caller's token: every second it checks
              whether the caller may still read.
    """

    def __init__(
        self,
        controller: Controller,
        pieces: AsyncIterator[bytes],
        media_type: str = "text/event-stream",
        headers: Mapping[str, str] | None = None,
        keep_alive: bool = True,
    ) -> None:
        super().__init__(
            None, 200, {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})}
        )
        del self.headers["content-length"]
        self.headers["content-type"] = media_type
        self._controller = controller
        self._pieces = pieces
        self._keep_alive = keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_wait_for_hang_up(receive))
        over = asyncio.ensure_future(_wait_for_refusal(scope.get(LET_IN)))
        write = asyncio.ensure_future(self._write(send))
        try:
            await asyncio.wait((gone, over, write), return_when=asyncio.FIRST_COMPLETED)
            if write.done():
                write.result()
        finally:
            for task in (gone, over, write):
                task.cancel()
            await asyncio.gather(gone, over, write, return_exceptions=True)
        if over.done() and not over.cancelled() and not write_ended(write):
            await self._end_for(over.result(), send)

    async def _end_for(self, refusal: HoldfastError, send: Send) -> None:
        """Tell the reader why the stream ends. A body of bytes is broken off, because it would look
        whole otherwise."""
        if not self._keep_alive:
            raise OSError(f"a download ends, because its caller is refused: {refusal.message}")
        problem = {"code": refusal.code, "detail": refusal.message}
        await self._send(send, event_bytes("problem", problem))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        clock = self._controller.clock
        sent_at = clock()
        if self._keep_alive:
            await self._send(send, b": holdfast\n\n")
        try:
            async for piece in self._pieces:
                if piece:
                    await self._send(send, piece)
                    sent_at = clock()
                elif self._keep_alive and clock() - sent_at >= KEEP_ALIVE_SECONDS:
                    await self._send(send, b": keep-alive\n\n")
                    sent_at = clock()
                if self._controller.wakes.closing:
                    break
        except HoldfastError as error:  # the head is out, so the problem goes into the stream
            if not self._keep_alive:
                raise
            await self._send(
                send, event_bytes("problem", {"code": error.code, "detail": error.message})
            )
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        async with asyncio.timeout(WRITE_SECONDS):
            await send({"type": "http.response.body", "body": data, "more_body": True})


def write_ended(write: asyncio.Future[None]) -> bool:
    """Return True where a stream was written to its end or failed by itself, and False where it was
    cut off."""
    return write.done() and not write.cancelled()


async def _wait_for_refusal(let_in: Callable[[], Awaitable[None]] | None) -> HoldfastError:
    """Wait until the caller may not read any more; return the refusal."""
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        try:
            if let_in is not None:
                await let_in()
        except (Unauthorized, Forbidden) as error:
            return error
        except HoldfastError:
            pass  # the store cannot be asked now


async def _wait_for_hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
