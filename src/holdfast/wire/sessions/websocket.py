"""WebSockets as a client speaks them (RFC 6455), without I/O: the handshake and the messages.

The controller's side is the library `websockets`. A client does without it, because importing it
costs the command line more than the whole of a short `exec` may cost. What is left out is what no
client needs: extensions, and text from the server.
"""

from __future__ import annotations

import base64

from holdfast.errors import ValidationError

try:  # hashlib loads OpenSSL, which costs as much as all the rest of this
    from _sha1 import sha1  # type: ignore[import-not-found]  # of every CPython
except ImportError:  # a Python with hashes of OpenSSL alone
    from hashlib import sha1

CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_SMALL, _SHORT = 126, 127


def make_key(sixteen: bytes) -> str:
    """Return the handshake's key of sixteen random bytes."""
    return base64.b64encode(sixteen).decode()


def accept_of(key: str) -> str:
    """Return the word with which a server accepts a handshake's key."""
    return base64.b64encode(sha1(key.encode() + _GUID).digest()).decode()


def mask_bytes(data: bytes | memoryview, mask: bytes) -> bytes:
    """Return `data` masked with four bytes; masking again undoes it."""
    size = len(data)
    if not size:
        return b""
    whole = mask * (size // 4 + 1)
    return (int.from_bytes(data, "little") ^ int.from_bytes(whole[:size], "little")).to_bytes(
        size, "little"
    )


def write_message(data: bytes | memoryview, mask: bytes, opcode: int = BINARY) -> bytes:
    """Return a whole message of a client."""
    size = len(data)
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
