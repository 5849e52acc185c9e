"""WebSockets as a client speaks them (RFC 6455), without I/O: the one handshake and the one framing
of the command line, of agents, and of a server that relays a link to another.

The server's side is the library `websockets`, below uvicorn. A client does without it, because
importing it costs the command line more than the whole of a short `exec` may cost (decision 49).
What is left out is what no client needs: extensions, and text from the server.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping

from holdfast.errors import ValidationError
from holdfast.http.answers import MAX_HEAD_BYTES, AnswerReader, BadAnswer, write_head

try:  # hashlib loads OpenSSL, which costs as much as all the rest of this
    from _sha1 import sha1  # type: ignore[import-not-found]  # of every CPython
except ImportError:  # a Python with hashes of OpenSSL alone
    from hashlib import sha1

CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
NO_CODE = 1005
"""The code of a close that names none."""
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_SMALL, _SHORT = 126, 127


class UpgradeRefused(Exception):
    """Says that a server answered the handshake, and opens no WebSocket. status, body: the answer."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"the server answered {status} to a WebSocket")
        self.status, self.body = status, body


def accept_of(key: str) -> str:
    """Return the word with which a server accepts a handshake's key."""
    return base64.b64encode(sha1(key.encode() + _GUID).digest()).decode()


class Handshake:
    """A client's opening of one WebSocket, which speaks `subprotocol`."""

    def __init__(self, subprotocol: str) -> None:
        self._subprotocol = subprotocol
        self._key = base64.b64encode(os.urandom(16)).decode()
        self._head = b""
        self._answer: AnswerReader | None = None  # of a server that opens none
        self._body: list[bytes] = []

    def write_request(self, authority: str, target: str, headers: Mapping[str, str]) -> bytes:
        """Return the request. Raises ValueError for a header that would add another."""
        own = {
            "Host": authority,
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": self._key,
            "Sec-WebSocket-Protocol": self._subprotocol,
        }
        return write_head("GET", target, (own | dict(headers)).items())

    def feed(self, data: bytes) -> bytes | None:
        """Add bytes of the answer; no bytes mean its end. Return the bytes behind the answer once
        the WebSocket is open, None before. Raises UpgradeRefused and BadAnswer."""
        if self._answer is not None:
            self._refuse(self._answer, data)
            return None
        if not data:
            raise BadAnswer("the server hung up without an answer")
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end and len(self._head) <= MAX_HEAD_BYTES:
            return None
        if head.split(b" ", 2)[1:2] != [b"101"]:
            self._answer = AnswerReader()
            self._refuse(self._answer, self._head)
            return None
        named = (line.partition(b":") for line in head.split(b"\r\n"))
        accepts = [value.strip() for name, _, value in named if name.lower() == _ACCEPT]
        if accepts != [accept_of(self._key).encode()]:
            raise BadAnswer("the server's answer is of no WebSocket")
        return rest

    def _refuse(self, answer: AnswerReader, data: bytes) -> None:
        answer.feed(data)
        self._body += answer.take_pieces()
        if answer.done:
            raise UpgradeRefused(answer.status, b"".join(self._body))


_ACCEPT = b"sec-websocket-accept"


def write_close(code: int) -> bytes:
    """Return a client's close."""
    return write_message(code.to_bytes(2, "big"), CLOSE)


def read_close(payload: bytes) -> int:
    """Return the code of a close."""
    return int.from_bytes(payload[:2], "big") if len(payload) > 1 else NO_CODE


def mask_bytes(data: bytes | memoryview, mask: bytes) -> bytes:
    """Return `data` masked with four bytes; masking again undoes it."""
    size = len(data)
    if not size:
        return b""
    whole = mask * (size // 4 + 1)
    return (int.from_bytes(data, "little") ^ int.from_bytes(whole[:size], "little")).to_bytes(
        size, "little"
    )


def write_message(data: bytes | memoryview, opcode: int = BINARY) -> bytes:
    """Return a whole message of a client."""
    size, mask = len(data), os.urandom(4)
    if size < _SMALL:
        head = bytes((0x80 | opcode, 0x80 | size))
    elif size < 1 << 16:
        head = bytes((0x80 | opcode, 0x80 | _SMALL)) + size.to_bytes(2, "big")
    else:
        head = bytes((0x80 | opcode, 0x80 | _SHORT)) + size.to_bytes(8, "big")
    return head + mask + mask_bytes(data, mask)


class MessageReader:
    """Cuts what a server sends into messages.

    max_bytes: the longest message that is taken.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._message = bytearray()  # that is not whole yet
        self._opcode = CONTINUED

    def feed(self, data: bytes | memoryview) -> list[tuple[int, bytes]]:
        """Add bytes in any portions; return the messages that they complete, each with its opcode.
        Raises ValidationError for bytes that are no messages of a server."""
        self._buffer += data
        found: list[tuple[int, bytes]] = []
        at = 0
        view = memoryview(self._buffer)
        try:
            while (cut := self._cut(view, at)) is not None:
                first, start, at = cut
                self._take(first, bytes(view[start:at]), found)
        finally:
            view.release()
        if at:
            del self._buffer[:at]
        return found

    def _cut(self, view: memoryview, at: int) -> tuple[int, int, int] | None:
        """Return a frame's first byte, where its payload begins and where it ends; None where it is
        not whole yet."""
        if len(view) < at + 2:
            return None
        size, start = view[at + 1], at + 2
        if size & 0x80 or view[at] & 0x70:
            raise ValidationError("a server's frame is masked, or of an unknown extension")
        if size >= _SMALL:
            wide = 2 if size == _SMALL else 8
            if len(view) < start + wide:
                return None
            size = int.from_bytes(view[start : start + wide], "big")
            start += wide
        if size > self._max_bytes:
            raise ValidationError(f"a message of {size} bytes is over {self._max_bytes}")
        return (view[at], start, start + size) if len(view) >= start + size else None

    def _take(self, first: int, payload: bytes, found: list[tuple[int, bytes]]) -> None:
        opcode, last = first & 0x0F, bool(first & 0x80)
        if opcode >= CLOSE:  # also between the pieces of a message
            found.append((opcode, payload))
            return
        if (opcode == CONTINUED) != (self._opcode != CONTINUED):
            raise ValidationError("a message begins within another, or goes on without a beginning")
        opcode = opcode or self._opcode
        if last and not self._message:
            found.append((opcode, payload))
        else:
            self._message += payload
            if len(self._message) > self._max_bytes:
                raise ValidationError(f"a message is over {self._max_bytes} bytes")
            if last:
                found.append((opcode, bytes(self._message)))
                self._message.clear()
        self._opcode = CONTINUED if last else opcode
