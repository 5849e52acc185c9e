"""WebSockets as our clients speak them, against the library that speaks them on the server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from holdfast.http.answers import BadAnswer
from holdfast.http.websocket import (
    BINARY,
    CLOSE,
    PING,
    Handshake,
    MessageReader,
    UpgradeRefused,
    read_close,
    write_close,
    write_message,
)

SPOKEN = "v1.test"
MESSAGES = st.lists(st.tuples(st.sampled_from([BINARY, PING]), st.binary(max_size=125)), max_size=8)
CUTS = st.lists(st.integers(0, 3000), max_size=8)


def cut(raw: bytes, cuts: list[int]) -> Iterator[bytes]:
    edges = sorted({0, len(raw), *(place * len(raw) // 3000 for place in cuts)})
    return (raw[start:end] for start, end in itertools.pairwise(edges))


def grow(opcode: int, data: bytes) -> bytes:
    """Make a message longer than a short frame; a ping may not be."""
    return data if opcode == PING else data * 700


@given(MESSAGES, CUTS)
def test_a_server_reads_what_a_client_writes(
    messages: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    sent = [(opcode, grow(opcode, data)) for opcode, data in messages]
    server = ServerProtocol(state=State.OPEN)
    raw = b"".join(write_message(data, opcode) for opcode, data in sent)
    found: list[tuple[int, bytes]] = []
    for piece in cut(raw, cuts):
        server.receive_data(piece)
        frames = [event for event in server.events_received() if isinstance(event, Frame)]
        found += [(int(frame.opcode), bytes(frame.data)) for frame in frames]
    assert found == sent


@given(MESSAGES, CUTS, st.integers(1, 50_000))
def test_a_client_reads_what_a_server_writes(
    messages: list[tuple[int, bytes]], cuts: list[int], size: int
) -> None:
    """Also where a message comes in fragments with a ping between them."""
    server, wanted = ServerProtocol(state=State.OPEN), []
    for opcode, short in messages:
        data = grow(opcode, short)
        if opcode == PING:
            server.send_ping(data)
        else:
            pieces = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
            server.send_binary(pieces[0], fin=len(pieces) == 1)
            for number, piece in enumerate(pieces[1:], 2):
                server.send_ping(b"between")
                wanted.append((PING, b"between"))
                server.send_continuation(piece, fin=number == len(pieces))
        wanted.append((opcode, data))
    reader, found = MessageReader(1 << 20), []
    for piece in cut(b"".join(server.data_to_send()), cuts):
        found += reader.feed(piece)
    assert found == wanted


def test_the_code_of_a_close_arrives() -> None:
    server = ServerProtocol(state=State.OPEN)
    server.receive_data(write_close(4004))
    assert server.close_rcvd is not None
    assert server.close_rcvd.code == 4004
    ((opcode, payload),) = MessageReader(100).feed(server.data_to_send()[0])
    assert (opcode, read_close(payload), read_close(b"")) == (CLOSE, 4004, 1005)


def ask(server: ServerProtocol, hand: Handshake) -> Request:
    server.receive_data(hand.write_request("host:1", "/there", {"Holdfast-Ticket": "t"}))
    (request,) = server.events_received()
    assert isinstance(request, Request)
    return request


def test_a_handshake_opens_a_websocket_and_keeps_what_follows() -> None:
    server, hand = ServerProtocol(subprotocols=[SPOKEN]), Handshake(SPOKEN)
    request = ask(server, hand)
    assert (request.path, request.headers["Holdfast-Ticket"]) == ("/there", "t")
    server.send_response(server.accept(request))
    answer = b"".join(server.data_to_send())
    assert [hand.feed(bytes((byte,))) for byte in answer[:-1]] == [None] * (len(answer) - 1)
    assert server.subprotocol == SPOKEN
    assert hand.feed(answer[-1:] + b"early") == b"early"


def test_a_refusal_is_read_to_its_end() -> None:
    server, hand = ServerProtocol(), Handshake(SPOKEN)
    ask(server, hand)
    server.send_response(server.reject(404, "the user waits no more"))
    answer = b"".join(server.data_to_send())
    for byte in answer[:-1]:
        assert hand.feed(bytes((byte,))) is None
    with pytest.raises(UpgradeRefused) as refused:
        hand.feed(answer[-1:])
    assert (refused.value.status, refused.value.body) == (404, b"the user waits no more")


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"HTTP/1.1 101 Switching Protocols\r\n\r\n", b"SSH-2.0-OpenSSH\r\n\r\n", b"x" * (1 << 18),
        b"HTTP/1.1 101 OK\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
    ],
    ids=["nothing", "no word", "no HTTP", "no end", "another's word"],
)  # fmt: skip
def test_what_opens_no_websocket_is_no_answer(answer: bytes) -> None:
    with pytest.raises(BadAnswer):
        Handshake(SPOKEN).feed(answer)


def test_a_header_adds_no_other() -> None:
    with pytest.raises(ValueError, match="ends it"):
        Handshake(SPOKEN).write_request("host", "/", {"Holdfast-Ticket": "t\r\nX: y"})
