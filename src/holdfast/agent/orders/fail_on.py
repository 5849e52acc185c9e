"""Search the whole output of a task for the pattern that its job fails on.

FAIL-ON-1  A task that exits with 0 fails where a line of its output matches its job's `fail_on`.
           The line is masked as in logs. Output that is no longer on the disk is not searched.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.agent.redact import Redactor
from holdfast.core.logs.lines import cut_line
from holdfast.core.logs.regex import MAX_LINE_CHARS, compile_pattern

_PIECE_BYTES = 1 << 20
_MAX_LINE_BYTES = 4 * MAX_LINE_CHARS
_BREAKS = re.compile(rb"[\r\n]")


def find_failing_line(pattern: str, paths: Sequence[Path], redactor: Redactor) -> str | None:
    """Return the first line that matches, of the first stream that has one; None without.

    pattern: one that `compile_pattern` accepts (REGEX-1). Blocks while it reads.
    """
    regex = compile_pattern(pattern)
    for path in paths:
        for raw in _read_lines(path):
            line = redactor.mask(raw).decode(errors="replace")[:MAX_LINE_CHARS]
            found = regex.search(line)
            if found is not None:
                return cut_line(line, found.start(), found.end())
    return None


def _read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, of each at most as many bytes as are looked at. A progress bar's
    carriage return ends a line, too."""
    rest = b""
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                *lines, rest = _BREAKS.split(rest + piece)
                yield from (line[:_MAX_LINE_BYTES] for line in lines)
                rest = rest[:_MAX_LINE_BYTES]
    except OSError:
        return
    yield rest
