"""The exceptions in a log with which programs ended, and the last words of a program.

A log holds tracebacks that ended nothing: of an exception that was caught and logged, of a thread,
of an object that could not be removed at the end. A launcher ends with a traceback of its own, which
tells only that a rank failed. And what one task prints may come from several ranks.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from holdfast.core.logs.lines import NOISE, cut_line

LAST_LINES = 3
"""A tool's error takes no more lines at the end of a log; what stands before may be of another
matter."""
_BARE_LINES = 6  # of a message of several lines
MAX_BLOCK_LINES = 24

_TRACEBACK = re.compile(r"Traceback \(most recent call last\):?")
_BOX_END = re.compile(r"(?m:^[^\n╰]{0,40}╰─{4,200}╯[^\n]{0,40}\n)")
_REFUSED = re.compile(
    r"(?m:^(?:(?:SyntaxError|IndentationError|TabError): |\S{0,200}python[\d.]{0,6}: "
    r"(?:can't open file|No module named|Error while finding)).*$)"
)
_BARE = re.compile(r"(?m:^[A-Za-z_][\w.]{0,200}(?:Error|Exception|\.errors\.\w{1,60}): )")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,200}(?:\([\w.]{1,100}\))?(?::\s|:?$)")
_ENDED_NOTHING = re.compile(
    r"Exception ignored in|--- Logging error ---|Exception in thread|"
    r"\b(?:ERROR|WARNING|WARN|CRITICAL|DEBUG|INFO)\b"
)
_LAUNCHERS = re.compile(
    r"(?:[\w.]{1,100}\.)?(?:ChildFailedError|CalledProcessError|ProcessRaisedException"
    r"|ProcessExitedException|MultiprocessingError)\b"
)


class Raised(NamedTuple):
    """An exception that ended a program. line: as in "ValueError: too small". block: that line and
    the rest of the message. rank: what a launcher puts before each line of a rank, such as
    "[rank0]: "; empty without a launcher. launcher: the launcher raised it for one of its ranks."""

    line: str
    block: str
    rank: str
    launcher: bool


@lru_cache(maxsize=4)
def list_raised(text: str) -> tuple[Raised, ...]:
    """Return the exceptions that ended programs, in the order of the log."""
    return tuple(_list_raised(text))


def _list_raised(text: str) -> Iterator[Raised]:
    for found in _TRACEBACK.finditer(text):
        at = found.start()
        begin = text.rfind("\n", 0, at) + 1
        rank = text[begin:at]
        if rank.strip("─ ╭") == "" and "╭" in rank:
            box = _BOX_END.search(text, at)
            rest = "" if box is None else text[box.end() :]
            raised = _read_raised(rest.splitlines(), "")
        elif _ENDED_NOTHING.search(rank) or _ENDED_NOTHING.search(_line_before(text, begin)):
            raised = None
        else:
            raised = _read_raised(text[at:].splitlines()[1:], rank)
        if raised is not None:
            yield raised


def _line_before(text: str, begin: int) -> str:
    end = max(begin - 1, 0)
    return text[text.rfind("\n", 0, end) + 1 : end]


def _read_raised(lines: list[str], rank: str) -> Raised | None:
    for number, line in enumerate(lines):
        own = NOISE.sub("", line.removeprefix(rank))
        if own[:1].isspace() or not own:
            continue
        if not _EXCEPTION.match(own):
            return None
        block = [own]
        for more in lines[number + 1 : number + MAX_BLOCK_LINES]:
            if not more.startswith(rank) or not more.strip() or _TRACEBACK.search(more):
                break
            block.append(NOISE.sub("", more.removeprefix(rank)))
        launcher = _LAUNCHERS.match(own) is not None
        return Raised(cut_line(own, 0, len(own)), "\n".join(block), rank, launcher)
    return None


def find_exception(text: str) -> str | None:
    """Return the last line of the traceback that ended a program, such as "ValueError: too small",
    or what Python says of a program that it cannot run at all.

    A rank's own exception stands before the one that its launcher raised for it.
    """
    raised = list_raised(text)
    if raised:
        own = [each for each in raised if not each.launcher]
        return (own or raised)[-1].line
    *_, refused = [None, *_REFUSED.findall(text)]
    return None if refused is None else cut_line(refused, 0, len(refused))


def find_bare(text: str) -> str:
    """Return an exception among the last lines of a log that holds no traceback, because its tail
    begins behind it; "" where there is none."""
    lines = "\n".join(text[-4096:].splitlines()[-_BARE_LINES:])
    found = None if list_raised(text) else _BARE.search(lines)
    return "" if found is None else lines[found.start() :]


def find_last_words(text: str) -> str:
    """Return what a program said last: its last exception with the whole message, and the last
    lines of its log."""
    own = [each for each in list_raised(text) if not each.launcher]
    lines = [line for line in text[-4096:].splitlines() if line.strip()]
    return "\n".join([*([own[-1].block] if own else []), *lines[-LAST_LINES:]])
