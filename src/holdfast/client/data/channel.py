"""Ask the program that serves a task's files (`holdfast.work.files`), over a session or a pipe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Protocol

from holdfast.errors import HoldfastError, Unavailable
from holdfast.work.files import HEAD, MAX_BYTES, MAX_HEAD_BYTES, make_frame

Answer = tuple[dict[str, Any], bytes]


class FilesRefused(HoldfastError):
    """Says why a request about a task's files cannot be carried out. missing: there is no such
    file."""

    code = "refused"
    missing = False


class Pipe(Protocol):
    """The line that carries bytes to the program that serves files, and back."""

    def write(self, data: bytes) -> None:
        """Send bytes to the program."""

    def receive(self) -> bytes:
        """Return the next bytes of the program; none at its end."""

    def close(self) -> None:
        """End the line."""


class FilesChannel:
    """Requests to the program that serves files, and its answers, in order; several may be under
    way."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._buffer = bytearray()
        self.sent = 0
        self.received = 0

    def ask(self, words: dict[str, Any], data: bytes = b"") -> Answer:
        """Send a request and return its answer. Raises FilesRefused, Unavailable."""
        self.send(words, data)
        return self.read_answer()

    def send(self, words: dict[str, Any], data: bytes = b"") -> None:
        """Send a request without waiting for its answer."""
        whole = make_frame(words, data)
        self.sent += len(whole)
        self._pipe.write(whole)

    def read_answer(self) -> Answer:
        """Return the next answer, in the order of the requests. Raises FilesRefused,
        Unavailable."""
        head = self._read(HEAD.size)
        sizes = HEAD.unpack(head)
        if sizes[0] > MAX_HEAD_BYTES or sizes[1] > MAX_BYTES:
            raise Unavailable("what came is no answer of the program that serves the files")
        words = json.loads(self._read(sizes[0]))
        data = self._read(sizes[1])
        if not isinstance(words, dict):
            raise Unavailable("what came is no answer of the program that serves the files")
        if "error" in words:
            error = FilesRefused(str(words["error"])[:2000])
            error.missing = words.get("errno") == 2
            raise error
        return words, data

    def walk(self, paths: list[str], most: int) -> Iterator[dict[str, Any]]:
        """Yield the answers of a walk: the entries of everything below these names, then the names
        left out. Raises FilesRefused, Unavailable."""
        answer, _ = self.ask({"do": "walk", "paths": paths, "most": most})
        yield answer
        while answer.get("more"):
            answer, _ = self.read_answer()
            yield answer

    def _read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            more = self._pipe.receive()
            if not more:
                raise Unavailable("the copy's session has ended before the copy")
            self.received += len(more)
            self._buffer += more
        found = bytes(self._buffer[:size])
        del self._buffer[:size]
        return found

    def close(self) -> None:
        """End the program that serves files."""
        self._pipe.close()
