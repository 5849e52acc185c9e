"""Pass the messages of a WebSocket on to another as they come, without a look at them.

A relay that reads whole messages and writes them again pays for each byte in Python's queues, and
for each message by a pause and a resume of its socket. Two joined WebSockets need none of that: a
client's frame is unmasked and goes on under a header without a mask, in the pieces in which it
comes. What a control frame says is heard here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets import frames
from websockets.frames import Frame, Opcode

apply_mask: Callable[[bytes, bytes], bytes] = frames.apply_mask  # type: ignore[attr-defined]  # the fast one, where it is there
LINE = "holdfast.line"
"""The key under which a WebSocket's scope holds its protocol."""
_HIGH_WATER_BYTES = 1 << 20
_CONTROL = 8
_MOST_CONTROL_BYTES = 125


def _count_head(head: bytes) -> int:
    """Return how many bytes a client's header has, as far as its first bytes say."""
    if len(head) < 2:
        return 2
    return 6 + {126: 2, 127: 8}.get(head[1] & 0x7F, 0)


class BadFrame(Exception):
    """The bytes are no frames of a client."""


class FrameCutter:
    """Follows the frames of a client through its bytes, in any portions."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0  # of the present frame's payload
        self._mask = b""
        self._control: tuple[int, bytearray] | None = None

    @property
    def at_boundary(self) -> bool:
        """Return whether the next byte begins a frame."""
        return not self._head and not self._left

    def feed(self, data: bytes) -> tuple[list[bytes], list[tuple[int, bytes]], int]:
        """Return the pieces to pass on, the control frames, and the place in `data` at which the
        first frame that begins in it does; -1 for none. Raises BadFrame for a frame without a mask
        and for a control frame that is long, because those are gathered here."""
        out: list[bytes] = []
        controls: list[tuple[int, bytes]] = []
        at, first = 0, -1
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left] if at or self._left < len(data) else data
                at += len(piece)
                self._take(piece, out, controls)
                continue
            if first < 0 and not self._head:
                first = at
            at = self._read_head(data, at, out, controls)
        return out, controls, first

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
        opcode = head[0] & 0x0F
        is_long = opcode >= _CONTROL and self._left > _MOST_CONTROL_BYTES
        if is_long or not head[1] & 0x80:
            raise BadFrame
        if opcode >= _CONTROL:
            self._control = (opcode, bytearray())
            if not self._left:
                self._take(b"", out, controls)
        else:
            self._control = None
            out.append(bytes((head[0], short)) + head[2 : 2 + wide])
        return at

    def _take(self, piece: bytes, out: list[bytes], controls: list[tuple[int, bytes]]) -> None:
        self._left -= len(piece)
        plain = apply_mask(piece, self._mask) if piece else b""
        turn = len(piece) % 4
        self._mask = self._mask[turn:] + self._mask[:turn]
        if self._control is None:
            out.append(plain)
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

    async def run_asgi(self) -> None:
        """Serve the application, which finds this protocol in its scope."""
        scope: Any = self.scope
        scope[LINE] = self
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

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection; the event loop calls this."""
        super().connection_lost(exc)
        if self.tunnel is not None:
            self.tunnel.close()

    def data_received(self, data: bytes) -> None:
        """Read, or pass on; the event loop calls this."""
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
            mirror = cutter.feed(data)
            if mirror[2] < 0 and not cutter.at_boundary:
                super().data_received(data)
                return
            end = mirror[2] if mirror[2] >= 0 else len(data)
            super().data_received(data[:end])
            self._flush()
            self._spliced = True
            cutter = self._cutter = FrameCutter()
            data = data[end:]
            if not data:
                return
        out, controls, _ = cutter.feed(data)
        if out and not self._partner.transport.is_closing():
            self._partner.transport.writelines(out)
            if self._partner.is_full:
                self.transport.pause_reading()
        for opcode, said in controls:
            self._hear(opcode, said)

    def _hear(self, opcode: int, said: bytes) -> None:
        if opcode == Opcode.PONG:
            self.handle_pong(Frame(Opcode.PONG, said))
        elif opcode == Opcode.PING:
            self.conn.send_pong(said)
            self.transport.write(b"".join(self.conn.data_to_send()))
        else:
            code = int.from_bytes(said[:2], "big") if len(said) > 1 else 1005
            self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": ""})
            if not self.close_sent:
                self.conn.send_close(code if len(said) > 1 else 1000)
                self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    @property
    def is_full(self) -> bool:
        """Return whether what was written waits for a slow reader."""
        return not self.writable.is_set()

    def keepalive_timeout(self) -> None:
        """Give an end up that does not answer, unless it is held up: one that reads slowly does not
        hear the question, and one whose partner does is not read."""
        partner = self._partner
        if partner is not None and (self.is_full or partner.is_full):
            self.pong_timer = self.pending_ping_payload = None
            self.schedule_ping()
        else:
            super().keepalive_timeout()

    def pause_writing(self) -> None:
        """Hold the partner up; the event loop calls this."""
        super().pause_writing()
        if self.tunnel is not None:
            self.tunnel.hold(True)
        if self._partner is not None and not self._partner.transport.is_closing():
            self._partner.transport.pause_reading()

    def resume_writing(self) -> None:
        """Let the partner go on; the event loop calls this."""
        super().resume_writing()
        if self.tunnel is not None:
            self.tunnel.hold(False)
        if self._partner is not None and not self._partner.transport.is_closing():
            self._partner.transport.resume_reading()


def find_line(scope: Any) -> SplicedProtocol | None:
    """Return the protocol of a WebSocket; None where a server of another sort serves it."""
    line = scope.get(LINE)
    return line if isinstance(line, SplicedProtocol) else None


def join(one: Any, other: Any) -> bool:
    """Join two WebSockets by their scopes; return False where a server of another sort serves
    them."""
    first, second = find_line(one), find_line(other)
    if first is None or second is None:
        return False
    first.join(second)
    second.join(first)
    return True
