"""Ask the process that sends notices: started when needed, ended when idle, replaced when late."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import time

import msgspec

from holdfast.controller.runtime.senders.notice_child import NoticeOrder, NoticeOutcome
from holdfast.core.webhooks.notices import Notice
from holdfast.core.webhooks.values import DeliveryAnswer

IDLE_SECONDS = 300.0
START_SECONDS = 30.0  # more for the first message of a process, whose library is loaded then
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")


class NoticeProcess:
    """One process that sends notices, and the messages that are under way in it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.waiting: dict[int, asyncio.Future[NoticeOutcome]] = {}
        self.late = False
        self._reading = asyncio.create_task(self._read())

    @property
    def usable(self) -> bool:
        """Return whether another message may be given to this process."""
        return not self.late and self.process.returncode is None and not self._reading.done()

    async def ask(self, work: NoticeOrder, seconds: float) -> NoticeOutcome:
        """Have a message sent, and return the outcome. Raises TimeoutError, and ConnectionError
        where the process is gone."""
        found: asyncio.Future[NoticeOutcome] = asyncio.get_running_loop().create_future()
        self.waiting[work.number] = found
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(msgspec.json.encode(work) + b"\n")
            async with asyncio.timeout(seconds):
                return await found
        except TimeoutError:
            self.late = True  # a thread of it hangs, so it gets no other message
            raise
        finally:
            self.waiting.pop(work.number, None)
            if self.late and not self.waiting:
                await self.end()

    async def end(self) -> None:
        """Kill the process; a message on its way may or may not have been sent."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        assert self.process.stdout is not None
        decoder = msgspec.json.Decoder(NoticeOutcome)
        try:
            while line := await self.process.stdout.readline():
                done = decoder.decode(line)
                future = self.waiting.get(done.number)
                if future is not None and not future.done():
                    future.set_result(done)
        finally:
            for future in self.waiting.values():
                if not future.done():
                    future.set_exception(
                        ConnectionResetError("the process that sends notices ended")
                    )


class NoticeSender:
    """Sends notices by a process of its own, so that the library is loaded where it is needed."""

    def __init__(self) -> None:
        self._process: NoticeProcess | None = None
        self._lock = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._idle: asyncio.TimerHandle | None = None
        self._endings: set[asyncio.Task[None]] = set()

    async def check(self, url: str, seconds: float = START_SECONDS) -> str:
        """Return the reason why the library does not understand a URL, or an empty text."""
        return await self._ask(NoticeOrder(next(self._numbers), url), seconds)

    async def send(
        self, url: str, body: bytes, *, allow_private: bool, seconds: float
    ) -> DeliveryAnswer:
        """Try once to send a notice. Nothing is raised: the answer says what went wrong."""
        notice = msgspec.json.decode(body, type=Notice)
        began = time.perf_counter()
        work = NoticeOrder(
            next(self._numbers),
            url,
            notice.title,
            notice.text,
            notice.failed,
            allow_private,
            seconds,
        )
        error = await self._ask(work, seconds)
        took = time.perf_counter() - began
        return DeliveryAnswer(status=None if error else 200, error=error, seconds=took)

    async def close(self) -> None:
        """End the process that sends notices."""
        if self._idle is not None:
            self._idle.cancel()
        if self._process is not None:
            process, self._process = self._process, None
            await process.end()

    async def _ask(self, work: NoticeOrder, seconds: float) -> str:
        try:
            async with self._lock:
                fresh = self._process is None or not self._process.usable
                if self._process is None or fresh:
                    self._process = await _start()
                process = self._process
            done = await process.ask(work, seconds + (START_SECONDS if fresh else 0.0))
        except TimeoutError:
            return f"no answer within {seconds:g} s"
        except OSError as error:
            return f"the process that sends notices failed: {error}"
        finally:
            self._end_when_idle()
        return done.error

    def _end_when_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._end_idle)

    def _end_idle(self) -> None:
        process = self._process
        if process is not None and not process.waiting:
            self._process = None
            task = asyncio.create_task(process.end())
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)


async def _start() -> NoticeProcess:
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    if "SSL_CERT_FILE" in environment:
        environment["REQUESTS_CA_BUNDLE"] = environment["SSL_CERT_FILE"]
    environment |= {"HOME": "/nonexistent", "NETRC": "/nonexistent/netrc", "no_proxy": "*"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "holdfast.controller.runtime.senders.notice_child",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment,
        cwd="/",
    )
    return NoticeProcess(process)
