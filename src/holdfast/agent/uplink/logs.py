"""Ship logs: read the files of tasks by offset, mask secrets, and send the bytes in batches.

LOGS-1  An offset moves only after the controller stored the bytes, so that an outage loses nothing
        that the disk still has; a restarted agent goes on where the record ends, or a little
        before.
LOGS-2  A stream that grows faster than it can be sent is cut in the middle: its head is sent, then
        as much of its end as the controller would keep. Offsets stay true, so that the gap shows.
LOGS-2b A byte that is in no file, because the disk was full or the file was removed, is part of the
        gap at its offset, and counts in the size that is sent with the end of the stream.
LOGS-3  Secrets are masked in the file on disk as in the bytes that are sent (REDACT-1), in place
        and at true offsets, whether the bytes are sent or not.
"""

import asyncio
import errno
import logging
import os
import random
import re
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress

from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.uplink.calls import ControllerCalls
from holdfast.core.calls.marks import count_partial
from holdfast.core.ids import TaskKey
from holdfast.core.logs.plan import HEAD_SHARE
from holdfast.errors import HoldfastError, Unauthorized, Unavailable
from holdfast.wire.agent import MAX_LOG_CHUNK_BYTES
from holdfast.wire.logs.uploads import LogUpload

log = logging.getLogger("holdfast.agent.uplink.logs")

CHUNK_BYTES = 256 * 1024
_CALL_BYTES = MAX_LOG_CHUNK_BYTES - 64 * 1024  # room for the frame around the bytes
_POLL_SECONDS = (0.05, 0.2)
_FAILED_SECONDS = 0.1  # the shortest pause after a failed call, though other calls are answered
_GATHER_SECONDS = 0.05  # from one call to the next, because many short tasks end within it
REST_SECONDS = 0.2
_CROWD = 100  # with more tasks than this the slow poll is a second, because a stat costs 2 µs
_MAX_UPLOADS = 512
_TAIL_BYTES = {"stdout": 5_000, "stderr": 9_000}
STREAMS = ("stdout", "stderr")
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MASK_BYTES = 4 << 20  # searched for secrets in one turn
_FINAL_TURNS = 8  # turns made at once after a task's end: more would delay a heartbeat


