"""Frames of a client, cut out of its bytes and passed on without a mask."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller.http.splice import BadFrame, FrameCutter
from holdfast.wire.sessions.websocket import BINARY, PING, MessageReader, write_message

MESSAGES = st.lists(
    st.tuples(st.sampled_from([BINARY, PING]), st.binary(max_size=300), st.binary(min_size=4, max_size=4)),
    max_size=8,
)  # fmt: skip


OWN = (BINARY, b"own")


@given(MESSAGES, st.lists(st.integers(0, 3000), max_size=8))
def test_messages_arrive_as_they_were_however_their_bytes_come(
    messages: list[tuple[int, bytes, bytes]], cuts: list[int]
) -> None:
    """SPLICE-1: what a client writes, cut anywhere, is what a client reads behind it, also where the
    server writes a control frame after each part, and a message of its own where one ends."""
    sent = [(op, data[:125] if op == PING else data * 700, mask) for op, data, mask in messages]
    raw = b"".join(write_message(data, mask, op) for op, data, mask in sent)
    cutter, reader = FrameCutter(), MessageReader(1 << 20)
    found: list[tuple[int, bytes]] = []
    heard: list[tuple[int, bytes]] = []
    edges = sorted({0, len(raw), *(cut * len(raw) // 3000 for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        out, controls, parts, place = cutter.feed(raw[start:end])
        heard += controls
        own = b"\x82\x03own" if parts >= 0 else b""
        out.insert(max(0, parts), own)
        found += reader.feed(b"".join(out))
        found += reader.feed(b"\x89\x04ping")  # after each write, also within a message
        assert start + place <= end
    assert cutter.at_boundary
    assert [each for each in found if each not in (OWN, (PING, b"ping"))] == [
        (op, data) for op, data, _ in sent if op == BINARY
    ]
    assert heard == [(op, data) for op, data, _ in sent if op == PING]


@pytest.mark.parametrize(
    "head",
    [
        b"\x89\xfe\x00\x7e", b"\x89\xff\x00\x00\x00\xff\x00\x00\x00\x00", b"\x82\x05", b"\x09\x80",
        b"\xc2\x80", b"\x80\x80", b"\x02\x80mask\x82\x80",
    ],
    ids=[
        "a long ping", "an endless ping", "no mask", "a ping in parts", "an extension",
        "the rest of no message", "a message within another",
    ],
)  # fmt: skip
def test_a_control_frame_is_short_and_a_clients_message_is_whole(head: bytes) -> None:
    """What is gathered here of a frame stays small, whatever length it names."""
    with pytest.raises(BadFrame):
        FrameCutter().feed(head + b"mask" + b"x" * 200)
