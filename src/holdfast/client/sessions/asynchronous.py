"""A session for programs on asyncio. Its reads and writes wait in threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Self

from holdfast.client.sessions.session import Printed, TaskSession


class AsyncTaskSession:
    """A `TaskSession` whose methods are awaited."""

    def __init__(self, session: TaskSession) -> None:
        self.session = session

    @property
    def exit_code(self) -> int | None:
        """Return the command's exit code; None before its end."""
        return self.session.exit_code

    async def read(self, seconds: float | None = None) -> Printed | None:
        """Return the next piece of output; None at the end, or once `seconds` have passed."""
        return await asyncio.to_thread(self.session.read, seconds)

    async def __aiter__(self) -> AsyncIterator[Printed]:
        while (piece := await self.read()) is not None:
            yield piece

    async def write(self, data: bytes) -> None:
        """Send input to the command."""
        await asyncio.to_thread(self.session.write, data)

    async def close_stdin(self) -> None:
        """Send the end of the input."""
        await asyncio.to_thread(self.session.close_stdin)

    async def resize(self, rows: int, cols: int) -> None:
        """Tell the terminal its new size."""
        await asyncio.to_thread(self.session.resize, rows, cols)

    async def signal(self, name: str) -> None:
        """Send a signal to the command's processes."""
        await asyncio.to_thread(self.session.signal, name)

    async def wait(self) -> int:
        """Drop the rest of the output, and return the exit code."""
        return await asyncio.to_thread(self.session.wait)

    async def close(self) -> None:
        """Leave the session, which ends at once."""
        await asyncio.to_thread(self.session.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
