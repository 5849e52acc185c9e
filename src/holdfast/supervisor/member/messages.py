"""Inside a supervised process: messages to and from the policy script.

    from holdfast.supervisor import get_message_queue

    queue = get_message_queue()
    queue.send({"step": 12})
    order = queue.recv(timeout=60)  # or: order = await queue.recv_async()

Values are those of `line.values`: msgpack, nothing unpickled. No key and no network are needed: the
host manager passes messages on.
"""

import contextlib
import logging
import os
import socket
import threading
from typing import Any

from holdfast.errors import Unavailable
from holdfast.supervisor.futures.future import Future, renew_after_fork
from holdfast.supervisor.futures.inbox import Filter, Inbox, has_doubled, receive_one
from holdfast.supervisor.line.values import encode_value
from holdfast.supervisor.rosters.failures import ProcessEnded
from holdfast.wire.bus.local import (
    SOCKET_VARIABLE,
    TOKEN_VARIABLE,
    Enter,
    Part,
    decode_to_process,
    encode_local,
)
from holdfast.wire.bus.messages import cut_parts
from holdfast.wire.frames import FrameReader, encode_frame

logger = logging.getLogger("holdfast.supervisor")

_READ_BYTES = 1 << 20


class MessageQueue:
    """A process's end of the connection to the script. Any thread and any event loop may use it; a
    forked child makes its own.

    Messages that arrived wait in memory, up to the limits of `inbox`; beyond them the oldest are
    dropped, with a warning.
    """

    def __init__(self, path: str, token: str) -> None:
        """Dial the host manager. Raises Unavailable where it cannot be reached."""
        self._talk = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._talk.connect(path)
            self._talk.sendall(encode_frame(encode_local(Enter(token))))
        except OSError as error:
            self._talk.close()
            raise Unavailable(
                f"the host manager cannot be reached at {path}: {error.strerror}"
            ) from error
        self._inbox = Inbox()
        self._sending = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="holdfast-messages", daemon=True)
        self._thread.start()

    def send(self, message: Any) -> None:
        """Send a value to the script, which receives it by `Process.recv`. Waits while the
        manager's buffer is full.

        Raises:
            ValidationError: the value holds a part that cannot be sent.
            Unavailable: the host manager is gone.
        """
        cuts = cut_parts(encode_value(message))
        try:
            with self._sending:  # the parts of one message stay together
                for data, part, last in cuts:
                    self._talk.sendall(encode_frame(encode_local(Part(data, part, last))))
        except OSError as error:
            raise Unavailable(f"the host manager is gone: {error.strerror}") from error

    def recv_future(self, filter: Filter | None = None) -> Future[Any]:
        """Return a future for the next message that `filter` accepts."""
        return receive_one(self._inbox, filter, "a message", "the script")

    def recv(self, filter: Filter | None = None, timeout: float | None = None) -> Any:
        """Wait for the next message. Raises TimeoutError; ProcessEnded where the host manager is
        gone."""
        future = self.recv_future(filter)
        try:
            return future.result(timeout)
        except TimeoutError:
            if future.cancel():
                raise
            return future.result()  # the message came in the last instant

    async def recv_async(self, filter: Filter | None = None) -> Any:
        """Await the next message. A cancelled wait loses no message."""
        return await self.recv_future(filter)

    def close(self) -> None:
        """Close the connection. Messages that were sent are still delivered."""
        with contextlib.suppress(OSError):
            self._talk.shutdown(socket.SHUT_RDWR)
        self._talk.close()

    def _read(self) -> None:
        reader = FrameReader()
        while True:
            try:
                data = self._talk.recv(_READ_BYTES)
            except OSError:
                data = b""
            if not data:
                break
            for frame in reader.feed(data):
                part: Part = decode_to_process(frame)
                before = self._inbox.dropped
                self._inbox.add_part(part.data, part.part, part.last)
                if has_doubled(before, self._inbox.dropped):
                    logger.warning(
                        "%d messages were dropped so far: this process does not receive them",
                        self._inbox.dropped,
                    )
        self._inbox.end(ProcessEnded("the host manager hung up; no more messages come"))


_queue: MessageQueue | None = None
_queue_pid = 0
_making = threading.Lock()
renew_after_fork(globals(), _making=threading.Lock)


def get_message_queue() -> MessageQueue:
    """Return this process's queue, the same one at every call. Raises Unavailable in a process that
    no host manager started."""
    global _queue, _queue_pid
    with _making:
        if _queue is None or _queue_pid != os.getpid():
            path, token = os.environ.get(SOCKET_VARIABLE), os.environ.get(TOKEN_VARIABLE)
            if not path or not token:
                raise Unavailable(
                    "this process was not started by a host manager: there is no script to talk "
                    "to. Start it with Context.create_process_group"
                )
            _queue, _queue_pid = MessageQueue(path, token), os.getpid()
        return _queue
