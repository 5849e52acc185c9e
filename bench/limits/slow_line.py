"""A relay of one port that delays and paces: a line of so many bits a second and so many milliseconds.

Run as a process of its own: `python -m bench.limits.slow_line TARGET_PORT MBIT DELAY_MS` prints its
port. Each connection has the whole line, one way each.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque

_READ_BYTES = 256 << 10


async def carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: float, delay: float
) -> None:
    """Pass bytes on, each `delay` seconds after it came and `rate` a second at most; at most what
    the line holds is under way."""
    loop = asyncio.get_running_loop()
    under_way: deque[tuple[float, bytes]] = deque()
    room = asyncio.Event()
    came = asyncio.Event()
    room.set()
    held, most = 0, max(_READ_BYTES, int(rate * delay * 4))

    async def deliver() -> None:
        nonlocal held
        free_at = 0.0
        while True:
            while not under_way:
                came.clear()
                await came.wait()
            at, data = under_way.popleft()
            free_at = max(free_at, at) + len(data) / rate
            wait = free_at - loop.time()
            if wait > 0.0005:
                await asyncio.sleep(wait)
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
            held -= len(data)
            room.set()

    task = asyncio.create_task(deliver())
    try:
        while True:
            await room.wait()
            data = await reader.read(_READ_BYTES)
            under_way.append((loop.time() + delay, data))
            came.set()
            if not data:
                break
            held += len(data)
            if held >= most:
                room.clear()
        await task
    except OSError:
        task.cancel()
    finally:
        writer.close()


async def serve(target: int, mbit: float, delay_ms: float) -> None:
    """Serve until killed."""
    rate, delay = mbit * 125_000.0, delay_ms / 2000.0

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", target, limit=4 << 20)
        await asyncio.gather(
            carry(reader, back, rate, delay), carry(there, writer, rate, delay),
            return_exceptions=True,
        )  # fmt: skip

    server = await asyncio.start_server(join, "127.0.0.1", 0, limit=4 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))
