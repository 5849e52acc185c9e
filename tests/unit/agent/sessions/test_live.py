"""A session's bytes: what its user may send ahead, and what is kept of what it prints."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, cast

from holdfast.agent.sessions.dial import Dialled
from holdfast.agent.sessions.guardian_line import GuardianSessionLine
from holdfast.agent.sessions.live import LiveSession
from holdfast.core.ids import TaskKey
from holdfast.wire.sessions.frames import LOST, PIECE_BYTES, STDIN, STDOUT, WINDOW_BYTES, frame


class Wire:
    """A link whose user is the test."""

    def __init__(self) -> None:
        self.full = False
        self.sent: list[bytes] = []
        self.closed: list[int] = []
        self.hear: Callable[[bytes], None]

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self, code: int) -> None:
        self.closed.append(code)


def make(*, tty: bool) -> tuple[LiveSession, Wire, list[int]]:
    """A session that has begun, its user's link, and the ends that its process would hold."""
    live = LiveSession(
        "s1",
        TaskKey("job", 0, 1),
        "life",
        cast(GuardianSessionLine, _Guardian()),
        stop=lambda: None,
        keyed=lambda: None,
        gone=lambda: None,
        linger_seconds=1.0,
    )
    if tty:
        outer, inner = os.openpty()
        live.take_ends([outer], tty=True, input_open=True)
        ends = [inner]
    else:
        (read, write), (out, printed) = os.pipe(), os.pipe()
        live.take_ends([write, out], tty=False, input_open=True)
        ends = [read, printed]
    wire = Wire()
    live.add_link(cast(Dialled, wire), "s1", seen=0, watch=False)
    return live, wire, ends


class _Guardian:
    def send(self, request: Any) -> None:
        """Hear nothing."""


def end(live: LiveSession, ends: list[int]) -> None:
    live._end()
    for fd in ends:
        os.close(fd)


async def test_a_user_that_sends_without_end_to_a_process_that_does_not_read_is_cut_off() -> None:
    """An agent holds a bounded part of it, whatever the user's program heeds."""
    live, wire, ends = make(tty=False)
    for _ in range(3 * WINDOW_BYTES // PIECE_BYTES):
        wire.hear(frame(STDIN, bytes(PIECE_BYTES)))
    assert sum(map(len, live._unwritten)) <= WINDOW_BYTES + PIECE_BYTES
    assert wire.closed[:1] == [LOST]
    end(live, ends)


async def test_what_comes_after_the_end_of_the_input_is_dropped() -> None:
    live, wire, ends = make(tty=False)
    live._close_input()
    for _ in range(3 * WINDOW_BYTES // PIECE_BYTES):
        wire.hear(frame(STDIN, bytes(PIECE_BYTES)))
    assert not live._unwritten
    assert not wire.closed
    end(live, ends)


async def test_a_screen_of_single_keys_is_kept_in_few_pieces_and_sent_once() -> None:
    """Each look for what to send passes all pieces that are kept."""
    live, wire, ends = make(tty=True)
    inner = ends[0]
    for number in range(1000):
        os.write(inner, b"%d" % (number % 10))
        live._read(live._input)
    assert len(live._kept) < 5
    told = b"".join(data[1:] for data in wire.sent if data[0] == STDOUT)
    assert told == b"0123456789" * 100
    end(live, ends)
