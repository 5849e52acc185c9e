"""HTTP/1.1 as a client speaks it: the head of a request, and an answer as its bytes come. No I/O.

httptools parses, because it is C: h11 costs as much to import as Python takes to start, and ten
times as much for each answer.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_HEAD_BYTES = 1 << 17
_SPLITS_A_LINE = "\r\n\0"


class BadAnswer(Exception):
    """Says that the bytes are no answer, or that the answer is not whole."""


def write_head(method: str, target: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the head of a request. Raises ValueError for a word that would add a line or a header
    of its own."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    if " " in target or any(char in line for line in lines for char in _SPLITS_A_LINE):
        raise ValueError("a request's address or header has a character that ends it")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


class AnswerReader:
    """One answer. `status` is 0 until its head has come; interim answers are skipped."""

    def __init__(self) -> None:
        from httptools import HttpResponseParser  # late, because a WebSocket reads no answer

        self._parser = HttpResponseParser(self)
        self._given: list[tuple[str, str]] = []
        self._pieces: list[bytes] = []
        self._head_bytes = 0
        self._is_kept = self._has_more = self._ends_with_connection = False
        self.status, self.done = 0, False
        self.headers: dict[str, str] = {}

    @property
    def is_reusable(self) -> bool:
        """Return whether the connection may carry another exchange."""
        return self.done and self._is_kept and not self._has_more

    def feed(self, data: bytes) -> None:
        """Parse bytes that came from the connection; no bytes mean its end. Raises BadAnswer."""
        if not data:
            self._end()
            return
        from httptools import HttpParserError, HttpParserUpgrade

        if not self.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if not self.done:
                raise BadAnswer(f"the answer is no HTTP: {error}") from error
            self._has_more = True
        if not self.status and self._head_bytes > MAX_HEAD_BYTES:
            raise BadAnswer(f"the head of the answer is over {MAX_HEAD_BYTES} bytes")

    def _end(self) -> None:
        if self.status and self._ends_with_connection:
            self.done = True
        elif not self.done:
            raise BadAnswer("the server closed the connection within its answer")

    def take_pieces(self) -> list[bytes]:
        """Return the parts of the body that have come since the last call of this function."""
        pieces, self._pieces = self._pieces, []
        return pieces

    # Callbacks of httptools.
    def on_message_begin(self) -> None:
        self._given = []
        self._has_more = self.done

    def on_header(self, name: bytes, value: bytes) -> None:
        self._given.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self.done:
            return
        self.status, self.headers = status, dict(self._given)
        sized = {"content-length", "transfer-encoding"} & self.headers.keys()
        self._ends_with_connection = not sized and status not in (204, 304)

    def on_body(self, data: bytes) -> None:
        if not self.done:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self.status and not self.done:
            self.done, self._is_kept = True, self._parser.should_keep_alive()
