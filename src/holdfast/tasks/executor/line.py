"""The line to the agent: a Unix stream socket and the thread that serves it.

LINE-2  The runner makes no system call for a short call: the thread looks for ends every
        `FLUSH_SECONDS` while there are any, and is woken only when it sleeps, when the next batch is
        wanted, or when nothing is left to run. An agent that is away or frozen holds up no call.
"""

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable

import msgspec

from holdfast.errors import ValidationError
from holdfast.tasks.executor.hand import Hand
from holdfast.wire.calls import AgentFrame, BlobDone, ExecutorFrame
from holdfast.wire.frames import FrameReader, encode_frame

FLUSH_SECONDS = 0.02
_AGAIN_SECONDS = (0.05, 1.0)
_READ_BYTES = 1 << 18
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AgentFrame).decode


class AgentLine:
    """Keeps the agent and the hand in step, over agents that come and go."""

    def __init__(self, address: str, hand: Hand, taken: Callable[[AgentFrame], None]) -> None:
        self._address, self._hand, self._taken = address, hand, taken
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._socket: socket.socket | None = None
        self._reader = FrameReader()
        self._asked: dict[str, tuple[str, threading.Event]] = {}  # blobs: sha256 → what for
        self._unasked: list[str] = []
        self._errors: dict[str, str | None] = {}
        self.looks = False  # the thread looks by itself soon

    def start(self) -> None:
        """Serve from now on."""
        threading.Thread(target=self._serve, name="holdfast-line", daemon=True).start()

    def wake(self) -> None:
        """Have the thread look now."""
        with contextlib.suppress(BlockingIOError):  # it was woken often enough
            os.eventfd_write(self._wake_fd, 1)

    def move_blob(self, way: str, sha256: str) -> str | None:
        """Have the agent fetch or keep a blob; wait. Returns why that failed, or None."""
        done = threading.Event()
        self._asked[sha256] = (way, done)
        self._unasked.append(sha256)
        self.wake()
        done.wait()
        del self._asked[sha256]
        return self._errors.pop(sha256, None)

    # ---- the thread

    def _serve(self) -> None:
        pause, longest = _AGAIN_SECONDS
        while True:
            try:
                self._connect()
                pause = _AGAIN_SECONDS[0]
                self._talk()
            except (OSError, ValidationError, msgspec.MsgspecError):
                pass  # the agent went, or was replaced: it is called again
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _connect(self) -> None:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket, self._reader = line, FrameReader()
        line.connect(self._address)
        self._unasked = list(self._asked)
        self._send(self._hand.make_hello())

    def _talk(self) -> None:
        assert self._socket is not None
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wake_fd, select.POLLIN)
        while True:
            ready = dict(poll.poll(1000 * FLUSH_SECONDS if self.looks else None))
            if self._wake_fd in ready:
                os.eventfd_read(self._wake_fd)
            if self._socket.fileno() in ready:
                self._read()
            blobs, self._unasked = self._unasked, []
            frame = self._hand.make_frame(full=bool(blobs))
            self.looks = frame is not None
            if frame is not None:
                self._send(self._add_blobs(frame, blobs))
            elif self._hand.unsent:
                self.looks = True  # it came between the two

    def _read(self) -> None:
        assert self._socket is not None
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the agent closed the line")
        for body in self._reader.feed(data):
            frame = _decode(body)
            for blob in frame.blobs:
                self._take_blob(blob)
            self._hand.take(frame)
            self._taken(frame)

    def _take_blob(self, blob: BlobDone) -> None:
        waits = self._asked.get(blob.sha256)
        if waits is not None:
            self._errors[blob.sha256] = blob.error
            waits[1].set()

    def _add_blobs(self, frame: ExecutorFrame, blobs: list[str]) -> ExecutorFrame:
        asked = [(sha256, self._asked[sha256][0]) for sha256 in blobs if sha256 in self._asked]
        if not asked:
            return frame
        return msgspec.structs.replace(
            frame,
            fetch=[sha256 for sha256, way in asked if way == "fetch"],
            keep=[sha256 for sha256, way in asked if way == "keep"],
        )

    def _send(self, frame: ExecutorFrame) -> None:
        assert self._socket is not None
        self._socket.sendall(encode_frame(_encode(frame)))
