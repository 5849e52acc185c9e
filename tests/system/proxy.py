"""A TCP proxy on loopback that can misbehave: delay, hold, cut, black-hole, and close its door. For
tests of partitions.

It runs in a thread with its own event loop, so that blocking tests and asyncio tests can both drive
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Literal


class Proxy:
    """Forwards `127.0.0.1:port` to `target_port`. Use as a context manager; every knob may be
    turned at any time.

    delay_seconds: added to every chunk, each way. black_hole: bytes are swallowed, connections stay
    open. swallow: the same for one way alone, "up" to the target or "down" from it.
    refuse: new connections are closed at once. rewrite: what becomes of each chunk on its way,
    either way.
    """

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.delay_seconds = 0.0
        self.black_hole = False
        self.swallow: Literal["up", "down"] | None = None
        self.refuse = False
        self.rewrite: Callable[[bytes], bytes] = lambda data: data
        self.bytes_seen = 0
        self._flows = asyncio.Event()
        self._flows.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *exc: object) -> None:
        self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def hold(self) -> None:
        """Forward nothing and close nothing: half-open connections, as their two ends see them."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def let_go(self) -> None:
        """Forward again, and first what was held, in its order, as TCP does after a broken link."""
        self._loop.call_soon_threadsafe(self._flows.set)

    def cut(self) -> None:
        """Reset every connection there is now."""
        self._call(self._cut())

    def restore(self) -> None:
        """Behave again. Connections that sat in the black hole are cut: what was swallowed is
        gone."""
        swallowed = self.black_hole
        self.black_hole, self.refuse, self.delay_seconds = False, False, 0.0
        if swallowed:
            self.cut()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _shut(self) -> None:
        self._server.close()
        await self._cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            writer.transport.abort()
            return
        try:
            onward_reader, onward = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, onward}
        self._keep(self._pump(reader, onward, "up"))
        self._keep(self._pump(onward_reader, writer, "down"))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: str
    ) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while data := await source.read(65_536):
                self.bytes_seen += len(data)
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                await self._flows.wait()
                if self.black_hole or self.swallow == way:
                    continue
                sink.write(self.rewrite(data))
                await sink.drain()
        self._writers.discard(sink)
        if not self.black_hole:
            with contextlib.suppress(OSError):
                sink.close()
