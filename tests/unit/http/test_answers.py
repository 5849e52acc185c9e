"""Answers are read as h11 reads them, however their bytes are cut; a request is one request."""

from __future__ import annotations

import itertools

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.http.answers import MAX_HEAD_BYTES, AnswerReader, BadAnswer, write_head

Read = tuple[int, dict[str, str], bytes, bool]


def read_by_h11(data: bytes, *, closed: bool) -> Read | None:
    """Status, headers, body and whether the connection is good for more; None for a bad answer."""
    connection = h11.Connection(our_role=h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    if closed:
        connection.receive_data(b"")
    head, body = None, b""
    try:
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                return None
            if isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
    except h11.RemoteProtocolError:
        return None
    assert head is not None
    headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
    reusable = connection.their_state is h11.DONE and connection.trailing_data == (b"", False)
    return head.status_code, headers, body, reusable


def read_here(data: bytes, cuts: list[int], *, closed: bool) -> Read | None:
    """The same by the reader, of pieces cut at these places."""
    reader, body = AnswerReader(), b""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[a:b] for a, b in itertools.pairwise(places)]
    try:
        for piece in [*pieces, *([b""] if closed else [])]:
            if not reader.done or piece:
                reader.feed(piece)
            body += b"".join(reader.take_pieces())
    except BadAnswer:
        return None
    reusable = reader.is_reusable and not closed
    return (reader.status, reader.headers, body, reusable) if reader.done else None


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """An answer as servers and proxies write them, whole or cut off, perhaps with more behind it."""
    body = draw(st.binary(max_size=40))
    status = draw(st.sampled_from([200, 201, 204, 304, 404, 503]))
    interim = draw(
        st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 102 P\r\n\r\n"])
    )
    lines = [b"HTTP/1.1 %d Said" % status, b"X-One: a b", b"Content-Type: text/plain"]
    lines += draw(st.sampled_from([[], [b"Connection: close"], [b"connection: keep-alive"]]))
    framing = draw(st.sampled_from(["length", "chunks", "close"]))
    if status in (204, 304):
        framing, body = "close", b""
    if framing == "length":
        lines.append(b"Content-Length: %d" % len(body))
    elif framing == "chunks":
        lines.append(b"Transfer-Encoding: chunked")
        size = draw(st.integers(1, 9))
        cut = [body[at : at + size] for at in range(0, len(body), size)]
        body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in cut) + b"0\r\n\r\n"
    whole = interim + b"\r\n".join(lines) + b"\r\n\r\n" + body
    if draw(st.booleans()):
        return whole
    return whole[: draw(st.integers(0, len(whole)))]


@given(answers(), st.lists(st.integers(0, 400), max_size=6), st.booleans())
def test_an_answer_is_read_as_h11_reads_it(data: bytes, cuts: list[int], closed: bool) -> None:
    assert read_here(data, cuts, closed=closed) == read_by_h11(data, closed=closed)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=4))
def test_nonsense_is_never_an_answer(data: bytes, cuts: list[int]) -> None:
    assert read_here(b"?" + data, cuts, closed=True) is None


def test_what_follows_an_answer_uses_the_connection_up() -> None:
    reader = AnswerReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\n")
    assert (reader.done, reader.is_reusable, list(reader.take_pieces())) == (True, False, [b"hi"])


def test_a_head_without_end_is_refused() -> None:
    reader = AnswerReader()
    line = b"X: " + b"a" * 1000 + b"\r\n"
    reader.feed(b"HTTP/1.1 200 OK\r\n" + line * (MAX_HEAD_BYTES // len(line) - 1))
    reader.feed(line[:-1])
    with pytest.raises(BadAnswer, match="head"):
        reader.feed(b"\n" + line)


def test_a_switched_protocol_is_no_answer() -> None:
    switched = b"HTTP/1.1 101 Switch\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
    assert read_here(switched, [], closed=True) is None


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/a b", []),
        ("/a\r\nX: 1", []),
        ("/a", [("Last-Event-ID", "1\r\nX: 2")]),
        ("/a", [("A", "b\0")]),
        ("/a", [("A", "\N{SNOWMAN}")]),
    ],
)
def test_a_word_that_is_more_than_a_word_is_not_sent(
    target: str, headers: list[tuple[str, str]]
) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # of several kinds
        write_head("GET", target, headers)
