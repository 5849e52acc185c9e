"""A blocking WebSocket to the controller, over a connection of its own."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import weakref

from holdfast.client.locate import ControllerPlace
from holdfast.client.transport import common_headers, explain_loss, refuse
from holdfast.errors import ConnectionLost, HoldfastError, Unavailable, ValidationError
from holdfast.http.answers import AnswerReader, BadAnswer, write_head
from holdfast.http.blocking import BlockingHttp
from holdfast.http.sockets import count_acked
from holdfast.wire.sessions.frames import (
    BEAT_SECONDS,
    DAMAGED,
    LEFT,
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    REFUSAL,
    STATUS,
    RunningSum,
)
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
_LEAVE_SECONDS = 2.0
_DAMAGE = "bytes were changed on their way"
_BEAT = write_message(b"", bytes(4), PONG)


class LinkLost(Exception):
    """Raised where the connection to the controller broke. code: the code of a close; 0 where none
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
        self._again: list[bytes] = []
        self._lock = threading.Lock()
        self._said, self._heard = RunningSum(), RunningSum()
        self._heard_at = time.monotonic()
        self._lost: LinkLost | None = None
        self._torn: LinkLost | None = None  # a message was sent in part: nothing may follow
        self._closed = threading.Event()
        given = (weakref.ref(self), self._closed)
        threading.Thread(target=_beat, args=given, daemon=True, name="beat").start()

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._wire.fileno()

    def read(self, seconds: float | None = None) -> list[bytes]:
        """Return the next frames; no frames once `seconds` have passed. Raises LinkLost."""
        found, self._again = self._again, []
        while not found:
            if not self._waiting and not self._fill(seconds):
                return []
            while self._waiting:
                opcode, payload = self._waiting[0]
                if opcode == CLOSE and found:
                    break
                del self._waiting[0]
                if opcode == BINARY:
                    found.append(self._open(payload))
                elif opcode == PING:
                    with contextlib.suppress(LinkLost):  # what came before the loss is read
                        self.ask(payload, PONG)
                elif opcode == CLOSE:
                    code = int.from_bytes(payload[:2], "big") if len(payload) > 1 else 1005
                    why = _DAMAGE if code == DAMAGED else "the controller closed the link"
                    raise self._lose(why, code)
        return found

    def _open(self, message: bytes) -> bytes:
        """Return the frame in a message. Raises the controller's error where the message is a
        refusal."""
        if message[:1] == bytes((REFUSAL,)):
            return bytes((STATUS,)) + message[1:]
        try:
            return self._heard.open(message)
        except ValidationError:
            self.close(DAMAGED)
            raise self._lose(_DAMAGE, DAMAGED) from None

    def _lose(self, why: str, code: int = 0) -> LinkLost:
        self._lost = self._torn = self._lost or LinkLost(why, code)
        self.shut()
        return self._lost

    def put_back(self, found: list[bytes]) -> None:
        """Have `read` return these frames first."""
        self._again = found

    def shut(self) -> None:
        """End a read that waits, because the other side of the carried connection is gone."""
        with contextlib.suppress(OSError):
            self._wire.shutdown(socket.SHUT_RDWR)

    def _fill(self, seconds: float | None) -> bool:
        if self._lost is not None:
            raise self._lost
        wait = _SILENCE_SECONDS if seconds is None else seconds
        try:
            if not self._pending() and not is_ready(self._wire, select.POLLIN, wait):
                if seconds is None:
                    raise self._lose(f"the controller was silent for {wait:.0f} s")
                return False
            data = self._wire.recv(_READ_BYTES)
        except (OSError, ValueError) as error:
            raise self._lose(str(error) or type(error).__name__) from error
        if not data:
            raise self._lose("the controller hung up")
        self._heard_at = time.monotonic()
        try:
            self._waiting += self._reader.feed(data)
        except ValidationError as error:
            raise self._lose(str(error)) from error
        return True

    def _pending(self) -> bool:
        pending = getattr(self._wire, "pending", None)  # of TLS: bytes that were read already
        return bool(pending is not None and pending())

    def ask(self, data: bytes, opcode: int = BINARY) -> None:
        """Send a message that is for the controller itself. Raises LinkLost."""
        with self._lock:
            self._put(write_message(data, os.urandom(4), opcode))

    def send(self, data: bytes) -> None:
        """Send a frame to the other end. Raises LinkLost."""
        with self._lock:
            self._put(write_message(self._said.seal(data), os.urandom(4)))

    def _put(self, data: bytes) -> None:
        """Write all of a message. A line that is slow, or held up by its other end, has time; a line
        that is silent and takes nothing is lost."""
        if self._torn is not None:
            raise self._torn
        left, acked = memoryview(data), 0
        while left:
            try:
                left = left[self._wire.send(left) :]
            except TimeoutError:
                before, acked = acked, count_acked(self._wire)
                silent = time.monotonic() - self._heard_at
                if acked == before and silent > _SILENCE_SECONDS:
                    raise self._lose(f"the controller was silent for {silent:.0f} s") from None
            except OSError as error:
                self._torn = LinkLost(str(error) or type(error).__name__)
                with contextlib.suppress(OSError):
                    self._wire.shutdown(socket.SHUT_WR)
                raise self._torn from error

    def beat(self) -> bool:
        """Give the controller a sign of life, unless other bytes are on their way to it; return
        whether the link is still there."""
        if self._torn is None and self._lock.acquire(blocking=False):
            try:
                if is_ready(self._wire, select.POLLOUT, 0.0):
                    self._put(_BEAT)
            except (LinkLost, OSError, ValueError):
                pass  # the next read tells of it
            finally:
                self._lock.release()
        return self._torn is None

    def close(self, code: int = LEFT) -> None:
        """Close the WebSocket with a closing message, and then read and drop what the controller
        still sends, because a socket that is closed earlier sends a reset, which can overtake the
        message."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._torn is None and self._lock.acquire(timeout=_LEAVE_SECONDS):
            try:
                self._wire.settimeout(_LEAVE_SECONDS)
                self._put(write_message(code.to_bytes(2, "big"), os.urandom(4), CLOSE))
                self._wire.shutdown(socket.SHUT_WR)
                self._drain()
            except (LinkLost, OSError, ValueError):
                pass
            finally:
                self._lock.release()
        self.abort()

    def _drain(self) -> None:
        until = time.monotonic() + _LEAVE_SECONDS
        while time.monotonic() < until and self._wire.recv(_READ_BYTES):
            pass

    def abort(self) -> None:
        """Break the connection off without telling the controller."""
        self._closed.set()
        self.shut()  # a thread that reads would keep the connection open
        self._wire.close()


def is_ready(wire: socket.socket, event: int, seconds: float) -> bool:
    """Wait until a socket can be read or written; select() fails for descriptors from 1024 on."""
    look = select.poll()
    look.register(wire, event)
    return bool(look.poll(seconds * 1000))


def _beat(ref: weakref.ref[WebSocket], closed: threading.Event) -> None:
    """Send signs of life for as long as the link is used, because a program that does not read
    answers no ping."""
    while not closed.wait(BEAT_SECONDS):
        wire = ref()
        if wire is None or not wire.beat():
            return
        del wire


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
    wire.settimeout(_SILENCE_SECONDS)
    return WebSocket(wire, rest)


def _read_refusal(place: ControllerPlace, wire: socket.socket, data: bytes) -> HoldfastError:
    """Return the error of an HTTP answer that refuses to open the WebSocket."""
    answer, body = AnswerReader(), b""
    while True:
        answer.feed(data)
        body += b"".join(answer.take_pieces())
        if answer.done:
            return refuse(place, answer.status, body)
        data = wire.recv(_READ_BYTES)
