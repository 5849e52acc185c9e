"""LINK-1…3 under every loss, doubling and swap that hypothesis finds. Two ends, one simulated wire,
time by hand."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.supervisor.line.session_link import BATCH_BYTES, RESEND_SECONDS, WINDOW_BYTES, Link
from holdfast.wire.bus.messages import (
    HEADER_BYTES,
    Send,
    decode_down,
    decode_header,
    encode_header,
    encode_message,
)


def message(number: int, size: int = 0) -> bytes:
    return encode_message(Send(1, number, b"x" * size))


def numbers(frame: bytes) -> list[int]:
    found = decode_down(frame)
    return [entry.rank or 0 for entry in found if isinstance(entry, Send)]


class End:
    """One end of the wire: its link, what it took, and the frames on their way to the other."""

    def __init__(self) -> None:
        self.link = Link(7)
        self.taken: list[int] = []
        self.wire: list[bytes] = []

    def say(self, now: float) -> None:
        self.wire += self.link.take_frames(now)

    def hear(self, frame: bytes, now: float) -> None:
        act, replies = self.link.take_header(decode_header(frame), len(frame), now)
        if act:
            self.taken += numbers(frame)
        self.wire += replies


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 1), st.integers(1, 4)),
        st.tuples(st.just("deliver"), st.integers(0, 1), st.integers(0, 5)),
        st.tuples(st.just("lose"), st.integers(0, 1), st.integers(0, 5)),
        st.tuples(st.just("double"), st.integers(0, 1), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.just(0), st.integers(1, 4)),
        st.tuples(st.just("beat"), st.integers(0, 1), st.just(0)),
    ),
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_everything_arrives_once_and_in_order(steps: list[tuple[str, int, int]]) -> None:
    """LINK-1."""
    ends = (End(), End())
    pushed: tuple[list[int], list[int]] = ([], [])
    now = 0.0
    for verb, side, amount in steps:
        end, other = ends[side], ends[1 - side]
        if verb == "push":
            for _ in range(amount):
                pushed[side].append(len(pushed[side]))
                end.link.push_ordered(message(pushed[side][-1]))
            end.say(now)
        elif verb == "deliver" and end.wire:
            other.hear(
                end.wire.pop(amount % len(end.wire)), now
            )  # any of them: frames overtake each other
        elif verb == "lose" and end.wire:
            end.wire.pop(amount % len(end.wire))
        elif verb == "double" and end.wire:
            end.wire.append(end.wire[amount % len(end.wire)])
        elif verb == "beat":
            end.wire += end.link.take_resends(now) or [end.link.make_heartbeat()]
        elif verb == "wait":
            now += amount
        for one, theirs in ((0, ends[1]), (1, ends[0])):
            assert theirs.taken == pushed[one][: len(theirs.taken)], (
                "out of order, twice, or made up"
            )
    # From here on the wire is good: everything must come through.
    for _ in range(6):
        now += RESEND_SECONDS + 0.1
        for side in (0, 1):
            end, other = ends[side], ends[1 - side]
            end.say(now)
            end.wire += end.link.take_resends(now) or [end.link.make_heartbeat()]
            while end.wire:
                other.hear(end.wire.pop(0), now)
    assert ends[1].taken == pushed[0]
    assert ends[0].taken == pushed[1]
    assert not ends[0].link.unacknowledged
    assert not ends[1].link.unacknowledged


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from([10, 100_000, 900_000])), max_size=40))
def test_the_short_overtakes_the_bulky_but_order_is_kept_where_it_counts(
    pushes: list[tuple[bool, int]],
) -> None:
    """LINK-3: what was pushed as ordered comes out in that order, with anything pushed between."""
    link = Link(1)
    ordered: list[int] = []
    quick: list[int] = []
    for number, (is_ordered, size) in enumerate(pushes):
        if is_ordered:
            ordered.append(number)
            link.push_ordered(message(number, size))
        else:
            quick.append(number)
            link.push(message(number, 10))
    seen = [number for frame in link.take_frames(0.0) for number in numbers(frame)]
    assert [number for number in seen if number in set(ordered)] == ordered
    assert [number for number in seen if number in set(quick)] == quick


def test_the_window_bounds_what_is_on_its_way() -> None:
    """LINK-2, and what is quick still goes first when the window opens."""
    link, peer = Link(1), Link(1)
    for number in range(3 * WINDOW_BYTES // BATCH_BYTES):
        link.push_ordered(message(number, BATCH_BYTES))
    frames = link.take_frames(0.0)
    assert WINDOW_BYTES <= sum(map(len, frames)) <= WINDOW_BYTES + 2 * BATCH_BYTES
    assert link.take_frames(1.0) == []
    link.push(message(9999))
    for frame in frames[:8]:
        _, replies = peer.take_header(decode_header(frame), len(frame), 1.0)
        for reply in replies:
            link.take_header(decode_header(reply), len(reply), 1.0)
    assert numbers(link.take_frames(1.0)[0]) == [9999]


def test_a_gap_is_asked_for_and_filled_without_waiting() -> None:
    link, peer = Link(1), Link(1)
    frames = []
    for number in range(3):
        link.push(message(number))
        frames += link.take_frames(0.0)
    act, replies = peer.take_header(decode_header(frames[2]), len(frames[2]), 0.1)
    assert not act
    (ask,) = replies
    _, again = link.take_header(decode_header(ask), len(ask), 0.2)
    assert [numbers(frame) for frame in again] == [[0], [1], [2]]
    assert all(peer.take_header(decode_header(frame), len(frame), 0.3)[0] for frame in again)


def test_what_was_not_acknowledged_comes_back_for_the_next_session() -> None:
    link, peer = Link(1), Link(1)
    for number in range(4):
        link.push(message(number))
        (frame,) = link.take_frames(0.0)
        if number < 2:
            peer.take_header(decode_header(frame), len(frame), 0.0)
    beat = peer.make_heartbeat()
    assert len(beat) == HEADER_BYTES
    link.take_header(decode_header(beat), len(beat), 0.0)
    link.push(message(4))
    assert link.take_back() == [message(2), message(3), message(4)]
    assert not link.unacknowledged


def test_an_acknowledgement_of_what_was_never_sent_is_ignored() -> None:
    link = Link(1)
    link.push(message(0))
    (frame,) = link.take_frames(0.0)
    lie = encode_header(1, 0, 99)
    link.take_header(decode_header(lie), len(lie), 0.0)
    assert link.unacknowledged
    assert link.take_resends(RESEND_SECONDS) == [frame]
