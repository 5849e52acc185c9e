"""A blocking WebSocket to the controller, over a connection of its own."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading

from holdfast.client.locate import ControllerPlace
from holdfast.client.transport import common_headers, explain_loss, refuse
from holdfast.errors import ConnectionLost, HoldfastError, Unavailable, ValidationError
from holdfast.http.answers import AnswerReader, BadAnswer, write_head
from holdfast.http.blocking import BlockingHttp
from holdfast.wire.sessions.frames import MAX_MESSAGE_BYTES, PROTOCOL
from holdfast.wire.sessions.websocket import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    MessageReader,
    accept_of,
    make_key,
    write_message,
)

_READ_BYTES = 256 << 10
_SILENCE_SECONDS = 60.0  # the controller pings every 20 s
_SEND_SECONDS = 60.0


class LinkLost(Exception):
    """Says that the connection to the controller broke. code: the code of a close; 0 where none
    came."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class WebSocket:
    """One WebSocket. One thread reads; any thread may write."""

    def __init__(self, wire: socket.socket, rest: bytes) -> None:
        self._wire = wire
        self._reader = MessageReader(MAX_MESSAGE_BYTES)
        self._waiting = self._reader.feed(rest) if rest else []
        self._lock = threading.Lock()
        self._closed = False

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._wire.fileno()

    def read(self, seconds: float | None = None) -> list[bytes]:
        """Return the next messages; no messages once `seconds` have passed. Raises LinkLost."""
        found: list[bytes] = []
        while not found:
            if not self._waiting and not self._fill(seconds):
                return []
            waiting, self._waiting = self._waiting, []
            for opcode, payload in waiting:
                if opcode == BINARY:
                    found.append(payload)
                elif opcode == PING:
                    self._write(write_message(payload, os.urandom(4), PONG))
                elif opcode == CLOSE:
                    if found:
                        self._waiting = [(CLOSE, payload)]
                        break
                    code = int.from_bytes(payload[:2], "big") if len(payload) > 1 else 1005
                    raise LinkLost("the controller closed the link", code)
        return found

    def put_back(self, messages: list[bytes]) -> None:
        """Have `read` return these messages first."""
        self._waiting = [*((BINARY, message) for message in messages), *self._waiting]

    def shut(self) -> None:
        """End a read that waits, because the other side of the carried connection is gone."""
        with contextlib.suppress(OSError):
            self._wire.shutdown(socket.SHUT_RDWR)

    def _fill(self, seconds: float | None) -> bool:
        wait = _SILENCE_SECONDS if seconds is None else seconds
        try:
            if not self._pending() and not select.select([self._wire], [], [], wait)[0]:
                if seconds is None:
                    raise LinkLost(f"the controller was silent for {wait:.0f} s")
                return False
            data = self._wire.recv(_READ_BYTES)
        except (OSError, ValueError) as error:
            raise LinkLost(str(error) or type(error).__name__) from error
        if not data:
            raise LinkLost("the controller hung up")
        try:
            self._waiting += self._reader.feed(data)
        except ValidationError as error:
            raise LinkLost(str(error)) from error
        return True

    def _pending(self) -> bool:
        pending = getattr(self._wire, "pending", None)  # of TLS: bytes that were read already
        return bool(pending is not None and pending())

    def send(self, data: bytes) -> None:
        """Send a message to the controller. Raises LinkLost."""
        self._write(write_message(data, os.urandom(4)))

    def _write(self, data: bytes) -> None:
        try:
            with self._lock:
                self._wire.sendall(data)
        except OSError as error:
            raise LinkLost(str(error) or type(error).__name__) from error

    def close(self, code: int = 1000) -> None:
        """Close the WebSocket, and tell the controller so."""
        if self._closed:
            return
        self._closed = True
        try:
            self._write(write_message(code.to_bytes(2, "big"), os.urandom(4), CLOSE))
            self._wire.shutdown(socket.SHUT_WR)
        except (LinkLost, OSError):
            pass
        self._wire.close()

    def abort(self) -> None:
        """Break the connection off without telling the controller."""
        self._closed = True
        self.shut()  # a thread that reads would keep the connection open
        self._wire.close()


def open_websocket(http: BlockingHttp, place: ControllerPlace, path: str) -> WebSocket:
    """Open a WebSocket at a path of the API. Raises HoldfastError for a refusal, Unavailable where
    the controller cannot be reached."""
    wire: socket.socket | None = None
    try:
        wire, address = http.connect()
        return _shake_hands(place, wire, f"{address.prefix}{path}", address.authority)
    except HoldfastError as error:
        if wire is not None:
            wire.close()
        raise (explain_loss(place, error) if isinstance(error, Unavailable) else error) from error
    except (OSError, BadAnswer) as error:
        if wire is not None:
            wire.close()
        raise explain_loss(place, ConnectionLost(str(error) or type(error).__name__)) from error


def _shake_hands(
    place: ControllerPlace, wire: socket.socket, target: str, authority: str
) -> WebSocket:
    key = make_key(os.urandom(16))
    headers = {
        "Host": authority,
        **common_headers(place),
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Protocol": PROTOCOL,
    }
    wire.sendall(write_head("GET", target, headers.items()))
    head = b""
    while b"\r\n\r\n" not in head:
        data = wire.recv(_READ_BYTES)
        if not data:
            raise BadAnswer("the server hung up without an answer")
        head += data
    first, _, rest = head.partition(b"\r\n\r\n")
    if first.split(b" ", 2)[1:2] != [b"101"]:
        raise _read_refusal(place, wire, head)
    if accept_of(key).encode() not in first:
        raise BadAnswer("the server's answer is of no WebSocket")
    wire.settimeout(_SEND_SECONDS)
    return WebSocket(wire, rest)


def _read_refusal(place: ControllerPlace, wire: socket.socket, data: bytes) -> HoldfastError:
    """Return the error that an answer stands for which opens no WebSocket."""
    answer, body = AnswerReader(), b""
    while True:
        answer.feed(data)
        body += b"".join(answer.take())
        if answer.done:
            return refuse(place, answer.status, body)
        data = wire.recv(_READ_BYTES)
