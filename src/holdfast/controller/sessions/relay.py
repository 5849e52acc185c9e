"""Put a host's dial through to the replica where the link's user waits.

RELAY-1  A host may dial any replica. The one that it reached looks the ticket up without spending
         it, and opens a WebSocket to the replica that the ticket names; that one spends it. Each
         byte goes on as it is, both ways, so a relay knows nothing of frames.

A replica proves itself by a signature of the dial with the cluster's own key, which stands in the
database alone. A dial is relayed once at most, because the replica that takes it never passes it on.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
from typing import NamedTuple, cast

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.sockets import Socket
from holdfast.controller.http.splice import SplicedProtocol, find_line
from holdfast.controller.runtime.context import Controller
from holdfast.errors import ConnectionLost, NotFound, Unauthorized, Unavailable
from holdfast.http.addresses import read_addresses
from holdfast.http.answers import write_head
from holdfast.http.asynchronous import AsyncHttp, AsyncStream
from holdfast.wire.sessions.frames import PROTOCOL
from holdfast.wire.sessions.websocket import accept_of, make_key

TICKET = "holdfast-ticket"
RELAYED_HOST, PROOF = "holdfast-relayed-host", "holdfast-relay-proof"
log = logging.getLogger("holdfast.controller.sessions")
_DIAL_SECONDS = 10.0
_MAX_HEAD_BYTES = 1 << 16
_HIGH_WATER_BYTES = 1 << 20
_PURPOSE = b"holdfast: a session's link, relayed by a replica\n"


class RelayedDial(NamedTuple):
    """A relayed dial: the link, the host that dialled, and its ticket."""

    link_id: str
    host_id: str
    ticket: str


def sign_dial(key: str, dial: RelayedDial) -> str:
    """Return the proof that a replica of the cluster with this key relays the dial."""
    said = b"\n".join(word.encode("utf-8", "surrogateescape") for word in dial)
    return hmac.new(key.encode(), _PURPOSE + said, hashlib.sha256).hexdigest()


async def check_relayed(call: ApiCall) -> None:
    """Raise Unauthorized where no replica of this cluster relays the dial."""
    dial = RelayedDial(
        call.params["id"], call.header(RELAYED_HOST) or "", call.header(TICKET) or ""
    )
    wanted, proof = sign_dial(await _read_key(call.controller), dial), call.header(PROOF) or ""
    if not hmac.compare_digest(wanted, proof.encode("ascii", "replace").decode()):
        raise Unauthorized("only another server of this cluster may relay a session's link")


async def _read_key(controller: Controller) -> str:
    if not controller.replica_key:
        controller.replica_key = await controller.store.sessions.read_replica_key()
    return controller.replica_key


async def pass_on_dial(
    controller: Controller, socket: Socket, replica: str, dial: RelayedDial
) -> None:
    """Put a host's WebSocket through to `replica`, until either end is gone. Raises Unavailable and
    NotFound."""
    line = find_line(socket.scope)
    if line is None or not replica:
        raise Unavailable(f"the user of this link waits at another server ({replica!r})")
    other = ReplicaLine(line)
    words = {TICKET: dial.ticket, RELAYED_HOST: dial.host_id}
    words[PROOF] = sign_dial(await _read_key(controller), dial)
    try:
        await _reach(other, replica, f"/v1/replicas/sessions/{dial.link_id}", words)
        line.tunnel = other
        await socket.accept(PROTOCOL)
        other.begin()
        await other.over.wait()
        line.transport.close()
    except Unavailable as error:
        log.warning("a session's link is not relayed: %s", error.message)
        raise
    finally:
        other.close()


async def _reach(other: ReplicaLine, replica: str, path: str, words: dict[str, str]) -> None:
    try:
        async with asyncio.timeout(_DIAL_SECONDS):
            await other.open(replica, path, words)
    except (ConnectionLost, TimeoutError) as error:
        raise Unavailable(
            f"the server at {replica}, where the user of this link waits, cannot be reached: "
            f"{error or 'it does not answer'}; its `--advertise` is to name an address that the "
            "other servers reach"
        ) from error


class ReplicaLine(asyncio.Protocol):
    """The WebSocket to the other replica, as bytes. line: the host's."""

    def __init__(self, line: SplicedProtocol) -> None:
        self._line = line
        self.over = asyncio.Event()
        self._stream: AsyncStream | None = None
        self._transport: asyncio.Transport | None = None
        self._head = bytearray()
        self._accept = ""
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._begun = False

    async def open(self, replica: str, path: str, words: dict[str, str]) -> None:
        """Open the WebSocket. Raises ConnectionLost, Unavailable, and NotFound where the other
        replica refuses."""
        http = AsyncHttp(read_addresses(replica))
        self._stream, address = await http.connect(self)
        key = make_key(os.urandom(16))
        self._accept = accept_of(key)
        head = {
            "Host": address.authority,
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": key,
            "Sec-WebSocket-Protocol": PROTOCOL,
            **words,
        }
        self.write(write_head("GET", f"{address.prefix}{path}", head.items()))
        await self._opened

    def begin(self) -> None:
        """Pass the other replica's bytes on to the host, from now on and those that came before."""
        self._begun = True
        early = bytes(self._head)
        self._head.clear()
        if early:
            self._line.transport.write(early)
        self.hold(False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport; the event loop calls this."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)

    def data_received(self, data: bytes) -> None:
        """Pass the other replica's bytes on to the host; the event loop calls this."""
        if self._begun:
            self._line.transport.write(data)
            return
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if not self._opened.done() and (end >= 0 or len(self._head) > _MAX_HEAD_BYTES):
            self._read_head(bytes(self._head[: max(0, end)]))
            del self._head[: end + 4]
            self.hold(True)  # until the host's own WebSocket is open

    def _read_head(self, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        named = {line.split(":", 1)[0].lower(): line.split(": ", 1)[-1] for line in lines[1:]}
        status = lines[0].split(" ")[1:2]
        if status == ["101"] and named.get("sec-websocket-accept") == self._accept:
            self._opened.set_result(None)
            return
        told = status[0] if status else "nothing"
        self._opened.set_exception(
            NotFound(f"the server at which the user of this link waits answered {told}")
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end; the event loop calls this."""
        self._transport = None
        if not self._opened.done():
            self._opened.set_exception(Unavailable("the other server hung up"))
            self._opened.exception()  # so that asyncio does not call it unread
        self.over.set()

    def pause_writing(self) -> None:
        """Stop reading from the host, because the other replica is slow; the event loop calls
        this."""
        if not self._line.transport.is_closing():
            self._line.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read from the host again; the event loop calls this."""
        if not self._line.transport.is_closing():
            self._line.transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Pass the host's bytes on to the other replica."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def hold(self, wanted: bool) -> None:
        """Stop reading, or go on, so that the other replica is held up."""
        if self._transport is not None and not self._transport.is_closing():
            if wanted:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def close(self) -> None:
        """Close the line once all is sent; the host is gone."""
        if self._transport is not None:
            self._transport.close()
