"""Pass the messages of a WebSocket on to another as they come, without a look at them.

A relay that reads whole messages and writes them again pays for each byte in Python's queues, and
for each message by a pause and a resume of its socket. Two joined WebSockets need none of that: a
client's bytes are unmasked and go on in the pieces in which they come. What a control frame says is
heard here.

SPLICE-1  Each piece goes on as a frame of its own, a fragment of its message (RFC 6455, 5.4), so
          between two writes to a line stands the boundary of a frame, and a ping, pong or close that
          anything writes there waits for nothing and falls into no other frame. A message of the
          server itself waits for the end of the message that is under way.
SPLICE-2  Bytes that move count as life, in both directions: a line is given up only where, since it
          was asked, no byte came from its end and none was taken by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, cast

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets import frames
from websockets.frames import Frame, Opcode

from holdfast.http.sockets import count_acked

apply_mask: Callable[[bytes, bytes], bytes] = frames.apply_mask  # type: ignore[attr-defined]  # the fast one, where it is there
LINE = "holdfast.line"
"""The key under which a WebSocket's scope holds its protocol."""
_HIGH_WATER_BYTES = 1 << 20
_CONTROL, _LAST = 8, 0x80
_MOST_CONTROL_BYTES = 125
_MESSAGE_SECONDS, _CLOSE_SECONDS = 2.0, 40.0


def _count_head(head: bytes) -> int:
    """Return how many bytes a client's header has, as far as its first bytes say."""
    if len(head) < 2:
        return 2
    return 6 + {126: 2, 127: 8}.get(head[1] & 0x7F, 0)


def _write_head(first: int, size: int) -> bytes:
    """Return the header of a server's frame."""
    if size < 126:
        return bytes((first, size))
    if size < 1 << 16:
        return bytes((first, 126)) + size.to_bytes(2, "big")
    return bytes((first, 127)) + size.to_bytes(8, "big")


class BadFrame(Exception):
    """The bytes are no frames of a client."""


class FrameCutter:
    """Follows the frames of a client through its bytes, in any portions."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0  # of the present frame's payload
        self._mask = b""
        self._is_last = False  # of its message's frames
        self._opcode = int(Opcode.CONT)  # of the next piece; CONT where its message has begun
        self._control: tuple[int, bytearray] | None = None
        self.in_message = False

    @property
    def at_boundary(self) -> bool:
        """Return whether the next byte begins a message or a control frame."""
        return not (self._head or self._left or self.in_message)

    def feed(self, data: bytes) -> tuple[list[bytes], list[tuple[int, bytes]], int, int]:
        """Return the frames to pass on, in parts; the control frames; how many of the parts stand
        before the end of the first message that ends in `data`; and the place after that end there.
        Both are -1 where none ends. Raises BadFrame for what no client may send, and for a control
        frame that is long, because those are gathered here."""
        out: list[bytes] = []
        controls: list[tuple[int, bytes]] = []
        at, parts, place = 0, -1, -1
        while at < len(data):
            before = self.at_boundary
            if self._left:
                piece = data[at : at + self._left] if at or self._left < len(data) else data
                at += len(piece)
                self._take(piece, out, controls)
            else:
                at = self._read_head(data, at, out, controls)
            if parts < 0 and self.at_boundary and not before:
                parts, place = len(out), at
        return out, controls, parts, place

    def _read_head(
        self, data: bytes, at: int, out: list[bytes], controls: list[tuple[int, bytes]]
    ) -> int:
        """Read more of a header; return where it ends. A client's header has 6, 8 or 14 bytes."""
        while len(self._head) < (need := _count_head(self._head)):
            taken = data[at : at + need - len(self._head)]
            self._head += taken
            at += len(taken)
            if len(self._head) < need:
                return at
        head, self._head = self._head, b""
        short, wide = head[1] & 0x7F, need - 6
        self._left = int.from_bytes(head[2 : 2 + wide], "big") if wide else short
        self._mask = head[2 + wide :]
        self._is_last, opcode = bool(head[0] & _LAST), head[0] & 0x0F
        if head[0] & 0x70 or not head[1] & 0x80:
            raise BadFrame
        if opcode >= _CONTROL:
            if self._left > _MOST_CONTROL_BYTES or not self._is_last:
                raise BadFrame
            self._control = (opcode, bytearray())
        else:
            if (opcode == Opcode.CONT) != self.in_message:
                raise BadFrame
            self._control, self._opcode, self.in_message = None, opcode, True
        if not self._left:
            self._take(b"", out, controls)
        return at

    def _take(self, piece: bytes, out: list[bytes], controls: list[tuple[int, bytes]]) -> None:
        self._left -= len(piece)
        plain = apply_mask(piece, self._mask) if piece else b""
        turn = len(piece) % 4
        self._mask = self._mask[turn:] + self._mask[:turn]
        if self._control is None:
            ends = self._is_last and not self._left
            out += (_write_head(self._opcode | _LAST * ends, len(plain)), plain)
            self._opcode, self.in_message = int(Opcode.CONT), not ends
            return
        opcode, said = self._control
        said += plain
        if not self._left:
            controls.append((opcode, bytes(said)))
            self._control = None


