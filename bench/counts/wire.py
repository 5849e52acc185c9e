"""A relay before the controller that counts requests and bytes."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

_READ_BYTES = 1 << 16
_REQUEST = b" HTTP/1.1\r\n"


class Relay:
    """A port of loopback that passes everything on to `target`, in a thread of its own. requests:
    heads of HTTP requests that have passed. moved_bytes: of both ways."""

    def __init__(self, target: int) -> None:
        self.requests = self.moved_bytes = 0
        self.port = 0
        self._target = target
        self._loop = asyncio.new_event_loop()
        serves = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(serves,), daemon=True)
        self._thread.start()
        serves.wait()

    def close(self) -> None:
        """Cut every connection and end the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, serves: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        start = asyncio.start_server(self._join, "127.0.0.1", 0)
        server = self._loop.run_until_complete(start)
        self.port = server.sockets[0].getsockname()[1]
        serves.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            await asyncio.gather(self._carry(reader, back, asks=True), self._carry(there, writer))

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, asks: bool = False
    ) -> None:
        tail = b""
        try:
            while data := await reader.read(_READ_BYTES):
                self.moved_bytes += len(data)
                if asks:
                    self.requests += (tail + data).count(_REQUEST)
                    tail = data[1 - len(_REQUEST) :]
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()
