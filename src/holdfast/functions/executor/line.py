"""The line to the agent: a Unix stream socket and the thread that serves it.

LINE-2  The runner makes no system call for a short call: the thread looks for ends every
        `FLUSH_SECONDS` while there are any, and is woken only when it sleeps, when the next batch
        is wanted, or when nothing is left to run. An agent that is away or frozen holds up no call.
"""

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from holdfast.bounds import UNREADABLE
from holdfast.errors import ValidationError
from holdfast.functions.executor.held_batches import HeldBatches
from holdfast.wire.calls import AgentFrame, BlobDone, CallSave, ExecutorFrame, SaveDone
from holdfast.wire.frames import FrameReader, encode_frame

FLUSH_SECONDS = 0.02
CUT = "this process was forked by the call, and has no line to the agent; save in the call itself"
_AGAIN_SECONDS = (0.05, 1.0)
_READ_BYTES = 1 << 18
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AgentFrame).decode

Transfer = tuple[str, str] | CallSave
"""A transfer that the agent is asked for: of a blob (direction and SHA-256), or of a checkpoint."""


class AgentLine:
    """Exchanges frames between the agent and the executor's batches, while agents come and go."""

    def __init__(
        self, address: str, batches: HeldBatches, taken: Callable[[AgentFrame], None]
    ) -> None:
        self._address, self._batches, self._taken = address, batches, taken
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._socket: socket.socket | None = None
        self._reader = FrameReader()
        self._transfers: dict[Transfer, threading.Event] = {}
        self._unsent: list[Transfer] = []
        self._answers: dict[Transfer, BlobDone | SaveDone] = {}
        self._is_cut = False
        self.looks = False  # the thread looks by itself soon

    def start(self) -> None:
        """Start the thread that serves the line."""
        threading.Thread(target=self._serve, name="holdfast-line", daemon=True).start()

    def wake(self) -> None:
        """Wake the thread that serves the line."""
        with contextlib.suppress(BlockingIOError):  # a full eventfd: the thread wakes
            os.eventfd_write(self._wake_fd, 1)

    def move_blob(self, way: str, sha256: str) -> str | None:
        """Have the agent fetch or keep a blob, and wait for that. Returns why it failed, or
        None."""
        return self._ask((way, sha256)).error

    def move_checkpoint(self, save: CallSave) -> SaveDone:
        """Have the agent keep or fetch a checkpoint, and wait for the answer."""
        done = self._ask(save)
        assert isinstance(done, SaveDone)
        return done

    def cut(self) -> None:
        """Stop all transfers, in a process that a call forked, which has no thread to serve
        them."""
        self._is_cut = True

    def _ask(self, asked: Transfer) -> BlobDone | SaveDone:
        if self._is_cut:
            if isinstance(asked, CallSave):
                return SaveDone(save=asked, error=CUT)
            return BlobDone(sha256=asked[1], error=CUT)
        done = self._transfers[asked] = threading.Event()
        self._unsent.append(asked)
        self.wake()
        done.wait()
        del self._transfers[asked]
        return self._answers.pop(asked)

    # ---- the thread

    def _serve(self) -> None:
        pause, longest = _AGAIN_SECONDS
        while True:
            try:
                self._connect()
                pause = _AGAIN_SECONDS[0]
                self._talk()
            except (OSError, ValidationError, *UNREADABLE):
                pass  # the agent ended, or was replaced: connect again
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _connect(self) -> None:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        line.settimeout(None)  # the default may be another by a call's `socket.setdefaulttimeout`
        self._socket, self._reader = line, FrameReader()
        line.connect(self._address)
        self._unsent = list(self._transfers)
        self._send(self._batches.make_hello())

    def _talk(self) -> None:
        assert self._socket is not None
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wake_fd, select.POLLIN)
        while True:
            ready = dict(poll.poll(self._choose_pause()))
            if self._wake_fd in ready:
                os.eventfd_read(self._wake_fd)
            if self._socket.fileno() in ready:
                self._read()
            asked, self._unsent = self._unsent, []
            frame = self._batches.make_frame(full=bool(asked))
            self.looks = frame is not None
            if frame is not None:
                self._send(add_transfers(frame, asked))
            elif self._batches.unsent or self._batches.defers:
                self.looks = True  # an end that came meanwhile is seen now, or sent later
                self._batches.defers = False

    def _choose_pause(self) -> float | None:
        """Return the milliseconds for which the thread may sleep; None for as long as nothing wakes
        it."""
        if self.looks:
            return 1000 * FLUSH_SECONDS
        left = self._batches.busy_in
        return None if left is None else 1000 * left + 1.0

    def _read(self) -> None:
        assert self._socket is not None
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the agent closed the line")
        for body in self._reader.feed(data):
            frame = _decode(body)
            for blob in frame.blobs:
                for way in ("fetch", "keep"):
                    self._take_answer((way, blob.sha256), blob)
            for save in frame.saves:
                self._take_answer(save.save, save)
            self._batches.take_frame(frame)
            self._taken(frame)

    def _take_answer(self, asked: Transfer, answer: BlobDone | SaveDone) -> None:
        done = self._transfers.get(asked)
        if done is not None:
            self._answers[asked] = answer
            done.set()

    def _send(self, frame: ExecutorFrame) -> None:
        assert self._socket is not None
        self._socket.sendall(encode_frame(_encode(frame)))


def add_transfers(frame: ExecutorFrame, asked: Sequence[Transfer]) -> ExecutorFrame:
    """Return a frame that also asks for transfers of blobs and checkpoints."""
    if not asked:
        return frame
    blobs = [one for one in asked if not isinstance(one, CallSave)]
    return msgspec.structs.replace(
        frame,
        fetch=[sha256 for way, sha256 in blobs if way == "fetch"],
        keep=[sha256 for way, sha256 in blobs if way == "keep"],
        saves=[one for one in asked if isinstance(one, CallSave)],
    )