class Tunnel(Protocol):
    """The other server to which a client's bytes go on as they are."""

    def write(self, data: bytes) -> None:
        """Pass bytes of the client on."""

    def hold(self, wanted: bool) -> None:
        """Stop reading from the other server, or go on."""

    def close(self) -> None:
        """Note that the client is gone."""


class SplicedProtocol(WebSocketsSansIOProtocol):
    """A WebSocket of uvicorn's that can be joined with another, or put through to another server.

    tunnel: the other server, set before the WebSocket is accepted.
    """

    tunnel: Tunnel | None = None
    _cutter: FrameCutter | None = None
    _partner: SplicedProtocol | None = None
    _spliced = False
    _held: tuple[bytes, asyncio.Event] | None = None  # the server's own message, and its way out
    _moved = False
    _acked = 0

    @property
    def in_message(self) -> bool:
        """Return whether a part of a message was passed on, and the rest was not."""
        return self._spliced and self._cutter is not None and self._cutter.in_message

    async def run_asgi(self) -> None:
        """Serve the application, which finds this protocol in its scope."""
        app, whole_scope = self.app, cast(Any, self.scope)
        whole_scope[LINE] = self

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)
            if self.transport.is_closing():  # no handshake is owed to a client that left
                raise ClientDisconnected

        self.app = serve
        await super().run_asgi()

    def join(self, partner: SplicedProtocol) -> None:
        """Pass on to `partner` all that comes from now on, and what waits."""
        self._partner = partner
        real: Any = self.transport
        real.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self._flush()
        cutter = self._cutter
        self._spliced = cutter is None or cutter.at_boundary

    def _flush(self) -> None:
        """Pass on the whole messages that wait for a reader."""
        assert self._partner is not None
        kept = []
        while not self.queue.empty():
            message = self.queue.get_nowait()
            data = message.get("bytes")
            if not isinstance(data, bytes):
                kept.append(message)
            else:
                self._partner.conn.send_binary(data)
                self._partner.transport.write(b"".join(self._partner.conn.data_to_send()))
        for message in kept:
            self.queue.put_nowait(message)
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    def start_keepalive(self) -> None:
        """Ask whether the client is alive, unless another server does."""
        if self.tunnel is None:
            super().start_keepalive()

    async def send(self, message: Any) -> None:
        """Send a message of the application (SPLICE-1). Raises ClientDisconnected where a joined
        line takes nothing more, or the partner's message does not end, in time."""
        partner, says = self._partner, message["type"] == "websocket.send"
        if partner is None:
            await super().send(message)
            return
        try:
            async with asyncio.timeout(_MESSAGE_SECONDS if says else _CLOSE_SECONDS):
                await self.writable.wait()
                if says and partner.in_message:
                    self.conn.send_binary(message["bytes"])
                    self._held = b"".join(self.conn.data_to_send()), asyncio.Event()
                    await self._held[1].wait()
                else:
                    await super().send(message)
        except TimeoutError:
            self._held = None
            if not says:
                self.transport.abort()
            raise ClientDisconnected from None

    def shutdown(self) -> None:
        """End the connection, because the server stops. The bytes of a tunnel are another server's,
        so nothing is added to them."""
        if self.tunnel is None:
            super().shutdown()
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection; the event loop calls this."""
        super().connection_lost(exc)
        self._hold_up(False)  # the partner is read again, up to the word of its own end
        if self.tunnel is not None:
            self.tunnel.close()

    def data_received(self, data: bytes) -> None:
        """Read the bytes that came, or pass them on to the joined line; the event loop calls
        this."""
        self._moved = True
        if not self.handshake_complete:
            super().data_received(data)
            return
        if self.tunnel is not None:
            self.tunnel.write(data)
            return
        if self._cutter is None:
            self._cutter = FrameCutter()
        try:
            self._take_in(data, self._cutter)
        except BadFrame:
            self.transport.abort()

    def _take_in(self, data: bytes, cutter: FrameCutter) -> None:
        if self._partner is None:
            cutter.feed(data)
            super().data_received(data)
            return
        if not self._spliced:  # the rest of a message that was begun before
            end = cutter.feed(data)[3]
            super().data_received(data if end < 0 else data[:end])
            if end < 0:
                return
            self._flush()
            self._spliced = True
            cutter = self._cutter = FrameCutter()
            data = data[end:]
        out, controls, parts, _ = cutter.feed(data)
        self._partner.pass_on(out, parts)
        if self._partner.is_full and not self.transport.is_closing():
            self.transport.pause_reading()
        for opcode, said in controls:
            self._hear(opcode, said)

    def pass_on(self, out: list[bytes], parts: int) -> None:
        """Write frames of the partner to this line. parts: how many of the list stand before the end
        of a message; -1 where none ends."""
        if self.transport.is_closing() or self.close_sent:
            return
        if self._held is not None and parts >= 0:
            out.insert(parts, self._held[0])
            self._held[1].set()
            self._held = None
        if out:
            self.transport.writelines(out)

    def _hear(self, opcode: int, said: bytes) -> None:
        if opcode == Opcode.PONG:
            self.handle_pong(Frame(Opcode.PONG, said))
        elif opcode == Opcode.PING:
            self._say_pong(said)
        else:
            code = int.from_bytes(said[:2], "big") if len(said) > 1 else 1005
            self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": ""})
            if not self.close_sent:
                self.conn.send_close(code if len(said) > 1 else 1000)
                self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    def _say_pong(self, said: bytes) -> None:
        """Send a pong, unless bytes wait already: those are a sign of life, too."""
        if not (self.transport.is_closing() or self.close_sent or self.is_full):
            self.conn.send_pong(said)
            self.transport.write(b"".join(self.conn.data_to_send()))

    @property
    def is_full(self) -> bool:
        """Return whether what was written waits for a slow reader."""
        return not self.writable.is_set()

    def keepalive_timeout(self) -> None:
        """Close the line if no byte has moved on it for too long (SPLICE-2), else look again later.
        An end whose answer may wait behind what it sends gets a sign of life meanwhile. Of an end
        that is not read, because its partner takes nothing, nothing is known."""
        acked = count_acked(self.transport.get_extra_info("socket"))
        partner, heard, took = self._partner, self._moved, acked != self._acked
        self._moved, self._acked = False, acked
        if heard or took or (partner is not None and partner.is_full):
            if heard or not took:  # the sign itself is taken, and proves nothing
                self._say_pong(b"")
            assert self.ping_timeout is not None
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
            return
        super().keepalive_timeout()
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # a close would wait for the bytes that nothing takes

    def pause_writing(self) -> None:
        """Stop reading from the joined line, because this line is slow; the event loop calls
        this."""
        super().pause_writing()
        self._hold_up(True)

    def resume_writing(self) -> None:
        """Read from the joined line again; the event loop calls this."""
        super().resume_writing()
        self._hold_up(False)

    def _hold_up(self, wanted: bool) -> None:
        if self.tunnel is not None:
            self.tunnel.hold(wanted)
        partner = self._partner
        if partner is not None and not partner.transport.is_closing():
            if wanted:
                partner.transport.pause_reading()
            else:
                partner.transport.resume_reading()


def find_line(scope: Any) -> SplicedProtocol | None:
    """Return the protocol of a WebSocket; None where a server of another sort serves it."""
    line = scope.get(LINE)
    return line if isinstance(line, SplicedProtocol) else None


def join(one: Any, other: Any) -> bool:
    """Join two WebSockets by their scopes; return False where a server of another sort serves
    them, or one end is gone."""
    first, second = find_line(one), find_line(other)
    if first is None or second is None:
        return False
    if first.transport.is_closing() or second.transport.is_closing():
        return False
    first.join(second)
    second.join(first)
    return True
