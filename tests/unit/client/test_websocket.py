"""A WebSocket of a client whose line is slow, full or torn."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from holdfast.client.sessions import websocket
from holdfast.client.sessions.websocket import LinkLost, WebSocket
from holdfast.http.websocket import CLOSE, PONG
from holdfast.wire.sessions.frames import LEFT, STDIN, frame

BLOCK = frame(STDIN, bytes(8 << 20))


@pytest.fixture
def ends() -> Iterator[tuple[WebSocket, socket.socket]]:
    """The WebSocket, and the controller's end of its connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        wire = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    wire.settimeout(0.05)
    peer.settimeout(20)
    found = WebSocket(wire, b"")
    with peer:
        yield found, peer
    found.abort()


def read_all(peer: socket.socket) -> bytes:
    return b"".join(iter(lambda: peer.recv(1 << 20), b""))


def test_nothing_follows_a_message_that_was_sent_in_part(
    ends: tuple[WebSocket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rest would be taken out of what follows, and the length would be right."""
    wire, peer = ends
    monkeypatch.setattr(websocket, "_SILENCE_SECONDS", 0.0)
    with pytest.raises(LinkLost, match="was silent"):
        wire.send(BLOCK)
    for _ in range(2):
        with pytest.raises(LinkLost, match="was silent"):
            wire.send(frame(STDIN, b"after"))
    assert not wire.beat()
    wire.close()
    assert len(read_all(peer)) < len(BLOCK)


def test_a_message_that_the_other_end_is_slow_to_take_is_no_loss(
    ends: tuple[WebSocket, socket.socket],
) -> None:
    """It takes many times as long as one wait for room, and the controller was heard lately."""
    wire, peer = ends
    sender = threading.Thread(target=wire.send, args=(BLOCK,), daemon=True)
    sender.start()
    sender.join(0.3)
    assert sender.is_alive(), "the line is full"
    found = 0
    while found < len(BLOCK) + 4 + 14:  # the sum, and the header
        found += len(peer.recv(1 << 20))
    sender.join(20)
    assert wire.beat()
    assert peer.recv(100)[:2] == bytes((0x80 | PONG, 0x80))


def test_a_sign_of_life_does_not_wait_for_room(ends: tuple[WebSocket, socket.socket]) -> None:
    wire, peer = ends

    def send() -> None:
        with contextlib.suppress(LinkLost):
            wire.send(BLOCK)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    sender.join(0.3)
    assert wire.beat()
    peer.close()
    sender.join(20)
    assert not sender.is_alive()


def test_a_word_of_leave_is_not_overtaken_by_a_reset(ends: tuple[WebSocket, socket.socket]) -> None:
    """What the controller still sends is unread, and yet it learns that its user left."""
    wire, peer = ends
    peer.setblocking(False)
    try:
        while True:
            peer.send(bytes(1 << 16))
    except BlockingIOError:
        peer.settimeout(20)
    leaving = threading.Thread(target=wire.close, daemon=True)
    leaving.start()
    found = read_all(peer)
    assert found[:2] == bytes((0x80 | CLOSE, 0x82))
    code = bytes(a ^ b for a, b in zip(found[6:8], found[2:6], strict=False))
    assert int.from_bytes(code, "big") == LEFT
    peer.close()
    leaving.join(20)
    assert not leaving.is_alive()
