"""Search the whole output of a task for the pattern that its job fails on, in a process of its own,
because a pattern of Python's may take for ever on a line: `python -m holdfast.agent.orders.fail_on`,
with the search on stdin.

FAIL-ON-1  A task that exits with 0 fails where a line of its output matches its job's `fail_on`.
           The line is masked as in logs. Output that is no longer on the disk is not searched, and
           a line on which the pattern takes over `LINE_SECONDS` is passed over.
"""

import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import msgspec

from holdfast.agent.redact import Redactor
from holdfast.core.logs.lines import cut_line
from holdfast.core.logs.regex import MAX_LINE_CHARS, compile_for_python

log = logging.getLogger("holdfast.agent")

LINE_SECONDS = 1.0
_MOST_SLOW_LINES = 10
_PIECE_BYTES = 1 << 20
_MAX_LINE_BYTES = 4 * MAX_LINE_CHARS
_BREAKS = re.compile(rb"[\r\n]")


class OutputSearch(msgspec.Struct, frozen=True):
    """A search. secrets: the values to be masked, as bytes."""

    pattern: str
    paths: list[str]
    secrets: list[bytes]


class SearchedOutput(msgspec.Struct, frozen=True):
    """What a search found. line: the first that matches, of the first stream that has one. slow:
    how many lines were passed over."""

    line: str | None = None
    slow: int = 0


class _Slow(Exception):
    """Says that the pattern took too long on a line."""


def find_failing_line(pattern: str, paths: Sequence[Path], redactor: Redactor) -> str | None:
    """Return the first line that matches, of the first stream that has one; None without. Blocks
    while the process searches."""
    secrets = [os.fsencode(value) for value in redactor.values]
    asked = OutputSearch(pattern, [str(path) for path in paths], secrets)
    done = subprocess.run(
        [sys.executable, "-P", "-m", __name__],
        input=msgspec.msgpack.encode(asked),
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        log.error(f"the search of a task's output for {pattern!r} ended with {done.returncode}")
        return None
    found = msgspec.msgpack.decode(done.stdout, type=SearchedOutput)
    if found.slow:
        log.warning(f"fail_on {pattern!r} took too long on {found.slow} lines, which were left out")
    return found.line


def search_output(asked: OutputSearch) -> SearchedOutput:
    """Carry out a search. Lines are given their time by an alarm, so no other thread may do this."""
    regex = compile_for_python(asked.pattern)
    redactor, slow = Redactor(map(os.fsdecode, asked.secrets)), 0
    for path in asked.paths:
        for raw in _read_lines(path):
            line = redactor.mask(raw).decode(errors="replace")[:MAX_LINE_CHARS]
            try:
                signal.setitimer(signal.ITIMER_REAL, LINE_SECONDS)
                found = regex.search(line)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except _Slow:
                slow += 1
                if slow == _MOST_SLOW_LINES:
                    return SearchedOutput(None, slow)
                continue
            if found is not None:
                return SearchedOutput(cut_line(line, found.start(), found.end()), slow)
    return SearchedOutput(None, slow)


def _read_lines(path: str) -> Iterator[bytes]:
    """Yield the lines of a file, of each at most as many bytes as are looked at. A progress bar's
    carriage return ends a line, too."""
    rest = b""
    try:
        with open(path, "rb") as file:
            while piece := file.read(_PIECE_BYTES):
                *lines, rest = _BREAKS.split(rest + piece)
                yield from (line[:_MAX_LINE_BYTES] for line in lines)
                rest = rest[:_MAX_LINE_BYTES]
    except OSError:
        return
    yield rest


def _give_up(number: int, frame: FrameType | None) -> None:
    raise _Slow


def main() -> int:
    """Carry out the search on stdin, and print what it found."""
    signal.signal(signal.SIGALRM, _give_up)
    asked = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=OutputSearch)
    sys.stdout.buffer.write(msgspec.msgpack.encode(search_output(asked)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
