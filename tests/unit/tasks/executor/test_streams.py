"""The output of an executor: marked, and written as rarely as without marks."""

from __future__ import annotations

import io
from typing import Any

from holdfast.tasks.executor.streams import MarkedStream

SET = "0123456789abcdefghjk"


class CountedFile(io.RawIOBase):
    """Keeps what each system call would write."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.written.append(bytes(data))
        return len(data)


def make_stream() -> tuple[CountedFile, MarkedStream]:
    file = CountedFile()
    return file, MarkedStream(io.BufferedWriter(file), encoding="utf-8")


def test_a_line_and_the_mark_before_it_are_one_write() -> None:
    file, stream = make_stream()
    stream.begin_call(SET, 3, 1)
    print("first", file=stream)
    print("second", file=stream)
    mark = f"[holdfast] call {SET}.3 attempt 1\n".encode()
    assert file.written == [mark + b"first\n", b"second\n"]


def test_a_line_is_not_held_back_and_the_rest_of_one_is() -> None:
    file, stream = make_stream()
    stream.begin_call(SET, 0, 1)
    stream.write("a\nb")
    assert len(file.written) == 1
    assert file.written[0].endswith(b"a\nb")
    stream.write("c")
    assert len(file.written) == 1
    stream.begin_call(SET, 1, 1)
    stream.write("d")
    stream.flush()
    assert b"".join(file.written[1:]) == f"c\n[holdfast] call {SET}.1 attempt 1\nd".encode()
