"""The error lines of many ranks, grouped by their likeness. Pure.

Two lines are alike where they differ in numbers, addresses, identifiers, and in a time or a rank at
their beginning alone.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

import msgspec

from holdfast.core.logs.lines import cut_line

MAX_KINDS = 20
"""Most kinds of error lines that count of one rank, the last ones of its log."""
MAX_GROUPS = 50
MAX_LINE_CHARS = 4000

_ERROR = re.compile(
    r"[A-Za-z_.]*(?:Error|Exception|Interrupt)\b|"
    r"(?i:\b(?:error|errors|exception|fatal|fail|failed|failure|timeout|timed out|abort|aborted|"
    r"aborting|panic|panicked|killed|core dumped|segmentation fault|out of memory|oom|unhandled|"
    r"assertion|refused|unreachable|xid)\b)"
)
_NO_ERROR = re.compile(
    r"(?i:\b(?:no|0|without) (?:error|failure|exception)s?\b|\berrors?[=:] ?0\b)|"
    r"\b\w*Warning\b|\b(?:WARN|WARNING|DEBUG)\b|^Traceback \(most recent call last\)"
)
_HEAD = re.compile(
    r"^(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?[\s:|-]*"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?[\s:|-]*"
    r"|\[[\w.-]*(?:\[\d+\]|\d+)[\w.-]*\]:?\s*"
    r"|\(?rank ?\d+\)?[\s:|]+"
    r"|[EFWI]\d{4} (?=\d\d:))+",
    re.I,
)
_VARIABLE = re.compile(
    r"0x[0-9a-fA-F]+"
    r"|\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?\b"  # a device on its bus
    r"|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
    r"|\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}\b"
    r"|\d+(?:[.,:]\d+)*"
)
_SPACE = re.compile(r"\s+")


class ErrorLine(NamedTuple):
    """An error line of a rank, and when the controller was given it."""

    rank: int
    text: str
    at: datetime | None


class ErrorGroup(msgspec.Struct, frozen=True):
    """Error lines that are alike. text: the first of them. ranks: how many ranks wrote one.
    first_rank, first_at: which rank's came first, and when the controller was given it."""

    text: str
    ranks: int
    lines: int
    first_rank: int
    first_at: datetime | None


def find_error_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line that tells of an error, with the place in the text where it begins. Lines that
    begin with a space are the frames of a traceback."""
    at = 0
    for raw in text.split("\n"):
        begin, at = at, at + len(raw) + 1
        line = cut_line(raw[:MAX_LINE_CHARS], 0, 0)
        own = _HEAD.sub("", line)
        if not raw[:1].isspace() and _ERROR.search(own) and not _NO_ERROR.search(own):
            yield begin, line


def find_likeness(text: str) -> str:
    """Return what lines that are alike have in common."""
    return _SPACE.sub(" ", _VARIABLE.sub("#", _HEAD.sub("", text))).strip()


def group_errors(lines: Iterable[ErrorLine]) -> list[ErrorGroup]:
    """Group error lines: those of the most ranks first, and among them those that came first."""
    found: dict[str, list[ErrorLine]] = {}
    for line in lines:
        found.setdefault(find_likeness(line.text), []).append(line)
    groups = []
    for alike in found.values():
        first = min(alike, key=_moment)
        ranks = len({line.rank for line in alike})
        groups.append(ErrorGroup(first.text, ranks, len(alike), first.rank, first.at))
    groups.sort(key=_rank_group)
    return groups[:MAX_GROUPS]


def _moment(line: ErrorLine) -> tuple[float, int]:
    return (float("inf") if line.at is None else line.at.timestamp(), line.rank)


def _rank_group(group: ErrorGroup) -> tuple[int, float, int]:
    first = ErrorLine(group.first_rank, group.text, group.first_at)
    return (-group.ranks, *_moment(first))


def say_group(group: ErrorGroup) -> str:
    """Return a group as one sentence."""
    count = f"{group.ranks:,} ranks" if group.ranks != 1 else "1 rank"
    text = _HEAD.sub("", group.text) or group.text
    if group.first_at is None:
        return f"{count}: {text}; first: rank {group.first_rank}"
    moment = f"{group.first_at:%H:%M:%S}.{group.first_at.microsecond // 1000:03d}"
    return f"{count}: {text}; first: rank {group.first_rank} at {moment}"
