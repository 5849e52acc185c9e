"""Take a host's end of a link: join it with the user's end here, or pass it on to the server where
the user waits. And take a host's report that a session is over.

RELAY-1  A host may dial any replica. The one that it reached looks the ticket up without spending
         it, and opens a WebSocket to the replica that the ticket names; that one spends it. Each
         message goes on as it is, both ways, so a relay knows nothing of frames.

A replica proves itself by a signature of the dial with the cluster's own key, which stands in the
database alone. A dial is relayed once at most, because the replica that takes it never passes it on.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from typing import NamedTuple

from starlette.responses import Response

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.runtime.context import Controller
from holdfast.errors import HoldfastError, NotFound, Unauthorized, Unavailable
from holdfast.http.addresses import read_addresses
from holdfast.http.asynchronous import AsyncHttp
from holdfast.http.dial import Dialled, dial
from holdfast.wire.sessions.frames import LEFT, LOST, PROTOCOL
from holdfast.wire.sessions.messages import SessionEnd

TICKET = "holdfast-ticket"
RELAYED_HOST, PROOF = "holdfast-relayed-host", "holdfast-relay-proof"
log = logging.getLogger("holdfast.controller.sessions")
_PURPOSE = b"holdfast: a session's link, relayed by a replica\n"
_NOT_GOOD = "this ticket is not good: it was used, or its user waits no more"
_OWN_CODES = 4000  # the codes from here on are those of links
_NOTHING = Response(status_code=204)


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
    asked = RelayedDial(
        call.params["id"], call.header(RELAYED_HOST) or "", call.header(TICKET) or ""
    )
    wanted, proof = sign_dial(await _read_key(call.controller), asked), call.header(PROOF) or ""
    if not hmac.compare_digest(wanted, proof.encode("ascii", "replace").decode()):
        raise Unauthorized("only another server of this cluster may relay a session's link")


async def _read_key(controller: Controller) -> str:
    if not controller.replica_key:
        controller.replica_key = await controller.store.sessions.read_replica_key()
    return controller.replica_key


async def dial_session(call: ApiCall) -> Response:
    """Serve a host's end of a link: spend its ticket, and join it with the user's end."""
    host = call.host
    assert host is not None
    asked = RelayedDial(call.params["id"], host.id, call.header(TICKET) or "")
    if await _join(call, asked):
        return _NOTHING
    replica = await call.store.sessions.find_replica(host.id, asked.link_id, asked.ticket)
    if replica is None or replica == call.controller.replica:
        raise NotFound(_NOT_GOOD)
    await _pass_on(call, replica, asked)
    return _NOTHING


async def take_relayed_dial(call: ApiCall) -> Response:
    """Serve a host's end of a link that another replica relays: as `dial_session`."""
    asked = RelayedDial(
        call.params["id"], call.header(RELAYED_HOST) or "", call.header(TICKET) or ""
    )
    if not await _join(call, asked):
        raise NotFound(_NOT_GOOD)
    return _NOTHING


async def _join(call: ApiCall, asked: RelayedDial) -> bool:
    """Spend the ticket of a dial and join both ends of its link until they are gone; return False
    where no user with this ticket waits here."""
    socket, controller = call.socket, call.controller
    assert socket is not None
    link_id, host_id, ticket = asked
    if await call.store.sessions.take_link(host_id, link_id, ticket, controller.replica) is None:
        return False
    meeting = controller.meetings.get(link_id)
    if meeting is None or meeting.host_end.done():
        raise NotFound(
            f"the user of this link does not wait at {controller.replica}; where several "
            "servers share a database, each has an address of its own (`--advertise`)"
        )
    await socket.accept(PROTOCOL)
    if not meeting.host_end.done():
        meeting.host_end.set_result(socket)
        await meeting.over.wait()
    return True


async def _pass_on(call: ApiCall, replica: str, asked: RelayedDial) -> None:
    """Join a host's WebSocket with one to `replica`, until either end is gone. Raises Unavailable
    and NotFound."""
    socket = call.socket
    assert socket is not None
    line = socket.line
    other, early = Dialled(sums=False), list[bytes]()
    over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    other.hear = early.append
    other.over = lambda code: None if over.done() else over.set_result(code)
    left: asyncio.Future[int] | None = None
    try:
        await _reach(call.controller, replica, asked, other)
        await socket.accept(PROTOCOL)
        for data in early:
            line.send_on(data)

        def hear(data: bytes) -> None:
            line.send_on(data)
            if line.full:
                other.hold(True)

        other.hear, other.ready = hear, lambda: line.hold(False)
        line.join(other)
        left = asyncio.ensure_future(socket.hear_out())
        await asyncio.wait((over, left), return_when=asyncio.FIRST_COMPLETED)
        if over.done():
            await socket.close(over.result())
        else:
            code = left.result()
            other.close(code if code == LEFT or code >= _OWN_CODES else LOST)
    finally:
        if left is not None:
            left.cancel()
        other.close(LOST)


async def _reach(controller: Controller, replica: str, asked: RelayedDial, other: Dialled) -> None:
    words = {TICKET: asked.ticket, RELAYED_HOST: asked.host_id}
    words[PROOF] = sign_dial(await _read_key(controller), asked)
    path = f"/v1/replicas/sessions/{asked.link_id}"
    where = f"the server at {replica}, where the user of this link waits"
    try:
        await dial(AsyncHttp(read_addresses(replica)), path, words, other)
    except Unavailable as error:
        why = (
            f"{where}, cannot be reached: {error.message}; its `--advertise` is to name an address "
            "that the other servers reach"
        )
        log.warning("a session's link is not relayed: %s", why)
        raise Unavailable(why) from error
    except HoldfastError as error:
        raise NotFound(f"{where}, refuses it: {error.message}") from error


async def report_end(call: ApiCall) -> Response:
    """Record the end of a session, as its host reports it."""
    assert call.host is not None
    end = await call.body(SessionEnd)
    if await call.store.sessions.end_session(call.params["id"], end, host_id=call.host.id):
        call.controller.poke("events")
    return _NOTHING
