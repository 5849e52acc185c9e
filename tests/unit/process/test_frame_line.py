"""A line of frames between two processes."""

from __future__ import annotations

import socket

import pytest

from holdfast.errors import ValidationError
from holdfast.process.loop import FrameLine


def test_frames_come_whole_and_in_order_also_where_the_other_end_reads_late() -> None:
    ours, theirs = (FrameLine(end) for end in socket.socketpair())
    bodies = [b"a", b"", b"b" * (1 << 20), b"c"]
    for body in bodies:
        ours.queue_frame(body)
    assert ours.flush(), "a megabyte fits into no buffer"
    heard: list[bytes] = []
    while ours.flush() or len(heard) < len(bodies):
        heard += theirs.read_frames()
    assert heard == bodies
    assert (theirs.read_frames(), theirs.ended, bool(ours.unsent)) == ([], False, False)


def test_the_end_is_found_by_hearing_after_what_was_said_before_it() -> None:
    ours, theirs = (FrameLine(end) for end in socket.socketpair())
    ours.queue_frame(b"the last word")
    ours.flush()
    ours.close()
    assert (theirs.read_frames(), theirs.ended) == ([b"the last word"], False)
    theirs.queue_frame(b"nobody hears it")
    assert not theirs.flush(), "a line whose other end is gone keeps nothing"
    assert (theirs.read_frames(), theirs.ended) == ([], True)


def test_bytes_that_are_no_frames_are_refused() -> None:
    end, theirs = socket.socketpair()
    end.send(b"\xff" * 8)
    with pytest.raises(ValidationError):
        FrameLine(theirs).read_frames()
