"""Exchange messages about sessions with the guardian, and receive the ends that it passes on."""

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable

from holdfast.bounds import UNREADABLE
from holdfast.wire.sessions.guardian import (
    MAX_PACKET_BYTES,
    GuardianAnswer,
    GuardianRequest,
    decode_guardian_answer,
    encode,
)

log = logging.getLogger("holdfast.agent.sessions")

_MOST_ENDS = 3


class GuardianSessionLine:
    """The agent's end of the guardian's line about sessions.

    hear: called with each answer and the descriptors that came with it. The function that is called
    has to close the descriptors.
    """

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._unsent: deque[bytes] = deque()
        self._hear: Callable[[GuardianAnswer, list[int]], None] = lambda answer, fds: None

    def open(self, hear: Callable[[GuardianAnswer, list[int]], None]) -> None:
        """Begin to listen to the guardian, and pass its answers to `hear`."""
        self._hear = hear
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._read)

    def send(self, request: GuardianRequest) -> None:
        """Send a message to the guardian."""
        self._unsent.append(encode(request))
        self._flush()

    def _flush(self) -> None:
        loop, fd = asyncio.get_running_loop(), self._socket.fileno()
        try:
            while self._unsent:
                self._socket.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            loop.add_writer(fd, self._flush)
            return
        except OSError as error:
            log.error(f"the guardian does not hear about sessions: {error}")
            self._unsent.clear()
        loop.remove_writer(fd)

    def _read(self) -> None:
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._socket, MAX_PACKET_BYTES, _MOST_ENDS)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if not data:
                asyncio.get_running_loop().remove_reader(self._socket.fileno())
                return
            try:
                self._hear(decode_guardian_answer(data), fds)
            except UNREADABLE as error:
                log.error(f"a message about a session cannot be read: {error}")
                for fd in fds:
                    os.close(fd)
