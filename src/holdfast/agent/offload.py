"""Run work beside the caller: coroutines, short programs, and blocking reads that may never return.

asyncio joins its own thread pool when the loop closes and when the interpreter exits, so that one
read that is stuck in the kernel would keep the agent from ending. The threads here are daemons,
which Python does not wait for.
"""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Value = TypeVar("Value")

MAX_OUTPUT_BYTES = 1 << 20
_KILL_WAIT_SECONDS = 1.0


def run_aside(read: Callable[[], Value]) -> asyncio.Future[Value]:
    """Call `read` in its own daemon thread; return a future of its result or its error."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Value] = loop.create_future()

    def settle(value: Value | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]  # None only if `read` returned it

    def work() -> None:
        value: Value | None = None
        error: BaseException | None = None
        try:
            value = read()
        except BaseException as caught:
            error = caught
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            pass  # the loop is closed, and no caller waits for the result

    threading.Thread(target=work, daemon=True).start()
    return future


class Asides:
    """Runs coroutines beside their caller, and keeps references to them, because asyncio has
    weak ones only."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine beside the caller."""
        aside = asyncio.create_task(work)
        self._running.add(aside)
        aside.add_done_callback(self._running.discard)

    async def wait(self, seconds: float) -> None:
        """Wait until all coroutines have ended, for `seconds` at most."""
        if self._running:
            await asyncio.wait(list(self._running), timeout=seconds)


async def run_bounded(
    argv: list[str], seconds: float, *, errors: bool = True
) -> tuple[int | None, str]:
    """Run a short program in its own session. Return its exit code and its output, at most
    `MAX_OUTPUT_BYTES`, without its standard error if `errors` is False. The code is None if the
    program could not be started, or was killed after `seconds`."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT if errors else asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return None, f"{argv[0]} could not be run: {error}"
    assert process.stdout is not None
    parts: list[bytes] = []
    size = 0
    code = None
    try:
        async with asyncio.timeout(seconds):
            while size < MAX_OUTPUT_BYTES and (data := await process.stdout.read(1 << 16)):
                parts.append(data)
                size += len(data)
            code = await process.wait()
    except TimeoutError:
        parts.append(f"\n(stopped after {seconds:.1f} s)".encode())
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_KILL_WAIT_SECONDS):
                    await process.wait()
    return code, b"".join(parts).decode(errors="replace")