class StreamTail:
    """Follows one file. offset: the offset up to which the controller has its bytes on record."""

    def __init__(self, task: AgentTask, stream: str) -> None:
        self.task = task
        self.stream = stream
        self.offset = task.saved.shipped.get(stream, 0)
        self.done = False
        self._path = f"{task.folder}/{stream}"
        self._marked = task.order is not None and bool(task.order.executor)
        self._masked = 0
        """Hold the offset up to which secrets are masked in the file itself."""

    def read_upload(self, limit_bytes: int) -> LogUpload | None:
        """Return the next bytes to send; None if there are none now. If the file has vanished
        and the task has ended, return an upload that only ends the stream."""
        final = not self.task.live
        if self._has_nothing_new():
            return self._tell_end() if final else None
        try:
            fd = os.open(self._path, _READ_FLAGS)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                return None  # the agent lacks descriptors or memory; the file may be there
            return self._tell_end() if final else None
        try:
            size = os.fstat(fd).st_size
            turns = range(_FINAL_TURNS if final else 1)
            masked = any(self._mask_file(fd, size, final=final) for _ in turns)
            if final and not masked:
                return None  # the end is sent once the whole file is masked
            start = self._find_start(fd, size)
            if size <= start:
                return self._tell_end(start) if final else None
            data = self._read_masked(fd, start, min(limit_bytes, size - start), final=final)
            if data is None:
                return None  # the guardian punched a hole here meanwhile: look again
            if self._marked and not (final and start + len(data) >= size):
                data = data[: len(data) - count_partial(data)]  # the controller sees marks whole
            ended = final and start + len(data) >= max(size, self._size_told())
            return self._upload(start, data, ended=ended) if data or ended else None
        except OSError as error:
            if not final:
                return None
            lost = f"the rest of its {self.stream} cannot be read: {error}"
            log.error(lost, extra=self.task.about())
            return self._tell_end()
        finally:
            os.close(fd)

    def _tell_end(self, offset: int = 0) -> LogUpload:
        """Return an upload without bytes that ends the stream, at the offset after its last
        byte, whether or not that byte is in a file."""
        return self._upload(max(offset, self.offset, self._size_told()), b"", ended=True)

    def _size_told(self) -> int:
        told = self.task.saved.output.get(self.stream)
        return told.size if told is not None else 0

    def _has_nothing_new(self) -> bool:
        """Return True if the controller has the file up to its end, masked. Most short tasks print
        nothing, and this check costs a third of opening the file."""
        try:
            found = os.lstat(self._path)
        except OSError:
            return False
        masked = self._masked >= found.st_size or not self.task.redactor.overlap_bytes
        return stat.S_ISREG(found.st_mode) and found.st_size == self.offset and masked

    def read_range(self, offset: int, length: int) -> tuple[int, bytes]:
        """Read again bytes that were shipped or skipped. Return the offset of the first byte
        that the disk still has, and the bytes from there up to `offset + length`. Raises
        OSError."""
        fd = os.open(self._path, _READ_FLAGS)
        try:
            size = os.fstat(fd).st_size
            try:
                start = os.lseek(fd, offset, os.SEEK_DATA)
            except OSError:
                return max(offset, size), b""  # nothing but a hole up to the end
            wanted = min(length, offset + length - start)
            if wanted <= 0:
                return start, b""
            return start, self._read_masked(fd, start, wanted, final=not self.task.live) or b""
        finally:
            os.close(fd)

    def _mask_file(self, fd: int, size: int, *, final: bool) -> bool:
        """Mask secrets in the next part of the file (LOGS-3). Return True once all of `size` was
        searched."""
        redactor = self.task.redactor
        if not redactor.overlap_bytes or self._masked >= size:
            return True
        try:
            start = os.lseek(fd, self._masked, os.SEEK_DATA)
        except OSError:
            self._masked = size  # nothing but a hole
            return True
        # The window begins a secret's length earlier, because a secret may cross the border.
        before = min(start, redactor.overlap_bytes)
        window = os.pread(fd, before + _MASK_BYTES, start - before)
        end = start - before + len(window)
        pending = 0 if final and end >= size else redactor.count_pending(window)
        settled = redactor.count_settled(window, pending)
        if settled <= before and end < size:
            settled = len(window) - pending  # a chain of secrets without end: mask what is there
        masked = redactor.mask(window)[:settled]
        if masked != window[:settled]:
            self._write_masked(start - before, window, masked)
        self._masked = max(start, start - before + settled)
        return end >= size

    def _write_masked(self, at: int, window: bytes, masked: bytes) -> None:
        """Write the bytes that differ over the task's own file. Write through no link and into
        no file with two names, because the task may have put another file in its place."""
        fd = os.open(self._path, os.O_WRONLY | (_READ_FLAGS & ~os.O_ACCMODE))
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                return
            for span in re.finditer(rb"\*+", masked):
                low, high = span.span()
                if window[low:high] != masked[low:high]:
                    os.pwrite(fd, masked[low:high], at + low)
        finally:
            os.close(fd)

    def _upload(self, offset: int, data: bytes, *, ended: bool) -> LogUpload:
        return LogUpload(
            key=self.task.key,
            stream=self.stream,  # type: ignore[arg-type]  # one of STREAMS
            offset=offset,
            data=data,
            ended=ended,
        )

    def _find_start(self, fd: int, size: int) -> int:
        """Return the offset at which to read on. Bytes before it are skipped, because they would
        not be kept (LOGS-2), or because the file has a hole there."""
        start, keep = self.offset, self.task.keep_bytes
        head = keep // HEAD_SHARE
        if start >= head:  # the head was sent
            start = max(start, size - (keep - head))
        if size > start:
            try:
                start = os.lseek(fd, start, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    start = size  # nothing but a hole up to the end
        return start

    def _read_masked(self, fd: int, start: int, length: int, *, final: bool) -> bytes | None:
        """Read a range with a secret's length on each side, mask secrets, and return the range
        (REDACT-1)."""
        redactor = self.task.redactor
        before = min(start, redactor.overlap_bytes)
        window = os.pread(fd, before + length + redactor.overlap_bytes, start - before)
        try:
            hole = os.lseek(fd, start, os.SEEK_HOLE)  # the guardian may just have punched one
        except OSError:
            hole = start + len(window)
        if hole <= start:
            return None
        window = window[: hole - start + before]
        after_end = len(window) - before  # bytes from `start` on
        # Bytes that may be half a secret wait for its other half; at the end there is none.
        pending = 0 if final else redactor.count_pending(window)
        sendable = max(0, min(length, after_end - pending))
        return redactor.mask(window)[before : before + sendable]


class LogShipper:
    """Ships all streams. `finished`: called with a task when its last byte is on record."""

    def __init__(self, calls: ControllerCalls, finished: Callable[[AgentTask], None]) -> None:
        self._calls = calls
        self._finished = finished
        self._tails: dict[TaskKey, list[StreamTail]] = {}
        self._wake = asyncio.Event()
        self._away = False
        self._back = asyncio.Event()  # set when the controller answers any call
        self._turn = 0
        self._rest_until = 0.0

    def follow(self, task: AgentTask) -> None:
        """Begin, or go on, to ship a task's streams."""
        if task.saved.shipped_whole or task.key in self._tails:
            return
        self._tails[task.key] = [StreamTail(task, stream) for stream in STREAMS]
        self._wake.set()

    def hurry(self) -> None:
        """Ship the rest of a task's streams now, because it ended."""
        self._wake.set()

    def note_answer(self) -> None:
        """Send the logs that waited while the controller was away, because it answers again and
        readers of ended tasks do not wait for long."""
        if self._away:
            self._back.set()

    def rest(self) -> None:
        """Send no logs for `REST_SECONDS`, because a gang has fallen: sending logs would take
        processor time from the report of its ends and from its next start."""
        self._rest_until = asyncio.get_running_loop().time() + REST_SECONDS

    @property
    def behind(self) -> bool:
        """Return True if streams of ended tasks are still to be shipped."""
        return any(not tail.task.live for tails in self._tails.values() for tail in tails)

    async def run(self) -> None:
        """Ship logs for ever."""
        quick, slow = _POLL_SECONDS
        pause, failed_pause = quick, 0.5
        loop = asyncio.get_running_loop()
        while True:
            while (rest := self._rest_until - loop.time()) > 0:
                await asyncio.sleep(rest)
            self._wake.clear()
            uploads = self.read_uploads()
            if uploads:
                try:
                    await self._send(uploads)
                except HoldfastError as error:
                    self._note_away(error)
                    await asyncio.sleep(_FAILED_SECONDS)
                    self._back.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(failed_pause * random.uniform(0.75, 1.25)):
                            await self._back.wait()
                    failed_pause = min(failed_pause * 2, 5.0)
                    continue
                failed_pause, pause = 0.5, quick
                self._note_back()
                if sum(len(upload.data) for upload in uploads) >= CHUNK_BYTES:
                    continue  # behind: no pause
                self._rest_until = max(self._rest_until, loop.time() + _GATHER_SECONDS)
            else:
                pause = min(pause * 1.5, slow if len(self._tails) < _CROWD else 1.0)
            try:
                async with asyncio.timeout(pause if self._tails else None):
                    await self._wake.wait()
                    pause = quick
            except TimeoutError:
                pass

    def read_uploads(self) -> list[LogUpload]:
        """Return uploads for one call: ended tasks first, and each stream in turn."""
        uploads: list[LogUpload] = []
        room = _CALL_BYTES
        tails = [tail for pair in self._tails.values() for tail in pair if not tail.done]
        self._turn = (self._turn + 1) % max(1, len(tails))
        tails = tails[self._turn :] + tails[: self._turn]
        for tail in sorted(tails, key=lambda tail: tail.task.live):
            if not tail.task.may_write:
                continue
            if room <= 0 or len(uploads) >= _MAX_UPLOADS:
                break
            upload = tail.read_upload(min(CHUNK_BYTES, room))
            if upload is not None:
                uploads.append(upload)
                room -= len(upload.data)
        return uploads

    async def _send(self, uploads: list[LogUpload]) -> None:
        try:
            answer = await self._calls.send_logs(uploads)
        except (Unavailable, Unauthorized):
            raise
        except HoldfastError as error:
            if len(uploads) > 1:
                for upload in uploads:  # one refused upload must not delay the others
                    if upload.key in self._tails:  # its other stream may just have been refused
                        await self._send([upload])
                return
            key = uploads[0].key
            extra = self._tails[key][0].task.about()
            log.error(f"the controller does not take its logs: {error}", extra=extra)
            self._drop([key])
            return
        for upload in uploads:
            self._advance(upload)
        self._drop(answer.refused)

    def _advance(self, upload: LogUpload) -> None:
        for tail in self._tails.get(upload.key, []):
            if tail.stream == upload.stream:
                tail.offset = upload.offset + len(upload.data)
                tail.done = upload.ended
                tail.task.saved.shipped = {**tail.task.saved.shipped, tail.stream: tail.offset}
                tail.task.dirty = True
        self._settle(upload.key)

    def _drop(self, keys: Iterable[TaskKey]) -> None:
        for key in keys:
            for tail in self._tails.get(key, []):
                tail.done = True
            self._settle(key)

    def _settle(self, key: TaskKey) -> None:
        tails = self._tails.get(key, [])
        if tails and all(tail.done for tail in tails):
            del self._tails[key]
            task = tails[0].task
            task.saved.shipped_whole = True
            task.dirty = True
            self._finished(task)

    def _note_away(self, error: HoldfastError) -> None:
        if not self._away:
            self._away = True
            log.warning(f"logs wait on disk: {error}")

    def _note_back(self) -> None:
        if self._away:
            self._away = False
            log.info("logs are shipped again")


def read_log_tail(task: AgentTask) -> str:
    """Return the last lines of both streams with secrets masked, at most 16 384 characters;
    stderr has more room."""
    parts = []
    for stream in STREAMS:
        limit = _TAIL_BYTES[stream]
        try:
            fd = os.open(task.path_of(stream), _READ_FLAGS)
        except OSError:
            continue
        try:
            size = os.fstat(fd).st_size
            overlap = task.redactor.overlap_bytes
            start = max(0, size - limit - overlap)
            window = task.redactor.mask(os.pread(fd, limit + overlap, start))
            data = window[-limit:]
        except OSError:
            continue
        finally:
            os.close(fd)
        if len(window) < size:
            data = data[data.find(b"\n") + 1 :]  # the first line is likely a part of one
        text = data.replace(b"\0", b"").decode(errors="replace").strip("\n")
        if text:
            parts.append(f"[{stream}]\n{text}")
    return "\n".join(parts)[-16_384:]
