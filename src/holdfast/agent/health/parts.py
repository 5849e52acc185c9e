"""Look at the parts of a machine in a process of its own, each part in a thread, so that a part
that hangs (a mount, a driver) hides no other and holds up no caller.

The process gets its order on stdin and prints a line of JSON for each part as soon as that part is
done. At the deadline the process and its children are killed; what hangs in the kernel is left.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

log = logging.getLogger("holdfast.agent.health")

_MAX_OUTPUT_BYTES = 1 << 20
_REAP_SECONDS = 2.0


def report_parts(parts: Mapping[str, Callable[[], Any]]) -> int:
    """Look at every part at once, and print what each found: `found`, or `error` for a part that
    failed. Return the exit status."""
    turn = threading.Lock()

    def run(part: str) -> None:
        try:
            line: dict[str, Any] = {"part": part, "found": parts[part]()}
        except Exception as error:  # each part fails in its own way, and none ends the others
            line = {"part": part, "error": f"{type(error).__name__}: {error}"[:1000]}
        with turn:
            os.write(1, msgspec.json.encode(line) + b"\n")

    threads = [threading.Thread(target=run, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0


async def ask_parts(program: str, order: object, deadline_seconds: float) -> list[dict[str, Any]]:
    """Run a module as such a process, with an order. Return a line for each part that was done
    before the deadline: `part`, and `found` or `error`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", program),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=_MAX_OUTPUT_BYTES,
        start_new_session=True,
    )
    fragments: list[dict[str, Any]] = []
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(deadline_seconds):
            process.stdin.write(msgspec.json.encode(order))
            await process.stdin.drain()
            process.stdin.close()
            async for line in process.stdout:
                fragments.append(msgspec.json.decode(line))
            await process.wait()
    except (TimeoutError, OSError, ValueError, msgspec.MsgspecError) as error:
        log.warning("the look at this machine was cut short: %r", error)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):  # a process that hangs in the kernel is left
            async with asyncio.timeout(_REAP_SECONDS):
                await process.wait()
    return fragments
