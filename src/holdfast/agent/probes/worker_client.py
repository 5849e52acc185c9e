"""Ask the probe's worker process: one request at a time, and a kill after five seconds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.agent.probes import READ_SECONDS
from holdfast.agent.probes.devices import Device
from holdfast.agent.probes.worker import ProbeAnswer

log = logging.getLogger("holdfast.agent.probes")

_IDLE_SECONDS = 60.0
_AGAIN_SECONDS = 30.0  # pause after a worker hung, before the driver is called again
_REAP_SECONDS = 1.0
_MAX_ANSWER_BYTES = 8 << 20


class ProbeWorker:
    """Asks a worker process, which is started when needed and ended after an idle minute. hung:
    True from a request that failed until one is answered."""

    def __init__(
        self, arguments: Sequence[str] = (), *, read_seconds: float = READ_SECONDS
    ) -> None:
        self.is_default = not arguments
        self._arguments = tuple(arguments)
        self._argv = [sys.executable, "-P", "-m", "holdfast.agent.probes.worker", *arguments]
        self._read_seconds = read_seconds
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._number = 0
        self._not_before = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self.hung = False

    @property
    def pid(self) -> int | None:
        """Return the worker's pid; None if there is none."""
        return self._process.pid if self._process is not None else None

    def make_twin(self) -> ProbeWorker:
        """Return another worker of the same kind."""
        return ProbeWorker(self._arguments, read_seconds=self._read_seconds)

    async def read(self) -> list[Device] | None:
        """Return the devices as they are now; None if the worker is late."""
        answer = await self.ask()
        if answer is None or (answer.errors and not answer.devices):
            return None
        return answer.devices

    async def ask(self, how: Literal["", "deep", "kernel"] = "") -> ProbeAnswer | None:
        """Return the worker's answer; None if it is late. how: "deep" for memory errors and the
        kernel log, too; "kernel" for the log alone, without a call of a driver."""
        async with self._lock:
            loop = asyncio.get_running_loop()
            if loop.time() < self._not_before:
                return None
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            try:
                async with asyncio.timeout(self._read_seconds):
                    answer = await self._ask(how)
            except (TimeoutError, OSError, ValueError, EOFError, msgspec.MsgspecError) as error:
                await self._give_up(error)
                return None
            if self.hung:
                self.hung = False
                log.info("the GPU probe answers again")
            self._idle_timer = loop.call_later(_IDLE_SECONDS, self._retire)
            return answer

    async def _ask(self, how: str) -> ProbeAnswer:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=_MAX_ANSWER_BYTES,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        self._number += 1
        process.stdin.write(b"%d %s\n" % (self._number, how.encode()))
        await process.stdin.drain()
        line = await process.stdout.readline()
        if not line:
            raise EOFError("the worker ended")
        answer = msgspec.json.decode(line, type=ProbeAnswer)
        if answer.number != self._number:
            raise ValueError("the worker answered something else")
        return answer

    async def _give_up(self, error: Exception) -> None:
        """Kill the worker process. A process that survives is stuck in the driver, and is left
        behind."""
        late = isinstance(error, TimeoutError)
        why = f"no answer in {self._read_seconds:g} s" if late else str(error)
        if not self.hung:
            self.hung = True
            log.warning(f"the GPU probe failed ({why}); GPU readings are unknown until it answers")
        wait = min(_AGAIN_SECONDS, 6 * self._read_seconds)
        self._not_before = asyncio.get_running_loop().time() + wait
        pid = self.pid
        if not await self._kill():
            log.error(f"the GPU probe {pid} survives SIGKILL: the driver of this host is stuck")

    async def _kill(self) -> bool:
        """Kill the worker; return True if none is left."""
        process, self._process = self._process, None
        if process is None:
            return True
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        try:
            async with asyncio.timeout(_REAP_SECONDS):
                await process.wait()
        except TimeoutError:
            return False
        return True

    def _retire(self) -> None:
        """End an idle worker by closing its input."""
        if self._process is not None and not self._lock.locked():
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process = None

    async def close(self) -> None:
        """End the worker."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        await self._kill()
