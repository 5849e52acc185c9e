"""The output of an executor: marked, and written as rarely as without marks."""

from __future__ import annotations

import io
import sys
from typing import Any

from holdfast.functions.executor.streams import MarkedStream
from tests.waits import run_patiently

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
    stream.write("first\n")
    stream.write("second\n")
    mark = f"[holdfast] call {SET}.3 attempt 1\n".encode()
    assert file.written == [mark + b"first\n", b"second\n"]


def test_nothing_is_held_back() -> None:
    """PRINT-1."""
    file, stream = make_stream()
    stream.begin_call(SET, 0, 1)
    stream.write("a\nb")
    stream.write("c")
    mark = f"[holdfast] call {SET}.0 attempt 1\n".encode()
    assert file.written == [mark + b"a\nb", b"c"]
    stream.begin_call(SET, 1, 1)
    stream.write("d")
    assert b"".join(file.written[2:]) == f"\n[holdfast] call {SET}.1 attempt 1\nd".encode()


def test_a_call_is_named_before_what_writes_past_its_stream() -> None:
    file, stream = make_stream()
    stream.begin_call(SET, 0, 1)
    stream.buffer.write(b"bytes")
    stream.flush()
    stream.begin_call(SET, 1, 1)
    stream.announce()
    stream.announce()
    marks = [f"[holdfast] call {SET}.{n} attempt 1\n".encode() for n in (0, 1)]
    assert b"".join(file.written) == marks[0] + b"bytes" + marks[1]


CHILD = f"""
import os, subprocess, sys
from holdfast.functions.executor.streams import mark_streams
for start in (lambda: subprocess.run(["echo", "x"]), lambda: os.system("echo x")):
    for stream in mark_streams():
        stream.begin_call("{SET}", 0, 1)
    print("first", end=" ")
    start()
    sys.stdout.begin_call("{SET}", 1, 1)
    start()
print("last words", end="")
os.abort()
"""


def test_what_a_call_and_its_programs_print_is_in_order_and_survives_a_crash() -> None:
    words = [sys.executable, "-c", CHILD]
    done = run_patiently(words, seconds=20, capture_output=True, text=True)
    marks = [f"[holdfast] call {SET}.{n} attempt 1\n" for n in (0, 1)]
    # The stream does not know that the program ended the line, and a mark begins one.
    assert done.stdout == 2 * f"{marks[0]}first x\n\n{marks[1]}x\n" + "last words"
